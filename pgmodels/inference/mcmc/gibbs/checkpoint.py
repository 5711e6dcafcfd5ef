"""A run saved in a folder as it goes, so that it can be resumed after an interruption."""

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pgmodels.inference.checkpoint_folder import CheckpointFolder, EngineCheckpoint, leaves_of, named_leaves
from pgmodels.inference.mcmc.gibbs.driver import GibbsRun
from pgmodels.inference.mcmc.gibbs.trace import Record
from pgmodels.runtime.atomic_io import write_arrays, write_document

_DRAWS, _STATE = re.compile(r"draws-\d{6}\.npz"), re.compile(r"state-\d{9}\.npz")


class Checkpoint(EngineCheckpoint):
    """A folder with the state of a run and its draws.

    ``index.json`` is replaced last, atomically, and names the files of one state: a kill at any moment leaves a
    complete state. Draws are written once, in chunks.
    """

    engine, format = "gibbs", 10

    def __init__(self, folder: CheckpointFolder):
        super().__init__(folder)
        self.index = self._read_index()
        self.draw_files: list[str] = [] if self.index is None else self.index["parts"]
        self.fingerprint: dict[str, str] = {}
        self.saved = 0

    def restore(self, run: GibbsRun) -> None:
        """Restore the saved state of a run, if there is one. Raises ValueError if it belongs to another run."""
        self.fingerprint = run.fingerprint
        if self.index is None:
            return
        self.folder.require_same(self.index["fingerprint"], self.fingerprint)
        records = [self._read_draws(self.folder.path / name) for name in self.draw_files]
        number, path = self.index["number"], self.folder.path / self.index["state"]
        _, arrays = self.folder.arrays(path)
        drawn = sum(len(record.log_likelihood) for record in records)
        if drawn != max(number - run.settings.num_warmup, 0):
            self.folder.refuse(f"{self.folder.file} is of {number} iterations, and there are {drawn} draws")
        fault = run.restore(leaves_of(arrays), number, records, self.index["failed_fits"])
        if fault:
            self.folder.refuse(f"{path} is damaged: {fault}")
        self.saved = len(records)

    def save(self, run: GibbsRun, final: bool) -> None:
        """Save a run, unless it was saved a moment ago and is not at its end."""
        if not self.folder.is_due(final):
            return
        folder, heading = self.folder.path, self.folder.heading
        fresh = run.records[self.saved :]
        if fresh:
            name = f"draws-{len(self.draw_files):06d}.npz"
            merged = jax.tree.map(lambda *arrays: np.concatenate(arrays), *fresh)
            write_arrays(folder / name, heading, {k: v for k, v in merged._asdict().items() if v is not None})
            self.draw_files = [*self.draw_files, name]
            self.saved = len(run.records)
        state = f"state-{run.number:09d}.npz"
        write_arrays(folder / state, heading, named_leaves(run.arrays))
        index = {
            **heading,
            "fingerprint": self.fingerprint,
            "number": run.number,
            "state": state,
            "parts": self.draw_files,
            "failed_fits": run.failed_fits,
        }
        write_document(self.folder.file, index)
        for old in folder.glob("state-*.npz"):
            if old.name != state and _STATE.fullmatch(old.name):
                old.unlink()

    def _read_index(self) -> dict[str, Any] | None:
        """The index of the files of one state. Raises ValueError if it is incomplete."""
        index = self.folder.document()
        if index is None:
            return None
        match index:
            case {"number": int(number), "state": state, "parts": [*files], "failed_fits": [*fits], "fingerprint": _}:
                named = all(isinstance(file, str) and _DRAWS.fullmatch(file) for file in files)
                if named and state == f"state-{number:09d}.npz" and all(isinstance(fit, str) for fit in fits):
                    return index
        self.folder.refuse(f"{self.folder.file} is damaged: it does not name the files of one state")

    def _read_draws(self, path: Path) -> Record:
        _, arrays = self.folder.arrays(path)
        if not {"unknowns", "log_likelihood", "failed"} <= set(arrays) <= set(Record._fields):
            self.folder.refuse(f"{path} is damaged: it contains {', '.join(arrays) or 'nothing'}, and no draws")
        return Record(**{name: arrays.get(name) for name in Record._fields})
