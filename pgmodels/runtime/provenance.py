"""The date, machine and package versions of a computation."""

import datetime
import platform
from importlib.metadata import version
from typing import Any

VERSIONED = ("pgmodels", "numpy", "scipy", "jax", "jaxlib", "numpyro", "polyagamma", "arviz-stats")


def environment() -> dict[str, Any]:
    """The date (UTC), the machine, and the versions of the numerical packages."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "versions": {name: version(name) for name in VERSIONED},
    }
