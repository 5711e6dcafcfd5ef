"""Rules of augmentation: their draws, conditional laws, bounds and sites, and a rule from outside the package."""

import re
from itertools import product

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import numpyro.distributions as dist
import pytest
from mpmath import mp
from scipy import stats
from scipy.integrate import trapezoid
from scipy.optimize import minimize
from scipy.special import digamma, gammaln, log_ndtr, logsumexp

import pgmodels as pgm
from pgmodels.augmentation.augmentation import Factorised
from pgmodels.augmentation.derive import derive_formula
from pgmodels.augmentation.laws import PolyaGamma, Root, Tilde, log_sigmoid_tilde, normals_of_largest
from pgmodels.augmentation.predictors import Auxiliary, Predictor, SiteTerm, over_latents
from pgmodels.augmentation.rules import RULES, Rule, register
from pgmodels.inference.objectives import objective_of
from pgmodels.likelihoods.expression import Constant, Environment
from pgmodels.likelihoods.operations import Call, Sum
from pgmodels.likelihoods.printing import density, factors, integral, inverse_power, line
from pgmodels.model import GP, Model
from pgmodels.numerics.elementary import factorised_share, gamma_shape
from tests.inference.test_cavi import wine
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


def test_draws_of_many_classes_are_nan_where_a_mean_is_nan():
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
    np.testing.assert_allclose(both.log_density(y, m, {}), density, rtol=1e-12, atol=1e-15)
    expected = one.local_bound(difference, spread, y, {}) - v.sum(axis=1) / 4
    np.testing.assert_allclose(both.local_bound(m, v, y, {}), expected, rtol=1e-12)
    np.testing.assert_allclose(both.local_bound(m, 0 * v, y, {}), density, rtol=1e-12, atol=1e-15)


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


# The law of a Gamma rate given its Poisson counts, against the joint density of rate, counts and data.


F = np.array([[0.7, -1.2, 2.5], [3.0, 0.1, -0.4]])
LABELS = np.array([2.0, 0.0])


@pgm.likelihood
def background(y, f):
    """A constant, unequal weights of terms of one latent each, and a power."""
    return pgm.sigmoid(f[y]) ** 2 / (0.4 + pgm.sigmoid(f[0]) + 2.5 * pgm.sigmoid(f[1]) + 0.3 * pgm.sigmoid(f[2])) ** 1.5


@pgm.likelihood
def weighted_sum(y, f):
    """Weights by latent within one sum over the latents, and a Bernoulli factor with auxiliaries of its own."""
    return pgm.sigmoid(f[0]) / pgm.sum((1 + pgm.positions(f)) * pgm.sigmoid(f)) ** (1 + y)


@pgm.likelihood
def complete_laws_product(y, f):
    """A product over the latents: a rate for each."""
    return pgm.prod(pgm.sigmoid(f) ** (y == 1) / (0.5 + 1.7 * pgm.sigmoid(f)) ** 2)


@pytest.mark.parametrize(
    "likelihood", [CASES["logistic_softmax"].likelihood, background, weighted_sum, complete_laws_product]
)
def test_the_density_given_the_counts_is_the_joint_density_up_to_a_constant(likelihood):
    augmentation = Model(likelihood(), GP(pgm.RBF(), size=3)).augmentation
    ((name, law),) = augmentation.complete_laws.items()
    f, y = jnp.asarray(F), jnp.asarray(LABELS)
    drawn = augmentation.draw_chain(jax.random.key(3), f, y, {})
    (rate,) = [rule.auxiliary for rule in augmentation.rules if rule.auxiliary.name == name]
    counts = {count.name: drawn[count.name] for count in augmentation.children_of(rate)}
    assert counts
    ratios = []
    for factor in (0.3, 1.0, 4.0):
        values = counts | {name: factor * drawn[name]}
        joint = augmentation.log_joint(values, f, y, {})
        density = jnp.sum(law.log_density(values[name], Environment(y, f, values)), axis=-1)
        ratios.append(joint - density)
    # Sums of a few terms below 100.
    np.testing.assert_allclose(ratios[1:], [ratios[0]] * 2, atol=1e-11)


