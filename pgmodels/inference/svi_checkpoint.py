"""Stochastic steps saved in a folder as they go, so that they can be taken up after an interruption."""

import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pgmodels.inference.windows import Ascent
from pgmodels.precision import as_array
from pgmodels.storage import make_folder, write_arrays

# Seconds between two saves: less is lost than it takes to notice.
_INTERVAL = 2.0
_FILE, _DOCUMENT = "svi.npz", "document"


class SviCheckpoint:
    """A folder with the state after the last window in one file, which is replaced in one step.

    A kill at any moment leaves the one state or the other, both whole.
    """

    def __init__(self, folder: Any, fingerprint: str):
        self.folder, self.fingerprint = Path(folder), fingerprint
        self.time = time.monotonic()
        make_folder(self.folder, "checkpoint")

    def restore(self, like: Any) -> tuple[Ascent, dict[str, float]] | None:
        """Where the steps were, and the starts' bounds; None where nothing is saved.

        ``like`` is a tree of a state and a window. Raises ValueError where what is saved belongs to other steps.
        """
        path = self.folder / _FILE
        if not path.exists():
            return None
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        document = json.loads(arrays.pop(_DOCUMENT).tobytes())
        if document["fingerprint"] != self.fingerprint:
            raise ValueError(
                f"checkpoint: {self.folder} holds svi of another model, other data, another seed or other options. "
                "Name another folder, or delete this one."
            )
        trace = arrays.pop("trace")
        leaves = [as_array(arrays[f"leaf_{i}"]) for i in range(len(arrays))]
        state, window = like
        saved = jax.tree.structure((state, window, window if document.pop("has_before") else None))
        state, window, before = jax.tree.unflatten(saved, leaves)
        starts = document.pop("starts")
        del document["fingerprint"]
        return Ascent(state=state, window=window, before=before, trace=tuple(trace.tolist()), **document), starts

    def save(self, ascent: Ascent, starts: dict[str, float], final: bool) -> None:
        """Save where the steps are, unless that was done a moment ago and they are not at their end."""
        if not final and time.monotonic() - self.time < _INTERVAL:
            return
        document = {
            "fingerprint": self.fingerprint,
            "learning": ascent.learning,
            "held": ascent.held,
            "pooled": ascent.pooled,
            "has_before": ascent.before is not None,
            "converged": ascent.converged,
            "starts": starts,
        }
        leaves = jax.tree.leaves((ascent.state, ascent.window, ascent.before))
        arrays = {f"leaf_{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        text = np.frombuffer(json.dumps(document).encode(), dtype=np.uint8)
        write_arrays(self.folder / _FILE, {"trace": np.array(ascent.trace), _DOCUMENT: text, **arrays})
        self.time = time.monotonic()
