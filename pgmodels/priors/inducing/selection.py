"""Selection of inducing inputs from data: at most the requested number, from as many rows as fit into memory."""

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

# Rows whose residual variance is below this fraction of the largest variance are not selected.
_NOTHING = 1e-12
# Accepted loss of the bound in nats from the residual variance, and the number of inputs of the first trial.
ENOUGH, _FIRST = 0.05, 100
# Largest number of rows for k-means: in all, and per centre.
_ROWS, _ROWS_A_CENTRE = 20_000, 64
# Number of seeds of scikit-learn's k-means.
_KMEANS_SEEDS = 2**32
# Resolution of k-means, in standard deviations of the widest column.
_RESOLVED = 1e-6
# Number of rows at which residual variances are compared, relative jitter, and the largest ratio of the residual
# variance of rows to that of centres at which rows are preferred: for stationary kernels in 1 to 5 columns the ratio of
# the rows nearest to the centres was 1.003 to 4.6, and 0 to 0.88 where columns hold levels.
_COMPARED, _ADDED, _LESS = 1000, 1e-6, 0.95
# Number of rows and step, in standard deviations of a column, of the finite differences that measure how fast a kernel
# changes; rates above this fraction of the largest count as equal to it.
_MOVED, _STEP, _ALIKE = 100, 0.01, 0.98


def distinct_rows(X: np.ndarray) -> np.ndarray:
    """Indices of the first of equal rows, in order."""
    return distinct_and_equal(X)[0]


def centres(kernel: Any, X: np.ndarray, count: int, weights: np.ndarray | None = None, seed: int = 0) -> np.ndarray:
    """Centres of k-means (k-means++ initialisation) on a subset of the rows.

    Columns are scaled so that the kernel changes equally fast along each; columns it does not read are ignored. If the
    rows nearest to the centres leave less residual variance than the centres, as with group levels or indices, whose
    averages occur in no row, rows are chosen greedily instead.
    """
    del weights
    from sklearn.cluster import KMeans

    rows = np.random.default_rng(seed).permutation(len(X))[: max(_ROWS, _ROWS_A_CENTRE * count)]
    X = X[np.sort(rows)]
    rates = _rates(kernel, X)
    scaled = X * rates
    # At most as many centres as rows that differ by more than the rounding error of a squared distance.
    differing = distinct_rows(
        np.round((scaled - scaled.mean(axis=0)) / (_RESOLVED * np.max(scaled.std(axis=0)) or 1.0))
    )
    count = min(count, len(differing))
    clusters = KMeans(count, n_init=1, random_state=seed % _KMEANS_SEEDS).fit(scaled)
    members = np.bincount(clusters.labels_, minlength=count)[:, None]
    sums = np.zeros((count, X.shape[1]))
    np.add.at(sums, clusters.labels_, X - X[0])
    centroids = X[0] + (sums / np.maximum(members, 1))[members[:, 0] > 0]
    nearest = X[np.argmin(clusters.transform(scaled), axis=0)]
    some = X[np.linspace(0, len(X) - 1, min(_COMPARED, len(X))).astype(int)]
    share = _LESS * (1.0 - len(nearest) / len(X))
    # Centres with a NaN (kernels undefined between levels) are rejected.
    if not share * _residual_variance(kernel, some, centroids) <= _residual_variance(kernel, some, nearest):
        return greedy(kernel, X, count, seed=seed)
    return centroids[distinct_rows(centroids)]


def _residual_variance(kernel: Any, X: np.ndarray, Z: np.ndarray) -> float:
    """Total residual variance at rows given inducing inputs, plus rounding; NaN if K(Z, Z) has no root."""
    K, across, variances = map(np.asarray, _covariances(kernel, as_array(Z), as_array(X)))
    try:
        root = np.linalg.cholesky(K + _ADDED * np.diag(np.diagonal(K)))
    except np.linalg.LinAlgError:
        return np.nan
    return float((1.0 + 10.0 * _ADDED) * np.sum(variances) - np.sum(np.linalg.solve(root, across) ** 2))


def _rates(kernel: Any, X: np.ndarray) -> np.ndarray:
    """Rate of change of the kernel along each column, (d,), relative to the fastest; 1 if it is constant.

    By finite differences of the squared feature distance |φ(x) - φ(x')|² with one column moved; contributions that do
    not depend on the distance, such as noise, cancel.
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
    # With one lengthscale, rates differ only by the discretisation.
    return np.ones(X.shape[1]) if rates.min() > _ALIKE else rates


def uniform(kernel: Any, X: np.ndarray, count: int, weights: np.ndarray | None = None, seed: int = 0) -> np.ndarray:
    """Distinct rows drawn uniformly, independent of the kernel."""
    del kernel, weights
    rows = np.random.default_rng(seed).permutation(distinct_rows(X))[:count]
    return X[np.sort(rows)]


def greedy(
    kernel: Any, X: np.ndarray, count: int, weights: np.ndarray | None = None, seed: int = 0, enough: float = 0.0
) -> np.ndarray:
    """Greedy selection: each next row maximises ``weights`` times the residual variance given the previous ones.

    A pivoted Cholesky factorisation that computes only the selected columns: O(n M^2) time. Stops early when no
    variance remains, or half of its weighted sum is at most ``enough``; at least one row is selected. If the factor
    would not fit into memory, a random sample of the rows is used.
    Source: Burt, Rasmussen and van der Wilk 2020; with weights, Passerello 2021.
    """
    if len(X) * count > HELD:
        rows = np.sort(np.random.default_rng(seed).permutation(len(X))[: max(count, HELD // count)])
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
    return X[chosen or [0]]


def heteroscedastic(
    kernel: Any, X: np.ndarray, count: int, weights: np.ndarray | None = None, seed: int = 0
) -> np.ndarray:
    """Greedy selection by ``weights``; k-means centres if these are not known yet."""
    return centres(kernel, X, count, seed=seed) if weights is None else greedy(kernel, X, count, weights, seed)


def sufficient(kernel: Any, X: np.ndarray, count: int, weights: np.ndarray | None = None, seed: int = 0) -> np.ndarray:
    """Greedy selection by ``weights`` until half of the weighted residual variance is below a twentieth of a nat.

    This is the bound's loss from the residual variance, not a limit on its gain from more inputs (math: section 7).
    K-means centres if weights are not known yet, or if ``count`` inputs are not enough.
    """
    if weights is None:
        return centres(kernel, X, min(count, _FIRST), seed=seed)
    inputs = greedy(kernel, X, count + 1, weights, seed, ENOUGH)
    return inputs if len(inputs) <= count else centres(kernel, X, count, seed=seed)


# Selections of inducing inputs by a kernel, X (n, d), their number, the site precisions (n,), and the seed.
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
