"""Diagnosis of one result: gaps of bounds, of inducing inputs, and all checks."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Array

from pgmodels.data.arrays import check_whole_number
from pgmodels.diagnostics.compare import ImportanceEstimate, importance_estimate
from pgmodels.diagnostics.vsbc import Calibration, simulate_calibration
from pgmodels.inference.objectives import objective_of_result
from pgmodels.likelihoods.likelihood import log_density
from pgmodels.numerics.elementary import FEWEST_DRAWS
from pgmodels.numerics.quadrature import equal_chunks, gauss_legendre, padded_chunks, sobol_normals
from pgmodels.objectives.base import Objective
from pgmodels.priors.base import pad_rows, padded_size, weighted
from pgmodels.results.approximation import Approximation, CorrectedApproximation, GaussianResult
from pgmodels.results.nested import require_result
from pgmodels.runtime.jit import compiled, one_thread_up_to
from pgmodels.runtime.precision import as_array, double_precision
from pgmodels.runtime.seeds import Seed, as_seed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Gap(NamedTuple):
    """The augmentation gap of each datum and the error of its quadrature, (n,) each, in nats."""

    value: np.ndarray
    error: np.ndarray


@double_precision
def augmentation_gap(approximation: Approximation) -> Gap:
    """Return E_q(f) KL(q(ω) ‖ p(ω | f, y)) of each datum with auxiliary variables ω (Wenzel et al. 2019, section 4).

    It equals E_q(f) log p(y | f) - B(m, s), the loss of the ELBO due to the augmentation for this q(f). For one latent
    the error is a bound, about 1e-10 of the size of log p. For several latents it is the standard error of eight
    scrambled Sobol rules. It is at most 0.1 % of the gap or 1e-5 nats, if 16,384 points each are enough.
    """
    divergence = _Divergence(approximation)
    return _adaptive(divergence) if divergence.nodes.num_directions == 1 else _sobol(divergence)


class _Divergence:
    """KL(q(ω) ‖ p(ω | f, y)) as a function of f, in nats.

    log p(y, ω | f) is quadratic in f, so that E_q(ω) log p(y, ω | f) - E_q(ω) log q(ω) is the quadratic with value B
    and sites (h, w) under q(f); the divergence is log p(y | f) minus this quadratic, which integrates to B exactly with
    any quadrature rule for the rest, also if the formula multiplies two latents of a datum.
    """

    def __init__(self, approximation: Approximation):
        model = approximation.model
        self.likelihood, self.y = model.likelihood, approximation.y
        n = len(self.y)
        self.weights = approximation.data.row_weights
        self.nodes, self.mixing = approximation.nodes, approximation.mixing
        mean, self.variance = approximation.predictor_moments()
        y, row_weights = approximation.data.padded(padded_size(n))
        m, v = (as_array(pad_rows(part, len(y))) for part in (mean, self.variance))
        terms = _bound_and_sites(objective_of_result(approximation), m, v, y, row_weights, model.parameters)
        self.bound, h, self.curvature = (np.asarray(term)[:n] for term in terms)
        self.slope = h - self.curvature * mean

    def at(self, rows: np.ndarray, standard: np.ndarray) -> np.ndarray:
        f = self.nodes.place(rows, standard)
        centred = f - self.nodes.mean[rows]
        if self.mixing is not None:
            centred = np.einsum("ipl,sil->sip", self.mixing[rows], centred)
        quadratic = self.slope[rows] * centred - 0.5 * self.curvature[rows] * (centred**2 - self.variance[rows])
        log_p = self.weights[rows] * log_density(self.likelihood, self.y[rows], f)
        return log_p - self.bound[rows] - quadratic.sum(axis=-1)


@partial(compiled, static_argnames="objective")
def _bound_and_sites(
    objective: Objective, m: Array, v: Array, y: Array, row_weights: Array, parameters: Mapping[str, Array]
) -> tuple[Array, ...]:
    terms = objective.local_bound(m, v, y, parameters), *objective.local_sites(m, v, y, parameters)
    return tuple(weighted(row_weights, term) for term in terms)


def _adaptive(divergence: _Divergence, tolerance: float = 1e-11, max_halvings: int = 40) -> Gap:
    """One latent: Gauss-Legendre rules on intervals within 12 standard deviations, halved until they agree."""
    n, edges = divergence.nodes.num_rows, np.linspace(-12.0, 12.0, 13)
    rows = np.repeat(np.arange(n), len(edges) - 1)
    low, high = np.tile(edges[:-1], n), np.tile(edges[1:], n)
    allowed = tolerance * (1.0 + np.abs(divergence.bound))
    # The two rules may agree by chance on an interval with a kink.
    value, error = np.zeros(n), 10.0 * allowed
    for halving in range(max_halvings + 1):
        coarse, fine = _integrals(divergence, rows, low, high)
        difference = np.abs(fine - coarse)
        # NaN counts as done, since halving cannot help, and is reported.
        halved = (difference > allowed[rows]) & (halving < max_halvings)
        np.add.at(value, rows[~halved], fine[~halved])
        np.add.at(error, rows[~halved], difference[~halved])
        rows, low, high = rows[halved], low[halved], high[halved]
        if not rows.size:
            break
        middle = 0.5 * (low + high)
        rows = np.tile(rows, 2)
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
    return Gap(value, error)


def _integrals(
    divergence: _Divergence, rows: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The integral of the divergence times the Gaussian density over each interval, by rules of 10 and 16 nodes."""
    (coarse_nodes, coarse), (fine_nodes, fine) = gauss_legendre(10), gauss_legendre(16)
    nodes = np.concatenate([coarse_nodes, fine_nodes])[:, None]
    terms = []
    # Chunks of one size are compiled once.
    for chosen in equal_chunks(np.arange(len(rows)), 1024):
        half, centre = 0.5 * (high - low)[chosen], 0.5 * (high + low)[chosen]
        z = centre + half * nodes
        values = divergence.at(rows[chosen], z[..., None])
        terms.append(half * values * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi))
    values = np.concatenate(terms, axis=1)[:, : len(rows)]
    return coarse @ values[: len(coarse)], fine @ values[len(coarse) :]


