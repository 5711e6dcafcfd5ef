"""The engines, with a law that each must satisfy on every likelihood: add a new engine as a row of ENGINES.

``test_engines.py`` crosses the rows with the likelihoods of ``registry.py``. Each law runs its engine on a few data,
with unequal kernels and means of the latents, and compares with independent references (``brute_force.py``).
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.util import log_density
from scipy import stats

import pgmodels as pgm
from pgmodels.inference.bound import MarginalBound
from pgmodels.inference.cavi import CAVI
from pgmodels.inference.fit import FitWarning
from pgmodels.inference.linear_response import halves, linear_response
from pgmodels.inference.loop import maximise
from pgmodels.inference.objectives import expected_objective
from pgmodels.inference.prepare import start_state, variational_problem
from pgmodels.inference.problem import problem_of
from pgmodels.inference.vi import optimise
from pgmodels.model import Data
from pgmodels.parameters.vector import trainable
from tests.brute_force import best_gaussian, fixed_point, hessians, response_by_differences, second_order
from tests.programs import run
from tests.referees import rbf
from tests.registry import Case

N = 12  # rows of data in most tests, so that compiled programs are shared


class Engine(NamedTuple):
    """``holds(case)`` asserts the law; ``takes(case)`` is whether it applies to the case."""

    name: str
    holds: Callable[[Case], None]
    takes: Callable[[Case], bool]


def every(case):
    return True


def augmented(case):
    return case.bound is not None


def apart(case):
    """No factor combines latents, and no two multiply."""
    return augmented(case) and case.design is None and not case.multiply


def derived_bound(case):
    """The local bound is the printed one."""
    _, y = case.data(N, seed=3)
    rng = np.random.default_rng(8)
    shape = case.matrix(y).shape[:2]
    m, v = rng.normal(0.4, 1.3, shape), rng.gamma(2.0, 0.6, shape)
    model = case.model()
    with jax.enable_x64(True):
        got = run(model.augmentation.local_bound, m, v, y, model.parameters)
        # Terms of size up to 100 cancel, log-gammas among them.
        np.testing.assert_allclose(got, case.bound(m, v, y), rtol=1e-10, atol=1e-11)


def cavi(case):
    """The ELBO never falls, and its fixed point is the maximum over every Gaussian of all latents."""
    X, y = case.data(N, seed=3)
    # 1e-15 is below the spacing of doubles at the ELBO: iterate to the last digit.
    result = pgm.cavi(case.unequal(), X, y, tolerance=1e-15, max_iterations=5000)
    # Rounding of a sum of some hundred terms of size one.
    assert np.all(np.diff(result.elbo_trace) > -1e-11 * (1 + abs(result.elbo)))
    with jax.enable_x64(True):
        mean, variance, value = best_gaussian(case, *prior_of(result.model, X), y, result)
    np.testing.assert_allclose(result.elbo, value, rtol=1e-8)
    np.testing.assert_allclose((result.mean, result.variance), (mean, variance), atol=1e-6)


def prior_of(model, X):
    """Roots (latents, n, n) of the prior covariances of RBF kernels, and the means."""
    values = [(gp.kernel.variance.value, gp.kernel.lengthscale.value) for gp in model.gps]
    roots = [np.linalg.cholesky(rbf(X, float(variance), float(lengthscale))) for variance, lengthscale in values]
    return np.stack(roots), np.array([float(gp.mean.value) for gp in model.gps])


def gaussian_vi(case):
    """The bound never falls, and is above that of CAVI."""
    X, y = case.data(N, seed=3)
    model = case.unequal()
    result = pgm.gaussian_vi(model, X, y)
    assert result.converged
    assert np.diff(result.elbo_trace).min(initial=0.0) > -1e-11 * (1 + abs(result.elbo))
    if augmented(case):
        assert result.elbo >= pgm.cavi(model, X, y).elbo - 1e-8


def response_of_cavi(case):
    """The corrected covariance is the derivative of the optimum in a tilt."""
    X, y = case.data(N, seed=3)
    with jax.enable_x64(True):
        model = case.unequal().resolve(X)
        problem = problem_of(model, Data(X, y))
        check_response(problem, maximise(CAVI.step, problem, CAVI.init(problem), 1e-12, 3000).state.sites)


def response_of_gaussian_vi(case):
    """The same of the variational Gaussian."""
    X, y = case.data(N, seed=3)
    with jax.enable_x64(True):
        model, data = case.unequal().resolve(X), Data(X, y)
        problem = variational_problem(model, data, expected_objective(model), model.prior(X))
        problem, optimum = optimise(problem, start_state(model, data, problem), 1e-12, 300)
        check_response(problem, optimum.state.sites)


def check_response(problem, sites):
    sites = fixed_point(problem, sites)[2]
    predictors = problem.objective.predictors
    Phi = None if predictors is None else predictors.matrix(problem.y, problem.parameters)
    posterior = run(problem.condition, sites)
    response = run(linear_response, problem, posterior)
    R, U = (np.asarray(part) for part in run(halves, posterior, Phi))
    turned = np.tensordot(R, U, axes=(1, 0))
    covariance = np.tensordot(U, U, axes=(0, 0)) + np.einsum("dip,de,ejq->ipjq", turned, response.covariance, turned)
    for entry in ((0, 0), (7, problem.objective.size - 1)):
        np.testing.assert_allclose(covariance[entry], response_by_differences(problem, sites, entry), atol=1e-6)


def perturbative(case):
    """The second-order expansion at the data and at a new point, with H by differences and moments by quadrature."""
    X, y = case.data(5, seed=2)
    X_new = np.array([[0.3, -0.4]])
    with warnings.catch_warnings():
        # Five data may lack a class, and the accuracy of the expansion is not tested here.
        warnings.filterwarnings("ignore", "y has no observation of class")
        warnings.simplefilter("ignore", pgm.CorrectionWarning)
        vi = pgm.cavi(case.model(variance=1.0), X, y, tolerance=1e-12)
        fixed = pgm.correct(vi, method="perturbative")
        new_mean, new_variance = fixed.predict_latent(X_new)
    start_mean, start_variance = vi.predict_latent(X_new)
    H = hessians(vi)
    both = rbf(np.concatenate([X, X_new]), 1.0)
    K, k = both[:5, :5], both[5, :5]
    for latent in range(case.num_latents):
        # Cov_q(f, f) = (K⁻¹ + W)⁻¹, and Cov_q(f_*, f) = k_* K⁻¹ Cov_q(f, f), with explicit inverses.
        C = np.linalg.inv(np.linalg.inv(K) + np.diag(vi.sites.precision[:, latent]))
        for point in (0, 3):
            expected = second_order(vi, vi.mean[point, latent], C[point, point], C[point], H, latent)
            got = fixed.mean[point, latent], fixed.variance[point, latent]
            # 1e-6 is the truncation error of the differences times derivatives of size one.
            np.testing.assert_allclose(got, expected, atol=1e-6)
        cross = k @ np.linalg.solve(K, C)
        expected = second_order(vi, start_mean[0, latent], start_variance[0, latent], cross, H, latent)
        np.testing.assert_allclose((new_mean[0, latent], new_variance[0, latent]), expected, atol=1e-6)


def fit(case):
    """The envelope gradient against central differences of the ELBO at its inner optimum."""
    # The inner loop stops at a relative change of 1e-11, which is divided by 2e-4.
    check_slope(case, lambda model: (), rtol=1e-3, atol=2e-4)


def fit_of_gaussian_vi(case):
    """The same for the variational Gaussian, whose bound equals that of its engine."""
    # With several latents the tolerance of the inner loop leaves an error of 1e-9 in some ten nats.
    value = check_slope(case, lambda model: (expected_objective(model),), rtol=1e-7, atol=2e-5)
    np.testing.assert_allclose(value, pgm.gaussian_vi(case.unequal(), *case.data(N, seed=3), tolerance=1e-12).elbo,
                               rtol=1e-6)  # fmt: skip


def check_slope(case, objective, rtol, atol):
    """At one point; returns the bound at the model's hyperparameters."""
    X, y = case.data(N, seed=3)
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        model = case.unequal().resolve(X)
        bound = MarginalBound.of(trainable(model), Data(X, y), *objective(model))
        value = -bound.at(bound.learnable.start()).value
        near = bound.at(bound.learnable.start() + 0.05)
        start, slope = near.vector, near.slope
        for i, step in enumerate(1e-4 * np.eye(len(start))):
            difference = (bound.at(start + step, near).value - bound.at(start - step, near).value) / 2e-4
            np.testing.assert_allclose(slope[i], difference, rtol=rtol, atol=atol)
    return value


