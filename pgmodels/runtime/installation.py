"""Check that the installed jaxlib computes correctly."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.version import __version__, __version_info__

from pgmodels.runtime.warnings import PgmodelsWarning, warn

# The newest jaxlib that was tested; it and all earlier ones compute correctly.
_TESTED = (0, 10, 1)

ADVICE = (
    f"jaxlib {__version__} computes wrong numbers on this machine in double precision: JAX issue 39103, a matrix "
    "product followed by a square and a sum. pgmodels compiles its programs with options that avoid this; those of "
    "NumPyro (nuts, to_numpyro, GibbsKernel) and your own JAX code are affected. Install another release "
    "(pip install 'jax!=0.10.2'), or start Python with the environment variable "
    "XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT."
)


class InstallationWarning(PgmodelsWarning):
    """The installed jaxlib computes wrong numbers."""


def devices() -> str:
    """The devices of JAX by kind, such as "1 cpu"."""
    kinds = [device.device_kind for device in jax.devices()]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


def computes_correctly() -> bool:
    """Whether a sum that is wrong by 0.8 % in jaxlib 0.10.2 is right here; takes 0.1 s, to compile it."""
    rows = np.zeros((16385, 3))
    rows[:, 0] = np.arange(len(rows))
    return np.array_equal(_squared_lengths(rows), rows[:, 0] ** 2)


def _squared_lengths(rows: np.ndarray) -> np.ndarray:
    """Row-wise squared lengths, compiled with JAX's default options."""
    m = np.eye(rows.shape[1])
    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.vmap(lambda row: jnp.sum((m @ row) ** 2)))(rows))


@cache
def check_installation() -> None:
    """Warn once per process if an untested, newer jaxlib computes wrong numbers; tested ones are not checked."""
    if __version_info__ > _TESTED and not computes_correctly():
        warn(ADVICE, InstallationWarning)
