"""Points of ``integrate`` for GPs that are Markov processes: corrected variances by scans, evidence by particles."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from pgmodels.inference.corrections.chain_response import factors_of
from pgmodels.inference.evidence.particles import NUM_RUNS, traced_particle_runs
from pgmodels.inference.problem import Problem
from pgmodels.model import Model
from pgmodels.priors.chain_blocks import Layout
from pgmodels.priors.chain_response import ChainResponse, respond
from pgmodels.priors.posterior import Marginals, Posterior


def log_evidences(model: Model, problem: Problem, posterior: Posterior, keys: Array) -> Float[Array, " runs"]:
    """log p(y) by independent runs of particles, one for each key in all."""
    count = -(-len(keys) // NUM_RUNS)
    layout = Layout.of(posterior.prior, posterior.is_coupled)
    return traced_particle_runs(model, posterior, problem.y, problem.row_weights, keys[:NUM_RUNS], count, layout)


def corrected_marginals(problem: Problem, posterior: Posterior) -> Marginals:
    """Moments of each row's latents, corrected if the response is a covariance."""
    mean, plain = posterior.marginals()
    response, is_positive = _response(problem, posterior)
    return mean, jnp.where(is_positive, response.moments()[1], plain)


def predicted(problem: Problem, posterior: Posterior, X_new: Array) -> tuple[Array, Array, Array]:
    """Means (m, L) and covariances (m, L, L) of the latents at new inputs, corrected as at the data, and not."""
    mean, plain = posterior.marginals_at(X_new)
    response, is_positive = _response(problem, posterior)
    return mean, jnp.where(is_positive, response.predict(X_new)[1], plain), plain


def _response(problem: Problem, posterior: Posterior) -> tuple[ChainResponse, Any]:
    predictors = problem.objective.predictors
    Phi = None if predictors is None else predictors.matrix(problem.y, problem.parameters)
    at = posterior, Phi, problem.y, problem.row_weights, problem.parameters
    factors = factors_of(problem.objective, problem.coupled, *at)._replace(slope=None)
    response = respond(posterior, factors, Layout.of(posterior.prior, posterior.is_coupled))
    is_finite = jnp.all(jnp.isfinite(response.moments()[1]))
    return response, (jnp.sum(response.negative()) == 0) & is_finite
