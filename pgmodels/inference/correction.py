"""Corrections of a variational posterior for what its q leaves out: by linear response, or to second order."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.compiled import compiled
from pgmodels.inference.gaussian_vi import is_joint, quadrature_of
from pgmodels.inference.linear_response import Response, halves, linear_response
from pgmodels.latent.coupled import CoupledPosterior, resize_coordinates
from pgmodels.latent.joint import JointPosterior, JointPrior
from pgmodels.latent.rows import live_rows, of_data, resize_rows
from pgmodels.model import Model
from pgmodels.precision import as_array, double_precision
from pgmodels.results.approximation import (
    Approximation,
    CorrectedApproximation,
    LinearResponse,
    PerturbativeApproximation,
)
from pgmodels.results.correction import (
    CorrectionWarning,
    added_moments,
    correct_coupled,
    correct_marginals,
    is_out_of_reach,
    mixing,
    warn_nonpositive,
)
from pgmodels.warning import raised, warn

# Of the prior's variance: rounding, and what the rule's nodes leave.
_ABOVE = 1e-4
# Whitened coordinates up to which fit corrects its result, and coordinates times rows. With one CPU core and one latent
# it takes .4 s of 200 rows, 1.1 s of 1,000, 6.8 s and .4 GB of 2,000, half as long as cavi there, beside some dozens of
# such runs of fit; with inducing inputs (112) .6 s of 2,000 rows and 5.7 s of 5,000.
MOST_COORDINATES, _MOST_ENTRIES = 2_000, 4_000_000
# A residual that is felt.
_RESIDUAL = 1e-6


@partial(compiled, static_argnames="augmentation")
def expansion(augmentation: Augmentation, m: Any, v: Any, residual: Any, y: Any, parameters: Any) -> tuple[Any, Any]:
    """E[∂Q_i/∂f] and E[∂²Q_i/∂f²] of Q_i = (T - T̄)ᵀ H_i (T - T̄), T = (f, f²), under q, each (n, latents).

    Products with another latent's T have mean zero under q, so each latent's own 2 x 2 block of H is enough. Of the
    variance v, ``residual`` is what no site moves: q is of the rest, f, whose likelihood is averaged over it.
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
    """E[∂Q_i/∂z] (n, P) and E[∂²Q_i/∂z∂z'] (n, P, P) where predictors z ~ N(m, V) of a datum depend on each other.

    ``residual`` is as in ``expansion``, (n, P, P).
    """
    H = augmentation.joint_hessian(m, jnp.diagonal(V, axis1=1, axis2=2), y, parameters)
    V = V - residual
    h_mm, h_ms, h_ss = H[:, :, 0, :, 0], H[:, :, 0, :, 1], H[:, :, 1, :, 1]
    h_sm = jnp.swapaxes(h_ms, 1, 2)
    mean, other = m[:, :, None], m[:, None, :]
    shift = jnp.sum(4.0 * h_sm * V + 8.0 * h_ss * other * V, axis=-1)
    curvature = 2.0 * (h_mm + 2.0 * other * h_ms + 2.0 * mean * h_sm + 4.0 * h_ss * (mean * other + V))
    return shift, curvature


