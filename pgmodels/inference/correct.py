"""Corrections of Gaussian results: `correct` and `marginals`."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.data.arrays import as_numbers, check_finite
from pgmodels.inference.linear_response import correct_by_response, correct_by_scans
from pgmodels.inference.nested import Pinning, correct_by_nesting, variational_gaussian
from pgmodels.inference.objectives import expected_objective, objective_of_result, require_maximised
from pgmodels.model import Model
from pgmodels.objectives.base import ExpectedIndicator, Parameters
from pgmodels.objectives.expected import Quadrature
from pgmodels.priors.base import pad_rows, padded_size, weighted
from pgmodels.priors.chain_posterior import response_entries
from pgmodels.priors.collection import Posterior, PriorCollection, check_covariances, has_chain
from pgmodels.results.approximation import (
    BEFORE_CORRECTION,
    Approximation,
    CorrectedApproximation,
    GaussianResult,
    PerturbativeApproximation,
    marginals_at_data,
)
from pgmodels.results.gaussian import (
    CorrectionWarning,
    RowMoments,
    as_covariances,
    diagonals,
    mixing,
    second_order_moments,
    warn_invalid,
)
from pgmodels.results.nested import require_result
from pgmodels.results.result import GridDensity
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.messages import raised, warn
from pgmodels.runtime.precision import as_array, double_precision

# Corrections to second order in what q neglects (Opper et al. 2015; Wenzel et al. 2019, A.6).


@partial(compiled, static_argnames="augmentation")
def expansion(
    augmentation: Augmentation,
    m: Float[Array, "n P"],
    V: Float[Array, "n P P"],
    residual: Float[Array, "n P P"],
    y: Array,
    parameters: Parameters,
) -> tuple[Float[Array, "n P"], Float[Array, "n P P"]]:
    """Return E[∂Q_i/∂z] (n, P) and E[∂²Q_i/∂z∂z'] (n, P, P) of Q_i = (T - T̄)ᵀ H_i (T - T̄), T = (z, z²), z ~ N(m, V).

    ``residual`` is the part of V that does not depend on the sites; the likelihood is averaged over it.
    """
    H = augmentation.hessian_of_datum(m, jnp.diagonal(V, axis1=1, axis2=2), y, parameters)
    V = V - residual
    h_mm, h_ms, h_ss = H[:, :, 0, :, 0], H[:, :, 0, :, 1], H[:, :, 1, :, 1]
    h_sm = jnp.swapaxes(h_ms, 1, 2)
    mean, other = m[:, :, None], m[:, None, :]
    shift = jnp.sum(4.0 * h_sm * V + 8.0 * h_ss * other * V, axis=-1)
    curvature = 2.0 * (h_mm + 2.0 * other * h_ms + 2.0 * mean * h_sm + 4.0 * h_ss * (mean * other + V))
    return shift, curvature


def correct_perturbatively(approximation: Approximation) -> PerturbativeApproximation:
    """Correct a result of the augmented bound to second order (Opper et al. 2015; Wenzel et al. 2019, A.6).

    Raises ValueError if two latents of one datum multiply, since B does not generate their joint moments.
    """
    start = time.perf_counter()
    model = approximation.model
    if not objective_of_result(approximation).has_auxiliaries:
        raise ValueError(
            "correct: method='perturbative' needs a result of the augmented bound, by cavi or "
            f"fit(..., objective='augmented'); got the objective {approximation.objective!r}. Use the default, "
            "method='linear_response'."
        )
    if len(model.augmentation.blocks) > 1:
        raise ValueError(
            f"correct: method='perturbative' is not for {model.likelihood.name}, in which two latents of one datum "
            "multiply: the local bound generates the moments of only one block. Use the default, "
            "method='linear_response', or gibbs."
        )
    posterior, n = approximation.posterior, len(approximation.y)
    y, row_weights = approximation.data.padded(posterior.prior.num_rows)
    Phi = mixing(model, y)
    moments, expanded = _expansion(approximation, y, Phi)
    shift, curvature = (np.asarray(weighted(row_weights, part)) for part in expanded)
    mean, spread = second_order_moments(*moments, np.asarray(_covariance(posterior, Phi)), shift, curvature)
    variance = diagonals(spread)
    return PerturbativeApproximation(
        uncorrected=approximation,
        seconds=approximation.seconds + time.perf_counter() - start,
        mean=mean[:n],
        variance=variance[:n],
        shift=np.asarray(shift)[:n],
        curvature=np.asarray(curvature)[:n],
        num_nonpositive=warn_invalid(variance[:n], "the data"),
    )


def _expansion(
    approximation: Approximation, y: Array, Phi: Float[Array, "n P L"] | None
) -> tuple[RowMoments, tuple[Array, Array]]:
    """The moments under q at the posterior's rows, and E[∂Q/∂z] and E[∂²Q/∂z²] there without weights."""
    model, posterior = approximation.model, approximation.posterior
    m, v = (pad_rows(part, len(y)) for part in (approximation.mean, approximation.variance))
    residual_variance = posterior.prior.residual_variances()
    residual = as_array(np.zeros(m.shape)) if residual_variance is None else residual_variance
    if Phi is None:
        # Products with another latent's T have mean zero under q: each latent's own curvature is enough.
        S, of_predictors = (as_array(as_covariances(np.asarray(part))) for part in (v, residual))
        shift, curvature = expansion(model.augmentation, as_array(m), S, of_predictors, y, model.parameters)
        return (m, v), (shift, jnp.diagonal(curvature, axis1=1, axis2=2))
    f, V = marginals_at_data(posterior)
    z, S = jnp.einsum("ipl,il->ip", Phi, f), jnp.einsum("ipl,ilk,iqk->ipq", Phi, V, Phi)
    of_predictors = jnp.einsum("ipl,il,iql->ipq", Phi, residual, Phi)
    return (np.asarray(f), np.asarray(V)), expansion(model.augmentation, z, S, of_predictors, y, model.parameters)


@compiled
def _covariance(posterior: Posterior, Phi: Float[Array, "n P L"] | None) -> Array:
    """Cov_q(f, f) (latents, n, n), or Cov_q(f, z) (latents, n, n, P) where Φ couples the latents."""
    covariance = posterior.covariance()
    return covariance if Phi is None else jnp.einsum("amkn,npk->amnp", covariance, Phi)


# Names of ``_METHODS``.
Method: TypeAlias = Literal["linear_response", "perturbative", "nested"]


class Limits(NamedTuple):
    """Sizes up to which ``fit`` corrects its result."""

    # Whitened coordinates, and coordinates times rows. On one CPU core with one latent it takes 0.4 s for 200 rows,
    # 1.1 s for 1,000, 6.8 s and 0.4 GB for 2,000 (half as long as cavi, and fit runs it dozens of times); with 112
    # inducing inputs 0.6 s for 2,000 rows and 5.7 s for 5,000.
    num_coordinates: int = 2_000
    num_entries: int = 4_000_000
    # Entries of a matrix at each row of a Markov process: 200,000 rows of Matern32, some 0.3 GB.
    num_scanned: int = 5_000_000

    def allow(self, result: Approximation, by_scans: bool) -> bool:
        """Return whether linear response costs only seconds, by scans or not."""
        num_coordinates = sum(result.prior.ranks)
        is_small = num_coordinates <= self.num_coordinates
        is_small &= num_coordinates * len(result.y) <= self.num_entries
        if not has_chain(result.prior):
            return is_small
        try:
            return (by_scans or is_small) and response_entries(result.posterior) <= self.num_scanned
        except ValueError:
            # ``correct`` says why there is none.
            return True


@double_precision
def correct(
    approximation: Approximation | CorrectedApproximation, *, method: Method | None = None, progress: bool | None = None
) -> CorrectedApproximation:
    """Correct the means and covariances of a result of ``cavi``, ``gaussian_vi`` or ``fit``.

    Parameters
    ----------
    approximation : Approximation
        The result to correct. A result corrected by this ``method`` is returned unchanged. For another ``method``, its
        ``.uncorrected`` is corrected.
    method : {"linear_response", "perturbative", "nested"}, optional
        ``"linear_response"`` is the default. ``"perturbative"`` is for results of the augmented bound only.
        ``"nested"`` computes a density of its own for every latent, skewed or heavy-tailed.
    progress : bool, optional
        Whether to show a progress bar for ``"nested"``; by default in a terminal or a notebook.

    Returns
    -------
    CorrectedApproximation
        The corrected moments at the data, and at new inputs by its ``predict`` and ``predict_latent``.

    Raises
    ------
    ValueError
        For other results, and for a variance above the prior's if the likelihood is log-concave, which forbids it.

    Warns
    -----
    CorrectionWarning
        If a corrected variance is not positive, or above the prior's; if a nested marginal is cut off.

    Notes
    -----
    Linear response (math: section 5b) derives covariances from the derivative of the optimum in a perturbation of the
    posterior. They are at the data and at new inputs, and across latents. Means of the augmented bound are corrected to
    first order if a datum has one predictor, and unchanged otherwise (measured to be better). The perturbative
    correction (math: section 5) corrects means and variances to second order. Nested variational marginals (math:
    section 5c) are bounds of log p(y, f_i = x), normalised over x. A result of another objective is first replaced by
    the variational Gaussian with its hyperparameters. They need a second for some 100 latents. With several predictors
    in a row, such as classes, and more than 32 rows linear response has more accurate variances.

    References
    ----------
    Linear response: Opper and Winther 2003; Giordano, Broderick and Jordan 2018. Perturbative: Opper et al. 2015;
    Wenzel et al. 2019, A.6.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.random.default_rng(0).random(30) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(X[:, 0])))
    >>> model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0)))
    >>> vi = pgm.cavi(model, X, y)
    >>> bool((pgm.correct(vi).variance > vi.variance).all())
    True
    """
    if method is not None and method not in _METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, _METHODS))}; got {method!r}.")
    expected = "approximation must be the result of cavi, gaussian_vi or fit"
    gaussian = require_result(approximation, expected, kind=GaussianResult)
    if isinstance(gaussian, CorrectedApproximation) and gaussian.is_corrected and method in (None, gaussian.method):
        return gaussian
    corrected = _corrected(gaussian.uncorrected, method or "linear_response", progress)
    return corrected if gaussian.uncertainty is None else corrected.with_uncertainty(gaussian.uncertainty)


