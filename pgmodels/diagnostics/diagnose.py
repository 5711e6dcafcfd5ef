"""Diagnosis of an approximation without posterior draws."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pgmodels.data.options import check_whole_number
from pgmodels.diagnostics.gap import Gap, augmentation_gap
from pgmodels.diagnostics.importance import ImportanceEstimate, importance_estimate
from pgmodels.diagnostics.vsbc import Calibration, simulate_calibration
from pgmodels.inference.objectives import objective_of_result
from pgmodels.numerics.psis import FEWEST_DRAWS
from pgmodels.results.approximation import Approximation, CorrectedApproximation, GaussianResult, LinearResponse
from pgmodels.results.draws import Draws
from pgmodels.results.nested import NestedApproximation
from pgmodels.results.sparse import name_type
from pgmodels.runtime.seeds import Seed, as_seed
from pgmodels.runtime.threads import one_thread_up_to

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """A diagnosis of an approximation q(f).

    ``gap`` (n,) is the loss of each datum's bound due to the augmentation, in nats, and ``gap_error`` its quadrature
    error. ``importance`` estimates the posterior by importance sampling from q; ``vsbc`` is the calibration of q on
    data simulated from the model, None if it was skipped. ``notes`` lists the reasons and other caveats.
    """

    result: Approximation | CorrectedApproximation = field(repr=False)
    gap: np.ndarray = field(repr=False)
    gap_error: np.ndarray = field(repr=False)
    importance: ImportanceEstimate
    vsbc: Calibration | None
    notes: tuple[str, ...]

    @property
    def pareto_k(self) -> float:
        """Pareto k-hat of the importance weights from q to the posterior; above 0.7, q misses much of the posterior."""
        return self.importance.pareto_k

    def to_dataframe(self) -> pd.DataFrame:
        """One row for each datum and latent, and numeric columns, NaN where a figure was not computed.

        ``gap``, ``gap_error`` (nats, the same for all latents of a datum); ``mean``, ``variance`` of q;
        ``importance_mean``, ``importance_variance`` and their standard errors ``..._error``; on simulated data,
        ``coverage_50`` and ``coverage_90`` (coverage of q's central intervals) and ``symmetry_p`` (p-value, not
        corrected for the number of data).
        """
        import pandas as pd

        shape = self.result.mean.shape
        absent = np.full(shape, np.nan)
        importance, vsbc = self.importance, self.vsbc
        columns = {
            "gap": np.broadcast_to(self.gap[:, None], shape),
            "gap_error": np.broadcast_to(self.gap_error[:, None], shape),
            "mean": self.result.mean,
            "variance": self.result.variance,
        }
        for name in ("mean", "mean_error", "variance", "variance_error"):
            value = getattr(importance, name)
            columns[f"importance_{name}"] = absent if value is None else value
        columns["coverage_50"], columns["coverage_90"] = (absent, absent) if vsbc is None else vsbc.inside.mean(axis=1)
        columns["symmetry_p"] = absent if vsbc is None else vsbc.symmetry
        index = pd.MultiIndex.from_product([range(size) for size in shape], names=["datum", "latent"])
        return pd.DataFrame({name: value.ravel() for name, value in columns.items()}, index=index)

    def __str__(self) -> str:
        from pgmodels.report.diagnosis_text import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from pgmodels.report.diagnosis_text import as_html

        return as_html(self)

    def plot(self) -> Figure:
        """A matplotlib Figure: calibration on simulated data, gaps, and q's moments against importance sampling."""
        from pgmodels.plots.diagnosis import plot_diagnosis

        return plot_diagnosis(self)