@double_precision
def correct(approximation: Approximation, *, method: str | None = None) -> CorrectedApproximation:
    """Correct the second moments of a result of ``cavi``, ``gaussian_vi`` or ``fit`` for what its q leaves out.

    By linear response (the default; math: section 5b; Opper and Winther 2003; Giordano, Broderick and Jordan 2018):
    covariances from how the optimum moves when the posterior is tilted, at the data and at new inputs, across latents
    too. Means of the derived bound move to first order where a datum has one predictor, and stay otherwise, by
    measurement. With ``method="perturbative"``, of results of the derived bound alone, means and variances to
    second order (Opper et al. 2015; Wenzel et al. 2019, A.6). Warns with CorrectionWarning where a corrected variance
    is not positive, or above the prior's. Raises ValueError for the latter where the likelihood is log-concave. A
    result that is corrected already comes back as it is, or for another ``method`` its ``.uncorrected`` is corrected.
    """
    if method is not None and method not in _METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, _METHODS))}; got {method!r}.")
    if not isinstance(approximation, Approximation):
        raise ValueError(
            f"approximation must be the result of cavi, gaussian_vi or fit; got {type(approximation).__name__}."
        )
    if isinstance(approximation, CorrectedApproximation) and method in (None, approximation.method):
        return approximation
    approximation, method = approximation.uncorrected, method or "linear_response"
    corrected = _METHODS[method](approximation)
    prior = np.asarray(_prior_variances(approximation.posterior.filled().prior))[: len(approximation.y)]
    marginals = approximation.predictor_moments
    check_against_prior("correct", approximation.model, approximation.y, prior, corrected.variance, marginals)
    return corrected


