"""Comparison of results: convergence, importance weights, scores, calibration of predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import scipy
from numpy.typing import ArrayLike

from pgmodels.data.arrays import as_numbers, check_whole_number, coded, first_column, in_units_of
from pgmodels.inference.evidence import LENGTH, BlockWeights, weigh, weigh_blocks
from pgmodels.inference.objectives import objective_of_result
from pgmodels.interop.arviz import to_arviz
from pgmodels.likelihoods.likelihood import log_density
from pgmodels.numerics.elementary import FEWEST_DRAWS
from pgmodels.numerics.quadrature import slices
from pgmodels.results.approximation import GaussianResult
from pgmodels.results.draws import Draws
from pgmodels.results.gaussian import is_invalid
from pgmodels.results.nested import require_result
from pgmodels.results.predictive import check_covariates
from pgmodels.results.result import Result, same_hyperparameters
from pgmodels.runtime.io import write_table
from pgmodels.runtime.messages import environment, shorten
from pgmodels.runtime.precision import double_precision
from pgmodels.runtime.seeds import NUM_SEEDS, Seed, as_seed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class ReliabilityBins:
    """Rows binned by the probability of their most probable class: bin b is (edges[b], edges[b + 1]].

    ``counts`` is the number of rows in each bin, ``confidence`` their mean probability. ``accuracy`` is the share of
    correctly classified rows. All are (bins,), NaN in empty bins.
    """

    edges: np.ndarray
    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def error(self) -> float:
        """The mean over rows of |accuracy - confidence| of their bin (Guo et al. 2017, equation 3)."""
        full = self.counts > 0
        gaps = np.abs(self.accuracy - self.confidence)[full]
        return float((self.counts[full] * gaps).sum() / self.counts.sum())


def reliability_bins(probabilities: np.ndarray, y: np.ndarray, num_bins: int = 15) -> ReliabilityBins:
    """Bin rows by top-label confidence, for ``probabilities`` (m, classes) and class positions ``y`` (m,).

    Bins are ((b - 1) / num_bins, b / num_bins] (Guo et al. 2017, equations 1 and 2).
    """
    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == y
    place = np.clip(np.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    count, hits, total = (
        np.bincount(place, weights=weights, minlength=num_bins) for weights in (None, correct, confidence)
    )
    with np.errstate(invalid="ignore"):
        return ReliabilityBins(np.arange(num_bins + 1) / num_bins, count, total / count, hits / count)


def expected_calibration_error(probabilities: np.ndarray, y: np.ndarray, num_bins: int = 15) -> float:
    """Return the expected calibration error: the mean over rows of |accuracy - confidence| of their bin.

    ``probabilities`` (m, classes), ``y`` (m,) class positions. Source: Guo et al. 2017, equation 3.
    """
    return reliability_bins(probabilities, y, num_bins).error


# R-hat and effective sample sizes: limits that Vehtari et al. 2021 recommend, and beyond which draws are unusable.
RHAT_LIMITS, ESS_LIMITS = (1.01, 1.05), (400, 100)

# Convergence of chains: effective sample sizes, R-hat and Monte-Carlo standard errors of every latent.

R = TypeVar("R")

# Results of ``of_draws`` by draws and function: tables, verdicts and figures need the same ones.
_cache: WeakKeyDictionary[Draws, dict[Callable[..., Any], Any]] = WeakKeyDictionary()


def of_draws(figures: Callable[[np.ndarray], R], draws: Draws) -> R:
    """Return ``figures(draws.latents)`` for a function of this module, computed once and cached."""
    cached = _cache.setdefault(draws, {})
    if figures not in cached:
        cached[figures] = figures(draws.latents)
    return cached[figures]


def convergence(draws: Draws) -> dict[str, float]:
    """Return smallest bulk and tail effective sample sizes and largest R-hat of draws' latents; see ``worst``."""
    return worst(draws.latents, *of_draws(convergence_by_latent, draws))


