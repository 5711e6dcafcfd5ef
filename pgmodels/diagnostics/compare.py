"""How far results of one data set are from draws of its posterior, and from test data."""

import io
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from arviz_stats.base import array_stats
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from rich.console import Console
from rich.table import Table
from scipy.special import ndtr, ndtri
from scipy.stats import rankdata, wasserstein_distance

from pgmodels.interop import pointwise_log_likelihood
from pgmodels.precision import double_precision
from pgmodels.prediction import Predictive
from pgmodels.results import Approximation, CorrectedApproximation, Draws, Result

# Latents whose convergence is worked out by ArviZ itself: the worst by a vectorised screening.
_WORST = 20
# Values of (draws, latents) at a time.
_CHUNK = 4_000_000
# Okabe and Ito's colours, which colour-blind readers can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX"

# What Vehtari et al. 2021 ask of a sampler before its summaries are used, R-hat less strictly: it is one of many.
_LARGEST_RHAT, _SMALLEST_ESS = 1.05, 100

# Column, its words in the printed table, and which way is better.
_METRICS = {
    "mean_error": ("mean |error| of latent means", min),
    "mean_error_max": ("largest |error| of latent means", min),
    "variance_error": ("mean |error| of latent variances", min),
    "variance_error_max": ("largest |error| of latent variances", min),
    "wasserstein": ("mean Wasserstein-1 of marginals", min),
    "misclassification": ("test misclassification", min),
    "rmse": ("test RMSE of predictive mean", min),
    "negative_log_density": ("test negative log density [nats]", min),
    "calibration_error": ("test calibration error (15 bins)", min),
    "elbo": ("ELBO [nats]", max),
    "pareto_k": ("Pareto k-hat", min),
    "ess_bulk": ("smallest bulk ESS", max),
    "ess_tail": ("smallest tail ESS", max),
    "rhat": ("largest R-hat", min),
    "seconds": ("seconds", min),
}