def test_only_gamma_rules_have_a_complete_law():
    assert {name for name, case in CASES.items() if case.model().augmentation.complete_laws} == {
        "logistic_softmax",
        "own_softmax",
    }


# The bound of factorised auxiliary variables against its free energy, published equations and the tighter bound.


M = np.array([[0.7, -1.3, 2.1], [-0.4, 3.0, 0.2]])
V = np.array([[0.5, 2.0, 0.1], [1.7, 0.0, 9.0]])
Y = np.array([2.0, 0.0])


def softmax_model(**options):
    return pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.RBF(2.0, np.array([0.7, 1.9])), mean=0.3, size=3, **options))


def data(n):
    X = np.random.default_rng(0).normal(size=(n, 2))
    # Imbalanced: the last class is rare.
    return X, np.where(X[:, 0] > 0, 1.0, np.where(X[:, 1] < -0.6, 2.0, 0.0))


def free_energy(p, constant, weights, log_dual):
    """The largest free energy of q(λ) = Ga(α, b), q(n_j) = Po(γ_j), by numerical optimisation."""
    total = constant + weights.sum()

    def negative(vector):
        alpha, rate, counts = np.exp(vector[0]), np.exp(vector[1]), np.exp(vector[2:])
        log_mean = digamma(alpha) - np.log(rate)
        energy = (p - 1) * log_mean - total * alpha / rate - gammaln(p)
        energy += np.sum(counts * (log_mean + np.log(weights) + log_dual) + counts - counts * np.log(counts))
        entropy = alpha - np.log(rate) + gammaln(alpha) + (1 - alpha) * digamma(alpha)
        return -energy - entropy

    best = minimize(negative, np.zeros(2 + len(weights)), method="BFGS", options={"gtol": 1e-9})
    return -best.fun, np.exp(best.x[2:])


def log_dual(m, v, sign):
    """log σ̃(± f): the bound of E log σ(± f)."""
    c = np.sqrt(m**2 + v)
    return sign * m / 2 - np.logaddexp(c / 2, -c / 2)


def test_the_bound_is_the_largest_free_energy_and_the_sites_are_the_published_ones():
    objective = objective_of(softmax_model(), "factorised")
    bound = objective.local_bound(M, V, Y, {})
    h, w = objective.local_sites(jnp.asarray(M), jnp.asarray(V), Y, {})
    for m, v, y, value, potential, precision in zip(M, V, Y.astype(int), bound, h, w, strict=True):
        energy, counts = free_energy(1.0, 0.0, np.ones(3), log_dual(m, v, -1))
        assert value == pytest.approx(log_dual(m, v, 1)[y] + energy, abs=1e-9)
        # Equation 14: c is the root of the second moment.
        chosen, c = np.arange(3) == y, np.sqrt(m**2 + v)
        np.testing.assert_allclose(potential, (chosen - counts) / 2, atol=1e-5)
        np.testing.assert_allclose(precision, (chosen + counts) * np.tanh(c / 2) / (2 * c), atol=1e-5)


def test_a_sum_with_a_constant_and_weights_to_another_power():
    def formula(y, f):
        return (0.3 + 0.5 * pgm.sigmoid(f[0]) + y * pgm.sigmoid(-f[1])) ** -2.5 * pgm.sigmoid(f[1]) ** 2

    likelihood = pgm.likelihood(support=pgm.Positive(), num_latents=2)(formula)()
    objective = Factorised(derive_formula(likelihood.formula(2), 2))
    bound = objective.local_bound(M[:, :2], V[:, :2], np.array([2.0, 0.4]), {})
    for m, v, y, value in zip(M, V, [2.0, 0.4], bound, strict=True):
        dual = np.array([log_dual(m[0], v[0], -1), log_dual(m[1], v[1], 1)])
        energy, _ = free_energy(2.5, 0.3, np.array([0.5, y]), dual)
        assert value == pytest.approx(2 * log_dual(m[1], v[1], 1) + energy, abs=1e-9)


