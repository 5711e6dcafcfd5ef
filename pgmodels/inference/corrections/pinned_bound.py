"""A bound of log p(y, u = x) for a linear functional u of the latents, at each value x (math: section 5c).

With u pinned at x, the other latents have a variational Gaussian of their own. Relative to the Gaussian q of a result,
p(y, u = x) = Z q(u = x) E_q[prod_j r_j | u = x] with r_j = p(y_j | z_j) / site_j: where the sites of q are kept for all
rows, the Gaussian is q given u = x, and no system is solved. From there the sites of the rows that u affects most are
updated.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from pgmodels.numerics.grid_density import GRID, INTERPOLATION, NODES
from pgmodels.objectives.base import Objective
from pgmodels.priors.lapack_loops import vmap_as_loop
from pgmodels.priors.padding import weighted
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array

# Rows whose sites are updated for each value, and updates. On 150 to 200 binary rows and counts (kernel variances 4 to
# 25), with two updates, the largest error of a variance against all rows updated to convergence is 6 % with no rows,
# 4 % with 8, 2 % with 16 and 0.4 % with 32. Three latents with no counts (kernel variance 25) need four updates:
# against quadrature the error is 10 % with two, 1.8 % with four and 2.3 % with six.
NUM_UPDATED, _NUM_UPDATES = 32, 4
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
# Log densities this far below the largest are cut off, nats: the spline does not follow them, and their mass is none.
_DEPTH = 100.0


class PredictorGaussian(NamedTuple):
    """q of the predictors z = mean + half e of the data, with e ~ N(0, I) and a residual that no site reduces.

    ``residual`` is the covariance of the residual. ``potential`` and ``precision`` are the sites that are optimal at
    its marginals, with the rows' weights.
    """

    mean: Float[Array, "n P"]
    half: Float[Array, "n P D"]
    residual: Float[Array, "n P P"]
    potential: Float[Array, "n P"]
    precision: Float[Array, "n P P"]
    y: Array
    row_weights: Float[Array, " n"] | None
    log_normalizer: Float[Array, ""]

    @property
    def covariance(self) -> Float[Array, "n P P"]:
        """The covariance of each datum's predictors, without the residual."""
        return jnp.einsum("npd,nqd->npq", self.half, self.half)


class Functional(NamedTuple):
    """u = mean + half^T e + noise of variance ``residual`` under q, with its density at ``location + scale * GRID``."""

    mean: Any
    half: Any
    residual: Any
    location: Any
    scale: Any


class Tilt:
    """log r = w B - (h m - tr W (m m^T + C) / 2) of rows, in expectation under a Gaussian, and the update of sites."""

    def __init__(self, objective: Objective, q: PredictorGaussian, parameters: dict[str, Any]):
        self.objective, self.q, self.parameters = objective, q, parameters

    def values(self, m: Any, C: Any, rows: Any = slice(None)) -> Any:
        """The expectations of some rows, whose predictors have means m (rows, P) and covariances C (rows, P, P)."""
        B = self.objective.local_bound(m, self._spread(C, rows), self.q.y[rows], self.parameters)
        return self._less_sites(self._weighted(B, rows), m, C, rows)

    def values_and_sites(self, m: Any, C: Any, rows: Any = slice(None)) -> tuple[Any, Any, Any]:
        """The expectations, and what the optimal sites have beyond those of q: potentials and precisions."""
        B, h, W = self.objective.local_bound_and_sites(m, self._spread(C, rows), self.q.y[rows], self.parameters)
        B, h, W = (self._weighted(part, rows) for part in (B, h, W if W.ndim == 3 else jax.vmap(jnp.diag)(W)))
        return self._less_sites(B, m, C, rows), h - self.q.potential[rows], W - self.q.precision[rows]

    def values_at(self, z: Any) -> Any:
        """log r of all rows at predictors z (n, P)."""
        log_density = self.objective.predictor_log_density(self.q.y, z, self.parameters)
        nothing = jnp.zeros((*z.shape, z.shape[1]))
        return self._less_sites(self._weighted(log_density, slice(None)), z, nothing, slice(None))

    def _spread(self, C: Any, rows: Any) -> Any:
        total = C + self.q.residual[rows]
        return total if self.objective.takes_covariances and total.shape[-1] > 1 else _diagonal(total)

    def _weighted(self, terms: Any, rows: Any) -> Any:
        return weighted(None if self.q.row_weights is None else self.q.row_weights[rows], terms)

    def _less_sites(self, B: Any, m: Any, C: Any, rows: Any) -> Any:
        h, W = self.q.potential[rows], self.q.precision[rows]
        # The normaliser of q counts sites in expectation over the residual.
        second = m[:, :, None] * m[:, None, :] + C + self.q.residual[rows]
        return B - jnp.sum(h * m, axis=1) + 0.5 * jnp.sum(W * second, axis=(1, 2))