def _corrected(
    approximation: Approximation, method: Method, progress: bool | None, tolerates_few: bool = False
) -> CorrectedApproximation:
    """``correct``; with ``tolerates_few`` the report of ``fit`` names few variances just above the prior's."""
    require_maximised("correct", objective_of_result(approximation))
    corrected = _METHODS[method](approximation, progress)
    prior = np.asarray(_prior_marginals(approximation.posterior.prior)[1])[: len(approximation.y)]
    variance = corrected.variance
    beyond = variance > (1.0 + corrected.relative_error) * prior
    # Few of all, and just above: under a likelihood that is not log-concave these may be right.
    if (
        tolerates_few
        and beyond.any()
        and (np.sum(beyond) <= 0.01 * beyond.size and np.all(variance[beyond] <= 1.1 * prior[beyond]))
        and not _is_concave_at(approximation.model, approximation.y, approximation.predictor_moments)
    ):
        row, latent = (int(place) for place in np.argwhere(beyond)[0])
        excess = np.max(variance[beyond] / prior[beyond]) - 1.0
        exceptions = (
            f"{int(beyond.sum())} of {variance.size} variances are up to {excess:.1%} above the prior's (first of "
            f"f[{latent}] in row {row})"
        )
        fit = replace(approximation.fit, exceptions=exceptions)
        return replace(corrected, uncorrected=replace(corrected.uncorrected, fit=fit))
    marginals = approximation.predictor_moments
    check_against_prior(
        "correct", approximation.model, approximation.y, prior, corrected.variance, marginals, corrected.relative_error
    )
    return corrected