def in_many_digits(p, log_r):
    """α, G and its derivatives in p and log r."""
    with mp.workdps(50):
        r = mp.exp(log_r)

        def below(alpha):
            return alpha - p - (1 - r) * mp.exp(mp.digamma(alpha))

        start = max(mp.mpf(p), (p - (1 - r) / 2) / r)
        alpha = mp.findroot(below, (start, 1.5 * start + 1), solver="anderson", tol=1e-60, maxsteps=500, verify=False)
        share = (alpha - p) * (1 - mp.digamma(alpha)) + mp.loggamma(alpha) - mp.loggamma(p)
        by_p, by_log_r = mp.digamma(alpha) - mp.digamma(p), -r * mp.exp(mp.digamma(alpha))
        return [float(value) for value in (alpha, share, by_p, by_log_r)]


def test_the_shape_and_its_share_in_many_digits():
    p, log_r = map(np.ravel, np.meshgrid([0.01, 1.0, 2.5, 40.0], [-1e-12, -0.05, -1.2, -3.0, -25.0, -60.0]))
    alpha, share, by_p, by_log_r = np.transpose([in_many_digits(*point) for point in zip(p, log_r, strict=True)])
    np.testing.assert_allclose(gamma_shape(p, log_r), alpha, rtol=1e-14)
    np.testing.assert_allclose(factorised_share(p, log_r), share, rtol=1e-13, atol=1e-13)

    def slope(log_r):
        return jax.grad(lambda p, log_r: jnp.sum(factorised_share(p, log_r)), (0, 1))(jnp.asarray(p), log_r)

    np.testing.assert_allclose(slope(jnp.asarray(log_r)), [by_p, by_log_r], rtol=1e-12, atol=1e-12)
    second = jax.jvp(slope, (jnp.asarray(log_r),), (jnp.ones(len(p)),))[1][1]
    step = 1e-5 * np.maximum(1.0, np.abs(log_r))
    difference = (slope(log_r + step)[1] - slope(log_r - step)[1]) / (2 * step)
    np.testing.assert_allclose(second, difference, rtol=1e-4, atol=1e-9)


@pytest.mark.slow
def test_the_published_optimum_on_wine():
    X, y = wine()
    model = pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.RBF(1.0), size=3))
    result = pgm.vi(model, X, y, objective="factorised", tolerance=1e-12)
    assert np.all(np.diff(result.elbo_trace) > -1e-9)
    assert result.elbo == pytest.approx(-138.581, abs=1e-3)
    # The tighter bound at the published q(f).
    objective, tighter = objective_of(model, "factorised"), objective_of(model, "augmented")
    moments = np.asarray(result.mean), np.asarray(result.variance)
    difference = np.sum(tighter.local_bound(*moments, y, {}) - objective.local_bound(*moments, y, {}))
    assert result.elbo + difference == pytest.approx(-109.352, abs=1e-3)
    assert pgm.cavi(model, X, y, tolerance=1e-12).elbo == pytest.approx(-88.471, abs=1e-3)


@pytest.mark.filterwarnings("ignore::pgmodels.DataWarning")
@pytest.mark.parametrize("n", [1, pytest.param(9, marks=pytest.mark.slow)])
def test_factorised_bound_is_below_the_augmented_bound_and_the_evidence(n):
    X, y = data(n)
    looser, tighter = (pgm.vi(softmax_model(), X, y, objective=name) for name in ("factorised", "augmented"))
    evidence = pgm.log_evidence(tighter, num_draws=4000, seed=0)
    assert looser.elbo < tighter.elbo < evidence.value + 4 * evidence.standard_error


@pytest.mark.slow
def test_factorised_bound_is_finite_for_far_latents():
    objective = objective_of(softmax_model(), "factorised")
    m = jnp.array([[40.0, -40.0, 0.0], [-40.0, -40.0, -40.0], [40.0, 40.0, 40.0]])
    for v in (0.0, 1.0, 400.0):
        bound, h, w = objective.local_bound_and_sites(m, jnp.full((3, 3), v), np.array([1.0, 0.0, 2.0]), {})
        assert all(np.all(np.isfinite(part)) for part in (bound, h, w))
        assert np.all(w >= 0.0)


