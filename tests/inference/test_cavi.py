import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.datasets import load_wine

import pgmodels as pgm
from pgmodels.inference import cavi as expanded
from pgmodels.inference.bound import MarginalBound, collapsed_bound
from pgmodels.inference.cavi import CAVI, ascend_expanded, can_expand, expanded_at, expanded_bound
from pgmodels.inference.loop import ConvergenceWarning, run_block
from pgmodels.inference.vi import cavi
from pgmodels.kernels.stationary import RBF, Matern12
from pgmodels.likelihoods.named import Bernoulli, LogisticSoftmax
from pgmodels.model import GP, Model
from pgmodels.parameters.parameter import bare
from pgmodels.parameters.vector import trainable
from pgmodels.priors.base import Sites
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.dense import DensePrior, LowRankPrior, expand, traced_dense_prior
from pgmodels.priors.representation import Dense
from pgmodels.runtime.precision import double_precision
from tests.covering import some
from tests.referees import sigma
from tests.registry import CASES


@pytest.fixture(scope="module")
def binary():
    rng = np.random.default_rng(4)
    X = rng.uniform(-2, 2, (30, 2))
    y = (rng.random(30) < sigma(2 * np.sin(2 * X[:, 0]) + 0.7)).astype(float)
    model = Model(Bernoulli(), GP(Matern12(2.0, 1.5), mean=0.4))
    K = 2.0 * np.exp(-np.linalg.norm(X[:, None] - X[None], axis=-1) / 1.5)
    return X, y, K, cavi(model, X, y, tolerance=1e-14)


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


# Sweeps over an expansion of dense posteriors' moments end where plain sweeps do, after few factorisations.


NAMES = ["bernoulli", "student_t", "sigmoid_poisson", "logistic_softmax"]


def dense_problem(name):
    """The problem of a case with dense priors; three of its rows fill up the data."""
    case = CASES[name]
    X, y = case.data(21, seed=3, scale=2.0, shift=0.3)
    model, data = case.model(variance=9.0, mean=0.2).prepare(X, y, None)
    bound = MarginalBound.of(trainable(model.resolve(data.X)), data)
    return bound.family.problem(jnp.asarray(bound.learnable.start()), (None,) * len(model.gps))


@double_precision
def test_moments_move_as_they_say():
    """By the covariance; a site of no precision says nothing of the others and follows none of them."""
    rng = np.random.default_rng(1)
    X = jnp.asarray(rng.normal(size=(7, 2)))
    prior = traced_dense_prior(bare(pgm.RBF(2.0, 1.3)), jnp.asarray(0.3), X, 2, for_moments=True)
    w = jnp.asarray(np.exp(rng.normal(size=(7, 2)))).at[2, 0].set(0.0)
    sites = Sites(jnp.asarray(rng.normal(size=(7, 2))), w)
    expansion = expand(prior, sites)
    posterior = prior.condition(sites)
    mean, variance = posterior.moments()
    np.testing.assert_allclose(prior.mean + expansion.mean.T, mean, rtol=1e-12)
    np.testing.assert_allclose(expansion.variance.T, variance, rtol=1e-12)
    logs = jnp.sum(sites.potential * mean - 0.5 * w * (variance + mean**2)) - posterior.log_normalizer()
    np.testing.assert_allclose(jnp.sum(expansion.divergence), logs, rtol=1e-12)
    covariance = np.array(posterior.covariance())
    covariance[0, 2], covariance[0, :, 2] = 0.0, 0.0
    covariance[0, 2, 2] = prior.K[2, 2]
    x = jnp.asarray(rng.normal(size=(2, 7)))
    # A share of 1e-7 of the prior's precision is added to each, of 0.1 at least, between entries of up to 2.
    np.testing.assert_allclose(expansion.times(x), np.einsum("lij,lj->li", covariance, x), atol=1e-5)
    moved = expansion.times_squares(expansion.squares(), x)
    np.testing.assert_allclose(moved, np.einsum("lij,lj->li", covariance**2, x), atol=1e-5)


@pytest.mark.slow
@double_precision
@pytest.mark.parametrize("name", NAMES)
def test_the_optimum_of_plain_sweeps(name):
    problem = dense_problem(name)
    start = CAVI.init(problem)
    assert can_expand(problem)
    ascent, _ = jax.jit(lambda problem, start: ascend_expanded(problem, start, 1e-11, 50))(problem, start)
    plain = jax.jit(lambda problem, start: run_block(CAVI.step, problem, start, 1e-14, 2000, 2000))(problem, start)
    trace = np.asarray(ascent.trace)[: int(ascent.num_steps)]
    assert ascent.converged
    # What is promised is of second order, so that what is left is below the tolerance but for its own square.
    np.testing.assert_allclose(trace[-1], plain.state.elbo, rtol=2e-11)
    np.testing.assert_allclose(ascent.state.mean, plain.state.mean, atol=1e-4)
    assert np.all(np.diff(trace) >= -1e-12 * np.abs(trace[:-1]))
    assert 2 * int(ascent.num_steps) <= int(plain.num_steps)


@double_precision
@pytest.mark.slow
def test_where_promises_are_broken_the_sweep_counts(monkeypatch):
    problem = dense_problem("bernoulli")
    start = CAVI.init(problem)
    honest = ascend_expanded(problem, start, 1e-12, 50)[0].state.elbo

    def astray(problem, state, expansions):
        return Sites(state.sites.potential + 3.0, state.sites.precision + 1.0), jnp.asarray(jnp.inf)

    monkeypatch.setattr(expanded, "_fixed_point", astray)
    ascent, _ = ascend_expanded(problem, start, 1e-12, 500)
    trace = np.asarray(ascent.trace)[: int(ascent.num_steps)]
    assert ascent.converged
    assert np.all(np.diff(trace) >= -1e-12 * np.abs(trace[:-1]))
    # Plain sweeps stop where one gains 1e-12, and have ten times as much or so before them.
    np.testing.assert_allclose(ascent.state.elbo, honest, rtol=1e-10)


@pytest.mark.slow
@double_precision
@pytest.mark.parametrize("name", some(["student_t", "logistic_softmax"], "student_t"))
def test_the_gradient_is_that_of_the_collapsed_bound(name):
    """At sites that are no optimum, in the kernel's values, the mean and the likelihood's parameters."""
    problem = dense_problem(name)
    m, v = problem.marginals()
    expanded = expanded_at(problem, problem.sites(m + 0.3, 0.5 * v))

    def at(shifts):
        group = problem.prior.groups[0]
        kernel = jax.tree.map(lambda leaf: leaf * jnp.exp(shifts["kernel"]), group.kernel)
        mean = group.mean + shifts["mean"]
        moved = traced_dense_prior(kernel, mean, group.X, group.size, problem.row_weights, for_moments=True)
        parameters = {name: value * jnp.exp(shifts["parameters"]) for name, value in problem.parameters.items()}
        prior = PriorCollection((moved,))
        return type(problem)(problem.objective, prior, problem.y, parameters, row_weights=problem.row_weights)

    zero = {name: jnp.zeros(()) for name in ("kernel", "mean", "parameters")}
    ours = jax.grad(lambda shifts: expanded_bound(at(shifts), expanded.state, expanded.expansions))(zero)
    theirs = jax.grad(lambda shifts: collapsed_bound(at(shifts), expanded.state))(zero)
    for part in zero:
        np.testing.assert_allclose(ours[part], theirs[part], rtol=1e-9, err_msg=part)