def correct_if_reliable(
    result: Approximation,
    choice: bool | Literal["auto"],
    progress: bool | None,
    by_scans: bool,
    limits: Limits | None = None,
) -> Approximation | CorrectedApproximation:
    """Return the result of ``fit``, corrected if ``choice`` allows it; ``.fit.correction`` has the reason.

    ``choice="auto"`` corrects by linear response, long chains only with ``by_scans``. It does not correct if q is
    exact, the system is too large, or the correction is not reliable. Only ``correct`` computes nested marginals:
    they cost 3/4 of a first fit's processor time with 145 rows, and tens of ms for each predicted row.
    """
    objective, limits = objective_of_result(result), limits or Limits()

    def noted(correction: str) -> Approximation:
        return replace(result, fit=replace(result.fit, correction=correction))

    if choice is False:
        return noted("none, with correct=False")
    if choice is True:
        return correct(noted(BEFORE_CORRECTION))
    if not objective.is_maximised:
        return noted("none: linear response needs an optimum, and q is none")
    if result.model.is_augmentable and result.model.augmentation.has_fixed_sites:
        return noted("none: the likelihood is Gaussian in f, and so is the posterior")
    if not limits.allow(result, by_scans):
        if limits.allow(result, by_scans=True):
            return noted("none: pgm.correct(result) computes it, in seconds, but then there is no joint density")
        many = f"{sum(result.prior.ranks):,} coordinates and {len(result.y):,} rows"
        return noted(f"none: with {many} it needs minutes; pgm.correct(result) computes it")
    try:
        with raised(CorrectionWarning):
            return _corrected(noted(BEFORE_CORRECTION), "linear_response", progress, tolerates_few=True)
    except (CorrectionWarning, ValueError) as reason:
        return noted(f"none, since it is not reliable here: {reason}")