class _Conditional(NamedTuple):
    """A Gaussian of the standardised predictors (d,) of the updated rows given u, and its KL from that of q."""

    mean: Array
    covariance: Array
    divergence: Array


class _Iterate(NamedTuple):
    """A conditional with its bound and sites beyond those of q, and the sites that are optimal at its moments."""

    value: Array
    conditional: _Conditional
    sites: tuple[Array, Array]
    optimal: tuple[Array, Array]


class _Pinned:
    """The predictors given t, the deviations of a functional from its mean: z | t ~ N(mean + s t, C) under q.

    ``determined`` are rows whose only predictor u determines.
    """

    def __init__(self, tilt: Tilt, variances: Any, functional: Functional):
        q, self.tilt, self.functional = tilt.q, tilt, functional
        variance = jnp.sum(functional.half**2) + functional.residual
        self.deviation = jnp.where(variance > 0.0, jnp.sqrt(variance), 1.0)
        self.s = q.half @ functional.half / self.deviation
        size = self.s.shape[1]
        rounding = _ROUNDING * _diagonal(variances)[:, :, None] * jnp.eye(size)
        self.C = variances - self.s[:, :, None] * self.s[:, None, :] + rounding
        total = (variances + q.residual)[:, 0, 0]
        self.determined = (size == 1) & (total > 0.0) & (self.s[:, 0] ** 2 > (1.0 - _DETERMINED) * total)
        if q.row_weights is not None:
            self.determined &= q.row_weights > 0.0

    def mean(self, t: Any) -> Any:
        """The means of the predictors (n, P)."""
        return self.tilt.q.mean + t * self.s

    def log_density(self) -> Any:
        """The bound of log p(y, u = x) at the grid of the functional, (grid,)."""
        q, functional = self.tilt.q, self.functional
        updated = _UpdatedRows(self)

        def interpolated(x: Any) -> Any:
            return updated.bound((x - functional.mean) / self.deviation)

        values = jax.vmap(interpolated)(functional.location + functional.scale * NODES)
        # Far out values may be minus infinity.
        smooth = as_array(INTERPOLATION) @ jnp.maximum(values, jnp.nanmax(values) - _DEPTH)
        t = (functional.location + functional.scale * GRID - functional.mean) / self.deviation
        # Terms of rows that u determines may be steep or have a kink: they are computed on the grid.
        exact = jax.lax.cond(jnp.any(self.determined), self._determined_terms, jnp.zeros_like, t)
        log_q = -0.5 * t**2 - 0.5 * jnp.log(2.0 * jnp.pi) - jnp.log(self.deviation)
        return q.log_normalizer + smooth + exact + log_q

    def _determined_terms(self, t: Any) -> Any:
        def terms(t: Any) -> Any:
            return jnp.sum(jnp.where(self.determined, self.tilt.values_at(self.mean(t)), 0.0))

        return jax.vmap(terms)(t)


