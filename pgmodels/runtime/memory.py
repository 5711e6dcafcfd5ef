"""Available memory, and an error before more of it is requested."""

from pathlib import Path

_GIGABYTE = 1e9


def available_memory() -> float:
    """Bytes that this process can still allocate, as reported by Linux; infinite where unknown."""
    limits = [_read(Path("/sys/fs/cgroup/memory.max"))]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        lines = []
    limits += [1024.0 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min(limits)


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
