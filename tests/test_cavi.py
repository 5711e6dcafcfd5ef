import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.datasets import load_wine

from pgmodels.inference.cavi import ConvergenceWarning, cavi
from pgmodels.kernels.stationary import RBF, Matern12
from pgmodels.language.likelihoods import Bernoulli, LogisticSoftmax
from pgmodels.latent.dense import DensePrior
from pgmodels.latent.form import Dense
from pgmodels.latent.low_rank import LowRankPrior
from pgmodels.model import GP, Model
from tests.programs import run
from tests.registry import CASES, NAMES, rbf, sigma


@pytest.fixture(scope="module")
def binary():
    rng = np.random.default_rng(4)
    X = rng.uniform(-2, 2, (30, 2))
    y = (rng.random(30) < sigma(2 * np.sin(2 * X[:, 0]) + 0.7)).astype(float)
    model = Model(Bernoulli(), GP(Matern12(2.0, 1.5), mean=0.4))
    K = 2.0 * np.exp(-np.linalg.norm(X[:, None] - X[None], axis=-1) / 1.5)
    return X, y, K, cavi(model, X, y, tolerance=1e-14)


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", NAMES)
def test_the_local_bound_is_the_printed_one(name):
    case = CASES[name]
    _, y = case.data(12, seed=3)
    rng = np.random.default_rng(8)
    shape = case.matrix(y).shape[:2]
    m, v = rng.normal(0.4, 1.3, shape), rng.gamma(2.0, 0.6, shape)
    model = case.model()
    with jax.enable_x64(True):
        got = run(model.augmentation.local_bound, m, v, y, model.parameters)
        # Terms of size up to 100 cancel, log-gammas among them.
        np.testing.assert_allclose(got, case.bound(m, v, y), rtol=1e-10, atol=1e-11)


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", NAMES)
def test_the_elbo_never_falls_and_the_fixed_point_maximises_it(name):
    """The maximum over every Gaussian of the ELBO with the registry's own bound and a textbook KL divergence."""
    case = CASES[name]
    X, y = case.data(12, seed=3)
    # 1e-15 is below the spacing of doubles at the ELBO: iterate to the last digit.
    result = cavi(case.model(), X, y, tolerance=1e-15, max_iterations=5000)
    # Rounding of a sum of some hundred terms of size one.
    assert np.all(np.diff(result.elbo_trace) > -1e-11 * (1 + abs(result.elbo)))
    mean, variance, value = brute_force(case, rbf(X), 0.3, y, result)
    np.testing.assert_allclose(result.elbo, value, rtol=1e-8)
    np.testing.assert_allclose(result.mean, mean, atol=1e-6)
    np.testing.assert_allclose(result.variance, variance, atol=1e-6)


def brute_force(case, K, mean, y, start):
    """L-BFGS on the mean and the Cholesky root of a Gaussian over all n * latents whitened coordinates at once.

    It starts a tenth to a half of a prior standard deviation away from the result under test: not every ELBO is
    concave, and another maximum would say nothing.
    """
    n, size = len(K), case.num_latents
    total = n * size
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        root = np.linalg.cholesky(K)
        lower = np.tril_indices(total, -1)
        observed = jnp.asarray(y)

        def unpack(x):
            R = jnp.zeros((total, total)).at[lower].set(x[2 * total :])
            return x[:total], R + jnp.diag(jnp.exp(x[total : 2 * total]))

        def marginals(x, Phi):
            a, R = unpack(x)
            shape = (size, n)
            m = mean + jnp.einsum("ij,lj->il", root, a.reshape(shape))
            deviations = jnp.einsum("ij,ljk->ilk", root, R.reshape(*shape, total))
            return jnp.einsum("ipl,il->ip", Phi, m), jnp.sum(jnp.einsum("ipl,ilk->ipk", Phi, deviations) ** 2, axis=-1)

        def negative_elbo(x):
            a, R = unpack(x)
            m, v = marginals(x, case.matrix(y))
            kl = 0.5 * (jnp.sum(R**2) + jnp.sum(a**2) - total) - jnp.sum(x[total : 2 * total])
            return kl - jnp.sum(case.bound(m, v, observed))

        whitened = np.linalg.solve(np.asarray(root), start.mean - mean).T.ravel()
        scale = np.sqrt(np.clip(start.variance / np.diag(K)[:, None], 0.05, 1.0)).T.ravel()
        x = np.concatenate([whitened, np.log(scale), np.zeros(len(lower[0]))])
        x[:total] += rng.uniform(0.1, 0.5, total) * rng.choice([-1, 1], total)
        both = jax.jit(jax.value_and_grad(negative_elbo))
        options = {"maxiter": 20_000, "maxfun": 40_000, "maxcor": 40, "ftol": 1e-16, "gtol": 1e-8}
        found = minimize(lambda x: tuple(map(np.asarray, both(x))), x, jac=True, method="L-BFGS-B", options=options)
        m, v = jax.jit(marginals)(found.x, np.broadcast_to(np.eye(size), (n, size, size)))
        return np.asarray(m), np.asarray(v), -float(found.fun)


