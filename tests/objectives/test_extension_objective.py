"""Objectives defined outside the package, in all calls that accept one and in the engines' steps."""

import warnings
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy.optimize import minimize

import pgmodels as pgm
from pgmodels.inference.cavi import CAVI
from pgmodels.inference.loop import maximise
from pgmodels.inference.problem import Problem
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.named import Bernoulli
from pgmodels.model import GP, Model
from pgmodels.numerics.quadrature import gauss_hermite
from pgmodels.objectives.base import Objective
from pgmodels.priors.base import Sites
from pgmodels.runtime.precision import double_precision

X = np.array([[0.0], [0.7], [1.1], [2.9]])
Y = np.array([1.0, 0.0, 1.0, 1.0])
MEAN = 0.4


@dataclass(frozen=True)
class Quadrature(Objective):
    """E log p(y | f) of a complementary log-log likelihood, p(1 | f) = 1 - exp(-exp f), which has no augmentation."""

    count: int = 32
    size = 1

    def local_bound(self, m, v, y, parameters):
        nodes, weights = gauss_hermite(self.count)
        rate = jnp.exp(m + jnp.sqrt(v) * nodes)
        log_p = jnp.where(y[:, None] == 1, jnp.log(-jnp.expm1(-rate)), -rate)
        return log_p @ weights / np.sqrt(2 * np.pi)


@dataclass(frozen=True)
class Taylor(Objective):
    """Logistic log p(y | f) to second order about the mean: its fixed point is Laplace's approximation."""

    size = 1

    def local_bound(self, m, v, y, parameters):
        curvature = jax.nn.sigmoid(m) * jax.nn.sigmoid(-m)
        return (jax.nn.log_sigmoid((2 * y[:, None] - 1) * m) - 0.5 * curvature * v)[:, 0]

    def local_sites(self, m, v, y, parameters):
        w = jax.nn.sigmoid(m) * jax.nn.sigmoid(-m)
        return y[:, None] - jax.nn.sigmoid(m) + w * m, w


def damped(problem, state):
    """Half a step of the natural gradient; precisions stay positive."""
    h, w = problem.sites(state.mean, state.variance)
    aim = Sites(h, jnp.maximum(w, 0.0))
    return CAVI.state_of(problem, jax.tree.map(lambda old, new: old + 0.5 * (new - old), state.sites, aim))


@double_precision
def optimum(objective, X=X, y=Y, weights=None):
    """The final state and the trace of bounds for an objective instead of an augmentation."""
    model = Model(Bernoulli(), GP(RBF(lengthscale=1.2, variance=1.7), mean=MEAN))
    row_weights = None if weights is None else jnp.asarray(weights)
    problem = Problem(objective, model.prior(X), jnp.asarray(y), {}, row_weights=row_weights)
    result = maximise(damped, problem, CAVI.init(problem), 1e-13, 200)
    assert result.converged
    return result.state, result.trace


def covariance():
    return 1.7 * np.exp(-0.5 * (X - X.T) ** 2 / 1.2**2)


def test_quadrature_finds_the_best_gaussian():
    state, trace = optimum(Quadrature())
    nodes, weights = hermegauss(60)
    K = covariance()
    lower = np.tril_indices(4)

    def negative_elbo(vector):
        m, L = vector[:4], np.zeros((4, 4))
        L[lower] = vector[4:]
        S = L @ L.T
        rate = np.exp(m[:, None] + np.sqrt(np.diag(S))[:, None] * nodes)
        log_p = np.where(Y[:, None] == 1, np.log(-np.expm1(-rate)), -rate) @ weights / weights.sum()
        shift = m - MEAN
        distance = shift @ np.linalg.solve(K, shift) + np.trace(np.linalg.solve(K, S)) - 4
        distance += np.linalg.slogdet(K)[1] - 2 * np.log(np.abs(np.diag(L))).sum()
        return 0.5 * distance - log_p.sum()

    start = np.concatenate([np.full(4, MEAN), np.linalg.cholesky(K)[lower]])
    best = minimize(negative_elbo, start, method="BFGS", options={"gtol": 1e-7})
    L = np.zeros((4, 4))
    L[lower] = best.x[4:]
    # BFGS with differences ends within 1e-5 of the minimum, where the value is flat to 1e-9.
    np.testing.assert_allclose(state.mean[:, 0], best.x[:4], atol=2e-4)
    np.testing.assert_allclose(state.variance[:, 0], np.diag(L @ L.T), atol=2e-4)
    assert trace[-1] == pytest.approx(-best.fun, abs=1e-7)


def test_sites_of_the_expansion_find_the_mode():
    state, _ = optimum(Taylor())
    K, f = covariance(), np.full(4, MEAN)
    for _ in range(30):
        p = 1 / (1 + np.exp(-f))
        hessian = np.linalg.inv(K) + np.diag(p * (1 - p))
        f = f - np.linalg.solve(hessian, np.linalg.solve(K, f - MEAN) - (Y - p))
    np.testing.assert_allclose(state.mean[:, 0], f, atol=1e-6)
    np.testing.assert_allclose(state.variance[:, 0], np.diag(np.linalg.inv(hessian)), atol=1e-6)


