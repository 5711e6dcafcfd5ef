"""Row weights of a problem: a weight of k is a row k times, and any weight is the formula to its power."""

import jax
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference.cavi import positive
from pgmodels.inference.objectives import expected_objective
from pgmodels.inference.problem import problem_of
from pgmodels.inference.vi import variational_problem
from pgmodels.model import Data, with_powers
from pgmodels.priors.base import pad_rows
from tests.covering import some
from tests.programs import run

RNG = np.random.default_rng(8)
N = 9
X = RNG.uniform(-2.0, 2.0, (N, 1))
LABELS, CLASSES, REAL = (X[:, 0] > 0.1) * 1.0, np.arange(N) % 3.0, np.sin(2.0 * X[:, 0])
WHOLE = np.array([1.0, 3.0, 2.0, 1.0, 4.0, 1.0, 2.0, 1.0, 5.0])
OFTEN = np.repeat(np.arange(N), WHOLE.astype(int))
FRACTIONS = RNG.uniform(0.2, 2.5, N)


@pgm.likelihood(support=pgm.Binary())
def noisy(y, f):
    return 0.05 + 0.9 * pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y)


@pgm.likelihood(support=pgm.Binary(), num_latents=2)
def added(y, f):
    return pgm.sigmoid(f[0] + 0.7 * f[1]) ** y * pgm.sigmoid(-f[0] - 0.7 * f[1]) ** (1 - y)


def gp(size=1):
    return pgm.GP(pgm.RBF(1.7, 0.8), mean=0.3, size=size)


MODELS = {
    "Bernoulli": (pgm.Model(pgm.Bernoulli(), gp()), LABELS),
    "StudentT": (pgm.Model(pgm.StudentT(4.0, 0.5), gp()), REAL),
    "mixture": (pgm.Model(noisy(), gp()), LABELS),
    "LogisticSoftmax": (pgm.Model(pgm.LogisticSoftmax(3), gp(3)), CLASSES),
    "added": (pgm.Model(added(), [gp(), gp()]), LABELS),
}


def augmented(model, data):
    return problem_of(model, data)


def expected(model, data):
    return variational_problem(model, data, expected_objective(model), model.prior(data.X))


CASES = [(name, problem) for name in MODELS for problem in (augmented, expected)]
DEFAULT = [("mixture", augmented), ("LogisticSoftmax", expected)]


def marginals_of(problem):
    """Some marginals at the data, unlike those of the prior."""
    mean, variance = (np.asarray(part)[:N] for part in run(problem.marginals))
    return mean + 0.4 * np.cos(np.arange(N))[:, None], 0.6 * variance


def evaluated(problem, mean, variance, rows):
    """The bound and sites at marginals of some rows, and what the sites imply: moments at the rows and the ELBO."""
    mean, variance = (pad_rows(part[rows], len(problem.y)) for part in (mean, variance))
    sites = run(problem.sites, mean, variance)
    bound, both = run(problem.local_bound, mean, variance), run(problem.elbo_and_sites, mean, variance, 0.0, sites)
    assert both[0].value == pytest.approx(float(bound), rel=1e-12)
    for one, other in zip(both[1], sites, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
    proper = run(positive, sites, mean)
    m, v, _, divergence = run(problem.moments, proper)
    elbo = run(problem.elbo, m, v, divergence, proper)
    return bound, [np.asarray(part)[: len(rows)] for part in (*sites, m, v)], elbo


@pytest.mark.parametrize(("name", "problem_for"), some(CASES, *DEFAULT))
def test_whole_weights_are_repeated_rows(name, problem_for):
    model, y = MODELS[name]
    with jax.enable_x64(True):
        weighted = problem_for(model, Data(X, y, weights=WHOLE))
        repeated = problem_for(model, Data(X[OFTEN], y[OFTEN]))
        marginals = marginals_of(weighted)
        bound, (h, w, m, v), elbo = evaluated(weighted, *marginals, np.arange(N))
        its_bound, (its_h, its_w, its_m, its_v), its_elbo = evaluated(repeated, *marginals, OFTEN)
    assert float(bound) == pytest.approx(float(its_bound), rel=1e-12)
    for ours, each in ((h, its_h), (w, its_w)):
        total = np.zeros_like(ours)
        np.add.at(total, OFTEN, each)
        np.testing.assert_allclose(ours, total, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(m[OFTEN], its_m, atol=1e-9)
    np.testing.assert_allclose(v[OFTEN], its_v, atol=1e-9)
    assert float(elbo.value) == pytest.approx(float(its_elbo.value), rel=1e-10)


@pytest.mark.parametrize(("name", "problem_for"), some(CASES, ("StudentT", augmented), ("added", expected)))
def test_a_weight_is_the_power_of_the_formula(name, problem_for):
    model, y = MODELS[name]
    data = Data(X, y, weights=FRACTIONS)
    with jax.enable_x64(True):
        weighted, power = problem_for(model, data), problem_for(*with_powers(model, data))
        assert weighted.coupled == power.coupled
        marginals = marginals_of(weighted)
        bound, arrays, elbo = evaluated(weighted, *marginals, np.arange(N))
        its_bound, its_arrays, its_elbo = evaluated(power, *marginals, np.arange(N))
    assert float(bound) == pytest.approx(float(its_bound), rel=1e-12)
    for one, other in zip(arrays, its_arrays, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
    assert float(elbo.value) == pytest.approx(float(its_elbo.value), rel=1e-11)
    assert float(elbo.rounding) == pytest.approx(float(its_elbo.rounding), rel=1e-9)
