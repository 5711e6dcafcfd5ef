"""Which moves an iteration makes and how often, as data, and what a stretch of iterations shows of them."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.inference.mcmc.gibbs.moves.data_augmentation import Sweep
from pgmodels.inference.mcmc.gibbs.moves.hamiltonian import Hamiltonian
from pgmodels.inference.mcmc.gibbs.moves.move import Move, MoveSchedule, Seen
from pgmodels.inference.mcmc.gibbs.moves.slice_latents import SliceLatents
from pgmodels.inference.mcmc.gibbs.moves.surrogate_slice import SliceUnknowns
from pgmodels.inference.mcmc.gibbs.moves.whitened_slice import SliceUnknownsWhitened
from pgmodels.inference.mcmc.gibbs.target import Chain
from pgmodels.runtime.pickling import Module
from pgmodels.runtime.x64 import as_array

# In the order in which an iteration makes them.
MOVES: tuple[Move, ...] = (SliceUnknownsWhitened(), Hamiltonian(), SliceUnknowns(), Sweep(), SliceLatents())


class Schedule(Module):
    """The moves of a run, in the order in which an iteration makes them, and a turn each."""

    moves: tuple[Move, ...] = eqx.field(static=True)
    turns: tuple[MoveSchedule, ...]

    def of(self, kind: type[Move]) -> MoveSchedule | None:
        """The turn of the move of a kind, None where there is none."""
        found = [turn for move, turn in zip(self.moves, self.turns, strict=True) if isinstance(move, kind)]
        return found[0] if found else None

    def change(self, kind: type[Move], **values: int) -> "Schedule":
        """With other entries of the turn of a kind, where there is one."""
        new = {name: as_array(value) for name, value in values.items()}
        pairs = zip(self.moves, self.turns, strict=True)
        turns = tuple(turn._replace(**new) if isinstance(move, kind) else turn for move, turn in pairs)
        return Schedule(self.moves, turns)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """The turns by the moves' names."""
        found = {}
        for move, turn in zip(self.moves, self.turns, strict=True):
            settings = {} if turn.settings is None else turn.settings._asdict()
            entries = {"repeats": turn.repeats, "every": turn.every, **settings}
            found[move.name] = {name: np.asarray(value)[()] for name, value in entries.items()}
        return found


def first_schedule(moves: Sequence[Move]) -> Schedule:
    """What is done until something is known."""
    return Schedule(tuple(moves), tuple(move.first() for move in moves))


def nothing_seen(schedule: Schedule, chains: Chain) -> tuple[Seen, ...]:
    """Before a stretch, a move each."""
    zero, jumps = jnp.zeros(()), jnp.zeros_like(chains.unknowns)
    return tuple(Seen(zero, zero, jax.vmap(move.no_info)(chains), jumps) for move in schedule.moves)
