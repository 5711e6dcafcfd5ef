"""The evidence as a function of hyperparameters and local parameters: predictor moments, which give the sites."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.inference.empirical_bayes.bound import many_rows
from pgmodels.inference.engine import VariationalState
from pgmodels.inference.problem import Problem
from pgmodels.inference.problem_family import ProblemFamily
from pgmodels.inference.variational.natural_gradient import positive
from pgmodels.inference.variational.vi import engine_of
from pgmodels.model import Points
from pgmodels.runtime.jit import compiled


class LocalParameters(NamedTuple):
    """A mean and a log variance of each predictor, (n, predictors) each, not constrained."""

    mean: Any
    log_variance: Any

    @classmethod
    def of(cls, state: VariationalState) -> "LocalParameters":
        """The moments of q(f), without covariances of the predictors of a datum."""
        variance = np.asarray(state.variance)
        variance = variance if variance.ndim == 2 else np.diagonal(variance, axis1=1, axis2=2)
        # Rows of padding may have no variance.
        return cls(np.asarray(state.mean), np.log(np.maximum(variance, np.finfo(np.float64).tiny)))


def tangent_bound(problem: Problem, local: LocalParameters) -> Float[Array, ""]:
    """log Z(θ; h, w) + Σ (B - h m + w s / 2), with B and the sites h, w at local parameters m, s = m^2 + v.

    Equal to the ELBO at q's moments. For bounds by auxiliary variables, which are convex in (m, s), it is a lower bound
    of the ELBO at its optimum; with the logistic likelihood that of Jaakkola and Jordan, a function of s alone:
    Izmailov and Kropotov 2017, section 4.1. For Taylor expansions of log p(y | f) it is log Z + Σ (log p(y | m) - g m -
    w m^2 / 2) with the gradient g at m, where variances cancel, and no bound: section 4.2, equation 18.
    """
    m, v = local.mean, jnp.exp(local.log_variance)
    squares = m**2
    if problem.coupled:
        v, squares = jax.vmap(jnp.diag)(v), m[:, :, None] * m[:, None, :]
    sites = problem.sites(m, v)
    if problem.objective.signed and not problem.takes_signed:
        # Precisions as the engine clips them.
        sites = positive(sites, m)
    rest = 0.5 * jnp.sum(sites.precision * (v + squares)) - jnp.sum(sites.potential * m)
    return problem.moments(sites).log_normalizer + problem.local_bound(m, v) + rest


@partial(compiled, optimise=many_rows)
def value_and_slopes(
    family: ProblemFamily, vector: Array, points: Points, local: LocalParameters
) -> tuple[Array, tuple[Array, LocalParameters]]:
    """``tangent_bound`` plus the log prior of the hyperparameters, with its gradients in both arguments."""

    def penalised(vector: Array, local: LocalParameters) -> Array:
        return tangent_bound(family.problem(vector, points), local) + family.parameters.log_prior_unconstrained(vector)

    return jax.value_and_grad(penalised, argnums=(0, 1))(vector, local)


@partial(compiled, optimise=many_rows)
def sweep(
    family: ProblemFamily, vector: Array, points: Points, state: VariationalState, count: Any
) -> tuple[VariationalState, Array]:
    """The state after ``count`` plain steps of the objective's engine, and its ELBO plus the log prior."""
    problem, step = family.problem(vector, points), engine_of(family.objective).plain_step
    state = jax.lax.fori_loop(0, count, lambda _, state: step(problem, state), state)
    return state, state.elbo + family.parameters.log_prior_unconstrained(vector)


@partial(compiled, optimise=many_rows)
def state_at(family: ProblemFamily, vector: Array, points: Points, local: LocalParameters) -> Any:
    """The q(f) of the sites at local parameters."""
    problem = family.problem(vector, points)
    return engine_of(family.objective).state_of(problem, problem.sites(local.mean, jnp.exp(local.log_variance)))


@partial(compiled, optimise=False)
def prior_deviations(family: ProblemFamily, vector: Array, points: Points) -> Float[Array, "n p"]:
    """Prior standard deviations of the predictors, the units of local means; 1 where they are zero, as in padding."""
    variance = family.problem(vector, points).marginals()[1]
    return jnp.where(variance > 0.0, jnp.sqrt(variance), 1.0)
