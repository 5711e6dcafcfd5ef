"""Adaptation during warm-up: how often each move is made; fixed afterwards."""

from collections.abc import Sequence

import numpy as np

from pgmodels.inference.mcmc.gibbs.moves.data_augmentation import DataAugmentation
from pgmodels.inference.mcmc.gibbs.moves.hamiltonian import Hamiltonian, acceptance
from pgmodels.inference.mcmc.gibbs.moves.move import Move, MoveSchedule, MoveStats
from pgmodels.inference.mcmc.gibbs.moves.slice_latents import MAX_STEPS, SliceLatents
from pgmodels.inference.mcmc.gibbs.moves.surrogate_slice import SurrogateSlice
from pgmodels.inference.mcmc.gibbs.schedule import Schedule, first_schedule
from pgmodels.priors.collection import PriorCollection

# Iterations of a pilot run, from which moves are tuned.
PILOT = 25
# Maximum cost of Gibbs sweeps relative to the other moves, and maximum spacing between sweeps: if slice steps give the
# wanted number of effective draws, and if not.
_MIXING_WELL, _MIXING_BADLY = (0.1, 50), (1.0, 10)
# Below this acceptance rate of Hamiltonian steps, slice steps are added again.
_MIN_ACCEPTANCE = 0.3


def default_schedule(moves: Sequence[Move], prior: PriorCollection) -> Schedule:
    """Schedule before any pilot; kept if there is no warm-up.

    Hamiltonian steps are tried if they cost no more than the slice steps that they would replace.
    """
    schedule = first_schedule(moves)
    hamiltonian, slices = schedule.of(Hamiltonian), schedule.of(SurrogateSlice)
    if hamiltonian is None or slices is None:
        return schedule
    if Hamiltonian().cost(prior, hamiltonian, None) > int(slices.repeats) * SurrogateSlice().cost(prior, slices, None):
        return first_schedule([move for move in moves if not isinstance(move, Hamiltonian)])
    return schedule.change(Hamiltonian, repeats=0).change(SurrogateSlice, repeats=1)


def pilot_schedule(schedule: Schedule, stage: int) -> Schedule:
    """Schedule of the pilot run of a warm-up stage: a sweep in every iteration, and the moves to be compared.

    The first pilot tunes the step size of Hamiltonian steps, the second compares them to slice steps, and the last uses
    the chosen moves.
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
    """Schedule after a pilot run: the tuning of each move, and how often each is made.

    Of the two kinds of moves on hyperparameters the more efficient is kept;
    both if Hamiltonian steps are rarely accepted.
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
        elif hamiltonian.repeats and acceptance(_of(schedule, Hamiltonian, stats)) < _MIN_ACCEPTANCE:
            return (
                schedule.change(SurrogateSlice, repeats=1)
                .change(SliceLatents, repeats=4)
                .change(DataAugmentation, every=1)
            )
        if not slices.repeats:
            # The Hamiltonian step moves the latents too, and without slice steps no iteration needs a surrogate.
            return schedule.change(SliceLatents, repeats=0).change(DataAugmentation, every=_MIXING_BADLY[1])
    return schedule.change(DataAugmentation, every=_sweep_every(prior, sampled, stats, schedule))


def _hamiltonian_goes_further(
    prior: PriorCollection,
    stats: Sequence[MoveStats],
    schedule: Schedule,
    hamiltonian: MoveSchedule,
    slices: MoveSchedule,
) -> bool:
    """Whether a Hamiltonian step moves further for its cost than a slice step on the hyperparameters."""

    def distance(kind: type[Move]) -> float:
        # Compared by the standardised hyperparameter that moves least. An independent draw has a mean squared jump of
        # 2; larger jumps alternate, and do not mix variances better.
        sums = _of(schedule, kind, stats)
        return float(np.minimum(np.sum(sums.jumps, axis=0) / float(sums.iterations), 2.0).min())

    by_steps = distance(Hamiltonian) / Hamiltonian().cost(prior, hamiltonian, None)
    return by_steps > distance(SurrogateSlice) / SurrogateSlice().cost(prior, slices, None)


def _sweep_every(prior: PriorCollection, sampled: bool, stats: Sequence[MoveStats], schedule: Schedule) -> int:
    """Number of iterations from one sweep to the next.

    If slice steps about the surrogate give enough effective draws, sweeps are only a safeguard for regions where the
    surrogate is far from the posterior; otherwise they may cost as much as the other moves.
    """
    # Slice steps on hyperparameters cost more than a sweep, and sweeps also work where the Gaussian is far off.
    if sampled:
        return 1
    sweep = other = 0.0
    for move, move_schedule, sums in zip(schedule.moves, schedule.move_schedules, stats, strict=True):
        cost = move.cost(prior, move_schedule, sums)
        if move.is_sweep:
            sweep += cost
        else:
            other += int(move_schedule.repeats) * cost / int(move_schedule.every)
    slices = schedule.of(SliceLatents)
    share, most = _MIXING_WELL if slices is not None and slices.repeats < MAX_STEPS else _MIXING_BADLY
    return int(np.clip(round(sweep / (share * other)), 1, most)) if other else 1


def _of(schedule: Schedule, kind: type[Move], stats: Sequence[MoveStats]) -> MoveStats:
    return next(sums for move, sums in zip(schedule.moves, stats, strict=True) if isinstance(move, kind))
