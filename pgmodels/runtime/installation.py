"""Whether the JAX that is installed computes rightly."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.version import __version__, __version_info__

from pgmodels.runtime.warnings import warn

# The newest jaxlib that was tried and computes rightly, as those before it do.
_TRIED = (0, 10, 1)

ADVICE = (
    f"jaxlib {__version__} computes wrong numbers on this machine in double precision: JAX issue 39103, a product that "
    "squares and a sum follow. The programs of pgmodels are compiled in a way that avoids this; those of NumPyro "
    "(nuts, to_numpyro, GibbsKernel) and of your own JAX code are not. Install another release "
    "(pip install 'jax!=0.10.2'), or start Python with the environment variable "
    "XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT."
)


class InstallationWarning(UserWarning):
    """The JAX that is installed is known to compute wrong numbers."""


def computes_rightly() -> bool:
    """Whether the sum that jaxlib 0.10.2 gets wrong by 0.8 % is right here: a tenth of a second, to compile it."""
    rows = np.zeros((16385, 3))
    rows[:, 0] = np.arange(len(rows))
    return np.array_equal(_squared_lengths(rows), rows[:, 0] ** 2)


def _squared_lengths(rows: np.ndarray) -> np.ndarray:
    """As JAX is installed: with no option of ours."""
    m = np.eye(rows.shape[1])
    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.vmap(lambda row: jnp.sum((m @ row) ** 2)))(rows))


@cache
def check_once() -> None:
    """Warn, once in a process, where a jaxlib that was not tried computes wrong numbers; others cost no time."""
    if __version_info__ > _TRIED and not computes_rightly():
        warn(ADVICE, InstallationWarning)