@dataclass(eq=False)
class Comparison:
    """What ``compare`` found. ``reference`` names the draws that errors are measured against.

    ``mcse_mean`` and ``mcse_variance`` are the Monte-Carlo standard errors of the reference's own means and variances,
    (n, latents): smaller errors are noise. ``notes`` says what could not be computed, and why.
    """

    reference: str
    mcse_mean: np.ndarray = field(repr=False)
    mcse_variance: np.ndarray = field(repr=False)
    notes: tuple[str, ...]
    _frame: pd.DataFrame = field(repr=False)
    _marginals: dict[str, tuple[np.ndarray, np.ndarray]] = field(repr=False)
    _predictions: dict[str, np.ndarray] = field(repr=False)
    _predicted: str = field(repr=False)

    def to_dataframe(self) -> pd.DataFrame:
        """A row a result and a numeric column a metric, NaN where a metric does not apply.

        Against the reference, over all latents at the training data: ``mean_error`` and ``variance_error`` (mean
        absolute), ``mean_error_max`` and ``variance_error_max`` (largest absolute), ``wasserstein`` (mean Wasserstein-1
        distance of the marginals); in the latents' units, the variances' in its square. On test data:
        ``misclassification`` (share of rows whose most probable class is wrong) or ``rmse`` (of the predictive mean,
        in y's units), ``negative_log_density`` (mean, nats), ``calibration_error`` (Guo et al. 2017, 15 bins).
        ``elbo`` (nats); ``pareto_k`` (of importance weights from q to the posterior; above 0.7 q is not to be trusted);
        ``ess_bulk``, ``ess_tail`` (smallest of the latents) and ``rhat`` (largest); ``seconds`` of computation.
        """
        return self._frame.copy()

    def save(self, folder: Any) -> Path:
        """Write comparison.csv (``pandas.read_csv(path, index_col=0)`` reads it back) into a folder; its path."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "comparison.csv"
        self._frame.to_csv(path)
        return path

    def __str__(self) -> str:
        out = io.StringIO()
        Console(file=out, width=100, color_system=None, force_terminal=False).print(self._table())
        return "\n".join([out.getvalue().rstrip(), *self._footer()])

    def plot(self, path: Any = None) -> Any:
        """A matplotlib Figure of each result's marginals against the reference's; writes a PNG where path is given.

        Posterior means and variances at the training data and, where test data were given, predictive probabilities
        (means, where y is not a class) there.
        """
        from matplotlib.figure import Figure

        panels = [
            ("Posterior mean", {name: m for name, (m, _) in self._marginals.items()}),
            ("Posterior variance", {name: v for name, (_, v) in self._marginals.items()}),
        ]
        if self.reference in self._predictions:
            panels.append((self._predicted, self._predictions))
        figure = Figure(figsize=(4.0 * len(panels), 4.5), layout="constrained")
        for axes, (title, values) in zip(figure.subplots(1, len(panels)), panels, strict=True):
            self._scatter(axes, title, values)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False)
        if path is not None:
            figure.savefig(path, format="png", dpi=150)
        return figure

    def _scatter(self, axes: Any, title: str, values: dict[str, np.ndarray]) -> None:
        reference = values[self.reference].ravel()
        shown = [reference]
        for index, (name, value) in enumerate((k, v) for k, v in values.items() if k != self.reference):
            shown.append(value.ravel())
            axes.scatter(
                reference,
                value.ravel(),
                s=float(np.clip(3000 / reference.size, 3, 20)),
                alpha=0.65,
                linewidths=0,
                color=_COLOURS[index % len(_COLOURS)],
                marker=_MARKERS[index % len(_MARKERS)],
                label=name,
                rasterized=reference.size > 5000,
            )
        every = np.concatenate(shown)
        low, high = np.nanmin(every), np.nanmax(every)
        margin = 0.04 * (high - low) or 0.5
        line = (low - margin, high + margin)
        axes.plot(line, line, color="0.4", linewidth=0.9, linestyle="--", zorder=0, label="equal")
        axes.set(xlim=line, ylim=line, title=title, xlabel=f"{self.reference} (reference)", ylabel="approximation")
        axes.set_aspect("equal")
        axes.spines[["top", "right"]].set_visible(False)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="", title=None)
        table.add_column("", no_wrap=True)
        for name in self._frame.index:
            table.add_column(
                f"{name} (ref.)" if name == self.reference else str(name), justify="right", overflow="fold"
            )
        for column in self._frame.columns:
            words, better = _METRICS[column]
            values = self._frame[column]
            if values.isna().all():
                continue
            texts = [_number(value) for value in values]
            # What prints alike is alike; where all is alike, or alone, nothing is best.
            best = _number(better(values.dropna())) if len(set(texts) - {"-"}) > 1 else None
            table.add_row(words, *[text + ("*" if text == best else " ") for text in texts])
        return table

    def _footer(self) -> list[str]:
        means, variances = _number(self.mcse_mean.mean()), _number(self.mcse_variance.mean())
        return [
            f"* best of the row. Errors are measured against {self.reference}, whose own Monte-Carlo standard errors",
            f"  are {means} (means) and {variances} (variances) on average over the latents: smaller errors are noise.",
            *self._caution(),
            *(f"  {note}" for note in self.notes),
        ]

    def _caution(self) -> list[str]:
        """Whether the reference's own diagnostics allow it to be one."""
        own = self._frame.loc[self.reference]
        rhat, ess = own["rhat"], min(own["ess_bulk"], own["ess_tail"])
        if rhat > _LARGEST_RHAT or ess < _SMALLEST_ESS:
            return [
                f"! Do not trust these errors yet: {self.reference} has R-hat {_number(rhat)} and bulk or tail ESS",
                f"  {_number(ess)} at worst (wanted: below {_LARGEST_RHAT}, above {_SMALLEST_ESS}). Draw more.",
            ]
        return []


