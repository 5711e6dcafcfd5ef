"""Objectives defined outside the package run through its problem, its loop and its sites."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy.optimize import minimize

from pgmodels.inference.loop import maximise
from pgmodels.inference.problem import Problem
from pgmodels.inference.variational.cavi import first_state, state_of
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.named import Bernoulli
from pgmodels.model import GP, Model
from pgmodels.numerics.quadrature import gauss_hermite
from pgmodels.objectives.base import Objective
from pgmodels.priors.base import Sites
from pgmodels.runtime.x64 import double_precision

X = np.array([[0.0], [0.7], [1.1], [2.9]])
Y = np.array([1.0, 0.0, 1.0, 1.0])
MEAN = 0.4


@dataclass(frozen=True)
class Quadrature(Objective):
    """E log p(y | f) of a complementary log-log likelihood, p(1 | f) = 1 - exp(-exp f), which has no augmentation."""

    count: int = 32
    size = 1

    def local_bound(self, m, v, y, parameters):
        nodes, weights = gauss_hermite(self.count)
        rate = jnp.exp(m + jnp.sqrt(v) * nodes)
        log_p = jnp.where(y[:, None] == 1, jnp.log(-jnp.expm1(-rate)), -rate)
        return log_p @ weights / np.sqrt(2 * np.pi)


@dataclass(frozen=True)
class Taylor(Objective):
    """Logistic log p(y | f) to second order about the mean: its fixed point is Laplace's approximation."""

    size = 1

    def local_bound(self, m, v, y, parameters):
        curvature = jax.nn.sigmoid(m) * jax.nn.sigmoid(-m)
        return (jax.nn.log_sigmoid((2 * y[:, None] - 1) * m) - 0.5 * curvature * v)[:, 0]

    def local_sites(self, m, v, y, parameters):
        w = jax.nn.sigmoid(m) * jax.nn.sigmoid(-m)
        return y[:, None] - jax.nn.sigmoid(m) + w * m, w


def damped(problem, state):
    """Half a step of the natural gradient; precisions stay positive."""
    h, w = problem.sites(state.mean, state.variance)
    aim = Sites(h, jnp.maximum(w, 0.0))
    return state_of(problem, jax.tree.map(lambda old, new: old + 0.5 * (new - old), state.sites, aim))


@double_precision
def optimum(objective, X=X, y=Y, weights=None):
    """The final state and the trace of bounds for an objective instead of an augmentation."""
    model = Model(Bernoulli(), GP(RBF(lengthscale=1.2, variance=1.7), mean=MEAN))
    row_weights = None if weights is None else jnp.asarray(weights)
    problem = Problem(objective, model.prior(X), jnp.asarray(y), {}, row_weights=row_weights)
    result = maximise(damped, problem, first_state(problem), 1e-13, 200)
    assert result.converged
    return result.state, result.trace


def covariance():
    return 1.7 * np.exp(-0.5 * (X - X.T) ** 2 / 1.2**2)


def test_quadrature_finds_the_best_gaussian():
    state, trace = optimum(Quadrature())
    nodes, weights = hermegauss(60)
    K = covariance()
    lower = np.tril_indices(4)

    def negative_elbo(vector):
        m, L = vector[:4], np.zeros((4, 4))
        L[lower] = vector[4:]
        S = L @ L.T
        rate = np.exp(m[:, None] + np.sqrt(np.diag(S))[:, None] * nodes)
        log_p = np.where(Y[:, None] == 1, np.log(-np.expm1(-rate)), -rate) @ weights / weights.sum()
        shift = m - MEAN
        distance = shift @ np.linalg.solve(K, shift) + np.trace(np.linalg.solve(K, S)) - 4
        distance += np.linalg.slogdet(K)[1] - 2 * np.log(np.abs(np.diag(L))).sum()
        return 0.5 * distance - log_p.sum()

    start = np.concatenate([np.full(4, MEAN), np.linalg.cholesky(K)[lower]])
    best = minimize(negative_elbo, start, method="BFGS", options={"gtol": 1e-7})
    L = np.zeros((4, 4))
    L[lower] = best.x[4:]
    # BFGS with differences ends within 1e-5 of the minimum, where the value is flat to 1e-9.
    np.testing.assert_allclose(state.mean[:, 0], best.x[:4], atol=2e-4)
    np.testing.assert_allclose(state.variance[:, 0], np.diag(L @ L.T), atol=2e-4)
    assert trace[-1] == pytest.approx(-best.fun, abs=1e-7)


def test_sites_of_the_expansion_find_the_mode():
    state, _ = optimum(Taylor())
    K, f = covariance(), np.full(4, MEAN)
    for _ in range(30):
        p = 1 / (1 + np.exp(-f))
        hessian = np.linalg.inv(K) + np.diag(p * (1 - p))
        f = f - np.linalg.solve(hessian, np.linalg.solve(K, f - MEAN) - (Y - p))
    np.testing.assert_allclose(state.mean[:, 0], f, atol=1e-6)
    np.testing.assert_allclose(state.variance[:, 0], np.diag(np.linalg.inv(hessian)), atol=1e-6)


@pytest.mark.parametrize("objective", [Quadrature(), Taylor()])
def test_whole_weights_are_repeated_rows(objective):
    often = [0, 0, 1, 2, 2, 2, 3]
    weighted, trace = optimum(objective, weights=np.array([2.0, 1.0, 3.0, 1.0]))
    repeated, its_trace = optimum(objective, X[often], Y[often])
    assert trace[-1] == pytest.approx(its_trace[-1], rel=1e-10)
    np.testing.assert_allclose(weighted.mean[np.array(often)], repeated.mean, atol=1e-5)
    np.testing.assert_allclose(weighted.variance[np.array(often)], repeated.variance, atol=1e-5)


@double_precision
def test_sites_and_hessian_follow_from_the_bound():
    m, v = np.array([[0.3], [-1.1]]), np.array([[0.5], [1.4]])
    objective, y = Quadrature(), jnp.zeros(2)
    # Of y = 0 the bound is -E, E = exp(m + v / 2), with v = s - m^2 in its derivatives.
    E = np.exp(m + v / 2)[:, 0]
    h, w = jax.jit(objective.local_sites)(m, v, y, {})
    np.testing.assert_allclose(h[:, 0], -E * (1 - m[:, 0]), rtol=1e-12)
    np.testing.assert_allclose(w[:, 0], E, rtol=1e-12)
    H = jax.jit(objective.local_hessian)(m, v, y, {})[:, 0]
    slope = 1 - m[:, 0]
    by_hand = [[-E * (slope**2 - 1), -0.5 * E * slope], [-0.5 * E * slope, -0.25 * E]]
    np.testing.assert_allclose(H, np.moveaxis(np.array(by_hand), 2, 0), rtol=1e-10)
    assert objective.blocks == ((0,),)
    assert objective.num_latents == 1
