"""Kinks of log densities however they are written, and corrected variances that no data can give."""

from dataclasses import replace
from functools import cache

import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from pgmodels.inference.objectives import expected_objective
from pgmodels.runtime.precision import double_precision
from tests.referees import rbf

X = np.linspace(0.0, 3.0, 7)[:, None]
Y = np.sin(2.0 * X[:, 0]) + 0.1 * np.array([0.3, -1.2, 0.4, 2.0, -0.1, -0.7, 0.9])
SCALE = 0.05


def laplace(root):
    return pgm.likelihood(support=pgm.Real())(lambda y, f, scale: pgm.exp(-root(y, f) / scale) / (2 * scale))


# The same absolute value: by the algebra of powers, and as the root of a square that is not written as one.
ROOTS = {
    "square": lambda y, f: pgm.sqrt((y - f) ** 2),
    "scaled": lambda y, f: pgm.sqrt((y - f) ** 2 / 4) * 2,
    "fourth": lambda y, f: ((y - f) ** 4) ** 0.25,
    "product": lambda y, f: pgm.sqrt(4 * (y - f) * (y - f)) / 2,
    "expanded": lambda y, f: pgm.sqrt(y**2 - 2 * y * f + f**2),
}


def model(likelihood):
    return pgm.Model(likelihood(scale=pgm.Fixed(SCALE)), pgm.GP(pgm.RBF(1.0, 0.7)))


@cache
def with_abs():
    return pgm.correct(pgm.gaussian_vi(model(laplace(lambda y, f: abs(y - f))), X, Y))


@cache
def exact_variance():
    """By elliptical slice sampling (Murray, Adams and MacKay 2010), and its standard error."""
    rng, root = np.random.default_rng(0), np.linalg.cholesky(rbf(X, 1.0, 0.7) + 1e-10 * np.eye(len(X)))
    chains, draws = 400, []
    f = Y + 0.05 * rng.standard_normal((chains, len(X)))

    def log_likelihood(f):
        return -np.abs(Y - f).sum(axis=1) / SCALE

    for sweep in range(3000):
        other, height = rng.standard_normal(f.shape) @ root.T, log_likelihood(f) + np.log(rng.random(chains))
        angle = rng.uniform(0.0, 2.0 * np.pi, chains)
        low, high, moved, going = angle - 2.0 * np.pi, angle.copy(), f.copy(), np.ones(chains, bool)
        while going.any():
            trial = np.cos(angle)[:, None] * f + np.sin(angle)[:, None] * other
            done = going & (log_likelihood(trial) > height)
            moved[done] = trial[done]
            going &= ~done
            low, high = np.where(angle < 0, angle, low), np.where(angle > 0, angle, high)
            angle = rng.uniform(low, high)
        f = moved
        if sweep >= 500 and sweep % 5 == 0:
            draws.append(f)
    each = np.var(np.array(draws), axis=0)
    return each.mean(axis=0), each.std(axis=0) / np.sqrt(chains)


@pytest.mark.parametrize("name", ROOTS)
def test_an_even_root_is_an_absolute_value(name):
    """The same formula, or the same places of its kinks; 100 times too wide before."""
    formula = laplace(ROOTS[name])(scale=pgm.Fixed(SCALE)).formula(1)
    written = laplace(lambda y, f: abs(y - f))(scale=pgm.Fixed(SCALE)).formula(1)
    if name in ("square", "scaled", "fourth"):
        assert formula.key == written.key
    objective = expected_objective(model(laplace(ROOTS[name])))
    assert len(objective.kinks) == 1


def test_powers_of_even_powers():
    """Identities of real numbers, at numbers of either sign."""
    from pgmodels.likelihoods.expression import Environment, Latent

    z = Latent(0, 1)
    values = np.array([-1.7, -0.2, 0.4, 2.5])[:, None]
    for inner in (2, 4, -2):
        for outer in (0.5, 0.25, 1.5, -0.5, 3):
            got = ((z**inner) ** outer).evaluate(Environment(np.zeros(4), values, {}))
            np.testing.assert_allclose(got, (values**inner) ** outer, rtol=1e-5)
    assert ((z**2) ** 0.5).text() == abs(z).text()


