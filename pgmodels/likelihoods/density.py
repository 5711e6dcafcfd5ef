"""Densities of observations under the formula of a likelihood."""

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

# Of few rows, rules of fewer nodes are padded: one program for the first levels of an adaptive integral.
_FEW_NODES, _FEW_ROWS = 64, 1024


@double_precision
def log_density(likelihood: Likelihood, y: Any, f: Any) -> np.ndarray:
    """log p(y | f) of each datum, shape (..., n), for f (..., n, latents).

    ``y`` is (..., n), or (..., n, columns) if the formula reads columns; its leading axes broadcast against f's.
    """
    return np.asarray(_log_density(*_inputs(likelihood, y, f)))


@double_precision
def log_integral(likelihood: Likelihood, y: Any, f: Any, log_weights: np.ndarray) -> np.ndarray:
    """log Σ_k w_k p(y | f_k) of each datum, (..., n), for f (nodes, n, latents) and log weights (nodes,).

    ``y`` is (n,), or (..., 1, n) for several values at the same nodes; columns are one more, last axis.
    """
    missing = _FEW_NODES - len(f)
    # Parameters may differ by node.
    shared = all(np.ndim(value) < f.ndim for value in likelihood.values.values())
    if missing > 0 and f.shape[1] <= _FEW_ROWS and shared:
        f = np.pad(f, ((0, missing), *[(0, 0)] * (f.ndim - 1)), mode="edge")
        log_weights = np.pad(log_weights, (0, missing), constant_values=-np.inf)
    return np.asarray(_log_integral(log_weights, *_inputs(likelihood, y, f)))


def entries_out_of_range(formula: Expression, env: Environment) -> Iterator[tuple[ParameterSymbol, np.ndarray]]:
    """Parameter entries whose index, computed from y, is out of range, and a mask (n,) of the rows."""
    if isinstance(formula, ParameterSymbol) and formula.children:
        index = np.asarray(formula.children[0].evaluate(env))[..., 0]
        invalid = ~np.isin(index, np.arange(formula.length))
        if invalid.any():
            yield formula, np.broadcast_to(invalid, np.shape(env.f)[:-1])
    for child in formula.children:
        yield from entries_out_of_range(child, env)


def undefined_coefficients(formula: Expression, env: Environment) -> Iterator[tuple[Expression, np.ndarray]]:
    """Coefficients of latents that are not finite in some rows, and a mask (n,) of the rows."""
    for coefficient in coefficients(formula):
        undefined = is_undefined(coefficient, np.asarray(log_or_value(coefficient, env)))
        if undefined.any():
            yield coefficient, np.broadcast_to(undefined, np.shape(env.f)[:-1])


def coefficients(formula: Expression, inside: bool = False) -> Iterator[Expression]:
    """Terms added to latents, which must be finite, such as log(y) in f + log(y).

    ``inside`` the argument of a function factors must be finite too; other factors are only used by their logarithms.
    """
    if formula.latent_free:
        return
    within = inside or isinstance(formula, Call)
    for child in formula.children:
        yield from coefficients(child, within)
        if child.latent_free and (isinstance(formula, Sum) or (inside and isinstance(formula, Product))):
            yield child


def log_or_value(coefficient: Expression, env: Environment) -> Array:
    """The logarithm of a nonnegative coefficient, else its value, (..., n, 1)."""
    return coefficient.log_evaluate(env) if coefficient.nonnegative else coefficient.evaluate(env)


def is_undefined(coefficient: Expression, values: np.ndarray) -> np.ndarray:
    """A mask (..., n) of the rows where a coefficient is not finite, from its ``log_or_value``."""
    # A logarithm of -inf is allowed: indicators may be 0.
    zero = coefficient.nonnegative & (values < 0)
    return (np.isnan(values) | (np.isinf(values) & ~zero))[..., 0]


def _inputs(likelihood: Likelihood, y: Any, f: Any) -> tuple[Any, ...]:
    """The arguments of the compiled functions: the formula, and the arrays at which it is evaluated."""
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