def diagnose(
    result: Approximation | CorrectedApproximation,
    *,
    num_replicates: int = 100,
    num_draws: int = 4000,
    seed: Seed = 0,
    progress: bool | None = None,
) -> Diagnosis:
    """Diagnose a result of ``cavi``, ``gaussian_vi``, ``fit`` or ``correct`` without posterior draws.

    Computes the augmentation gap of each datum, Pareto k-hat and posterior moments by importance sampling from q, and
    the calibration of q on data simulated from the model. Hyperparameters are fixed at the result's.

    Parameters
    ----------
    result : Approximation
        The result. If it is corrected by linear response, the augmentation gap refers to the uncorrected q.
    num_replicates : int
        Simulated data sets for the calibration; 0 omits it, which long series need.
    num_draws : int
        Importance draws from q, at least 100.
    seed : int or jax.Array
        An int or a JAX key, for the importance draws and the simulated data.
    progress : bool, optional
        Whether to show a progress bar, as in ``cavi``.

    Returns
    -------
    Diagnosis
        The figures, printed with an interpretation.

    Raises
    ------
    ValueError
        For draws, and for corrected results without a joint density: second-order corrections, or a linear response
        that is not a covariance.

    References
    ----------
    Wenzel et al. 2019, section 4; Vehtari et al. 2024; Yao et al. 2018.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.random.default_rng(0).random(30) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(X[:, 0])))
    >>> model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0)))
    >>> diagnosis = pgm.diagnose(pgm.gaussian_vi(model, X, y), num_replicates=0)
    >>> bool(diagnosis.pareto_k < 0.7)
    True
    """
    _check(result, num_replicates, num_draws)
    seed = as_seed(seed)
    # One compiles while the other runs; both with one number of BLAS threads, since it affects rounding.
    with one_thread_up_to(len(result.y)), ThreadPoolExecutor(1) as pool:
        gap = pool.submit(_gap, result)
        importance = pool.submit(importance_estimate, result, num_draws, seed)
        vsbc, missing = _calibration(result, num_replicates, seed, progress)
    notes = _notes(result, gap.result().value) + missing
    return Diagnosis(result, *gap.result(), importance.result(), vsbc, tuple(notes))


def _gap(result: GaussianResult) -> Gap:
    # The expected log density itself has no gap.
    zeros, objective = np.zeros(len(result.y)), objective_of_result(result)
    if objective.is_exact and not objective.has_auxiliaries:
        return Gap(zeros, zeros)
    return augmentation_gap(result.uncorrected)


def _calibration(
    result: GaussianResult, num_replicates: int, seed: int, progress: bool | None
) -> tuple[Calibration | None, list[str]]:
    """Calibration on simulated data, None if it is not possible, and notes."""
    if num_replicates == 0:
        return None, ["Simulation-based calibration was left out: num_replicates is 0."]
    try:
        vsbc = simulate_calibration(result, num_replicates, seed, progress)
    except ValueError as error:
        return None, [f"Simulation-based calibration was left out: {error}"]
    notes = []
    if vsbc.num_failed:
        notes.append(f"{vsbc.num_failed} of {num_replicates} simulated data sets gave no finite ELBO and are omitted.")
    if vsbc.num_unconverged:
        notes.append(
            f"On {vsbc.num_unconverged} of {num_replicates} simulated data sets the engine did not converge in 1,000 "
            "iterations; the figures include them."
        )
    return vsbc, notes


def _notes(result: GaussianResult, gap: np.ndarray) -> list[str]:
    notes = []
    if not result.converged:
        notes.append("The approximation has not converged: run more iterations first.")
    if result.fit is not None:
        notes.append("Hyperparameters are fixed at their learned values, as if they were known.")
    if isinstance(result, LinearResponse):
        notes.append("The augmentation gap and the ELBO refer to q before the correction.")
    if isinstance(result, NestedApproximation):
        notes.append("Importance sampling and calibration are those of the linear response, without the densities.")
    if not np.isfinite(gap).all():
        row = int(np.flatnonzero(~np.isfinite(gap))[0])
        notes.append(f"The gap is not finite in row {row}: the expected log likelihood does not exist there.")
    return notes


def _check(result: Any, num_replicates: Any, num_draws: Any) -> None:
    if isinstance(result, Draws):
        raise ValueError(
            "result must be a result of cavi, gaussian_vi, fit or correct; got draws, whose diagnostics are R-hat and "
            "effective sample sizes: pgm.compare(gibbs=draws) prints them."
        )
    if not isinstance(result, GaussianResult):
        raise ValueError(f"result must be a result of cavi, gaussian_vi, fit or correct; got {name_type(result)}.")
    if isinstance(result, LinearResponse):
        result.require_covariance()
    elif isinstance(result, CorrectedApproximation) and result.is_corrected:
        raise ValueError(
            f"result is a correction {result.description} which has marginals but no joint density: diagnose the "
            "uncorrected result or, for a GP of another form than pgm.Markov(), its linear response, "
            "pgm.correct(result), or compare it with draws."
        )
    check_whole_number(num_replicates, "num_replicates", 0)
    if num_replicates == 1:
        raise ValueError("num_replicates must be 0 or at least 2; got 1, which gives no standard error.")
    check_whole_number(num_draws, "num_draws", FEWEST_DRAWS)
