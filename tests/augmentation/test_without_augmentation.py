"""Formulas without an augmentation: engines that need none work, the others name them in their error."""

from functools import partial

import jax
import numpy as np
import pytest
from numpyro.infer.util import log_density
from scipy import stats

import pgmodels as pgm

RNG = np.random.default_rng(4)
X = RNG.uniform(-1.0, 1.0, (8, 1))


@pgm.likelihood(support=pgm.Counts(), mean=lambda y, f: pgm.exp(f), variance=lambda y, f: pgm.exp(f))
def poisson(y, f):
    return pgm.exp(y * f - pgm.exp(f)) / pgm.gamma(y + 1)


@pgm.likelihood
def weibull(y, f, shape=pgm.Parameter(1.5, positive=True)):
    return shape * y ** (shape - 1) * pgm.exp(-shape * f - (y / pgm.exp(f)) ** shape)


@pgm.likelihood
def softmax(y, f):
    return pgm.exp(f[y]) / pgm.sum(pgm.exp(f))


def gp(size=1):
    return pgm.GP(pgm.RBF(1.2, 0.8), mean=0.2, size=size)


def poisson_mass(y, f):
    return stats.poisson.logpmf(y, np.exp(f[:, 0]))


def weibull_density(y, f):
    return stats.weibull_min.logpdf(y, 1.5, scale=np.exp(f[:, 0]))


def softmax_mass(y, f):
    return f[np.arange(len(y)), y.astype(int)] - np.log(np.exp(f).sum(axis=1))


CASES = {
    "poisson": (poisson, 1, RNG.poisson(2.0, 8).astype(float), poisson_mass),
    "weibull": (weibull, 1, RNG.weibull(1.5, 8), weibull_density),
    "softmax": (softmax, 3, np.array([0.0, 1, 2, 0, 1, 2, 0, 1]), softmax_mass),
}


@pytest.mark.parametrize("name", CASES)
def test_the_model_function_is_the_formula(name):
    lik, size, y, density = CASES[name]
    model = pgm.Model(lik(), gp(size))
    assert not model.is_augmentable
    v = np.random.default_rng(1).normal(size=(8, size))
    with jax.enable_x64(True):
        log_p, trace = log_density(pgm.to_numpyro(model, X, y), (), {}, {"whitened_0": v})
        f = np.asarray(trace["f"]["value"])
    np.testing.assert_allclose(float(log_p), density(y, f).sum() + stats.norm.logpdf(v).sum(), rtol=1e-9)
    assert "<code>p(y | f) = " in model._repr_html_()


@pytest.mark.slow
def test_nuts_samples_it_and_results_are_compared(tmp_path):
    lik, _, y, _ = CASES["poisson"]
    # With three draws the report has no figures of chains, whichever sampler made them.
    draws = pgm.nuts(pgm.Model(lik(), gp()), X, y, num_samples=3, num_warmup=30, num_chains=2)
    comparison = pgm.compare(one=draws, other=draws, X=X, y=y)
    assert np.isfinite(draws.predict(X).log_density(y)).all()
    comparison.report(tmp_path / "report.html")
    written = (tmp_path / "report.html").read_text()
    assert "<math" in written
    assert "too few draws for standard errors" in written


@pytest.mark.parametrize("engine", [pgm.cavi, pgm.gibbs, partial(pgm.fit, objective="augmented")])
def test_engines_that_augment_name_those_that_do_not(engine):
    lik, _, y, _ = CASES["poisson"]
    with pytest.raises(pgm.NoAugmentationError, match=r"pgm\.nuts and pgm\.to_numpyro accept any formula"):
        engine(pgm.Model(lik(), gp()), X, y)


def test_observations_are_checked_by_the_density():
    lik, _, y, _ = CASES["weibull"]
    with pytest.raises(ValueError, match=r"its density .* at f = 0 has no finite logarithm in row 3"):
        pgm.to_numpyro(pgm.Model(lik(), gp()), X, np.where(np.arange(8) == 3, -1.0, y))
