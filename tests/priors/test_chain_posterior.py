"""Chains that sites couple with each other and with linear effects, against explicit matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.priors.base import Sites
from pgmodels.priors.block_posterior import condition_blocks
from pgmodels.priors.chain_posterior import condition_chains, decoupled, pull_sites
from tests.programs import run

pytestmark = pytest.mark.usefixtures("double_precision")

RNG = np.random.default_rng(0)
N, SIZE = 40, 6
TIME = RNG.uniform(0.0, 10.0, N)
TIME[[3, 7]] = TIME[20]
LEVEL = RNG.integers(0, 4, N).astype(float)
X = np.column_stack([LEVEL, TIME, RNG.normal(size=N)])
X[7] = X[20]
NEW = np.column_stack([RNG.integers(0, 6, 6), [-3.0, 4.4, 4.5, 30.0, TIME[20], TIME[0]], RNG.normal(size=6)])
# Rounding of recursions of 40 steps, and the jitter of dense roots, times precisions of size 1.
TIGHT = 1e-8


def model_of(form):
    """Effects of levels between chains, of which two share a kernel; a constant and a slope."""
    gps = [
        pgm.GP(pgm.On(pgm.Matern32(1.7, 0.8), [1]), 0.4, size=2, form=form),
        pgm.GP(pgm.On(pgm.White(0.6), [0]), -0.2),
        pgm.GP(pgm.On(pgm.Matern12(0.5, 2.0) + pgm.White(0.1), [1]), form=form),
        pgm.GP(pgm.Constant(0.9), form=form),
        pgm.GP(pgm.On(pgm.Linear(0.5), [2])),
    ]
    return pgm.Model(pgm.with_predictor(pgm.Bernoulli(), SIZE), gps)


def some_sites(signed=False):
    """Sites on two predictors, one in four without precision; some precisions are negative if ``signed``."""
    Phi, h, w = RNG.normal(size=(N, 2, SIZE)), RNG.normal(size=(N, 2)), RNG.gamma(1.0, 1.0, (N, 2))
    w[::4] = 0.0
    if signed:
        w[1::4, 0] *= -0.05
    return jnp.asarray(Phi), Sites(jnp.asarray(h), jnp.asarray(w))


def said(posterior):
    mean, V = posterior.marginals()
    return {
        "marginals": (mean, V),
        "new": posterior.marginals_at(jnp.asarray(NEW)),
        "log_normalizer": posterior.log_normalizer(),
        "divergence": posterior.divergence(V),
        "log_factor": posterior.log_factor(mean),
    }


def twins(Phi, sites):
    chains, dense = (model_of(form).prior(X) for form in (pgm.Markov(), pgm.Dense()))
    ours = run(condition_chains, chains, Phi, sites)
    return ours, run(condition_blocks, dense, pull_sites(Phi, sites), (tuple(range(SIZE)),))


def assert_close(one, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=TIGHT), one, other)


@pytest.mark.parametrize("signed", [False, True])
def test_the_posterior_is_that_of_the_dense_form(signed):
    ours, dense = twins(*some_sites(signed))
    assert_close(run(said, ours), run(said, dense))
    assert np.max(np.abs(run(dense.marginals)[1][:, 0, 2:])) > 0.01
    assert ours.coupled_latents() == dense.coupled_latents()


@pytest.mark.parametrize(("rank", "sign"), [(2, 1.0), (SIZE, 1.0), (2, -1.0)])
def test_precisions_of_latents_are_split_into_predictors(rank, sign):
    roots = RNG.normal(size=(N, SIZE, rank))
    W = roots[..., :-1] @ roots[..., :-1].swapaxes(1, 2) + sign * roots[..., -1:] @ roots[..., -1:].swapaxes(1, 2)
    if sign < 0.0:
        # Of f[0] + f[1] and, negative, of f[0] - f[1]: zero on the diagonal.
        W[0] = 0.0
        W[0, 0, 1] = W[0, 1, 0] = 2.0
    # Potentials outside the range of the precisions, as of a Poisson variable's linear factor, are kept too.
    sites = Sites(jnp.asarray(RNG.normal(size=(N, SIZE))), jnp.asarray(W))
    pulled = run(lambda sites: pull_sites(*decoupled(sites)), sites)
    np.testing.assert_allclose(pulled.precision, W, rtol=0, atol=1e-12)
    np.testing.assert_allclose(pulled.potential, sites.potential, rtol=0, atol=1e-12)


@pytest.mark.parametrize("signed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_slopes_of_the_log_normaliser_are_those_of_the_dense_form(signed):
    Phi, sites = some_sites(signed)
    h, w = sites

    def slopes(form):
        model = model_of(form)
        inputs = model.inputs(X)

        def value(bare, Phi, h, w):
            prior = bare.traced_prior(inputs)
            if form == pgm.Markov():
                return condition_chains(prior, Phi, Sites(h, w)).log_normalizer()
            return condition_blocks(prior, pull_sites(Phi, Sites(h, w)), (tuple(range(SIZE)),)).log_normalizer()

        return jax.tree.leaves(run(jax.grad(value, (0, 1, 2, 3)), model.bare(), Phi, h, w))

    ours, dense = slopes(pgm.Markov()), slopes(pgm.Dense())
    assert len(ours) == len(dense) > 10
    # Kernel parameters move sums over all rows.
    for one, other in zip(ours, dense, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-7)
    assert max(np.max(np.abs(leaf)) for leaf in dense[:5]) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("signed", [False, True])
def test_draws_have_the_covariance_of_the_dense_form(signed):
    ours, dense = twins(*some_sites(signed))
    keys = jax.random.split(jax.random.key(1), 4000)
    at_data = run(lambda posterior: jax.lax.map(lambda key: posterior.draw(key)[0], keys), ours)[:, :4]
    at_new = run(ours.drawn_at, jnp.asarray(NEW), keys)
    covariances = run(dense.covariance)[:, :4, :, :4], run(dense.covariance_at, jnp.asarray(NEW))
    means = run(dense.marginals)[0][:4], run(dense.marginals_at, jnp.asarray(NEW))[0]
    for f, mean, C in zip((at_data, at_new), means, covariances, strict=True):
        flat, C = np.asarray(f).reshape(len(f), -1), np.moveaxis(C, (0, 2), (1, 3)).reshape(mean.size, mean.size)
        deviation = np.sqrt(np.diagonal(C))
        # Some 2,700 comparisons at five standard errors.
        assert np.all(np.abs(flat.mean(axis=0) - mean.ravel()) < 5.0 * deviation / np.sqrt(len(f)) + 1e-9)
        error = np.sqrt((np.outer(deviation, deviation) ** 2 + C**2) / len(f))
        assert np.all(np.abs(np.cov(flat.T) - C) < 5.0 * error + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("signed", [False, True])
def test_a_share_of_the_precisions_is_that_of_the_dense_form(signed):
    both = twins(*some_sites(signed))
    ours, dense = (run(lambda posterior: posterior.tempered(0.3).marginals(), twin) for twin in both)
    assert_close(ours, dense)


@pytest.mark.slow
def test_coordinates_of_draws_are_those_of_the_latents():
    ours, _ = twins(*some_sites())
    f, coordinates = run(ours.draw, jax.random.key(0))
    np.testing.assert_allclose(run(ours.prior.latents, coordinates), f, rtol=0, atol=1e-12)

    # What is drawn at rows of the data is known there.
    def at_the_data(coordinates):
        pairs = zip(ours.prior.groups, coordinates, strict=True)
        return jnp.concatenate([group.conditional(jnp.asarray(X), v)[0] for group, v in pairs], axis=1)

    again = run(at_the_data, coordinates)
    np.testing.assert_allclose(again, f, rtol=0, atol=1e-8)


def test_chains_of_two_columns_are_refused():
    gps = [pgm.GP(pgm.On(pgm.Matern32(), [column]), form=pgm.Markov()) for column in (1, 2)]
    model = pgm.Model(pgm.with_predictor(pgm.Bernoulli(), 2), gps)
    with pytest.raises(ValueError, match=r"of one column.*columns 1, 2.*pgm.Inducing"):
        pgm.cavi(model, X, (LEVEL > 1).astype(float))


def test_forms_without_a_factor_beside_a_chain_are_refused():
    gps = [
        pgm.GP(pgm.On(pgm.Matern32(1.0, 1.0), [1]), form=pgm.Markov()),
        pgm.GP(pgm.On(pgm.RBF(1.0, 1.0), [2]), form=pgm.Inducing(X[:5])),
    ]
    prior = pgm.Model(pgm.with_predictor(pgm.Bernoulli(), 2), gps).prior(X)
    prior.require_coupling()
    with pytest.raises(ValueError, match=r"FICPrior has no factor matrix"):
        prior.for_sampling().require_coupling()