class _UpdatedRows:
    """The rows whose sites are updated: z = mean + s t + K x with x ~ N(0, I) under q given t, K of all rows."""

    def __init__(self, pinned: _Pinned):
        self.pinned, q, s = pinned, pinned.tilt.q, pinned.s
        self.rows = self._chosen()
        chosen = q.half[self.rows].reshape(-1, q.half.shape[2])
        across = q.half @ chosen.T - s[:, :, None] * s[self.rows].reshape(-1)
        self.size = len(chosen)
        jitter = _JITTER * jnp.mean(_diagonal(q.covariance)) + jnp.finfo(s.dtype).tiny
        within = across[self.rows].reshape(self.size, self.size) + jitter * jnp.eye(self.size)
        root, inverse = _root_and_inverse(within)
        self.K, self.ours = across @ inverse.T, root.reshape(len(self.rows), -1, self.size)

    def _chosen(self) -> Any:
        """The rows with the largest change of their sites times their conditional variance."""
        pinned = self.pinned

        def change(t: Any) -> Any:
            return pinned.tilt.values_and_sites(pinned.mean(t), pinned.C)[2]

        changes = jax.vmap(change)(jnp.array([-_TRIED, _TRIED]))
        score = jnp.sum(abs(_diagonal(changes) * _diagonal(pinned.C)), axis=(0, 2))
        score = jnp.where(pinned.determined, 0.0, jnp.nan_to_num(score, nan=0.0))
        return jax.lax.top_k(score, min(NUM_UPDATED, len(score)))[1]

    def bound(self, t: Any) -> Any:
        """The bound given t, without the terms of rows that u determines and without log q(u = x)."""
        pinned, now = self.pinned, self._updated(t)
        m = pinned.mean(t) + self.K @ now.mean
        C = pinned.C - jnp.einsum("npd,nqd->npq", self.K @ (jnp.eye(self.size) - now.covariance), self.K)
        return jnp.sum(jnp.where(pinned.determined, 0.0, pinned.tilt.values(m, C))) - now.divergence

    def _updated(self, t: Any) -> _Conditional:
        """x given t after the updates."""
        count, size = self.ours.shape[:2]
        nothing = jnp.zeros((count, size)), jnp.zeros((count, size, size))

        def update(_: Any, state: tuple[_Iterate, Any]) -> tuple[_Iterate, Any]:
            iterate, step = state
            moved = (old + step * (new - old) for old, new in zip(iterate.sites, iterate.optimal, strict=True))
            after = self._evaluated(t, *moved)
            rises = after.value > iterate.value
            step = jnp.where(rises, jnp.minimum(2.0 * step, 1.0), _SHORTER * step)
            return jax.tree.map(partial(jnp.where, rises), after, iterate), step

        start = self._evaluated(t, *nothing), jnp.ones(())
        return jax.lax.fori_loop(0, _NUM_UPDATES, update, start)[0].conditional

    def _evaluated(self, t: Any, h: Any, W: Any) -> _Iterate:
        now, base = self._conditioned(t, h, W), self.pinned.mean(t)[self.rows]
        C = jnp.einsum("kpd,kqd->kpq", self.ours @ now.covariance, self.ours)
        values, *optimal = self.pinned.tilt.values_and_sites(base + self.ours @ now.mean, C, self.rows)
        iterate = _Iterate(jnp.sum(values) - now.divergence, now, (h, W), tuple(optimal))
        # Without a barrier the averages over nodes are computed again for each entry of what uses them.
        return jax.lax.optimization_barrier(iterate)

    def _conditioned(self, t: Any, h: Any, W: Any) -> _Conditional:
        """x given t and sites that differ from those of q by these."""
        ours, base = self.ours, self.pinned.mean(t)[self.rows]
        root, inverse = _root_and_inverse(jnp.eye(self.size) + jnp.einsum("kpd,kpe->de", ours, W @ ours))
        covariance = inverse.T @ inverse
        mean = covariance @ jnp.einsum("kpd,kp->d", ours, h - jnp.einsum("kpq,kq->kp", W, base))
        logs = jnp.sum(jnp.log(_diagonal(root)))
        return _Conditional(mean, covariance, 0.5 * (jnp.trace(covariance) - self.size + mean @ mean) + logs)


@partial(compiled, static_argnames="objective")
def log_densities(
    objective: Objective, q: PredictorGaussian, parameters: dict[str, Any], functionals: Functional
) -> Float[Array, "k grid"]:
    """The bounds of log p(y, u = x) of several functionals at their grids, one after another."""
    tilt, variances = Tilt(objective, q, parameters), q.covariance
    return jax.lax.map(lambda functional: _Pinned(tilt, variances, functional).log_density(), functionals)


@vmap_as_loop
def _root_and_inverse(S: Any) -> tuple[Any, Any]:
    """The Cholesky root of a small matrix, and the root's inverse."""
    root = jnp.linalg.cholesky(S)
    return root, solve_triangular(root, jnp.eye(len(S), dtype=S.dtype), lower=True)


def _diagonal(blocks: Any) -> Any:
    return jnp.diagonal(blocks, axis1=-2, axis2=-1)
