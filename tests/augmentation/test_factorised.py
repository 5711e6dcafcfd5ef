"""The bound of factorised auxiliary variables against its free energy, published equations and the tighter bound."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from mpmath import mp
from scipy.optimize import minimize
from scipy.special import digamma, gammaln

import pgmodels as pgm
from pgmodels.augmentation.augmentation import Factorised
from pgmodels.augmentation.derive import derive_formula
from pgmodels.inference.objectives import objective_of
from pgmodels.numerics.elementary import factorised_share, gamma_shape
from pgmodels.runtime.precision import double_precision
from tests.inference.variational.test_cavi import wine

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


@double_precision
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


@double_precision
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


@double_precision
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
def test_it_is_below_the_tighter_bound_and_the_evidence(n):
    X, y = data(n)
    looser, tighter = (pgm.vi(softmax_model(), X, y, objective=name) for name in ("factorised", "augmented"))
    evidence = pgm.log_evidence(tighter, num_draws=4000, seed=0)
    assert looser.elbo < tighter.elbo < evidence.value + 4 * evidence.standard_error


@pytest.mark.slow
@double_precision
def test_far_latents():
    objective = objective_of(softmax_model(), "factorised")
    m = jnp.array([[40.0, -40.0, 0.0], [-40.0, -40.0, -40.0], [40.0, 40.0, 40.0]])
    for v in (0.0, 1.0, 400.0):
        bound, h, w = objective.local_bound_and_sites(m, jnp.full((3, 3), v), np.array([1.0, 0.0, 2.0]), {})
        assert all(np.all(np.isfinite(part)) for part in (bound, h, w))
        assert np.all(w >= 0.0)


@pytest.mark.slow
def test_every_call_takes_it(tmp_path):
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