def twin(K, y, mean, sweeps):
    """CAVI of the binary model in NumPy: explicit matrices, y in -1 and 1 (Wenzel et al. 2019, section 3)."""
    n = len(y)
    mu, Sigma = np.full(n, mean), K
    for _ in range(sweeps):
        c = np.sqrt(np.diag(Sigma) + mu**2)
        theta = np.tanh(c / 2) / (2 * c)
        Sigma = np.linalg.inv(np.linalg.inv(K) + np.diag(theta))
        mu = Sigma @ (y / 2 + np.linalg.solve(K, np.full(n, mean)))
    c = np.sqrt(np.diag(Sigma) + mu**2)
    deviation = mu - mean
    kl = 0.5 * (np.trace(np.linalg.solve(K, Sigma)) + deviation @ np.linalg.solve(K, deviation) - n)
    kl += 0.5 * (np.linalg.slogdet(K)[1] - np.linalg.slogdet(Sigma)[1])
    return mu, np.diag(Sigma), np.sum(y * mu / 2 - np.log(2 * np.cosh(c / 2))) - kl


def test_binary_model_against_a_numpy_twin(binary):
    _, y, K, result = binary
    mean, variance, value = twin(K, 2 * y - 1, 0.4, sweeps=60)
    np.testing.assert_allclose(result.mean[:, 0], mean, atol=1e-8)
    np.testing.assert_allclose(result.variance[:, 0], variance, atol=1e-8)
    np.testing.assert_allclose(result.elbo, value, rtol=1e-10)


def test_binary_elbo_is_the_gibbs_mackay_bound(binary):
    """The log integral of Jaakkola and Jordan's Gaussian lower bound, maximised over c (Wenzel et al. 2019, A.5)."""
    _, y, K, result = binary
    sign = 2 * y - 1

    def negative_log_integral(log_c):
        c = np.exp(log_c)
        w = (sigma(c) - 0.5) / c
        # f = 0.4 + g: the exponent is h g - w g^2 / 2 + constant.
        h = sign / 2 - w * 0.4
        constant = np.sum(np.log(sigma(c)) + (sign * 0.4 - c) / 2 - w / 2 * (0.4**2 - c**2))
        B = np.eye(len(K)) + K * w
        return -(constant - 0.5 * np.linalg.slogdet(B)[1] + 0.5 * h @ np.linalg.solve(B, K @ h))

    # From c = 1 everywhere, not from the result. The optimum is flat: gradients of 1e-6 leave 1e-12 of the value.
    found = minimize(negative_log_integral, np.zeros(len(y)), method="BFGS", options={"gtol": 1e-5})
    np.testing.assert_allclose(result.elbo, -found.fun, rtol=1e-8)


def wine():
    """118 of the 178 rows, standardised with all of them."""
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    rows = np.random.default_rng(0).permutation(len(X))[:118]
    return X[rows], y[rows].astype(float)


def test_logistic_softmax_on_wine():
    X, y = wine()
    # The lengthscale left open is the median distance.
    result = cavi(Model(LogisticSoftmax(3), GP(RBF(1.0), size=3)), X, y, tolerance=1e-12)
    assert np.all(np.diff(result.elbo_trace) > -1e-10)
    # The figure of an independent calculation, -88.47, to its last digit.
    assert abs(result.elbo + 88.47) < 0.005


def test_low_rank_and_dense_priors_give_the_same_result():
    rng = np.random.default_rng(5)
    X = rng.uniform(-1, 1, (120, 1))
    y = (rng.random(120) < sigma(3 * np.sin(3 * X[:, 0]))).astype(float)
    model = Model(Bernoulli(), GP(RBF(2.0, 1.0), mean=0.4))
    low = cavi(model, X, y)
    assert isinstance(low.prior.groups[0], LowRankPrior)

    full = cavi(Model(Bernoulli(), GP(RBF(2.0, 1.0), mean=0.4, form=Dense())), X, y)
    assert isinstance(full.prior.groups[0], DensePrior)
    # The two differ by 1e-10 of the variance at every point; 120 points with w <= 1/4 can add that up to 3e-9.
    np.testing.assert_allclose(low.mean, full.mean, atol=1e-7)
    np.testing.assert_allclose(low.variance, full.variance, atol=1e-7)
    np.testing.assert_allclose(low.elbo, full.elbo, rtol=1e-8)


def test_warns_where_it_did_not_converge():
    X, y = CASES["sigmoid_poisson"].data(12, seed=3)
    with pytest.warns(ConvergenceWarning, match="after 2 iterations.*Raise max_iterations"):
        result = cavi(CASES["sigmoid_poisson"].model(), X, y, max_iterations=2)
    assert not result.converged
    assert result.num_iterations == 2


def test_a_converged_result_says_so_and_is_a_fixed_point():
    X, y = CASES["student_t"].data(12, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loose = cavi(CASES["student_t"].model(), X, y, tolerance=1e-4)
        tight = cavi(CASES["student_t"].model(), X, y, tolerance=1e-12)
    assert loose.converged
    assert tight.converged
    assert loose.num_iterations < tight.num_iterations
    assert abs(tight.elbo_trace[-1] - tight.elbo_trace[-2]) <= 1e-12 * abs(tight.elbo)
    assert loose.elbo <= tight.elbo
