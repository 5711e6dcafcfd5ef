"""Files that are written whole or not at all."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Arrays in NumPy's npz format, written beside the file and put in its place in one step: no kill leaves half."""
    # One name: what a kill leaves is written over by the next.
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
