"""Marginals of linear functionals u of the latents by a bound of log p(y, u = x) at each value x (math: section 5c).

With u pinned at x, the other latents have a variational Gaussian of their own, whose bound is evaluated on a grid of x.
Relative to the Gaussian q of the result, p(y, u = x) = Z q(u = x) E_q[prod_j r_j | u = x] with r_j = p(y_j | z_j)
/ site_j: where the sites of q are kept for all rows, the Gaussian is q given u = x, and no system is solved. From there
the sites of the rows that u affects most are updated.
"""

import time
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from pgmodels.inference.corrections.linear_response import at_data, halves
from pgmodels.inference.corrections.response import correct_by_response, has_coupled_sites
from pgmodels.inference.objectives import expected_objective, objective_of_result
from pgmodels.inference.variational.vi import vi
from pgmodels.numerics.grid_density import GRID, INTERPOLATION, NODES, REACH, GridDensity
from pgmodels.numerics.quadrature import equal_chunks, power_of_two
from pgmodels.objectives.base import Objective
from pgmodels.priors.lapack_loops import vmap_as_loop
from pgmodels.priors.padding import pad_rows, padded_size, weighted
from pgmodels.priors.posterior import Posterior
from pgmodels.results.approximation import Approximation, GaussianResult, LinearResponse
from pgmodels.results.correction import mixing
from pgmodels.results.nested import NestedApproximation
from pgmodels.runtime import hooks
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.progress import progress_bar
from pgmodels.runtime.x64 import as_array

# Rows whose sites are updated for each value, and updates. On 150 to 200 binary rows and counts (kernel variances 4 to
# 25) the largest error of a variance, against all rows updated to convergence, is 6 % without updates, 4 % with 8 rows,
# 2 % with 16 and 0.4 % with 32; one update of all rows errs by 0.5 %, a second by 0.1 %.
_NUM_UPDATED, _NUM_UPDATES = 32, 4
# An update that lowers the bound is undone, and the next one is shorter by this factor.
_SHORTER = 0.25
# Values of u, in deviations from q's mean, at which the change of the sites says which rows are updated.
_TRIED = 2.0
# Relative jitter of the conditional covariance of the updated rows: a row that u determines has none.
_JITTER = 1e-10
# A share of each variance that is added, so that rounding leaves no negative one where u determines a predictor.
_ROUNDING = 1e-12
# Relative conditional variance of a predictor below which u determines it.
_DETERMINED = 1e-8
# Log densities this far below the largest are cut off, nats.
_DEPTH = 100.0
# A grid reaches from where the log density is this far below its largest value to where it is again, nats; it is found
# in at most so many passes, in each of which it may grow by the last share on a side.
_FALL, _PASSES, _GROWTH = 24.0, 6, 0.6
# Functionals in one call of the compiled program.
_CHUNK = 64


class Gaussian(NamedTuple):
    """q and the data: predictors z = mean + half e with e ~ N(0, I) and a residual variance that no site reduces.

    ``potential`` and ``precision`` are the sites that are optimal at its marginals, with the rows' weights.
    """

    mean: Float[Array, "n P"]
    half: Float[Array, "n P D"]
    residual: Float[Array, "n P P"]
    potential: Float[Array, "n P"]
    precision: Float[Array, "n P P"]
    y: Array
    row_weights: Float[Array, " n"] | None
    log_normalizer: Float[Array, ""]


class Functional(NamedTuple):
    """u = mean + half^T e + noise of variance ``residual`` under q, with its density at ``location + scale * GRID``."""

    mean: Any
    half: Any
    residual: Any
    location: Any
    scale: Any


class _Conditional(NamedTuple):
    """A Gaussian of the standardised predictors (d,) of the updated rows given u, and its KL from q's."""

    mean: Array
    covariance: Array
    divergence: Array


@vmap_as_loop
def _root_and_inverse(S: Any) -> tuple[Any, Any]:
    """The Cholesky root of a matrix and the root's inverse."""
    root = jnp.linalg.cholesky(S)
    return root, solve_triangular(root, jnp.eye(len(S), dtype=S.dtype), lower=True)


class _Iterate(NamedTuple):
    """A conditional with its bound and sites, and the sites that are optimal at its moments."""

    value: Array
    conditional: _Conditional
    sites: tuple[Array, Array]
    optimal: tuple[Array, Array]