def gibbs(case):
    """A seed repeats the draws, and their log likelihood is that of the registry's density."""
    X, y = case.data(6, seed=3)
    options = {"num_samples": 3, "num_warmup": 1, "num_chains": 2, "seed": 9}
    one, again = (pgm.gibbs(case.model(), X, y, **options) for _ in range(2))
    assert one.latents.shape == (2, 3, 6, case.num_latents)
    assert np.isfinite(one.latents).all()
    assert np.array_equal(one.latents, again.latents)
    with jax.enable_x64(True):
        expected = [[float(case.log_density(jnp.asarray(y), f).sum()) for f in chain] for chain in one.latents]
    # Rounding differs between the two evaluations of the density.
    np.testing.assert_allclose(one.log_likelihood_trace, expected, rtol=1e-9, atol=1e-9)


def nuts(case):
    """NumPyro's target density is the formula times the prior."""
    X, y = case.data(6, seed=2)
    v = np.random.default_rng(1).normal(size=(6, case.num_latents))
    with jax.enable_x64(True):
        program = pgm.to_numpyro(case.model(), X, y)

        @jax.jit
        def density_and_latents(v):
            log_p, trace = log_density(program, (), {}, {"whitened_0": v})
            return log_p, trace["f"]["value"]

        log_p, f = density_and_latents(v)
        expected = float(np.sum(case.log_density(y, f)))
    np.testing.assert_allclose(float(log_p), expected + stats.norm.logpdf(v).sum(), rtol=1e-9)