@pytest.mark.slow
def test_all_calls_accept_the_factorised_bound(tmp_path):
    X, y = data(40)
    kernel = pgm.RBF(dist.LogNormal(1.0, 0.3), pgm.Fixed(np.array([0.7, 1.9])))
    model = pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(kernel, mean=0.3, size=3))
    result = pgm.fit(model, X, y, objective="factorised", correct=False)
    again = pgm.vi(result.model, X, y, objective="factorised", tolerance=1e-10)
    assert result.elbo == pytest.approx(again.elbo, abs=1e-3)
    stochastic = pgm.svi(result.model, X, y, objective="factorised", batch_size=40, seed=0)
    assert stochastic.elbo == pytest.approx(again.elbo, abs=1e-4)
    corrected = pgm.correct(again, method="linear_response")
    assert np.all(corrected.variance > again.variance)
    diagnosed = pgm.diagnose(again, num_replicates=2, num_draws=200, seed=0, progress=False)
    # E log p(y | f) less the bound, by quadrature: larger than that of the tighter bound at the same q.
    assert np.all(diagnosed.gap > 0.0)
    loaded = pgm.load(again.save(tmp_path / "result.npz"))
    assert loaded.objective == "factorised"
    np.testing.assert_array_equal(loaded.predict(X[:3]).probabilities, again.predict(X[:3]).probabilities)
    assert "Variational inference with factorised auxiliary variables of" in " ".join(str(again).split())


def test_likelihoods_without_a_gamma_variable_are_refused():
    X, y = data(5)
    with pytest.raises(ValueError, match=r"objective='factorised' expects .* has none\. Use objective='augmented'"):
        pgm.vi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0))), X, (y > 0).astype(float), objective="factorised")


# log σ̃ of a bound and its derivatives, against the formula in many digits.


# Mean and variance: at and around 0, where the closed forms cancel, on both sides of the series' end, and far out.
POINTS = [(0.0, 0.0), (1e-9, 0.0), (0.0, 1e-12), (-1e-3, 1e-7), (0.3, 0.2), (0.9, 0.18), (0.9, 0.20), (-2.0, 0.5)]
POINTS += [(1.5, 30.0), (40.0, 1e-3), (-60.0, 4.0), (700.0, 900.0), (-3000.0, 1.0)]
ORDERS = [orders for orders in product(range(4), repeat=2) if sum(orders) <= 3]


def stable_in_many_digits(mean, variance, orders):
    def formula(m, v):
        # An even function of the root, which is imaginary on the other side of 0.
        return m / 2 - mpmath.log(2 * mpmath.cosh(mpmath.sqrt(v + m**2) / 2))

    with mpmath.workdps(80):
        return float(mpmath.re(mpmath.diff(formula, (mpmath.mpf(mean), mpmath.mpf(variance)), orders)))


@pytest.mark.parametrize("orders", ORDERS, ids=str)
def test_value_and_derivatives_to_the_third(orders):
    differentiated = log_sigmoid_tilde
    for argument, order in enumerate(orders):
        for _ in range(order):
            # Forward and in reverse, as corrections and their Newton steps do.
            differentiated = (jax.jacfwd if order % 2 else jax.grad)(differentiated, argument)
    with jax.enable_x64(True):
        values = jax.jit(jax.vmap(differentiated))(*np.array(POINTS).T)
    expected = [stable_in_many_digits(*point, orders) for point in POINTS]
    np.testing.assert_allclose(values, expected, rtol=1e-12, atol=2e-16)


# A rule from outside the package: hyperbolic secants, 1 / (exp(z) + exp(-z))^b, by a Pólya-Gamma variable.


ZERO = Constant(0.0)


