"""Compiled code has the numbers of priors as arguments."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from numpyro.distributions.constraints import positive
from scipy import stats

import pgmodels as pgm
from pgmodels.parameters.vector import trainable
from pgmodels.runtime.jit import compiled
from tests.hyperpriors import INTERVAL, made

PRIORS = {name: prior for name, prior in made().items() if not prior.shape()}


def vector_of(prior):
    return trainable(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0), mean=prior)))


def density(vector, point):
    return vector.log_prior_unconstrained(point)


def evaluated(vector):
    """The density by the same operations, one by one and compiled with the vector as an argument."""
    point = jnp.asarray(vector.start() + 0.3)
    return float(density(vector, point)), float(compiled(density)(vector, point))


@pytest.mark.parametrize("name", sorted(PRIORS.keys() - INTERVAL.keys()))
def test_the_density_of_a_prior_that_is_an_argument(name):
    with jax.enable_x64(True):
        expected, result = evaluated(vector_of(PRIORS[name]))
    # Rounding.
    assert result == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["Beta", "Uniform", "truncated"])
def test_the_numbers_of_a_transform_are_static(name):
    vector = vector_of(PRIORS[name])
    assert not jax.tree.leaves(vector)
    assert jax.tree.structure(vector) == jax.tree.structure(vector_of(made()[name]))
    assert jax.tree.structure(vector) != jax.tree.structure(vector_of(dist.Uniform(-1.0, 3.0)))


PAIRS = {
    "normal": (dist.LogNormal(0.0, 1.0), dist.LogNormal(0.5, 2.0)),
    "of a deviation": (pgm.sd(dist.StudentT(3.0, 0.0, 2.5)), pgm.sd(dist.StudentT(3.0, 0.0, 1.7))),
    "folded": (dist.FoldedDistribution(dist.Normal(0.0, 2.5)), dist.FoldedDistribution(dist.Normal(0.3, 1.0))),
    "within a constraint": (
        pgm.Parameter(1.0, prior=dist.Normal(0.0, 1.0), constraint=constraints.positive),
        pgm.Parameter(1.0, prior=dist.Normal(0.5, 2.0), constraint=constraints.positive),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_priors_of_one_kind_share_a_program(name):
    with jax.enable_x64(True):
        program = compiled(density)
        for prior in PAIRS[name]:
            vector = vector_of(prior)
            point = jnp.asarray(vector.start())
            assert float(program(vector, point)) == pytest.approx(float(density(vector, point)), rel=1e-12)
        assert program.cache_size() == 1


def test_priors_of_other_kinds_have_other_programs():
    structures = [
        jax.tree.structure(vector_of(prior))
        for prior in (dist.LogNormal(0.0, 1.0), dist.Gamma(2.0, 1.0), dist.Normal(0.0, 1.0), 1.0)
    ]
    assert len(set(structures)) == len(structures)


class Chosen(dist.LogNormal):
    """A user's prior, whose code depends on its numbers."""

    def log_prob(self, value):
        return super().log_prob(value) if self.scale > 1.0 else jnp.zeros_like(value)


def test_numbers_of_users_priors_are_static():
    with jax.enable_x64(True):
        for prior in (Chosen(0.0, 2.0), Chosen(0.0, 0.5)):
            vector = vector_of(prior)
            expected, result = evaluated(vector)
            assert not jax.tree.leaves(vector)
            assert result == pytest.approx(expected, rel=1e-12)


# Priors of standard deviations where a variance is the parameter, against SciPy's distributions of squares.


# The square of a standard normal is gamma(1/2, rate 1/2), of a Student-t F(1, df), and of a uniform beta(1/2, 1).
SQUARES = {
    "half-normal": (dist.HalfNormal(2.5), stats.gamma(0.5, scale=2.0 * 2.5**2)),
    "normal": (dist.Normal(0.0, 2.5), stats.gamma(0.5, scale=2.0 * 2.5**2)),
    "student": (dist.StudentT(3.0, 0.0, 2.5), stats.f(1, 3, scale=2.5**2)),
    "half-cauchy": (dist.HalfCauchy(2.0), stats.f(1, 1, scale=2.0**2)),
    "uniform": (dist.Uniform(0.0, 3.0), stats.beta(0.5, 1.0, scale=9.0)),
    "exponential": (dist.Exponential(2.0), stats.weibull_min(0.5, scale=0.25)),
    "log-normal": (dist.LogNormal(0.3, 0.7), stats.lognorm(1.4, scale=np.exp(0.6))),
}