def worst(
    latents: np.ndarray, bulk: np.ndarray, tail: np.ndarray, rhat: np.ndarray, num_screened: int = 20
) -> dict[str, float]:
    """Return smallest bulk and tail effective sample sizes and largest R-hat of latents (chains, draws, n, latents).

    ArviZ computes each on its ``num_screened`` worst latents by ``convergence_by_latent``, which is vectorised. R-hat
    is NaN for one chain.
    """
    from arviz_stats.base import array_stats

    chains, draws = latents.shape[:2]
    if draws < 4:
        return {"ess_bulk": np.nan, "ess_tail": np.nan, "rhat": np.nan}
    x = latents.reshape(chains, draws, -1)
    least_bulk, least_tail, largest = (
        x[..., np.argsort(order.ravel())[:num_screened]] for order in (bulk, tail, -rhat)
    )
    axes = {"chain_axis": 0, "draw_axis": 1}
    return {
        "ess_bulk": float(np.min(array_stats.ess(least_bulk, **axes, method="bulk"))),
        "ess_tail": float(np.min(array_stats.ess(least_tail, **axes, method="tail", prob=(0.05, 0.95)))),
        "rhat": float(np.max(array_stats.rhat(largest, **axes))) if chains > 1 else np.nan,
    }


def convergence_by_latent(latents: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return bulk and tail effective sample sizes and R-hat (n, latents) of latents (chains, draws, n, latents).

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
    """Return Monte-Carlo standard errors of the means and variances of latents (chains, draws, n, latents)."""
    from numpyro.diagnostics import effective_sample_size

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
            # Constant draws have no error, and their effective size is not defined. With few draws it may be negative.
            with np.errstate(invalid="ignore"):
                size = np.maximum(effective_sample_size(_split(values)), 1.0)
                errors.append(np.where(deviation > 0.0, deviation / np.sqrt(size), 0.0))
    return np.concatenate(means).reshape(latents.shape[2:]), np.concatenate(variances).reshape(latents.shape[2:])


def _screen(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bulk and tail effective sample sizes and R-hat of (chains, draws, k) (Vehtari et al. 2021)."""
    from numpyro.diagnostics import effective_sample_size, gelman_rubin

    halves = _split(x)
    ranked = _normal_scores(halves)
    low, high = np.quantile(x, (0.05, 0.95), axis=(0, 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        tail = np.minimum(*(_effective_of_indicators(_split(x <= q)) for q in (low, high)))
        folded = _normal_scores(np.abs(halves - np.median(halves, axis=(0, 1))))
        return effective_sample_size(ranked), tail, np.maximum(gelman_rubin(ranked), gelman_rubin(folded))


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


class MomentErrors(NamedTuple):
    """Errors of means in posterior standard deviations, and ratios of standard deviations to these, (n, latents)."""

    shift: np.ndarray
    ratio: np.ndarray


def moment_errors(result: Result, mean: np.ndarray, variance: np.ndarray) -> MomentErrors:
    """Return the errors of a result's means and standard deviations for these posterior moments, (n, latents)."""
    unit, deviation = np.sqrt(variance), np.sqrt(np.maximum(result.variance, 0.0))
    return MomentErrors(in_units_of(unit, np.abs(result.mean - mean)), in_units_of(unit, deviation, known=1.0))


@dataclass(frozen=True, eq=False)
class ImportanceEstimate:
    """The posterior by Pareto-smoothed importance sampling from q(f) or a widened q (Vehtari et al. 2024).

    ``pareto_k`` is k-hat of the weights from q itself, a measure of its distance from the posterior. The estimates use
    ``num_draws`` draws of a Gaussian with q's mean and the precisions of its sites times ``widening``. Their
    effective sample size ``effective_size`` determines ``widening``; ``proposal_k`` is k-hat of their weights.

    ``mean`` and ``variance`` are posterior moments of f at the data, (n, latents). ``log_evidence`` is log p(y) of the
    formula and ``divergence`` is KL(q(f) ‖ p(f | y)), in nats. Each has a Monte-Carlo standard error. Compared with
    long Gibbs runs these were up to 1.4 times too small for ``proposal_k`` below 0.5, and up to 2.5 times above. All
    are None if ``proposal_k`` is above ``limit``: the standard errors are unreliable too, and ``reason`` explains it.
    With a long series and ``pgm.Markov()`` both k-hats are 0.9 quantiles over blocks of rows: see ``reason``.
    """

    pareto_k: float
    proposal_k: float
    limit: float
    widening: float
    num_draws: int
    effective_size: float
    reason: str | None = None
    mean: Any = field(default=None, repr=False)
    mean_error: Any = field(default=None, repr=False)
    variance: Any = field(default=None, repr=False)
    variance_error: Any = field(default=None, repr=False)
    log_evidence: Any = None
    log_evidence_error: Any = None
    divergence: Any = None
    divergence_error: Any = None


def pareto_k(approximation: GaussianResult, num_draws: int = 2000, seed: Seed = 0) -> float:
    """Return Pareto k-hat of the importance weights from q(f) to the posterior (Yao et al. 2018; Vehtari et al. 2024).

    For a long series it is the 0.9 quantile over its blocks.
    """
    blocks = weigh_blocks(approximation, num_draws, as_seed(seed))
    return blocks.k if blocks is not None else weigh(approximation, 1.0, num_draws, as_seed(seed)).weights.k


def importance_estimate(approximation: GaussianResult, num_draws: int, seed: Seed = 0) -> ImportanceEstimate:
    """Estimate the posterior from ``num_draws`` weighted draws, generated from ``seed``."""
    seed = as_seed(seed)
    blocks = weigh_blocks(approximation, num_draws, seed)
    if blocks is not None:
        return _of_blocks(blocks, num_draws)
    from_q = weigh(approximation, 1.0, num_draws, seed)
    # Factors on the sites' precisions: q is often too narrow, and importance weights need wide tails. The largest one
    # whose effective sample size, from 500 draws each, is within 5 % of the best.
    widenings, other_seed = (1.0, 0.7, 0.5, 0.35, 0.25), (seed + 1) % NUM_SEEDS
    sizes = np.array([weigh(approximation, share, 500, other_seed).weights.effective_size for share in widenings])
    widening = widenings[int(np.argmax(sizes >= 0.95 * sizes.max()))]
    # New draws for the chosen proposal, unless it is q.
    from_proposal = from_q
    if widening != 1.0:
        from_proposal = weigh(approximation, widening, num_draws, (seed + 2) % NUM_SEEDS)
    smoothed, log_ratios = from_proposal.weights, from_q.weights.log_ratios
    about = (from_q.weights.k, smoothed.k, smoothed.limit, widening, num_draws, smoothed.effective_size)
    if not smoothed.k <= smoothed.limit:
        reason = (
            f"Pareto k-hat of the weights is {smoothed.k:.2f}, above {smoothed.limit:.2f}: draws of q miss too "
            "much of the posterior for reliable weighted averages. Draw from the posterior with gibbs."
        )
        return ImportanceEstimate(*about, reason)
    weights = np.exp(smoothed.log_weights)
    mean = np.einsum("s,snl->nl", weights, from_proposal.f)
    centred = (from_proposal.f - mean) ** 2
    variance = np.einsum("s,snl->nl", weights, centred)
    # The divergence is log p(y) minus the average log ratio, from the same draws if q was not widened.
    divergence_error = float(np.hypot(smoothed.log_mean_error, log_ratios.std() / np.sqrt(num_draws)))
    if from_proposal is from_q:
        divergence_error = float((weights * num_draws - log_ratios).std() / np.sqrt(num_draws))
    return ImportanceEstimate(
        *about,
        mean=mean,
        mean_error=np.sqrt(np.einsum("s,snl->nl", weights**2, centred)),
        variance=variance,
        variance_error=np.sqrt(np.einsum("s,snl->nl", weights**2, (centred - variance) ** 2)),
        log_evidence=smoothed.log_mean,
        log_evidence_error=smoothed.log_mean_error,
        divergence=smoothed.log_mean - float(log_ratios.mean()),
        divergence_error=divergence_error,
    )


def _of_blocks(blocks: BlockWeights, num_draws: int) -> ImportanceEstimate:
    worst = int(np.argmax(blocks.k_hats))
    bad = int(np.sum(blocks.k_hats > blocks.limit))
    reason = (
        f"The series is long: k-hat is the 0.9 quantile over blocks of {LENGTH} rows each. It is above "
        f"{blocks.limit:.2f} in {bad} of {len(blocks.k_hats)} blocks, and largest, {blocks.k_hats[worst]:.2f}, in the "
        f"block from row {blocks.rows[worst]} on. Weights of whole draws would differ too much, however close q is; "
        "log_evidence estimates log p(y)."
    )
    return ImportanceEstimate(blocks.k, blocks.k, blocks.limit, 1.0, num_draws, math.nan, reason)


def crps(draws: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the unbiased continuous ranked probability score of each row, (m,), in units of y, from draws (draws, m).

    It is E|x - y| - E|x - x'| / 2 of independent draws x, x' (Gneiting and Raftery 2007, equation 21).
    """
    count = len(draws)
    # Sorted, the i-th of count draws is the larger one in i pairs and the smaller one in count - 1 - i.
    signs = 2.0 * np.arange(count) - (count - 1.0)
    spread = signs @ np.sort(draws, axis=0) / (count * (count - 1.0))
    return np.abs(draws - y).mean(axis=0) - spread


def interval_score(draws: np.ndarray, y: np.ndarray, level: float = 0.9, is_discrete: bool = False) -> np.ndarray:
    """Return the interval score of each row's central interval, (m,), in units of y, from draws (draws, m).

    It is the width plus 2 / (1 - level) times the distance of y from it (Gneiting and Raftery 2007, equation 43).
    """
    tail = 0.5 * (1.0 - level)
    method: Literal["inverted_cdf", "linear"] = "inverted_cdf" if is_discrete else "linear"
    low, high = np.quantile(draws, [tail, 1.0 - tail], axis=0, method=method)
    return high - low + (np.maximum(low - y, 0.0) + np.maximum(y - high, 0.0)) / tail


def loo(result: Result, *, num_draws: int = 4000, seed: Seed = 0) -> Any:
    """Estimate the expected log predictive density of leave-one-out.

    It is exact for a Gaussian approximation with a Gaussian likelihood, otherwise by Pareto-smoothed importance
    sampling.

    Parameters
    ----------
    result : Result
        Draws, an integrated result, or an approximation with a joint density: of ``cavi``, ``gaussian_vi``, ``fit`` or
        ``correct`` by linear response. Weights of its draws represent the posterior without each row.
    num_draws : int
        Draws of an approximation, at least 100.
    seed : int or jax.Array
        An int or a JAX key, for these draws.

    Returns
    -------
    arviz_stats.ELPDData
        The data of ``az.loo``, with ``elpd_i`` and ``pareto_k`` of each row.

    Raises
    ------
    ValueError
        For a corrected result without a joint density.

    Warns
    -----
    UserWarning
        By ArviZ, if Pareto k-hat of a row is above its limit: the estimate is then not reliable.

    Notes
    -----
    Learned hyperparameters are fixed: their dependence on the row that is left out is neglected.

    References
    ----------
    Vehtari, Gelman and Gabry 2017; Magnusson et al. 2019 for approximations.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.random.default_rng(0).random(30) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(X[:, 0])))
    >>> model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0)))
    >>> estimate = pgm.loo(pgm.gaussian_vi(model, X, y))
    >>> estimate.elpd_i.shape, bool((estimate.pareto_k < 0.7).all())
    ((30,), True)
    """
    import arviz_stats as az

    require_result(result, "result must be a result, such as of gibbs, fit or integrate")
    check_whole_number(num_draws, "num_draws", FEWEST_DRAWS)
    # Importance sampling needs a density.
    result = result.conditional
    if result.is_corrected and not result.has_density:
        raise ValueError(
            f"loo needs the joint density of an approximation; a result of method {result.method!r} has none. Use "
            "result.uncorrected, or its linear response, pgm.correct(result.uncorrected)."
        )
    # The variances that inducing inputs leave out are no part of what a row's factor divides.
    is_whole = result.weights is None and result.prior.residual_variances() is None
    if isinstance(result, GaussianResult) and is_whole and objective_of_result(result).has_fixed_sites:
        return _gaussian_loo(result)
    tree = to_arviz(result, num_draws, seed)
    stats = tree["sample_stats"]
    if "log_q" in stats:
        return az.loo_approximate_posterior(tree, stats["log_p"], stats["log_q"], pointwise=True)
    return az.loo(tree, pointwise=True)


def _gaussian_loo(result: GaussianResult) -> Any:
    """Leave-one-out of y = z + noise: without a row q(z) is divided by its Gaussian factor N(y; z, noise)."""
    import arviz_stats as az
    from xarray import DataArray

    size, y = result.model.num_latents, first_column(result.y)
    predictive = result.predict(result.X, result.likelihood.support(size).covariate_columns(result.y))
    noise = predictive.moments_given(slice(None), np.zeros((1, len(y), size)))[1][0]
    # Without the row the variance of z is 1 / (1 / v - 1 / noise), with v = predictive.variance - noise.
    variance = noise**2 / (2.0 * noise - predictive.variance)
    residual = (y - predictive.mean) * variance / noise
    elpd = -0.5 * (np.log(2.0 * np.pi * variance) + residual**2 / variance)
    total, excess = float(elpd.sum()), float(np.sum(predictive.log_density_at(result.y) - elpd))
    error = float(np.sqrt(len(y) * elpd.var()))
    return az.ELPDData(
        "loo", total, error, excess, 1, len(y), "log", False, 0.7, elpd_i=DataArray(elpd, dims="datum"),
        pareto_k=DataArray(np.zeros(len(y)), dims="datum"),
    )  # fmt: skip


@double_precision
def prediction_errors(draws: Draws, X: np.ndarray, y: np.ndarray, seed: Seed = 0) -> np.ndarray:
    """Return Monte-Carlo standard errors of the predictions of draws at X (m, d).

    They are of each class probability (m, classes), or of class 1 (m,) if there are two classes. If y is not a class,
    they are of its mean (m,). ``y`` (m,) or (m, columns) has the columns after the first; ``seed`` is for ``predict``.
    """
    size = draws.model.num_latents
    predictive = draws.predict(X, draws.likelihood.support(size).covariate_columns(y), seed)
    # Likelihood parameters may be drawn together with the latents.
    likelihood, f = predictive.evaluated_likelihood, predictive.nodes.at(slice(None), 0)[0]
    values = predictive.support.values()
    chunks = slices(len(X), len(f) * size)
    if values is None:
        means = (np.asarray(predictive.moments_given(rows, f[:, rows])[0]) for rows in chunks)
        return np.concatenate([_error(draws, mean) for mean in means])
    columns = []
    for value in values[1:] if len(values) == 2 else values:
        label = np.full(len(X), value) if y.ndim == 1 else np.column_stack([np.full(len(X), value), y[:, 1:]])
        probabilities = [np.exp(log_density(likelihood, label[rows], f[:, rows])) for rows in chunks]
        columns.append(np.concatenate([_error(draws, part) for part in probabilities]))
    return columns[0] if len(values) == 2 else np.stack(columns, axis=1)


def _error(draws: Draws, values: np.ndarray) -> np.ndarray:
    return standard_errors(values.reshape(draws.num_chains, -1, values.shape[-1], 1))[0][:, 0]


class Metric(NamedTuple):
    """A column of a comparison: its header in the printed table, and the function that picks the best value."""

    words: str
    best: Callable[..., float] = min


METRICS = {
    "mean_error": Metric("mean |error| of latent means"), "mean_error_max": Metric("largest |error| of latent means"),
    "variance_error": Metric("mean |error| of latent variances"),
    "variance_error_max": Metric("largest |error| of latent variances"),
    "wasserstein": Metric("mean Wasserstein-1 of marginals"), "misclassification": Metric("test misclassification"),
    "rmse": Metric("test RMSE of predictive mean"), "crps": Metric("test CRPS"),
    "interval_score": Metric("test interval score (90 %)"),
    "negative_log_density": Metric("test negative log density [nats]"),
    "calibration_error": Metric("test calibration error (15 bins)"), "elbo": Metric("ELBO [nats]", max),
    "pareto_k": Metric("Pareto k-hat"), "ess_bulk": Metric("smallest bulk ESS", max),
    "ess_tail": Metric("smallest tail ESS", max), "rhat": Metric("largest R-hat"), "seconds": Metric("seconds"),
}  # fmt: skip


@dataclass(eq=False)
class HeldOutData:
    """Test data X (m, d) and y (m,) or (m, columns), and each result's predictions of y.

    ``predictions`` holds, by label, class probabilities (m, classes) if ``is_class``, otherwise means (m,); results
    that cannot predict are omitted.
    """

    X: np.ndarray
    y: np.ndarray
    predictions: dict[str, np.ndarray]
    is_class: bool


@dataclass(eq=False)
class Comparison:
    """A comparison of results. ``reference`` is the label of the draws that errors are measured against.

    ``mcse_mean`` and ``mcse_variance`` are the Monte-Carlo standard errors of the reference's posterior means and
    variances, (n, latents): smaller errors are noise. ``notes`` lists the missing figures, and the reasons. ``results``
    has the compared results by label, and ``test`` the test data with each result's predictions, None without test
    data.
    """

    reference: str
    results: dict[str, Any] = field(repr=False)
    test: HeldOutData | None = field(repr=False)
    mcse_mean: np.ndarray = field(repr=False)
    mcse_variance: np.ndarray = field(repr=False)
    notes: tuple[str, ...]
    _frame: pd.DataFrame = field(repr=False)

    @property
    def draws(self) -> Draws:
        """The draws that errors are measured against."""
        return self.results[self.reference]

    @property
    def others(self) -> dict[str, Any]:
        """The results without the reference, by label."""
        return {label: result for label, result in self.results.items() if label != self.reference}

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row for each result and one numeric column for each metric, NaN if a metric does not apply.

        Errors against the reference are over all latents at the training data, in units of the latents, variances in
        squared units. ``mean_error`` and ``variance_error`` are means, ``mean_error_max`` and ``variance_error_max``
        maxima of absolute errors. ``wasserstein`` is the mean Wasserstein-1 distance of the marginals. On test data,
        ``misclassification`` is the error rate of the most probable class. ``rmse`` of the predictive mean, ``crps``
        and ``interval_score`` are in units of y. ``crps`` is the mean continuous ranked probability score,
        ``interval_score`` the mean over central 90 % intervals, both from 1,000 draws (Gneiting and Raftery 2007).
        ``negative_log_density`` is a mean in nats; ``calibration_error`` has 15 bins (Guo et al. 2017). ``elbo`` is in
        nats. ``pareto_k`` is of the weights from q to the posterior: above 0.7 q is unreliable. ``ess_bulk`` and
        ``ess_tail`` are the smallest over latents, ``rhat`` the largest. ``seconds`` are of computation.
        """
        return self._frame.copy()

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write comparison.csv to a folder, for ``pandas.read_csv(path, index_col=0)``; return its path.

        A label that a spreadsheet would read as a formula, such as ``=A1``, gets an apostrophe before it.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "comparison.csv"
        write_table(path, self._frame)
        return path

    def __str__(self) -> str:
        from pgmodels.report.summaries import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from pgmodels.report.summaries import as_html

        return as_html(self)

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw each result's marginals against the reference's with matplotlib; also write them to ``path`` as PNG.

        The figure has posterior means and variances at the training data. With test data it also has predictive
        probabilities, or means if y is not a class; see ``pgmodels.plot_marginals``.
        """
        from pgmodels.plots.marginals import plot_marginals

        figure = plot_marginals(self)
        if path is not None:
            figure.savefig(path, format="png", dpi=150)
        return figure

    def report(
        self,
        path: str | PathLike[str],
        *,
        title: str = "Comparison",
        class_names: Sequence[str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a self-contained HTML report; return its path.

        It contains a verdict on each result, this table, figures, a summary of data and model, the derivation, versions
        and machine.

        Parameters
        ----------
        path : str or PathLike
            The file.
        title : str, default "Comparison"
        class_names : sequence of str, optional
            The names of the classes, in order.
        settings : mapping, optional
            Further entries to record by name, such as ``seed``, or ``command``, the command that reproduces the report.

        Returns
        -------
        Path

        Raises
        ------
        ValueError
            If class_names do not match the classes.
        """
        from pgmodels.report.report import write_report

        recorded = {**(settings or {}), **environment()}
        return write_report(path, self, title=title, settings=recorded, class_names=class_names)


