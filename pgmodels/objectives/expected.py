"""The expected log density and the mean-field bound."""

import math
from collections.abc import Callable, Hashable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.numerics.elementary import safe_sqrt
from pgmodels.numerics.quadrature import (
    chunk_length,
    gauss_hermite,
    gauss_legendre,
    normal_nodes,
    sobol_normals,
    sobol_uniforms,
    trapezoid_normal,
)
from pgmodels.objectives.base import FormulaObjective, Objective, bound_and_sites_of, sites_from
from pgmodels.runtime.precision import as_array

if TYPE_CHECKING:
    from pgmodels.augmentation.predictors import Predictors


# Trapezoid nodes in one dimension: more accurate than Gauss-Hermite for sigmoids under wide marginals.
_TRAPEZOID = 129
# From _MANY_ROWS on half as many: errors of log sigmoids are below 1e-9 up to deviations of 4, and those of Student-t
# densities up to 2.5 times their scale, and so many rows leave narrow marginals.
_HALF_TRAPEZOID, _MANY_ROWS = 65, 20_000
# Rows of one predictor at a time: with 200,000 rows terms and sites take 1.4 s of two cores all at once, .4 s in chunks
# of 400 and .2 s in chunks of 2,000.
_CHUNK = 2_000
# Gauss-Hermite nodes per dimension in two or three dimensions; Sobol points in more.
_HERMITE = {2: 24, 3: 12}
_SOBOL = 2048
# Nodes of a coarse rule: Gauss-Hermite in one dimension, Sobol points in more.
_COARSE_HERMITE, _COARSE_SOBOL = 32, 64
# With kinks: Gauss-Legendre nodes on each piece between them of (-9, 9) deviations; the mass beyond is 1e-19.
_LEGENDRE, _REACH = 48, 9.0
# Grid nodes with less weight than this are dropped: the corners, half of the grid.
_MIN_WEIGHT = 1e-9
# Gauss-Hermite nodes per dimension of a reduced rule. With 20 rows of three logistic-softmax classes, variances of
# nested marginals err by 0.8 % on average with 12 nodes per dimension, 1.1 % with 5 and 1.7 % with 64 Sobol points.
_REDUCED = {2: 10, 3: 6}
# Relative jitter of the predictor covariances before their Cholesky: two latents of a datum may be identical.
_JITTER = 1e-13
# Relative rounding of log densities, allowed in the check of concavity.
_ROUNDING = 1e-12
# If nodes with more than this weight have no finite log density, the sum over the others is meaningless.
_MAX_UNDEFINED = 0.5

# Randomised quadrature for minibatches: nodes for one predictor, on (-8, 8) deviations, and for several.
_LINE, _LINE_REACH = 33, 8.0
_POINTS = 16
# Uniforms are clipped to this distance from 0 and 1, which map to infinity.
_EDGE = 1e-12


class Kink(NamedTuple):
    """A point, scale * z + shift = 0, at which the log density has no derivative in its only predictor z, or jumps."""

    scale: Expression
    shift: Expression


