"""Inducing inputs: their choice, FIC, rows in chunks, and the form."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from pgmodels.data.arrays import check_whole_number, distinct_rows
from pgmodels.parameters.parameter import bare_arrays
from pgmodels.priors import linalg
from pgmodels.priors.base import Covariance, GroupPosterior, LatentPrior, RandomKey, Sites, pad_rows
from pgmodels.priors.dense import (
    FactoredPosterior,
    FactoredPrior,
    InducingPointPrior,
    InducingPoints,
    LowRankPrior,
    LowRankState,
    centred,
    low_rank_at,
    own_variances,
    root_at,
    whitened_root,
    with_residual,
)
from pgmodels.priors.representation import EAGER, Binding, Representation, Scalar, as_arrays
from pgmodels.priors.rows import check_new_inputs
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.messages import shorten
from pgmodels.runtime.precision import as_array

# The accepted loss of the bound by the residual variance, in nats.
ENOUGH = 0.05


def centres(
    kernel: Covariance, X: np.ndarray, count: int, weights: np.ndarray | None = None, seed: int = 0
) -> np.ndarray:
    """Return centres of k-means (k-means++ initialisation) on a subset of the rows.

    Columns are scaled so that the kernel changes equally fast along each; columns it does not read are ignored. If the
    rows nearest to the centres leave less residual variance than the centres, rows are chosen greedily instead. This
    happens for group levels or indices, whose averages occur in no row.
    """
    del weights
    from sklearn.cluster import KMeans

    # The largest number of rows for k-means, in total and for each centre.
    X = X[np.sort(np.random.default_rng(seed).permutation(len(X))[: max(20_000, 64 * count)])]
    scaled = X * _rates(kernel, X)
    # The number of centres is at most the number of rows that differ by more than the rounding error of a squared
    # distance: the resolution is 1e-6 standard deviations of the widest column.
    resolution = 1e-6 * np.max(scaled.std(axis=0)) or 1.0
    count = min(count, len(distinct_rows(np.round((scaled - scaled.mean(axis=0)) / resolution))[0]))
    # Seeds of scikit-learn have 32 bits.
    clusters = KMeans(count, n_init=1, random_state=seed % 2**32).fit(scaled)
    members = np.bincount(clusters.labels_, minlength=count)[:, None]
    sums = np.zeros((count, X.shape[1]))
    np.add.at(sums, clusters.labels_, X - X[0])
    centroids = X[0] + (sums / np.maximum(members, 1))[members[:, 0] > 0]
    nearest = X[np.argmin(clusters.transform(scaled), axis=0)]
    compared = X[np.linspace(0, len(X) - 1, min(1000, len(X))).astype(int)]
    # The largest residual variance of rows, relative to the centres', at which rows are preferred. For stationary
    # kernels in 1 to 5 columns, the ratio was 1.003 to 4.6; for columns with levels, it was 0 to 0.88.
    share = 0.95 * (1.0 - len(nearest) / len(X))
    # Centres with a NaN (kernels undefined between levels) are rejected.
    if not share * _residual_variance(kernel, compared, centroids) <= _residual_variance(kernel, compared, nearest):
        return greedy(kernel, X, count, seed=seed)
    return centroids[distinct_rows(centroids)[0]]


def _residual_variance(kernel: Covariance, X: np.ndarray, Z: np.ndarray, jitter: float = 1e-6) -> float:
    """Return the total residual variance at rows given inducing inputs, plus rounding; NaN if K(Z, Z) has no root."""
    K, across, variances = map(np.asarray, _covariances(kernel, as_array(Z), as_array(X)))
    try:
        root = np.linalg.cholesky(K + jitter * np.diag(np.diagonal(K)))
    except np.linalg.LinAlgError:
        return np.nan
    return float((1.0 + 10.0 * jitter) * np.sum(variances) - np.sum(np.linalg.solve(root, across) ** 2))


def _rates(kernel: Covariance, X: np.ndarray) -> np.ndarray:
    """Return the kernel's relative rate of change along each column, (d,), from |φ(x) - φ(x')|² at 100 rows."""
    rows = X[np.linspace(0, len(X) - 1, min(100, len(X))).astype(int)]
    variances, squared = np.asarray(kernel.diagonal(as_array(rows))), np.zeros(X.shape[1])
    for column, deviation in enumerate(X.std(axis=0)):
        if deviation > 0.0:
            further = []
            for step in (0.01, 0.02):
                moved = rows + step * deviation * (np.arange(X.shape[1]) == column)
                across = np.asarray(_between(kernel, as_array(rows), as_array(moved)))
                further.append(np.mean(variances + np.asarray(kernel.diagonal(as_array(moved))) - 2.0 * across))
            squared[column] = max(further[1] - further[0], 0.0) / deviation**2
    rates = np.sqrt(squared / squared.max()) if squared.max() > 0.0 else np.ones(X.shape[1])
    # With one lengthscale, rates differ only by discretisation errors, less than 2 %.
    return np.ones(X.shape[1]) if rates.min() > 0.98 else rates


def uniform(
    kernel: Covariance, X: np.ndarray, count: int, weights: np.ndarray | None = None, seed: int = 0
) -> np.ndarray:
    """Return distinct rows drawn uniformly, independent of the kernel."""
    del kernel, weights
    return X[np.sort(np.random.default_rng(seed).permutation(distinct_rows(X)[0])[:count])]


def greedy(
    kernel: Covariance,
    X: np.ndarray,
    count: int,
    weights: np.ndarray | None = None,
    seed: int = 0,
    enough: float = 0.0,
    held: int = linalg.HELD,
) -> np.ndarray:
    """Select rows greedily: each next row maximises ``weights`` times the residual variance given the previous rows.

    A pivoted Cholesky factorisation computes only the selected columns, in O(n M^2) time. It stops early if no
    variance remains, or if half of its weighted sum is at most ``enough``; at least one row is selected. If the factor
    would have more than ``held`` entries, a random sample of the rows is used.
    Source: Burt, Rasmussen and van der Wilk 2020; with weights, Passerello 2021.
    """
    if len(X) * count > held:
        rows = np.sort(np.random.default_rng(seed).permutation(len(X))[: max(count, held // count)])
        enough *= len(rows) / len(X)
        X, weights = X[rows], None if weights is None else weights[rows]
    inputs = as_array(X)
    residual = np.asarray(kernel.diagonal(inputs), dtype=np.float64).copy()
    weights = np.ones(len(X)) if weights is None or not np.any(weights > 0) else weights
    # Smaller residual variances are rounding errors.
    least, A, chosen = 1e-12 * residual.max(), np.empty((count, len(X))), []
    for j in range(count):
        score = np.where(residual > least, weights * residual, 0.0)
        row = int(np.argmax(score))
        if not 0.5 * score.sum() > enough:
            break
        A[j] = (np.asarray(_column(kernel, inputs, as_array(row))) - A[:j, row] @ A[:j]) / np.sqrt(residual[row])
        residual = np.maximum(residual - A[j] ** 2, 0.0)
        residual[row] = 0.0
        chosen.append(row)
    return X[chosen or [0]]


def heteroscedastic(
    kernel: Covariance, X: np.ndarray, count: int, weights: np.ndarray | None = None, seed: int = 0
) -> np.ndarray:
    """Select rows greedily by ``weights``; use k-means centres if the weights are not known yet."""
    return centres(kernel, X, count, seed=seed) if weights is None else greedy(kernel, X, count, weights, seed)


def sufficient(
    kernel: Covariance, X: np.ndarray, count: int, weights: np.ndarray | None = None, seed: int = 0, first: int = 100
) -> np.ndarray:
    """Select rows greedily by ``weights`` until half of the weighted residual variance is below 0.05 nats.

    This is the bound's loss by the residual variance, not a limit on its gain from more inputs (math: section 7). If
    weights are not known yet, or ``count`` inputs do not suffice, at most ``first`` k-means centres are used.
    """
    if weights is None:
        return centres(kernel, X, min(count, first), seed=seed)
    inputs = greedy(kernel, X, count + 1, weights, seed, ENOUGH)
    return inputs if len(inputs) <= count else centres(kernel, X, count, seed=seed)


# Selections of inducing inputs. Arguments: a kernel, X (n, d), their number, the site precisions (n,), and the seed.
SELECTIONS: dict[str, Callable[..., np.ndarray]] = {
    "kmeans": centres,
    "uniform": uniform,
    "variance": greedy,
    "heteroscedastic": heteroscedastic,
    "merged": heteroscedastic,
    "GV": greedy,
    "HGV": greedy,
    "auto": sufficient,
}
# Selections by the site precisions, and selections in which each choice replaces the last, even if the ELBO falls.
ADAPTIVE = ("heteroscedastic", "merged", "HGV", "auto")
REPLACING = ("GV", "HGV")


@partial(compiled, optimise=False)
def _covariances(kernel: Covariance, Z: Float[Array, "m d"], X: Float[Array, "n d"]) -> tuple[Array, Array, Array]:
    """Return K(Z, Z), K(Z, X) and the variances at X."""
    return kernel(Z, Z), kernel(Z, X), kernel.diagonal(X)


@compiled
def _column(kernel: Covariance, X: Float[Array, "n d"], row: Int[Array, ""]) -> Float[Array, " n"]:
    return kernel(X, X[row][None])[:, 0]


@compiled
def _between(kernel: Covariance, X: Float[Array, "n d"], Z: Float[Array, "n d"]) -> Float[Array, " n"]:
    return jax.vmap(lambda x, z: kernel(x[None], z[None])[0, 0])(X, Z)


class FICPrior(LatentPrior):
    """The prior f_i = mean + A_i^T v + sqrt(residual_i) e_i with standard normal coordinates (v, e).

    Marginal variances equal the kernel's. There is no factor matrix: v is conditioned with e integrated out, and e is
    drawn given v. Source: Snelson and Ghahramani 2006; Quiñonero-Candela and Rasmussen 2005, FIC.
    """

    span: LowRankPrior
    residual: Float[Array, " n"]
    mean: Float[Array, ""]
    X: Float[Array, "n d"]
    size: int = eqx.field(static=True)

    def __init__(self, span: LowRankPrior, residual: Float[Array, " n"]):
        self.span, self.residual, self.mean, self.X, self.size = span, residual, span.mean, span.X, span.size

    def resized(self, size: int) -> "FICPrior":
        return FICPrior(self.span.resized(size), as_array(pad_rows(self.residual, size)))

    def replaced(self, **changes: Any) -> "FICPrior":
        return FICPrior(replace(self.span, **changes), self.residual)

    @property
    def rank(self) -> int:
        """The number of coordinates of one latent: one for each inducing input and one for each datum."""
        return self.span.rank + len(self.X)

    @property
    def active(self) -> Float[Array, " r"]:
        """The mask of coordinates: 0 for coordinates without influence, else 1."""
        return jnp.concatenate([self.span.active, jnp.ones(len(self.X))])

    def split(self, coordinates: Float[Array, "*batch r l"]) -> tuple[Array, Array]:
        """Return the v and the e of coordinates."""
        return coordinates[..., : self.span.rank, :], coordinates[..., self.span.rank :, :]

    def sweep_operations(self) -> float:
        return self.span.sweep_operations() + 20.0 * len(self.X)

    def latents(self, coordinates: Float[Array, "*batch r l"]) -> Float[Array, "*batch n l"]:
        v, e = self.split(coordinates)
        # At a residual variance of 0, the derivative of its root is not finite.
        residual = jnp.maximum(self.residual, jnp.finfo(self.residual.dtype).tiny)
        return self.span.latents(v) + jnp.sqrt(residual)[:, None] * e

    def conditional(
        self, X_new: Float[Array, "m d"], coordinates: Float[Array, "*batch r l"]
    ) -> tuple[Float[Array, "*batch m l"], Float[Array, " m"]]:
        return self.span.conditional(X_new, self.split(coordinates)[0])

    def residual_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "m m"]:
        return self.span.residual_covariance(X_new)

    def draw_given(
        self, X_new: Float[Array, "m d"], coordinates: Float[Array, "*batch r l"], noise: Float[Array, "*batch m l k"]
    ) -> Float[Array, "*batch m l"]:
        return self.span.draw_given(X_new, self.split(coordinates)[0], noise)

    def condition(self, sites: Sites) -> "FICGroupPosterior":
        potential, constant = centred(sites, self.mean)
        scale = 1.0 + sites.precision * self.residual[:, None]

        def one(h: Array, w: Array) -> tuple[Array, Array]:
            root = linalg.factor_root(self.span.A, w)
            return root, cho_solve((root, True), self.span.A @ h)

        roots, centres = linalg.over_latents(one, potential / scale, sites.precision / scale)
        return FICGroupPosterior(self, Sites(potential, sites.precision), jnp.sum(constant), roots, centres)


class FICGroupPosterior(GroupPosterior):
    """The posterior given sites on f - mean: v ~ N(centre, (R R^T)^-1), with e integrated out, and e given v."""

    prior: FICPrior
    sites: Sites
    constant: Float[Array, ""]
    roots: Float[Array, "l r r"]
    centres: Float[Array, "l r"]

    @property
    def scale(self) -> Float[Array, "n l"]:
        """1 + w residual."""
        return 1.0 + self.sites.precision * self.prior.residual[:, None]

    def moments(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        span, residual, (h, _) = self.prior.span, self.prior.residual[:, None], self.sites
        mean = ((self.centres @ span.A).T + residual * h) / self.scale
        return self.prior.mean + mean, residual / self.scale + self._variance(span.A) / self.scale**2

    def log_normalizer(self) -> Float[Array, ""]:
        span, h, scale = self.prior.span, self.sites.potential, self.scale
        residual_terms = -0.5 * jnp.log(scale) + 0.5 * h**2 * self.prior.residual[:, None] / scale
        quadratic = 0.5 * jnp.sum((span.A @ (h / scale)) * self.centres.T)
        roots = jnp.sum(jnp.log(jnp.diagonal(self.roots, axis1=1, axis2=2)))
        return quadratic - roots + jnp.sum(residual_terms) + self.constant

    def predict(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m l"], Float[Array, "m l"]]:
        A, residual = self.prior.span.factor_at(X_new)
        return self.prior.mean + (self.centres @ A).T, residual[:, None] + self._variance(A)

    def mean_and_deviation(self, key: RandomKey) -> tuple[Float[Array, "r l"], Float[Array, "r l"]]:
        span, (h, w), scale = self.prior.span, self.sites, self.scale
        ours, theirs = jax.random.split(key)
        noise = jax.random.normal(ours, self.centres.shape, h.dtype)
        turn = partial(solve_triangular, trans="T", lower=True)
        v, dv = self.centres.T, linalg.over_states(turn, self.roots, noise).T
        spread = jnp.sqrt(self.prior.residual)[:, None]
        e = spread * (h - w * (v.T @ span.A).T) / scale
        de = jax.random.normal(theirs, h.shape, h.dtype) / jnp.sqrt(scale) - spread * w * (dv.T @ span.A).T / scale
        return jnp.concatenate([v, e]), jnp.concatenate([dv, de])

    def _variance(self, A: Float[Array, "r m"]) -> Float[Array, "m l"]:
        return linalg.over_states(lambda root: linalg.variances(root, A), self.roots).T


class ChunkedInducingPrior(InducingPointPrior):
    """``InducingPrior`` in O(n + M^2) memory: each pass over chunks of rows recomputes A_c = L_Z^-1 K(Z, X_c).

    A posterior needs two passes: one sums A W A^T and A h, the other computes means and variances. Reverse mode
    recomputes each chunk. Products with L_Z^-1 replace triangular solves: they are three times as fast. The full A is
    computed on demand, as for ``gibbs`` and ``correct``. Raises ValueError if n x n covariances are requested.
    """

    is_chunked: ClassVar[bool] = True

    residual: Float[Array, " n"]

    def resized(self, size: int) -> "ChunkedInducingPrior":
        X, residual = (as_array(pad_rows(part, size)) for part in (self.X, self.residual))
        return replace(self, X=X, residual=residual)

    def residual_variance(self) -> Float[Array, " n"]:
        return self.residual

    def for_sampling(self) -> FICPrior:
        return _with_drawn_residual(self, self.residual)

    @property
    def factor(self) -> Float[Array, "r n"]:
        return self.factor_at(self.X)[0]

    def _diagonal(self) -> Array:
        return self.kernel.diagonal(self.X)

    def _colour(self, whitened: Array) -> Array:
        weights = linalg.inverse_root(self.root).T @ whitened
        rows = linalg.each_row(lambda X: jnp.moveaxis(self.cross(X).T @ weights, -2, 0), self.rank, self.X)
        return jnp.moveaxis(rows, 0, -2)

    def projected(self, root: linalg.Root, centre: Array) -> tuple[Array, Array]:
        whitener = linalg.inverse_root(self.root)
        weights, half = whitener.T @ centre, linalg.solve_lower(root, whitener)

        def one(X: Array) -> tuple[Array, Array]:
            K = self.cross(X)
            return weights @ K, jnp.sum((half @ K) ** 2, axis=0)

        return linalg.each_row(one, self.rank, self.X)

    def _condition(self, h: Array, w: Array) -> LowRankState:
        whitener = linalg.inverse_root(self.root)

        def chunk_terms(X: Array, h: Array, w: Array) -> tuple[Array, Array]:
            A = whitener @ self.cross(X)
            scaled = A * jnp.sqrt(w)
            return scaled @ scaled.T, A @ h

        start = jnp.eye(self.rank, dtype=self.root.dtype), jnp.zeros(self.rank, self.root.dtype)
        precision, pulled = linalg.summed(chunk_terms, start, self.rank, self.X, h, w)
        root = jnp.linalg.cholesky(precision)
        return LowRankState(root, cho_solve((root, True), pulled), pulled, 0.5 * w @ self.residual)


def _with_drawn_residual(prior: InducingPointPrior, residual: Float[Array, " n"]) -> FICPrior:
    """Return the prior of the generative model, in which the residuals of rows are independent."""
    parts = {field.name: getattr(prior, field.name) for field in fields(InducingPointPrior)}
    return FICPrior(LowRankPrior(A=prior.factor, **parts), residual)


def chunked_prior_at(
    kernel: Covariance, mean: Array, X: Float[Array, "n d"], span: InducingPoints, size: int
) -> ChunkedInducingPrior:
    """Return the prior with given inducing inputs; usable under ``jit``."""
    (Z, active, jitter), root = span, root_at(kernel, span)
    whitener, error = linalg.inverse_root(root), jitter * jnp.max(kernel.diagonal(X))

    def residual_at(X: Array) -> Array:
        return with_residual(whitener @ (active[:, None] * kernel(Z, X)), kernel.diagonal(X))[1]

    residual = linalg.each_row(residual_at, len(Z), X)
    terms = {"root": root, "active": active, "truncation_error": error, "residual": residual}
    return ChunkedInducingPrior(kernel=kernel, mean=mean, X=X, Z=Z, size=size, **terms)


if TYPE_CHECKING:
    InducingInputs: TypeAlias = int | ArrayLike
    Selection: TypeAlias = Literal["heteroscedastic", "kmeans", "uniform", "variance", "merged", "GV", "HGV", "auto"]
else:
    # Types are not checked at run time: ``Inducing`` checks its arguments itself.
    InducingInputs = Selection = Any
DEFAULT: Selection = "heteroscedastic"
AUTOMATIC: Final = "auto"
# The largest number of inputs of ``Inducing("auto")``.
_LIMIT = 1000


class InducingPrior(LowRankPrior):
    """The prior of f = mean + A^T v + eps, A = L_Z^-1 K(Z, X), Var eps_i = ``residual`` = k(x_i, x_i) - (A^T A)_ii.

    The posterior is variational, q(f) = p(f | u) q(u) with u the latents at Z. Sites do not change eps, which is added
    to all marginals. The log normaliser is the normaliser for A^T v minus sum w residual / 2 (math: section 4).
    Covariances between inputs are covariances of A^T v.
    Source: Titsias 2009; Hensman, Fusi and Lawrence 2013.
    """

    # Products with A cost little compared with conditioning.
    has_cheap_products: ClassVar[bool] = True

    residual: Float[Array, " n"]

    def resized(self, size: int) -> "InducingPrior":
        X, residual = (as_array(pad_rows(part, size)) for part in (self.X, self.residual))
        return replace(self, X=X, A=as_array(pad_rows(np.asarray(self.A).T, size).T), residual=residual)

    def residual_variance(self) -> Float[Array, " n"]:
        return self.residual

    def for_sampling(self) -> FICPrior:
        return _with_drawn_residual(self, self.residual)


def posterior_of_moments(
    prior: FactoredPrior, roots: Float[Array, "l r r"], centres: Float[Array, "l r"]
) -> FactoredPosterior:
    """Return the posterior at inducing inputs from the coordinates' precision roots and means, without sites."""
    nothing = jnp.zeros(prior.size)
    states = LowRankState(roots, centres, jnp.zeros_like(centres), nothing)
    return FactoredPosterior(prior, jnp.zeros((len(prior.X), prior.size)), nothing, states)


