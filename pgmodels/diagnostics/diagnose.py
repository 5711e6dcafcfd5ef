"""How good an approximation is on its own data, without draws from the posterior."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pgmodels.diagnostics.gap import Gap, augmentation_gap
from pgmodels.diagnostics.importance import ImportanceEstimate, importance_estimate
from pgmodels.diagnostics.vsbc import Calibration, simulate_calibration
from pgmodels.results.approximation import Approximation, CorrectedApproximation, LinearResponse
from pgmodels.results.draws import Draws
from pgmodels.runtime import hooks
from pgmodels.runtime.seeds import as_seed
from pgmodels.runtime.threads import one_thread_up_to

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Below this many draws k-hat is fitted to fewer than 20 of them.
_FEWEST_DRAWS = 100


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What ``diagnose`` found of an approximation q(f).

    ``gap`` (n,) is what each datum's bound loses to the augmentation, in nats, and ``gap_error`` the error of its
    quadrature. ``importance`` estimates the posterior from weighted draws of q, ``vsbc`` holds how q does on data
    simulated from the model, None where it was left out; ``notes`` say why, and what else qualifies the figures.
    """

    result: Approximation = field(repr=False)
    gap: np.ndarray = field(repr=False)
    gap_error: np.ndarray = field(repr=False)
    importance: ImportanceEstimate
    vsbc: Calibration | None
    notes: tuple[str, ...]

    @property
    def pareto_k(self) -> float:
        """Pareto k-hat of the importance weights from q to the posterior; above 0.7 q misses much of it."""
        return self.importance.pareto_k

    def to_dataframe(self) -> pd.DataFrame:
        """A row a datum and latent, by index, and a numeric column a figure, NaN where it was not computed.

        ``gap``, ``gap_error`` (nats, the same for all latents of a datum); ``mean``, ``variance`` of q;
        ``importance_mean``, ``importance_variance`` and their standard errors ``..._error``; over simulated data,
        ``coverage_50`` and ``coverage_90`` (shares inside q's central intervals) and ``symmetry_p`` (not corrected for
        the number of data).
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
        return hooks.text(self)

    def _repr_html_(self) -> str:
        return hooks.html(self)

    def plot(self) -> Figure:
        """A matplotlib Figure: calibration on simulated data, gaps, and q's moments against importance sampling's."""
        return hooks.figure(self)


def diagnose(
    result: Approximation,
    *,
    num_replicates: int = 100,
    num_draws: int = 4000,
    seed: int = 0,
    progress: bool | None = None,
) -> Diagnosis:
    """Say how good a result of ``cavi``, ``gaussian_vi``, ``fit`` or ``correct`` is, by four figures without a sampler.

    The augmentation gap of each datum (Wenzel et al. 2019, section 4); Pareto k-hat and the posterior estimated by
    importance sampling with ``num_draws`` draws of q (Vehtari et al. 2024); and variational simulation-based
    calibration with ``num_replicates`` simulated data sets (Yao et al. 2018), left out at 0. Hyperparameters are held
    at the result's. Of a corrected result the gap is that before the correction. Raises ValueError for draws, and for
    corrected results without a joint density: by the expansion to second order, or where the response is no covariance.
    """
    _check(result, num_replicates, num_draws, seed)
    # One compiles while the other runs. Both on the same number of BLAS threads, on which rounding depends.
    with one_thread_up_to(len(result.y)), ThreadPoolExecutor(1) as pool:
        gap = pool.submit(_gap, result)
        importance = pool.submit(importance_estimate, result, num_draws, seed)
        vsbc, missing = _calibration(result, num_replicates, seed, progress)
    notes = _notes(result, gap.result().value) + missing
    return Diagnosis(result, *gap.result(), importance.result(), vsbc, tuple(notes))


def _gap(result: Approximation) -> Gap:
    # Without auxiliary variables nothing is lost to them.
    nothing = np.zeros(len(result.y))
    bounded = result.uncorrected if isinstance(result, LinearResponse) else result
    return augmentation_gap(bounded) if result.objective == "cavi" else Gap(nothing, nothing)


def _calibration(
    result: Approximation, num_replicates: int, seed: int, progress: bool | None
) -> tuple[Calibration | None, list[str]]:
    """Calibration on simulated data, None where that cannot be, and what is to be said of it."""
    if num_replicates == 0:
        return None, ["Simulation-based calibration was left out: num_replicates is 0."]
    try:
        vsbc = simulate_calibration(result, num_replicates, seed, progress)
    except ValueError as error:
        return None, [f"Simulation-based calibration was left out: {error}"]
    notes = []
    if vsbc.num_failed:
        notes.append(f"{vsbc.num_failed} of {num_replicates} simulated data sets gave no finite ELBO and are left out.")
    if vsbc.num_unconverged:
        notes.append(
            f"The engine did not converge in 1,000 iterations on {vsbc.num_unconverged} of {num_replicates} simulated "
            "data sets; they are in the figures as they stopped."
        )
    return vsbc, notes


def _notes(result: Approximation, gap: np.ndarray) -> list[str]:
    notes = []
    if not result.converged:
        notes.append("The approximation's own iterations had not converged: run them further first.")
    if result.fit is not None:
        notes.append("Hyperparameters are held at the values that were learned, as if they were known.")
    if isinstance(result, LinearResponse):
        notes.append("The augmentation gap and the ELBO are those before the correction, which has no bound.")
    if not np.isfinite(gap).all():
        row = int(np.flatnonzero(~np.isfinite(gap))[0])
        notes.append(f"The gap is not finite in row {row}: the expected log likelihood does not exist there.")
    return notes


def _check(result: Any, num_replicates: Any, num_draws: Any, seed: Any) -> None:
    if isinstance(result, Draws):
        raise ValueError(
            "result must be what cavi, gaussian_vi, fit or correct return; got draws, which are judged by R-hat and "
            "effective sample sizes: pgm.compare(gibbs=draws) prints them."
        )
    if not isinstance(result, Approximation):
        raise ValueError(f"result must be what cavi, gaussian_vi, fit or correct return; got {type(result).__name__}.")
    if isinstance(result, LinearResponse):
        # ValueError where there is no such Gaussian.
        result.require_covariance()
    elif isinstance(result, CorrectedApproximation):
        raise ValueError(
            "result is corrected to second order, and has marginals but no joint density: diagnose "
            "pgm.correct(result), by linear response, or the result it was made from, or compare it with draws."
        )
    _check_whole("num_replicates", num_replicates, 0)
    if num_replicates == 1:
        raise ValueError("num_replicates must be 0, for none, or at least 2; got 1, which has no standard error.")
    _check_whole("num_draws", num_draws, _FEWEST_DRAWS)
    as_seed(seed)


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}; got {value!r}.")
