"""Markov chains given sites whose precisions may be negative, against explicit matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.priors.base import Sites
from pgmodels.priors.chain import draw_deviations

pytestmark = pytest.mark.usefixtures("double_precision")

X = np.array([1.0, 0.4, 0.4 + 1e-3, 4.0, 2.9, 9.0])[:, None]
KERNEL = pgm.Matern32(1.7, 0.8) + pgm.Matern12(0.3, 5.0)
MEAN = 0.4
POTENTIAL = np.array([0.3, -1.0, 0.5, 0.0, 2.0, 0.1])
PRECISIONS = {
    "proper": np.array([-0.2, -0.3, 2.0, 0.0, -0.1, 1.0]),
    # The first row in time is improper by itself, and the second makes up for it.
    "improper at first": np.array([0.5, -0.9, 3.0, -0.2, 0.4, 0.0]),
    "improper": np.array([0.5, -0.9, 0.1, 1.0, 1.0, 1.0]),
    "improper in two directions": np.array([0.5, -0.9, 0.1, 1.0, 1.0, -2.0]),
}


def said(w, h=POTENTIAL, count=len(X)):
    """Mean and variance of the rows, log normaliser and divergence."""
    prior = pgm.Markov().bind(KERNEL, MEAN, X[:count], 1)
    moments = jax.jit(lambda sites: prior.moments(sites))(Sites(*(jnp.asarray(v[:count, None]) for v in (h, w))))
    return prior, [np.asarray(part).squeeze() for part in moments]


def by_matrices(w, h=POTENTIAL, count=len(X)):
    K, w, h = np.asarray(KERNEL(X[:count], X[:count])), w[:count], h[:count]
    precision = np.linalg.inv(K) + np.diag(w)
    V = np.linalg.inv(precision)
    right = h + np.linalg.solve(K, np.full(count, MEAN))
    mean, deviation = V @ right, V @ right - MEAN
    log_det = np.linalg.slogdet(np.eye(count) + K * w)[1]
    log_normalizer = 0.5 * (right @ mean - MEAN * np.sum(np.linalg.solve(K, np.full(count, MEAN))) - log_det)
    divergence = 0.5 * (np.trace(np.linalg.solve(K, V)) - count + log_det + deviation @ np.linalg.solve(K, deviation))
    return precision, V, [mean, np.diag(V), log_normalizer, divergence]


@pytest.mark.parametrize(("name", "count"), [("proper", 6), ("improper at first", 6), ("proper", 1)])
def test_moments_are_those_of_matrices(name, count):
    w = PRECISIONS[name]
    precision, _, expected = by_matrices(w, count=count)
    assert np.linalg.eigvalsh(precision)[0] > 0.0
    for ours, theirs in zip(said(w, count=count)[1], expected, strict=True):
        np.testing.assert_allclose(ours, np.squeeze(theirs), rtol=1e-9, atol=1e-9)


def test_the_filter_of_the_second_case_passes_an_improper_state():
    w = PRECISIONS["improper at first"]
    assert 1.0 + w[1] * np.asarray(KERNEL.diagonal(X))[1] < 0.0


@pytest.mark.parametrize("name", ["improper", "improper in two directions"])
def test_the_log_normaliser_of_an_improper_posterior_is_undefined(name):
    w = PRECISIONS[name]
    assert np.linalg.eigvalsh(by_matrices(w)[0])[0] < 0.0
    _, (_, _, log_normalizer, divergence) = said(w)
    assert np.isnan(log_normalizer)
    assert np.isnan(divergence)


@pytest.mark.parametrize("name", ["proper", "improper at first"])
def test_draws_have_the_covariance_of_matrices(name):
    w = PRECISIONS[name]
    prior, _ = said(w)
    n, d = len(X), prior.dimension
    chain, order = prior.for_sampling(), np.asarray(prior.order)
    precision = np.zeros((n, d, d))
    precision[:, 0, 0] = w[order]

    def drawn(noise):
        L = chain.noise_roots
        return draw_deviations(chain.chain, L, jnp.asarray(precision), noise.reshape(n, d))[:, 0]

    # Draws are linear in the standard normals.
    J = np.asarray(jax.jit(jax.jacfwd(drawn))(jnp.zeros(n * d)))
    np.testing.assert_allclose(J @ J.T, by_matrices(w)[1][np.ix_(order, order)], rtol=0, atol=1e-9)


def test_draws_of_the_posterior_are_by_the_sign_of_its_precisions():
    sites = Sites(*(jnp.asarray(part[:, None]) for part in (POTENTIAL, PRECISIONS["improper at first"])))
    posterior = pgm.Markov().bind(KERNEL, MEAN, X, 1).condition(sites)
    keys = jax.random.split(jax.random.key(0), 40_000)

    def one(key):
        return posterior.prior.latents(sum(posterior.mean_and_deviation(key)))[:, 0]

    f = np.asarray(jax.jit(jax.vmap(one))(keys))
    _, V, (mean, *_) = by_matrices(PRECISIONS["improper at first"])
    deviation = np.sqrt(np.diag(V))
    assert np.all(np.abs(f.mean(axis=0) - mean) < 4.5 * deviation / np.sqrt(len(f)))
    error = np.sqrt((np.outer(deviation, deviation) ** 2 + V**2) / len(f))
    assert np.all(np.abs(np.cov(f.T) - V) < 4.5 * error)
