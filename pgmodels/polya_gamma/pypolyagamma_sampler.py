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

# Above this, summing unit draws costs more than ``sample``.
_LARGEST_COUNT = 16


def draw(key: PRNGKeyArray, b: Array, c: Array) -> Array:
    """Exact draws of PG(b, c): integer b up to 16 by ``PyPolyaGamma.pgdrawv``, everything else by ``sample``.

    Its source (PolyaGammaHybrid.h of version 1.2.3) draws by Devroye's method only at b = 1 and b = 2; below 1 it
    truncates a series, between 1 and 13 it uses its "alternate" sampler, above 13 a saddlepoint approximation, above
    170 a normal one. Here it is called only with b = 1 and b = 2, and larger b are sums. Its generator takes a 32-bit
    seed, so that among 65,000 calls two are likely to share a stream. It installs only from source, and its build
    downloads the GNU Scientific Library.
    Raises ValueError if the package is not installed.
    """
    package()
    return on_host(_sample, key, b, c)


@cache
def package() -> ModuleType:
    """The package's compiled module. Raises ValueError if it is not installed.

    Loaded without the package's ``__init__``, which needs ``scipy.integrate.simps``, removed in SciPy 1.14.
    """
    spec = find_spec("pypolyagamma")
    compiled = spec and PathFinder.find_spec("pypolyagamma.pypolyagamma", spec.submodule_search_locations)
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
