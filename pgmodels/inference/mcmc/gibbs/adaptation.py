"""What the Gibbs engine sets in warm-up and then freezes: how often it makes which move."""

from collections.abc import Sequence

import numpy as np

from pgmodels.inference.mcmc.gibbs.moves.data_augmentation import DataAugmentation
from pgmodels.inference.mcmc.gibbs.moves.hamiltonian import Hamiltonian, acceptance
from pgmodels.inference.mcmc.gibbs.moves.move import Move, MoveSchedule, MoveStats
from pgmodels.inference.mcmc.gibbs.moves.slice_latents import MAX_STEPS, SliceLatents
from pgmodels.inference.mcmc.gibbs.moves.surrogate_slice import SurrogateSlice
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
    hamiltonian, slices = schedule.of(Hamiltonian), schedule.of(SurrogateSlice)
    if hamiltonian is None or slices is None:
        return schedule
    if Hamiltonian().cost(prior, hamiltonian, None) > int(slices.repeats) * SurrogateSlice().cost(prior, slices, None):
        return first_schedule([move for move in moves if not isinstance(move, Hamiltonian)])
    return schedule.change(Hamiltonian, repeats=0).change(SurrogateSlice, repeats=1)


def pilot_schedule(schedule: Schedule, stage: int) -> Schedule:
    """What the pilot of a stage of warm-up does: a sweep in every iteration, and the moves that are tried.

    The first pilot finds the length of Hamiltonian steps, the second compares them to slice steps, and the last has the
    moves that were chosen.
    """
    schedule = schedule.change(DataAugmentation, every=1)
    tried = schedule.of(Hamiltonian) is not None
    if not tried or stage == 1:
        schedule = schedule.change(SliceLatents, repeats=4)
    if not tried or stage > 1:
        return schedule
    if stage == 0:
        return schedule.change(Hamiltonian, repeats=1).change(SurrogateSlice, repeats=0).change(SliceLatents, repeats=0)
    return schedule.change(SurrogateSlice, repeats=1)


def tune(prior: PriorCollection, sampled: bool, stats: Sequence[MoveStats], schedule: Schedule) -> Schedule:
    """The turns that a pilot suggests: each move's own, and how the moves share the work.

    Of two kinds of move on the hyperparameters one is kept; both, where Hamiltonian steps alone are seldom accepted.
    """
    triples = zip(schedule.moves, schedule.move_schedules, stats, strict=True)
    schedule = Schedule(
        schedule.moves, tuple(move.tune(prior, sampled, move_schedule, sums) for move, move_schedule, sums in triples)
    )
    hamiltonian, slices = schedule.of(Hamiltonian), schedule.of(SurrogateSlice)
    if hamiltonian is not None and slices is not None:
        together = bool(hamiltonian.repeats and slices.repeats)
        if together and _hamiltonian_goes_further(prior, stats, schedule, hamiltonian, slices):
            schedule, slices = schedule.change(SurrogateSlice, repeats=0), slices._replace(repeats=0)
        elif together:
            schedule = schedule.change(Hamiltonian, repeats=0).change(
                SurrogateSlice, repeats=int(SurrogateSlice().first().repeats)
            )
        elif hamiltonian.repeats and acceptance(_of(schedule, Hamiltonian, stats)) < _SELDOM:
            return (
                schedule.change(SurrogateSlice, repeats=1)
                .change(SliceLatents, repeats=4)
                .change(DataAugmentation, every=1)
            )
        if not slices.repeats:
            # The Hamiltonian step moves the latents too, and without slice steps no iteration needs a surrogate.
            return schedule.change(SliceLatents, repeats=0).change(DataAugmentation, every=_ELSE[1])
    return schedule.change(DataAugmentation, every=_sweep_every(prior, sampled, stats, schedule))


def _hamiltonian_goes_further(
    prior: PriorCollection,
    stats: Sequence[MoveStats],
    schedule: Schedule,
    hamiltonian: MoveSchedule,
    slices: MoveSchedule,
) -> bool:
    """Whether a Hamiltonian step goes further for its cost than a slice step on the hyperparameters."""

    def distance(kind: type[Move]) -> float:
        # The standardised hyperparameter that moves least decides. An independent draw has a mean squared jump of 2;
        # beyond it a move goes to and fro, and mixes variances no better.
        sums = _of(schedule, kind, stats)
        return float(np.minimum(np.sum(sums.jumps, axis=0) / float(sums.move_schedules), 2.0).min())

    by_steps = distance(Hamiltonian) / Hamiltonian().cost(prior, hamiltonian, None)
    return by_steps > distance(SurrogateSlice) / SurrogateSlice().cost(prior, slices, None)


def _sweep_every(prior: PriorCollection, sampled: bool, stats: Sequence[MoveStats], schedule: Schedule) -> int:
    """In every how-manieth iteration there is a sweep.

    Where slice steps about the Gaussian give the draws that are wanted of them, sweeps are there for where it is far
    from the posterior; else they get as much work as the other moves.
    """
    # Slice steps on hyperparameters cost more than a sweep each, and sweeps reach where no Gaussian does.
    if sampled:
        return 1
    sweep = other = 0.0
    for move, move_schedule, sums in zip(schedule.moves, schedule.move_schedules, stats, strict=True):
        cost = move.cost(prior, move_schedule, sums)
        if isinstance(move, DataAugmentation):
            sweep += cost
        else:
            other += int(move_schedule.repeats) * cost / int(move_schedule.every)
    slices = schedule.of(SliceLatents)
    share, most = _BESIDE_DRAWS if slices is not None and slices.repeats < MAX_STEPS else _ELSE
    return int(np.clip(round(sweep / (share * other)), 1, most)) if other else 1


def _of(schedule: Schedule, kind: type[Move], stats: Sequence[MoveStats]) -> MoveStats:
    return next(sums for move, sums in zip(schedule.moves, stats, strict=True) if isinstance(move, kind))
