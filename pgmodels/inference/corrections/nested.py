"""Nested variational marginals: the densities of latents by bounds of log p(y, f_i = x), normalised over x."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pgmodels.inference.corrections.linear_response import at_data, halves
from pgmodels.inference.corrections.pinned_bound import (
    NUM_UPDATED,
    Functional,
    PredictorGaussian,
    Tilt,
    log_densities,
)
from pgmodels.inference.corrections.response import correct_by_response, has_coupled_sites
from pgmodels.inference.objectives import expected_objective, objective_of_result
from pgmodels.inference.problem import Problem, problem_of
from pgmodels.inference.variational.natural_gradient import positive
from pgmodels.inference.variational.vi import vi
from pgmodels.model import Data
from pgmodels.numerics.quadrature import equal_chunks, power_of_two
from pgmodels.priors.padding import pad_rows, padded_size
from pgmodels.priors.posterior import Posterior
from pgmodels.results.approximation import Approximation, LinearResponse
from pgmodels.results.correction import CorrectionWarning, mixing, warn_invalid
from pgmodels.results.grid_density import GRID, REACH, GridDensity
from pgmodels.results.nested import NestedApproximation
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.progress import progress_bar
from pgmodels.runtime.threads import num_cores, one_thread_up_to
from pgmodels.runtime.warnings import suppress_warnings, warn
from pgmodels.runtime.x64 import as_array, double_precision

# A grid reaches from where the log density is this far below its largest value to where it is again, nats. A fall by
# _ENOUGH on both sides will do: what lies beyond has a mass of some 1e-8, and still counts in E exp f. A grid of which
# the density needs less than the share _SHORTEST is made shorter. It is found in at most _PASSES passes, and in each of
# them a side grows at most by the share _GROWTH of the length. The first is _WIDER than q's, which is too narrow.
_FALL, _ENOUGH, _SHORTEST, _PASSES, _GROWTH, _WIDER = 24.0, 18.0, 0.7, 6, 0.6, 1.1
# The bound is computed at so many nodes of a grid, more of them where a spline of every other node errs by more than
# _LARGEST_ERROR nats at the others. Against 65 nodes, with 17 and an error of 0.42 means of three latents (counts with
# a saturating rate, kernel variance 25) err by 0.003 deviations and variances by 0.2 %. With the other named
# likelihoods that error is at most 0.11, means err by at most 0.005 deviations and variances by 0.5 %. A narrow peak
# between wide tails (a noise that varies, kernel variances 9 and 25) needs more nodes.
_NUM_NODES, _LARGEST_ERROR = (17, 33, 65), 0.5
# New inputs above which a progress bar is shown: 200 take about a second.
_MANY = 200
# Functionals in one call of the compiled program.
_CHUNK = 32


def correct_by_nesting(approximation: Approximation, progress: bool | None) -> NestedApproximation:
    """The marginals of all latents at the data (math: section 5c).

    They are relative to the variational Gaussian, which is computed first from a result of another objective.
    """
    start = time.perf_counter()
    gaussian = variational_gaussian(approximation)
    # Only its correlations are used.
    with suppress_warnings(CorrectionWarning):
        response = correct_by_response(gaussian)
    if not response.is_positive:
        warn(
            "the correlations of nested marginals are those of linear response, whose covariance is not positive "
            "definite here: joint draws are not valid. Use gibbs for these.",
            CorrectionWarning,
        )
    marginals = Pinning(gaussian).latents(gaussian.X, None, "the data", progress)
    deviation = np.sqrt(np.where(response.variance > 0.0, response.variance, 1.0))
    ratio = np.sqrt(marginals.variance) / deviation
    known = {field.name: getattr(response, field.name) for field in fields(LinearResponse)}
    known |= {
        "seconds": approximation.seconds + time.perf_counter() - start,
        "mean": marginals.mean,
        "variance": marginals.variance,
        "covariance": ratio[:, :, None] * response.covariance * ratio[:, None, :],
        "num_nonpositive": warn_invalid(marginals.variance, "the data"),
    }
    return NestedApproximation(
        **known, location=marginals.location, scale=marginals.scale, log_density=marginals.log_density
    )


def variational_gaussian(approximation: Approximation) -> Approximation:
    """The maximum of the expected log density with the same hyperparameters."""
    if objective_of_result(approximation).is_exact:
        return approximation
    gaussian = vi(
        approximation.model, approximation.X, approximation.y, objective="expected", weights=approximation.weights,
        progress=False,
    )  # fmt: skip
    return replace(gaussian, fit=approximation.fit, **approximation.data._asdict())


def nested_marginals(result: NestedApproximation, X_new: np.ndarray, Phi: np.ndarray | None) -> GridDensity:
    """Nested variational marginals of a result's latents, or of predictors Φ f of them, at new inputs."""
    return Pinning(result.uncorrected).latents(X_new, Phi, "X_new", progress=None if len(X_new) > _MANY else False)