class SecantRule(Rule):
    """(exp(z) + exp(-z))^-b with ω ~ PG(b, 2 z), since cosh(z)^-b = E exp(-2 ω z^2) over ω ~ PG(b, 0)."""

    title = "Secant"
    rank = 5

    def __init__(self, name, z, b, factor, parent):
        self.z, self.b, self.factor, self.parent = z, b, factor, parent
        self.twice = Predictor(z.latent, 2 * z.scale, 2 * z.shift)
        self.positions = z.positions
        self.auxiliary = Auxiliary(name, z.is_vector or b.is_vector)
        self.law = PolyaGamma(b, self.twice.expression)

    @classmethod
    def match(cls, factor, deriver):
        terms = factor.base.children if isinstance(factor.base, Sum) else ()
        if len(terms) != 2 or not all(isinstance(term, Call) and term.name == "exp" for term in terms):
            return None
        z, other = (deriver.predictor(term.argument, factor.expression) for term in terms)
        if z.negated().key != other.key or factor.exponent.sign != -1:
            return None
        deriver.rules.append(cls(deriver.name("ω"), z, -factor.exponent, factor.base**factor.exponent, factor.parent))
        return ()

    def share(self):
        # -b log(2 cosh(sqrt(E z^2)))
        return over_latents(0.5 * self.b * (Tilde(self.twice, 1, True) + Tilde(self.twice, -1, True)))

    def log_joint(self, env):
        z, omega, b = self.z.expression.evaluate(env), self.auxiliary.evaluate(env), self.b.evaluate(env)
        return PolyaGamma(self.b, ZERO).log_density(omega, env) - 2 * omega * z**2 - b * jnp.log(2.0)

    def identity(self):
        return line(self.factor, "=", integral(self.augmented(), self.auxiliary))

    def augmented(self):
        z, name = self.z.expression, self.auxiliary
        return factors(inverse_power(2, self.b), pgm.exp(-2 * name * z**2), density("PG", name, self.b, 0))

    def prior(self):
        return (self.b,)

    def sites(self):
        return (SiteTerm(self.z, ZERO, 4 * self.auxiliary),)

    def averaged(self):
        return PolyaGamma(self.b, Root("ζ", self.twice))


@pgm.likelihood(support=pgm.Real())
def secant(y, f, scale=pgm.Parameter(0.7, positive=True)):
    return 2 / (np.pi * scale) / (pgm.exp((y - f) / scale) + pgm.exp((f - y) / scale))


@pytest.fixture
def model():
    register(SecantRule)
    yield pgm.Model(secant(), pgm.GP(pgm.RBF(1.5, 1.0), mean=0.4))
    RULES.remove(SecantRule)


def test_registered_rule_is_derived_verified_and_drawn(model):
    derivation = pgm.derive(model)
    assert len(derivation.verify(seed=0).checks) == 9
    text = re.sub(r"\s+", " ", str(derivation))
    assert "1. Secant" in text
    assert "exp((f - y) / scale)) = ∫ 2^-1 exp(-2 ω (y / scale - f / scale)^2) PG(ω; 1, 0) dω" in text
    assert "ω | f, y ~ PG(1, 2 (y / scale - f / scale))" in text
    assert [node.label for node in derivation.graph.nodes if node.kind == "auxiliary"] == ["ω"]


def minus_elbo(x):
    """-log cosh(sqrt(E z^2)) less KL(N(m, v) ‖ N(0.4, 1.5)), z = (y - f) / 0.7, at m = x[0] and v = exp(x[1])."""
    m, v = x[0], np.exp(x[1])
    bound = -np.log(np.cosh(np.sqrt((2.3 - m) ** 2 + v) / 0.7))
    return -bound + 0.5 * ((v + (m - 0.4) ** 2) / 1.5 - 1 - np.log(v / 1.5))


@pytest.mark.slow
def test_registered_rule_runs_in_engines(model):
    X, y = np.zeros((1, 1)), np.array([2.3])
    grid = np.linspace(-8.0, 10.0, 4001)
    density = np.exp(-((grid - 0.4) ** 2) / 3.0) / np.cosh((2.3 - grid) / 0.7)
    exact = trapezoid(grid * density, grid) / trapezoid(density, grid)
    vi = pgm.cavi(model, X, y, tolerance=1e-13)
    assert np.all(np.diff(vi.elbo_trace) > -1e-12)
    best = minimize(minus_elbo, [0.0, 0.0], tol=1e-12).x
    # Where the slope of the ELBO is below 1e-6.
    np.testing.assert_allclose([vi.mean[0, 0], np.log(vi.variance[0, 0])], best, atol=1e-5)
    draws = pgm.gibbs(model, X, y, num_samples=2000, num_warmup=100, num_chains=2)
    # Four standard errors of 4,000 nearly independent draws of standard deviation 0.7.
    assert abs(draws.mean[0, 0] - exact) < 0.05


def test_unregistered_rule_gives_no_augmentation():
    with pytest.raises(pgm.NoAugmentationError, match=r"pgm\.nuts"):
        derive_formula(secant().formula(1), 1)
    with pytest.raises(TypeError, match="subclass of"):
        register(object)