class Quadrature(FormulaObjective):
    """B = E log p(y | f) under N(m, v), v (n, P), or under N(m, V), V (n, P, P), of a datum's predictors.

    One predictor: 129 nodes of the trapezoid rule, 65 from 20,000 rows on, or 48 Gauss-Legendre nodes on each piece
    between ``kinks``. Two or three: a grid of Gauss-Hermite nodes; more: 2,048 Sobol points. ``coarse``: 32
    Gauss-Hermite nodes for one predictor without kinks and 64 Sobol points for more. Nodes are relative to the
    marginals, so that sites and Hessians are the exact derivatives of the quadrature sum (math: section 6; Opper and
    Archambeau 2009).
    """

    name = "expected"
    title = "the expected log density"
    method = "The variational Gaussian"
    signed = True
    is_exact = True
    takes_covariances = True
    num_nodes = _TRAPEZOID

    def __init__(
        self,
        formula: Expression,
        size: int,
        predictors: "Predictors | None" = None,
        kinks: tuple[Kink, ...] = (),
        coarse: bool = False,
    ):
        self.formula, self.size, self.predictors, self.kinks, self.coarse = formula, size, predictors, kinks, coarse

    def stochastic(self) -> Objective:
        return ShiftedQuadrature.of(self)

    def reduced(self) -> Objective:
        return ReducedQuadrature(self.formula, self.size, self.predictors, self.kinks, coarse=True)

    @property
    def _identity(self) -> Hashable:
        return type(self), self.formula.key, self.size, self.coarse

    def __hash__(self) -> int:
        return hash(self._identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quadrature) and self._identity == other._identity

    def local_bound(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """``v`` may be covariances (n, P, P)."""
        return self._by_rows(partial(self._bound, parameters=parameters), m, v, y)

    def _bound(self, rule: tuple[Any, Any], m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        if self.size == 1 and self.kinks:
            return self._between_kinks(m, v, y, parameters)
        half = safe_sqrt(v) if v.ndim == 2 else batched_cholesky(v)
        return self._average(*rule, m, half, y, parameters)

    def _by_rows(self, term: Callable[..., Any], m: Any, v: Any, y: Any) -> Any:
        """A term (rule, m, v, y) of each datum: with one predictor in chunks of rows whose nodes fit into the cache."""
        rule, n = self._rule(len(m)), len(m)
        if self.size > 1 or n <= _CHUNK:
            return term(rule, m, v, y)
        padding = [(0, -n % _CHUNK)]
        rows = (jnp.pad(part, padding + [(0, 0)] * (part.ndim - 1), mode="edge") for part in (m, v, as_array(y)))
        chunks = tuple(part.reshape(-1, _CHUNK, *part.shape[1:]) for part in rows)
        mapped = jax.lax.map(jax.checkpoint(lambda chunk: term(rule, *chunk)), chunks)
        return jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:])[:n], mapped)

    def _rule(self, count: int) -> tuple[Any, Any]:
        """Nodes (nodes, 1 or count, P) for ``count`` data, and weights (nodes,) or (nodes, count)."""
        nodes, weights = (as_array(part) for part in _rule(self.size, self.coarse, count >= _MANY_ROWS))
        return nodes[:, None, :], weights

    def local_sites(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any]:
        """If ``v`` are covariances, precisions W = -2 ∂B/∂V are (n, P, P)."""
        return self.local_bound_and_sites(m, v, y, parameters)[1:]

    def local_bound_and_sites(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """The log density is evaluated once at each node for both."""

        def term(rule: tuple[Any, Any], m: Any, v: Any, y: Any) -> tuple[Any, Any, Any]:
            if self._is_smooth_line:
                return self._bound_and_sites(rule, m, v, y, parameters)
            return bound_and_sites_of(lambda m, v: self._bound(rule, m, v, y, parameters), m, v)

        return self._by_rows(term, m, v, y)

    def second_derivatives(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any]:
        if not self._is_smooth_line:
            return super().second_derivatives(m, v, y, parameters)
        return self._by_rows(partial(self._second_derivatives, parameters=parameters), m, v, y)

    @property
    def _is_smooth_line(self) -> bool:
        """Whether there is one predictor and no kink: at z = m + half x derivatives in v are those in z times dz/dv."""
        return self.size == 1 and not self.kinks

    def _bound_and_sites(
        self, rule: tuple[Any, Any], m: Any, v: Any, y: Any, parameters: Mapping[str, Any]
    ) -> tuple[Any, Any, Any]:
        half, rate = _deviation_and_rate(v.reshape(m.shape))

        def sums(nodes: Any, weights: Any) -> Any:
            values, slopes, finite = finite_slopes(self, m + half * nodes, y, parameters)
            terms = values, ~finite, slopes[..., 0], slopes[..., 0] * nodes[..., 0]
            return jnp.stack([_weighted_sum(weights, term) for term in terms])

        value, undefined, slope, moved = self._over_nodes(sums, *rule, m.size)
        h, w = sites_from(m, slope[:, None], rate * moved[:, None])
        return mask_undefined((value, undefined)), h, w.reshape(v.shape)

    def _second_derivatives(
        self, rule: tuple[Any, Any], m: Any, v: Any, y: Any, parameters: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        half, rate = _deviation_and_rate(v.reshape(m.shape))

        def sums(nodes: Any, weights: Any) -> Any:
            z, x = m + half * nodes, nodes[..., 0]
            slopes, bends = jax.jvp(lambda z: finite_slopes(self, z, y, parameters)[1], (z,), (jnp.ones_like(z),))
            terms = slopes[..., 0] * x, bends[..., 0], bends[..., 0] * x, bends[..., 0] * x**2
            return jnp.stack([_weighted_sum(weights, term) for term in terms])

        moved, by_means, mixed, curved = self._over_nodes(sums, *rule, m.size)
        rate = rate[:, 0]
        mixed, curved = rate * mixed, rate**2 * (curved - 2.0 * rate * moved)
        H = jnp.stack([jnp.stack([by_means, mixed], axis=-1), jnp.stack([mixed, curved], axis=-1)], axis=-2)
        return (rate * moved)[:, None], H

    def is_concave(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """Whether each datum's log density is concave along chords between nodes of the coarse quadrature, (n,).

        At predictors with means and variances (n, P). Whole chords detect kinks, short ones the local curvature.
        """

        def log_density(z: Any) -> Any:
            return self.predictor_log_density(y, z, parameters)

        begin = m + jnp.sqrt(v) * normal_nodes(self.size, num_coarse_nodes(self.size))[0][:, None, :]
        concave = jnp.ones(len(m), dtype=bool)
        for share in (1.0, 0.25):
            end = begin + share * (jnp.roll(begin, 1, axis=0) - begin)
            ends = log_density(begin), log_density(end)
            bend = log_density(0.5 * (begin + end)) - 0.5 * sum(ends)
            rounding = _ROUNDING * (1.0 + sum(map(jnp.abs, ends)))
            concave &= jnp.all((bend >= -rounding) | ~jnp.isfinite(bend), axis=0)
        return concave

    def _average(self, nodes: Any, weights: Any, m: Any, half: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """The weighted sum of log p(y | m + half x) over nodes x (nodes, 1 or n, P), in chunks that fit into memory.

        ``half`` has deviations (n, P) or roots of covariances (n, P, P). Minus infinity if the log density is not
        finite at most of the weight.
        """
        value = partial(self._at_nodes, m=m, half=half, y=y, parameters=parameters)
        return mask_undefined(self._over_nodes(value, nodes, weights, half.size))

    def _over_nodes(self, value: Callable[[Any, Any], Any], nodes: Any, weights: Any, entries: int) -> Any:
        """The sum of a function of nodes and weights, arrays additive over nodes, in chunks of so many entries each."""
        chunk = min(chunk_length(entries), len(nodes))
        if chunk == len(nodes):
            return value(nodes, weights)
        missing = -len(nodes) % chunk
        # Pad the last chunk with nodes of weight zero.
        nodes = jnp.concatenate([nodes, jnp.broadcast_to(nodes[:1], (missing, *nodes.shape[1:]))])
        weights = jnp.concatenate([weights, jnp.zeros((missing, *weights.shape[1:]))])
        chunks = nodes.reshape(-1, chunk, *nodes.shape[1:]), weights.reshape(-1, chunk, *weights.shape[1:])
        nothing = jax.tree.map(
            lambda part: jnp.zeros(part.shape, part.dtype), jax.eval_shape(value, chunks[0][0], chunks[1][0])
        )
        add = lambda total, chunk: (jax.tree.map(jnp.add, total, jax.checkpoint(value)(*chunk)), None)  # noqa: E731
        return jax.lax.scan(add, nothing, chunks)[0]

    def _at_nodes(self, nodes: Any, weights: Any, *, m: Any, half: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """The sum over nodes with a finite log density, and the weight of the others, (2, n)."""
        nodes = jnp.broadcast_to(nodes, (len(nodes), *m.shape))
        z = m + (half * nodes if half.ndim == 2 else jnp.einsum("ipq,siq->sip", half, nodes))
        values, finite = _finite_log_densities(self, z, m, y, parameters)
        weights = weights if weights.ndim == 2 else weights[:, None]
        undefined = jnp.where(finite, 0.0, jnp.broadcast_to(weights, finite.shape))
        return jnp.stack([jnp.sum(weights * values, axis=0), jnp.sum(undefined, axis=0)])

    def _between_kinks(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """One predictor: integrate piecewise between the kinks, at their positions relative to the marginals."""
        v = v.reshape(m.shape)
        deviation = safe_sqrt(v)[:, 0]
        unit = jnp.where(deviation > 0.0, deviation, 1.0)
        env = Environment(y, jnp.zeros_like(m), parameters)
        positions = []
        for kink in self.kinks:
            scale, shift = (jnp.broadcast_to(term.evaluate(env), m.shape)[:, 0] for term in kink)
            # With scale 0 the log density of this datum has no kink.
            position = -shift / jnp.where(scale == 0, 1.0, scale)
            positions.append(jnp.where(scale == 0, _REACH, (position - m[:, 0]) / unit))
        inner = jnp.sort(jnp.clip(jnp.stack(positions), -_REACH, _REACH), axis=0)
        ends = jnp.concatenate([jnp.full((1, len(m)), -_REACH), inner, jnp.full((1, len(m)), _REACH)])
        x, w = (as_array(part)[:, None, None] for part in gauss_legendre(_LEGENDRE))
        centre, reach = 0.5 * (ends[1:] + ends[:-1]), 0.5 * (ends[1:] - ends[:-1])
        nodes = (centre + reach * x).reshape(-1, len(m))
        weights = (reach * w).reshape(-1, len(m)) * jnp.exp(-0.5 * nodes**2) / np.sqrt(2.0 * np.pi)
        return self._average(nodes[..., None], weights, m, deviation[:, None], y, parameters)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _finite_log_densities(
    objective: Quadrature, z: Any, m: Any, y: Any, parameters: Mapping[str, Any]
) -> tuple[Any, Any]:
    """log p(y | z) at nodes z (nodes, n, P), 0 where it is not finite, and whether it is finite, (nodes, n).

    Far out a formula may underflow: such nodes have negligible weight and are omitted, and so are their derivatives.
    The log density at the means ``m`` (n, P) is finite. Data ``y`` are constants: there is no derivative in them.
    """
    values = objective.predictor_log_density(y, z, parameters)
    finite = jnp.isfinite(values)
    return jnp.where(finite, values, 0.0), finite


@partial(_finite_log_densities.defjvp, symbolic_zeros=True)
def _derivatives_of_finite(
    objective: Quadrature, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    z, m, y, parameters = primals

    def log_density(z: Any, parameters: Mapping[str, Any]) -> Any:
        return objective.predictor_log_density(y, z, parameters)

    values, slopes, finite = finite_slopes(objective, z, y, parameters)
    moved = jnp.zeros_like(values)
    if not _is_zero(tangents[0]):
        moved += jnp.sum(slopes * tangents[0], axis=-1)
    if not all(map(_is_zero, tangents[3].values())):
        at = jnp.where(finite[..., None], z, m)
        changes = {name: jnp.zeros_like(parameters[name]) if _is_zero(t) else t for name, t in tangents[3].items()}
        by_parameters = jax.jvp(lambda parameters: log_density(at, parameters), (dict(parameters),), (changes,))[1]
        moved += jnp.where(finite, by_parameters, 0.0)
    return (values, finite), (moved, np.zeros(finite.shape, jax.dtypes.float0))


def finite_slopes(objective: Quadrature, z: Any, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """log p(y | z) and its derivatives in z, (nodes, n, P), 0 where it is not finite, and whether it is finite.

    The gradient is masked, where the derivative of a masked value would be zero times infinity.
    """
    values, pull_back = jax.vjp(lambda z: objective.predictor_log_density(y, z, parameters), z)
    finite = jnp.isfinite(values)
    slopes = jnp.where(finite[..., None], pull_back(jnp.ones_like(values))[0], 0.0)
    return jnp.where(finite, values, 0.0), slopes, finite


def _deviation_and_rate(v: Any) -> tuple[Any, Any]:
    """Standard deviations, and their derivatives in v, 0 where v is."""
    half = safe_sqrt(v)
    return half, jnp.where(v > 0.0, 0.5 / jnp.where(v > 0.0, half, 1.0), 0.0)


def _weighted_sum(weights: Any, values: Any) -> Any:
    """Sums over nodes of values (nodes, n) with weights (nodes,) or (nodes, n)."""
    return jnp.sum((weights if weights.ndim == 2 else weights[:, None]) * values, axis=0)


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero)


class ReducedQuadrature(Quadrature):
    """The coarse rule, but for two or three predictors a grid of ten or six Gauss-Hermite nodes per dimension.

    For differences of B between marginals that are close, in which its errors cancel, and for narrow marginals.
    """

    num_nodes = _COARSE_HERMITE

    def _rule(self, count: int) -> tuple[Any, Any]:
        if self.size not in _REDUCED:
            return super()._rule(count)
        nodes, weights = (as_array(part) for part in _grid(self.size, _REDUCED[self.size]))
        return nodes[:, None, :], weights


class ShiftedQuadrature(Quadrature):
    """``Quadrature`` that uses few nodes for minibatches, shifted by a distance that differs between data.

    One predictor: 33 nodes of the trapezoid rule; more: 16 Sobol points, shifted modulo 1 (Cranley and Patterson 1976).
    Under uniform shifts both are unbiased. The shifts are a low-discrepancy sequence, so that errors average out over
    data and steps faster than those of random shifts. Kinks are kept.
    """

    @classmethod
    def of(cls, exact: Quadrature) -> "ShiftedQuadrature":
        """Replace ``exact``; outside of minibatches it uses the coarse rule."""
        return cls(exact.formula, exact.size, exact.predictors, exact.kinks, coarse=True)

    def for_batch(self, num_previous_rows: Any) -> Objective:
        return _Shifted(self, num_previous_rows)


class _Shifted(Quadrature):
    """The rule of a minibatch after ``num_previous_rows`` rows, within compiled code."""

    def __init__(self, quadrature: Quadrature, num_previous_rows: Any):
        super().__init__(quadrature.formula, quadrature.size, quadrature.predictors, quadrature.kinks)
        self.num_previous_rows = num_previous_rows

    def _rule(self, count: int) -> tuple[Any, Any]:
        shifts = self.shifts(count)
        if self.size == 1:
            spacing = 2.0 * _LINE_REACH / _LINE
            nodes = spacing * (jnp.arange(_LINE)[:, None] + shifts[:, 0]) - _LINE_REACH
            return nodes[:, :, None], spacing * jnp.exp(-0.5 * nodes**2) / np.sqrt(2.0 * np.pi)
        uniforms = (sobol_uniforms(self.size, _POINTS)[:, None, :] + shifts) % 1.0
        return ndtri(jnp.clip(uniforms, _EDGE, 1.0 - _EDGE)), jnp.full(_POINTS, 1.0 / _POINTS)

    def _by_rows(self, term: Callable[..., Any], m: Any, v: Any, y: Any) -> Any:
        return term(self._rule(len(m)), m, v, y)

    def shifts(self, count: int) -> Any:
        """The shifts of the next ``count`` data, (count, size)."""
        rows = self.num_previous_rows + jnp.arange(count)
        return (rows[:, None] * irrationals(self.size)) % 1.0


def irrationals(size: int) -> np.ndarray:
    """Numbers (size,) whose multiples modulo 1 fill the unit cube evenly: powers of the root of x^(size + 1) = x + 1.

    Source: Roberts 2018, the generalised golden ratio.
    """
    root = 2.0
    for _ in range(60):
        root = (1.0 + root) ** (1.0 / (size + 1))
    return root ** -np.arange(1.0, size + 1)


def mask_undefined(sums: Any) -> Any:
    """The sums of ``Quadrature._at_nodes``; minus infinity where too much weight is undefined."""
    total, undefined = sums
    return jnp.where(undefined > _MAX_UNDEFINED, -jnp.inf, total)


def num_coarse_nodes(size: int) -> int:
    """The number of nodes of a coarse rule for ``size`` predictors."""
    return _COARSE_HERMITE if size == 1 else _COARSE_SOBOL


def _rule(size: int, coarse: bool, many_rows: bool) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (nodes, size) and weights (nodes,) of a standard normal."""
    if coarse:
        return normal_nodes(size, num_coarse_nodes(size))
    if size == 1:
        return trapezoid_normal(1, _HALF_TRAPEZOID if many_rows else _TRAPEZOID)
    return _grid(size, _HERMITE[size]) if size in _HERMITE else normal_nodes(size, _SOBOL)


def _grid(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The grid of ``count`` Gauss-Hermite nodes per dimension, without those of little weight."""
    line, weights = gauss_hermite(count)
    grid = np.stack(np.meshgrid(*[line] * size, indexing="ij"), axis=-1).reshape(-1, size)
    each = np.stack(np.meshgrid(*[weights / weights.sum()] * size, indexing="ij"), axis=-1).reshape(-1, size)
    product = np.prod(each, axis=-1)
    kept = product > _MIN_WEIGHT
    return grid[kept], product[kept] / product[kept].sum()


def batched_cholesky(V: Any) -> Any:
    """The lower Cholesky root of small matrices (n, P, P), computed elementwise: LAPACK is slow on batches."""
    size = V.shape[-1]
    # With zero covariance the root and its derivative are 0, and so are the sites.
    varies = (jnp.trace(V, axis1=1, axis2=2) > 0.0)[:, None, None]
    V = jnp.where(varies, V, jnp.eye(size))
    jitter = _JITTER * jnp.trace(V, axis1=1, axis2=2)
    rows: list[list[Any]] = []
    for p in range(size):
        row: list[Any] = []
        for q in range(p):
            inner = sum((row[k] * rows[q][k] for k in range(q)), jnp.zeros_like(V[:, 0, 0]))
            row.append((V[:, p, q] - inner) / rows[q][q])
        pivot = V[:, p, p] + jitter - sum((entry**2 for entry in row), jnp.zeros_like(jitter))
        rows.append([*row, jnp.sqrt(jnp.maximum(pivot, jitter))])
    zeros = jnp.zeros_like(V[:, 0, 0])
    padded = [jnp.stack(row + [zeros] * (size - len(row)), axis=-1) for row in rows]
    return jnp.where(varies, jnp.stack(padded, axis=-2), 0.0)


# Gauss-Hermite nodes per dimension for two predictors, and points for more. With logistic-softmax and softmax terms of
# 3 to 10 classes, deviations of .3 to 4, terms of 256 points err by .0005 to .016 nats and their mean by .0001 to .005;
# with 64 points four times as much.
_LINE_NODES, _MEAN_FIELD_POINTS = 16, 256


class MeanField(Quadrature):
    """B = E log p(y | f) under independent predictors N(m, v) of a datum, several per datum.

    Precisions have any sign. Two predictors: a grid of 16 Gauss-Hermite nodes per dimension; more: 256 Sobol points
    (four times the predictors beyond 64), antithetic and standardised: polynomials up to degree three are exact.
    """

    name = "mean_field"
    title = "the expected log density of independent latents"
    method = "The mean-field variational Gaussian"
    takes_covariances = False
    num_nodes = _MEAN_FIELD_POINTS

    def stochastic(self) -> Objective:
        """The minibatch rule of ``Quadrature``, whose predictors are independent there too."""
        return Quadrature(self.formula, self.size, self.predictors).stochastic()

    def local_bound_and_sites(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        return self.local_bound_sites_and_coupling(m, v, y, parameters)[:3]

    def local_bound_sites_and_coupling(
        self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]
    ) -> tuple[Any, Any, Any, Any]:
        """Second derivatives by Stein's identity, E x_q ∂_p log p(y | m + half x) / half_q."""
        values, slopes, moments = self._slopes(m, v, y, parameters)
        half = safe_sqrt(v)[:, None, :]
        # As the derivative of a root, it is 0 where there is no variance.
        bends = jnp.where(half > 0.0, moments / jnp.where(half > 0.0, half, 1.0), 0.0)
        w = -jnp.diagonal(bends, axis1=1, axis2=2)
        coupling = -0.5 * (bends + jnp.swapaxes(bends, 1, 2)) * (1.0 - jnp.eye(self.size))
        return values, slopes + w * m, w, coupling

    def _slopes(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """B (n,), its derivatives in the means, (n, P), and E x_q ∂_p log p(y | m + half x), (n, P, P).

        The derivative of the sum over nodes in the deviation of p is the entry (p, p).
        """
        half = safe_sqrt(v)

        def summed(nodes: Any, weights: Any) -> tuple[Any, Any, Any]:
            values, slopes, finite = finite_slopes(self, m + half * nodes, y, parameters)
            slopes, undefined = weights[:, None, None] * slopes, jnp.where(finite, 0.0, weights[:, None])
            bounds = jnp.stack([weights @ values, jnp.sum(undefined, axis=0)])
            return bounds, jnp.sum(slopes, axis=0), jnp.einsum("sip,sq->ipq", slopes, nodes[:, 0, :])

        bounds, slopes, moments = self._over_nodes(summed, *self._rule(len(m)), half.size)
        return mask_undefined(bounds), slopes, moments

    def _rule(self, count: int) -> tuple[Any, Any]:
        nodes, weights = (as_array(part) for part in _nodes(self.size))
        return nodes[:, None, :], weights


@cache
def _nodes(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (nodes, size) and weights (nodes,) of a standard normal."""
    if size == 2:
        line, weights = gauss_hermite(_LINE_NODES)
        grid = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
        return grid, np.outer(weights, weights).ravel() / weights.sum() ** 2
    # The points and their opposites must span all dimensions.
    count = max(_MEAN_FIELD_POINTS, 4 * 2 ** math.ceil(math.log2(size)))
    half = sobol_normals(size, count // 2)
    nodes = np.concatenate([half, -half])
    # Sobol points are correlated, most of all in many dimensions.
    root = np.linalg.cholesky(nodes.T @ nodes / count)
    return np.linalg.solve(root, nodes.T).T, np.full(count, 1.0 / count)
