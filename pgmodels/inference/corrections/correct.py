"""Corrections of the moments of a variational posterior: by linear response, or perturbatively to second order."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from pgmodels.inference.corrections.chain_response import correct_by_scans
from pgmodels.inference.corrections.nested import correct_by_nesting
from pgmodels.inference.corrections.perturbative import correct_perturbatively
from pgmodels.inference.corrections.response import correct_by_response
from pgmodels.inference.objectives import expected_objective, objective_of_result, require_maximised
from pgmodels.model import Model
from pgmodels.objectives.additive_noise import ExpectedIndicator
from pgmodels.objectives.expected import Quadrature
from pgmodels.priors.chain_response import response_entries
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.padding import pad_rows, padded_size
from pgmodels.results.approximation import (
    BEFORE_CORRECTION,
    Approximation,
    CorrectedApproximation,
    GaussianResult,
    with_parameters,
)
from pgmodels.results.correction import CorrectionWarning
from pgmodels.results.sparse import name_type
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.warnings import raised, warn
from pgmodels.runtime.x64 import as_array, double_precision

# Names of ``_METHODS``.
Method: TypeAlias = Literal["linear_response", "perturbative", "nested"]
# Limits on whitened coordinates, and on coordinates times rows, up to which fit corrects its result. On one CPU core
# with one latent it takes 0.4 s for 200 rows, 1.1 s for 1,000, 6.8 s and 0.4 GB for 2,000 (half as long as cavi, and
# fit runs it dozens of times); with 112 inducing inputs 0.6 s for 2,000 rows and 5.7 s for 5,000.
MOST_COORDINATES, _MOST_ENTRIES = 2_000, 4_000_000
# Entries of a matrix at each row up to which fit corrects by the scans of a Markov process: 200,000 rows of Matern32,
# some 0.3 GB.
_MOST_SCANNED = 5_000_000
# Corrected variances that may be above the prior's in a result of fit, as a share of all, and by what factor: under a
# likelihood that is not log-concave the right ones may be.
_FEW, _JUST_ABOVE = 0.01, 1.1
# Distinct inputs of one latent up to which fit computes nested marginals. On two CPU cores those of 300 binary rows
# take 1.9 s and predictions at as many new inputs as long; a fit of these rows takes 0.6 s, and 2 s with compilation.
_MOST_NESTED = 300


@double_precision
def correct(
    approximation: Approximation | CorrectedApproximation,
    *,
    method: Method | None = None,
    progress: bool | None = None,
) -> CorrectedApproximation:
    """Correct the means and covariances of a result of ``cavi``, ``gaussian_vi`` or ``fit``.

    Parameters
    ----------
    approximation : Approximation
        The result to correct. A corrected result is returned unchanged or, for another ``method``, its ``.uncorrected``
        is corrected.
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
        For other results, and for a variance above the prior's if the likelihood is log-concave, where it cannot be.

    Warns
    -----
    CorrectionWarning
        If a corrected variance is not positive, or above the prior's; if a nested marginal is cut off.

    Notes
    -----
    Linear response (math: section 5b): covariances from the derivative of the optimum in a perturbation of the
    posterior, at the data and at new inputs, including across latents. Means of the augmented bound are corrected to
    first order if a datum has one predictor, and unchanged otherwise (measured to be better). The perturbative
    correction (math: section 5) corrects means and variances to second order. Nested variational marginals (math:
    section 5c) are bounds of log p(y, f_i = x), normalised over x; those of a result of another objective are of the
    variational Gaussian with its hyperparameters. They take a second for some 100 latents. With several predictors in a
    row, such as classes, and more than 32 rows linear response has more accurate variances.

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
    if not isinstance(approximation, GaussianResult):
        raise ValueError(
            f"approximation must be the result of cavi, gaussian_vi or fit; got {name_type(approximation)}."
        )
    if (
        isinstance(approximation, CorrectedApproximation)
        and approximation.is_corrected
        and method in (None, approximation.method)
    ):
        return approximation
    corrected = _corrected(approximation.uncorrected, method or "linear_response", progress)
    return corrected if approximation.uncertainty is None else with_parameters(corrected, approximation.uncertainty)