def inducing_at(
    kernel: Covariance, mean: Array, X: Float[Array, "n d"], span: InducingPoints, size: int, most: int
) -> InducingPointPrior:
    """Return the prior with given inducing inputs, in chunks if its factor has over ``most`` entries; jittable."""
    if len(X) * len(span.Z) > most:
        return chunked_prior_at(kernel, mean, X, span, size)
    return _with_residual(low_rank_at(kernel, mean, X, span, size))


def inducing_by_root(
    kernel: Covariance, mean: Array, X: Float[Array, "n d"], Z: Float[Array, "r d"], size: int
) -> InducingPrior:
    """Return the prior with given inducing inputs, for any hyperparameters: the jitter is 1e-8 of the mean variance."""
    root, jitter = whitened_root(kernel, Z)
    A, ones = linalg.solve_columns(root, kernel(Z, X)), jnp.ones(len(Z))
    span = LowRankPrior(
        kernel=kernel, mean=mean, X=X, A=A, Z=Z, root=root, active=ones, truncation_error=jitter, size=size
    )
    return _with_residual(span)


def inducing_points_at(kernel: Covariance, Z: ArrayLike, max_error: float = np.inf) -> InducingPoints:
    """Return inducing inputs padded to few sizes, and the smallest jitter >= 1e-12 with which K(Z, Z) has a root.

    A smaller ``max_error`` lowers the first jitter. With jitter, the inducing variables are f(Z) plus noise: the bound
    remains valid, and continuous in the hyperparameters even for nearly redundant inputs. Raises ValueError as
    ``Representation.bind`` does.
    """
    K = np.asarray(linalg.gram(kernel, as_array(Z)))
    linalg.check_gram(kernel, K)
    variances = own_variances(np.diagonal(K))
    count = len(K)
    # Above 1,000 inputs the jitter grows with the rounding error of K(Z, Z), which is at most 0.1 times the jitter for
    # the tested kernels and dimensions.
    least = float(np.clip(max_error / variances.max(), linalg.ROUNDING, 1e-12 * max(1.0, count / 1000) ** 2))
    # A factor of two leaves a margin for other linear algebra libraries.
    ladder = 0.5 * least * 2.0 ** np.arange(np.ceil(np.log2(linalg.JITTERS[-1] / least)) + 1)
    jitter = 2.0 * linalg.jittered_root(kernel, K / np.sqrt(np.outer(variances, variances)), tuple(ladder))[2]
    rank = -(-count // linalg.RANK_MULTIPLE) * linalg.RANK_MULTIPLE
    padded = np.pad(np.asarray(Z), ((0, rank - count), (0, 0)), mode="edge")
    return InducingPoints(as_array(padded), as_array((np.arange(rank) < count).astype(np.float64)), as_array(jitter))


@dataclass(frozen=True, repr=False)
class Inducing(Representation):
    """Inducing inputs: a sparse variational posterior of the latents, in O(n M^2) time per iteration.

    Parameters
    ----------
    inputs : int, "auto" or array_like, shape (M, d)
        The number of inducing inputs, or the inputs. ``"auto"`` increases their number until the ELBO gains less than
        0.05 nats, up to 1,000; ``Inducing(500, "auto")`` up to 500.
    select : str, optional
        How inputs are chosen from the rows of X:

        - ``"heteroscedastic"`` (the default): the row with the largest residual prior variance times site precision.
          Rows and posterior are updated in turns. ``"kmeans"`` replaces it if the ELBO is not higher;
        - ``"kmeans"``: centres of k-means, with columns scaled so that the kernel changes equally fast along each. If
          centres fall between the levels of a group or an index, rows are chosen instead;
        - ``"uniform"``: rows drawn at random;
        - ``"variance"``: greedily, the row with the largest residual prior variance;
        - ``"merged"``: as ``"heteroscedastic"``, but always by the sites of the augmented bound. The ELBO of the
          objective decides, for example of ``fit(objective="expected")``;
        - ``"GV"`` and ``"HGV"``, greedy variance and heteroscedastic greedy variance as published: ``"GV"`` chooses as
          ``"variance"``. ``"HGV"`` multiplies residual variances by the current sites' precisions, equal at first. The
          posterior is optimised (by ``fit`` with the hyperparameters) up to 10 times. New rows always replace the last
          rows, even if they lower the ELBO;
        - ``"auto"``: as ``"heteroscedastic"``, with the number chosen too.

        Except with ``"GV"`` and ``"HGV"``, ``fit`` chooses again at the learned hyperparameters, and keeps the new
        inputs if the ELBO is higher.
    trace : float
        For ``"variance"``, ``"GV"`` and ``"HGV"``: stop before ``inputs`` rows once the sum of the residual variances
        is at most this. ``"HGV"`` multiplies them by the sites' precisions. The bound loses half of the sum.

    Raises
    ------
    ValueError
        For inputs of a wrong shape, an unknown selection, a negative trace, or a trace of another selection.

    Notes
    -----
    The ELBO is below the exact prior's, and never decreases with another inducing input. If X has no more distinct rows
    than ``inputs``, all of them are used, and the form is exact. The covariance of the inducing inputs has a jitter of
    1e-12 of the variances, so that nearly equal inputs do no harm (see ``inducing_points_at``).

    The factor needs 8 n M bytes. Above 128 MB (56,000 rows with M = 300) it is not stored. Each pass over the data then
    recomputes it in chunks, in the same time and O(n + M^2) memory. ``gibbs`` and ``correct`` always store it.

    References
    ----------
    Titsias 2009; Burt, Rasmussen and van der Wilk 2020; Passerello 2021; math, section 7.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 40)[:, None]
    >>> model = pgm.Model(pgm.Gaussian(0.1), pgm.GP(pgm.RBF(), form=pgm.Inducing(12)))
    >>> vi = pgm.cavi(model, X, np.sin(X[:, 0]))
    >>> bool(np.allclose(vi.mean, pgm.cavi(model.with_form(pgm.Dense()), X, np.sin(X[:, 0])).mean, atol=0.01))
    True
    """

    can_pad: ClassVar[bool] = True
    # In the generative model, the residuals of rows are independent.
    shares: ClassVar[bool] = False
    least_subset: ClassVar[int | None] = 5_000

    inputs: int | tuple[tuple[float, ...], ...]
    select: Selection | None = None  # type: ignore[assignment]
    trace: float = field(default=0.0, init=False)
    # The seed of random selections, set by engines.
    seed: int = field(default=0, init=False)

    def __init__(self, inputs: InducingInputs, select: Selection | None = None, trace: float = 0.0):
        if isinstance(inputs, str) and inputs == AUTOMATIC and select is None:
            inputs, select = _LIMIT, AUTOMATIC
        if np.ndim(inputs) == 0:
            check_whole_number(inputs, "inputs of Inducing, if not an array (M, d),", 1)
            if select is not None and not (isinstance(select, str) and select in SELECTIONS):
                raise ValueError(f"select must be one of {', '.join(map(repr, SELECTIONS))}; got {select!r}.")
            object.__setattr__(self, "inputs", int(np.asarray(inputs)))
            object.__setattr__(self, "select", select or DEFAULT)
        else:
            if select is not None:
                raise ValueError(f"select={select!r} has no effect with given inputs: pass a number of inputs.")
            object.__setattr__(self, "inputs", _rows(inputs))
            object.__setattr__(self, "select", None)
        can_stop = self.select is not None and SELECTIONS[self.select] is greedy
        if not (np.ndim(trace) == 0 and 0.0 <= trace < np.inf) or (trace and not can_stop):
            raise ValueError(
                f"trace must be >= 0, and 0 unless select is 'variance', 'GV' or 'HGV'; got {trace!r}, {self.select!r}."
            )
        object.__setattr__(self, "trace", float(trace))

    def __repr__(self) -> str:
        if isinstance(self.inputs, int):
            if (self.inputs, self.select) == (_LIMIT, AUTOMATIC):
                return f"Inducing({AUTOMATIC!r})"
            select = "" if self.select == DEFAULT else f", {self.select!r}"
            return f"Inducing({self.inputs}{select}{f', trace={self.trace:g}' if self.trace else ''})"
        return f"Inducing(<{len(self.inputs)} inputs>)"

    def with_seed(self, seed: int) -> "Inducing":
        other = copy(self)
        object.__setattr__(other, "seed", seed)
        return other

    @property
    def num_inputs(self) -> int:  # type: ignore[override]
        """The number of inducing inputs, or the maximum number to choose."""
        return self.inputs if isinstance(self.inputs, int) else len(self.inputs)

    def with_inputs(self, Z: ArrayLike | int) -> "Inducing":
        return Inducing(Z)

    def choose(self, kernel: Covariance, X: ArrayLike, weights: np.ndarray | None = None) -> np.ndarray:
        X = np.asarray(X, dtype=np.float64)
        if not isinstance(self.inputs, int) or self.select is None:
            Z = np.asarray(self.inputs)
            if Z.shape[1] != X.shape[1]:
                raise ValueError(
                    f"inputs of Inducing have {Z.shape[1]} column(s) but X has {X.shape[1]}: give inducing inputs with "
                    "the columns of X, or their number."
                )
            return Z
        distinct = distinct_rows(X)[0]
        if len(distinct) <= self.inputs and self.select != AUTOMATIC and not self.trace:
            return X[distinct]
        count = min(self.inputs, len(distinct))
        weights = weights if self.select in ADAPTIVE else None
        enough = {"enough": 0.5 * self.trace} if self.trace else {}
        return SELECTIONS[self.select](bare_arrays(kernel), X, count, weights, self.seed, **enough)

    def bind(self, kernel: Covariance, mean: Scalar, X: ArrayLike, size: int, how: Binding = EAGER) -> LatentPrior:
        if not how.traced:
            Z, (kernel, mean, X) = self.choose(kernel, X), as_arrays(kernel, mean, X)
            prior = _bound(kernel, mean, X, inducing_points_at(kernel, Z, how.max_error), size, linalg.HELD)
            check_new_inputs(prior, np.asarray(X), "X (without repeated rows)")
            return prior
        mean, X = as_array(mean), as_array(X)
        if how.points is not None:
            return inducing_at(kernel, mean, X, how.points, size, linalg.HELD)
        if isinstance(self.inputs, int):
            raise ValueError(f"the inducing inputs of {self!r} cannot be chosen in compiled code: pass an array.")
        return inducing_by_root(kernel, mean, X, as_array(np.asarray(self.inputs)), size)


def _with_residual(span: LowRankPrior) -> InducingPrior:
    residual = with_residual(span.A, span.kernel.diagonal(span.X))[1]
    return InducingPrior(**{field.name: getattr(span, field.name) for field in fields(span)}, residual=residual)


# Up to 2^21 entries, the computation of a factor costs less time than optimised compilation.
_bound = compiled(
    inducing_at, ("size", "most"), optimise=lambda kernel, mean, X, span, *_: len(X) * len(span.Z) > 2**21
)


def _rows(inputs: InducingInputs) -> tuple[tuple[float, ...], ...]:
    """Return distinct inducing inputs as numbers. Raise ValueError for other values."""
    try:
        Z = np.asarray(inputs, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"inputs of Inducing must be numbers (M, d), or their number; got {shorten(inputs)}."
        ) from error
    if Z.ndim != 2 or not Z.size:
        raise ValueError(f"inputs of Inducing must have shape (M, d), one row per input; got shape {Z.shape}.")
    bad = np.argwhere(~np.isfinite(Z))
    if bad.size:
        raise ValueError(f"inputs of Inducing must be finite; row {bad[0][0]} is {shorten(Z[bad[0][0]].tolist())}.")
    return tuple(map(tuple, Z[distinct_rows(Z)[0]].tolist()))