def require_comparison(comparison: object) -> Comparison:
    """Return the comparison, or raise ValueError for any other object."""
    if not isinstance(comparison, Comparison):
        raise ValueError(
            f"comparison must be a result of compare; got {type(comparison).__name__}. Use "
            "pgm.compare(gibbs=draws, cavi=approximation)."
        )
    return comparison


@double_precision
def compare(
    *,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    covariates: ArrayLike | None = None,
    reference: str | None = None,
    num_draws: int = 2000,
    seed: Seed = 0,
    **results: Result,
) -> Comparison:
    """Compare results for one data set with posterior draws: ``compare(gibbs=draws, cavi=approximation)``.

    Parameters
    ----------
    X : array_like, shape (m, d), optional
        Test inputs.
    y : array_like, shape (m,) or (m, columns), optional
        Test observations.
    covariates : array_like, shape (m, columns - 1), optional
        The columns of the test observations after the first, if ``y`` has only the first.
    reference : str, optional
        The label of the draws that errors are measured against; by default the first Draws among the results.
    num_draws : int
        Draws of q for Pareto k-hat.
    seed : int or jax.Array
        An int or a JAX key, for the draws of q.
    **results : Result
        The results, by label: of ``cavi``, ``gaussian_vi``, ``fit``, ``correct``, ``gibbs``, ``nuts`` or ``integrate``.

    Returns
    -------
    Comparison
        A table of metrics, which prints; ``to_dataframe`` explains them.

    Raises
    ------
    ValueError
        Without a Draws result, for results of different data, and for invalid test data.

    References
    ----------
    Pareto k-hat: Yao et al. 2018; Vehtari et al. 2024. Calibration error: Guo et al. 2017.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.random.default_rng(0).random(30) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(X[:, 0])))
    >>> model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0)))
    >>> draws = pgm.gibbs(model, X, y, num_samples=200, num_warmup=50, num_chains=2)
    >>> table = pgm.compare(gibbs=draws, cavi=pgm.cavi(model, X, y)).to_dataframe()
    >>> list(table.index), bool(table.loc["cavi", "mean_error"] < 0.3)
    (['gibbs', 'cavi'], True)
    """
    import pandas as pd

    seed = as_seed(seed)
    name, draws = _reference(results, reference)
    _check_same_data(results, name)
    notes: list[str] = []
    compared: dict[str, Any] = dict(results)
    for label, result in results.items():
        if result.uncertainty is not None and not draws.hyperparameters:
            compared[label] = result.conditional
            notes.append(f"{label} is compared at its learned parameters, without their uncertainty: {name} has none.")
    test = _check_test_data(draws, X, y, covariates)
    sorted_draws = np.sort(draws.latents.reshape(-1, draws.mean.size), axis=0)
    rows, predictions = {}, {}
    for label, result in compared.items():
        if not same_hyperparameters(result, draws):
            notes.append(
                f"{label} and {name} have different hyperparameters, or one samples hyperparameters that the other "
                "fixes: this is part of the error."
            )
        row = dict.fromkeys(METRICS, np.nan)
        if result is not draws:
            row |= _errors(result, draws, sorted_draws, label, notes)
        if test is not None:
            measured, predictions[label] = _test_metrics(result, *test, label, notes, seed)
            row |= measured
        if result.draws is not None:
            row |= convergence(result)
        gaussian: Any = result
        if result.has_elbo:
            row["elbo"] = gaussian.elbo
        if result.has_density:
            row["pareto_k"] = pareto_k(gaussian, num_draws, seed)
        row["seconds"] = result.seconds
        rows[label] = row
    is_class = draws.model.support.values() is not None
    of_numbers = ["rmse", "crps", "interval_score"]
    if test is None:
        held_out = None
        absent = ["misclassification", *of_numbers, "negative_log_density", "calibration_error"]
    else:
        held_out = HeldOutData(*test, {label: p for label, p in predictions.items() if p is not None}, is_class)
        absent = of_numbers if is_class else ["misclassification"]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=list(METRICS), dtype=float).drop(columns=absent)
    frame.index.name = "result"
    mcse_mean, mcse_variance = of_draws(standard_errors, draws)
    return Comparison(
        reference=name,
        mcse_mean=mcse_mean,
        mcse_variance=mcse_variance,
        notes=tuple(notes),
        results=compared,
        test=held_out,
        _frame=frame,
    )