def check_against_prior(
    engine: str,
    model: Model,
    y: np.ndarray,
    prior: np.ndarray,
    variance: np.ndarray,
    marginals: Callable[[], tuple[np.ndarray, np.ndarray]],
    relative_error: float = CorrectedApproximation.relative_error,
) -> None:
    """Raise ValueError if a corrected variance (n, latents) exceeds the prior's under a log-concave likelihood.

    Excesses up to the correction's own ``relative_error`` are allowed. Under such a likelihood posterior variances are
    at most the prior's (Brascamp and Lieb 1976). Concavity is checked at all data, at nodes within the predictors'
    ``marginals``, means and variances (n, P). Warn with a CorrectionWarning of an excess up to 1 %, and of any excess
    under other likelihoods.
    """
    beyond = variance > (1.0 + relative_error) * prior
    if not beyond.any():
        return
    row, latent = (int(place) for place in np.argwhere(beyond)[0])
    what = (
        f"{int(beyond.sum())} of {variance.size} corrected variances are above the prior's (first in row {row}, "
        f"{variance[row, latent]:.4g}, with a prior variance of {prior[row, latent]:.4g})"
    )
    remedy = "Use gaussian_vi uncorrected, or gibbs. Kinks of one latent are exact if written as abs(y - f)."
    if np.any(variance > 1.01 * prior) and _is_concave_at(model, y, marginals):
        raise ValueError(f"{engine}: {what}, and a log-concave likelihood allows none. {remedy}")
    why = "which is seldom if the likelihood is not log-concave, and an error of the correction if it is"
    warn(f"{engine}: {what}, {why}. {remedy}", CorrectionWarning)


def _is_concave_at(model: Model, y: np.ndarray, marginals: Callable[[], tuple[np.ndarray, np.ndarray]]) -> bool:
    """Whether the likelihood is log-concave at all data within the predictors' marginals."""
    mean, spread, observed = (as_array(pad_rows(part, padded_size(len(y)))) for part in (*marginals(), y))
    return bool(np.all(_is_concave(expected_objective(model), mean, spread, observed, model.parameters)))


@partial(compiled, static_argnames="objective")
def _is_concave(
    objective: Quadrature | ExpectedIndicator, mean: Array, spread: Array, y: Array, parameters: Parameters
) -> Bool[Array, " n"]:
    return objective.is_concave(mean, spread, y, parameters)


_METHODS: dict[str, Callable[[Approximation, bool | None], CorrectedApproximation]] = {
    "linear_response": lambda approximation, _: (
        correct_by_scans if has_chain(approximation.posterior.prior) else correct_by_response
    )(approximation),
    "perturbative": lambda approximation, _: correct_perturbatively(approximation),
    "nested": correct_by_nesting,
}


_prior_marginals = compiled(PriorCollection.marginals, optimise=False)