def _sobol(
    divergence: _Divergence, num_scrambles: int = 8, relative_error: float = 1e-3, absolute_error: float = 1e-5
) -> Gap:
    """Several latents: more Sobol points until the standard error over scrambles is below either limit."""
    nodes, rows = divergence.nodes, np.arange(divergence.nodes.num_rows)
    value, error = np.zeros(len(rows)), np.zeros(len(rows))
    for num_points in (256, 1024, 4096, 16384):
        chunks, means = padded_chunks(rows, num_points * nodes.num_latents), []
        for scramble in range(num_scrambles):
            z = sobol_normals(nodes.num_directions, num_points, np.random.default_rng(scramble))[:, None, :]
            means.append(np.concatenate([divergence.at(chunk, z).mean(axis=0) for chunk in chunks])[: len(rows)])
        value[rows] = np.mean(means, axis=0)
        error[rows] = np.std(means, axis=0, ddof=1) / np.sqrt(num_scrambles)
        rows = rows[error[rows] > np.maximum(relative_error * value[rows], absolute_error)]
        if not rows.size:
            break
    return Gap(value, error)


class InducingGap(NamedTuple):
    """Two upper bounds of log Z with the exact prior minus log Z with inducing inputs: see ``pgm.inducing_gap``."""

    by_trace: float
    by_weighted_trace: float

    @property
    def upper(self) -> float:
        """The smaller of the two."""
        return min(self)


