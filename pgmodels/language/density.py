"""The density of observations by the formula of a likelihood."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.language.expression import Environment
from pgmodels.language.likelihood import Likelihood, trace
from pgmodels.precision import double_precision


@double_precision
def log_density(likelihood: Likelihood, y: Any, f: Any) -> np.ndarray:
    """log p(y | f) of each datum by the formula, shape (..., n), for f (..., n, latents).

    ``y`` is (..., n), or (..., n, columns) where the formula reads columns; its leading axes broadcast against f's.
    """
    f = jnp.asarray(f)
    return np.asarray(
        _log_density(likelihood.function, f.shape[-1], likelihood.symbols, jnp.asarray(y), f, likelihood.values)
    )


@partial(jax.jit, static_argnames=("function", "size", "symbols"))
def _log_density(function: Any, size: int, symbols: Any, y: Any, f: Any, values: Mapping[str, Any]) -> Any:
    return trace(function, size, symbols).log_evaluate(Environment(y, f, values))[..., 0]
