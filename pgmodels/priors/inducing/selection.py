"""Which inducing inputs a data set gets: at most so many as asked for, of no more rows than fit into memory."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from pgmodels.data.arrays import distinct_rows as distinct_and_equal
from pgmodels.priors.chunking import HELD
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array

# A row whose variance given those chosen is below so much of the largest adds nothing.
_NOTHING = 1e-12
_SEED = 0
# What the bound may have in nats for the variance that inducing inputs leave, and how many are tried at first.
_ENOUGH, _FIRST = 0.05, 100
# Rows that k-means looks at: so many, and for each centre.
_ROWS, _ROWS_A_CENTRE = 20_000, 64
# Distances that k-means tells apart, in deviations of the widest column.
_RESOLVED = 1e-6
# Rows at which the variance that inducing inputs leave is compared, what is added to their matrix relative to each
# variance, and how much of what centres leave, beside the rows chosen, rows leave at most to be better: with stationary
# kernels in 1 to 5 columns those nearest to centres left 1.003 to 4.6 of it, and 0 to 0.88 where columns hold levels.
_COMPARED, _ADDED, _LESS = 1000, 1e-6, 0.95
# Rows that are moved to see how fast a kernel changes, by so much of a column's deviation; rates above so much of the
# largest count as equal to it.
_MOVED, _STEP, _ALIKE = 100, 0.01, 0.98


def distinct_rows(X: np.ndarray) -> np.ndarray:
    """The places of the first of equal rows, in order."""
    return distinct_and_equal(X)[0]


def centres(kernel: Any, X: np.ndarray, count: int, weights: np.ndarray | None = None) -> np.ndarray:
    """The centres of k-means on as many rows as tell them well, k-means++ the start.

    Columns are in units in which the kernel changes alike along each: what it does not read has no say. Rows, chosen
    greedily, where a centre tells less than the row nearest to it: no row has the levels of a group or of an index that
    lie between those of others.
    """
    del weights
    from sklearn.cluster import KMeans

    rows = np.random.default_rng(_SEED).permutation(len(X))[: max(_ROWS, _ROWS_A_CENTRE * count)]
    X = X[np.sort(rows)]
    rates = _rates(kernel, X)
    scaled = X * rates
    # Of fewer rows that differ, by more than the rounding of a squared distance, there are no more centres than these.
    differing = distinct_rows(
        np.round((scaled - scaled.mean(axis=0)) / (_RESOLVED * np.max(scaled.std(axis=0)) or 1.0))
    )
    count = min(count, len(differing))
    clusters = KMeans(count, n_init=1, random_state=_SEED).fit(scaled)
    members = np.bincount(clusters.labels_, minlength=count)[:, None]
    sums = np.zeros((count, X.shape[1]))
    np.add.at(sums, clusters.labels_, X - X[0])
    centroids = X[0] + (sums / np.maximum(members, 1))[members[:, 0] > 0]
    nearest = X[np.argmin(clusters.transform(scaled), axis=0)]
    some = X[np.linspace(0, len(X) - 1, min(_COMPARED, len(X))).astype(int)]
    share = _LESS * (1.0 - len(nearest) / len(X))
    # What cannot be computed between levels is no better.
    if not share * _residual_variance(kernel, some, centroids) <= _residual_variance(kernel, some, nearest):
        return greedy(kernel, X, count)
    return centroids[distinct_rows(centroids)]


def _residual_variance(kernel: Any, X: np.ndarray, Z: np.ndarray) -> float:
    """The variance that inducing inputs leave at rows, rounding added; not a number where their matrix has no root."""
    K, across, variances = map(np.asarray, _covariances(kernel, as_array(Z), as_array(X)))
    try:
        root = np.linalg.cholesky(K + _ADDED * np.diag(np.diagonal(K)))
    except np.linalg.LinAlgError:
        return np.nan
    return float((1.0 + 10.0 * _ADDED) * np.sum(variances) - np.sum(np.linalg.solve(root, across) ** 2))


def _rates(kernel: Any, X: np.ndarray) -> np.ndarray:
    """How fast the kernel changes along each column, (d,), relative to the fastest; 1 where it tells none apart.

    By the squared distance |φ(x) - φ(x')|² of the kernel's features between rows and rows with one column moved, of
    which what does not go by how far, as of noise, is left out.
    """
    rows = X[np.linspace(0, len(X) - 1, min(_MOVED, len(X))).astype(int)]
    here, squared = np.asarray(kernel.diagonal(as_array(rows))), np.zeros(X.shape[1])
    for column, deviation in enumerate(X.std(axis=0)):
        if deviation > 0.0:
            further = []
            for step in (1.0, 2.0):
                moved = rows + step * _STEP * deviation * (np.arange(X.shape[1]) == column)
                across = np.asarray(_between(kernel, as_array(rows), as_array(moved)))
                further.append(np.mean(here + np.asarray(kernel.diagonal(as_array(moved))) - 2.0 * across))
            squared[column] = max(further[1] - further[0], 0.0) / deviation**2
    rates = np.sqrt(squared / squared.max()) if squared.max() > 0.0 else np.ones(X.shape[1])
    # Of one lengthscale they are equal but for the length of the steps.
    return np.ones(X.shape[1]) if rates.min() > _ALIKE else rates


def uniform(kernel: Any, X: np.ndarray, count: int, weights: np.ndarray | None = None) -> np.ndarray:
    """Distinct rows drawn uniformly; the kernel has no say."""
    del kernel, weights
    rows = np.random.default_rng(_SEED).permutation(distinct_rows(X))[:count]
    return X[np.sort(rows)]


def greedy(
    kernel: Any, X: np.ndarray, count: int, weights: np.ndarray | None = None, enough: float = 0.0
) -> np.ndarray:
    """One row after the other, that where ``weights`` times the variance that those before leave is largest.

    A pivoted Cholesky factorisation whose columns are computed as they are chosen: O(n M^2) time. Ends early where no
    variance is left, or half of its sum, weighted, is at most ``enough``. Of so many rows that the factor would not
    fit into memory, a sample is drawn, which stands for all of them. Source: Burt, Rasmussen and van der Wilk 2020;
    with weights, Passerello 2021.
    """
    if len(X) * count > HELD:
        rows = np.sort(np.random.default_rng(_SEED).permutation(len(X))[: max(count, HELD // count)])
        enough *= len(rows) / len(X)
        X, weights = X[rows], None if weights is None else weights[rows]
    inputs = as_array(X)
    residual = np.asarray(kernel.diagonal(inputs), dtype=np.float64).copy()
    weights = np.ones(len(X)) if weights is None or not np.any(weights > 0) else weights
    least, A, chosen = _NOTHING * residual.max(), np.empty((count, len(X))), []
    for j in range(count):
        score = np.where(residual > least, weights * residual, 0.0)
        row = int(np.argmax(score))
        if not 0.5 * score.sum() > enough:
            break
        A[j] = (np.asarray(_column(kernel, inputs, as_array(row))) - A[:j, row] @ A[:j]) / np.sqrt(residual[row])
        residual = np.maximum(residual - A[j] ** 2, 0.0)
        residual[row] = 0.0
        chosen.append(row)
    return X[chosen]


def heteroscedastic(kernel: Any, X: np.ndarray, count: int, weights: np.ndarray | None = None) -> np.ndarray:
    """Greedily by ``weights``; the centres of k-means where these are not known yet."""
    return centres(kernel, X, count) if weights is None else greedy(kernel, X, count, weights)


def sufficient(kernel: Any, X: np.ndarray, count: int, weights: np.ndarray | None = None) -> np.ndarray:
    """As many, greedily by ``weights``, as leave half of the weighted variance below a twentieth of a nat.

    That is what the bound loses to the variance that is left, and no limit to what it gains by more inputs (math:
    section 7). The centres of k-means where weights are not known yet, and where ``count`` are not enough.
    """
    if weights is None:
        return centres(kernel, X, min(count, _FIRST))
    inputs = greedy(kernel, X, count + 1, weights, _ENOUGH)
    return inputs if len(inputs) <= count else centres(kernel, X, count)


# Ways to choose inducing inputs: of a kernel, X (n, d), their number, and how much the data tell of each latent, (n,).
SELECTIONS: dict[str, Callable[..., np.ndarray]] = {
    "kmeans": centres,
    "uniform": uniform,
    "variance": greedy,
    "heteroscedastic": heteroscedastic,
    "auto": sufficient,
}


@partial(compiled, optimise=False)
def _covariances(kernel: Any, Z: Float[Array, "m d"], X: Float[Array, "n d"]) -> tuple[Array, Array, Array]:
    """K(Z, Z), K(Z, X) and the variances at X."""
    return kernel(Z, Z), kernel(Z, X), kernel.diagonal(X)


@compiled
def _column(kernel: Any, X: Float[Array, "n d"], row: Any) -> Float[Array, " n"]:
    return kernel(X, X[row][None])[:, 0]


@compiled
def _between(kernel: Any, X: Float[Array, "n d"], Z: Float[Array, "n d"]) -> Float[Array, " n"]:
    """The covariance of each row of X with the same row of Z."""
    return jax.vmap(lambda x, z: kernel(x[None], z[None])[0, 0])(X, Z)