def _reference(results: dict[str, Result], reference: str | None) -> tuple[str, Draws]:
    for label, result in results.items():
        options = " Test data are X and y, options are covariates, reference, num_draws and seed."
        require_result(result, f"{label} must be a result of cavi, correct, fit or gibbs", options)
    if reference is not None and not isinstance(reference, str):
        raise ValueError(
            f"reference must be the label of one of the results ({', '.join(results)}); got "
            f"{type(reference).__name__}. Pass the result by keyword and name it, as in gibbs=..., reference='gibbs'."
        )
    if reference is not None and reference not in results:
        raise ValueError(
            f"reference must be the label of one of the results ({', '.join(results)}); got {shorten(reference)}."
        )
    drawn = {label: result.draws for label, result in results.items() if result.draws is not None}
    if not drawn or (reference is not None and reference not in drawn):
        raise ValueError(
            f"{'compare needs' if reference is None else f'reference {reference!r} must be'} draws of the posterior to "
            "measure errors against: add gibbs=pgm.gibbs(model, X, y)."
        )
    name = reference or next(iter(drawn))
    return name, drawn[name]


def _check_same_data(results: dict[str, Result], name: str) -> None:
    first = results[name]
    for label, result in results.items():
        if result.model.num_latents != first.model.num_latents:
            raise ValueError(
                f"{label} has {result.model.num_latents} latents and {name} has {first.model.num_latents}: "
                "compare accepts only results of one model."
            )
        for array, attribute in (("X", "X"), ("y", "y"), ("weights", "row_weights")):
            one, other = getattr(result.data, attribute), getattr(first.data, attribute)
            if one.shape != other.shape or not np.array_equal(one, other):
                raise ValueError(
                    f"{label} and {name} were computed from different {array} (shapes {one.shape} and {other.shape}): "
                    "compare accepts only results of the same data, with rows in the same order."
                )


