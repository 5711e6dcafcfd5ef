"""The best mean beside given variances: against a general optimiser, where it must not lead, and what it spares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import pgmodels as pgm
from pgmodels.inference import cavi as mean_ascent
from pgmodels.inference import cavi as module
from pgmodels.inference.cavi import CAVI, at_best_mean, can_ascend
from pgmodels.inference.loop import maximise
from pgmodels.inference.problem import problem_of
from tests.registry import CASES

pytestmark = pytest.mark.usefixtures("double_precision")


Z = np.random.default_rng(5).uniform(-2.0, 2.0, (6, 2))
# Of one latent and several, with sites that share a datum's, updated by turns, combined, and a bound that is not
# concave in the mean.
NAMES = ["bernoulli", "logistic_softmax", "heteroscedastic", "additive", "varying", "student_t", "sigmoid_poisson"]


def sparse(name, n=21, **data):
    """A case's model over latents of unequal kernels and means with inducing inputs, and data that three rows fill."""
    case = CASES[name]
    X, y = case.data(n, seed=3, **data)
    model, data = case.unequal(form=pgm.Inducing(Z)).prepare(X, y, None)
    return model.resolve(data.X), data


def converged(problem, tolerance=1e-12, step=CAVI.step):
    """Where sweeps end."""
    return maximise(step, problem, CAVI.init(problem), tolerance, 3000)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_mean_is_best(name, monkeypatch):
    """Where a general optimiser ends, given the bound of the case, which knows nothing of ours; the rest stays."""
    # Near by, for there may be other optima where the bound is not concave.
    monkeypatch.setattr(mean_ascent, "_STEPS", 100)
    monkeypatch.setattr(mean_ascent, "_ENOUGH", 1e-12)
    model, data = sparse(name)
    problem = problem_of(model, data)
    assert can_ascend(problem)
    assert problem.row_weights is not None
    state = CAVI.state_of(problem, CAVI.init(problem).sites)
    mean, sites = jax.jit(at_best_mean)(problem, *state[:3])
    rows = len(data.y)
    case, y = CASES[name], data.y
    G = np.stack([np.asarray(A)[:, :rows] for A in problem.prior.factors()])
    Phi, prior_mean = np.asarray(case.matrix(y)), np.asarray(problem.prior.means())
    variance = state.variance[:rows]

    def predictors(x):
        return jnp.einsum("ipl,il->ip", Phi, prior_mean + jnp.einsum("lrn,lr->nl", G, x.reshape(G.shape[:2])))

    def loss(x):
        return 0.5 * x @ x - jnp.sum(case.bound(predictors(x), variance, y))

    begun = np.linalg.lstsq(_design(G, Phi), np.ravel(mean[:rows] - predictors(0.0 * G[:, :, 0])), rcond=None)[0]
    best = minimize(jax.jit(jax.value_and_grad(loss)), begun + 0.01, jac=True, method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(mean[:rows], predictors(best.x), atol=2e-6)
    # The sites imply that mean, and the variances of before.
    natural_target = problem.moments(sites)
    np.testing.assert_allclose(natural_target[0][:rows], mean[:rows], atol=1e-6)
    np.testing.assert_allclose(natural_target[1], state.variance, rtol=1e-12)
    assert CAVI.state_of(problem, sites).elbo > state.elbo


def _design(G, Phi):
    """The linear map from all coordinates to all predictors, a row each."""
    return np.einsum("npl,lrn->nplr", Phi, G).reshape(-1, G[:, :, 0].size)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sweeps_end_where_plain_ones_do(name, monkeypatch):
    """And the bound never falls on the way."""
    model, data = sparse(name, scale=3.0, shift=-0.7)
    problem = problem_of(model, data)
    ascent = converged(problem)
    assert ascent.converged
    assert np.diff(ascent.trace).min() > -1e-11 * abs(ascent.trace[-1])
    monkeypatch.setattr(module, "can_ascend", lambda problem: False)
    # A function of its own has programs of its own.
    plain = converged(problem, step=lambda problem, state: CAVI.step(problem, state))
    np.testing.assert_allclose(ascent.trace[-1], plain.trace[-1], rtol=1e-9)
    np.testing.assert_allclose(ascent.state.mean, plain.state.mean, atol=1e-4)
    assert len(ascent.trace) <= len(plain.trace)


@pytest.mark.slow
def test_classes_that_are_sure():
    """Few sweeps where precisions are far above the bound's curvature; plain ones take 120."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = np.where(X[:, 0] > 1.2, 1, np.where(X[:, 1] > 1.0, 2, 0))
    kernel = pgm.RBF(variance=2000.0, lengthscale=2.0)
    latent = pgm.GP(kernel, mean=0.0, size=3, form=pgm.Inducing(X[:20]))
    model, data = pgm.Model(pgm.LogisticSoftmax(3), latent).prepare(X, y, None)
    ascent = converged(problem_of(model.resolve(data.X), data), 1e-9)
    assert ascent.converged
    assert len(ascent.trace) < 25


@pytest.mark.parametrize("y", [[1.0], [40.0]])
def test_one_datum(y):
    """And one far out, whose bound is not concave: with itself as inducing input, what the dense prior gives."""
    result, dense = (
        pgm.cavi(
            pgm.Model(pgm.StudentT(4.0, 1.0), pgm.GP(pgm.RBF(3.0, 1.0), mean=0.5, form=form)),
            np.array([[0.1]]),
            np.array(y),
            tolerance=1e-14,
            progress=False,
        )
        for form in (pgm.Inducing([[0.1]]), pgm.Dense())
    )
    assert result.converged
    np.testing.assert_allclose(result.elbo, dense.elbo, rtol=1e-10)
    # To the root of the ELBO's tolerance.
    np.testing.assert_allclose(result.mean, dense.mean, atol=1e-6)


def test_what_is_held_of_each_row_has_a_limit(monkeypatch):
    """Dense priors and curvatures beyond the limit have plain sweeps."""
    model, data = sparse("logistic_softmax")
    problem = problem_of(model, data)
    assert can_ascend(problem)
    monkeypatch.setattr(mean_ascent, "HELD", problem.prior.num_rows * 9 - 1)
    assert not can_ascend(problem)
    X, y = CASES["bernoulli"].data(9, seed=0)
    model, data = CASES["bernoulli"].model().prepare(X, y, None)
    assert not can_ascend(problem_of(model, data))


@pytest.mark.slow
def test_a_start_says_nothing_of_the_mean():
    """Its moments are no sites': the first step is a sweep from them."""
    model, data = sparse("bernoulli")
    problem = problem_of(model, data)
    start = CAVI.init(problem)
    expected = CAVI.state_of(problem, problem.sites(*start[:2]))
    np.testing.assert_allclose(CAVI.step(problem, start).mean, expected.mean, rtol=1e-12)
