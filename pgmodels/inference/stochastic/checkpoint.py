"""Checkpoints of svi in a folder, from which an interrupted run is resumed."""

from typing import Any

import jax
import numpy as np

from pgmodels.inference.checkpoint_folder import CheckpointFolder, fault_of_leaves, leaves_of, named_leaves
from pgmodels.inference.stochastic.convergence import Ascent
from pgmodels.runtime.atomic_io import write_arrays
from pgmodels.runtime.x64 import as_array

# Version of the file format, increased by every change of its contents or of the steps.
_FORMAT = 7


class SviCheckpoint:
    """A folder with the state after the last window in one file, which is replaced atomically.

    Raises ValueError, before any work, if the folder cannot be written to or contains other files.
    """

    def __init__(self, checkpoint: Any):
        self.folder = CheckpointFolder(checkpoint, "svi", _FORMAT)
        self.saved = self.folder.arrays(self.folder.file) if self.folder.file.exists() else None
        self.fingerprint: dict[str, str] = {}

    def restore(self, fingerprint: dict[str, str], like: Any) -> tuple[Ascent, dict[str, float]] | None:
        """The saved state of the steps, and the bounds of the starts; None if nothing is saved.

        ``like`` is a tree of a state and a window. Raises ValueError if the saved state belongs to other steps.
        """
        self.fingerprint = fingerprint
        if self.saved is None:
            return None
        document, arrays = self.saved
        self.folder.require_same(document.get("fingerprint"), fingerprint)
        trace = arrays.pop("trace", None)
        match document:
            case {
                "learning": int() | float() as learning,
                "held": int(windows_at_rate),
                "pooled": int(pooled),
                "has_before": bool(has_before),
                "converged": bool(converged),
                "starts": dict(starts),
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
        return Ascent(
            state, learning, windows_at_rate, window, before, pooled, tuple(trace.tolist()), converged
        ), starts

    def save(self, ascent: Ascent, starts: dict[str, float], final: bool) -> None:
        """Save the state of the steps, unless the last save was a moment ago and steps remain."""
        if not self.folder.is_due(final):
            return
        document = {
            **self.folder.heading,
            "fingerprint": self.fingerprint,
            "learning": ascent.learning,
            "held": ascent.windows_at_rate,
            "pooled": ascent.pooled,
            "has_before": ascent.before is not None,
            "converged": ascent.converged,
            "starts": starts,
        }
        arrays = named_leaves((ascent.state, ascent.window, ascent.before))
        write_arrays(self.folder.file, document, {"trace": np.array(ascent.trace, dtype=float), **arrays})