class _Tilt:
    """log r = w B - (h m - tr W (m m^T + C) / 2) of rows, in expectation under a Gaussian, and the update of sites."""

    def __init__(self, objective: Objective, q: Gaussian, parameters: dict[str, Any]):
        self.objective, self.q, self.parameters = objective, q, parameters

    def _spread(self, C: Any, rows: Any) -> Any:
        total = C + self.q.residual[rows]
        return total if self.objective.takes_covariances and total.shape[-1] > 1 else _diagonal(total)

    def values(self, m: Any, C: Any, rows: Any) -> Any:
        """The expectations of some rows."""
        q = self.q
        B = self.objective.local_bound(m, self._spread(C, rows), q.y[rows], self.parameters)
        return self._less_sites(weighted(_of(q.row_weights, rows), B), m, C, rows)

    def _less_sites(self, B: Any, m: Any, C: Any, rows: Any) -> Any:
        h, W = self.q.potential[rows], self.q.precision[rows]
        # The normaliser of q counts sites in expectation over the residual.
        second = m[:, :, None] * m[:, None, :] + C + self.q.residual[rows]
        return B - jnp.sum(h * m, axis=1) + 0.5 * jnp.sum(W * second, axis=(1, 2))

    def values_and_sites(self, m: Any, C: Any, rows: Any) -> tuple[Any, Any, Any]:
        """The expectations, and the potentials and precisions that the optimal sites have beyond those of q."""
        q, row_weights = self.q, _of(self.q.row_weights, rows)
        B, h, W = self.objective.local_bound_and_sites(m, self._spread(C, rows), q.y[rows], self.parameters)
        B, h, W = (weighted(row_weights, part) for part in (B, h, W if W.ndim == 3 else jax.vmap(jnp.diag)(W)))
        return self._less_sites(B, m, C, rows), h - q.potential[rows], W - q.precision[rows]


def _of(row_weights: Any, rows: Any) -> Any:
    return None if row_weights is None else row_weights[rows]


def _diagonal(blocks: Any) -> Any:
    return jnp.diagonal(blocks, axis1=-2, axis2=-1)


