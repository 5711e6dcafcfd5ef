"""The estimate of how much too small CAVI's variances are, against exact posteriors by quadrature."""

import warnings
from contextlib import nullcontext

import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.inference.objectives import objective_of
from pgmodels.inference.vi import variance_ratio
from pgmodels.objectives.expected import MeanField, Quadrature
from pgmodels.results.gaussian import CorrectionWarning

# Elsewhere the warning is ignored: tests of other things have rare events and few coordinates.
pytestmark = pytest.mark.filterwarnings("error:.*the variances.* are estimated to be")

X = np.zeros((1000, 1))


def shared(likelihood, size=1):
    """All rows have the same latents, each with a prior variance of 4."""
    return pgm.Model(likelihood, pgm.GP(pgm.Constant(pgm.Fixed(4.0)), mean=pgm.Fixed(0.0), size=size))


def first(ones):
    return (np.arange(len(X)) < ones).astype(int)


def quietly(call, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CorrectionWarning)
        return call(*args, **kwargs)


def variances(logs, *values):
    """Those of functions on a grid, given the log density there."""
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    return np.array([np.sum(weights * f**2) - np.sum(weights * f) ** 2 for f in values])


def binomial(f, ones, trials):
    return ones * f - trials * np.logaddexp(0.0, f)


def of_a_level(ones):
    f = np.linspace(-20.0, 20.0, 20_001)
    return variances(binomial(f, ones, len(X)) - f**2 / 8.0, f)


# Rare ones, less rare and frequent.
@pytest.mark.parametrize(("ones", "narrow"), [(5, True), (50, True), (300, False)])
def test_a_shared_level(ones, narrow):
    # Warnings are errors where none is expected.
    with (
        pytest.warns(CorrectionWarning, match="^cavi: the variances.* are estimated to be")
        if narrow
        else nullcontext() as caught
    ):
        result = pgm.cavi(shared(pgm.Bernoulli()), X, first(ones))
    assert not narrow or len(caught) == 1
    ratio = variance_ratio(result)
    # The posterior of 5 ones is skewed, with a variance a tenth above what the curvature says.
    np.testing.assert_allclose(ratio, np.full_like(ratio, result.variance[0] / of_a_level(ones)), rtol=0.12)
    assert bool(np.all(ratio < 0.5)) is narrow


def test_a_slope_row_by_row():
    x, ones = np.linspace(-2.0, 2.0, 7), np.array([0, 1, 5, 40, 90, 118, 120])
    kernel = pgm.Linear(pgm.Fixed(25.0)) + pgm.Constant(pgm.Fixed(25.0))
    model = pgm.Model(pgm.Binomial(), pgm.GP(kernel, mean=pgm.Fixed(0.0)))
    result = quietly(pgm.cavi, model, x[:, None], np.column_stack([ones, np.full(7, 120)]))
    a, b = np.meshgrid(np.linspace(-4.0, 4.0, 401), np.linspace(0.0, 8.0, 401), indexing="ij")
    f = [a + b * place for place in x]
    logs = sum(binomial(margin, count, 120) for margin, count in zip(f, ones, strict=True)) - (a**2 + b**2) / 50.0
    ratio, exact = variance_ratio(result)[:, 0], result.variance[:, 0] / variances(logs, *f)
    assert exact.min() < 0.15 < 0.35 < exact.max()
    np.testing.assert_allclose(ratio, exact, rtol=0.03)


@pytest.mark.slow
def test_several_latents_have_at_least_the_right_ratio():
    counts = (2, 30, 68)
    result = quietly(pgm.cavi, shared(pgm.LogisticSoftmax(3), size=3), X[:100], np.repeat(np.arange(3), counts))
    g = np.linspace(-14.0, 10.0, 100)
    f = np.meshgrid(g, g, g, indexing="ij")
    each = sum(count * -np.logaddexp(0.0, -latent) - latent**2 / 8.0 for count, latent in zip(counts, f, strict=True))
    exact = result.variance[0] / variances(each - 100 * np.log(sum(1 / (1 + np.exp(-latent)) for latent in f)), *f)
    ratio = variance_ratio(result)[0]
    assert np.all((exact < ratio) & (ratio < 0.5))


@pytest.mark.slow
def test_each_engine_says_so_once_and_in_its_own_name():
    y = first(5)
    rare = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Constant(4.0), form=pgm.Inducing(X[:1])))
    for name, call in (
        ("cavi", lambda: pgm.cavi(rare.fixed(), X, y)),
        ("fit", lambda: pgm.fit(rare.fixed(), X, y, objective="augmented", correct=False)),
        ("svi", lambda: pgm.svi(rare.fixed(), X, y, batch_size=1000)),
    ):
        with pytest.warns(
            CorrectionWarning, match=rf"^{name}: .* variances are estimated to be 0\.066 times"
        ) as caught:
            call()
        assert len(caught) == 1
        assert caught[0].filename == __file__


@pytest.mark.slow
def test_nothing_is_said_where_there_is_nothing_to_correct():
    # Warnings are errors: of engines that begin at CAVI's sites, and of an exact bound.
    pgm.gibbs(shared(pgm.Bernoulli()), X, first(5), num_samples=2, num_warmup=0, num_chains=1)
    exact = pgm.cavi(shared(pgm.Gaussian(0.5)), X[:3], [0.1, 0.2, 0.4])
    np.testing.assert_array_equal(variance_ratio(exact), np.ones((3, 1)))
    pgm.fit(shared(pgm.Bernoulli()), X, first(5), objective="augmented")
    # Learned as by default, variances are right before they are corrected.
    result = pgm.fit(shared(pgm.Bernoulli()), X, first(5), correct=False)
    assert "learned on the expected log density" in " ".join(str(result).split())
    np.testing.assert_allclose(result.variance[0], of_a_level(5), rtol=0.08)
    np.testing.assert_array_equal(variance_ratio(result), np.ones((1000, 1)))


@pgm.likelihood
def two_effects(y, f):
    return pgm.sigmoid(f[0] + y[1] * f[1]) ** y[0] * pgm.sigmoid(-f[0] - y[1] * f[1]) ** (1 - y[0])


@pgm.likelihood
def counts(y, f):
    return pgm.exp(y * f - pgm.exp(f))


@pytest.mark.parametrize(
    ("likelihood", "size", "learned_on"),
    [
        (pgm.Bernoulli(), 1, Quadrature),
        (two_effects(), 2, Quadrature),
        (counts(), 1, Quadrature),
        (pgm.Gaussian(1.0), 1, Augmentation),
        (pgm.LogisticSoftmax(3), 3, MeanField),
        (pgm.Softmax(3), 3, MeanField),
        (pgm.HeteroscedasticGaussian(1.0), 2, MeanField),
    ],
    ids=["one latent", "one of two", "no augmentation", "exact bound", "three latents", "softmax", "two latents"],
)
def test_the_bound_that_is_learned_on(likelihood, size, learned_on):
    model = pgm.Model(likelihood, pgm.GP(pgm.RBF(), size=size))
    assert isinstance(objective_of(model, "auto"), learned_on)
