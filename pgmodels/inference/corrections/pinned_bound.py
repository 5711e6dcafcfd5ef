"""A bound of log p(y, u = x) for a linear functional u of the latents, at each value x (math: section 5c).

With u pinned at x, the other latents have a variational Gaussian of their own. Relative to the Gaussian q of a result,
p(y, u = x) = Z q(u = x) E_q[prod_j r_j | u = x] with r_j = p(y_j | z_j) / site_j: where the sites of q are kept for all
rows, the Gaussian is q given u = x, and no system is solved. From there the sites of the rows that u affects most are
updated.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

from pgmodels.objectives.base import Objective
from pgmodels.priors.lapack_loops import vmap_as_loop
from pgmodels.priors.padding import weighted
from pgmodels.results.grid_density import GRID, interpolation
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array

# Rows whose sites are updated for each value, and updates. On 150 to 200 binary rows and counts (kernel variances 4 to
# 25), with two updates, the largest error of a variance against all rows updated to convergence is 6 % with no rows,
# 4 % with 8, 2 % with 16 and 0.4 % with 32. Three latents with no counts (kernel variance 25) need four updates:
# against quadrature the error is 10 % with two, 1.8 % with four and 2.3 % with six.
NUM_UPDATED, _NUM_UPDATES = 32, 4
# They end early after one that changes the bound by less than _LITTLE nats, or _LITTLE exp(t^2 / 4) at t deviations
# from the mean of q, where there is less mass. With 250 binary rows, counts and heavy tails this takes 20 % less time,
# and no variance changes by 0.1 %.
_LITTLE = 1e-3
# After these, an update that changes the bound by more than _ENOUGH nats is followed by another, up to _MAX_UPDATES in
# all: with a noise that varies (kernel variances 9 and 25) the errors of variances against quadrature are 20 % and 71 %
# without these, and 4 % and 12 % with them. With three latents without counts (25) the variance of a contrast errs by
# 2.3 % without them, by 0.5 % at 0.1 nats and by 4.1 % at 0.3.
_MAX_UPDATES, _ENOUGH = 16, 0.1
# An update that lowers the bound is undone, and the next one is shorter by this factor.
_SHORTER = 0.25
# Values of u, in deviations from q's mean, at which the change of the sites says which rows are updated.
_TRIED = 2.0
# Relative jitter of the conditional covariance of the updated rows: a row that u determines has none.
_JITTER = 1e-10
# A share of each variance that is added, so that rounding leaves no negative one where u determines a predictor.
_ROUNDING = 1e-12
# Rows whose terms are computed for each value: those with the largest correlation with u. The terms of other rows with
# one predictor each are expanded to fourth order. With 4,000 rows and 100 inducing inputs (balanced and rare labels,
# counts, heavy tails, kinks), the largest error against all rows is 0.4 % of a deviation and 0.1 deviations of a
# quantile at 0.1 % (rare labels; 2.6 % and 0.45 without the expansion).
_NUM_NEAR = 256
# The expansion may diverge, as with kinks of 4,000 rows. It is used if its sums of third and fourth derivatives are
# within these limits (with rare labels they are up to 0.25 and 0.12), and if on the whole grid it takes back at most
# half of the fall of q's log density, or half a nat.
_THIRD, _FOURTH = 0.35, 0.2
# At most so many rows whose squared correlation with u is above this have terms that are computed given q at all points
# of the grid, since they may be steep or have kinks. What remains is interpolated: see grid_density.
_NUM_STEEP, _CORRELATED = 8, 0.8
# With this many nodes or more, all near rows are, since many rows of one label may be steep together. So many points of
# the grid are computed at once.
_MANY_NODES, _AT_ONCE = 65, 16
# Log densities this far below the largest are cut off, nats: the spline does not follow them, and they have no mass.
_DEPTH = 100.0
# Errors of interpolation count where the log density is at most this far below its largest, nats. Kinks of a contrast
# of three latents have errors of 0.6 nats with 65 nodes at a depth of 12, where they change no moment by 1 %.
_COUNTED = 8.0


class PredictorGaussian(NamedTuple):
    """q of the predictors z = mean + half e of the data, with e ~ N(0, I) and a residual that no site reduces.

    ``residual`` is the covariance of the residual and ``covariance`` that of the predictors without it. ``potential``
    and ``precision`` are the sites that are optimal at q's marginals, with the rows' weights. ``derivatives`` are the
    third and fourth ones of the rows' expected log densities in the mean of their only predictor; None if the terms of
    all rows are computed, as with several predictors.
    """

    mean: Float[Array, "n P"]
    half: Float[Array, "n P D"]
    residual: Float[Array, "n P P"]
    potential: Float[Array, "n P"]
    precision: Float[Array, "n P P"]
    y: Array
    row_weights: Float[Array, " n"] | None
    covariance: Float[Array, "n P P"]
    derivatives: Float[Array, "n 2"] | None

    def of_rows(self, rows: Any) -> "PredictorGaussian":
        """q of the predictors of some rows."""
        return jax.tree.map(lambda part: part[rows], self)


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

    def of_rows(self, rows: Any) -> "Tilt":
        """The same of some rows."""
        return Tilt(self.objective, self.q.of_rows(rows), self.parameters)

    def values(self, m: Any, C: Any, rows: Any = slice(None)) -> Any:
        """The expectations of some rows, whose predictors have means m (rows, P) and covariances C (rows, P, P)."""
        B = self.objective.local_bound(m, self._spread(C, rows), self.q.y[rows], self.parameters)
        return self._less_sites(self._weighted(B, rows), m, C, rows)

    def derivatives(self) -> Any:
        """The third and fourth derivatives of the expectations under q in the means of single predictors, (n, 2)."""

        def derivative(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
            return lambda m: jax.jvp(function, (m,), (jnp.ones_like(m),))[1]

        third = derivative(derivative(derivative(lambda m: self.values(m, self.q.covariance))))
        return jnp.stack([third(self.q.mean), derivative(third)(self.q.mean)], axis=1)

    def values_and_sites(self, m: Any, C: Any, rows: Any = slice(None)) -> tuple[Any, Any, Any]:
        """The expectations, and what the optimal sites have beyond those of q: potentials and precisions."""
        B, h, W = self.objective.local_bound_and_sites(m, self._spread(C, rows), self.q.y[rows], self.parameters)
        B, h, W = (self._weighted(part, rows) for part in (B, h, W if W.ndim == 3 else jax.vmap(jnp.diag)(W)))
        return self._less_sites(B, m, C, rows), h - self.q.potential[rows], W - self.q.precision[rows]

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


class _Updates(NamedTuple):
    """The updates so far: how many, the best iterate, the next step, and whether the last one changed the bound."""

    number: Array
    iterate: _Iterate
    step: Array
    changes: Array


class _Pinned:
    """The predictors given t, the deviations of a functional from its mean: z | t ~ N(mean + s t, C) under q."""

    def __init__(self, tilt: Tilt, functional: Functional, num_nodes: int):
        q, self.functional = tilt.q, functional
        variance = jnp.sum(functional.half**2) + functional.residual
        self.deviation = jnp.where(variance > 0.0, jnp.sqrt(variance), 1.0)
        s = q.half @ functional.half / self.deviation
        variances = _diagonal(q.covariance + q.residual)
        correlation = jnp.max(jnp.where(variances > 0.0, s**2 / variances, 0.0), axis=1)
        # Padding is of no interest.
        correlation = correlation if q.row_weights is None else jnp.where(q.row_weights > 0.0, correlation, -1.0)
        num_near = len(correlation) if q.derivatives is None else min(_NUM_NEAR, len(correlation))
        # In decreasing order.
        correlation, near = jax.lax.top_k(correlation, num_near)
        terms = jnp.zeros((len(s), 2)) if q.derivatives is None else q.derivatives * s ** jnp.array([3, 4])
        self.far = jnp.sum(terms.at[near].set(0.0), axis=0)
        self.tilt, self.s = tilt.of_rows(near), s[near]
        covariance = self.tilt.q.covariance
        rounding = _ROUNDING * _diagonal(covariance)[:, :, None] * jnp.eye(s.shape[1])
        self.C = covariance - self.s[:, :, None] * self.s[:, None, :] + rounding
        # Of several predictors the functional determines at most one, and the others change the term given q.
        num_steep = _NUM_STEEP if num_nodes < _MANY_NODES else num_near
        self.is_steep, self.num_nodes = (correlation[:num_steep] > _CORRELATED) & (s.shape[1] == 1), num_nodes

    def mean(self, t: Any) -> Any:
        """The means of the predictors (n, P)."""
        return self.tilt.q.mean + t * self.s

    def log_density(self) -> tuple[Any, Any, Any]:
        """The bound of log p(y, u = x) less the ELBO at the grid of the functional, (grid,), by a spline of nodes.

        Also whether the expansion of the far rows is within its limits there, and the largest error of a spline of
        every other node at the other nodes, where the density is not negligible.
        """
        functional, num_nodes = self.functional, self.num_nodes
        updated = _UpdatedRows(self)

        def interpolated(x: Any) -> Any:
            return updated.bound((x - functional.mean) / self.deviation)

        t = (functional.location + functional.scale * GRID - functional.mean) / self.deviation
        exact = jax.lax.map(lambda t: jnp.sum(self.steep_terms(t)), t, batch_size=_AT_ONCE)
        log_q = -0.5 * t**2 - 0.5 * jnp.log(2.0 * jnp.pi) - jnp.log(self.deviation)
        third, fourth = self.far
        # The far rows' B(m + s t, v - s^2) about (m, v), where its first two derivatives are the sites'.
        far = third * (t**3 - 3.0 * t) / 6.0 + fourth * (t**4 - 6.0 * t**2 + 3.0) / 24.0
        converges = (abs(third) <= _THIRD) & (abs(fourth) <= _FOURTH) & jnp.all(far <= jnp.maximum(0.25 * t**2, 0.5))
        at_q = jnp.sum(self.tilt.values(self.tilt.q.mean, self.tilt.q.covariance))
        others = far + log_q - at_q
        nodes, spline = (as_array(part) for part in interpolation(num_nodes))
        step = (len(GRID) - 1) // (num_nodes - 1)
        values = jax.vmap(interpolated)(functional.location + functional.scale * nodes)
        # Far out values may be minus infinity, and so may the terms of steep rows.
        base, known = others[::step], exact[::step]
        values = jnp.maximum(values, jnp.nanmax(values + base + known) - _DEPTH - base - jnp.maximum(known, -_DEPTH))
        log_density = spline @ values + exact + others
        coarse = as_array(interpolation(num_nodes // 2 + 1)[1][step :: 2 * step])
        errors = abs(values[1::2] - coarse @ values[::2])
        counted = log_density[step :: 2 * step] > jnp.max(log_density) - _COUNTED
        return log_density, converges, jnp.max(jnp.where(counted, errors, 0.0))

    def steep_terms(self, t: Any) -> Any:
        """The terms given t and q of the rows with the largest correlation, 0 for those that are not steep."""
        steep = slice(0, len(self.is_steep))
        return jnp.where(self.is_steep, self.tilt.values(self.mean(t)[steep], self.C[steep], steep), 0.0)


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
        return jax.lax.top_k(jnp.nan_to_num(score, nan=0.0), min(NUM_UPDATED, len(score)))[1]

    def bound(self, t: Any) -> Any:
        """The bound given t, less the steep rows' terms given q and log q(u = x)."""
        pinned, now = self.pinned, self._updated(t)
        m = pinned.mean(t) + self.K @ now.mean
        C = pinned.C - jnp.einsum("npd,nqd->npq", self.K @ (jnp.eye(self.size) - now.covariance), self.K)
        values, steep = pinned.tilt.values(m, C), pinned.steep_terms(t)
        # Where one is infinite, so is the other.
        beyond = jnp.where(jnp.isfinite(steep), values[: len(steep)] - steep, 0.0)
        return jnp.sum(values.at[: len(steep)].set(beyond)) - now.divergence

    def _updated(self, t: Any) -> _Conditional:
        """x given t after the updates."""
        count, size = self.ours.shape[:2]
        little = jnp.minimum(_ENOUGH, _LITTLE * jnp.exp(jnp.minimum(0.25 * t**2, 20.0)))
        nothing = jnp.zeros((count, size)), jnp.zeros((count, size, size))

        def update(state: _Updates) -> _Updates:
            number, iterate, step, _ = state
            moved = (old + step * (new - old) for old, new in zip(iterate.sites, iterate.optimal, strict=True))
            after = self._evaluated(t, *moved)
            rises = after.value > iterate.value
            step = jnp.where(rises, jnp.minimum(2.0 * step, 1.0), _SHORTER * step)
            changes = ~(abs(after.value - iterate.value) <= jnp.where(number + 1 < _NUM_UPDATES, little, _ENOUGH))
            return _Updates(number + 1, jax.tree.map(partial(jnp.where, rises), after, iterate), step, changes)

        def goes_on(state: _Updates) -> Any:
            return state.changes & (state.number < _MAX_UPDATES)

        start = _Updates(jnp.zeros((), int), self._evaluated(t, *nothing), jnp.ones(()), jnp.ones((), bool))
        return jax.lax.while_loop(goes_on, update, start).iterate.conditional

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


@partial(compiled, static_argnames=("objective", "num_nodes"))
def log_densities(
    objective: Objective,
    q: PredictorGaussian,
    parameters: dict[str, Any],
    functionals: Functional,
    num_nodes: int,
) -> tuple[Float[Array, "k grid"], Bool[Array, " k"], Float[Array, " k"]]:
    """The bounds of log p(y, u = x) less the ELBO of several functionals at their grids, one after another.

    Also whether the expansion of the rows far from each converges, and errors of interpolation: see ``_Pinned``.
    """
    tilt = Tilt(objective, q, parameters)
    return jax.lax.map(lambda functional: _Pinned(tilt, functional, num_nodes).log_density(), functionals)


@vmap_as_loop
def _root_and_inverse(S: Any) -> tuple[Any, Any]:
    """The Cholesky root of a small matrix, and the root's inverse."""
    root = jnp.linalg.cholesky(S)
    return root, solve_triangular(root, jnp.eye(len(S), dtype=S.dtype), lower=True)


def _diagonal(blocks: Any) -> Any:
    return jnp.diagonal(blocks, axis1=-2, axis2=-1)