@pytest.mark.parametrize("objective", [Quadrature(), Taylor()])
def test_whole_weights_are_repeated_rows(objective):
    often = [0, 0, 1, 2, 2, 2, 3]
    weighted, trace = optimum(objective, weights=np.array([2.0, 1.0, 3.0, 1.0]))
    repeated, its_trace = optimum(objective, X[often], Y[often])
    assert trace[-1] == pytest.approx(its_trace[-1], rel=1e-10)
    np.testing.assert_allclose(weighted.mean[np.array(often)], repeated.mean, atol=1e-5)
    np.testing.assert_allclose(weighted.variance[np.array(often)], repeated.variance, atol=1e-5)


@double_precision
def test_sites_and_hessian_follow_from_the_bound():
    m, v = np.array([[0.3], [-1.1]]), np.array([[0.5], [1.4]])
    objective, y = Quadrature(), jnp.zeros(2)
    # Of y = 0 the bound is -E, E = exp(m + v / 2), with v = s - m^2 in its derivatives.
    E = np.exp(m + v / 2)[:, 0]
    h, w = jax.jit(objective.local_sites)(m, v, y, {})
    np.testing.assert_allclose(h[:, 0], -E * (1 - m[:, 0]), rtol=1e-12)
    np.testing.assert_allclose(w[:, 0], E, rtol=1e-12)
    H = jax.jit(objective.hessian_of_datum)(m, v, y, {})[:, 0, :, 0]
    slope = 1 - m[:, 0]
    by_hand = [[-E * (slope**2 - 1), -0.5 * E * slope], [-0.5 * E * slope, -0.25 * E]]
    np.testing.assert_allclose(H, np.moveaxis(np.array(by_hand), 2, 0), rtol=1e-10)
    assert objective.blocks == ((0,),)
    assert objective.num_latents == 1


@dataclass(frozen=True)
class RobustExpected(Objective):
    """E log p(y | f) of Student-t noise by Gauss-Hermite quadrature: signed precisions, and a parameter."""

    df: float = 4.0
    count: int = 160
    name = "robust"
    title = "a robust objective"
    size = 1
    signed = True

    def local_bound(self, m, v, y, parameters):
        nodes, weights = gauss_hermite(self.count)
        scale = parameters["scale"]
        residual = (y[:, None] - m - jnp.sqrt(v) * nodes) / scale
        constant = jax.scipy.special.gammaln((self.df + 1) / 2) - jax.scipy.special.gammaln(self.df / 2)
        log_p = constant - 0.5 * jnp.log(self.df * jnp.pi) - jnp.log(scale)
        log_p = log_p - 0.5 * (self.df + 1) * jnp.log1p(residual**2 / self.df)
        return log_p @ weights / np.sqrt(2 * np.pi)


ROBUST = RobustExpected()


def data():
    """A smooth function with outliers, at which precisions are negative."""
    rng = np.random.default_rng(4)
    inputs = np.sort(rng.uniform(-2.0, 2.0, (24, 1)), axis=0)
    y = np.sin(2.0 * inputs[:, 0]) + 0.1 * rng.normal(size=24)
    y[[5, 13]] += 2.5, -3.0
    return inputs, y


def robust_model(form=None):
    options = {} if form is None else {"form": form}
    return pgm.Model(pgm.StudentT(pgm.Fixed(4.0), 0.3), pgm.GP(pgm.RBF(1.2, 0.8), mean=0.1, **options))


@cache
def result():
    return pgm.vi(robust_model(), *data(), objective=ROBUST)


@cache
def exact():
    return pgm.gaussian_vi(robust_model(), *data())


def test_vi_maximises_it_with_negative_precisions():
    assert result().objective == "robust"
    assert result().method == "vi"
    assert result().converged
    _, w = ROBUST.local_sites(*map(jnp.asarray, (result().mean, result().variance, data()[1])), {"scale": 0.3})
    assert np.min(w) < -0.1
    # The package's own quadrature has other nodes.
    np.testing.assert_allclose(result().elbo, exact().elbo, atol=1e-5)
    np.testing.assert_allclose((result().mean, result().variance), (exact().mean, exact().variance), atol=1e-4)


def test_callbacks_see_each_iteration():
    recorded = []
    final = pgm.vi(
        robust_model(),
        *data(),
        objective=ROBUST,
        callback=lambda state, info: recorded.append((info, float(state.elbo))),
    )
    infos = [info for info, _ in recorded]
    assert all(info.engine == "vi" and info.elbo == elbo for info, elbo in recorded)
    assert infos[-1].elbo == final.elbo
    assert infos[-1].number == final.num_iterations
    assert np.all(np.diff([info.seconds for info in infos]) > 0)