@double_precision
def compare(
    *,
    X: Any = None,
    y: Any = None,
    covariates: Any = None,
    reference: str | None = None,
    num_draws: int = 2000,
    seed: int = 0,
    **results: Result,
) -> Comparison:
    """Compare results of one data set with draws of its posterior: ``compare(gibbs=draws, cavi=approximation)``.

    The keywords label the results. The reference is the first Draws among them, or the one that ``reference`` names.
    ``X`` (m, d) and ``y`` are test data, y (m,) or (m, columns); columns after the first may be given as
    ``covariates`` (m, columns - 1) instead. ``num_draws`` of q, made from ``seed``, go into Pareto k-hat.
    Raises ValueError where there is no Draws, results differ in their data, or test data do not fit.
    """
    name, draws = _reference(results, reference)
    _check_same_data(results, name)
    notes: list[str] = []
    test = _check_test_data(draws, X, y, covariates)
    sorted_draws = np.sort(draws.latents.reshape(-1, draws.mean.size), axis=0)
    rows, predictions = {}, {}
    for label, result in results.items():
        row = dict.fromkeys(_METRICS, np.nan)
        if result is not draws:
            row |= _errors(result, draws, sorted_draws, label, notes)
        if test is not None:
            measured, predictions[label] = _test_metrics(result, *test, label, notes)
            row |= measured
        if isinstance(result, Draws):
            row |= convergence(result.latents)
        elif isinstance(result, Approximation) and not isinstance(result, CorrectedApproximation):
            row |= {"elbo": result.elbo, "pareto_k": pareto_k(result, num_draws, seed)}
        row["seconds"] = result.seconds
        rows[label] = row
    is_class = draws.model.likelihood.support(draws.model.num_latents).values() is not None
    absent = ["rmse"] if is_class else ["misclassification"]
    if test is None:
        absent = ["misclassification", "rmse", "negative_log_density", "calibration_error"]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=list(_METRICS), dtype=float).drop(columns=absent)
    frame.index.name = "result"
    mcse_mean, mcse_variance = standard_errors(draws.latents)
    return Comparison(
        reference=name,
        mcse_mean=mcse_mean,
        mcse_variance=mcse_variance,
        notes=tuple(notes),
        _frame=frame,
        _marginals={label: (result.mean, result.variance) for label, result in results.items()},  # type: ignore[attr-defined]
        _predictions={label: p for label, p in predictions.items() if p is not None},
        _predicted="Predictive probability" if is_class else "Predictive mean",
    )


