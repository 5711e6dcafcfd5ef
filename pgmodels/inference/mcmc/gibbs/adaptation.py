"""What the Gibbs engine sets in warm-up and then freezes: how often it makes which move."""

from collections.abc import Sequence

import numpy as np

from pgmodels.inference.mcmc.gibbs.moves.data_augmentation import Sweep
from pgmodels.inference.mcmc.gibbs.moves.hamiltonian import Hamiltonian, acceptance
from pgmodels.inference.mcmc.gibbs.moves.move import Move, MoveSchedule, Seen
from pgmodels.inference.mcmc.gibbs.moves.slice_latents import MAX_STEPS, SliceLatents
from pgmodels.inference.mcmc.gibbs.moves.surrogate_slice import SliceUnknowns
from pgmodels.inference.mcmc.gibbs.schedule import Schedule, first_schedule
from pgmodels.priors.collection import PriorCollection

# Iterations of the pilot that the tuning reads.
PILOT = 25
# What sweeps may cost of what the other moves do, and in every how-manieth iteration there is one at least: where slice
# steps give as many draws as they are to, and where not.
_BESIDE_DRAWS, _ELSE = (0.1, 50), (1.0, 10)
# Hamiltonian steps accepted less often than this are not left alone.
_SELDOM = 0.3


def default_schedule(moves: Sequence[Move], prior: PriorCollection) -> Schedule:
    """What is done until something is known, and for ever where there is no warm-up.

    Hamiltonian steps are tried where they cost no more than slice steps in whose place they would be.
    """
    schedule = first_schedule(moves)
    hamiltonian, slices = schedule.of(Hamiltonian), schedule.of(SliceUnknowns)
    if hamiltonian is None or slices is None:
        return schedule
    if Hamiltonian().cost(prior, hamiltonian, None) > int(slices.repeats) * SliceUnknowns().cost(prior, slices, None):
        return first_schedule([move for move in moves if not isinstance(move, Hamiltonian)])
    return schedule.change(Hamiltonian, repeats=0).change(SliceUnknowns, repeats=1)


def pilot_schedule(held: Schedule, stage: int) -> Schedule:
    """What the pilot of a stage of warm-up does: a sweep in every iteration, and the moves that are tried.

    The first pilot finds the length of Hamiltonian steps, the second compares them to slice steps, and the last has the
    moves that were chosen.
    """
    held = held.change(Sweep, every=1)
    tried = held.of(Hamiltonian) is not None
    if not tried or stage == 1:
        held = held.change(SliceLatents, repeats=4)
    if not tried or stage > 1:
        return held
    if stage == 0:
        return held.change(Hamiltonian, repeats=1).change(SliceUnknowns, repeats=0).change(SliceLatents, repeats=0)
    return held.change(SliceUnknowns, repeats=1)


def tune(prior: PriorCollection, sampled: bool, seen: Sequence[Seen], held: Schedule) -> Schedule:
    """The turns that a pilot suggests: each move's own, and how the moves share the work.

    Of two kinds of move on the hyperparameters one is kept; both, where Hamiltonian steps alone are seldom accepted.
    """
    parts = zip(held.moves, held.turns, seen, strict=True)
    held = Schedule(held.moves, tuple(move.tune(prior, sampled, turn, sums) for move, turn, sums in parts))
    hamiltonian, slices = held.of(Hamiltonian), held.of(SliceUnknowns)
    if hamiltonian is not None and slices is not None:
        together = bool(hamiltonian.repeats and slices.repeats)
        if together and _hamiltonian_goes_further(prior, seen, held, hamiltonian, slices):
            held, slices = held.change(SliceUnknowns, repeats=0), slices._replace(repeats=0)
        elif together:
            held = held.change(Hamiltonian, repeats=0).change(
                SliceUnknowns, repeats=int(SliceUnknowns().first().repeats)
            )
        elif hamiltonian.repeats and acceptance(_of(held, Hamiltonian, seen)) < _SELDOM:
            return held.change(SliceUnknowns, repeats=1).change(SliceLatents, repeats=4).change(Sweep, every=1)
        if not slices.repeats:
            # The Hamiltonian step moves the latents too, and without slice steps no iteration needs a surrogate.
            return held.change(SliceLatents, repeats=0).change(Sweep, every=_ELSE[1])
    return held.change(Sweep, every=_sweep_every(prior, sampled, seen, held))


def _hamiltonian_goes_further(
    prior: PriorCollection, seen: Sequence[Seen], held: Schedule, hamiltonian: MoveSchedule, slices: MoveSchedule
) -> bool:
    """Whether a Hamiltonian step goes further for its cost than a slice step on the hyperparameters."""

    def distance(kind: type[Move]) -> float:
        # The standardised hyperparameter that moves least decides. An independent draw has a mean squared jump of 2;
        # beyond it a move goes to and fro, and mixes variances no better.
        sums = _of(held, kind, seen)
        return float(np.minimum(np.sum(sums.jumps, axis=0) / float(sums.turns), 2.0).min())

    by_steps = distance(Hamiltonian) / Hamiltonian().cost(prior, hamiltonian, None)
    return by_steps > distance(SliceUnknowns) / SliceUnknowns().cost(prior, slices, None)


def _sweep_every(prior: PriorCollection, sampled: bool, seen: Sequence[Seen], held: Schedule) -> int:
    """In every how-manieth iteration there is a sweep.

    Where slice steps about the Gaussian give the draws that are wanted of them, sweeps are there for where it is far
    from the posterior; else they get as much work as the other moves.
    """
    # Slice steps on hyperparameters cost more than a sweep each, and sweeps reach where no Gaussian does.
    if sampled:
        return 1
    sweep = other = 0.0
    for move, turn, sums in zip(held.moves, held.turns, seen, strict=True):
        cost = move.cost(prior, turn, sums)
        if isinstance(move, Sweep):
            sweep += cost
        else:
            other += int(turn.repeats) * cost / int(turn.every)
    slices = held.of(SliceLatents)
    share, most = _BESIDE_DRAWS if slices is not None and slices.repeats < MAX_STEPS else _ELSE
    return int(np.clip(round(sweep / (share * other)), 1, most)) if other else 1


def _of(held: Schedule, kind: type[Move], seen: Sequence[Seen]) -> Seen:
    return next(sums for move, sums in zip(held.moves, seen, strict=True) if isinstance(move, kind))