@double_precision
def inducing_gap(result: GaussianResult) -> InducingGap:
    """Bound the loss of the evidence by a result's inducing inputs: a certificate for their number.

    Parameters
    ----------
    result : Approximation
        A result of ``cavi``, ``gaussian_vi``, ``vi`` or ``fit`` with inducing inputs.

    Returns
    -------
    InducingGap
        Upper bounds of log Z(exact prior) - log Z(inducing inputs) in nats, which is at least 0. Z normalises the prior
        times the sites of the result. ``by_trace`` is the published bound, ``by_weighted_trace`` another, and
        ``upper`` the smaller of both.

    Raises
    ------
    ValueError
        For other results, results without inducing inputs, and likelihoods whose factors combine latents. For sites
        that couple the latents of a datum or have negative precisions.

    Notes
    -----
    For a Gaussian likelihood, also with a known noise variance of each row, the sites are exact. Then
    ELBO <= log p(y) <= ELBO + ``upper`` at the result's hyperparameters. For other likelihoods the sites are fixed. The
    bounded difference is the gain of the collapsed bound by the exact prior, before sites are optimised again.

    With K the exact prior covariance, Q the covariance by inducing inputs, W the precisions and z = h / w - mean,

    log Z(K) - log Z(Q) <= tr(W (K - Q)) / 2 + z^T [(Q + 1/W)^-1 - (Q + 1/W + C)^-1] z / 2,

    for any C >= K - Q. ``by_trace`` has C = tr(K - Q) I, ``by_weighted_trace`` C = tr(W (K - Q)) / W. For y drawn from
    the model, the expected loss is between one half and all of tr(W (K - Q)).

    References
    ----------
    Titsias 2014; Burt, Rasmussen and van der Wilk 2020; Passerello 2021, equation 3.4; math, section 7.
    """
    remedy = " For its inducing inputs use pgm.inducing_gap(pgm.vi(result.model, X, y))."
    require_result(result, "result must be a result of cavi, gaussian_vi, vi or fit", remedy, GaussianResult)
    result = result.uncorrected
    prior = result.prior
    if prior.residual_variances() is None:
        raise ValueError(
            "result has no inducing inputs: its prior is exact. Give a form, as in pgm.GP(kernel, "
            "form=pgm.Inducing(100))."
        )
    sites = result.sites
    if result.mixing is not None or sites.coupled:
        raise ValueError(
            "inducing_gap needs one site for each latent of a datum; the sites of the result couple its latents. Use "
            "objective='augmented' and a likelihood whose factors read single latents, or compare the ELBO with the "
            "ELBO of twice as many inducing inputs."
        )
    if np.any(np.asarray(sites.precision) < 0.0):
        raise ValueError(
            "inducing_gap needs sites with precisions >= 0; some of the result are negative. Use "
            "objective='augmented', or compare the ELBO with the ELBO of twice as many inducing inputs."
        )
    totals = np.zeros(2)
    # Groups with a residual variance have a factor.
    groups: tuple[Any, ...] = prior.groups
    for group, group_sites in zip(groups, prior.sites_by_group(sites), strict=True):
        residual = group.residual_variance()
        if residual is not None:
            A, rest = np.asarray(group.factor), np.asarray(residual)
            for h, w in zip(*(np.asarray(part).T for part in group_sites), strict=True):
                totals += _upper_bounds(A, rest, h - w * float(group.mean), w)
    return InducingGap(*map(float, totals))


def _upper_bounds(A: np.ndarray, residual: np.ndarray, h: np.ndarray, w: np.ndarray) -> np.ndarray:
    """``by_trace`` and ``by_weighted_trace`` of one latent with mean zero, from its sites h = w z and w (n,)."""
    trace, weighted_trace = float(np.sum(residual[w > 0.0])), float(w @ residual)
    # The diagonal part of z^T [.] z, h^2 / w (1 - 1 / (1 + w c)), is infinite where a gradient has no precision.
    ratio = np.divide(h**2, w, out=np.where(h == 0.0, 0.0, np.inf), where=w > 0.0)
    diagonal = np.sum(h**2 * trace / (1.0 + w * trace)), np.sum(ratio) * weighted_trace / (1.0 + weighted_trace)
    shrinkage = 1.0 / (1.0 + w * trace), np.full_like(w, 1.0 / (1.0 + weighted_trace))
    explained = [_explained(A, h, w)] + [_explained(A, share * h, share * w) for share in shrinkage]
    return 0.5 * (weighted_trace + np.array(diagonal) - explained[0] + np.array(explained[1:]))


