"""Posterior means of the auxiliary variables of the augmentation."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.averages import VARIANCE
from pgmodels.augmentation.sites import expectations
from pgmodels.likelihoods.expression import Environment
from pgmodels.model import with_powers
from pgmodels.numerics.quadrature import CHUNK_VALUES, slices
from pgmodels.results.approximation import GaussianResult
from pgmodels.results.draws import Draws
from pgmodels.results.result import Result
from pgmodels.results.sparse import name_type
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array, double_precision


@double_precision
def auxiliary_means(result: Result) -> dict[str, np.ndarray]:
    """The posterior mean of each auxiliary variable by name, (n,), or (n, latents) if each latent has its own.

    For an approximation, the mean under the optimal q of the auxiliaries, as in the CAVI updates. For draws, the
    average of E[a | f, y] over the draws of f: the same expectation as Gibbs draws of a, with less noise. NaN where a
    datum lacks the auxiliary, for example a probit datum for the other label. Infinite where the posterior mean does
    not exist: for the Laplace likelihood it is E[1 / (2 scale |y - f|)], which diverges for draws of f. Empty for
    likelihoods that are Gaussian in f without augmentation. For a corrected result, the means before the correction.
    Raises ValueError for draws without all latents.
    """
    if isinstance(result, Draws):
        means = _average(result)
    elif isinstance(result, GaussianResult):
        # The optimal q of the auxiliaries belongs to the marginals of q(f), not to corrected marginals.
        means = _expected(result, *result.uncorrected.predictor_moments(), result.model.parameters)
    else:
        raise ValueError(f"result must be a result of cavi, fit or gibbs; got {name_type(result)}.")
    present = _present(result)
    return {name: np.where(present[name], value, np.nan) if name in present else value for name, value in means.items()}


def _average(draws: Draws) -> dict[str, np.ndarray]:
    """The average of E[a | f, y] over draws: the optimal q's expectation with variance 0 for f."""
    if draws.rows is not None:
        raise ValueError(
            f"draws store the latents of {len(draws.rows)} rows of {len(draws.X)}, and all are needed: run gibbs with "
            'keep="all".'
        )
    f = draws.latents.reshape(-1, *draws.latents.shape[2:])
    sampled = draws.flat_likelihood_values
    model, data = with_powers(draws.model, draws.data)
    totals: dict[str, np.ndarray] = {}
    for rows in slices(len(f), f.shape[1] * f.shape[2], CHUNK_VALUES // 2):
        parameters = draws.model.parameters | {name: as_array(values[rows]) for name, values in sampled.items()}
        z = np.asarray(model.augmentation.predictor_values(as_array(f[rows]), as_array(data.y), parameters))
        for name, value in _expected(draws, z, np.zeros_like(z), parameters).items():
            totals[name] = totals.get(name, 0.0) + value.sum(axis=0)
    infinite = _without_mean(draws)
    return {name: np.full_like(total, np.inf) if name in infinite else total / len(f) for name, total in totals.items()}


def _expected(
    result: Result, mean: np.ndarray, variance: np.ndarray, parameters: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """E[a] for predictors N(mean, variance), (..., n, predictors) each, in order of dependence."""
    (model, data), means = with_powers(result.model, result.data), {}
    augmentation = model.augmentation
    m, v, y = (as_array(part) for part in (mean, variance, data.y))
    values = _evaluated(augmentation, m, v, y, parameters)
    for symbol, _ in expectations(augmentation):
        value = values[symbol.name]
        full = np.broadcast_to(np.asarray(value), (*mean.shape[:-1], augmentation.size if symbol.is_vector else 1))
        means[symbol.auxiliary.name] = full if symbol.is_vector else full[..., 0]  # type: ignore[attr-defined]
    return means


@partial(compiled, static_argnames="augmentation")
def _evaluated(augmentation: Augmentation, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The expectations by symbol name; each may depend on earlier ones."""
    values = {**parameters, VARIANCE: v}
    for symbol, formula in expectations(augmentation):
        values[symbol.name] = formula.evaluate(Environment(y, m, values))
    return values


def _without_mean(draws: Draws) -> set[str]:
    """The auxiliaries whose E[a | f] is not integrable over f."""
    augmentation, env = _augmentation_at_data(draws)
    rules = augmentation.rules
    return {rule.auxiliary.name for rule in rules if rule.auxiliary is not None and rule.has_no_mean(env)}


def _present(result: Result) -> dict[str, np.ndarray]:
    """For each auxiliary that some data may lack, a mask of the data that have it."""
    augmentation, env = _augmentation_at_data(result)
    present = {}
    for rule in augmentation.rules:
        if rule.auxiliary is not None and rule.law is not None and not rule.law.is_zero_where_off:
            width = augmentation.size if rule.auxiliary.is_vector else 1
            mask = np.broadcast_to(~np.asarray(rule.law.off(env)), (len(result.y), width))
            present[rule.auxiliary.name] = mask if rule.auxiliary.is_vector else mask[:, 0]
    return present


def _augmentation_at_data(result: Result) -> tuple[Augmentation, Environment]:
    """The augmentation of the weighted likelihood, and the environment of coefficients without latents."""
    model, data = with_powers(result.model, result.data)
    zeros = jnp.zeros((len(data.y), model.augmentation.size))
    return model.augmentation, Environment(as_array(data.y), zeros, model.parameters)
