"""Corrections by linear response for priors with Markov chains, by scans."""

import time
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from pgmodels.inference.corrections.linear_response import read_at_data, sensitivity
from pgmodels.inference.corrections.response import has_coupled_sites
from pgmodels.inference.objectives import objective_of_result
from pgmodels.objectives.base import Objective
from pgmodels.priors.chain_blocks import Layout
from pgmodels.priors.chain_response import Factors, response_entries
from pgmodels.priors.posterior import Marginals, Posterior
from pgmodels.results.approximation import Approximation
from pgmodels.results.chain_response import ChainCorrection, respond
from pgmodels.results.correction import CorrectionWarning, is_invalid, mixing, warn_invalid
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.memory import require_memory
from pgmodels.runtime.warnings import warn

# Bytes at the peak for each entry of a matrix of the response at a row: some six matrices.
_MATRICES = 48.0


def correct_by_scans(approximation: Approximation) -> ChainCorrection:
    """Covariances of each datum's latents by linear response, by scans over the rows.

    Raises ValueError if a latent is neither a Markov chain nor has a factor, or chains are of different columns.
    """
    start, n = time.perf_counter(), len(approximation.y)
    objective, data = objective_of_result(approximation), approximation.data
    posterior = approximation.posterior
    require_memory(
        _MATRICES * response_entries(posterior),
        "the matrices of linear response at all rows",
        "Use kernels with a smaller state, such as pgm.Periodic with fewer harmonics, fewer linear effects, or gibbs.",
    )
    y, row_weights = data.padded(posterior.prior.num_rows)
    Phi = mixing(approximation.model, y)
    coupled, across = has_coupled_sites(approximation, objective), Phi[0] if Phi else None
    parameters = approximation.model.parameters
    factors = factors_of(objective, coupled, posterior, across, y, row_weights, parameters)
    response = respond(posterior, factors, Layout.of(posterior.prior, posterior.is_coupled))
    shift, covariance = (np.asarray(part)[:n] for part in _moments(response))
    variance, negative = np.diagonal(covariance, axis1=1, axis2=2), response.negative()
    is_positive = np.isfinite(variance).all() and not int(jnp.sum(negative))
    if not is_positive:
        at_rows = np.asarray(negative if posterior.is_coupled else posterior.prior.spread(negative))
        rows = np.flatnonzero((at_rows[:n] > 0) | ~np.isfinite(variance).all(axis=1))
        warn(
            f"the covariance by linear response is not positive definite (in row {', '.join(map(str, rows[:5]))}): the "
            "variational optimum is nearly unstable, and the corrected variances are not valid. Use gibbs, or "
            "gaussian_vi if this was cavi's result.",
            CorrectionWarning,
        )
    return ChainCorrection(
        uncorrected=approximation,
        seconds=approximation.seconds + time.perf_counter() - start,
        mean=approximation.mean + shift,
        variance=variance,
        covariance=covariance,
        factors=np.asarray(factors.precision)[:n],
        slope=None if factors.slope is None else np.asarray(factors.slope)[:n],
        is_positive=bool(is_positive),
        num_nonpositive=warn_invalid(variance, "the data") if is_positive else int(is_invalid(variance).sum()),
    )


@partial(compiled, static_argnames=("objective", "coupled"))
def factors_of(
    objective: Objective, coupled: bool, posterior: Posterior, Phi: Any, y: Any, row_weights: Any, parameters: Any
) -> Factors:
    """What responds at each row, see ``linear_response``."""
    mean, spread = read_at_data(objective, posterior, Phi, coupled)
    clipped = not coupled and not posterior.prior.takes_signed(Phi is not None)
    by_means, mixed, curved = sensitivity(objective, mean, spread, y, row_weights, parameters, clipped)
    precision = -jnp.block([[by_means, jnp.swapaxes(mixed, 1, 2)], [mixed, curved]])
    slope = None
    # The variational Gaussian's means need no shift, with several predictors per datum the shift is inaccurate.
    if objective.has_auxiliaries and objective.size == 1:
        residual = posterior.prior.residual_variances()
        # The variance that sites affect, without the residual variance of a sparse prior.
        kept = 0.0 if residual is None else jnp.sum(residual if Phi is None else Phi[:, 0] ** 2 * residual, axis=1)
        slope = 2.0 * (spread.reshape(len(mean)) - kept) * mixed[:, 0, 0]
    return Factors(precision, slope, Phi)


@compiled
def _moments(response: Any) -> Marginals:
    return response.moments()
