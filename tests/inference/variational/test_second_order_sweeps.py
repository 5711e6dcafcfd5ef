"""Sweeps over an expansion of dense posteriors' moments end where plain sweeps do, after few factorisations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference import cavi as expanded
from pgmodels.inference.bound import MarginalBound, collapsed_bound
from pgmodels.inference.cavi import CAVI, ascend_expanded, can_expand, expanded_at, expanded_bound
from pgmodels.inference.loop import run_block
from pgmodels.parameters.parameter import bare
from pgmodels.parameters.vector import trainable
from pgmodels.priors.base import Sites
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.dense import covariance_prior, expand
from pgmodels.runtime.precision import double_precision
from tests.covering import some
from tests.registry import CASES

NAMES = ["bernoulli", "student_t", "sigmoid_poisson", "logistic_softmax"]


def dense_problem(name):
    """The problem of a case with dense priors; three of its rows fill up the data."""
    case = CASES[name]
    X, y = case.data(21, seed=3, scale=2.0, shift=0.3)
    model, data = case.model(variance=9.0, mean=0.2).prepare(X, y, None)
    bound = MarginalBound(trainable(model.resolve(data.X)), data)
    return bound.family.problem(jnp.asarray(bound.vector), (None,) * len(model.gps))


@double_precision
def test_moments_move_as_they_say():
    """By the covariance; a site of no precision says nothing of the others and follows none of them."""
    rng = np.random.default_rng(1)
    X = jnp.asarray(rng.normal(size=(7, 2)))
    prior = covariance_prior(bare(pgm.RBF(2.0, 1.3)), jnp.asarray(0.3), X, 2)
    w = jnp.asarray(np.exp(rng.normal(size=(7, 2)))).at[2, 0].set(0.0)
    sites = Sites(jnp.asarray(rng.normal(size=(7, 2))), w)
    expansion = expand(prior, sites)
    posterior = prior.condition(sites)
    mean, variance = posterior.moments()
    np.testing.assert_allclose(prior.mean + expansion.mean.T, mean, rtol=1e-12)
    np.testing.assert_allclose(expansion.variance.T, variance, rtol=1e-12)
    logs = jnp.sum(sites.potential * mean - 0.5 * w * (variance + mean**2)) - posterior.log_normalizer()
    np.testing.assert_allclose(jnp.sum(expansion.divergence), logs, rtol=1e-12)
    covariance = np.array(posterior.covariance())
    covariance[0, 2], covariance[0, :, 2] = 0.0, 0.0
    covariance[0, 2, 2] = prior.K[2, 2]
    x = jnp.asarray(rng.normal(size=(2, 7)))
    # A share of 1e-7 of the prior's precision is added to each, of 0.1 at least, between entries of up to 2.
    np.testing.assert_allclose(expansion.times(x), np.einsum("lij,lj->li", covariance, x), atol=1e-5)
    moved = expansion.times_squares(expansion.squares(), x)
    np.testing.assert_allclose(moved, np.einsum("lij,lj->li", covariance**2, x), atol=1e-5)


@pytest.mark.slow
@double_precision
@pytest.mark.parametrize("name", NAMES)
def test_the_optimum_of_plain_sweeps(name):
    problem = dense_problem(name)
    start = CAVI.init(problem)
    assert can_expand(problem)
    ascent, _ = jax.jit(lambda problem, start: ascend_expanded(problem, start, 1e-11, 50))(problem, start)
    plain = jax.jit(lambda problem, start: run_block(CAVI.step, problem, start, 1e-14, 2000, 2000))(problem, start)
    trace = np.asarray(ascent.trace)[: int(ascent.taken)]
    assert ascent.converged
    # What is promised is of second order, so that what is left is below the tolerance but for its own square.
    np.testing.assert_allclose(trace[-1], plain.state.elbo, rtol=2e-11)
    np.testing.assert_allclose(ascent.state.mean, plain.state.mean, atol=1e-4)
    assert np.all(np.diff(trace) >= -1e-12 * np.abs(trace[:-1]))
    assert 2 * int(ascent.taken) <= int(plain.taken)


@double_precision
@pytest.mark.slow
def test_where_promises_are_broken_the_sweep_counts(monkeypatch):
    problem = dense_problem("bernoulli")
    start = CAVI.init(problem)
    honest = ascend_expanded(problem, start, 1e-12, 50)[0].state.elbo

    def astray(problem, state, expansions):
        return Sites(state.sites.potential + 3.0, state.sites.precision + 1.0), jnp.asarray(jnp.inf)

    monkeypatch.setattr(expanded, "_aim", astray)
    ascent, _ = ascend_expanded(problem, start, 1e-12, 500)
    trace = np.asarray(ascent.trace)[: int(ascent.taken)]
    assert ascent.converged
    assert np.all(np.diff(trace) >= -1e-12 * np.abs(trace[:-1]))
    # Plain sweeps stop where one gains 1e-12, and have ten times as much or so before them.
    np.testing.assert_allclose(ascent.state.elbo, honest, rtol=1e-10)


@pytest.mark.slow
@double_precision
@pytest.mark.parametrize("name", some(["student_t", "logistic_softmax"], "student_t"))
def test_the_gradient_is_that_of_the_collapsed_bound(name):
    """At sites that are no optimum, in the kernel's values, the mean and the likelihood's parameters."""
    problem = dense_problem(name)
    m, v = problem.marginals()
    expanded = expanded_at(problem, problem.sites(m + 0.3, 0.5 * v))

    def at(shifts):
        group = problem.prior.groups[0]
        kernel = jax.tree.map(lambda leaf: leaf * jnp.exp(shifts["kernel"]), group.kernel)
        moved = covariance_prior(kernel, group.mean + shifts["mean"], group.X, group.size, problem.row_weights)
        parameters = {name: value * jnp.exp(shifts["parameters"]) for name, value in problem.parameters.items()}
        prior = PriorCollection((moved,))
        return type(problem)(problem.objective, prior, problem.y, parameters, row_weights=problem.row_weights)

    zero = {name: jnp.zeros(()) for name in ("kernel", "mean", "parameters")}
    ours = jax.grad(lambda shifts: expanded_bound(at(shifts), expanded.state, expanded.expansions))(zero)
    theirs = jax.grad(lambda shifts: collapsed_bound(at(shifts), expanded.state))(zero)
    for part in zero:
        np.testing.assert_allclose(ours[part], theirs[part], rtol=1e-9, err_msg=part)
