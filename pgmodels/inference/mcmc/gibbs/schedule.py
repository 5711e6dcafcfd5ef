"""The schedule of an iteration, as data: which moves are made and how often."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.inference.mcmc.gibbs.moves.data_augmentation import DataAugmentation
from pgmodels.inference.mcmc.gibbs.moves.hamiltonian import Hamiltonian
from pgmodels.inference.mcmc.gibbs.moves.likelihood_slice import LikelihoodSlice
from pgmodels.inference.mcmc.gibbs.moves.marginal_slice import MarginalSlice
from pgmodels.inference.mcmc.gibbs.moves.move import Move, MoveSchedule, MoveStats
from pgmodels.inference.mcmc.gibbs.moves.slice_latents import SliceLatents
from pgmodels.inference.mcmc.gibbs.moves.surrogate_slice import SurrogateSlice
from pgmodels.inference.mcmc.gibbs.target import Chain
from pgmodels.runtime.pickling import Module
from pgmodels.runtime.x64 import as_array

# In the order of an iteration.
MOVES: tuple[Move, ...] = (
    Hamiltonian(),
    SurrogateSlice(),
    MarginalSlice(),
    LikelihoodSlice(),
    DataAugmentation(),
    SliceLatents(),
)


class Schedule(Module):
    """The moves of a run in the order of an iteration, with a MoveSchedule each."""

    moves: tuple[Move, ...] = eqx.field(static=True)
    move_schedules: tuple[MoveSchedule, ...]

    def of(self, kind: type[Move]) -> MoveSchedule | None:
        """The schedule of a kind of move, None if the run has none."""
        matches = [
            move_schedule
            for move, move_schedule in zip(self.moves, self.move_schedules, strict=True)
            if isinstance(move, kind)
        ]
        return matches[0] if matches else None

    def change(self, kind: type[Move], **values: int) -> "Schedule":
        """A copy with changed entries for a kind of move, if the run has it."""
        new = {name: as_array(value) for name, value in values.items()}
        pairs = zip(self.moves, self.move_schedules, strict=True)
        move_schedules = tuple(
            move_schedule._replace(**new) if isinstance(move, kind) else move_schedule for move, move_schedule in pairs
        )
        return Schedule(self.moves, move_schedules)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """The schedules by names of moves."""
        entries_by_move = {}
        for move, move_schedule in zip(self.moves, self.move_schedules, strict=True):
            settings = {} if move_schedule.settings is None else move_schedule.settings._asdict()
            entries = {"repeats": move_schedule.repeats, "every": move_schedule.every, **settings}
            entries_by_move[move.name] = {name: np.asarray(value)[()] for name, value in entries.items()}
        return entries_by_move


def first_schedule(moves: Sequence[Move]) -> Schedule:
    """The initial schedule of each move."""
    return Schedule(tuple(moves), tuple(move.first() for move in moves))


def zero_stats(schedule: Schedule, chains: Chain) -> tuple[MoveStats, ...]:
    """Statistics of zero iterations, one for each move."""
    zero, jumps = jnp.zeros(()), jnp.zeros_like(chains.unknowns)
    return tuple(MoveStats(zero, zero, jax.vmap(move.no_info)(chains), jumps) for move in schedule.moves)
