"""A run saved in a folder as it goes, so that it can be resumed after an interruption."""

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pgmodels.inference.checkpoint_folder import EngineCheckpoint, leaves_of
from pgmodels.inference.mcmc.gibbs.driver import GibbsRun
from pgmodels.inference.mcmc.gibbs.trace import Record

_DRAWS, _STATE = re.compile(r"draws-\d{6}\.npz"), re.compile(r"state-\d{9}\.npz")


class Checkpoint(EngineCheckpoint):
    """A folder with the state of a run and its draws.

    ``index.npz`` is replaced last, atomically, and names the files of one state: a kill at any moment leaves a
    complete state. Draws are written once, in chunks.
    """

    engine, format = "gibbs", 11

    def read(self) -> None:
        """Read the index of the files of one state, if there is one. Raises ValueError if it is incomplete."""
        self.index: dict[str, Any] | None = None
        self.draw_files: tuple[str, ...] = ()
        self.saved = 0
        if not self.file.exists():
            return
        match self.read_file(self.file):
            case {
                "number": int(number), "state": state, "parts": tuple(files), "failed_fits": tuple(fits), **others
            } if others.keys() == {"fingerprint"}:  # fmt: skip
                named = all(isinstance(file, str) and _DRAWS.fullmatch(file) for file in files)
                if named and state == f"state-{number:09d}.npz" and all(isinstance(fit, str) for fit in fits):
                    self.index = {"number": number, "state": state, "failed_fits": fits, **others}
                    self.draw_files = files
                    return
        self.refuse(f"{self.file} is damaged: it does not name the files of one state")

    def restore(self, run: GibbsRun) -> None:
        """Restore the saved state of a run, if there is one. Raises ValueError if it belongs to another run."""
        self.fingerprint = run.fingerprint
        if self.index is None:
            return
        self.require_same(self.index["fingerprint"], run.fingerprint)
        records = [self._read_draws(self.path / name) for name in self.draw_files]
        number, path = self.index["number"], self.path / self.index["state"]
        state = self.read_file(path).get("leaves")
        drawn = sum(len(record.log_likelihood) for record in records)
        if drawn != max(number - run.settings.num_warmup, 0):
            self.refuse(f"{self.file} is of {number} iterations, and there are {drawn} draws")
        fault = run.restore(state, number, records, [*self.index["failed_fits"]])
        if fault:
            self.refuse(f"{path} is damaged: {fault}")
        self.saved = len(records)

    def save(self, run: GibbsRun, final: bool) -> None:
        """Save a run, unless it was saved a moment ago and is not at its end."""
        if not self.is_due(final):
            return
        fresh = run.records[self.saved :]
        if fresh:
            name = f"draws-{len(self.draw_files):06d}.npz"
            merged = jax.tree.map(lambda *arrays: np.concatenate(arrays), *fresh)
            self.write_file(self.path / name, merged._asdict())
            self.draw_files = (*self.draw_files, name)
            self.saved = len(run.records)
        state = f"state-{run.number:09d}.npz"
        self.write_file(self.path / state, {"leaves": leaves_of(run.arrays)})
        index = {
            "fingerprint": self.fingerprint,
            "number": run.number,
            "state": state,
            "parts": self.draw_files,
            "failed_fits": tuple(run.failed_fits),
        }
        self.write_file(self.file, index)
        for old in self.path.glob("state-*.npz"):
            if old.name != state and _STATE.fullmatch(old.name):
                old.unlink()

    def _read_draws(self, path: Path) -> Record:
        values = self.read_file(path)
        arrays = {name for name, value in values.items() if isinstance(value, np.ndarray)}
        if set(values) != set(Record._fields) or not {"unknowns", "log_likelihood", "failed"} <= arrays:
            self.refuse(f"{path} is damaged: it contains {', '.join(values) or 'nothing'}, and no draws")
        return Record(**values)