def corrected_if(result: Approximation, choice: bool | str) -> Approximation:
    """The result of ``fit``, corrected by linear response or not; its ``.fit.correction`` says which, and why.

    Where ``choice`` is "auto", not if it is exact, too large, or if the correction is nothing to rely on.
    """
    size = sum(result.prior.ranks)
    if choice is False:
        return _noted(result, "none, with correct=False")
    if choice is True:
        return _noted(correct(result), "by linear response")
    if result.model.is_augmentable and result.model.augmentation.is_gaussian:
        return _noted(result, "none: the likelihood is Gaussian in f, and so is the posterior")
    if size > MOST_COORDINATES or size * len(result.y) > _MOST_ENTRIES:
        many = f"{size:,} coordinates and {len(result.y):,} rows"
        return _noted(result, f"none: the system has {many}, with which it takes minutes; pgm.correct(result) makes it")
    try:
        with raised(CorrectionWarning):
            return _noted(correct(result), "by linear response")
    except (CorrectionWarning, ValueError) as fault:
        return _noted(result, f"none, since it is not to be trusted here: {fault}")


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
    """Raise ValueError where a corrected variance (n, latents) is above the prior's and the likelihood log-concave.

    A posterior's is not, then (Brascamp and Lieb 1976). Concave means at all data, as far as the predictors'
    ``marginals`` reach, means and variances (n, P). Other likelihoods may widen a prior: a CorrectionWarning.
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
    mean, spread = map(as_array, marginals())
    if bool(np.all(quadrature_of(model).is_concave(mean, spread, as_array(y), model.parameters))):
        raise ValueError(f"{engine}: {what}, and a log-concave likelihood allows none. {remedy}")
    warn(f"{engine}: {what}, which a likelihood that is not log-concave seldom does. {remedy}", CorrectionWarning)


def correct_by_response(approximation: Approximation) -> LinearResponse:
    """Covariances by linear response (math: section 5b)."""
    start = time.perf_counter()
    model, posterior, n = approximation.model, approximation.posterior.filled(), len(approximation.y)
    y, live = _filled(approximation, posterior.prior.num_rows)
    Phi = mixing(model, y)
    objective = quadrature_of(model) if approximation.objective == "gaussian_vi" else model.augmentation
    joint, across = is_joint(approximation), Phi[0] if Phi else None
    # The variational Gaussian's means need no shift, and those of several latents are off by what q cannot couple.
    moves = approximation.objective == "cavi" and objective.size == 1
    respond = _respond if approximation.objective == "cavi" else _respond_by_quadrature
    found, *moments = respond(objective, joint, moves, posterior, across, y, live, model.parameters)
    mean, covariance = (np.asarray(part)[:n] for part in moments)
    variance, residual = np.diagonal(covariance, axis1=1, axis2=2), float(found.residual)
    positive = _is_positive(found, lambda: _halves(posterior, across)[1], n)
    if positive and residual > _RESIDUAL:
        warn(
            f"the equations of linear response are solved to {residual:.1g} of their right-hand sides only: the "
            "corrected covariances have no more digits. Use gibbs, or gaussian_vi where this was cavi's result.",
            CorrectionWarning,
        )
    held = posterior.prior, approximation.posterior.prior
    return LinearResponse(
        **_shared(approximation, start),
        method="linear_response",
        mean=mean,
        variance=variance,
        shift=resize_coordinates(np.asarray(found.shift), *held),
        covariance=covariance,
        response=resize_coordinates(np.asarray(found.covariance), *held),
        is_positive=positive,
        residual=residual,
        num_nonpositive=warn_nonpositive(variance, "the data") if positive else int(is_out_of_reach(variance).sum()),
    )


def _filled(approximation: Approximation, size: int) -> tuple[np.ndarray, Array]:
    """Observations filled up to so many rows, and which of them are data."""
    return resize_rows(approximation.y, size), as_array(live_rows(len(approximation.y), size))


def _is_positive(found: Response, half: Callable[[], Array], num_rows: int) -> bool:
    """Whether the response is a covariance; a CorrectionWarning with the rows that it fails in where it is not.

    ``half`` gives the U (D, n, P) with U^T U the covariance of the predictors under q.
    """
    kept, where = np.asarray(found.kept), ""
    if np.isfinite(kept).all():
        try:
            np.linalg.cholesky(kept)
            if np.isfinite(found.residual):
                return True
        except np.linalg.LinAlgError:
            values, vectors = np.linalg.eigh(kept)
            weights = np.sum(np.tensordot(vectors[:, values <= 0], np.asarray(half()), axes=(0, 0)) ** 2, axis=2)
            rows = np.unique(np.argmax(weights[:, :num_rows], axis=1))
            where = f" ({int(np.sum(values <= 0))} directions, most in row {', '.join(map(str, rows[:5]))})"
    warn(
        f"the covariance by linear response is not positive definite{where}: the optimum is about to turn into "
        "another, and the corrected covariances mean nothing. Use gibbs, or gaussian_vi where this was cavi's result.",
        CorrectionWarning,
    )
    return False


def _shared(approximation: Approximation, start: float) -> dict[str, Any]:
    """What a corrected result has of the one that it corrects."""
    return {
        "model": approximation.model,
        "X": approximation.X,
        "y": approximation.y,
        "columns": approximation.columns,
        "seconds": approximation.seconds + time.perf_counter() - start,
        "posterior": approximation.posterior,
        "elbo_trace": approximation.elbo_trace,
        "converged": approximation.converged,
        "tolerance": approximation.tolerance,
        "objective": approximation.objective,
        "fit": approximation.fit,
    }


def correct_perturbatively(approximation: Approximation) -> PerturbativeApproximation:
    """Mean and variance of a result of the derived bound to second order (Opper et al. 2015; Wenzel et al. 2019, A.6).

    Raises ValueError where two latents of one datum multiply, since B generates no joint moments there.
    """
    start = time.perf_counter()
    model = approximation.model
    if approximation.objective != "cavi":
        raise ValueError(
            "correct: the perturbative expansion is about the optimum of the derived bound, the result of cavi or of "
            f"fit(..., objective='cavi'); got that of {approximation.objective}. Use the default, "
            "method='linear_response'."
        )
    augmentation = model.augmentation
    if len(augmentation.blocks) > 1:
        raise ValueError(
            f"correct: in {model.likelihood.name} two latents of one datum multiply, so the local bound generates the "
            "moments of one block only and the second-order formula does not hold. Use the default, "
            "method='linear_response', or gibbs."
        )
    posterior, n = approximation.posterior.filled(), len(approximation.y)
    size = posterior.prior.num_rows
    y, live = _filled(approximation, size)
    Phi = mixing(model, y)
    shift, curvature = (np.asarray(of_data(live, part)) for part in _expansion(approximation, posterior, y, Phi))
    if isinstance(posterior, CoupledPosterior):
        f, V = _marginals(posterior)
        mean, covariance = correct_coupled(f, V, _covariance(posterior, *Phi), shift, curvature)
        variance = np.diagonal(covariance, axis1=1, axis2=2)
    else:
        m, v = (resize_rows(part, size) for part in (approximation.mean, approximation.variance))
        mean, variance = correct_marginals(m, v, _covariance(posterior), shift, curvature)
    return PerturbativeApproximation(
        **_shared(approximation, start),
        method="perturbative",
        mean=mean[:n],
        variance=variance[:n],
        shift=np.asarray(shift)[:n],
        curvature=np.asarray(curvature)[:n],
        num_nonpositive=warn_nonpositive(variance[:n], "the data"),
    )


def _expansion(
    approximation: Approximation, posterior: JointPosterior | CoupledPosterior, y: np.ndarray, Phi: tuple[Any, ...]
) -> tuple[Any, Any]:
    """E[∂Q/∂z] and E[∂²Q/∂z²] of a result of the derived bound, at the rows of a filled posterior."""
    model = approximation.model
    m, v = (resize_rows(part, len(y)) for part in (approximation.mean, approximation.variance))
    found = posterior.prior.residual_variances()
    residual = as_array(np.zeros(m.shape)) if found is None else found
    if isinstance(posterior, CoupledPosterior):
        f, V = _marginals(posterior)
        z, S = jnp.einsum("ipl,il->ip", *Phi, f), jnp.einsum("ipl,ilk,iqk->ipq", *Phi, V, *Phi)
        beside = jnp.einsum("ipl,il,iql->ipq", *Phi, residual, *Phi)
        return joint_expansion(model.augmentation, z, S, beside, y, model.parameters)
    return expansion(model.augmentation, m, v, residual, y, model.parameters)


_METHODS = {"linear_response": correct_by_response, "perturbative": correct_perturbatively}


def _corrected(
    objective: Any,
    joint: bool,
    moves: bool,
    posterior: JointPosterior | CoupledPosterior,
    across: Any,
    y: Any,
    live: Any,
    parameters: Any,
) -> tuple[Response, Array, Array]:
    """What ``linear_response`` finds, the shift zero where means do not move, and ``corrected_moments``."""
    found = linear_response(objective, joint, posterior, across, y, live, parameters)
    found = found if moves else found._replace(shift=jnp.zeros_like(found.shift))
    return found, *corrected_moments(posterior, found.shift, found.covariance)


_STATIC = ("objective", "joint", "moves")
# Compiled with little effort where the time is LAPACK's: second derivatives of a bound are long formulas.
_respond = compiled(_corrected, _STATIC, lightly=True)
_respond_by_quadrature = compiled(_corrected, static_argnames=_STATIC)
_halves = compiled(halves)


def corrected_moments(posterior: JointPosterior | CoupledPosterior, shift: Any, response: Any) -> tuple[Any, Any]:
    """Mean (n, L) and covariance (n, L, L) of each datum's latents."""
    if isinstance(posterior, CoupledPosterior):
        mean, V = posterior.marginals()
    else:
        mean, variance = posterior.moments()
        V = jax.vmap(jnp.diag)(variance)
    moved, added = added_moments(posterior.prior.factors(), shift, response)
    return mean + moved, V + added


@partial(compiled, lightly=True)
def _prior_variances(prior: JointPrior) -> Any:
    return prior.marginals()[1]


@compiled
def _marginals(posterior: CoupledPosterior) -> Any:
    return posterior.marginals()


@compiled
def _covariance(posterior: JointPosterior | CoupledPosterior, *Phi: Any) -> Any:
    """Cov_q(f, f) (latents, n, n), or Cov_q(f, z) (latents, n, n, P) where Φ couples the latents."""
    covariance = posterior.covariance()
    return jnp.einsum("amkn,npk->amnp", covariance, *Phi) if Phi else covariance
