"""Choice, by row, of the corrected or the uncorrected Gaussian to average the response of y over."""

from typing import Any

import numpy as np

from pgmodels.likelihoods.sampling import SamplingWarning
from pgmodels.model import Model
from pgmodels.results.gaussian import nodes_at
from pgmodels.results.predictive import PredictionWarning, Predictive
from pgmodels.runtime.warnings import suppress_warnings, warn
from pgmodels.runtime.x64 import double_precision

# A response is skewed if the other Gaussian moves its average by more than a tenth of the standard deviation of y given
# the latents, and by more than a fifth of the average itself. Measured with one latent, one or eight data, prior
# variances .25 to 100 and means -3 to 1.5, at the data and beside them, against quadrature. Errors of log E y (1 at
# most), uncorrected, corrected, and by this rule: Poisson .015, .101, .027; negative binomial .082, .107, .081, by cavi
# .127, .136, .110; exponential times, whose mean is in the heavy tail, .179, .139, .151. Nats of a label's
# probabilities, in thousandths: Bernoulli .1, 2.3, .2, by cavi 1.2, 6.6, 1.5; probit .6, 6.2, .5, by cavi 9.9, 38, 12.
# The first condition excludes rare events, where a fifth of a probability is not visible in y (breast-cancer by cavi:
# 43 of 300 rows, where the corrected probabilities are thirty times more accurate), the second large counts.
_FELT, _SKEWED = 0.1, 0.2
# Nodes of these averages, for one direction and for several: just accurate enough to compare the two.
_NODES, _POINTS = 16, 256


@double_precision
def averaging(
    model: Model,
    y: np.ndarray,
    corrected: tuple[np.ndarray, np.ndarray],
    plain: tuple[np.ndarray, np.ndarray],
    covariates: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The moments of each row's latents for predicting y, and the rows (m,) with uncorrected ones.

    Moments are means (m, latents) with variances (m, latents) or covariances, after and before a correction. The
    response is E[y | f], or the probability of each value of y; if neither is known, nothing is replaced. Without
    ``covariates`` (m, columns), the covariates of the first observation of ``y`` are used.
    """
    (mean, spread), (centre, other) = corrected, (plain[0], _like(plain[1], corrected[1]))
    columns = model.likelihood.support(model.num_latents).covariate_columns(y)
    if covariates is None and columns is not None:
        covariates = np.repeat(columns[:1], len(mean), axis=0)
    with suppress_warnings(PredictionWarning), suppress_warnings(SamplingWarning):
        try:
            # About one mean: a shift by the correction is not skewness.
            after, _ = _responses(model, mean, spread, covariates)
            before, _ = _responses(model, mean, other, covariates)
            _, noise = _responses(model, mean, np.zeros_like(other), covariates, at_mean=True)
        except ValueError:
            # Formulas with unknown constants or support have no average response.
            return mean, spread, np.zeros(len(mean), dtype=bool)
    with np.errstate(invalid="ignore"):
        # Averages and variances that are not finite are not compared.
        moved = np.abs(after - before) > np.maximum(_FELT * np.sqrt(np.maximum(noise, 0.0)), _SKEWED * np.abs(before))
    rows = (moved & np.isfinite(before)).any(axis=1)
    mask = rows.reshape(-1, *[1] * (spread.ndim - 1))
    return np.where(rows[:, None], centre, mean), np.where(mask, other, spread), rows


def _like(variance: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Variances as covariances of each row's latents or vice versa, in the form of the other argument."""
    if variance.ndim == other.ndim:
        return variance
    return variance[:, :, None] * np.eye(variance.shape[1]) if other.ndim == 3 else np.diagonal(variance, 0, 1, 2)


def _responses(
    model: Model, mean: np.ndarray, variance: np.ndarray, covariates: Any, at_mean: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Averages of the responses (m, responses) over Gaussians, and the conditional variances of y."""
    nodes = nodes_at(model, mean, variance, covariates)
    nodes.levels = (1 if at_mean else _NODES if nodes.num_directions == 1 else _POINTS,) * 2
    predictive = Predictive(model.likelihood, nodes, covariates)
    if predictive.support.values() is None:
        return predictive.mean[:, None], predictive.variance[:, None]
    p = predictive.probabilities
    return p, p * (1.0 - p)


def warn_skewed(rows: np.ndarray, where: str) -> None:
    """Warn of rows in which y is predicted by the uncorrected Gaussian."""
    count = int(rows.sum())
    if count:
        warn(
            f"in {count} of {len(rows)} rows of {where} (first in row {int(np.argmax(rows))}) y is predicted with the "
            "uncorrected Gaussian of the latents: the wider one would move the mean of y, or the probability of a "
            f"label, by more than {_SKEWED:.0%}, by a tail that a skewed posterior does not have. predict_latent gives "
            "the corrected moments; predictions from gibbs or nuts are exact.",
            PredictionWarning,
        )
