"""Exact Pólya-Gamma draws with the optional package ``pypolyagamma``, where it is exact."""

from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType

import numpy as np
from jax import Array
from jaxtyping import PRNGKeyArray

from pgmodels.polya_gamma.callback import on_host
from pgmodels.polya_gamma.laws import in_domain
from pgmodels.polya_gamma.numpy_sampler import sample

# Above, the sum of units costs more than our own sampler.
_LARGEST_COUNT = 16


def draw(key: PRNGKeyArray, b: Array, c: Array) -> Array:
    """Exact draws of PG(b, c): whole b up to 16 by ``PyPolyaGamma.pgdrawv``, everything else by ``sample``.

    Its source (PolyaGammaHybrid.h of version 1.2.3) draws by Devroye's method at b = 1 and b = 2 alone; below 1 it cuts
    a series short, between 1 and 13 it uses its "alternate" sampler, above 13 a saddlepoint approximation, above 170
    a normal one. Only b = 1 and b = 2 are asked of it here, and larger b are sums of them. Its generator takes a seed
    of 32 bits, so that of 65,000 calls two are likely to share their stream. It installs from source alone, and its
    build downloads the GNU Scientific Library.
    Raises ValueError where the package is not installed.
    """
    package()
    return on_host(_sample, key, b, c)


@cache
def package() -> ModuleType:
    """The package's compiled module, or a ValueError that says how to install it.

    Loaded by itself: the package's ``__init__`` imports helpers that need ``scipy.integrate.simps``, which SciPy 1.14
    removed.
    """
    found = find_spec("pypolyagamma")
    compiled = found and PathFinder.find_spec("pypolyagamma.pypolyagamma", found.submodule_search_locations)
    if not compiled or not compiled.loader:
        raise ValueError(
            'backend is "pypolyagamma", which is not installed: install pgmodels[pypolyagamma], or pass "c" or "jax".'
        )
    module = module_from_spec(compiled)
    compiled.loader.exec_module(module)
    return module


def _sample(generator: np.random.Generator, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    counted = (b >= 1) & (b <= _LARGEST_COUNT) & (b == np.floor(b)) & in_domain(b, np.abs(c) / 2)
    draws = np.zeros(b.shape)
    draws[~counted] = sample(generator, b[~counted], c[~counted])
    source = package().PyPolyaGamma(int(generator.integers(1, 2**32)))
    rest = np.where(counted, b, 0.0)
    while np.any(rest > 0):
        lanes = rest > 0
        units = np.minimum(rest[lanes], 2.0)
        unit_draws = np.empty(units.size)
        source.pgdrawv(units, np.ascontiguousarray(c[lanes]), unit_draws)
        draws[lanes] += unit_draws
        rest[lanes] -= units
    return draws
