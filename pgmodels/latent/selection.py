"""Which inducing inputs a data set gets: at most so many as asked for, of no more rows than fit into memory."""

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from pgmodels.latent.chunks import HELD
from pgmodels.precision import as_array

# A row whose variance given those chosen is below so much of the largest adds nothing.
_NOTHING = 1e-12
_SEED = 0
# What the bound may have in nats for the variance that inducing inputs leave, and how many are tried at first.
_ENOUGH, _FIRST = 0.05, 100
# Rows that k-means looks at: so many, and for each centre.
_ROWS, _ROWS_A_CENTRE = 20_000, 64


def distinct_rows(X: np.ndarray) -> np.ndarray:
    """The places of the first of equal rows, in order."""
    return np.sort(np.unique(X, axis=0, return_index=True)[1])


def centres(kernel: Any, X: np.ndarray, count: int, weights: np.ndarray | None = None) -> np.ndarray:
    """The centres of k-means on as many rows as tell them well, k-means++ the start; the kernel has no say."""
    del kernel, weights
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    rows = np.random.default_rng(_SEED).permutation(len(X))[: max(_ROWS, _ROWS_A_CENTRE * count)]
    with warnings.catch_warnings():
        # Of few distinct rows there are fewer centres, which is all that is wanted.
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(count, n_init=1, random_state=_SEED).fit(X[np.sort(rows)]).cluster_centers_
    return found[distinct_rows(found)]


def drawn(kernel: Any, X: np.ndarray, count: int, weights: np.ndarray | None = None) -> np.ndarray:
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
    left = np.asarray(kernel.diagonal(inputs), dtype=np.float64).copy()
    weights = np.ones(len(X)) if weights is None or not np.any(weights > 0) else weights
    least, A, chosen = _NOTHING * left.max(), np.empty((count, len(X))), []
    for j in range(count):
        score = np.where(left > least, weights * left, 0.0)
        row = int(np.argmax(score))
        if not 0.5 * score.sum() > enough:
            break
        A[j] = (np.asarray(_column(kernel, inputs, as_array(row))) - A[:j, row] @ A[:j]) / np.sqrt(left[row])
        left = np.maximum(left - A[j] ** 2, 0.0)
        left[row] = 0.0
        chosen.append(row)
    return X[chosen]


def told(kernel: Any, X: np.ndarray, count: int, weights: np.ndarray | None = None) -> np.ndarray:
    """Greedily by ``weights``; the centres of k-means where these are not known yet."""
    return centres(kernel, X, count) if weights is None else greedy(kernel, X, count, weights)


def sufficient(kernel: Any, X: np.ndarray, count: int, weights: np.ndarray | None = None) -> np.ndarray:
    """As many, greedily by ``weights``, as leave half of the weighted variance below a twentieth of a nat.

    That is what the bound loses to the variance that is left, and no limit to what it gains by more inputs (math:
    section 7). The centres of k-means where weights are not known yet, and where ``count`` are not enough.
    """
    if weights is None:
        return centres(kernel, X, min(count, _FIRST))
    found = greedy(kernel, X, count + 1, weights, _ENOUGH)
    return found if len(found) <= count else centres(kernel, X, count)


# Ways to choose inducing inputs: of a kernel, X (n, d), their number, and how much the data tell of each latent, (n,).
SELECTIONS: dict[str, Callable[..., np.ndarray]] = {
    "kmeans": centres,
    "uniform": drawn,
    "variance": greedy,
    "heteroscedastic": told,
    "auto": sufficient,
}


@eqx.filter_jit
def _column(kernel: Any, X: Float[Array, "n d"], row: Any) -> Float[Array, " n"]:
    return kernel(X, X[row][None])[:, 0]