class Pinning:
    """The densities of linear functionals of the latents, relative to a variational Gaussian."""

    def __init__(self, gaussian: Approximation):
        model, self.posterior = gaussian.model, gaussian.posterior
        # Few quadrature nodes are enough for differences from the marginals of q.
        self.objective = expected_objective(model).reduced()
        problem = problem_of(model, gaussian.data, self.posterior.prior, self.objective)
        if has_coupled_sites(gaussian, self.objective):
            problem = problem.with_coupled_sites()
        across = mixing(model, problem.y)
        self.parameters, self.elbo = model.parameters, gaussian.elbo
        self.q = _merged(_gaussian_of(problem, self.posterior, across[0] if across else None), gaussian.data)

    def latents(self, X_new: np.ndarray, Phi: np.ndarray | None, where: str, progress: bool | None) -> GridDensity:
        """The densities of the latents at new inputs (m, L), or of predictors Φ f with Φ (m, P, L).

        ``where`` names the inputs in warnings.
        """
        table = X_new if Phi is None else np.column_stack([X_new, Phi.reshape(len(Phi), -1)])
        _, rows, places = np.unique(table, axis=0, return_index=True, return_inverse=True)
        mean, half, residual = self._moments_at(X_new[rows])
        if Phi is not None:
            Phi = Phi[rows]
            mean, half = np.einsum("mpl,ml->mp", Phi, mean), np.einsum("mpl,mld->mpd", Phi, half)
            residual = np.einsum("mpl,ml->mp", Phi**2, residual)
        return self._checked_densities(mean, half, residual, f"nested marginals at {where}", progress, places.ravel())

    def functionals(self, X_new: np.ndarray, coefficients: np.ndarray, progress: bool | None) -> GridDensity:
        """The densities of sums of latents at new inputs times coefficients (k, m, L)."""
        mean, half, _ = self._moments_at(X_new)
        size = padded_size(len(X_new))
        padded = np.pad(coefficients, ((0, 0), (0, size - len(X_new)), (0, 0)))
        residual = np.asarray(_residual_variances(self.posterior, as_array(pad_rows(X_new, size)), as_array(padded)))
        mean, half = np.einsum("kml,ml->k", coefficients, mean), np.einsum("kml,mld->kd", coefficients, half)
        # Variances of rounding size are none.
        residual = np.where(residual > 1e-9 * np.sum(half**2, axis=1), residual, 0.0)
        return self._checked_densities(mean, half, residual, "marginals of functionals", progress)

    def _moments_at(self, X_new: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        moments = _latents_at(self.posterior, as_array(pad_rows(X_new, padded_size(len(X_new)))))
        mean, half, residual = (np.asarray(part)[: len(X_new)] for part in moments)
        return mean, half, residual

    def _checked_densities(
        self,
        mean: np.ndarray,
        half: np.ndarray,
        residual: np.ndarray,
        what: str,
        progress: bool | None,
        places: np.ndarray | slice = slice(None),
    ) -> GridDensity:
        """The densities of functionals at ``places``, with a warning if some are cut off."""
        with one_thread_up_to(NUM_UPDATED * self.q.mean.shape[1]):
            marginals, is_cut_off, is_coarse = self._densities(mean, half, residual, progress)
        marginals, is_cut_off, is_coarse = marginals[places], is_cut_off[places], is_coarse[places]
        faults = (
            (is_cut_off, "reach beyond the grid that they are computed on: their variances are too small"),
            (is_coarse, "change too fast for the grid that they are computed on: their moments are not accurate"),
        )
        for mask, fault in faults:
            if mask.any():
                row = int(np.argwhere(mask)[0][0])
                warn(
                    f"{int(mask.sum())} of {mask.size} {what} (first in row {row}) {fault}. Use gibbs for these.",
                    CorrectionWarning,
                )
        return marginals

    def _densities(
        self, mean: np.ndarray, half: np.ndarray, residual: np.ndarray, progress: bool | None
    ) -> tuple[GridDensity, np.ndarray, np.ndarray]:
        """The densities of functionals with mean (...), half (..., D) and residual variance (...).

        Also which of them have not fallen far enough at an end of their grid, and which it does not resolve.
        """
        shape, count = mean.shape, mean.size
        mean, half, residual = mean.ravel(), half.reshape(count, -1), residual.ravel()
        scale = _WIDER * np.sqrt(np.sum(half**2, axis=1) + residual)
        location, log_density = mean.copy(), np.empty((count, len(GRID)))
        moving, is_cut_off, is_coarse = np.arange(count), np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
        with progress_bar("nested marginals", count, progress) as bar:
            for number in range(_PASSES):
                functionals = Functional(mean, half, residual, location, scale)
                remaining = Functional(*(part[moving] for part in functionals))
                log_density[moving], is_coarse[moving] = self._log_densities(remaining)
                centre, stretch, falls = _better_grids(log_density[moving])
                moves = (falls < _ENOUGH) | (stretch < _SHORTEST)
                moves &= np.isfinite(falls) & (scale[moving] > 0.0)
                if number == _PASSES - 1:
                    is_cut_off[moving] = moves & (falls < _ENOUGH)
                    break
                bar.advance(int(np.sum(~moves)))
                moving = moving[moves]
                location[moving] += scale[moving] * centre[moves]
                scale[moving] *= stretch[moves]
                if not len(moving):
                    break
        marginals = GridDensity(location.reshape(shape), scale.reshape(shape), log_density.reshape(*shape, -1))
        return marginals, is_cut_off.reshape(shape), is_coarse.reshape(shape)

    def _log_densities(self, functionals: Functional) -> tuple[np.ndarray, np.ndarray]:
        """The log densities at the grids of functionals, (k, grid), by as many nodes as each of them needs.

        Also which of them need more than there are.
        """
        log_density, coarse = np.empty((len(functionals.mean), len(GRID))), np.arange(len(functionals.mean))
        for num_nodes in _NUM_NODES:
            remaining = Functional(*(part[coarse] for part in functionals))
            values, converges, errors = self._bounds(self.q, remaining, num_nodes)
            if not converges.all():
                # Terms of all rows are computed instead.
                others = Functional(*(part[~converges] for part in remaining))
                every = self.q._replace(derivatives=None)
                values[~converges], _, errors[~converges] = self._bounds(every, others, num_nodes)
            log_density[coarse] = values
            coarse = coarse[errors > _LARGEST_ERROR]
            if not len(coarse):
                break
        # A functional without variance has the ELBO as its bound.
        log_density[functionals.scale == 0.0] = -0.5 * GRID**2 - 0.5 * np.log(2.0 * np.pi)
        # Errors of a quadrature with few nodes cancel to second order about q, of which the bound is the ELBO.
        return self.elbo + log_density, np.isin(np.arange(len(log_density)), coarse)

    def _bounds(
        self, q: PredictorGaussian, functionals: Functional, num_nodes: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The results of ``log_densities`` for any number of functionals, by chunks."""
        count = len(functionals.mean)

        # Double precision is set by thread.
        @double_precision
        def values(rows: np.ndarray) -> list[np.ndarray]:
            piece = Functional(*(as_array(part[rows]) for part in functionals))
            return [np.asarray(part) for part in log_densities(self.objective, q, self.parameters, piece, num_nodes)]

        first, *others = equal_chunks(np.arange(count), min(_CHUNK, power_of_two(count)))
        with ThreadPoolExecutor(num_cores()) as pool:
            # The first chunk compiles for all.
            pieces = [values(first), *pool.map(values, others)]
        log_density, converges, errors = (np.concatenate(part)[:count] for part in zip(*pieces, strict=True))
        return log_density, converges, errors


def _better_grids(log_density: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centre and length, in units of the present ones, of grids on which densities (k, grid) fall by _FALL.

    Also by how many nats they fall on the present grids, at the end where they fall less.
    """
    peak = log_density.max(axis=1, keepdims=True)
    inside, last = log_density > peak - _FALL, len(GRID) - 1
    first, final = inside.argmax(axis=1), last - inside[:, ::-1].argmax(axis=1)
    span = GRID[final] - GRID[first]
    down, up = _further(log_density, peak[:, 0], span), _further(log_density[:, ::-1], peak[:, 0], span)
    low = np.where(first > 0, GRID[np.maximum(first - 1, 0)], GRID[0] - down)
    high = np.where(final < last, GRID[np.minimum(final + 1, last)], GRID[-1] + up)
    falls = peak[:, 0] - np.maximum(log_density[:, 0], log_density[:, -1])
    return 0.5 * (low + high), 0.5 * (high - low) / REACH, falls


def _further(log_density: np.ndarray, peak: np.ndarray, span: np.ndarray) -> np.ndarray:
    """How far below the first point densities have fallen by _FALL, by their slope there, and at most _GROWTH."""
    slope = (log_density[:, 1] - log_density[:, 0]) / (GRID[1] - GRID[0])
    missing = np.maximum(log_density[:, 0] - peak + _FALL, 0.0)
    return np.minimum(missing / np.maximum(slope, 1e-3), _GROWTH * span)


@compiled
def _gaussian_of(problem: Problem, posterior: Posterior, across: Any) -> PredictorGaussian:
    """q at the predictors of the data, with the sites that the problem's quadrature has at its marginals."""
    mean, spread = at_data(posterior, across, problem.coupled)
    sites = problem.sites(mean, spread)
    # Precisions as the engine clips them.
    sites = sites if problem.takes_signed else positive(sites, mean)
    total, precision = (part if part.ndim == 3 else jax.vmap(jnp.diag)(part) for part in (spread, sites.precision))
    half = jnp.moveaxis(halves(posterior, across)[1], 0, -1)
    covariance = jnp.einsum("npd,nqd->npq", half, half)
    # Differences of rounding size are none.
    residual = jnp.where(abs(total - covariance) > 1e-9 * abs(total), total - covariance, 0.0)
    rows = problem.y, problem.row_weights
    q = PredictorGaussian(mean, half, residual, sites.potential, precision, *rows, covariance, derivatives=None)
    if mean.shape[1] > 1:
        return q
    return q._replace(derivatives=Tilt(problem.objective, q, problem.parameters).derivatives())


def _merged(q: PredictorGaussian, data: Data) -> PredictorGaussian:
    """q with rows of equal inputs and observations as one row of their total weight, so that few rows count."""
    table = np.column_stack([data.X, data.y])
    _, rows, places = np.unique(table, axis=0, return_index=True, return_inverse=True)
    if len(rows) == len(table):
        return q
    size = padded_size(len(rows))

    def of_first(part: Any) -> Array:
        return as_array(pad_rows(np.asarray(part)[rows], size))

    def total(part: Any) -> Array:
        summed = np.zeros((size, *part.shape[1:]))
        np.add.at(summed, places.ravel(), np.asarray(part)[: len(table)])
        return as_array(summed)

    return PredictorGaussian(
        mean=of_first(q.mean),
        half=of_first(q.half),
        residual=of_first(q.residual),
        potential=total(q.potential),
        precision=total(q.precision),
        y=of_first(q.y),
        row_weights=total(data.row_weights),
        covariance=of_first(q.covariance),
        derivatives=None if q.derivatives is None else total(q.derivatives),
    )


@compiled
def _latents_at(posterior: Posterior, X_new: Any) -> tuple[Array, Array, Array]:
    """Mean (m, L), half (m, L, D) and residual variance (m, L) of the latents at new inputs, as in Functional."""
    mean, covariance = posterior.marginals_at(X_new)
    half = jnp.moveaxis(halves(posterior, None, posterior.prior.factors_at(X_new))[1], 0, -1)
    variance = jnp.diagonal(covariance, axis1=1, axis2=2)
    residual = variance - jnp.sum(half**2, axis=2)
    return mean, half, jnp.where(residual > 1e-9 * variance, residual, 0.0)


@compiled
def _residual_variances(posterior: Posterior, X_new: Any, coefficients: Any) -> Array:
    """The variance of sums of latents times coefficients (k, m, L) given the coordinates of the latents, (k,)."""
    prior = posterior.prior
    total = jnp.zeros(len(coefficients))
    for columns, C in zip(prior.slices(), prior.residual_covariances(X_new), strict=True):
        A = coefficients[:, :, columns]
        total += jnp.einsum("kml,mn,knl->k", A, C, A)
    return jnp.maximum(total, 0.0)
