"""Available memory, and an error before more of it is requested."""

import math
from pathlib import Path

_GIGABYTE = 1e9


# Memory limit and usage of a container in the two versions of Linux control groups, and caches that are reclaimable.
_GROUP = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")


def available_memory() -> float:
    """Bytes that this process can still allocate, by Linux and the limit of its addresses; infinite where unknown."""
    limits = [_available_in(*(_GROUP / name for name in names)) for names in _LIMITS]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        lines = []
    limits += [1024.0 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min(*limits, _available_addresses())


def _available_addresses() -> float:
    """What is left of the limit that ``ulimit -v`` sets, beyond which an allocation ends the process."""
    try:
        import resource
    except ImportError:  # not on Windows
        return math.inf
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return math.inf
    return limit - _read(Path("/proc/self/statm")) * resource.getpagesize()


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
    """The first number in a file; infinity if there is none."""
    try:
        return float(path.read_text().split()[0])
    except (IndexError, OSError, ValueError):
        return math.inf


def require_memory(needed: float, what: str, remedy: str) -> None:
    """Raise MemoryError where more bytes are needed than are available."""
    available = available_memory()
    if needed > available:
        raise MemoryError(
            f"{what} take {needed / _GIGABYTE:.1f} GB of memory, and {available / _GIGABYTE:.1f} GB are available. "
            f"{remedy}"
        )


def require_draws(num_draws: int, num_rows: int, num_latents: int, matrices: float = 0.0) -> None:
    """Raise MemoryError where draws of latents at rows, and the bytes of matrices for them, need more than there is."""
    # Draws, their noise, and what is computed of them.
    needed = 4.0 * 8.0 * num_draws * num_rows * num_latents + matrices
    fewer = "fewer rows" if matrices > 0.5 * needed else "fewer rows or draws"
    require_memory(needed, f"{num_draws:,} draws of the latents at {num_rows:,} rows", f"Ask for {fewer}.")
