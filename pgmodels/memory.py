"""The memory that is at hand, and what to say where more of it is asked for."""

import math
from pathlib import Path

_GIGABYTE = 1e9


# Where Linux says what a container may take and has taken, in its two versions; what it gives back before it is short.
_GROUP = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
_GIVEN_BACK = ("inactive_file", "active_file", "slab_reclaimable")


def memory_at_hand() -> float:
    """Bytes that new arrays can have in this process, as Linux says; infinite where it is not known."""
    found = [_left_in(*(_GROUP / name for name in names)) for names in _LIMITS]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        lines = []
    found += [1024.0 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min(found)


def _left_in(limit: Path, usage: Path) -> float:
    """What the limit of a control group leaves beside its usage, of which files that are only cached do not count."""
    most, used = _read(limit), _read(usage)
    if math.inf in (most, used):
        return most
    try:
        lines = [line.split() for line in (limit.parent / "memory.stat").read_text().splitlines()]
    except OSError:
        lines = []
    return most - used + sum(float(number) for name, number in lines if name in _GIVEN_BACK)


def _read(path: Path) -> float:
    """The number in a file; infinite where there is none."""
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return float("inf")


def require_memory(needed: float, what: str, remedy: str) -> None:
    """Raise MemoryError where more bytes are needed than are at hand."""
    at_hand = memory_at_hand()
    if needed > at_hand:
        raise MemoryError(
            f"{what} take {needed / _GIGABYTE:.1f} GB of memory, and {at_hand / _GIGABYTE:.1f} GB are at hand. {remedy}"
        )
