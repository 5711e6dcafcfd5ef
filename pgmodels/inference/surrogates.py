"""The surrogate: the Gaussian about which the sampler moves, and its coordinates."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from pgmodels.inference.cavi import NATURAL_GRADIENT, GaussianState, positive, pull
from pgmodels.inference.loop import run_block
from pgmodels.inference.objectives import expected_objective
from pgmodels.inference.prepare import engine_of, init
from pgmodels.inference.problem import Problem
from pgmodels.model import Model
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.collection import Marginals, NewLeaves, PriorCollection, choose_blocks, gather_blocks, split_over
from pgmodels.priors.linalg import upper_times
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.precision import Module, as_array


class Ellipse(Module):
    """Middle and scale of unconstrained hyperparameters."""

    middle: Float[Array, " d"]
    scale: Float[Array, "d d"]

    def standard(self, difference: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return a difference of hyperparameters in standard coordinates."""
        return solve_triangular(self.scale, difference, lower=True)


def ellipse_of(vectors: np.ndarray) -> Ellipse:
    """Return mean and Cholesky factor of the covariance of the later half of hyperparameters (draws, d)."""
    recent = vectors[len(vectors) // 2 :]
    covariance = np.atleast_2d(np.cov(recent.T))
    # With few and dependent draws, shrink correlations towards 0, so that no direction is degenerate.
    covariance = 0.9 * covariance + 0.1 * np.diag(np.diag(covariance)) + 1e-4 * np.eye(len(covariance))
    return Ellipse(as_array(recent.mean(axis=0)), as_array(np.linalg.cholesky(covariance)))


# Coordinates that depend on the hyperparameters, in which the latents' posterior is nearly standard normal.


def clipped(z: Array) -> Array:
    """Standardised hyperparameters, at most 3 standard deviations from their mean: linear extrapolation ends there."""
    return jnp.clip(z, -3.0, 3.0)


class Preconditioner(Module):
    """Coordinates u of whitened coordinates v = centre + slope^T z + sum over axes of axis · length(z) · u.

    z are the standardised hyperparameters. ``axes`` are orthonormal, one matrix for each block of latents; the
    logarithms of their lengths are linear in z, clipped to [-3, 3].
    """

    centre: Float[Array, " D"]
    slope: Float[Array, "d D"]
    axes: tuple[Array, ...]
    log_length: Float[Array, " D"]
    log_length_slope: Float[Array, "d D"]

    def standardise(self, z: Float[Array, " d"], whitened: Float[Array, " D"]) -> Float[Array, " D"]:
        """Return the coordinates u of whitened coordinates."""
        blocks = split_over(self.axes, whitened - self.centre - z @ self.slope)
        turned = jnp.concatenate([axes.T @ block for axes, block in zip(self.axes, blocks, strict=True)])
        return jnp.exp(-self._log_lengths(z)) * turned

    def place(self, z: Float[Array, " d"], u: Float[Array, " D"]) -> Float[Array, " D"]:
        """Return the whitened coordinates of u."""
        blocks = split_over(self.axes, jnp.exp(self._log_lengths(z)) * u)
        turned = jnp.concatenate([axes @ block for axes, block in zip(self.axes, blocks, strict=True)])
        return self.centre + z @ self.slope + turned

    def log_jacobian(self, z: Float[Array, " d"]) -> Array:
        """Return the log determinant of the map from u to whitened coordinates."""
        return jnp.sum(self._log_lengths(z))

    def _log_lengths(self, z: Array) -> Array:
        return self.log_length + clipped(z) @ self.log_length_slope


def constant_preconditioner(surrogate: BlockPosterior, num_unknowns: int) -> Preconditioner:
    """Return the principal axes of a Gaussian, independent of the hyperparameters."""
    vectors = gather_blocks(surrogate.prior, surrogate.blocks, surrogate.centre)
    turned = (upper_times(root, jnp.eye(len(v))) for root, v in zip(surrogate.roots, vectors, strict=True))
    values, axes = zip(*(jnp.linalg.eigh(R.T @ R) for R in turned), strict=True)
    # All are at least 1, up to rounding.
    precisions = jnp.maximum(jnp.concatenate(values), 1.0)
    zeros = jnp.zeros((num_unknowns, len(surrogate.centre)))
    return Preconditioner(surrogate.centre, zeros, tuple(axes), -0.5 * jnp.log(precisions), zeros)


def log_lengths(surrogate: BlockPosterior, axes: tuple[Array, ...]) -> Array:
    """Return the logarithms of a Gaussian's conditional standard deviations along given axes."""
    turned = map(upper_times, surrogate.roots, axes)
    return -0.5 * jnp.log(jnp.concatenate([jnp.sum(directions**2, axis=0) for directions in turned]))


# The surrogate of the sampler: the variational Gaussian near its optimum, a little wider.

# The sites' precisions are multiplied by this: the variational Gaussian is too narrow, and slice steps that start in
# its tails are slow to leave them. Between 0.8 and 0.95 the effective draws hardly depend on it.
_SHARE = 0.9


class Fit(NamedTuple):
    """A fitted Gaussian, with the latents' marginals, the predictors' sites and the ELBO at its optimum."""

    surrogate: BlockPosterior
    marginals: Marginals
    sites: Sites
    elbo: Array


def fitting_problem(model: Model, prior: PriorCollection, y: Array, row_mask: Array | None) -> Problem:
    """Return the problem of the fit: the expected log density with few nodes, without factors at rows of mask 0."""
    objective = expected_objective(model, coarse=True)
    problem = Problem(objective, prior, y, model.parameters, row_weights=row_mask)
    return problem.with_coupled_sites() if objective.size > 1 and len(choose_blocks(prior)) == 1 else problem


def fit_surrogate(
    model: Model, prior: PriorCollection, y: Array, row_mask: Array | None, start: Sites | None = None
) -> Fit:
    """Return the variational Gaussian of ``fitting_problem`` from given sites, by default ``cavi``'s first."""
    problem = fitting_problem(model, prior, y, row_mask)
    if start is None:
        initial = replace(problem, objective=model.augmentation, coupled=False) if model.is_augmentable else problem
        start = init(engine_of(initial.objective), initial).sites
    if problem.coupled and not start.coupled:
        # With fewer coordinates, starting at the optimum of independent latents saves less than compiling costs.
        if sum(prior.ranks) >= 1000:
            start = _optimum_apart(replace(problem, coupled=False), start).sites
        start = start.as_coupled()
    return _ascend(problem, start).completed(problem.prior)


@partial(compiled, optimise=False, on_one_thread=True)
def _ascend(problem: Problem, start: Sites) -> NewLeaves:
    state = _optimum(problem, start)
    marginals = _coupled(problem, state.sites).marginals()
    surrogate = _widened(problem, state.sites, state.mean)
    return NewLeaves.of(problem.prior, Fit(surrogate, marginals, state.sites, state.elbo))


def _optimum(problem: Problem, start: Sites) -> GaussianState:
    # The surrogate is only a reference distribution: a loose tolerance suffices.
    tolerance, most = 1e-5, 40
    first = NATURAL_GRADIENT.state_of(problem, start)
    return run_block(NATURAL_GRADIENT.step, problem, first, tolerance, most, most).state


_optimum_apart = compiled(_optimum, optimise=False, on_one_thread=True)


def surrogate_of(problem: Problem, marginals: Marginals) -> BlockPosterior:
    """Return the Gaussian whose factors approximate p(y | f) at given marginals of the latents; usable under ``jit``.

    h = E[g] + W m, with g the gradient of log p(y | f) and W = -E[dg/df] where that is positive semi-definite.
    Source: Opper and Archambeau 2009.
    """
    mean, spread = problem.of_latents(*marginals)
    return _widened(problem, positive(problem.sites(mean, spread), mean), mean)


def precisions_of(surrogate: BlockPosterior) -> Array:
    """Return the precisions of the data's sites, (n, latents, latents), which the surrogate scales down."""
    return surrogate.sites.precision / _SHARE


def _widened(problem: Problem, sites: Sites, mean: Array) -> BlockPosterior:
    h, w = sites
    return _coupled(problem, Sites(h - (1.0 - _SHARE) * pull(w, mean), _SHARE * w))


def _coupled(problem: Problem, sites: Sites) -> BlockPosterior:
    """The posterior given sites, with the latents of a datum coupled if that is affordable."""
    # Surrogates are of priors with factors.
    return cast(BlockPosterior, problem.couple(sites))


class SurrogatePath(Module):
    """A Gaussian fitted at the middle of an ``ellipse``, as a function of z = scale^-1 (vector - middle).

    Means and log standard deviations of the latents are linear in z, with z clipped to [-3, 3]. ``axes`` are None if
    no move needs standard coordinates.
    """

    axes: Preconditioner | None
    mean: Float[Array, "n L"]
    covariance: Float[Array, "n L L"]
    ellipse: Ellipse
    mean_slope: Float[Array, "d n L"]
    log_deviation_slope: Float[Array, "d n L"]

    def at(self, vector: Float[Array, " d"]) -> Marginals:
        """Return means and covariances of the latents at given hyperparameters."""
        z = clipped(self.ellipse.standard(vector - self.ellipse.middle))
        factor = jnp.exp(jnp.einsum("d,dil->il", z, self.log_deviation_slope))
        mean = self.mean + jnp.einsum("d,dil->il", z, self.mean_slope)
        return mean, factor[:, :, None] * self.covariance * factor[:, None, :]

    @property
    def preconditioner(self) -> Preconditioner:
        """Standard coordinates of the latents. Raises ValueError if there are none."""
        if self.axes is None:
            raise ValueError("a move that needs standard coordinates must list PRECONDITIONER in its requirements.")
        return self.axes

    def standardise(self, vector: Float[Array, " d"], whitened: Float[Array, " D"]) -> Float[Array, " d+D"]:
        """Coordinates (z, u), nearly standard normal if the Gaussian is close to the posterior."""
        z = self.ellipse.standard(vector - self.ellipse.middle)
        return jnp.concatenate([z, self.preconditioner.standardise(z, whitened)])

    def place(self, standard: Float[Array, " both"]) -> tuple[Float[Array, " d"], Float[Array, " D"]]:
        """Hyperparameters and whitened coordinates of standard coordinates."""
        z, u = jnp.split(standard, [len(self.ellipse.middle)])
        return self.ellipse.middle + self.ellipse.scale @ z, self.preconditioner.place(z, u)

    def log_jacobian(self, standard: Float[Array, " both"]) -> Array:
        """Return the log determinant of the map from standard coordinates, up to a constant."""
        return self.preconditioner.log_jacobian(standard[: len(self.ellipse.middle)])


def constant_path(fit: Fit, vector: Float[Array, " d"], preconditioned: bool) -> SurrogatePath:
    """A Gaussian that does not depend on the hyperparameters; with standard coordinates if ``preconditioned``."""
    slope = as_array(np.zeros((len(vector), *fit.marginals[0].shape)))
    axes = constant_preconditioner(fit.surrogate, len(vector)) if preconditioned else None
    return SurrogatePath(axes, *fit.marginals, Ellipse(vector, as_array(np.eye(len(vector)))), slope, slope)


def linear_path(
    fit: Fit, ellipse: Ellipse, neighbours: Sequence[tuple[Fit, Fit]], preconditioned: bool
) -> SurrogatePath:
    """Return the fit at the middle of an ellipse, with slopes from fits at middle ± each column of its scale."""

    def slope(of: Callable[[Fit], Array]) -> Array:
        return jnp.stack([(of(up) - of(down)) / 2.0 for up, down in neighbours])

    axes = None
    if preconditioned:
        constant = constant_preconditioner(fit.surrogate, len(ellipse.middle))
        lengths = slope(lambda fit: log_lengths(fit.surrogate, constant.axes))
        axes = replace(constant, slope=slope(lambda fit: fit.surrogate.centre), log_length_slope=lengths)
    of_log_deviation = slope(lambda fit: 0.5 * jnp.log(jnp.diagonal(fit.marginals[1], axis1=1, axis2=2)))
    return SurrogatePath(axes, *fit.marginals, ellipse, slope(lambda fit: fit.marginals[0]), of_log_deviation)
