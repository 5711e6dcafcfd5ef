"""Nested marginals."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

from pgmodels.inference.cavi import positive
from pgmodels.inference.linear_response import at_data, correct_by_response, halves, problem_at
from pgmodels.inference.objectives import expected_objective, is_joint, objective_of_result
from pgmodels.inference.problem import Problem
from pgmodels.inference.vi import vi
from pgmodels.model import Data
from pgmodels.numerics.quadrature import equal_chunks, power_of_two
from pgmodels.objectives.base import Objective, Parameters
from pgmodels.priors.base import pad_rows, padded_size, weighted
from pgmodels.priors.collection import Posterior, factors_at
from pgmodels.priors.linalg import vmap_as_loop
from pgmodels.results.approximation import Approximation, JointResponse
from pgmodels.results.gaussian import CorrectionWarning, warn_invalid
from pgmodels.results.nested import NestedApproximation
from pgmodels.results.result import GRID, REACH, GridDensity, interpolation
from pgmodels.runtime.jit import compiled, num_cores, one_thread_up_to
from pgmodels.runtime.messages import progress_bar, suppress_warnings, warn
from pgmodels.runtime.precision import as_array, double_precision

# A bound of log p(y, u = x) for a linear functional u of the latents, at each value x (math: section 5c).
# With u pinned at x, the other latents have a variational Gaussian of their own:
#     p(y, u = x) = Z q(u = x) E_q[prod_j p(y_j | z_j) / site_j | u = x].
# If the sites of q are kept for all rows, this Gaussian is q given u = x, and no system is solved. From there the sites
# of the rows that u affects most are updated.


class Settings(NamedTuple):
    """What the accuracy and the cost of nested marginals depend on."""

    # Rows whose sites are updated for each value, and updates. On 150 to 200 binary rows and counts (kernel variances 4
    # to 25), with two updates, the largest error of a variance against all rows updated to convergence is 6 % with no
    # rows, 4 % with 8, 2 % with 16 and 0.4 % with 32. Three latents with no counts (kernel variance 25) need four
    # updates: against quadrature the error is 10 % with two, 1.8 % with four and 2.3 % with six.
    num_updated: int = 32
    num_updates: int = 4
    # They end early after one that changes the bound by less than so many nats, or exp(t^2 / 4) times as many at t
    # deviations from the mean of q, where there is less mass. With 250 binary rows, counts and heavy tails this takes
    # 20 % less time, and no variance changes by 0.1 %.
    converged: float = 1e-3
    # After these, an update that changes the bound by more than so many nats is followed by another, up to a number in
    # all: with a noise that varies (kernel variances 9 and 25) the errors of variances against quadrature are 20 % and
    # 71 % without these, and 4 % and 12 % with them. With three latents without counts (25) the variance of a contrast
    # errs by 2.3 % without them, by 0.5 % at 0.1 nats and by 4.1 % at 0.3.
    settled: float = 0.1
    max_updates: int = 16
    # An update that lowers the bound is undone, and the next one is shorter by this factor.
    shortening: float = 0.25
    # The change of the sites at the values of u so many deviations from q's mean says which rows are updated.
    trial_deviations: float = 2.0
    # Rows whose terms are computed for each value: those with the largest correlation with u. The terms of other rows
    # with one predictor each are expanded to fourth order. With 4,000 rows and 100 inducing inputs (balanced and rare
    # labels, counts, heavy tails, kinks), the largest error against all rows is 0.4 % of a deviation and 0.1 deviations
    # of a quantile at 0.1 % (rare labels; 2.6 % and 0.45 without the expansion).
    num_near: int = 256
    # The expansion may diverge, as with kinks of 4,000 rows. It is used if its sums of third and fourth derivatives are
    # within these limits (with rare labels they are up to 0.25 and 0.12), and if on the whole grid it takes back at
    # most half of the fall of q's log density, or half a nat.
    most_third: float = 0.35
    most_fourth: float = 0.2
    # At most so many rows whose squared correlation with u is above this have terms that are computed given q at all
    # points of the grid, since they may be steep or have kinks. What remains is interpolated. With many nodes all near
    # rows are, since many rows of one label may be steep together.
    num_steep: int = 8
    steep_correlation: float = 0.8
    many_nodes: int = 65
    # Log densities this far below the largest, in nats, are cut off: they have no mass, and no spline follows them.
    depth: float = 100.0
    # Errors of interpolation count where the log density is at most this far below its largest, nats. Kinks of a
    # contrast of three latents have errors of 0.6 nats with 65 nodes at a depth of 12, where they change no moment by
    # 1 %.
    counted_depth: float = 8.0
    # The bound is computed at so many nodes of a grid, more of them where a spline of every other node errs by more
    # than so many nats at the others. Against 65 nodes, with 17 and an error of 0.42 means of three latents (counts
    # with a saturating rate, kernel variance 25) err by 0.003 deviations and variances by 0.2 %. With the other named
    # likelihoods that error is at most 0.11, means err by at most 0.005 deviations and variances by 0.5 %. A narrow
    # peak between wide tails (a noise that varies, kernel variances 9 and 25) needs more nodes.
    num_nodes: tuple[int, ...] = (17, 33, 65)
    largest_error: float = 0.5
    # A grid reaches from where the log density is this far below its largest value to where it is again, nats. A
    # sufficient fall on both sides will do: what lies beyond has a mass of some 1e-8, and still counts in E exp f. A
    # grid of which the density needs less than the shortest share is made shorter.
    fall: float = 24.0
    sufficient_fall: float = 18.0
    shortest: float = 0.7
    # It is found in at most so many passes, in each of which a side grows at most by a share of the length. The first
    # grid is wider than q's, which is too narrow, by a factor.
    num_passes: int = 6
    growth: float = 0.6
    first_width: float = 1.1


# The rows of the data, or some of them.
Rows: TypeAlias = Array | slice


class PredictorGaussian(NamedTuple):
    """q of the predictors z = mean + half e of the data, with e ~ N(0, I) and a residual that no site reduces.

    ``residual`` is the covariance of the residual, and ``covariance`` of the predictors without it. ``potential``
    and ``precision`` are the sites that are optimal at q's marginals, with the rows' weights. ``derivatives`` are the
    third and fourth derivatives of the rows' expected log densities in the mean of their only predictor. They are None
    if the terms of all rows are computed, as with several predictors.
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