@pytest.mark.slow
def test_fit_learns_on_it():
    options = {"correct": False, "num_starts": 1}
    robust, expected = (pgm.fit(robust_model(), *data(), objective=name, **options) for name in (ROBUST, "expected"))
    assert robust.objective == "robust"
    np.testing.assert_allclose(robust.elbo, expected.elbo, atol=1e-4)
    for name, value in expected.fit.values.items():
        # The data determine the mean to a few tenths, and the bound is flat to 1e-7 over a thousandth.
        np.testing.assert_allclose(robust.fit.values[name], value, rtol=0.02, atol=1e-3, err_msg=name)


def test_svi_agrees_with_vi():
    model = robust_model(pgm.Inducing(data()[0][::2]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.InducingWarning)
        steps = pgm.svi(model, *data(), objective=ROBUST, batch_size=24, tolerance=1e-3, max_epochs=2000)
        at_once = pgm.vi(model, *data(), objective=ROBUST)
    assert steps.objective == "robust"
    mean, variance = steps.predict_latent(data()[0])
    np.testing.assert_allclose(mean, at_once.mean, atol=0.02)
    np.testing.assert_allclose(variance, at_once.variance, rtol=0.1)


def test_a_checkpoint_of_another_objective_of_its_name_is_refused(tmp_path):
    model, quadrature = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(), mean=0.3, form=pgm.Inducing(X[:3]))), Quadrature(8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.PgmodelsWarning)
        for same in (quadrature, Quadrature(8)):
            pgm.svi(model, X, Y, objective=same, batch_size=2, max_epochs=1, checkpoint=tmp_path)
        with pytest.raises(ValueError, match="another run of svi, which differs in: options"):
            pgm.svi(model, X, Y, objective=Quadrature(16), batch_size=2, max_epochs=1, checkpoint=tmp_path)


def test_corrections_and_diagnoses_follow_from_it():
    robust, expected = pgm.correct(result()), pgm.correct(exact())
    np.testing.assert_allclose(robust.variance, expected.variance, rtol=1e-3)
    np.testing.assert_allclose(robust.mean, expected.mean, atol=1e-4)
    with pytest.raises(ValueError, match="needs a result of the augmented bound"):
        pgm.correct(result(), method="perturbative")
    diagnosis = pgm.diagnose(result(), num_replicates=3, num_draws=500)
    # The objective is E log p(y | f) but for its nodes.
    np.testing.assert_allclose(diagnosis.gap, 0.0, atol=1e-5)
    assert diagnosis.importance.pareto_k == pytest.approx(
        pgm.diagnose(exact(), num_replicates=0, num_draws=500).importance.pareto_k, abs=0.05
    )
    assert str(diagnosis)


@pytest.mark.slow
def test_comparisons_reports_and_files_accept_it(tmp_path):
    corrected = pgm.correct(result())
    draws = pgm.gibbs(robust_model(), *data(), num_samples=200, num_warmup=100, num_chains=2, seed=1)
    table = pgm.compare(gibbs=draws, own=result(), corrected=corrected, expected=exact())
    frame = table.to_dataframe()
    np.testing.assert_allclose(frame.loc["own", "mean_error"], frame.loc["expected", "mean_error"], rtol=0.01)
    table.report(tmp_path / "report.html")
    assert "own" in (tmp_path / "report.html").read_text()
    assert str(result())
    loaded = pgm.load(result().save(tmp_path / "own.npz"), objective=ROBUST)
    np.testing.assert_allclose(pgm.correct(loaded).variance, corrected.variance, rtol=1e-9)
    bare = pgm.load(tmp_path / "own.npz")
    # What is printed needs no objective.
    assert "ELBO" in str(bare)
    assert repr(bare).startswith("<Approximation Variational inference of")
    np.testing.assert_array_equal(bare.predict_latent(data()[0])[0], loaded.predict_latent(data()[0])[0])
    with pytest.raises(ValueError, match=r"load it with pgm.load\(path, objective=...\)"):
        pgm.correct(bare)
    with pytest.raises(ValueError, match="is 'robust', but the result in the file has the objective 'expected'"):
        pgm.load(exact().save(tmp_path / "other.npz"), objective=ROBUST)


@pytest.mark.parametrize("objective", ["laplace", 3, RobustExpected])
def test_what_is_no_objective_is_refused(objective):
    with pytest.raises(ValueError, match=r"objective must be one of 'augmented', 'expected', .*, or an instance"):
        pgm.vi(robust_model(), *data(), objective=objective)


def test_its_number_of_latents_is_checked():
    model = pgm.Model(pgm.HeteroscedasticGaussian(1.0), pgm.GP(pgm.RBF(), size=2))
    with pytest.raises(ValueError, match="objective 'robust' is for 1 latents; the model has 2"):
        pgm.vi(model, *data(), objective=ROBUST)