def _explained(A: np.ndarray, h: np.ndarray, w: np.ndarray) -> float:
    """h^T A^T (I + A W A^T)^-1 A h, what the factor explains of z^T W z."""
    root = scipy.linalg.cholesky(np.eye(len(A)) + (A * w) @ A.T, lower=True)
    return float(np.sum(scipy.linalg.solve_triangular(root, A @ h, lower=True) ** 2))


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """A diagnosis of an approximation q(f).

    ``gap`` (n,) is the loss of each datum's bound due to the augmentation, in nats, and ``gap_error`` its quadrature
    error. ``importance`` estimates the posterior by importance sampling from q. ``vsbc`` is the calibration of q on
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
        """Return a row for each datum and latent, and numeric columns, NaN where a figure was not computed.

        ``gap`` and ``gap_error`` are in nats, the same for all latents of a datum. ``mean`` and ``variance`` are of q.
        ``importance_mean`` and ``importance_variance`` have standard errors ``..._error``. On simulated data,
        ``coverage_50`` and ``coverage_90`` are the coverage of q's central intervals, and ``symmetry_p`` is a p-value,
        not corrected for the number of data.
        """
        import pandas as pd

        shape, vsbc = self.result.mean.shape, self.vsbc
        absent = np.full(shape, np.nan)
        columns = {
            "gap": np.broadcast_to(self.gap[:, None], shape),
            "gap_error": np.broadcast_to(self.gap_error[:, None], shape),
            "mean": self.result.mean,
            "variance": self.result.variance,
        }
        for name in ("mean", "mean_error", "variance", "variance_error"):
            value = getattr(self.importance, name)
            columns[f"importance_{name}"] = absent if value is None else value
        columns["coverage_50"], columns["coverage_90"] = (absent, absent) if vsbc is None else vsbc.inside.mean(axis=1)
        columns["symmetry_p"] = absent if vsbc is None else vsbc.symmetry
        index = pd.MultiIndex.from_product([range(size) for size in shape], names=["datum", "latent"])
        return pd.DataFrame({name: value.ravel() for name, value in columns.items()}, index=index)

    def __str__(self) -> str:
        from pgmodels.report.verdicts import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from pgmodels.report.verdicts import as_html

        return as_html(self)

    def plot(self) -> Figure:
        """Draw calibration on simulated data, gaps, and q's moments against importance sampling, with matplotlib."""
        from pgmodels.plots.marginals import plot_diagnosis

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

    It computes the augmentation gap of each datum, and Pareto k-hat and posterior moments by importance sampling from
    q. It also calibrates q on data simulated from the model. Hyperparameters are fixed at the result's values.

    Parameters
    ----------
    result : Approximation
        The result. If it is corrected by linear response, the augmentation gap refers to the uncorrected q.
    num_replicates : int
        Simulated data sets for the calibration; 0 omits it, as long series need.
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
    if num_replicates == 0:
        return None, ["Simulation-based calibration was left out: num_replicates is 0."]
    try:
        vsbc = simulate_calibration(result, num_replicates, seed, progress)
    except ValueError as error:
        return None, [f"Simulation-based calibration was left out: {error}"]
    notes = []
    if vsbc.num_failed:
        notes.append(f"{vsbc.num_failed} of {num_replicates} simulated data sets had no finite ELBO and are omitted.")
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
    if result.is_corrected:
        notes.append("The augmentation gap and the ELBO refer to q before the correction.")
    if not result.has_density:
        notes.append("Importance sampling and calibration are of the linear response, without the densities.")
    if not np.isfinite(gap).all():
        row = int(np.flatnonzero(~np.isfinite(gap))[0])
        notes.append(f"The gap is not finite in row {row}: the expected log likelihood does not exist there.")
    return notes


def _check(result: object, num_replicates: object, num_draws: object) -> None:
    expected = "result must be a result of cavi, gaussian_vi, fit or correct"
    if require_result(result, expected).draws is not None:
        raise ValueError(
            f"{expected}; got draws. Use pgm.compare(gibbs=draws), which prints their R-hat and effective sample sizes."
        )
    require_result(result, expected, kind=GaussianResult).require_covariance()
    check_whole_number(num_replicates, "num_replicates", 0)
    if num_replicates == 1:
        raise ValueError("num_replicates must be 0 or at least 2; got 1, which gives no standard error.")
    check_whole_number(num_draws, "num_draws", FEWEST_DRAWS)
