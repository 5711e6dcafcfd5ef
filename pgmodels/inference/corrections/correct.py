"""Corrections of the moments of a variational posterior: by linear response, or perturbatively to second order."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.inference.corrections.linear_response import Response, halves, linear_response
from pgmodels.inference.objectives import expected_objective, objective_of_result, require_maximised
from pgmodels.inference.variational.vi import is_affordable
from pgmodels.model import Model
from pgmodels.objectives.additive_noise import ExpectedIndicator
from pgmodels.objectives.base import Objective
from pgmodels.objectives.expected import Quadrature
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.padding import pad_rows, padded_size, weighted
from pgmodels.priors.posterior import Posterior
from pgmodels.results.approximation import (
    BEFORE_CORRECTION,
    Approximation,
    CorrectedApproximation,
    GaussianResult,
    LinearResponse,
    PerturbativeApproximation,
)
from pgmodels.results.correction import (
    CorrectionWarning,
    added_moments,
    correct_blocks,
    correct_marginals,
    is_invalid,
    mixing,
    warn_invalid,
)
from pgmodels.results.sparse import name_type
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.warnings import raised, warn
from pgmodels.runtime.x64 import as_array, double_precision

# Names of ``_METHODS``.
Method: TypeAlias = Literal["linear_response", "perturbative"]
# Relative tolerance for variances above the prior's: rounding and quadrature error.
_ABOVE = 1e-4
# Limits on whitened coordinates, and on coordinates times rows, up to which fit corrects its result. On one CPU core
# with one latent it takes 0.4 s for 200 rows, 1.1 s for 1,000, 6.8 s and 0.4 GB for 2,000 (half as long as cavi, and
# fit runs it dozens of times); with 112 inducing inputs 0.6 s for 2,000 rows and 5.7 s for 5,000.
MOST_COORDINATES, _MOST_ENTRIES = 2_000, 4_000_000
# Relative residual above which to warn.
_RESIDUAL = 1e-6


@partial(compiled, static_argnames="augmentation")
def expansion(augmentation: Augmentation, m: Any, v: Any, residual: Any, y: Any, parameters: Any) -> tuple[Any, Any]:
    """E[∂Q_i/∂f] and E[∂²Q_i/∂f²] of Q_i = (T - T̄)ᵀ H_i (T - T̄), T = (f, f²), under q, each (n, latents).

    Products with another latent's T have mean zero under q, so each latent's own 2 x 2 block of H is enough.
    ``residual`` is the part of the variance v that does not depend on the sites; the likelihood is averaged over it.
    """
    H = augmentation.local_hessian(m, v, y, parameters)
    v = v - residual
    h_mm, h_ms, h_ss = H[..., 0, 0], H[..., 0, 1], H[..., 1, 1]
    shift = 4.0 * h_ms * v + 8.0 * h_ss * m * v
    curvature = 2.0 * h_mm + 8.0 * h_ms * m + 8.0 * h_ss * (m**2 + v)
    return shift, curvature


@partial(compiled, static_argnames="augmentation")
def joint_expansion(
    augmentation: Augmentation, m: Any, V: Any, residual: Any, y: Any, parameters: Any
) -> tuple[Any, Any]:
    """E[∂Q_i/∂z] (n, P) and E[∂²Q_i/∂z∂z'] (n, P, P) for predictors z ~ N(m, V) of a datum that are correlated.

    ``residual`` is as in ``expansion``, (n, P, P).
    """
    H = augmentation.hessian_of_datum(m, jnp.diagonal(V, axis1=1, axis2=2), y, parameters)
    V = V - residual
    h_mm, h_ms, h_ss = H[:, :, 0, :, 0], H[:, :, 0, :, 1], H[:, :, 1, :, 1]
    h_sm = jnp.swapaxes(h_ms, 1, 2)
    mean, other = m[:, :, None], m[:, None, :]
    shift = jnp.sum(4.0 * h_sm * V + 8.0 * h_ss * other * V, axis=-1)
    curvature = 2.0 * (h_mm + 2.0 * other * h_ms + 2.0 * mean * h_sm + 4.0 * h_ss * (mean * other + V))
    return shift, curvature


@double_precision
def correct(
    approximation: Approximation | CorrectedApproximation, *, method: Method | None = None
) -> CorrectedApproximation:
    """Correct the means and covariances of a result of ``cavi``, ``gaussian_vi`` or ``fit``.

    Parameters
    ----------
    approximation : Approximation
        The result to correct. A corrected result is returned unchanged or, for another ``method``, its ``.uncorrected``
        is corrected.
    method : "linear_response" or "perturbative", optional
        ``"linear_response"`` is the default. ``"perturbative"`` is for results of the augmented bound only.

    Returns
    -------
    CorrectedApproximation
        The corrected moments at the data, and at new inputs by its ``predict`` and ``predict_latent``.

    Raises
    ------
    ValueError
        For other results, and for a variance above the prior's if the likelihood is log-concave, where it cannot be.

    Warns
    -----
    CorrectionWarning
        If a corrected variance is not positive, or above the prior's.

    Notes
    -----
    Linear response (math: section 5b): covariances from the derivative of the optimum in a perturbation of the
    posterior, at the data and at new inputs, including across latents. Means of the augmented bound are corrected to
    first order if a datum has one predictor, and unchanged otherwise (measured to be better). The perturbative
    correction (math: section 5) corrects means and variances to second order.

    References
    ----------
    Linear response: Opper and Winther 2003; Giordano, Broderick and Jordan 2018. Perturbative: Opper et al. 2015;
    Wenzel et al. 2019, A.6.
    """
    if method is not None and method not in _METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, _METHODS))}; got {method!r}.")
    if not isinstance(approximation, GaussianResult):
        raise ValueError(
            f"approximation must be the result of cavi, gaussian_vi or fit; got {name_type(approximation)}."
        )
    if isinstance(approximation, CorrectedApproximation) and method in (None, approximation.method):
        return approximation
    approximation = approximation.uncorrected
    require_maximised("correct", objective_of_result(approximation))
    corrected = _METHODS[method or "linear_response"](approximation)
    prior = np.asarray(_prior_variances(approximation.posterior.prior))[: len(approximation.y)]
    marginals = approximation.predictor_moments
    check_against_prior("correct", approximation.model, approximation.y, prior, corrected.variance, marginals)
    return corrected


def corrected_if(result: Approximation, choice: bool | str) -> Approximation | CorrectedApproximation:
    """The result of ``fit``, corrected by linear response if ``choice`` allows it; ``.fit.correction`` says why or not.

    ``choice="auto"`` does not correct if q is exact, the system is too large, or the correction is not reliable.
    """
    size = sum(result.prior.ranks)
    if choice is False:
        return _noted(result, "none, with correct=False")
    if choice is True:
        return correct(_noted(result, BEFORE_CORRECTION))
    if not objective_of_result(result).is_maximised:
        return _noted(result, "none: linear response is that of an optimum, which q is not")
    if result.model.is_augmentable and result.model.augmentation.is_gaussian:
        return _noted(result, "none: the likelihood is Gaussian in f, and so is the posterior")
    if size > MOST_COORDINATES or size * len(result.y) > _MOST_ENTRIES:
        many = f"{size:,} coordinates and {len(result.y):,} rows"
        return _noted(result, f"none: the system has {many}, with which it takes minutes; pgm.correct(result) makes it")
    try:
        with raised(CorrectionWarning):
            return correct(_noted(result, BEFORE_CORRECTION))
    except (CorrectionWarning, ValueError) as fault:
        return _noted(result, f"none, since it is not reliable here: {fault}")


def _noted(result: Approximation, correction: str) -> Approximation:
    assert result.fit is not None
    return replace(result, fit=replace(result.fit, correction=correction))


def check_against_prior(
    engine: str,
    model: Model,
    y: np.ndarray,
    prior: np.ndarray,
    variance: np.ndarray,
    marginals: Callable[[], tuple[Any, Any]],
) -> None:
    """Raise ValueError if a corrected variance (n, latents) exceeds the prior's under a log-concave likelihood.

    Under such a likelihood posterior variances are at most the prior's (Brascamp and Lieb 1976). Concavity is checked
    at all data within the predictors' ``marginals``, means and variances (n, P). Other likelihoods may increase
    variances: a CorrectionWarning.
    """
    beyond = variance > (1.0 + _ABOVE) * prior
    if not beyond.any():
        return
    row, latent = (int(place) for place in np.argwhere(beyond)[0])
    what = (
        f"{int(beyond.sum())} of {variance.size} corrected variances are above the prior's (first in row {row}, "
        f"{variance[row, latent]:.4g} where the prior's is {prior[row, latent]:.4g})"
    )
    remedy = "Take gaussian_vi uncorrected, or gibbs. Kinks of one latent are exact where written as abs(y - f)."
    mean, spread, observed = (as_array(pad_rows(part, padded_size(len(y)))) for part in (*marginals(), y))
    if bool(np.all(_is_concave(expected_objective(model), mean, spread, observed, model.parameters))):
        raise ValueError(f"{engine}: {what}, and a log-concave likelihood allows none. {remedy}")
    warn(f"{engine}: {what}, which a likelihood that is not log-concave seldom does. {remedy}", CorrectionWarning)


@partial(compiled, static_argnames="objective")
def _is_concave(objective: Quadrature | ExpectedIndicator, mean: Any, spread: Any, y: Any, parameters: Any) -> Any:
    return objective.is_concave(mean, spread, y, parameters)


def correct_by_response(approximation: Approximation) -> LinearResponse:
    """Covariances by linear response (math: section 5b)."""
    start = time.perf_counter()
    model, posterior, n = approximation.model, approximation.posterior, len(approximation.y)
    y, row_weights = approximation.data.padded(posterior.prior.num_rows)
    Phi = mixing(model, y)
    objective = objective_of_result(approximation)
    coupled, across = has_coupled_sites(approximation, objective), Phi[0] if Phi else None
    # The variational Gaussian's means need no shift, with several predictors per datum the shift is inaccurate.
    moves = objective.has_auxiliaries and objective.size == 1
    respond = _respond if objective.num_nodes == 1 else _respond_by_quadrature
    response, *moments = respond(objective, coupled, moves, posterior, across, y, row_weights, model.parameters)
    mean, covariance = (np.asarray(part)[:n] for part in moments)
    variance, residual = np.diagonal(covariance, axis1=1, axis2=2), float(response.residual)
    positive = _is_positive(response, lambda: _halves(posterior, across)[1], n)
    if positive and residual > _RESIDUAL:
        warn(
            f"the equations of linear response are solved to a relative residual of {residual:.1g} only: the "
            "corrected covariances are no more accurate. Use gibbs, or gaussian_vi where this was cavi's result.",
            CorrectionWarning,
        )
    return LinearResponse(
        uncorrected=approximation,
        seconds=approximation.seconds + time.perf_counter() - start,
        mean=mean,
        variance=variance,
        shift=np.asarray(response.shift),
        covariance=covariance,
        response=np.asarray(response.covariance),
        is_positive=positive,
        residual=residual,
        num_nonpositive=warn_invalid(variance, "the data") if positive else int(is_invalid(variance).sum()),
    )


def has_coupled_sites(approximation: Approximation, objective: Objective) -> bool:
    """Whether the sites of a result couple the predictors of a datum, or have precisions of any sign."""
    posterior = approximation.posterior
    may_couple = objective.signed or objective.takes_covariances
    return may_couple and posterior.is_coupled and is_affordable(objective, posterior.prior)


def _is_positive(response: Response, half: Callable[[], Array], num_rows: int) -> bool:
    """Whether the response is a covariance; if not, a CorrectionWarning names the rows where it fails.

    ``half`` returns U (D, n, P), where U^T U is the covariance of the predictors under q.
    """
    kept, where = np.asarray(response.kept), ""
    if np.isfinite(kept).all():
        try:
            np.linalg.cholesky(kept)
            if np.isfinite(response.residual):
                return True
        except np.linalg.LinAlgError:
            values, vectors = np.linalg.eigh(kept)
            weights = np.sum(np.tensordot(vectors[:, values <= 0], np.asarray(half()), axes=(0, 0)) ** 2, axis=2)
            rows = np.unique(np.argmax(weights[:, :num_rows], axis=1))
            where = f" ({int(np.sum(values <= 0))} directions, most in row {', '.join(map(str, rows[:5]))})"
    warn(
        f"the covariance by linear response is not positive definite{where}: the variational optimum is "
        "nearly unstable, and the corrected covariances are not valid. Use gibbs, or gaussian_vi if this was cavi's "
        "result.",
        CorrectionWarning,
    )
    return False


def correct_perturbatively(approximation: Approximation) -> PerturbativeApproximation:
    """Correct a result of the augmented bound to second order (Opper et al. 2015; Wenzel et al. 2019, A.6).

    Raises ValueError if two latents of one datum multiply, since B does not generate their joint moments.
    """
    start = time.perf_counter()
    model = approximation.model
    if not objective_of_result(approximation).has_auxiliaries:
        raise ValueError(
            "correct: the perturbative correction expands about the optimum of the augmented bound, of cavi or "
            f"fit(..., objective='augmented'); got the objective {approximation.objective!r}. Use the default, "
            "method='linear_response'."
        )
    augmentation = model.augmentation
    if len(augmentation.blocks) > 1:
        raise ValueError(
            f"correct: in {model.likelihood.name} two latents of one datum multiply, so the local bound generates the "
            "moments of one block only and the second-order formula does not hold. Use the default, "
            "method='linear_response', or gibbs."
        )
    posterior, n = approximation.posterior, len(approximation.y)
    size = posterior.prior.num_rows
    y, row_weights = approximation.data.padded(size)
    Phi = mixing(model, y)
    expanded = _expansion(approximation, posterior, y, Phi)
    shift, curvature = (np.asarray(weighted(row_weights, part)) for part in expanded)
    if posterior.is_coupled:
        f, V = _marginals(posterior)
        mean, covariance = correct_blocks(f, V, _covariance(posterior, *Phi), shift, curvature)
        variance = np.diagonal(covariance, axis1=1, axis2=2)
    else:
        m, v = (pad_rows(part, size) for part in (approximation.mean, approximation.variance))
        mean, variance = correct_marginals(m, v, _covariance(posterior), shift, curvature)
    return PerturbativeApproximation(
        uncorrected=approximation,
        seconds=approximation.seconds + time.perf_counter() - start,
        mean=mean[:n],
        variance=variance[:n],
        shift=np.asarray(shift)[:n],
        curvature=np.asarray(curvature)[:n],
        num_nonpositive=warn_invalid(variance[:n], "the data"),
    )


def _expansion(approximation: Approximation, posterior: Posterior, y: Array, Phi: tuple[Any, ...]) -> tuple[Any, Any]:
    """E[∂Q/∂z] and E[∂²Q/∂z²] of a result of the augmented bound, without weights, at the posterior's rows."""
    model = approximation.model
    m, v = (pad_rows(part, len(y)) for part in (approximation.mean, approximation.variance))
    residual_variance = posterior.prior.residual_variances()
    residual = as_array(np.zeros(m.shape)) if residual_variance is None else residual_variance
    if posterior.is_coupled:
        f, V = _marginals(posterior)
        z, S = jnp.einsum("ipl,il->ip", *Phi, f), jnp.einsum("ipl,ilk,iqk->ipq", *Phi, V, *Phi)
        beside = jnp.einsum("ipl,il,iql->ipq", *Phi, residual, *Phi)
        return joint_expansion(model.augmentation, z, S, beside, y, model.parameters)
    return expansion(model.augmentation, m, v, residual, y, model.parameters)


_METHODS = {"linear_response": correct_by_response, "perturbative": correct_perturbatively}


def _corrected(
    objective: Any,
    coupled: bool,
    moves: bool,
    posterior: Posterior,
    across: Any,
    y: Any,
    row_weights: Any,
    parameters: Any,
) -> tuple[Response, Array, Array]:
    """The ``linear_response``, with a zero shift unless ``moves``, and ``corrected_moments``."""
    response = linear_response(objective, coupled, posterior, across, y, row_weights, parameters)
    response = response if moves else response._replace(shift=jnp.zeros_like(response.shift))
    return response, *corrected_moments(posterior, response.shift, response.covariance)


_STATIC = ("objective", "coupled", "moves")
# Compiled without optimisation where LAPACK dominates: second derivatives of a bound are long formulas.
_respond = compiled(_corrected, _STATIC, optimise=False)
_respond_by_quadrature = compiled(_corrected, static_argnames=_STATIC)
_halves = compiled(halves)


def corrected_moments(posterior: Posterior, shift: Any, response: Any) -> tuple[Any, Any]:
    """Mean (n, L) and covariance (n, L, L) of each datum's latents."""
    mean, V = posterior.marginals()
    moved, added = added_moments(posterior.prior.factors(), shift, response)
    return mean + moved, V + added


@partial(compiled, optimise=False)
def _prior_variances(prior: PriorCollection) -> Any:
    return prior.marginals()[1]


@compiled
def _marginals(posterior: Posterior) -> Any:
    return posterior.marginals()


@compiled
def _covariance(posterior: Posterior, *Phi: Any) -> Any:
    """Cov_q(f, f) (latents, n, n), or Cov_q(f, z) (latents, n, n, P) where Φ couples the latents."""
    covariance = posterior.covariance()
    return jnp.einsum("amkn,npk->amnp", covariance, *Phi) if Phi else covariance