def wasserstein_to_gaussian(sorted_draws: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Wasserstein-1 distance of the empirical law of sorted draws (draws, k) from N(mean, scale^2), (k,), exactly.

    The integral of |x_(i) - mean - scale Phi^-1(u)| over u in ((i - 1) / S, i / S), summed over the S draws.
    """
    size = len(sorted_draws)
    edges = np.linspace(0.0, 1.0, size + 1)[:, None]
    heights = np.exp(-0.5 * ndtri(edges) ** 2) / np.sqrt(2.0 * np.pi)
    offset = sorted_draws - mean
    # The integrand changes sign where the Gaussian's quantile passes the draw.
    z = np.clip(offset / scale, ndtri(edges[:-1]), ndtri(edges[1:]))
    turn = 2.0 * (offset * ndtr(z) + scale * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi))
    ends = offset * (edges[:-1] + edges[1:]) + scale * (heights[:-1] + heights[1:])
    return np.maximum(turn - ends, 0.0).sum(axis=0)


def expected_calibration_error(probabilities: np.ndarray, y: np.ndarray, num_bins: int = 15) -> float:
    """The mean over rows of |accuracy - confidence| of their bin of top-label confidence (Guo et al. 2017, equation 3).

    ``probabilities`` (m, classes), ``y`` (m,) class positions. Bins are ((b - 1) / num_bins, b / num_bins].
    """
    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == y
    bins = np.clip(np.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    gaps = np.bincount(bins, weights=correct - confidence, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(y))


def pareto_k(approximation: Approximation, num_draws: int = 2000, seed: int = 0) -> float:
    """Pareto k-hat of the importance weights from q(f) to the posterior (Yao et al. 2018; Vehtari et al. 2024).

    q(f) is p(f) times the sites exp(h f - w f^2 / 2), normalised, so the log weight of a draw is
    sum log p(y | f) - sum (h f - w f^2 / 2) up to a constant, without p(f).
    """
    f, _ = approximation.draw_latents(num_draws, seed)
    sites = approximation.potential * f - 0.5 * approximation.precision * f**2
    log_weights = pointwise_log_likelihood(approximation, f).sum(axis=-1) - sites.sum(axis=(-2, -1))
    # Equal weights to rounding: q is the posterior, and there is no tail to fit.
    if np.ptp(log_weights) < 1e-6 * max(1.0, float(np.abs(log_weights).max())):
        return -np.inf
    # psislw takes the log likelihood of leave-one-out, the negative of a log weight.
    return float(array_stats.psislw(-log_weights)[1])


def convergence(latents: np.ndarray) -> dict[str, float]:
    """Smallest bulk and tail effective sample size and largest R-hat of latents (chains, draws, n, latents).

    By ArviZ, on the 20 worst latents of each by NumPyro's vectorised estimates; R-hat is NaN for one chain.
    """
    chains, draws = latents.shape[:2]
    x = latents.reshape(chains, draws, -1)
    if draws < 4:
        return {"ess_bulk": np.nan, "ess_tail": np.nan, "rhat": np.nan}
    screened = [_screen(x[..., part]) for part in _parts(x)]
    bulk, tail, rhat = (np.concatenate(column) for column in zip(*screened, strict=True))
    worst = {
        "ess_bulk": np.argsort(bulk)[:_WORST],
        "ess_tail": np.argsort(tail)[:_WORST],
        "rhat": np.argsort(-rhat)[:_WORST],
    }
    axes = {"chain_axis": 0, "draw_axis": 1}
    return {
        "ess_bulk": float(np.min(array_stats.ess(x[..., worst["ess_bulk"]], **axes, method="bulk"))),
        "ess_tail": float(np.min(array_stats.ess(x[..., worst["ess_tail"]], **axes, method="tail", prob=(0.05, 0.95)))),
        "rhat": float(np.max(array_stats.rhat(x[..., worst["rhat"]], **axes))) if chains > 1 else np.nan,
    }


def standard_errors(latents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Monte-Carlo standard errors of the means and of the variances of latents (chains, draws, n, latents)."""
    x = latents.reshape(*latents.shape[:2], -1)
    if x.shape[1] < 4:
        nothing = np.full(latents.shape[2:], np.nan)
        return nothing, nothing
    means, variances = [], []
    for part in _parts(x):
        squares = (x[..., part] - x[..., part].mean(axis=(0, 1))) ** 2
        means.append(x[..., part].std(axis=(0, 1)) / np.sqrt(effective_sample_size(_split(x[..., part]))))
        variances.append(squares.std(axis=(0, 1)) / np.sqrt(effective_sample_size(_split(squares))))
    return np.concatenate(means).reshape(latents.shape[2:]), np.concatenate(variances).reshape(latents.shape[2:])


def _screen(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bulk and tail effective sample sizes and R-hat of (chains, draws, k) (Vehtari et al. 2021)."""
    halves = _split(x)
    ranked = _normal_scores(halves)
    low, high = np.quantile(x, (0.05, 0.95), axis=(0, 1))
    with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        tail = np.minimum(*(effective_sample_size(_split((x <= q).astype(float))) for q in (low, high)))
        folded = _normal_scores(np.abs(halves - np.median(halves, axis=(0, 1))))
        return (
            effective_sample_size(ranked),
            tail,
            np.maximum(split_gelman_rubin(ranked), split_gelman_rubin(folded)),
        )


def _split(x: np.ndarray) -> np.ndarray:
    half = x.shape[1] // 2
    return np.concatenate([x[:, :half], x[:, -half:]])


def _normal_scores(x: np.ndarray) -> np.ndarray:
    size = x.shape[0] * x.shape[1]
    ranks = rankdata(x.reshape(size, -1), axis=0)
    return ndtri((ranks - 0.375) / (size + 0.25)).reshape(x.shape)


def _parts(x: np.ndarray) -> list[slice]:
    step = max(1, _CHUNK // (x.shape[0] * x.shape[1]))
    return [slice(start, start + step) for start in range(0, x.shape[-1], step)]


def _reference(results: dict[str, Result], reference: str | None) -> tuple[str, Draws]:
    for label, result in results.items():
        if not isinstance(result, Result):
            raise ValueError(
                f"{label} must be what cavi, correct, fit or gibbs return; got {type(result).__name__}. Test data are "
                "X and y, options are covariates, reference, num_draws and seed."
            )
    if reference is not None and not isinstance(reference, str):
        raise ValueError(
            f"reference must be the name of one of the results ({', '.join(results)}); got {type(reference).__name__}. "
            "Pass the result under a name of its own, as in gibbs=..., reference='gibbs'."
        )
    if reference is not None and reference not in results:
        raise ValueError(f"reference must name one of the results ({', '.join(results)}); got {reference!r}.")
    names = [label for label, result in results.items() if isinstance(result, Draws)]
    if not names or (reference is not None and reference not in names):
        raise ValueError(
            f"{'compare needs' if reference is None else f'reference {reference!r} must be'} draws of the posterior to "
            "measure errors against: add gibbs=pgm.gibbs(model, X, y)."
        )
    name = reference or names[0]
    draws = results[name]
    assert isinstance(draws, Draws)
    return name, draws


def _check_same_data(results: dict[str, Result], name: str) -> None:
    first = results[name]
    for label, result in results.items():
        if result.model.num_latents != first.model.num_latents:
            raise ValueError(
                f"{label} has {result.model.num_latents} latents and {name} has {first.model.num_latents}: "
                "compare takes results of one model."
            )
        for what, one, other in (("X", result.X, first.X), ("y", result.y, first.y)):
            if one.shape != other.shape or not np.array_equal(one, other):
                raise ValueError(
                    f"{label} and {name} were made from different {what} (shapes {one.shape} and {other.shape}): "
                    "compare takes results of the same data, rows in the same order."
                )


def _check_test_data(draws: Draws, X: Any, y: Any, covariates: Any) -> tuple[np.ndarray, np.ndarray] | None:
    if X is None and y is None:
        if covariates is not None:
            raise ValueError("covariates belong to test data: give X and y too.")
        return None
    if X is None or y is None:
        raise ValueError(f"test data are X and y together; got {'y' if X is None else 'X'} alone.")
    X = draws.model.check_inputs(X)
    if covariates is not None:
        y, covariates = np.asarray(y), np.asarray(covariates)
        if y.ndim != 1 or len(covariates) != len(y):
            raise ValueError(
                f"covariates hold the columns of y after the first, for y of shape (m,); got y of shape {y.shape} and "
                f"covariates of shape {covariates.shape}. Leave covariates out where y has them already."
            )
        y = np.column_stack([y, covariates])
    return X, draws.model.check_observations(y, len(X))


def _errors(result: Any, draws: Draws, sorted_draws: np.ndarray, label: str, notes: list[str]) -> dict[str, float]:
    mean_error, variance_error = np.abs(result.mean - draws.mean), np.abs(result.variance - draws.variance)
    measured = {
        "mean_error": mean_error.mean(),
        "mean_error_max": mean_error.max(),
        "variance_error": variance_error.mean(),
        "variance_error_max": variance_error.max(),
    }
    columns = range(sorted_draws.shape[1])
    if isinstance(result, Draws):
        other = result.latents.reshape(-1, sorted_draws.shape[1])
        distances = np.array([wasserstein_distance(sorted_draws[:, i], other[:, i]) for i in columns])
    elif not (result.variance > 0).all():
        count = int((~(result.variance > 0)).sum())
        notes.append(
            f"{label}: {count} of {result.variance.size} variances are not positive, so no Wasserstein distance."
        )
        return measured
    else:
        mean, scale = result.mean.ravel(), np.sqrt(result.variance).ravel()
        step = max(1, _CHUNK // len(sorted_draws))
        parts = [slice(start, start + step) for start in columns[::step]]
        distances = np.concatenate([wasserstein_to_gaussian(sorted_draws[:, p], mean[p], scale[p]) for p in parts])
    return measured | {"wasserstein": distances.mean()}


def _test_metrics(
    result: Any, X: np.ndarray, y: np.ndarray, label: str, notes: list[str]
) -> tuple[dict[str, float], np.ndarray | None]:
    """The metrics on test data, and what the plot shows: probabilities (of 1 for two classes) or means."""
    try:
        predictive: Predictive = result.predict(X, y[:, 1:] if y.ndim == 2 else None)
    except ValueError as error:
        notes.append(f"{label}: no predictions. {error}")
        return {}, None
    measured = {"negative_log_density": -predictive.log_density(y).mean()}
    values = predictive.support.values()
    if values is not None:
        probabilities = predictive.probabilities
        place = np.searchsorted(values, y)
        measured["misclassification"] = (probabilities.argmax(axis=1) != place).mean()
        measured["calibration_error"] = expected_calibration_error(probabilities, place)
        return measured, probabilities[:, 1] if len(values) == 2 else probabilities
    try:
        mean = predictive.mean
    except ValueError as error:
        notes.append(f"{label}: no test RMSE. {error}")
        return measured, None
    first = y[:, 0] if y.ndim == 2 else y
    return measured | {"rmse": np.sqrt(np.mean((mean - first) ** 2))}, mean


def _number(value: float) -> str:
    if np.isnan(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.4g}"
