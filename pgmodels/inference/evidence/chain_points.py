"""Points of ``integrate`` for GPs that are Markov processes: corrected variances by scans, evidence by particles."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pgmodels.inference.corrections.chain_response import derivatives_of
from pgmodels.inference.evidence.particles import NUM_RUNS, traced_particle_runs
from pgmodels.inference.problem import Problem
from pgmodels.model import Model
from pgmodels.priors.base import GroupResponse
from pgmodels.priors.posterior import Marginals, Posterior
from pgmodels.results.chain_response import respond


def log_evidences(model: Model, problem: Problem, posterior: Posterior, keys: Array) -> Float[Array, " runs"]:
    """log p(y) by independent runs of particles, one for each key in all."""
    count = -(-len(keys) // NUM_RUNS)
    return traced_particle_runs(model, posterior, problem.y, problem.row_weights, keys[:NUM_RUNS], count)


def corrected_marginals(problem: Problem, posterior: Posterior) -> tuple[Marginals, Bool[Array, ""]]:
    """Moments of each row's latents, corrected if there is one whose response is a covariance, and whether."""
    mean, variance = posterior.moments()
    response, is_positive = _response(problem, posterior)
    if response is not None:
        corrected = posterior.prior.at_rows(response.moments()[1], 0)[:, None]
        variance = jnp.where(is_positive, corrected, variance)
    return (mean, jax.vmap(jnp.diag)(variance)), is_positive


def predicted(problem: Problem, posterior: Posterior, X_new: Array) -> tuple[Array, Array, Array]:
    """Means (m, L) and covariances (m, L, L) of the latents at new inputs, corrected as at the data, and not."""
    mean, plain = posterior.marginals_at(X_new)
    response, is_positive = _response(problem, posterior)
    if response is None:
        return mean, plain, plain
    corrected = jnp.where(is_positive, response.predict(X_new)[1][:, None, None], plain)
    return mean, corrected, plain


def _response(problem: Problem, posterior: Posterior) -> tuple[GroupResponse | None, Any]:
    """The linear response of the one latent; None if there are several, which have none."""
    if sum(posterior.prior.sizes) > 1:
        return None, jnp.array(False)
    derivatives = derivatives_of(problem.objective, posterior, problem.y, problem.row_weights, problem.parameters)
    response = respond(posterior, derivatives)
    return response, (jnp.sum(response.negative()) == 0) & jnp.all(jnp.isfinite(response.moments()[1]))
