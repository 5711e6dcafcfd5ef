"""The multinomial probit's Gaussians against their density, and its bound and sites against integrals."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import log_ndtr, logsumexp

import pgmodels as pgm
from pgmodels.augmentation.laws import normals_of_largest
from tests.registry import CASES
from tests.statistical.reference import effective_sizes, standard_error

pytestmark = pytest.mark.usefixtures("double_precision")

# Below this a test of a fixed seed would be a false alarm in ten thousand.
ALPHA = 1e-4
NOISE = 1.7
LOG_DENSITY = CASES["multinomial_probit"].log_density
NODES, MASS = np.polynomial.hermite_e.hermegauss(31)


@pgm.likelihood(support=pgm.Classes(3))
def noisy(y, f, noise=pgm.Parameter(NOISE, positive=True)):
    return pgm.largest(f, y, noise)


def model_of(likelihood, size=3):
    return pgm.Model(likelihood, pgm.GP(pgm.RBF(2.0, 1.2), size=size))


def means(size):
    """Means (6, size) of Gaussians of which the first is the largest, against all odds and by far."""
    rng = np.random.default_rng(size)
    mean = rng.normal(0.3, 1.0, (6, size))
    mean[1] = 0.7
    mean[2, 0], mean[3, 0], mean[4], mean[5] = -40.0, 40.0, mean[4] * 20.0, mean[5] - 40.0 * np.arange(size)[::-1]
    return mean


def distribution_of_largest(t, mean):
    """P(g[0] < t) where it is the largest, by the trapezoid rule."""
    low, high = mean.min() - 12.0, mean.max() + 12.0
    nodes = np.linspace(low, high, 40_001)
    logs = stats.norm.logpdf(nodes, mean[0]) + log_ndtr(nodes[:, None] - mean[1:]).sum(axis=1)
    mass = np.exp(logs - logs.max())
    cumulated = np.cumsum(mass) - 0.5 * mass
    return np.interp(t, nodes, cumulated / mass.sum())


@pytest.mark.parametrize("size", [2, 3, 10])
def test_draws_have_the_density(size):
    mean, n = means(size), 2000
    shape = (n, *mean.shape)
    draw = jax.jit(lambda key: normals_of_largest(key, jnp.broadcast_to(mean, shape), jnp.arange(size) == 0))
    g = np.asarray(draw(jax.random.key(size)))
    assert np.all(g[..., 1:] <= g[..., :1])
    for row, centre in enumerate(mean):
        top, others = g[:, row, 0], g[:, row, 1:]
        uniform = [distribution_of_largest(top, centre)]
        # Given the largest, the others are independent, of distribution Φ(g - m) / Φ(largest - m).
        uniform += list(np.exp(log_ndtr(others - centre[1:]) - log_ndtr(top[:, None] - centre[1:])).T)
        for each in uniform:
            assert stats.kstest(each, "uniform").pvalue > ALPHA / (6 * size)
        # And independent of it.
        assert np.max(np.abs(np.corrcoef(uniform)[0, 1:])) < 4.9 / np.sqrt(n)


def test_draws_of_many_classes_end_and_are_nan_where_a_mean_is():
    mean = np.random.default_rng(0).normal(0.0, 5.0, (4, 3000))
    chosen = np.arange(3000) == np.argmin(mean, axis=1)[:, None]
    mean[0, 7] = np.nan
    g = np.asarray(jax.jit(normals_of_largest)(jax.random.key(1), mean, chosen))
    assert np.isnan(g[0]).all()
    assert np.array_equal(np.argmax(g[1:], axis=1), np.argmin(mean[1:], axis=1))


def moments():
    rng = np.random.default_rng(4)
    return rng.normal(0.4, 1.5, (6, 3)), rng.uniform(0.2, 2.0, (6, 3)), np.array([0.0, 1.0, 2.0, 2.0, 0.0, 1.0])


def test_bound_is_below_the_expected_log_density():
    m, v, y = moments()
    augmentation = model_of(noisy()).augmentation
    bound = np.asarray(augmentation.local_bound(m, v, y, {"noise": NOISE}))
    nodes, mass = np.polynomial.hermite_e.hermegauss(11)
    z, weights = np.array(list(product(nodes, repeat=3))), np.prod(list(product(mass, repeat=3)), axis=1)
    f = m + np.sqrt(v) * z[:, None]
    log_density = np.asarray(jax.jit(jax.vmap(LOG_DENSITY, (None, 0)))(y, f / np.sqrt(NOISE)))
    expected = weights @ log_density / weights.sum()
    assert np.all(bound < expected)
    tight = augmentation.local_bound(m, np.zeros_like(v), y, {"noise": NOISE})
    np.testing.assert_allclose(tight, LOG_DENSITY(y, m / np.sqrt(NOISE)), rtol=1e-12)


def test_sites_are_means_of_the_gaussians():
    m, v, y = moments()
    m[0, 1], m[1, 2] = -40.0, 40.0
    model = model_of(noisy())
    h, w = model.augmentation.local_sites(m, v, y, {"noise": NOISE})
    np.testing.assert_allclose(w, 1 / NOISE, rtol=1e-12)
    for row, label in enumerate(y.astype(int)):
        z = m[row] / np.sqrt(NOISE)
        t = np.linspace(z.min() - 12.0, z.max() + 12.0, 4001)[:, None]
        logs = np.where(np.arange(3) == label, stats.norm.logpdf(t - z), log_ndtr(t - z))
        p = np.exp(logs.sum(axis=1, keepdims=True) - logsumexp(logs.sum(axis=1)))
        # Of a Gaussian below t the mean is z - φ(t - z) / Φ(t - z).
        below = z - np.exp(stats.norm.logpdf(t - z) - log_ndtr(t - z))
        expected = np.sum(p * np.where(np.arange(3) == label, t, below), axis=0)
        np.testing.assert_allclose(h[row] * np.sqrt(NOISE), expected, rtol=1e-9, atol=1e-9)


def test_two_classes_are_a_probit_of_the_difference():
    """Its auxiliaries say more than that of the probit, which is free of the sum: hence the quarter."""
    rng = np.random.default_rng(3)
    m, v, y = rng.normal(0.0, 2.0, (5, 2)), rng.uniform(0.2, 2.0, (5, 2)), np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    m[0], m[1] = [40.0, -40.0], [40.0, -40.0]
    both, one = model_of(pgm.MultinomialProbit(2), 2).augmentation, model_of(pgm.Probit(), 1).augmentation
    difference, spread = (m[:, 1:] - m[:, :1]) / np.sqrt(2), v.sum(axis=1, keepdims=True) / 2
    density = one.log_density(y, difference, {})
    np.testing.assert_allclose(both.log_density(y, m, {}), density, rtol=1e-12)
    expected = one.local_bound(difference, spread, y, {}) - v.sum(axis=1) / 4
    np.testing.assert_allclose(both.local_bound(m, v, y, {}), expected, rtol=1e-12)
    np.testing.assert_allclose(both.local_bound(m, 0 * v, y, {}), density, rtol=1e-12)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        (lambda y, f: pgm.largest(f, y), r"no augmentation for the factor largest\(f, y\)\n.*\n.*noise > 0"),
        (lambda y, f: pgm.largest(f, y, 1.0) ** 2, r"largest\(f, y, 1\)\^2\n.*\n.*to the power 0 or 1"),
    ],
)
def test_other_forms_have_no_augmentation(formula, message):
    with pytest.raises(pgm.NoAugmentationError, match=message):
        pgm.cavi(model_of(pgm.likelihood(formula, support=pgm.Classes(3))()), np.zeros((3, 1)), np.arange(3.0))


def test_noise_in_the_data_is_positive():
    @pgm.likelihood
    def measured(y, f):
        return pgm.largest(f, y[0], y[1])

    X, y = np.arange(3.0)[:, None], np.column_stack([np.arange(3.0), [0.4, 0.0, 2.0]])
    with pytest.raises(ValueError, match=r"the noise of largest\(f, y\[0\], y\[1\]\)"):
        pgm.cavi(model_of(measured()), X, y)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["auto", "sweep"])
def test_gibbs_agrees_with_quadrature(scheme):
    """Of three inputs so far apart that their latents are independent, with noise of any variance."""
    X, y, mean, variance = np.array([[-9.0], [0.0], [9.0]]), np.array([2.0, 0.0, 1.0]), 0.3, 2.0
    model = pgm.Model(noisy(noise=NOISE), pgm.GP(pgm.RBF(variance, 1.0), mean=mean, size=3)).fixed()
    draws = pgm.gibbs(model, X, y, num_samples=6000, num_warmup=200, num_chains=4, seed=1, scheme=scheme)
    f = mean + np.sqrt(variance) * np.array(list(product(NODES, repeat=3)))
    log_prior = np.log([np.prod(mass) for mass in product(MASS, repeat=3)])
    for row, label in enumerate(y):
        logs = log_prior + np.asarray(LOG_DENSITY(np.full(len(f), label), f / np.sqrt(NOISE)))
        p = np.exp(logs - logsumexp(logs))
        one = draws.latents[:, :, row : row + 1]
        for power in (1, 2):
            error = standard_error(one**power)
            assert np.all(np.abs((one**power).mean(axis=(0, 1)) - p @ f**power) < 4 * error)
    assert effective_sizes(draws.latents).min() > 400


@pytest.mark.slow
def test_gibbs_of_two_classes_is_that_of_a_probit():
    X, y = CASES["probit"].data(25, seed=5)
    kernel = pgm.RBF(2.0, 1.0)
    pair, single = pgm.Model(pgm.MultinomialProbit(2), pgm.GP(kernel, size=2)), pgm.Model(pgm.Probit(), pgm.GP(kernel))
    options = {"num_samples": 6000, "num_warmup": 300, "num_chains": 4, "seed": 1}
    both, one = (pgm.gibbs(model, X, y, **options) for model in (pair, single))
    difference = np.diff(both.latents, axis=-1) / np.sqrt(2)
    for power in (1, 2):
        error = np.hypot(standard_error(difference**power), standard_error(one.latents**power))
        z = ((difference**power).mean(axis=(0, 1)) - (one.latents**power).mean(axis=(0, 1))) / error
        assert np.abs(z).max() < 4.5