def _log_density(tilt: _Tilt, q: Gaussian, blocks: Any, functional: Functional) -> Any:
    """The bound of log p(y, u = x) at the grid of a functional, (grid,)."""
    variance = jnp.sum(functional.half**2) + functional.residual
    deviation = jnp.where(variance > 0.0, jnp.sqrt(variance), 1.0)
    # Covariances of the predictors with the standardised functional.
    s = q.half @ functional.half / deviation
    C = blocks - s[:, :, None] * s[:, None, :] + _ROUNDING * _diagonal(blocks)[:, :, None] * jnp.eye(s.shape[1])
    every = jnp.arange(len(s))
    row, is_determined = _determined_row(q, blocks, s)
    determined = is_determined & (every == row)

    # Rows by the change of their sites times their conditional variance.
    ends = jax.vmap(lambda t: tilt.values_and_sites(q.mean + t * s, C, every)[2])(jnp.array([-_TRIED, _TRIED]))
    score = jnp.sum(abs(_diagonal(ends) * _diagonal(C)), axis=(0, 2))
    count = min(_NUM_UPDATED, len(s))
    rows = jax.lax.top_k(jnp.where(determined, 0.0, jnp.nan_to_num(score, nan=0.0)), count)[1]
    chosen = q.half[rows].reshape(-1, q.half.shape[2])
    across = q.half @ chosen.T - s[:, :, None] * s[rows].reshape(-1)
    size = len(chosen)
    within = across[rows].reshape(size, size)
    jitter = _JITTER * jnp.mean(_diagonal(blocks)) + 1e-290
    L, inverse = _root_and_inverse(within + jitter * jnp.eye(size))
    # z = base + K x with x ~ N(0, I) under q given u.
    K, ours = across @ inverse.T, L.reshape(count, -1, size)

    def updated(t: Any) -> _Conditional:
        """The Gaussian of x given u with the largest bound, of those before and after each update."""
        base = q.mean[rows] + t * s[rows]

        def conditioned(h: Any, W: Any) -> _Conditional:
            """x given u and sites that differ from those of q by these."""
            root, inverse = _root_and_inverse(jnp.eye(size) + jnp.einsum("kpd,kpe->de", ours, W @ ours))
            covariance = inverse.T @ inverse
            mean = covariance @ jnp.einsum("kpd,kp->d", ours, h - jnp.einsum("kpq,kq->kp", W, base))
            logs = jnp.sum(jnp.log(_diagonal(root)))
            return _Conditional(mean, covariance, 0.5 * (jnp.trace(covariance) - size + mean @ mean) + logs)

        def evaluated(h: Any, W: Any) -> _Iterate:
            now = conditioned(h, W)
            V = jnp.einsum("kpd,kqd->kpq", ours @ now.covariance, ours)
            values, *optimal = tilt.values_and_sites(base + ours @ now.mean, V, rows)
            iterate = _Iterate(jnp.sum(values) - now.divergence, now, (h, W), tuple(optimal))
            # Without a barrier the averages over nodes are computed again for each entry of what uses them.
            return jax.lax.optimization_barrier(iterate)

        def update(_: Any, state: tuple[_Iterate, Any]) -> tuple[_Iterate, Any]:
            iterate, step = state
            moved = (old + step * (new - old) for old, new in zip(iterate.sites, iterate.optimal, strict=True))
            after = evaluated(*moved)
            rises = after.value > iterate.value
            step = jnp.where(rises, jnp.minimum(2.0 * step, 1.0), _SHORTER * step)
            return jax.tree.map(partial(jnp.where, rises), after, iterate), step

        none = jnp.zeros((count, ours.shape[1])), jnp.zeros((count, ours.shape[1], ours.shape[1]))
        return jax.lax.fori_loop(0, _NUM_UPDATES, update, (evaluated(*none), jnp.ones(())))[0].conditional

    def bound(x: Any) -> Any:
        t = (x - functional.mean) / deviation
        now = updated(t)
        m = q.mean + t * s + K @ now.mean
        V = C - jnp.einsum("npd,nqd->npq", K @ (jnp.eye(size) - now.covariance), K)
        values = tilt.values(m, V, every)
        return jnp.sum(jnp.where(determined, 0.0, values)) - now.divergence

    # The term of a row that u determines may have a kink: it is computed on the grid, and not interpolated.
    x = functional.location + functional.scale * GRID
    t = (x - functional.mean) / deviation

    def of_determined_row(t: Any) -> Any:
        return tilt.values(q.mean[row][None] + t * s[row], C[row][None], row[None])[0]

    values = jax.vmap(bound)(functional.location + functional.scale * NODES)
    # Far out values may be minus infinity, or differ by more than a spline follows.
    smooth = as_array(INTERPOLATION) @ jnp.maximum(values, jnp.nanmax(values) - _DEPTH)
    kinked = jnp.where(is_determined, jax.vmap(of_determined_row)(t), 0.0)
    return q.log_normalizer + smooth + kinked - 0.5 * t**2 - 0.5 * jnp.log(2.0 * jnp.pi) - jnp.log(deviation)


def _determined_row(q: Gaussian, blocks: Any, s: Any) -> tuple[Any, Any]:
    """The row whose only predictor depends most on u, and whether u determines it."""
    if s.shape[1] > 1:
        return jnp.zeros((), int), jnp.zeros((), bool)
    variance = blocks[:, 0, 0] + q.residual[:, 0, 0]
    is_datum = jnp.ones(len(s), bool) if q.row_weights is None else q.row_weights > 0.0
    share = jnp.where(is_datum & (variance > 0.0), s[:, 0] ** 2 / jnp.where(variance > 0.0, variance, 1.0), 0.0)
    row = jnp.argmax(share)
    return row, share[row] > 1.0 - _DETERMINED


@partial(compiled, static_argnames="objective")
def log_densities(
    objective: Objective, q: Gaussian, parameters: dict[str, Any], functionals: Functional
) -> Float[Array, "k grid"]:
    """The bounds of log p(y, u = x) of several functionals, one after another."""
    tilt, blocks = _Tilt(objective, q, parameters), jnp.einsum("npd,nqd->npq", q.half, q.half)
    return jax.lax.map(partial(_log_density, tilt, q, blocks), functionals)