def _corrected(
    approximation: Approximation, method: Method, progress: bool | None, tolerates_few: bool = False
) -> CorrectedApproximation:
    """``correct``; with ``tolerates_few`` the report of ``fit`` names few variances just above the prior's."""
    require_maximised("correct", objective_of_result(approximation))
    corrected = _METHODS[method](approximation, progress)
    prior = np.asarray(_prior_variances(approximation.posterior.prior))[: len(approximation.y)]
    variance = corrected.variance
    beyond = variance > (1.0 + corrected.relative_error) * prior
    is_little = np.sum(beyond) <= _FEW * beyond.size and np.all(variance[beyond] <= _JUST_ABOVE * prior[beyond])
    if (
        tolerates_few
        and beyond.any()
        and is_little
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


def corrected_if(
    result: Approximation, choice: bool | str, progress: bool | None, by_scans: bool
) -> Approximation | CorrectedApproximation:
    """The result of ``fit``, corrected if ``choice`` allows it; ``.fit.correction`` says why or why not.

    ``choice="auto"`` takes nested marginals if q is the variational Gaussian of one latent at few distinct inputs, and
    else linear response, of long chains only with ``by_scans``. It does not correct if q is exact, the system too
    large, or neither is reliable.
    """
    size, objective = sum(result.prior.ranks), objective_of_result(result)
    if choice is False:
        return _noted(result, "none, with correct=False")
    if choice is True:
        return correct(_noted(result, BEFORE_CORRECTION))
    if not objective.is_maximised:
        return _noted(result, "none: linear response is that of an optimum, which q is not")
    if result.model.is_augmentable and result.model.augmentation.is_gaussian:
        return _noted(result, "none: the likelihood is Gaussian in f, and so is the posterior")
    if not _is_affordable(result, size, by_scans):
        if _is_affordable(result, size, by_scans=True):
            return _noted(
                result, "none: pgm.correct(result) makes it, in seconds, but leaves no joint density to draw from"
            )
        many = f"{size:,} coordinates and {len(result.y):,} rows"
        return _noted(result, f"none: the system has {many}, with which it takes minutes; pgm.correct(result) makes it")
    methods: tuple[Method, ...] = ("linear_response",)
    if objective.is_exact and result.mean.shape[1] == 1 and len(np.unique(result.X, axis=0)) <= _MOST_NESTED:
        methods = ("nested", *methods)
    for method in methods:
        try:
            with raised(CorrectionWarning):
                return _corrected(_noted(result, BEFORE_CORRECTION), method, progress, tolerates_few=True)
        except (CorrectionWarning, ValueError) as fault:
            reason = fault
    return _noted(result, f"none, since it is not reliable here: {reason}")


def _is_affordable(result: Approximation, size: int, by_scans: bool) -> bool:
    """Whether linear response takes seconds, with so many coordinates or by scans."""
    is_small = size <= MOST_COORDINATES and size * len(result.y) <= _MOST_ENTRIES
    if not result.prior.chained:
        return is_small
    try:
        return (by_scans or is_small) and response_entries(result.posterior) <= _MOST_SCANNED
    except ValueError:
        # ``correct`` says why there is none.
        return True


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
    relative_error: float = CorrectedApproximation.relative_error,
) -> None:
    """Raise ValueError if a corrected variance (n, latents) exceeds the prior's under a log-concave likelihood.

    Excesses up to the correction's own ``relative_error`` are allowed. Under such a likelihood posterior variances are
    at most the prior's (Brascamp and Lieb 1976). Concavity is checked at all data within the predictors' ``marginals``,
    means and variances (n, P). Other likelihoods may increase variances: a CorrectionWarning.
    """
    beyond = variance > (1.0 + relative_error) * prior
    if not beyond.any():
        return
    row, latent = (int(place) for place in np.argwhere(beyond)[0])
    what = (
        f"{int(beyond.sum())} of {variance.size} corrected variances are above the prior's (first in row {row}, "
        f"{variance[row, latent]:.4g} where the prior's is {prior[row, latent]:.4g})"
    )
    remedy = "Take gaussian_vi uncorrected, or gibbs. Kinks of one latent are exact where written as abs(y - f)."
    if _is_concave_at(model, y, marginals):
        raise ValueError(f"{engine}: {what}, and a log-concave likelihood allows none. {remedy}")
    warn(f"{engine}: {what}, which a likelihood that is not log-concave seldom does. {remedy}", CorrectionWarning)


def _is_concave_at(model: Model, y: np.ndarray, marginals: Callable[[], tuple[Any, Any]]) -> bool:
    """Whether the likelihood is log-concave at all data within the predictors' marginals."""
    mean, spread, observed = (as_array(pad_rows(part, padded_size(len(y)))) for part in (*marginals(), y))
    return bool(np.all(_is_concave(expected_objective(model), mean, spread, observed, model.parameters)))


@partial(compiled, static_argnames="objective")
def _is_concave(objective: Quadrature | ExpectedIndicator, mean: Any, spread: Any, y: Any, parameters: Any) -> Any:
    return objective.is_concave(mean, spread, y, parameters)


def _by_response(approximation: Approximation) -> CorrectedApproximation:
    by_scans = approximation.posterior.prior.chained
    return correct_by_scans(approximation) if by_scans else correct_by_response(approximation)


_METHODS: dict[str, Callable[[Approximation, bool | None], CorrectedApproximation]] = {
    "linear_response": lambda approximation, _: _by_response(approximation),
    "perturbative": lambda approximation, _: correct_perturbatively(approximation),
    "nested": correct_by_nesting,
}


@partial(compiled, optimise=False)
def _prior_variances(prior: PriorCollection) -> Any:
    return prior.marginals()[1]
