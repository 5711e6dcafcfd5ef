"""Posterior means of the auxiliary variables that a derivation introduced."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.averages import VARIANCE
from pgmodels.augmentation.sites import expectations
from pgmodels.compiled import compiled
from pgmodels.integration import slices
from pgmodels.language.expression import Environment
from pgmodels.precision import as_array, double_precision
from pgmodels.results.approximation import Approximation
from pgmodels.results.draws import Draws
from pgmodels.results.result import Result

# Latent values evaluated at a time.
_VALUES = 2_000_000


@double_precision
def auxiliary_means(result: Result) -> dict[str, np.ndarray]:
    """The mean of each auxiliary variable by name, (n,), or (n, latents) where there is one a latent.

    Of an approximation under its optimal q of the auxiliaries, as the CAVI updates have it. Of draws the average over
    them of E[a | f, y], which has the mean of Gibbs sampling's own draws of a, and less noise. NaN where a datum has no
    such auxiliary, as a probit datum has none for the label that it does not have. Infinite where the posterior has no
    mean: of the Laplace likelihood it is E[1 / (2 scale |y - f|)], and f is anywhere. Empty where the likelihood is
    Gaussian as it stands.
    Of a corrected result they are those before the correction. Raises ValueError for draws that do not hold all
    latents.
    """
    if isinstance(result, Draws):
        means = _average(result)
    elif isinstance(result, Approximation):
        # A q of the auxiliaries is optimal for the marginals of q(f), and not for corrected ones.
        means = _expected(result, *result.uncorrected.predictor_moments(), result.model.parameters)
    else:
        raise ValueError(f"result must be what cavi, fit or gibbs return; got {type(result).__name__}.")
    present = _present(result)
    return {name: np.where(present[name], value, np.nan) if name in present else value for name, value in means.items()}


def _average(draws: Draws) -> dict[str, np.ndarray]:
    """The average of E[a | f, y]: the optimal q's expectation, its f a point."""
    if draws.rows is not None:
        raise ValueError(f'draws hold {len(draws.rows)} rows of {len(draws.X)}: run gibbs with keep="all".')
    f = draws.latents.reshape(-1, *draws.latents.shape[2:])
    sampled = draws.flat_likelihood_values
    augmentation = draws.model.augmentation
    totals: dict[str, np.ndarray] = {}
    for rows in slices(len(f), f.shape[1] * f.shape[2], _VALUES):
        parameters = draws.model.parameters | {name: as_array(values[rows]) for name, values in sampled.items()}
        z = np.asarray(augmentation.predictor_values(as_array(f[rows]), as_array(draws.y), parameters))
        for name, value in _expected(draws, z, np.zeros_like(z), parameters).items():
            totals[name] = totals.get(name, 0.0) + value.sum(axis=0)
    infinite = _without_mean(draws)
    return {name: np.full_like(total, np.inf) if name in infinite else total / len(f) for name, total in totals.items()}


def _expected(
    result: Result, mean: np.ndarray, variance: np.ndarray, parameters: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """E[a] for predictors N(mean, variance), (..., n, predictors) each, an auxiliary after those it needs."""
    augmentation, found = result.model.augmentation, {}
    arrays = (as_array(part) for part in (mean, variance, result.y))
    values = _evaluated(augmentation, *arrays, parameters)
    for symbol, _ in expectations(augmentation):
        value = values[symbol.name]
        full = np.broadcast_to(np.asarray(value), (*mean.shape[:-1], augmentation.size if symbol.is_vector else 1))
        found[symbol.auxiliary.name] = full if symbol.is_vector else full[..., 0]  # type: ignore[attr-defined]
    return found


@partial(compiled, static_argnames="augmentation")
def _evaluated(augmentation: Augmentation, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The expectations by the names of their symbols, each from those before it."""
    values = {**parameters, VARIANCE: v}
    for symbol, formula in expectations(augmentation):
        values[symbol.name] = formula.evaluate(Environment(y, m, values))
    return values


def _without_mean(draws: Draws) -> set[str]:
    """The auxiliaries whose E[a | f] has no integral over f."""
    env = _environment(draws)
    rules = draws.model.augmentation.rules
    return {rule.auxiliary.name for rule in rules if rule.auxiliary is not None and rule.has_no_mean(env)}


def _present(result: Result) -> dict[str, np.ndarray]:
    """Where an auxiliary exists that stands for a factor which some data lack."""
    augmentation: Augmentation = result.model.augmentation
    env = _environment(result)
    found = {}
    for rule in augmentation.rules:
        if rule.auxiliary is not None and rule.law is not None and not rule.law.is_zero_where_off:
            width = augmentation.size if rule.auxiliary.is_vector else 1
            there = np.broadcast_to(~np.asarray(rule.law.off(env)), (len(result.y), width))
            found[rule.auxiliary.name] = there if rule.auxiliary.is_vector else there[:, 0]
    return found


def _environment(result: Result) -> Environment:
    """What coefficients free of the latents are evaluated in."""
    zeros = jnp.zeros((len(result.y), result.model.augmentation.size))
    return Environment(as_array(result.y), zeros, result.model.parameters)