@partial(compiled, static_argnames=("objective", "coarse", "coupled"))
def _gaussian_of(
    objective: Objective,
    coarse: Objective,
    posterior: Posterior,
    across: Any,
    y: Any,
    row_weights: Any,
    parameters: dict[str, Any],
    coupled: bool,
) -> tuple[Gaussian, Any]:
    """q at the predictors of the data, and the root R of the precision R R^T of its whitened coordinates.

    Its sites are the optimal ones of the coarse quadrature at the marginals of q, and its normaliser such that the
    bound without pinning is the ELBO: errors of the quadrature cancel to second order about q.
    """
    mean, spread = at_data(posterior, across, coupled)
    R, U = halves(posterior, across)
    total = spread if spread.ndim == 3 else jax.vmap(jnp.diag)(spread)
    half = jnp.moveaxis(U, 0, -1)
    C = jnp.einsum("npd,nqd->npq", half, half)
    # Differences of rounding size are none.
    residual = jnp.where(abs(total - C) > 1e-9 * abs(total), total - C, 0.0)
    h, W = posterior.sites
    W = W if W.ndim == 3 else jax.vmap(jnp.diag)(W)
    q, every = Gaussian(mean, half, residual, h, W, y, row_weights, posterior.log_normalizer()), jnp.arange(len(mean))
    _, more_h, more_W = _Tilt(coarse, q, parameters).values_and_sites(mean, C, every)
    elbo = q.log_normalizer + jnp.sum(_Tilt(objective, q, parameters).values(mean, C, every))
    q = q._replace(potential=h + more_h, precision=W + more_W)
    return q._replace(log_normalizer=elbo - jnp.sum(_Tilt(coarse, q, parameters).values(mean, C, every))), R


@compiled
def _latents_at(posterior: Posterior, R: Any, X_new: Any) -> tuple[Any, Any, Any]:
    """Mean (m, L), half (m, L, D) and residual variance (m, L) of the latents at new inputs, as in Functional."""
    mean, covariance = posterior.marginals_at(X_new)
    factors, size = posterior.prior.factors_at(X_new), mean.shape[1]
    G = jnp.concatenate([A[:, :, None] * (jnp.arange(size) == latent) for latent, A in enumerate(factors)])
    half = jnp.moveaxis(solve_triangular(R, G.reshape(len(R), -1), lower=True).reshape(G.shape), 0, -1)
    variance = jnp.diagonal(covariance, axis1=1, axis2=2)
    residual = variance - jnp.sum(half**2, axis=2)
    return mean, half, jnp.where(residual > 1e-9 * variance, residual, 0.0)


def correct_by_nesting(approximation: Approximation, progress: bool | None = False) -> NestedApproximation:
    """Marginals of all latents at the data by bounds of log p(y, f_i = x) (math: section 5c).

    They are relative to the variational Gaussian, which is computed first from a result of another objective.
    """
    start = time.perf_counter()
    gaussian = _variational_gaussian(approximation)
    response = correct_by_response(gaussian)
    marginals = Pinning(gaussian).latents(gaussian.X, None, progress)
    deviation = np.sqrt(np.where(response.variance > 0.0, response.variance, 1.0))
    ratio = np.sqrt(marginals.variance) / deviation
    known = {field.name: getattr(response, field.name) for field in fields(LinearResponse)}
    known |= {
        "seconds": approximation.seconds + time.perf_counter() - start,
        "mean": marginals.mean,
        "variance": marginals.variance,
        "covariance": ratio[:, :, None] * response.covariance * ratio[:, None, :],
    }
    return NestedApproximation(
        **known, location=marginals.location, scale=marginals.scale, log_density=marginals.log_density
    )


def _variational_gaussian(approximation: Approximation) -> Approximation:
    """The maximum of the expected log density with the same hyperparameters."""
    if objective_of_result(approximation).is_exact:
        return approximation
    gaussian = vi(
        approximation.model, approximation.X, approximation.y, objective="expected", weights=approximation.weights,
        progress=False,
    )  # fmt: skip
    return replace(gaussian, fit=approximation.fit, columns=approximation.columns)


@hooks.nested_marginals.register(GaussianResult)
def _marginals_at(result: GaussianResult, X_new: np.ndarray, Phi: np.ndarray | None) -> GridDensity:
    """See hooks.nested_marginals."""
    return Pinning(result.uncorrected).latents(X_new, Phi)


