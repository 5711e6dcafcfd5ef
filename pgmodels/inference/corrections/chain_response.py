"""Corrections by linear response for priors that have it without a factor: one latent that is a Markov process."""

import time
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pgmodels.inference.corrections.linear_response import sensitivity
from pgmodels.inference.objectives import objective_of_result
from pgmodels.inference.variational.natural_gradient import positive_part
from pgmodels.objectives.base import Objective
from pgmodels.priors.base import GroupResponse, Sites
from pgmodels.priors.padding import weighted
from pgmodels.priors.posterior import Posterior
from pgmodels.results.approximation import Approximation
from pgmodels.results.chain_response import ChainResponse, respond
from pgmodels.results.correction import CorrectionWarning, is_invalid, warn_invalid
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.memory import require_memory
from pgmodels.runtime.warnings import warn

# Bytes at the peak for each entry of a matrix of the response at a row: some six matrices.
_MATRICES = 48.0


def responds(approximation: Approximation) -> bool:
    """Whether the prior has its own linear response.

    Raises ValueError if the model has several latents, for which it has none.
    """
    prior = approximation.posterior.prior
    if not any(group.responds for group in prior.groups):
        return False
    if sum(prior.sizes) > 1 or approximation.model.predictors is not None:
        raise ValueError(
            f"linear response with pgm.Markov() is for one latent, and the model has {sum(prior.sizes)}: use "
            "form=pgm.Dense(), gaussian_vi uncorrected, or gibbs."
        )
    return True


def correct_by_scans(approximation: Approximation) -> ChainResponse:
    """Variances by linear response, by the response of the prior."""
    start = time.perf_counter()
    objective, data = objective_of_result(approximation), approximation.data
    posterior = approximation.posterior
    require_memory(
        _MATRICES * sum(group.response_entries for group in posterior.prior.groups),
        "the matrices of linear response at all rows",
        "Use kernels with a smaller state, such as pgm.Periodic with fewer harmonics, or gibbs.",
    )
    y, row_weights = data.padded(posterior.prior.num_rows)
    derivatives = derivatives_of(objective, posterior, y, row_weights, approximation.model.parameters)
    response = respond(posterior, derivatives)
    at_rows = _at_data(posterior, response)
    shift, variance, negative = (np.asarray(part)[: len(approximation.y)] for part in at_rows)
    # Counted by inputs, of which rows may share one.
    is_positive = np.isfinite(variance).all() and not np.asarray(response.negative()).sum()
    if not is_positive:
        rows = np.flatnonzero((negative > 0) | ~np.isfinite(variance))
        warn(
            f"the covariance by linear response is not positive definite (in row {', '.join(map(str, rows[:5]))}): the "
            "variational optimum is nearly unstable, and the corrected variances are not valid. Use gibbs, or "
            "gaussian_vi if this was cavi's result.",
            CorrectionWarning,
        )
    return ChainResponse(
        uncorrected=approximation,
        seconds=approximation.seconds + time.perf_counter() - start,
        mean=approximation.mean + shift[:, None],
        variance=variance[:, None],
        derivatives=np.asarray(derivatives),
        is_positive=bool(is_positive),
        num_nonpositive=warn_invalid(variance, "the data") if is_positive else int(is_invalid(variance).sum()),
    )


@partial(compiled, static_argnames="objective")
def derivatives_of(objective: Objective, posterior: Posterior, y: Any, row_weights: Any, parameters: Any) -> Array:
    """See ``ChainResponse``."""
    mean, variance = posterior.moments()
    precision = positive_part(objective.local_sites(mean, variance, y, parameters)[1])
    by_row = sensitivity(objective, mean, variance, precision, y, parameters, True)
    mixed, gain, curved = (weighted(row_weights, part[:, :, 0]) for part in (by_row.mixed, *by_row[::2]))
    # The variational Gaussian's mean needs no shift.
    slope = 2.0 * variance * mixed if objective.has_auxiliaries else jnp.zeros_like(mixed)
    # Rows with equal inputs respond together, by the sum of their derivatives.
    pairs = (Sites(mixed, gain), Sites(curved, slope))
    sums = [part for pair in pairs for part in posterior.prior.sites_by_group(pair)[0]]
    return jnp.concatenate(sums, axis=1)


@compiled
def _at_data(posterior: Posterior, response: GroupResponse) -> tuple[Array, Array, Array]:
    at_inputs = (*response.moments(), response.negative().astype(float))
    shift, variance, negative = (posterior.prior.at_rows(values, 0) for values in at_inputs)
    return shift, variance, negative
