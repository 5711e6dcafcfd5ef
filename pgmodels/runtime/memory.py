"""Available memory, and an error before more of it is requested."""

import math
from pathlib import Path

_GIGABYTE = 1e9


# Memory limit and usage of a container in the two versions of Linux control groups, and caches that are reclaimable.
_GROUP = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")


def available_memory() -> float:
    """Bytes that this process can still allocate, as reported by Linux; infinite where unknown."""
    limits = [_available_in(*(_GROUP / name for name in names)) for names in _LIMITS]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        lines = []
    limits += [1024.0 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min(limits)


def _available_in(limit: Path, usage: Path) -> float:
    """The limit of a control group less its usage, without reclaimable caches."""
    most, used = _read(limit), _read(usage)
    if math.inf in (most, used):
        return most
    try:
        lines = [line.split() for line in (limit.parent / "memory.stat").read_text().splitlines()]
    except OSError:
        lines = []
    return most - used + sum(float(number) for name, number in lines if name in _RECLAIMABLE)


def _read(path: Path) -> float:
    """The number in a file; infinity if there is none."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return float("inf")


def require_memory(needed: float, what: str, remedy: str) -> None:
    """Raise MemoryError where more bytes are needed than are available."""
    available = available_memory()
    if needed > available:
        raise MemoryError(
            f"{what} take {needed / _GIGABYTE:.1f} GB of memory, and {available / _GIGABYTE:.1f} GB are available. "
            f"{remedy}"
        )