@double_precision
def test_a_variance_above_the_priors_is_an_error_where_the_likelihood_is_log_concave():
    """A rule that did not know of a kink gave 100 times the variance, without a word."""
    from pgmodels.inference.correct import check_against_prior

    prior = np.ones((len(X), 1))
    wide = np.where(np.arange(len(X)) == 4, 1.3, 0.01)[:, None]
    marginals = Y[:, None] + 0.02, np.full((len(X), 1), 0.01)
    concave = model(laplace(lambda y, f: abs(y - f)))
    rounded = np.where(wide > 1.0, 1.0 + 1e-6, wide)
    check_against_prior("correct", concave, Y, prior, rounded, lambda: marginals)
    with pytest.raises(
        ValueError, match=r"correct: 1 of 7 corrected variances .* \(first in row 4, 1\.3 where the.* is 1\)"
    ):
        check_against_prior("correct", concave, Y, prior, wide, lambda: marginals)
    heavy = pgm.Model(pgm.StudentT(3.0, SCALE), pgm.GP(pgm.RBF(1.0, 0.7)))
    far = marginals[0] + 3.0, marginals[1]
    with pytest.warns(pgm.CorrectionWarning, match="not log-concave"):
        check_against_prior("correct", heavy, Y, prior, wide, lambda: far)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "columns", "concave"),
    [
        (pgm.Bernoulli(), 1, True),
        (pgm.Laplace(0.3), 1, True),
        (pgm.StudentT(3.0, 0.5), 1, False),
        (pgm.likelihood(lambda y, f: pgm.exp(abs(f) - f**2))(), 1, False),
        (pgm.likelihood(lambda y, f: pgm.exp(f[y]) / pgm.sum(pgm.exp(f)))(), 3, True),
        (pgm.HeteroscedasticGaussian(1.0), 2, False),
    ],
    ids=["logit", "laplace", "student", "kink_upwards", "softmax", "heteroscedastic"],
)
def test_which_log_densities_are_concave(likelihood, columns, concave):
    import jax
    import jax.numpy as jnp

    objective = expected_objective(pgm.Model(likelihood, pgm.GP(pgm.RBF(1.0, 1.0), size=columns)))
    m = np.linspace(-1.3, 0.9, 4 * columns).reshape(4, columns)
    with jax.enable_x64(True):
        arguments = map(jnp.asarray, (m, 0.6 * np.ones_like(m), np.array([1.0, 0.0, 1.0, 1.0])))
        parameters = {name: value.value for name, value in likelihood.parameters.items()}
        assert bool(np.all(objective.is_concave(*arguments, parameters))) == concave


@pytest.mark.slow
@pytest.mark.parametrize("name", ROOTS)
def test_corrected_variances_are_those_of_the_absolute_value(name):
    corrected = pgm.correct(pgm.gaussian_vi(model(laplace(ROOTS[name])), X, Y))
    np.testing.assert_allclose(corrected.variance, with_abs().variance, rtol=1e-6)
    exact, error = exact_variance()
    assert (error < 0.05 * exact).all()
    np.testing.assert_allclose(corrected.variance[:, 0], exact, rtol=0.35)


@pytest.mark.slow
def test_integrate_takes_an_even_root_for_what_it_is():
    results = []
    for root in (ROOTS["square"], ROOTS["expanded"], lambda y, f: abs(y - f)):
        kernel = pgm.RBF(1.0, dist.LogNormal(-0.3, 0.3))
        made = pgm.Model(laplace(root)(scale=pgm.Fixed(SCALE)), pgm.GP(kernel))
        result = pgm.integrate(made, X, Y, progress=False)
        results.append((result.log_evidence, *result.variance[:, 0]))
    np.testing.assert_allclose(results[0], results[2], rtol=1e-6)
    np.testing.assert_allclose(results[1], results[2], rtol=1e-3)


def test_correct_itself_refuses(monkeypatch):
    """A correction that gives one datum more variance than the prior has."""
    from pgmodels.inference import correct as correction

    corrected = with_abs()
    variance = corrected.variance.copy()
    variance[3] = 1.2
    monkeypatch.setitem(correction._METHODS, "linear_response", lambda *_: replace(corrected, variance=variance))
    with pytest.raises(
        ValueError, match=r"1 of \d+ .*above the prior's \(first in row 3.*log-concave likelihood allows"
    ):
        pgm.correct(corrected.uncorrected)
