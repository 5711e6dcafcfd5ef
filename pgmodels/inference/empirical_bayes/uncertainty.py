"""The uncertainty of learned parameters, from the curvature of the bound and the response of q at its optimum."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import scipy
from jaxtyping import Array, Float

from pgmodels.inference.empirical_bayes.bound import FELT, MarginalBound
from pgmodels.inference.empirical_bayes.initial_values import steps
from pgmodels.inference.empirical_bayes.search import Maximum, names_of
from pgmodels.inference.engine import VariationalState
from pgmodels.inference.problem import gradient_of
from pgmodels.inference.problem_family import ProblemFamily
from pgmodels.model import Points
from pgmodels.priors.base import Coordinates, Sites
from pgmodels.priors.collection import columns
from pgmodels.results.approximation import Approximation
from pgmodels.results.uncertainty import ParameterUncertainty, shifts_at
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array

# Most parameters whose curvature is computed, at two gradients each.
_MOST = 30
# Steps of central differences, in units of the parameters: their error is 1e-4 of the curvature of a variance's
# logarithm, and rounding and the tolerance of q(f) change it less.
_STEP, _TOLERANCE = 0.02, 1e-11
# A normal density in the logarithm describes no parameter that the data and the prior leave a larger deviation than
# this, a factor of 20.
_LARGEST = 3.0


def uncertainty_of(maximum: Maximum, result: Approximation) -> ParameterUncertainty | str:
    """The uncertainty of the parameters at a maximum of the bound, or the reason why there is none.

    Parameters that the data do not determine one by one have no interval: they stay at their values.
    """
    bound, count = maximum.bound, len(maximum.bound.vector)
    if count > _MOST:
        return f"none: there are {count} parameters, and their curvature is computed for at most {_MOST}"
    if not maximum.converged:
        return "none: the search did not converge"
    learned, n = bound.learnable, len(bound.data.y)
    scale = steps(learned, bound.X)
    curvature = np.zeros((count, count))
    pulls, means = np.zeros((2, count, n, result.model.num_latents))
    # Of predictors that combine latents, the means of these are not known from the runs.
    combines = bound.family.objective.predictors is not None
    moved = np.zeros((count, *_coefficients_of(bound, bound.vector, bound.state).shape))
    for k, step in enumerate(_STEP * np.diag(scale)):
        for sign in (1.0, -1.0):
            vector = bound.vector + sign * step
            evaluation = bound.evaluate(vector, _TOLERANCE)
            if evaluation is None:
                return f"none: the bound is not finite near the value of {names_of(learned)[k]}"
            curvature[k] += sign * evaluation.slope * scale / (2.0 * _STEP)
            pulls[k] += sign * pull_of_latents(bound, vector, evaluation.loop.state) / (2.0 * _STEP)
            means[k] += 0.0 if combines else sign * np.asarray(evaluation.loop.state.mean)[:n] / (2.0 * _STEP)
            moved[k] += sign * _coefficients_of(bound, vector, evaluation.loop.state) / (2.0 * _STEP)
    curvature = 0.5 * (curvature + curvature.T)
    # The likelihood's parameters come first: directions of others do not move them.
    order = np.argsort(learned.gps >= 0, kind="stable")
    free = order[_are_determined(maximum, np.diag(curvature))[order]]
    if not free.size:
        return "none: the data determine no parameter"
    try:
        # From the last parameter to the first: H = U U^T with U upper triangular, and U^-T is a lower root of H^-1.
        upper = np.linalg.cholesky(curvature[np.ix_(free[::-1], free[::-1])])[::-1, ::-1]
    except np.linalg.LinAlgError:
        return "none: the bound has no maximum in all directions; integrate averages over the parameters"
    half = scipy.linalg.solve_triangular(upper.T, np.eye(len(free)), lower=True)
    deviations = np.linalg.norm(half, axis=1)
    if deviations.max() > _LARGEST:
        name = names_of(learned)[free[deviations.argmax()]]
        return (
            f"none: the data hardly determine {name}, whose deviation is {deviations.max():.1f} in its logarithm or "
            "unit; integrate averages over the parameters"
        )
    root = np.zeros((count, len(free)))
    root[free] = scale[free, None] * half
    along, means, moved = (np.tensordot(half.T, slopes[free], axes=1) for slopes in (pulls, means, moved))
    pull = pull_of_latents(bound, bound.vector, bound.state)
    uncertainty = ParameterUncertainty(np.array(bound.vector), root, pull, along, means, moved if moved.size else None)
    if not combines:
        return uncertainty
    at_data = shifts_at(uncertainty, result.model, result.X, result.posterior.prior, as_array(result.X))
    return replace(uncertainty, shifts=at_data)


def pull_of_latents(bound: MarginalBound, vector: np.ndarray, state: VariationalState) -> Float[np.ndarray, "n l"]:
    """K^-1 (m - mean) of the latents at the data: the gradient of the sites' log density at q's mean."""
    n, predictors = len(bound.data.y), bound.family.objective.predictors
    # By NumPy, without compilation.
    sites, mean = jax.tree.map(np.asarray, (state.sites, state.mean))
    of_predictors = gradient_of(sites, mean)[:n]
    if predictors is None:
        return of_predictors
    Phi = np.asarray(predictors.matrix(bound.family.y, bound.at(vector).parameters))[:n]
    return np.einsum("ip,ipl->il", of_predictors, Phi)


def _coefficients_of(bound: MarginalBound, vector: np.ndarray, state: VariationalState) -> Float[np.ndarray, "c l"]:
    """The means of the coefficients of each latent, of its kernel, where their variances are known.

    At a wide prior they are lost in the product of the pull with the covariance.
    """
    groups, sizes = bound.family.fixed_groups, [gp.size for gp in bound.learnable.model.gps]
    known: list[Any] = [(place, group) for place, group in enumerate(groups) if group is not None]
    means = np.zeros((max((group.rank for _, group in known), default=0), sum(sizes)))
    if known:
        coordinates = _coordinates(bound.family, as_array(vector), bound.points(vector), state.sites)
        for place, group in known:
            means[: group.rank, columns(sizes)[place]] = group.coefficients(coordinates[place])
    return means


@partial(compiled, optimise=False)
def _coordinates(family: ProblemFamily, vector: Array, points: Points, sites: Sites) -> Coordinates:
    return family.problem(vector, points).condition(sites).mean_and_deviation(jax.random.key(0))[0]


def _are_determined(maximum: Maximum, curvature: np.ndarray) -> np.ndarray:
    """Which parameters have a curvature of their own, in their units, and are not at a limit."""
    bound, (low, high) = maximum.bound, maximum.box
    inside = (bound.vector > low) & (bound.vector < high)
    at_floor = (bound.learnable.gps < 0) & (bound.lost > FELT)
    return (curvature > _LARGEST**-2) & inside & ~at_floor