class Functional(NamedTuple):
    """u = mean + half^T e + noise of variance ``residual`` under q, with its density at ``location + scale * GRID``."""

    mean: Array | np.ndarray
    half: Array | np.ndarray
    residual: Array | np.ndarray
    location: Array | np.ndarray
    scale: Array | np.ndarray

    def at(self, places: np.ndarray) -> "Functional":
        """Some of several functionals."""
        return Functional(*(part[places] for part in self))


class Tilt:
    """log r = w B - (h m - tr W (m m^T + C) / 2) of rows, in expectation under a Gaussian, and the update of sites."""

    def __init__(self, objective: Objective, q: PredictorGaussian, parameters: Parameters):
        self.objective, self.q, self.parameters = objective, q, parameters

    def values(self, m: Float[Array, "k P"], C: Float[Array, "k P P"], rows: Rows = slice(None)) -> Float[Array, " k"]:
        """Return the expectations of some rows, whose predictors have means m and covariances C."""
        B = self.objective.local_bound(m, self._spread(C, rows), self.q.y[rows], self.parameters)
        return self._less_sites(self._weighted(B, rows), m, C, rows)

    def derivatives(self) -> Float[Array, "n 2"]:
        """Return the third and fourth derivatives of the expectations under q in the means of single predictors."""

        def derivative(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
            return lambda m: jax.jvp(function, (m,), (jnp.ones_like(m),))[1]

        third = derivative(derivative(derivative(lambda m: self.values(m, self.q.covariance))))
        return jnp.stack([third(self.q.mean), derivative(third)(self.q.mean)], axis=1)

    def values_and_sites(
        self, m: Float[Array, "k P"], C: Float[Array, "k P P"], rows: Rows = slice(None)
    ) -> tuple[Float[Array, " k"], Float[Array, "k P"], Float[Array, "k P P"]]:
        """Return the expectations, and the optimal sites' potentials and precisions minus the sites of q."""
        B, h, W = self.objective.local_bound_and_sites(m, self._spread(C, rows), self.q.y[rows], self.parameters)
        B, h, W = (self._weighted(part, rows) for part in (B, h, W if W.ndim == 3 else jax.vmap(jnp.diag)(W)))
        return self._less_sites(B, m, C, rows), h - self.q.potential[rows], W - self.q.precision[rows]

    def _spread(self, C: Array, rows: Rows) -> Array:
        total = C + self.q.residual[rows]
        return total if self.objective.takes_covariances and total.shape[-1] > 1 else _diagonal(total)

    def _weighted(self, terms: Array, rows: Rows) -> Array:
        return weighted(None if self.q.row_weights is None else self.q.row_weights[rows], terms)

    def _less_sites(self, B: Array, m: Array, C: Array, rows: Rows) -> Array:
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

    def __init__(self, tilt: Tilt, functional: Functional, num_nodes: int, settings: Settings):
        q, self.functional, self.settings = tilt.q, functional, settings
        variance = jnp.sum(functional.half**2) + functional.residual
        self.deviation = jnp.where(variance > 0.0, jnp.sqrt(variance), 1.0)
        s = q.half @ functional.half / self.deviation
        variances = _diagonal(q.covariance + q.residual)
        correlation = jnp.max(jnp.where(variances > 0.0, s**2 / variances, 0.0), axis=1)
        # Padding is of no interest.
        correlation = correlation if q.row_weights is None else jnp.where(q.row_weights > 0.0, correlation, -1.0)
        num_near = len(correlation) if q.derivatives is None else min(settings.num_near, len(correlation))
        # In decreasing order.
        correlation, near = jax.lax.top_k(correlation, num_near)
        terms = jnp.zeros((len(s), 2)) if q.derivatives is None else q.derivatives * s ** jnp.array([3, 4])
        self.far = jnp.sum(terms.at[near].set(0.0), axis=0)
        self.tilt, self.s = Tilt(tilt.objective, jax.tree.map(lambda part: part[near], q), tilt.parameters), s[near]
        covariance = self.tilt.q.covariance
        # A share of each variance, so that rounding leaves no negative one where u determines a predictor.
        rounding = 1e-12 * _diagonal(covariance)[:, :, None] * jnp.eye(s.shape[1])
        self.C = covariance - self.s[:, :, None] * self.s[:, None, :] + rounding
        # Of several predictors the functional determines at most one, and the others change the term given q.
        num_steep = settings.num_steep if num_nodes < settings.many_nodes else num_near
        self.is_steep = (correlation[:num_steep] > settings.steep_correlation) & (s.shape[1] == 1)
        self.num_nodes = num_nodes

    def mean(self, t: Float[Array, ""]) -> Float[Array, "n P"]:
        """The means of the predictors (n, P)."""
        return self.tilt.q.mean + t * self.s

    def log_density(self) -> tuple[Float[Array, " grid"], Bool[Array, ""], Float[Array, ""]]:
        """The bound of log p(y, u = x) less the ELBO at the grid of the functional, (grid,), by a spline of nodes.

        Also whether the expansion of the far rows is within its limits there, and the largest error of a spline of
        every other node at the other nodes, where the density is not negligible.
        """
        functional, num_nodes, settings = self.functional, self.num_nodes, self.settings
        updated = _UpdatedRows(self)

        def interpolated(x: Array | np.ndarray) -> Float[Array, ""]:
            return updated.bound(jnp.asarray((x - functional.mean) / self.deviation))

        t = (functional.location + functional.scale * GRID - functional.mean) / self.deviation
        exact = jax.lax.map(lambda t: jnp.sum(self.steep_terms(t)), t, batch_size=16)
        log_q = -0.5 * t**2 - 0.5 * jnp.log(2.0 * jnp.pi) - jnp.log(self.deviation)
        third, fourth = self.far
        # The far rows' B(m + s t, v - s^2) about (m, v), where its first two derivatives are the sites'.
        far = third * (t**3 - 3.0 * t) / 6.0 + fourth * (t**4 - 6.0 * t**2 + 3.0) / 24.0
        converges = (abs(third) <= settings.most_third) & (abs(fourth) <= settings.most_fourth)
        converges &= jnp.all(far <= jnp.maximum(0.25 * t**2, 0.5))
        at_q = jnp.sum(self.tilt.values(self.tilt.q.mean, self.tilt.q.covariance))
        others = far + log_q - at_q
        nodes, spline = (as_array(part) for part in interpolation(num_nodes))
        step = (len(GRID) - 1) // (num_nodes - 1)
        values = jax.vmap(interpolated)(functional.location + functional.scale * nodes)
        # Far out values may be minus infinity, and so may the terms of steep rows.
        base, known = others[::step], exact[::step]
        least = jnp.nanmax(values + base + known) - settings.depth
        values = jnp.maximum(values, least - base - jnp.maximum(known, -settings.depth))
        log_density = spline @ values + exact + others
        coarse = as_array(interpolation(num_nodes // 2 + 1)[1][step :: 2 * step])
        errors = abs(values[1::2] - coarse @ values[::2])
        counted = log_density[step :: 2 * step] > jnp.max(log_density) - settings.counted_depth
        return log_density, converges, jnp.max(jnp.where(counted, errors, 0.0))

    def steep_terms(self, t: Float[Array, ""]) -> Float[Array, " k"]:
        """The terms given t and q of the rows with the largest correlation, 0 for those that are not steep."""
        steep = slice(0, len(self.is_steep))
        return jnp.where(self.is_steep, self.tilt.values(self.mean(t)[steep], self.C[steep], steep), 0.0)


class _UpdatedRows:
    """The rows whose sites are updated: z = mean + s t + K x with x ~ N(0, I) under q given t, K of all rows."""

    def __init__(self, pinned: _Pinned):
        self.pinned, self.settings, q, s = pinned, pinned.settings, pinned.tilt.q, pinned.s
        self.rows = self._chosen()
        chosen = q.half[self.rows].reshape(-1, q.half.shape[2])
        across = q.half @ chosen.T - s[:, :, None] * s[self.rows].reshape(-1)
        self.size = len(chosen)
        # A row that u determines has no conditional variance.
        jitter = 1e-10 * jnp.mean(_diagonal(q.covariance)) + jnp.finfo(s.dtype).tiny
        within = across[self.rows].reshape(self.size, self.size) + jitter * jnp.eye(self.size)
        root, inverse = _root_and_inverse(within)
        self.K, self.ours = across @ inverse.T, root.reshape(len(self.rows), -1, self.size)

    def _chosen(self) -> Array:
        """The rows with the largest change of their sites times their conditional variance."""
        pinned = self.pinned

        def change(t: Float[Array, ""]) -> Float[Array, "n P P"]:
            return pinned.tilt.values_and_sites(pinned.mean(t), pinned.C)[2]

        changes = jax.vmap(change)(self.settings.trial_deviations * jnp.array([-1.0, 1.0]))
        score = jnp.sum(abs(_diagonal(changes) * _diagonal(pinned.C)), axis=(0, 2))
        return jax.lax.top_k(jnp.nan_to_num(score, nan=0.0), min(self.settings.num_updated, len(score)))[1]

    def bound(self, t: Float[Array, ""]) -> Float[Array, ""]:
        """The bound given t, less the steep rows' terms given q and log q(u = x)."""
        pinned, now = self.pinned, self._updated(t)
        m = pinned.mean(t) + self.K @ now.mean
        C = pinned.C - jnp.einsum("npd,nqd->npq", self.K @ (jnp.eye(self.size) - now.covariance), self.K)
        values, steep = pinned.tilt.values(m, C), pinned.steep_terms(t)
        # Where one is infinite, so is the other.
        beyond = jnp.where(jnp.isfinite(steep), values[: len(steep)] - steep, 0.0)
        return jnp.sum(values.at[: len(steep)].set(beyond)) - now.divergence

    def _updated(self, t: Float[Array, ""]) -> _Conditional:
        """x given t after the updates."""
        (count, size, _), settings = self.ours.shape, self.settings
        converged = jnp.minimum(settings.settled, settings.converged * jnp.exp(jnp.minimum(0.25 * t**2, 20.0)))
        nothing = jnp.zeros((count, size)), jnp.zeros((count, size, size))

        def update(state: _Updates) -> _Updates:
            number, iterate, step, _ = state
            moved = (old + step * (new - old) for old, new in zip(iterate.sites, iterate.optimal, strict=True))
            after = self._evaluated(t, *moved)
            rises = after.value > iterate.value
            step = jnp.where(rises, jnp.minimum(2.0 * step, 1.0), settings.shortening * step)
            limit = jnp.where(number + 1 < settings.num_updates, converged, settings.settled)
            changes = ~(abs(after.value - iterate.value) <= limit)
            return _Updates(number + 1, jax.tree.map(partial(jnp.where, rises), after, iterate), step, changes)

        def goes_on(state: _Updates) -> Bool[Array, ""]:
            return state.changes & (state.number < settings.max_updates)

        start = _Updates(jnp.zeros((), int), self._evaluated(t, *nothing), jnp.ones(()), jnp.ones((), bool))
        return jax.lax.while_loop(goes_on, update, start).iterate.conditional

    def _evaluated(self, t: Float[Array, ""], h: Float[Array, "k P"], W: Float[Array, "k P P"]) -> _Iterate:
        now, base = self._conditioned(t, h, W), self.pinned.mean(t)[self.rows]
        C = jnp.einsum("kpd,kqd->kpq", self.ours @ now.covariance, self.ours)
        values, *optimal = self.pinned.tilt.values_and_sites(base + self.ours @ now.mean, C, self.rows)
        iterate = _Iterate(jnp.sum(values) - now.divergence, now, (h, W), (optimal[0], optimal[1]))
        # Without a barrier the averages over nodes are computed again for each entry of what uses them.
        return jax.lax.optimization_barrier(iterate)

    def _conditioned(self, t: Float[Array, ""], h: Float[Array, "k P"], W: Float[Array, "k P P"]) -> _Conditional:
        """x given t and sites that differ from those of q by these."""
        ours, base = self.ours, self.pinned.mean(t)[self.rows]
        root, inverse = _root_and_inverse(jnp.eye(self.size) + jnp.einsum("kpd,kpe->de", ours, W @ ours))
        covariance = inverse.T @ inverse
        mean = covariance @ jnp.einsum("kpd,kp->d", ours, h - jnp.einsum("kpq,kq->kp", W, base))
        logs = jnp.sum(jnp.log(_diagonal(root)))
        return _Conditional(mean, covariance, 0.5 * (jnp.trace(covariance) - self.size + mean @ mean) + logs)


@partial(compiled, static_argnames=("objective", "num_nodes", "settings"))
def log_densities(
    objective: Objective,
    q: PredictorGaussian,
    parameters: Parameters,
    functionals: Functional,
    num_nodes: int,
    settings: Settings,
) -> tuple[Float[Array, "k grid"], Bool[Array, " k"], Float[Array, " k"]]:
    """Return bounds of log p(y, u = x) less the ELBO at functionals' grids, convergence, errors: see ``_Pinned``."""
    tilt = Tilt(objective, q, parameters)
    return jax.lax.map(lambda functional: _Pinned(tilt, functional, num_nodes, settings).log_density(), functionals)


@vmap_as_loop
def _root_and_inverse(S: Float[Array, "d d"]) -> tuple[Float[Array, "d d"], Float[Array, "d d"]]:
    root = jnp.linalg.cholesky(S)
    return root, solve_triangular(root, jnp.eye(len(S), dtype=S.dtype), lower=True)


def _diagonal(blocks: Float[Array, "*batch P P"]) -> Float[Array, "*batch P"]:
    return jnp.diagonal(blocks, axis1=-2, axis2=-1)


def correct_by_nesting(
    approximation: Approximation, progress: bool | None, settings: Settings | None = None
) -> NestedApproximation:
    """Return the marginals of all latents at the data, relative to the variational Gaussian (math: section 5c)."""
    start = time.perf_counter()
    gaussian = variational_gaussian(approximation)
    # Only its correlations are used.
    with suppress_warnings(CorrectionWarning):
        response = correct_by_response(gaussian)
    if not response.is_positive:
        warn(
            "the correlations of nested marginals are by linear response, whose covariance is not positive definite "
            "here: joint draws are not valid. Use gibbs for joint draws.",
            CorrectionWarning,
        )
    marginals = Pinning(gaussian, settings).latents(gaussian.X, None, "the data", progress)
    deviation = np.sqrt(np.where(response.variance > 0.0, response.variance, 1.0))
    ratio = np.sqrt(marginals.variance) / deviation
    known = {field.name: getattr(response, field.name) for field in fields(JointResponse)}
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
    """Return the maximum of the expected log density with the same hyperparameters."""
    if is_joint(objective_of_result(approximation)):
        return approximation
    gaussian = vi(
        approximation.model, approximation.X, approximation.y, objective="expected", weights=approximation.weights,
        progress=False,
    )  # fmt: skip
    return replace(gaussian, fit=approximation.fit, **approximation.data._asdict())


def nested_marginals(result: NestedApproximation, X_new: np.ndarray, Phi: np.ndarray | None) -> GridDensity:
    """Nested variational marginals of a result's latents, or of predictors Φ f of them, at new inputs."""
    # 200 take about a second.
    is_long = len(X_new) > 200
    return Pinning(result.uncorrected).latents(X_new, Phi, "X_new", progress=None if is_long else False)


class Pinning:
    """The densities of linear functionals of the latents, relative to a variational Gaussian."""

    def __init__(self, gaussian: Approximation, settings: Settings | None = None):
        model, self.posterior, self.settings = gaussian.model, gaussian.posterior, settings or Settings()
        # Few quadrature nodes are enough for differences from the marginals of q.
        self.objective = expected_objective(model).reduced()
        self.parameters, self.elbo = model.parameters, gaussian.elbo
        self.q = _merged(_gaussian_of(problem_at(gaussian, self.objective), self.posterior), gaussian.data)

    def latents(self, X_new: np.ndarray, Phi: np.ndarray | None, where: str, progress: bool | None) -> GridDensity:
        """Return the densities of the latents at new inputs (m, L), or of predictors Φ f with Φ (m, P, L).

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
        """Return the densities of sums of latents at new inputs times coefficients (k, m, L)."""
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
        """Densities at ``places`` of functionals of mean (...), half (..., D) and residual variance (...), or warn."""
        shape, count, settings = mean.shape, mean.size, self.settings
        mean, half, residual = mean.ravel(), half.reshape(count, -1), residual.ravel()
        scale = settings.first_width * np.sqrt(np.sum(half**2, axis=1) + residual)
        location, log_density = mean.copy(), np.empty((count, len(GRID)))
        moving, is_cut_off, is_coarse = np.arange(count), np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
        with (
            one_thread_up_to(settings.num_updated * self.q.mean.shape[1]),
            progress_bar("nested marginals", count, progress) as bar,
        ):
            for number in range(settings.num_passes):
                functionals = Functional(mean, half, residual, location, scale)
                log_density[moving], is_coarse[moving] = self._log_densities(functionals.at(moving))
                centre, stretch, falls = _better_grids(log_density[moving], settings)
                moves = (falls < settings.sufficient_fall) | (stretch < settings.shortest)
                moves &= np.isfinite(falls) & (scale[moving] > 0.0)
                if number == settings.num_passes - 1:
                    is_cut_off[moving] = moves & (falls < settings.sufficient_fall)
                    break
                bar.advance(int(np.sum(~moves)))
                moving = moving[moves]
                location[moving] += scale[moving] * centre[moves]
                scale[moving] *= stretch[moves]
                if not len(moving):
                    break
        faults = {
            "reach beyond the grid that they are computed on: their variances are too small": is_cut_off,
            "change too fast for the grid that they are computed on: their moments are not accurate": is_coarse,
        }
        for fault, has_fault in faults.items():
            mask = has_fault.reshape(shape)[places]
            if mask.any():
                row = int(np.argwhere(mask)[0][0])
                warn(
                    f"{int(mask.sum())} of {mask.size} {what} (first in row {row}) {fault}. Use gibbs for these.",
                    CorrectionWarning,
                )
        return GridDensity(location.reshape(shape), scale.reshape(shape), log_density.reshape(*shape, -1))[places]

    def _log_densities(self, functionals: Functional) -> tuple[np.ndarray, np.ndarray]:
        """The log densities (k, grid) of functionals by as many nodes as each needs, and which of them need more."""
        log_density, coarse = np.empty((len(functionals.mean), len(GRID))), np.arange(len(functionals.mean))
        for num_nodes in self.settings.num_nodes:
            remaining = functionals.at(coarse)
            values, converges, errors = self._bounds(self.q, remaining, num_nodes)
            if not converges.all():
                # Terms of all rows are computed instead.
                every = self.q._replace(derivatives=None)
                values[~converges], _, errors[~converges] = self._bounds(every, remaining.at(~converges), num_nodes)
            log_density[coarse] = values
            coarse = coarse[errors > self.settings.largest_error]
            if not len(coarse):
                break
        # A functional without variance has the ELBO as its bound.
        log_density[functionals.scale == 0.0] = -0.5 * GRID**2 - 0.5 * np.log(2.0 * np.pi)
        # Errors of a quadrature with few nodes cancel to second order about q, of which the bound is the ELBO.
        return self.elbo + log_density, np.isin(np.arange(len(log_density)), coarse)

    def _bounds(
        self, q: PredictorGaussian, functionals: Functional, num_nodes: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        count = len(functionals.mean)

        # Double precision is set by thread.
        @double_precision
        def values(rows: np.ndarray) -> list[np.ndarray]:
            piece = jax.tree.map(as_array, functionals.at(rows))
            densities = log_densities(self.objective, q, self.parameters, piece, num_nodes, self.settings)
            return [np.asarray(part) for part in densities]

        first, *others = equal_chunks(np.arange(count), min(32, power_of_two(count)))
        with ThreadPoolExecutor(num_cores()) as pool:
            # The first chunk compiles for all.
            pieces = [values(first), *pool.map(values, others)]
        log_density, converges, errors = (np.concatenate(part)[:count] for part in zip(*pieces, strict=True))
        return log_density, converges, errors


def _better_grids(log_density: np.ndarray, settings: Settings) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centre and length, in present units, of grids where densities (k, grid) fall enough, and their present fall."""

    def beyond(log_density: np.ndarray) -> np.ndarray:
        """How far below the first point densities have fallen, by their slope there."""
        slope = (log_density[:, 1] - log_density[:, 0]) / (GRID[1] - GRID[0])
        missing = np.maximum(log_density[:, 0] - peak[:, 0] + settings.fall, 0.0)
        return np.minimum(missing / np.maximum(slope, 1e-3), settings.growth * span)

    peak = log_density.max(axis=1, keepdims=True)
    inside, last = log_density > peak - settings.fall, len(GRID) - 1
    first, final = inside.argmax(axis=1), last - inside[:, ::-1].argmax(axis=1)
    span = GRID[final] - GRID[first]
    low = np.where(first > 0, GRID[np.maximum(first - 1, 0)], GRID[0] - beyond(log_density))
    high = np.where(final < last, GRID[np.minimum(final + 1, last)], GRID[-1] + beyond(log_density[:, ::-1]))
    falls = peak[:, 0] - np.maximum(log_density[:, 0], log_density[:, -1])
    return 0.5 * (low + high), 0.5 * (high - low) / REACH, falls


@compiled
def _gaussian_of(problem: Problem, posterior: Posterior) -> PredictorGaussian:
    """q at the predictors of the data, with the sites that the problem's quadrature has at its marginals."""
    mean, spread = at_data(problem, posterior)
    sites = problem.sites(mean, spread)
    # Precisions as the engine clips them.
    sites = sites if problem.takes_signed else positive(sites, mean)
    total, precision = (part if part.ndim == 3 else jax.vmap(jnp.diag)(part) for part in (spread, sites.precision))
    half = jnp.moveaxis(halves(posterior, problem.mixing())[1], 0, -1)
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

    def merged(name: str, part: Array | np.ndarray) -> Array:
        values = np.asarray(part)
        if name not in ("potential", "precision", "derivatives", "row_weights"):
            return as_array(pad_rows(values[rows], size))
        summed = np.zeros((size, *values.shape[1:]))
        np.add.at(summed, places.ravel(), values[: len(table)])
        return as_array(summed)

    parts = {name: part for name, part in q._asdict().items() if part is not None} | {"row_weights": data.row_weights}
    return q._replace(**{name: merged(name, part) for name, part in parts.items()})


@compiled
def _latents_at(posterior: Posterior, X_new: Float[Array, "m d"]) -> tuple[Array, Array, Array]:
    """Mean (m, L), half (m, L, D) and residual variance (m, L) of the latents at new inputs, as in Functional."""
    mean, covariance = posterior.marginals_at(X_new)
    half = jnp.moveaxis(halves(posterior, None, factors_at(posterior.prior, X_new))[1], 0, -1)
    variance = jnp.diagonal(covariance, axis1=1, axis2=2)
    residual = variance - jnp.sum(half**2, axis=2)
    return mean, half, jnp.where(residual > 1e-9 * variance, residual, 0.0)


@compiled
def _residual_variances(
    posterior: Posterior, X_new: Float[Array, "m d"], coefficients: Float[Array, "k m L"]
) -> Float[Array, " k"]:
    """The variance of sums of latents times coefficients (k, m, L) given the coordinates of the latents, (k,)."""
    prior = posterior.prior
    total = jnp.zeros(len(coefficients))
    for columns, group in zip(prior.slices(), prior.groups, strict=True):
        A = coefficients[:, :, columns]
        total += jnp.einsum("kml,mn,knl->k", A, group.residual_covariance(X_new), A)
    return jnp.maximum(total, 0.0)