def _check_test_data(
    draws: Draws, X: ArrayLike | None, y: ArrayLike | None, covariates: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray] | None:
    if X is None and y is None:
        if covariates is not None:
            raise ValueError("covariates are columns of test data: pass X and y too.")
        return None
    if X is None or y is None:
        raise ValueError(f"test data need both X and y; got only {'y' if X is None else 'X'}.")
    inputs = draws.check_inputs(X, "X")
    if draws.labels is not None:
        y = coded(y, draws.labels, "y")
    if covariates is not None:
        first = as_numbers(y, "y")
        columns = check_covariates(draws.likelihood, draws.model.num_latents, covariates, len(inputs))
        if first.shape != (len(inputs),):
            raise ValueError(
                f"covariates are the columns of y after the first and need y of shape ({len(inputs)},); got y of shape "
                f"{first.shape}. Leave covariates out if y already has these columns."
            )
        y = np.column_stack([first, np.asarray(columns)])
    return inputs, draws.model.check_observations(y, len(inputs))


def _errors(result: Result, draws: Draws, sorted_draws: np.ndarray, label: str, notes: list[str]) -> dict[str, float]:
    mean_error, variance_error = np.abs(result.mean - draws.mean), np.abs(result.variance - draws.variance)
    measured = {
        "mean_error": mean_error.mean(),
        "mean_error_max": mean_error.max(),
        "variance_error": variance_error.mean(),
        "variance_error_max": variance_error.max(),
    }
    if result.draws is not None:
        from scipy.stats import wasserstein_distance

        other = result.draws.latents.reshape(-1, sorted_draws.shape[1])
        distances = np.array([wasserstein_distance(*pair) for pair in zip(sorted_draws.T, other.T, strict=True)])
    elif (invalid := is_invalid(result.variance)).any():
        count = int(invalid.sum())
        notes.append(
            f"{label}: no Wasserstein distance, since {count} of {result.variance.size} variances are not positive."
        )
        return measured
    else:
        marginals, draws_of = result.marginals, sorted_draws.reshape(-1, *result.mean.shape)
        chunks = slices(len(result.mean), sorted_draws[:, : result.mean.shape[1]].size)
        distances = np.concatenate([marginals[rows].wasserstein(draws_of[:, rows]) for rows in chunks])
    return measured | {"wasserstein": distances.mean()}


