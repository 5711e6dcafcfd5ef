"""The memory that is at hand, and what to say where more of it is asked for."""

from pathlib import Path

_GIGABYTE = 1e9


def memory_at_hand() -> float:
    """Bytes that new arrays can have in this process, as Linux says; infinite where it is not known."""
    found = [_read(Path("/sys/fs/cgroup/memory.max"))]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        lines = []
    found += [1024.0 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min(found)


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
