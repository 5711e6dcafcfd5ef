"""Comparison of results for one data set with posterior draws, and on test data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.data.arrays import as_numbers, first_column
from pgmodels.data.labels import coded
from pgmodels.diagnostics.calibration import expected_calibration_error
from pgmodels.diagnostics.convergence import convergence, of_draws, standard_errors
from pgmodels.diagnostics.importance import pareto_k
from pgmodels.diagnostics.scores import crps, interval_score
from pgmodels.numerics.quadrature import slices
from pgmodels.results.approximation import GaussianResult
from pgmodels.results.correction import is_invalid
from pgmodels.results.covariates import check_covariates
from pgmodels.results.draws import Draws
from pgmodels.results.predictive import Predictive
from pgmodels.results.result import Result, same_hyperparameters
from pgmodels.results.sparse import name_type
from pgmodels.runtime.atomic_io import write_table
from pgmodels.runtime.formatting import shorten
from pgmodels.runtime.provenance import environment
from pgmodels.runtime.seeds import Seed, as_seed
from pgmodels.runtime.x64 import double_precision

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Draws of y for scores on test data.
_DRAWS = 1000

# The columns of a comparison, and the function that picks the best value.
METRICS: dict[str, Callable[..., float]] = {
    "mean_error": min,
    "mean_error_max": min,
    "variance_error": min,
    "variance_error_max": min,
    "wasserstein": min,
    "misclassification": min,
    "rmse": min,
    "crps": min,
    "interval_score": min,
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
    variances, (n, latents): smaller errors are noise. ``notes`` lists what could not be computed, and why. ``results``
    holds the compared results by label, and ``test`` the test data with each result's predictions, None without test
    data.
    """

    reference: str
    results: dict[str, Any] = field(repr=False)
    test: HeldOutData | None = field(repr=False)
    mcse_mean: np.ndarray = field(repr=False)
    mcse_variance: np.ndarray = field(repr=False)
    notes: tuple[str, ...]
    _frame: pd.DataFrame = field(repr=False)

    def to_dataframe(self) -> pd.DataFrame:
        """One row for each result and one numeric column for each metric, NaN where a metric does not apply.

        Against the reference, over all latents at the training data: ``mean_error`` and ``variance_error`` (mean
        absolute errors), ``mean_error_max`` and ``variance_error_max`` (largest absolute errors), ``wasserstein`` (mean
        Wasserstein-1 distance of the marginals), in units of the latents, variances in squared units. On test data:
        ``misclassification`` (error rate of the most probable class) or, in units of y, ``rmse`` (of the predictive
        mean), ``crps`` (mean continuous ranked probability score) and ``interval_score`` (mean, of central 90 %
        intervals), the last two from 1,000 draws (Gneiting and Raftery 2007); ``negative_log_density`` (mean, nats),
        ``calibration_error`` (Guo et al. 2017, 15 bins). ``elbo`` (nats); ``pareto_k`` (of importance weights from q
        to the posterior; above 0.7 q is unreliable); ``ess_bulk``, ``ess_tail`` (smallest over latents) and ``rhat``
        (largest); ``seconds`` of computation.
        """
        return self._frame.copy()

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write comparison.csv to a folder, for ``pandas.read_csv(path, index_col=0)``; returns its path.

        A label that a spreadsheet would read as a formula, such as ``=A1``, gets an apostrophe before it.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "comparison.csv"
        write_table(path, self._frame)
        return path

    def __str__(self) -> str:
        from pgmodels.report.table import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from pgmodels.report.table import as_html

        return as_html(self)

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """A matplotlib Figure of each result's marginals against the reference's, also written to ``path`` as PNG.

        Posterior means and variances at the training data and, with test data, predictive probabilities (means, if y
        is not a class) there; see ``pgmodels.plot_marginals``.
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
        """Write a self-contained HTML report; returns its path.

        It contains a verdict on each result, this table, figures, a summary of data and model, the derivation, versions
        and machine.

        Parameters
        ----------
        path : str or PathLike
            Where to write the file.
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
    seed = as_seed(seed)
    name, draws = _reference(results, reference)
    _check_same_data(results, name)
    notes: list[str] = []
    for label, result in results.items():
        if isinstance(result, GaussianResult) and result.uncertainty is not None and not draws.hyperparameters:
            results[label] = result.conditional
            notes.append(f"{label} is compared at its learned parameters, without their uncertainty: {name} has none.")
    test = _check_test_data(draws, X, y, covariates)
    sorted_draws = np.sort(draws.latents.reshape(-1, draws.mean.size), axis=0)
    rows, predictions = {}, {}
    for label, result in results.items():
        if not same_hyperparameters(result, draws):
            notes.append(
                f"{label} and {name} have different hyperparameters, or one samples hyperparameters that the other "
                "fixes: part of the error is due to that."
            )
        row = dict.fromkeys(METRICS, np.nan)
        if result is not draws:
            row |= _errors(result, draws, sorted_draws, label, notes)
        if test is not None:
            measured, predictions[label] = _test_metrics(result, *test, label, notes, seed)
            row |= measured
        if isinstance(result, Draws):
            row |= convergence(result)
        elif isinstance(result, GaussianResult):
            if not result.corrects_another:
                row["elbo"] = result.elbo
            if result.has_density:
                row["pareto_k"] = pareto_k(result, num_draws, seed)
        row["seconds"] = result.seconds
        rows[label] = row
    is_class = draws.likelihood.support(draws.model.num_latents).values() is not None
    of_numbers = ["rmse", "crps", "interval_score"]
    absent = of_numbers if is_class else ["misclassification"]
    if test is None:
        absent = ["misclassification", *of_numbers, "negative_log_density", "calibration_error"]
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
                f"{label} must be a result of cavi, correct, fit or gibbs; got {name_type(result)}. Test data are "
                "X and y, options are covariates, reference, num_draws and seed."
            )
    if reference is not None and not isinstance(reference, str):
        raise ValueError(
            f"reference must be the label of one of the results ({', '.join(results)}); got "
            f"{type(reference).__name__}. Pass the result by keyword and name it, as in gibbs=..., reference='gibbs'."
        )
    if reference is not None and reference not in results:
        raise ValueError(
            f"reference must be the label of one of the results ({', '.join(results)}); got {shorten(reference)}."
        )
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
        names, data, others = ("X", "y", "weights"), result.data, first.data
        pairs = zip((data.X, data.y, data.row_weights), (others.X, others.y, others.row_weights), strict=True)
        for array, (one, other) in zip(names, pairs, strict=True):
            if one.shape != other.shape or not np.array_equal(one, other):
                raise ValueError(
                    f"{label} and {name} were computed from different {array} (shapes {one.shape} and {other.shape}): "
                    "compare takes results of the same data, rows in the same order."
                )


