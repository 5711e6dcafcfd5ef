"""The density of observations by the formula of a likelihood."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array

from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.likelihood import Likelihood, trace
from pgmodels.likelihoods.operations import Call, Product, Sum
from pgmodels.likelihoods.symbols import ParameterSymbol
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array, double_precision


@double_precision
def log_density(likelihood: Likelihood, y: Any, f: Any) -> np.ndarray:
    """log p(y | f) of each datum by the formula, shape (..., n), for f (..., n, latents).

    ``y`` is (..., n), or (..., n, columns) where the formula reads columns; its leading axes broadcast against f's.
    """
    return np.asarray(_log_density(*_given(likelihood, y, f)))


@double_precision
def log_integral(likelihood: Likelihood, y: Any, f: Any, log_weights: np.ndarray) -> np.ndarray:
    """log Σ_k w_k p(y | f_k) of each datum, (..., n), for f (nodes, n, latents) and log weights (nodes,).

    ``y`` is (n,), or (..., 1, n) for several values at the same nodes; with columns, of one axis more.
    """
    return np.asarray(_log_integral(log_weights, *_given(likelihood, y, f)))


def entries_out_of_range(formula: Expression, env: Environment) -> Iterator[tuple[ParameterSymbol, np.ndarray]]:
    """Entries of parameters that the data choose but that there are not, and where (n,)."""
    if isinstance(formula, ParameterSymbol) and formula.children:
        found = np.asarray(formula.children[0].evaluate(env))[..., 0]
        beyond = ~np.isin(found, np.arange(formula.length))
        if beyond.any():
            yield formula, np.broadcast_to(beyond, np.shape(env.f)[:-1])
    for child in formula.children:
        yield from entries_out_of_range(child, env)


def undefined_coefficients(formula: Expression, env: Environment) -> Iterator[tuple[Expression, np.ndarray]]:
    """Coefficients beside a latent that have no finite value somewhere, and where (n,)."""
    for coefficient in coefficients(formula):
        lacking = is_undefined(coefficient, np.asarray(log_or_value(coefficient, env)))
        if lacking.any():
            yield coefficient, np.broadcast_to(lacking, np.shape(env.f)[:-1])


def coefficients(formula: Expression, inside: bool = False) -> Iterator[Expression]:
    """What stands beside a latent and must be finite, such as log(y) in f + log(y).

    ``inside`` an argument of a function factors must be finite too; others are looked at in logarithms.
    """
    if formula.latent_free:
        return
    within = inside or isinstance(formula, Call)
    for child in formula.children:
        yield from coefficients(child, within)
        if child.latent_free and (isinstance(formula, Sum) or (inside and isinstance(formula, Product))):
            yield child


def log_or_value(coefficient: Expression, env: Environment) -> Array:
    """The logarithm of a coefficient that is never negative, the value of another, (..., n, 1)."""
    return coefficient.log_evaluate(env) if coefficient.nonnegative else coefficient.evaluate(env)


def is_undefined(coefficient: Expression, values: np.ndarray) -> np.ndarray:
    """Where a coefficient has no finite value, (..., n), by its ``log_or_value``."""
    # The logarithm of 0 is no fault: indicators are 0.
    zero = coefficient.nonnegative & (values < 0)
    return (np.isnan(values) | (np.isinf(values) & ~zero))[..., 0]


def _given(likelihood: Likelihood, y: Any, f: Any) -> tuple[Any, ...]:
    """What the compiled functions take: the formula, and what it is evaluated at."""
    f = as_array(f)
    return likelihood.function, f.shape[-1], likelihood.symbols, as_array(y), f, likelihood.values


@partial(compiled, static_argnames=("function", "size", "symbols"))
def _log_density(function: Any, size: int, symbols: Any, y: Any, f: Any, values: Mapping[str, Any]) -> Any:
    return trace(function, size, symbols).log_evaluate(Environment(y, f, values))[..., 0]


@partial(compiled, static_argnames=("function", "size", "symbols"))
def _log_integral(
    log_weights: Any, function: Any, size: int, symbols: Any, y: Any, f: Any, values: Mapping[str, Any]
) -> Any:
    return logsumexp(_log_density(function, size, symbols, y, f, values) + log_weights[:, None], axis=-2)
