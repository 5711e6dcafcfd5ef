"""How far results of one data set are from draws of its posterior, and from test data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pgmodels import generic
from pgmodels.arrays import as_numbers, first_column
from pgmodels.diagnostics.calibration import expected_calibration_error
from pgmodels.diagnostics.convergence import convergence, of_draws, standard_errors
from pgmodels.diagnostics.distances import wasserstein_to_gaussian
from pgmodels.diagnostics.importance import pareto_k
from pgmodels.integration import slices
from pgmodels.precision import double_precision
from pgmodels.results.approximation import Approximation
from pgmodels.results.correction import is_out_of_reach
from pgmodels.results.covariates import check_covariates
from pgmodels.results.draws import Draws
from pgmodels.results.predictive import Predictive
from pgmodels.results.result import Result, same_hyperparameters
from pgmodels.seeds import as_seed
from pgmodels.storage import written_whole

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# The columns of a comparison, and which way is better.
METRICS: dict[str, Callable[..., float]] = {
    "mean_error": min,
    "mean_error_max": min,
    "variance_error": min,
    "variance_error_max": min,
    "wasserstein": min,
    "misclassification": min,
    "rmse": min,
    "negative_log_density": min,
    "calibration_error": min,
    "elbo": max,
    "pareto_k": min,
    "ess_bulk": max,
    "ess_tail": max,
    "rhat": min,
    "seconds": min,
}


@dataclass(eq=False)
class HeldOutData:
    """Test data X (m, d) and y (m,) or (m, columns), and each result's prediction of y there.

    ``predictions`` holds, by label, probabilities (m, values) where ``is_class``, else means (m,); results that cannot
    predict are left out.
    """

    X: np.ndarray
    y: np.ndarray
    predictions: dict[str, np.ndarray]
    is_class: bool


@dataclass(eq=False)
class Comparison:
    """What ``compare`` found. ``reference`` names the draws that errors are measured against.

    ``mcse_mean`` and ``mcse_variance`` are the Monte-Carlo standard errors of the reference's own means and variances,
    (n, latents): smaller errors are noise. ``notes`` says what could not be computed, and why. ``results`` holds what
    was compared, by label, and ``test`` the test data with what each result predicts there, None where none were given.
    """

    reference: str
    results: dict[str, Any] = field(repr=False)
    test: HeldOutData | None = field(repr=False)
    mcse_mean: np.ndarray = field(repr=False)
    mcse_variance: np.ndarray = field(repr=False)
    notes: tuple[str, ...]
    _frame: pd.DataFrame = field(repr=False)

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
        with written_whole(path) as whole:
            self._frame.to_csv(whole)
        return path

    def __str__(self) -> str:
        return generic.text(self)

    def _repr_html_(self) -> str:
        return generic.html(self)

    def plot(self, path: Any = None) -> Figure:
        """A matplotlib Figure of each result's marginals against the reference's; writes a PNG where path is given.

        Posterior means and variances at the training data and, where test data were given, predictive probabilities
        (means, where y is not a class) there; see ``pgmodels.plot_marginals``.
        """
        figure = generic.figure(self)
        if path is not None:
            figure.savefig(path, format="png", dpi=150)
        return figure

    def report(
        self,
        path: Any,
        *,
        title: str = "Comparison",
        class_names: Sequence[str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a report to an HTML file that needs nothing else; its path.

        It holds a verdict on each result, this table, figures, the data and the model, the derivation, versions and
        machine. ``class_names`` name the classes in order; ``settings`` are further facts to record by name, such as
        ``seed``; under the name ``command``, how to run it again.
        Raises ValueError where class_names do not fit the classes.
        """
        return generic.report(self, path, title=title, settings=settings or {}, class_names=class_names)


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
    seed = as_seed(seed)
    name, draws = _reference(results, reference)
    _check_same_data(results, name)
    notes: list[str] = []
    test = _check_test_data(draws, X, y, covariates)
    sorted_draws = np.sort(draws.latents.reshape(-1, draws.mean.size), axis=0)
    rows, predictions = {}, {}
    for label, result in results.items():
        if not same_hyperparameters(result, draws):
            notes.append(
                f"{label} and {name} have other hyperparameters, or one samples what the other holds: part of the "
                "error is theirs."
            )
        row = dict.fromkeys(METRICS, np.nan)
        if result is not draws:
            row |= _errors(result, draws, sorted_draws, label, notes)
        if test is not None:
            measured, predictions[label] = _test_metrics(result, *test, label, notes)
            row |= measured
        if isinstance(result, Draws):
            row |= convergence(result)
        elif isinstance(result, Approximation):
            if not result.corrects_another:
                row["elbo"] = result.elbo
            if result.has_density:
                row["pareto_k"] = pareto_k(result, num_draws, seed)
        row["seconds"] = result.seconds
        rows[label] = row
    is_class = draws.likelihood.support(draws.model.num_latents).values() is not None
    absent = ["rmse"] if is_class else ["misclassification"]
    if test is None:
        absent = ["misclassification", "rmse", "negative_log_density", "calibration_error"]
    frame = _tabulate(rows, absent)
    mcse_mean, mcse_variance = of_draws(standard_errors, draws)
    return Comparison(
        reference=name,
        mcse_mean=mcse_mean,
        mcse_variance=mcse_variance,
        notes=tuple(notes),
        results=dict(results),
        test=None
        if test is None
        else HeldOutData(*test, {label: p for label, p in predictions.items() if p is not None}, is_class),
        _frame=frame,
    )