def svi(case):
    """Steps on all rows are sweeps of CAVI; latents that multiply are updated in turn, to the same end."""
    X, y = case.data(24, seed=3)
    model = case.unequal(form=pgm.Inducing(X[:8]))
    if case.multiply:
        exact = pgm.cavi(model, X, y, tolerance=1e-12)
        assert pgm.svi(model, X, y, max_epochs=300, tolerance=1e-8).elbo == pytest.approx(exact.elbo, abs=1e-6)
        return
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        result = pgm.svi(model, X, y, max_epochs=3, tolerance=1e-12)
    # With Gaussian noise one step is exact.
    assert result.converged == (case.name == "gaussian")
    assert result.converged or any("after 3 passes" in str(each.message) for each in raised)
    with jax.enable_x64(True):
        problem = problem_of(model.resolve(X), Data(X, y))
        state = CAVI.init(problem)
        # The start, three steps and the final one: plain sweeps, without acceleration.
        for _ in range(5):
            state = run(sweep, problem, state)
    assert result.elbo == pytest.approx(float(state.elbo), abs=1e-9)
    assert result.method == "svi"


def sweep(problem, state):
    return CAVI.state_of(problem, problem.sites(state.mean, state.variance))


ENGINES = (
    Engine("derived bound", derived_bound, augmented),
    Engine("cavi", cavi, augmented),
    Engine("gaussian_vi", gaussian_vi, every),
    Engine("linear response of cavi", response_of_cavi, augmented),
    Engine("linear response of gaussian_vi", response_of_gaussian_vi, every),
    Engine("perturbative correction", perturbative, apart),
    Engine("fit", fit, augmented),
    Engine("fit of gaussian_vi", fit_of_gaussian_vi, every),
    Engine("gibbs", gibbs, augmented),
    Engine("nuts", nuts, every),
    Engine("svi", svi, augmented),
)
