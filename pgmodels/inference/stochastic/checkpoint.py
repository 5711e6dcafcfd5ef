"""Checkpoints of svi in a folder, from which an interrupted run is resumed."""

from typing import Any

import jax
import numpy as np

from pgmodels.inference.checkpoint_folder import EngineCheckpoint, fault_of_leaves, leaves_of
from pgmodels.inference.stochastic.convergence import Ascent
from pgmodels.runtime.x64 import as_array

# The states of a file: after the last full window, from which any number of steps continues, and after the last step of
# a run that ended within a window.
_FULL, _END = "full", "end"


class SviCheckpoint(EngineCheckpoint):
    """A folder with the state of the steps in one file, which is replaced atomically."""

    engine, format = "svi", 9

    def read(self) -> None:
        """Read the file, if there is one."""
        self.saved = self.read_file(self.file) if self.file.exists() else None
        self._full: Ascent | None = None

    def restore(self, fingerprint: dict[str, str], like: Any, num_steps: int) -> tuple[Ascent, dict[str, float]] | None:
        """The saved state of a run of so many steps, and the bounds of the starts; None if it has to start again.

        ``like`` is a tree of a state and a window. Raises ValueError if the saved state belongs to other steps.
        """
        self.fingerprint = fingerprint
        if self.saved is None:
            return None
        self.require_same(self.saved.get("fingerprint"), fingerprint)
        match self.saved:
            case {"starts": dict(starts), "states": dict(states), "num_steps": int() | None as saved_steps} if (
                states and states.keys() <= {_FULL, _END}
            ):
                ascents = {name: self._ascent(state, like) for name, state in states.items()}
            case _:
                self.refuse(f"{self.file} is damaged: the number of steps is missing")
        self._full = ascents.get(_FULL)
        ascent = ascents.get(_END) if saved_steps == num_steps else self._full
        return None if ascent is None else (ascent, starts)

    def save(self, ascent: Ascent, starts: dict[str, float], num_steps: int | None, final: bool) -> None:
        """Save the state of the steps, unless the last save was a moment ago and steps remain.

        ``num_steps`` is the number of all steps if the last ones fill no window, else None.
        """
        if num_steps is None:
            self._full = ascent
        if not self.is_due(final):
            return
        states = {_FULL: self._full, _END: None if num_steps is None else ascent}
        values = {
            "fingerprint": self.fingerprint,
            "starts": starts,
            "num_steps": num_steps,
            "states": {name: _values(state) for name, state in states.items() if state is not None},
        }
        self.write_file(self.file, values)

    def _ascent(self, saved: Any, like: Any) -> Ascent:
        match saved:
            case {
                "leaves": leaves,
                "learning": int() | float() as learning,
                "windows_at_rate": int(windows_at_rate),
                "pooled": int(pooled),
                "has_before": bool(has_before),
                "trace": np.ndarray(ndim=1) as trace,
                "converged": bool(converged),
            } if trace.dtype == float:
                pass
            case _:
                self.refuse(f"{self.file} is damaged: the number of steps is missing")
        state, window = like
        shapes = (state, window, window if has_before else None)
        fault = fault_of_leaves(leaves, jax.tree.leaves(shapes))
        if fault:
            self.refuse(f"{self.file} is damaged: {fault}")
        state, window, before = jax.tree.unflatten(jax.tree.structure(shapes), [as_array(leaf) for leaf in leaves])
        return Ascent(state, learning, windows_at_rate, window, before, pooled, tuple(trace.tolist()), converged)


def _values(ascent: Ascent) -> dict[str, Any]:
    """The values of a file from which a state is restored."""
    return {
        "leaves": leaves_of((ascent.state, ascent.window, ascent.before)),
        "learning": ascent.learning,
        "windows_at_rate": ascent.windows_at_rate,
        "pooled": ascent.pooled,
        "has_before": ascent.before is not None,
        "trace": np.array(ascent.trace, dtype=float),
        "converged": ascent.converged,
    }