class Pinning:
    """Bounds of log p(y, u = x) for linear functionals u of the latents of a variational Gaussian."""

    def __init__(self, gaussian: Approximation):
        model, posterior = gaussian.model, gaussian.posterior
        self.posterior, self.parameters = posterior, model.parameters
        y, row_weights = gaussian.data.padded(posterior.prior.num_rows)
        across = mixing(model, y)
        objective: Objective = expected_objective(model)
        self.objective = objective.reduced()
        coupled = has_coupled_sites(gaussian, objective)
        self.q, self.R = _gaussian_of(
            objective, self.objective, posterior, across[0] if across else None, y, row_weights, self.parameters,
            coupled,
        )  # fmt: skip

    def latents(self, X_new: np.ndarray, Phi: np.ndarray | None, progress: bool | None = False) -> GridDensity:
        """The densities of the latents at new inputs (m, L), or of predictors Φ f with Φ (m, P, L)."""
        size = padded_size(len(X_new))
        moments = _latents_at(self.posterior, self.R, as_array(pad_rows(X_new, size)))
        mean, half, residual = (np.asarray(part)[: len(X_new)] for part in moments)
        if Phi is not None:
            mean, half = np.einsum("mpl,ml->mp", Phi, mean), np.einsum("mpl,mld->mpd", Phi, half)
            residual = np.einsum("mpl,ml->mp", Phi**2, residual)
        return self.densities(mean, half, residual, progress)

    def densities(
        self, mean: np.ndarray, half: np.ndarray, residual: np.ndarray, progress: bool | None = False
    ) -> GridDensity:
        """The densities of functionals with mean (...), half (..., D) and residual variance (...)."""
        shape, count = mean.shape, mean.size
        mean, half, residual = mean.ravel(), half.reshape(count, -1), residual.ravel()
        scale = np.sqrt(np.sum(half**2, axis=1) + residual)
        location, log_density = mean.copy(), np.empty((count, len(GRID)))
        moving = np.arange(count)
        with progress_bar("marginals", count, progress) as bar:
            for _ in range(_PASSES):
                functionals = Functional(mean, half, residual, location, scale)
                log_density[moving] = self._log_densities(Functional(*(part[moving] for part in functionals)), bar)
                location, scale, moved = _adapted(location, scale, log_density, moving)
                moving = moving[moved]
                if not len(moving):
                    break
        return GridDensity(location.reshape(shape), scale.reshape(shape), log_density.reshape(*shape, -1))

    def _log_densities(self, functionals: Functional, bar: Any) -> np.ndarray:
        count = len(functionals.mean)
        chunks = equal_chunks(np.arange(count), min(_CHUNK, power_of_two(count)))
        pieces = []
        for rows in chunks:
            piece = Functional(*(as_array(part[rows]) for part in functionals))
            pieces.append(np.asarray(log_densities(self.objective, self.q, self.parameters, piece)))
            bar.advance(len(rows))
        return np.concatenate(pieces)[:count]


def _adapted(
    location: np.ndarray, scale: np.ndarray, log_density: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Grids on which the densities of some rows fall by _FALL nats on both sides, and which rows' grids have moved."""
    location, scale, values = location.copy(), scale.copy(), log_density[rows]
    peak = np.nanmax(values, axis=1, keepdims=True)
    inside = values > peak - _FALL
    last = len(GRID) - 1
    first, final = inside.argmax(axis=1), last - inside[:, ::-1].argmax(axis=1)
    span = GRID[final] - GRID[first]
    low = np.where(first > 0, GRID[np.maximum(first - 1, 0)], GRID[0] - _GROWTH * span)
    high = np.where(final < last, GRID[np.minimum(final + 1, last)], GRID[-1] + _GROWTH * span)
    # A grid may reach somewhat too far, and end somewhat too early where the density has fallen far enough.
    falls = peak[:, 0] - np.maximum(values[:, 0], values[:, -1])
    moved = np.isfinite(peak[:, 0]) & (scale[rows] > 0.0) & ((falls < 0.75 * _FALL) | (high - low < 1.4 * REACH))
    moving = rows[moved]
    location[moving] += scale[moving] * 0.5 * (low + high)[moved]
    scale[moving] *= 0.5 * (high - low)[moved] / REACH
    return location, scale, moved