def _tabulate(rows: dict[str, dict[str, float]], absent: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame.from_dict(rows, orient="index", columns=list(METRICS), dtype=float).drop(columns=list(absent))
    frame.index.name = "result"
    return frame


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
    drawn = {label: result for label, result in results.items() if isinstance(result, Draws)}
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
    X = draws.check_inputs(X, "X")
    if covariates is not None:
        y = as_numbers(y, "y", is_new=True)
        given = check_covariates(draws.likelihood, draws.model.num_latents, covariates, len(X))
        if y.shape != (len(X),):
            raise ValueError(
                f"covariates hold the columns of y after the first, for y of shape ({len(X)},); got y of shape "
                f"{y.shape}. Leave covariates out where y has them already."
            )
        y = np.column_stack([y, np.asarray(given)])
    return X, draws.model.unweighted.check_observations(y, len(X), is_new=True)


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
        from scipy.stats import wasserstein_distance

        other = result.latents.reshape(-1, sorted_draws.shape[1])
        distances = np.array([wasserstein_distance(sorted_draws[:, i], other[:, i]) for i in columns])
    elif (bad := is_out_of_reach(result.variance)).any():
        count = int(bad.sum())
        notes.append(
            f"{label}: {count} of {result.variance.size} variances are not positive, so no Wasserstein distance."
        )
        return measured
    else:
        mean, scale = result.mean.ravel(), np.sqrt(result.variance).ravel()
        parts = slices(len(columns), len(sorted_draws))
        distances = np.concatenate([wasserstein_to_gaussian(sorted_draws[:, p], mean[p], scale[p]) for p in parts])
    return measured | {"wasserstein": distances.mean()}


def _test_metrics(
    result: Any, X: np.ndarray, y: np.ndarray, label: str, notes: list[str]
) -> tuple[dict[str, float], np.ndarray | None]:
    """The metrics on test data, and the probabilities or means predicted there."""
    try:
        predictive: Predictive = result.predict(X, result.likelihood.support(result.model.num_latents).given(y))
    except ValueError as error:
        notes.append(f"{label}: no predictions. {error}")
        return {}, None
    measured = {"negative_log_density": -predictive.log_density(y).mean()}
    values = predictive.support.values()
    if values is not None:
        probabilities = predictive.probabilities
        place = np.searchsorted(values, first_column(y))
        measured["misclassification"] = (probabilities.argmax(axis=1) != place).mean()
        measured["calibration_error"] = expected_calibration_error(probabilities, place)
        return measured, probabilities
    if any(piece.others is not None for piece in predictive.support.pieces(y)):
        notes.append(f"{label}: no test RMSE. The mean is not that of every first column of y, as of times cut short.")
        return measured, None
    try:
        mean = predictive.mean
    except ValueError as error:
        notes.append(f"{label}: no test RMSE. {error}")
        return measured, None
    return measured | {"rmse": np.sqrt(np.mean((mean - first_column(y)) ** 2))}, mean
