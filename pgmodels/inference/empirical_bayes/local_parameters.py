"""The bound as a function of hyperparameters and local parameters: moments of each predictor, which give its sites."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.inference.empirical_bayes.bound import many_rows
from pgmodels.inference.problem import Problem
from pgmodels.inference.problem_family import ProblemFamily
from pgmodels.inference.variational.cavi import CAVI, CaviState
from pgmodels.model import Points
from pgmodels.runtime.jit import compiled


class LocalParameters(NamedTuple):
    """A mean and a log variance of each predictor, (n, predictors) each, not constrained."""

    mean: Any
    log_variance: Any

    @classmethod
    def of(cls, state: CaviState) -> "LocalParameters":
        """The moments of q(f)."""
        # Rows of padding may have no variance.
        variance = np.maximum(np.asarray(state.variance), np.finfo(np.float64).tiny)
        return cls(np.asarray(state.mean), np.log(variance))


def tangent_bound(problem: Problem, local: LocalParameters) -> Float[Array, ""]:
    """log Z(θ; h, w) + Σ (B - h m + w s / 2), with B and the sites h, w at local parameters m, s = m^2 + v.

    A lower bound of the ELBO at its optimum, since B is convex in (m, s); equal to it at q's moments. With the logistic
    likelihood it is that of Jaakkola and Jordan, a function of s alone: Izmailov and Kropotov 2017, equation 11.
    """
    m, v = local.mean, jnp.exp(local.log_variance)
    sites = problem.sites(m, v)
    rest = jnp.sum(0.5 * sites.precision * (v + m**2) - sites.potential * m)
    return problem.moments(sites).log_normalizer + problem.local_bound(m, v) + rest


def _log_prior(family: ProblemFamily, vector: Array) -> Array:
    return family.parameters.log_prior(family.parameters.constrain(vector))


@partial(compiled, optimise=many_rows)
def value_and_slopes(
    family: ProblemFamily, vector: Array, points: Points, local: LocalParameters
) -> tuple[Array, tuple[Array, LocalParameters]]:
    """``tangent_bound`` plus the log prior of the hyperparameters, with its gradients in both arguments."""

    def penalised(vector: Array, local: LocalParameters) -> Array:
        return tangent_bound(family.problem(vector, points), local) + _log_prior(family, vector)

    return jax.value_and_grad(penalised, argnums=(0, 1))(vector, local)


@partial(compiled, optimise=many_rows)
def sweep(
    family: ProblemFamily, vector: Array, points: Points, state: CaviState, count: Any
) -> tuple[CaviState, Array]:
    """The state after ``count`` sweeps without acceleration, and its ELBO plus the log prior."""
    problem = family.problem(vector, points)
    state = jax.lax.fori_loop(0, count, lambda _, state: CAVI.plain_sweep(problem, state), state)
    return state, state.elbo + _log_prior(family, vector)


@partial(compiled, optimise=many_rows)
def state_at(family: ProblemFamily, vector: Array, points: Points, local: LocalParameters) -> CaviState:
    """The q(f) of the sites at local parameters."""
    problem = family.problem(vector, points)
    return CAVI.state_of(problem, problem.sites(local.mean, jnp.exp(local.log_variance)))


@partial(compiled, optimise=False)
def prior_deviations(family: ProblemFamily, vector: Array, points: Points) -> Float[Array, "n p"]:
    """Prior standard deviations of the predictors, the units of local means; 1 where they are zero, as in padding."""
    variance = family.problem(vector, points).marginals()[1]
    return jnp.where(variance > 0.0, jnp.sqrt(variance), 1.0)
