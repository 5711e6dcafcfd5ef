"""The Gumbel bound of a softmax: moments in closed form, published sites, one optimum, and every call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

import pgmodels as pgm
from pgmodels.objectives.base import Gumbel
from pgmodels.runtime.precision import double_precision

M = np.array([[0.7, -1.3, 2.1], [-0.4, 3.0, 0.2], [40.0, -40.0, 0.0]])
V = np.array([[0.5, 2.0, 0.1], [1.7, 0.0, 9.0], [0.3, 0.2, 1.0]])
Y = np.array([2.0, 0.0, 1.0])
BOUND = Gumbel(3)


def model(**form):
    return pgm.Model(pgm.Softmax(3), pgm.GP(pgm.RBF(2.0, np.array([0.7, 1.9])), mean=0.3, size=3, **form))


def data(n):
    X = np.random.default_rng(0).normal(size=(n, 2))
    # Imbalanced: the last class is rare.
    return X, np.where(X[:, 0] > 0, 1.0, np.where(X[:, 1] < -0.6, 2.0, 0.0))


@double_precision
def test_it_bounds_the_expected_log_density_by_its_expectations():
    rng = np.random.default_rng(0)
    bound = BOUND.local_bound(M[:2], jnp.asarray(V[:2]), Y[:2], {})
    for m, v, y, value in zip(M, V, Y.astype(int), bound, strict=False):
        f = m + np.sqrt(v) * rng.normal(size=(400_000, 3))
        ratios = np.exp(f - f[:, [y]])
        total = ratios.sum(axis=1)
        error = total.std() / total.mean() / np.sqrt(len(f))
        # Lognormal tails: the mean of the ratios, in five standard errors.
        assert abs(np.log(total.mean()) + value) < 5 * error
        assert value < np.mean(f[:, y] - logsumexp(f, axis=1))


def negative_bound(vector, K, y, mean):
    """Minus equation 25, with a full covariance for each class and the latents of different classes independent."""
    n, count = len(y), np.max(y) + 1
    total, m, v = 0.0, [], []
    for row in vector.reshape(count, -1):
        half = np.zeros((n, n))
        half[np.tril_indices(n)] = row[n:]
        half[np.diag_indices(n)] = np.exp(np.diag(half))
        S, shift = half @ half.T, row[:n] - mean
        log_ratio = np.linalg.slogdet(K)[1] - np.linalg.slogdet(S)[1]
        total += 0.5 * (np.trace(np.linalg.solve(K, S)) + shift @ np.linalg.solve(K, shift) - n + log_ratio)
        m.append(row[:n])
        v.append(np.diag(S))
    for i, c in enumerate(y):
        total += np.log1p(sum(np.exp(m[k][i] - m[c][i] + (v[k][i] + v[c][i]) / 2) for k in range(count) if k != c))
    return total


def test_vi_and_svi_reach_the_published_optimum_of_independent_classes():
    X, y = np.array([[0.0], [0.7], [1.1]]), np.array([1, 0, 2])
    K = 2.0 * np.exp(-0.5 * (X - X.T) ** 2) + 1e-10 * np.eye(3)
    # Means and triangles of three classes: 3 (3 + 6) numbers.
    published = -minimize(negative_bound, np.zeros(27), args=(K, y, 0.3)).fun

    def model(**form):
        return pgm.Model(pgm.Softmax(3), pgm.GP(pgm.RBF(2.0, 1.0), mean=0.3, size=3, **form))

    result = pgm.vi(model(), X, y, objective="gumbel", tolerance=1e-12)
    assert result.elbo == pytest.approx(published, abs=1e-6)
    assert not result.posterior.is_coupled
    stochastic = pgm.svi(model(form=pgm.Inducing(X)), X, y, objective="gumbel", seed=0)
    assert stochastic.elbo == pytest.approx(published, abs=1e-4)


@double_precision
def test_published_sites():
    bound, h, w = BOUND.local_bound_and_sites(jnp.asarray(M), jnp.asarray(V), Y, {})
    for m, v, y, value, potential, precision in zip(M, V, Y.astype(int), bound, h, w, strict=True):
        R = np.exp(m - m[y] + 0.5 * (v + v[y]))
        R[y] = 0.0
        # Equation 24, with the largest exponents of f = ±40 kept finite.
        assert value == pytest.approx(-np.log1p(R.sum()), rel=1e-12)
        p = R / (1.0 + R.sum())
        gradient, p[y] = -p, p.sum()
        gradient[y] = p[y]
        np.testing.assert_allclose(precision, p, rtol=1e-10, atol=1e-30)
        np.testing.assert_allclose(potential, gradient + p * m, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rows", [slice(3), slice(1), slice(2, 3)])
@double_precision
def test_its_tangent_is_equation_24(rows):
    tangent, m, v, y = BOUND.tangent(), jnp.asarray(M[rows]), jnp.asarray(V[rows]), Y[rows]
    exact, potential, precision = BOUND.local_bound_and_sites(m, v, y, {})
    latents = np.arange(3)
    logs = tangent.log_sums(m, v, y, {}, latents)
    log_sum = logsumexp(logs, axis=1)

    def bound(m, v, log_scale):
        return jnp.sum(tangent.terms(m, v, y, {}, latents, log_scale), axis=1) + tangent.rest(y, {}, log_scale)

    np.testing.assert_allclose(bound(m, v, log_sum), exact, rtol=1e-12)
    h, w = tangent.sites(m, v, y, {}, latents, log_sum)
    # 1 - S_y / S0 is the sum of the others' shares of S up to rounding of 1.
    np.testing.assert_allclose(w, precision, atol=1e-13)
    np.testing.assert_allclose(h, potential, atol=1e-11)
    log_own, place = np.asarray(logs)[np.arange(len(y)), y.astype(int)], y.astype(int)
    for excess in (-2.0, -0.3, 0.4, 3.0, 60.0):
        log_scale = log_sum + excess
        np.testing.assert_allclose(bound(m, v, log_scale), exact + 1.0 - np.exp(-excess) - excess, rtol=1e-12)
        log_theta = log_scale - log_own
        equation_24 = -np.exp(-exact - log_theta) - log_theta + 1.0
        np.testing.assert_allclose(bound(m, v, log_scale), equation_24, rtol=1e-12)
        h, w = tangent.sites(m, v, y, {}, latents, log_scale)
        shares = np.exp(np.asarray(logs) - log_scale[:, None])
        expected, gradient = shares.copy(), -shares
        expected[np.arange(len(y)), place] = gradient[np.arange(len(y)), place] = 1.0 - np.exp(-log_theta)
        np.testing.assert_allclose(w, expected, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(h, gradient + expected * m, rtol=1e-12, atol=1e-11)
        assert np.min(np.asarray(w)[np.asarray(log_scale) >= log_own], initial=0.0) >= 0.0


@double_precision
def test_the_bound_is_concave():
    def bound(vector):
        return BOUND.local_bound(vector[None, :3], vector[None, 3:], np.array([1.0]), {})[0]

    for m, v in zip(M[:2], V[:2], strict=True):
        values = np.linalg.eigvalsh(jax.hessian(bound)(jnp.concatenate([m, v])))
        assert values.max() < 1e-12
        assert values.min() < -1e-4


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.filterwarnings("ignore::pgmodels.DataWarning")
def test_it_is_below_the_expected_log_density_and_the_evidence(n):
    X, y = data(n)
    looser, tighter = (pgm.vi(model(), X, y, objective=name) for name in ("gumbel", "expected"))
    evidence = pgm.log_evidence(tighter, num_draws=4000, seed=0)
    assert looser.elbo < tighter.elbo < evidence.value + 4 * evidence.standard_error


@pytest.mark.slow
def test_every_call_takes_it(tmp_path):
    X, y = data(30)
    result = pgm.fit(model(), X, y, objective="gumbel", correct=False)
    again = pgm.vi(result.model, X, y, objective="gumbel", tolerance=1e-10)
    assert result.elbo == pytest.approx(again.elbo, abs=1e-3)
    sparse = model(form=pgm.Inducing(8))
    stochastic = pgm.svi(sparse, X, y, objective="gumbel", batch_size=10, seed=0)
    assert stochastic.elbo <= pgm.vi(sparse, X, y, objective="gumbel").elbo + 1e-6
    corrected = pgm.correct(again, method="linear_response")
    assert np.all(np.isfinite(corrected.variance))
    loaded = pgm.load(again.save(tmp_path / "result.npz"))
    assert loaded.objective == "gumbel"
    np.testing.assert_array_equal(loaded.predict(X[:3]).probabilities, again.predict(X[:3]).probabilities)
    assert "Variational inference with Gumbel noise" in str(again)


def test_other_likelihoods_are_refused():
    X, y = data(5)
    with pytest.raises(ValueError, match=r"objective='gumbel' expects .*; got LogisticSoftmax"):
        pgm.vi(pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.RBF(), size=3)), X, y, objective="gumbel")