def _check_test_data(draws: Draws, X: Any, y: Any, covariates: Any) -> tuple[np.ndarray, np.ndarray] | None:
    if X is None and y is None:
        if covariates is not None:
            raise ValueError("covariates belong to test data: pass X and y too.")
        return None
    if X is None or y is None:
        raise ValueError(f"test data need both X and y; got only {'y' if X is None else 'X'}.")
    X = draws.check_inputs(X, "X")
    if draws.labels is not None:
        y = coded(y, draws.labels, "y")
    if covariates is not None:
        y = as_numbers(y, "y")
        columns = check_covariates(draws.likelihood, draws.model.num_latents, covariates, len(X))
        if y.shape != (len(X),):
            raise ValueError(
                f"covariates are the columns of y after the first and need y of shape ({len(X)},); got y of shape "
                f"{y.shape}. Leave covariates out if y already has these columns."
            )
        y = np.column_stack([y, np.asarray(columns)])
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
        from scipy.stats import wasserstein_distance

        other = result.latents.reshape(-1, sorted_draws.shape[1])
        distances = np.array([wasserstein_distance(sorted_draws[:, i], other[:, i]) for i in columns])
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
    result: Any, X: np.ndarray, y: np.ndarray, label: str, notes: list[str], seed: int
) -> tuple[dict[str, float], np.ndarray | None]:
    """The metrics on test data, and the predicted class probabilities or means."""
    try:
        predictive: Predictive = result.predict(
            X, result.likelihood.support(result.model.num_latents).covariate_columns(y)
        )
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
        draws = predictive.draw(_DRAWS, seed)
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