def _test_metrics(
    result: Result, X: np.ndarray, y: np.ndarray, label: str, notes: list[str], seed: int
) -> tuple[dict[str, float], np.ndarray | None]:
    try:
        predictive = result.predict(X, result.model.support.covariate_columns(y))
    except ValueError as error:
        notes.append(f"{label}: no predictions. {error}")
        return {}, None
    measured = {"negative_log_density": -predictive.log_density_at(y).mean()}
    values = predictive.support.values()
    if values is not None:
        probabilities = predictive.probabilities
        place = np.searchsorted(values, first_column(y))
        measured["misclassification"] = (probabilities.argmax(axis=1) != place).mean()
        measured["calibration_error"] = expected_calibration_error(probabilities, place)
        return measured, probabilities
    if any(piece.others is not None for piece in predictive.support.pieces(y)):
        notes.append(f"{label}: no test RMSE. The predictive mean does not apply to all rows, such as censored times.")
        return measured, None
    observed, mean = first_column(y), None
    try:
        draws = predictive.draw(1000, seed)
        measured["crps"] = crps(draws, observed).mean()
        measured["interval_score"] = interval_score(draws, observed, is_discrete=predictive.support.is_discrete).mean()
    except ValueError as error:
        notes.append(f"{label}: no CRPS and interval score. {error}")
    try:
        mean = predictive.mean
        measured["rmse"] = np.sqrt(np.mean((mean - observed) ** 2))
    except ValueError as error:
        notes.append(f"{label}: no test RMSE. {error}")
    return measured, mean
