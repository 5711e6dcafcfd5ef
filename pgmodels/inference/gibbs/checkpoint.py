"""A run saved in a folder as it goes, so that it can be taken up after an interruption."""

import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pgmodels.inference.gibbs.record import Record
from pgmodels.inference.gibbs.run import GibbsRun
from pgmodels.storage import make_folder, write_arrays, written_whole

# Seconds between two saves: less is lost than it takes to notice.
_INTERVAL = 2.0


class Checkpoint:
    """A folder with the state of a run and its draws.

    ``index.json`` is replaced last, in one step, and names the files that belong together: a kill at any moment leaves
    the one state or the other, both whole. Draws are written once, in parts.
    """

    def __init__(self, folder: Any, fingerprint: str):
        self.folder, self.fingerprint = Path(folder), fingerprint
        self.parts: list[str] = []
        self.saved = 0
        self.time = time.monotonic()
        make_folder(self.folder, "checkpoint")

    def restore(self, run: GibbsRun) -> None:
        """Bring a fresh run to the state saved, if there is one; ValueError where it belongs to another run."""
        path = self.folder / "index.json"
        if not path.exists():
            return
        index = json.loads(path.read_text(encoding="utf-8"))
        if index["fingerprint"] != self.fingerprint:
            raise ValueError(
                f"checkpoint: {self.folder} holds a run of another model, other data, another seed or other sizes. "
                "Name another folder, or delete this one."
            )
        self.parts = index["parts"]
        records = [_read(self.folder / name) for name in self.parts]
        with np.load(self.folder / index["state"]) as stored:
            leaves = [stored[f"leaf_{i}"] for i in range(len(stored.files))]
        run.restore(leaves, index["number"], records, index["failed_fits"])
        self.saved = len(records)

    def save(self, run: GibbsRun, final: bool) -> None:
        """Save a run, unless it was saved a moment ago and is not at its end."""
        if not final and time.monotonic() - self.time < _INTERVAL:
            return
        fresh = run.records[self.saved :]
        if fresh:
            name = f"draws-{len(self.parts):06d}.npz"
            merged = jax.tree.map(lambda *parts: np.concatenate(parts), *fresh)
            write_arrays(self.folder / name, {k: v for k, v in merged._asdict().items() if v is not None})
            self.parts = [*self.parts, name]
            self.saved = len(run.records)
        state = f"state-{run.number:09d}.npz"
        leaves = jax.tree.leaves(run.arrays)
        write_arrays(self.folder / state, {f"leaf_{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)})
        index = {
            "fingerprint": self.fingerprint,
            "number": run.number,
            "state": state,
            "parts": self.parts,
            "failed_fits": run.failed_fits,
        }
        with written_whole(self.folder / "index.json") as path:
            path.write_text(json.dumps(index), encoding="utf-8")
        for old in self.folder.glob("state-*.npz"):
            if old.name != state:
                old.unlink()
        self.time = time.monotonic()


def _read(path: Path) -> Record:
    with np.load(path) as stored:
        return Record(**{name: stored[name] if name in stored.files else None for name in Record._fields})