@pytest.mark.parametrize("name", SQUARES)
def test_sd_is_the_distribution_of_the_square(name):
    prior, square = SQUARES[name]
    levels = np.array([0.01, 0.3, 0.5, 0.9])
    with jax.enable_x64(True):
        variance = pgm.sd(prior)
        quantiles = square.ppf(levels)
        np.testing.assert_allclose(variance.icdf(levels), quantiles, rtol=1e-6)
        np.testing.assert_allclose(variance.log_prob(quantiles), square.logpdf(quantiles), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(variance.mean, square.mean(), rtol=1e-6)
        draws = np.asarray(variance.sample(jax.random.key(0), (4000,)))
        # Of 4,000 draws: four standard errors of a share of one half.
        np.testing.assert_allclose((draws[:, None] < quantiles).mean(axis=0), levels, atol=4.0 * 0.5 / np.sqrt(4000.0))
        assert np.all(variance.support(quantiles))
    assert pgm.RBF(variance, 1.0).variance.value == pytest.approx(square.median(), rel=1e-6)


def test_sd_of_an_interval_has_the_squares_of_its_ends():
    for prior, inside, outside in ((dist.Uniform(1.0, 3.0), 8.9, 9.1), (dist.Pareto(2.0, 3.0), 4.1, 3.9)):
        support = pgm.sd(prior).support
        assert support(inside)
        assert not support(outside)
    assert pgm.sd(dist.TruncatedNormal(1.0, 2.0, low=0.0)).support is positive


@pytest.mark.parametrize("prior", [dist.HalfNormal(2.5), dist.StudentT(3.0, 0.0, 2.5), dist.Uniform(0.0, 3.0)])
def test_sd_is_kept_by_files_pickles_and_text(prior, tmp_path):
    X = np.linspace(0.0, 1.0, 5)[:, None]
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(pgm.sd(prior), 1.0)))
    assert pickle.loads(pickle.dumps(model)) == model
    loaded = pgm.load(pgm.gaussian_vi(model, X, [0, 1, 1, 0, 1]).save(tmp_path / "result.npz")).model
    assert loaded == model
    assert repr(pgm.sd(dist.HalfNormal(2.5))) == "sd(HalfNormal(2.5))"
    kernel = pgm.RBF(1.0, pgm.Parameter([1.0, 2.0], prior=pgm.sd(prior)))
    assert f"prior=sd({type(prior).__name__}(" in repr(kernel)
    assert ").expand([2])" in repr(kernel)


def test_sd_of_other_priors_is_refused():
    with pytest.raises(ValueError, match=r"sd: .* such as numpyro.distributions.HalfNormal\(2.5\); got 2.5"):
        pgm.sd(2.5)
    with pytest.raises(ValueError, match=r"Normal is on Real.*TruncatedNormal\(1.0, 2.0, low=0.0\)"):
        pgm.sd(dist.Normal(1.0, 2.0))
    for prior in (dist.Gumbel(0.0, 1.0), dist.Poisson(2.0), dist.Dirichlet(np.ones(2)), dist.Uniform(-1.0, 1.0)):
        with pytest.raises(ValueError, match=f"{type(prior).__name__} is on .*: use HalfNormal"):
            pgm.sd(prior)


@pytest.mark.slow
def test_sd_and_the_same_prior_of_the_variance_have_one_posterior():
    # Half-normal standard deviations: gamma(1/2) of the variance.
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(6.0), 5)[:, None]
    y = rng.normal(size=6)[groups[:, 0].astype(int)] + rng.normal(size=30)
    priors = pgm.sd(dist.HalfNormal(1.5)), pgm.Parameter(1.0, prior=dist.Gamma(0.5, 0.5 / 1.5**2))
    models = [pgm.Model(pgm.Gaussian(pgm.Fixed(1.0)), pgm.GP(pgm.White(prior))) for prior in priors]
    one, other = (pgm.integrate(model, groups, y).summary().loc["variance", ["mean", "sd"]] for model in models)
    np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=1e-3)
    # Of 4,000 draws of gibbs, fewer of them effective.
    sampled = pgm.gibbs(models[0], groups, y, num_samples=1000).summary().loc["variance"]
    assert abs(sampled["mean"] - one["mean"]) < 5.0 * one["sd"] / np.sqrt(sampled["ess_bulk"])
