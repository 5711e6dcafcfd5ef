"""Corrections by linear response."""

import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pgmodels.inference.corrections.linear_response import Response, halves, linear_response
from pgmodels.inference.objectives import objective_of_result
from pgmodels.inference.variational.vi import is_affordable
from pgmodels.objectives.base import Objective
from pgmodels.priors.posterior import Posterior
from pgmodels.results.approximation import Approximation, LinearResponse
from pgmodels.results.correction import CorrectionWarning, added_moments, is_invalid, mixing, warn_invalid
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.memory import require_memory
from pgmodels.runtime.warnings import warn

# Matrices of the size of the coordinates that are in memory together.
_MATRICES = 4.0
# Relative residual above which to warn.
_RESIDUAL = 1e-6
# Values of second derivatives of log densities up to which they take longer to compile than to compute unoptimised.
_FEW_VALUES = 10_000_000


def correct_by_response(approximation: Approximation) -> LinearResponse:
    """Covariances by linear response (math: section 5b)."""
    start = time.perf_counter()
    model, posterior, n = approximation.model, approximation.posterior, len(approximation.y)
    count = sum(posterior.prior.ranks)
    require_memory(
        _MATRICES * 8.0 * count**2,
        f"the matrices of linear response of {count:,} coordinates",
        "Take the uncorrected result, fewer inducing inputs, as in form=pgm.Inducing(300), or gibbs.",
    )
    y, row_weights = approximation.data.padded(posterior.prior.num_rows)
    Phi = mixing(model, y)
    objective = objective_of_result(approximation)
    coupled, across = has_coupled_sites(approximation, objective), Phi[0] if Phi else None
    # The variational Gaussian's means need no shift, with several predictors per datum the shift is inaccurate.
    moves = objective.has_auxiliaries and objective.size == 1
    response, *moments = _respond(objective, coupled, moves, posterior, across, y, row_weights, model.parameters)
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


def _is_long(
    objective: Objective, coupled: bool, moves: bool, posterior: Posterior, across: Any, y: Any, *_: Any
) -> bool:
    return len(y) * objective.num_nodes * objective.size**2 > _FEW_VALUES


# Compiled without optimisation where LAPACK dominates: second derivatives of a bound are long formulas.
_respond = compiled(_corrected, _STATIC, optimise=_is_long)
_halves = compiled(halves)


def corrected_moments(posterior: Posterior, shift: Any, response: Any) -> tuple[Any, Any]:
    """Mean (n, L) and covariance (n, L, L) of each datum's latents."""
    mean, V = posterior.marginals()
    moved, added = added_moments(posterior.prior.factors(), shift, response)
    return mean + moved, V + added
