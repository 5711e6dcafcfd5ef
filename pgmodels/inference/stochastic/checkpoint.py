"""Checkpoints of svi in a folder, from which an interrupted run is resumed."""

from typing import Any

import jax
import numpy as np

from pgmodels.inference.checkpoint_folder import (
    CheckpointFolder,
    EngineCheckpoint,
    fault_of_leaves,
    leaves_of,
    named_leaves,
)
from pgmodels.inference.stochastic.convergence import Ascent
from pgmodels.runtime.atomic_io import write_arrays
from pgmodels.runtime.x64 import as_array

# The states of a file: after the last full window, from which any number of steps continues, and after the last step of
# a run that ended within a window.
_FULL, _END = "full", "end"


class SviCheckpoint(EngineCheckpoint):
    """A folder with the state of the steps in one file, which is replaced atomically."""

    engine, format = "svi", 8

    def __init__(self, folder: CheckpointFolder):
        super().__init__(folder)
        self.saved = folder.arrays(folder.file) if folder.file.exists() else None
        self.fingerprint: dict[str, str] = {}
        self._full: Ascent | None = None

    def restore(self, fingerprint: dict[str, str], like: Any, num_steps: int) -> tuple[Ascent, dict[str, float]] | None:
        """The saved state of a run of so many steps, and the bounds of the starts; None if it has to start again.

        ``like`` is a tree of a state and a window. Raises ValueError if the saved state belongs to other steps.
        """
        self.fingerprint = fingerprint
        if self.saved is None:
            return None
        document, arrays = self.saved
        self.folder.require_same(document.get("fingerprint"), fingerprint)
        match document:
            case {"starts": dict(starts), "states": dict(states), "num_steps": int() | None as saved_steps} if (
                states and states.keys() <= {_FULL, _END}
            ):
                ascents = {name: self._ascent(name, state, arrays, like) for name, state in states.items()}
            case _:
                self.folder.refuse(f"{self.folder.file} is damaged: the number of steps is missing")
        self._full = ascents.get(_FULL)
        ascent = ascents.get(_END) if saved_steps == num_steps else self._full
        return None if ascent is None else (ascent, starts)

    def save(self, ascent: Ascent, starts: dict[str, float], num_steps: int | None, final: bool) -> None:
        """Save the state of the steps, unless the last save was a moment ago and steps remain.

        ``num_steps`` is the number of all steps if the last ones fill no window, else None.
        """
        if num_steps is None:
            self._full = ascent
        if not self.folder.is_due(final):
            return
        states = {} if self._full is None else {_FULL: self._full}
        if num_steps is not None:
            states[_END] = ascent
        arrays: dict[str, np.ndarray] = {}
        for name, state in states.items():
            leaves = named_leaves((state.state, state.window, state.before))
            named = {"trace": np.array(state.trace, dtype=float), **leaves}
            arrays |= {f"{name}_{key}": array for key, array in named.items()}
        document = {
            **self.folder.heading,
            "fingerprint": self.fingerprint,
            "starts": starts,
            "num_steps": num_steps,
            "states": {name: _described(state) for name, state in states.items()},
        }
        write_arrays(self.folder.file, document, arrays)

    def _ascent(self, name: str, document: Any, arrays: dict[str, np.ndarray], like: Any) -> Ascent:
        arrays = {key.removeprefix(f"{name}_"): array for key, array in arrays.items() if key.startswith(f"{name}_")}
        trace = arrays.pop("trace", None)
        match document:
            case {
                "learning": int() | float() as learning,
                "windows_at_rate": int(windows_at_rate),
                "pooled": int(pooled),
                "has_before": bool(has_before),
                "converged": bool(converged),
            } if trace is not None and trace.ndim == 1 and trace.dtype == float:
                pass
            case _:
                self.folder.refuse(f"{self.folder.file} is damaged: the number of steps is missing")
        state, window = like
        shapes = (state, window, window if has_before else None)
        leaves = leaves_of(arrays)
        fault = fault_of_leaves(leaves, jax.tree.leaves(shapes))
        if fault:
            self.folder.refuse(f"{self.folder.file} is damaged: {fault}")
        state, window, before = jax.tree.unflatten(jax.tree.structure(shapes), [as_array(leaf) for leaf in leaves])
        return Ascent(state, learning, windows_at_rate, window, before, pooled, tuple(trace.tolist()), converged)


def _described(ascent: Ascent) -> dict[str, Any]:
    """The entries of a state that are no arrays."""
    return {
        "learning": ascent.learning,
        "windows_at_rate": ascent.windows_at_rate,
        "pooled": ascent.pooled,
        "has_before": ascent.before is not None,
        "converged": ascent.converged,
    }