@double_precision
def marginals(
    result: GaussianResult, functional: ArrayLike, *, X_new: ArrayLike | None = None, progress: bool | None = None
) -> GridDensity:
    """Return marginal posterior densities of linear functionals of the latents, which may be skewed or heavy-tailed.

    A functional is a sum of latents times coefficients. Examples are a difference between two inputs, the mean of a
    group of rows, and the effect of an additive term.

    Parameters
    ----------
    result : Approximation or CorrectedApproximation
        The result of ``cavi``, ``gaussian_vi``, ``fit`` or ``correct``, with hyperparameters fixed at its values.
    functional : array_like, shape (m,) or (k, m), or (m, latents) or (k, m, latents)
        The coefficients of the latents at m inputs, of one functional or k; with an axis of latents if the model has
        several.
    X_new : array_like, shape (m, d), optional
        The inputs; by default the rows of X.
    progress : bool, optional
        Whether to show a progress bar, as in ``correct``.

    Returns
    -------
    GridDensity
        The densities, of shape () or (k,): ``mean``, ``variance``, ``skewness``, ``pdf`` and ``quantiles``.

    Raises
    ------
    ValueError
        For draws, for coefficients of another shape or that are not finite, and for more than 10,000 inputs.

    Warns
    -----
    CorrectionWarning
        If a density is cut off at the grid that it is computed on.

    Notes
    -----
    The densities are bounds of log p(y, u = x) for a functional u, normalised over x (math: section 5c), as by
    ``correct(method="nested")``. A result of another objective is replaced by the variational Gaussian with its
    hyperparameters.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 4.0, 9)[:, None]
    >>> y = np.array([0, 0, 1, 0, 1, 1, 1, 1, 1])
    >>> vi = pgm.gaussian_vi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF())), X, y)
    >>> difference = pgm.marginals(vi, [1, -1], X_new=[[4.0], [0.0]])
    >>> bool(difference.mean > 0)
    True
    """
    expected = "result must be the result of cavi, gaussian_vi, fit or correct"
    remedy = " Draws have functionals themselves, such as draws.latents[:, :, 0] - draws.latents[:, :, 1]."
    result = require_result(result, expected, remedy, GaussianResult)
    approximation = result.uncorrected
    require_maximised("marginals", objective_of_result(approximation))
    inputs = approximation.X if X_new is None else approximation.check_inputs(X_new)
    check_covariances(approximation.posterior.prior, inputs, jointly=True)
    coefficients = _checked(functional, len(inputs), approximation.model.num_latents)
    several = coefficients.reshape(-1, *coefficients.shape[-2:])
    # The covariance of latents is computed for the rows that count.
    rows = np.flatnonzero(np.any(several != 0.0, axis=(0, 2)))
    rows = rows if len(rows) else np.arange(1)
    # The covariance of the latents given the data has the square of their number.
    most = 10_000
    if len(rows) > most:
        raise ValueError(
            f"functional must have coefficients at up to {most:,} inputs; got {len(rows):,}. Use a sample of the rows."
        )
    densities = Pinning(variational_gaussian(approximation)).functionals(inputs[rows], several[:, rows], progress)
    if result.uncertainty is not None:
        moved = np.einsum("fnl,knl->kf", several[:, rows], result.shifts_at(inputs[rows]))
        densities = densities.widened(np.sum(moved**2, axis=0))
    return densities if coefficients.ndim == 3 else densities[0]


def _checked(functional: ArrayLike, num_inputs: int, num_latents: int) -> np.ndarray:
    """Coefficients (m, latents) or (k, m, latents)."""
    coefficients = as_numbers(functional, "functional")
    check_finite(coefficients, "functional")
    expected = (num_inputs,) if num_latents == 1 else (num_inputs, num_latents)
    size = len(expected)
    if coefficients.ndim not in (size, size + 1) or coefficients.shape[-size:] != expected or not coefficients.size:
        one, several = ", ".join(map(str, expected)), ", ".join(map(str, ("k", *expected)))
        raise ValueError(
            f"functional must have shape ({one}{',' if size == 1 else ''}) or ({several}), a coefficient for each "
            f"{'input' if num_latents == 1 else 'input and latent'}; got shape {coefficients.shape}."
        )
    return coefficients[..., None] if num_latents == 1 else coefficients
