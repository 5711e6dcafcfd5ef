"""Convergence of chains: effective sample sizes, R-hat and Monte-Carlo standard errors of every latent."""

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import scipy

from pgmodels.numerics.quadrature import slices
from pgmodels.results.draws import Draws

R = TypeVar("R")

# Number of latents, the worst by a vectorised screening, whose diagnostics are computed by ArviZ.
_WORST = 20

# Results of ``of_draws`` by draws and function: tables, verdicts and figures need the same ones.
_cache: WeakKeyDictionary[Draws, dict[Callable[..., Any], Any]] = WeakKeyDictionary()


def of_draws(figures: Callable[[np.ndarray], R], draws: Draws) -> R:
    """``figures(draws.latents)`` for one of the functions of this module, computed once and cached."""
    cached = _cache.setdefault(draws, {})
    if figures not in cached:
        cached[figures] = figures(draws.latents)
    return cached[figures]


def convergence(draws: Draws) -> dict[str, float]:
    """Smallest bulk and tail effective sample size and largest R-hat of the latents of draws; see ``worst``."""
    return worst(draws.latents, *of_draws(convergence_by_latent, draws))


def worst(latents: np.ndarray, bulk: np.ndarray, tail: np.ndarray, rhat: np.ndarray) -> dict[str, float]:
    """Smallest bulk and tail effective sample size and largest R-hat of latents (chains, draws, n, latents).

    By ArviZ, on the 20 worst latents of each by ``convergence_by_latent``; R-hat is NaN for one chain.
    """
    from arviz_stats.base import array_stats

    chains, draws = latents.shape[:2]
    if draws < 4:
        return {"ess_bulk": np.nan, "ess_tail": np.nan, "rhat": np.nan}
    x = latents.reshape(chains, draws, -1)
    least_bulk, least_tail, largest = (x[..., np.argsort(order.ravel())[:_WORST]] for order in (bulk, tail, -rhat))
    axes = {"chain_axis": 0, "draw_axis": 1}
    return {
        "ess_bulk": float(np.min(array_stats.ess(least_bulk, **axes, method="bulk"))),
        "ess_tail": float(np.min(array_stats.ess(least_tail, **axes, method="tail", prob=(0.05, 0.95)))),
        "rhat": float(np.max(array_stats.rhat(largest, **axes))) if chains > 1 else np.nan,
    }


def convergence_by_latent(latents: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bulk and tail effective sample size and R-hat of every latent, (n, latents) each, of (chains, draws, n, latents).

    R-hat is NaN for one chain. All are NaN for fewer than four draws.
    """
    chains, draws = latents.shape[:2]
    if draws < 4:
        nothing = np.full(latents.shape[2:], np.nan)
        return nothing, nothing, nothing
    x = latents.reshape(chains, draws, -1)
    screened = [_screen(x[..., part]) for part in slices(x.shape[-1], chains * draws)]
    bulk, tail, rhat = (np.concatenate(column).reshape(latents.shape[2:]) for column in zip(*screened, strict=True))
    return bulk, tail, rhat if chains > 1 else np.full_like(rhat, np.nan)


def standard_errors(latents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Monte-Carlo standard errors of the means and of the variances of latents (chains, draws, n, latents)."""
    chains, draws = latents.shape[:2]
    x = latents.reshape(chains, draws, -1)
    if draws < 4:
        nothing = np.full(latents.shape[2:], np.nan)
        return nothing, nothing
    means: list[np.ndarray] = []
    variances: list[np.ndarray] = []
    for part in slices(x.shape[-1], chains * draws):
        squares = (x[..., part] - x[..., part].mean(axis=(0, 1))) ** 2
        for errors, values in ((means, x[..., part]), (variances, squares)):
            deviation = values.std(axis=(0, 1))
            # Constant draws have no error, and their effective size is not defined.
            with np.errstate(invalid="ignore"):
                errors.append(np.where(deviation > 0.0, deviation / np.sqrt(_effective(values)), 0.0))
    return np.concatenate(means).reshape(latents.shape[2:]), np.concatenate(variances).reshape(latents.shape[2:])


def _effective(x: np.ndarray) -> np.ndarray:
    """The effective sample size of (chains, draws, k), at least 1: with few draws the estimate may be negative."""
    from numpyro.diagnostics import effective_sample_size

    return np.maximum(effective_sample_size(_split(x)), 1.0)


def _screen(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bulk and tail effective sample sizes and R-hat of (chains, draws, k) (Vehtari et al. 2021)."""
    from numpyro.diagnostics import effective_sample_size, gelman_rubin

    halves = _split(x)
    ranked = _normal_scores(halves)
    low, high = np.quantile(x, (0.05, 0.95), axis=(0, 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        tail = np.minimum(*(_effective_of_indicators(_split(x <= q)) for q in (low, high)))
        folded = _normal_scores(np.abs(halves - np.median(halves, axis=(0, 1))))
        return (
            effective_sample_size(ranked),
            tail,
            np.maximum(gelman_rubin(ranked), gelman_rubin(folded)),
        )


def _effective_of_indicators(indicators: np.ndarray) -> np.ndarray:
    """The effective sample size of booleans (chains, draws, k); NaN where all are equal."""
    from numpyro.diagnostics import effective_sample_size

    # NumPyro before 0.22 divides by the variance of each chain, which is zero if a chain stays on one side of a
    # quantile. This perturbation avoids that and changes no printed figure.
    parity = 1e-9 * (np.arange(indicators.shape[1]) % 2)[:, None]
    constant = indicators.all(axis=(0, 1)) | ~indicators.any(axis=(0, 1))
    return np.where(constant, np.nan, effective_sample_size(indicators + parity))


def _split(x: np.ndarray) -> np.ndarray:
    half = x.shape[1] // 2
    return np.concatenate([x[:, :half], x[:, -half:]])


def _normal_scores(x: np.ndarray) -> np.ndarray:
    from scipy.stats import rankdata

    size = x.shape[0] * x.shape[1]
    ranks = rankdata(x.reshape(size, -1), axis=0)
    return scipy.special.ndtri((ranks - 0.375) / (size + 0.25)).reshape(x.shape)
