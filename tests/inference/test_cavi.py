import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.datasets import load_wine

import pgmodels as pgm
from pgmodels.inference.bound import MarginalBound, collapsed_bound, sloped_bound, takes_slopes
from pgmodels.inference.cavi import CAVI
from pgmodels.parameters.vector import trainable
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.dense import DensePrior, LowRankPrior, traced_dense_prior
from pgmodels.runtime.precision import double_precision
from tests.covering import some
from tests.referees import sigma
from tests.registry import CASES


@pytest.fixture(scope="module")
def binary():
    rng = np.random.default_rng(4)
    X = rng.uniform(-2, 2, (30, 2))
    y = (rng.random(30) < sigma(2 * np.sin(2 * X[:, 0]) + 0.7)).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern12(2.0, 1.5), mean=0.4))
    K = 2.0 * np.exp(-np.linalg.norm(X[:, None] - X[None], axis=-1) / 1.5)
    return X, y, K, pgm.cavi(model, X, y, tolerance=1e-14)


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
    np.testing.assert_allclose((result.mean[:, 0], result.variance[:, 0]), (mean, variance), atol=1e-8)
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
    solution = minimize(negative_log_integral, np.zeros(len(y)), method="BFGS", options={"gtol": 1e-5})
    np.testing.assert_allclose(result.elbo, -solution.fun, rtol=1e-8)


def wine():
    """118 of the 178 rows, standardised with all of them."""
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    rows = np.random.default_rng(0).permutation(len(X))[:118]
    return X[rows], y[rows].astype(float)


def test_logistic_softmax_on_wine():
    X, y = wine()
    # The lengthscale left open is the median distance.
    result = pgm.cavi(pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.RBF(1.0), size=3)), X, y, tolerance=1e-12)
    assert np.all(np.diff(result.elbo_trace) > -1e-10)
    # The figure of an independent calculation, -88.47, to its last digit.
    assert abs(result.elbo + 88.47) < 0.005


def test_low_rank_and_dense_priors_give_the_same_result():
    rng = np.random.default_rng(5)
    X = rng.uniform(-1, 1, (120, 1))
    y = (rng.random(120) < sigma(3 * np.sin(3 * X[:, 0]))).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0), mean=0.4))
    low = pgm.cavi(model, X, y)
    assert isinstance(low.prior.groups[0], LowRankPrior)

    full = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0), mean=0.4, form=pgm.Dense())), X, y)
    assert isinstance(full.prior.groups[0], DensePrior)
    # The two differ by 1e-10 of the variance at every point; 120 points with w <= 1/4 can add that up to 3e-9.
    np.testing.assert_allclose((low.mean, low.variance), (full.mean, full.variance), atol=1e-7)
    np.testing.assert_allclose(low.elbo, full.elbo, rtol=1e-8)


def test_warns_where_it_did_not_converge():
    X, y = CASES["sigmoid_poisson"].data(12, seed=3)
    with pytest.warns(pgm.ConvergenceWarning, match="after 2 iterations.*Raise max_iterations"):
        result = pgm.cavi(CASES["sigmoid_poisson"].model(), X, y, max_iterations=2)
    assert not result.converged
    assert result.num_iterations == 2


def test_a_converged_result_says_so_and_is_a_fixed_point():
    X, y = CASES["student_t"].data(12, seed=3)
    loose, tight = (pgm.cavi(CASES["student_t"].model(), X, y, tolerance=tolerance) for tolerance in (1e-4, 1e-12))
    assert loose.converged
    assert tight.converged
    assert loose.num_iterations < tight.num_iterations
    assert abs(tight.elbo_trace[-1] - tight.elbo_trace[-2]) <= 1e-12 * abs(tight.elbo)
    assert loose.elbo <= tight.elbo


# The gradient of learning with dense priors.


def dense_problem(name):
    """The problem of a case with dense priors; three of its rows fill up the data."""
    case = CASES[name]
    X, y = case.data(21, seed=3, scale=2.0, shift=0.3)
    model, data = case.model(variance=9.0, mean=0.2).prepare(X, y, None)
    bound = MarginalBound.of(trainable(model.resolve(data.X)), data)
    return bound.family.problem(jnp.asarray(bound.learnable.start()), (None,) * len(model.gps))


@pytest.mark.slow
@double_precision
@pytest.mark.parametrize("name", some(["student_t", "logistic_softmax"], "student_t"))
def test_the_gradient_is_that_of_the_collapsed_bound(name):
    """At sites that are no optimum, in the kernel's values, the mean and the likelihood's parameters."""
    problem = dense_problem(name)
    m, v = problem.marginals()
    state = CAVI.state_of(problem, problem.sites(m + 0.3, 0.5 * v))

    def at(shifts):
        group = problem.prior.groups[0]
        kernel = jax.tree.map(lambda leaf: leaf * jnp.exp(shifts["kernel"]), group.kernel)
        mean = group.mean + shifts["mean"]
        moved = traced_dense_prior(kernel, mean, group.X, group.size, problem.row_weights, for_moments=True)
        parameters = {name: value * jnp.exp(shifts["parameters"]) for name, value in problem.parameters.items()}
        prior = PriorCollection((moved,))
        return type(problem)(problem.objective, prior, problem.y, parameters, row_weights=problem.row_weights)

    zero = {name: jnp.zeros(()) for name in ("kernel", "mean", "parameters")}
    assert takes_slopes(problem)
    ours = jax.grad(lambda shifts: sloped_bound(problem, state)(at(shifts)))(zero)
    theirs = jax.grad(lambda shifts: collapsed_bound(at(shifts), state))(zero)
    for part in zero:
        np.testing.assert_allclose(ours[part], theirs[part], rtol=1e-9, err_msg=part)
