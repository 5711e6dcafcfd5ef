"""Draws before data against moments by quadrature, laws in closed form, and what belongs together in a draw."""

import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import stats
from scipy.special import expit

import pgmodels as pgm
from tests.own_likelihoods import graded, undeclared

X = np.array([[0.0, 1.0], [0.4, -0.5], [0.0, 1.0]])
DRAWS = 2000
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def means_agree(values, expected, deviation):
    """Means of draws (draws, ...) are those expected, within five standard errors."""
    return (np.abs(values.mean(axis=0) - expected) < 5 * deviation / np.sqrt(len(values))).all()


def test_draws_of_a_model_that_holds_its_values():
    K = np.asarray(pgm.RBF(1.7, [0.5, 1.5])(X, X))
    model = pgm.Model(pgm.NegativeBinomial(2.5), pgm.GP(pgm.RBF(1.7, [0.5, 1.5]), mean=-0.8))
    drawn = pgm.prior_predictive(model, X, num_draws=DRAWS, seed=3)
    f, y = drawn.latents[..., 0], drawn.observations
    assert f.shape == y.shape == (DRAWS, 3)
    assert drawn.hyperparameters == {}
    assert means_agree(f, -0.8, np.sqrt(1.7))
    # Products of two normals of variance 1.7 have at most the deviation sqrt(2) 1.7.
    centred = f + 0.8
    assert means_agree(centred[:, :, None] * centred[:, None, :], K, np.sqrt(2) * 1.7)
    # Rows that repeat each other share their latent, and not their observation.
    np.testing.assert_allclose(f[:, 0], f[:, 2], atol=1e-3)
    assert (y[:, 0] != y[:, 2]).mean() > 0.3
    # Of each draw: the mean of a negative binomial is 2.5 exp(f).
    assert means_agree(y - 2.5 * np.exp(f), 0.0, np.std(y - 2.5 * np.exp(f), axis=0))
    counts = np.arange(4)
    law = stats.nbinom.pmf(counts[:, None], 2.5, expit(0.8 - np.sqrt(1.7) * NODES)) @ WEIGHTS
    assert means_agree((y[:, 0, None] == counts).astype(float), law, np.sqrt(law * (1 - law)))
    again = pgm.prior_predictive(model, X, num_draws=DRAWS, seed=3)
    np.testing.assert_array_equal(again.observations, y)
    assert not np.array_equal(pgm.prior_predictive(model, X, num_draws=DRAWS, seed=4).observations, y)


PRIORS = {"variance": (dist.Gamma(3.0, 2.0), stats.gamma(3.0, scale=0.5)), "mean": (0.5, 0.7), "scale": (0.3, 0.2)}


def test_values_with_priors_are_drawn_with_what_depends_on_them():
    gp = pgm.GP(pgm.RBF(PRIORS["variance"][0], pgm.Fixed(0.9)), mean=dist.Normal(0.5, 0.7))
    model = pgm.Model(pgm.Gaussian(dist.LogNormal(0.3, 0.2)), gp)
    drawn = pgm.prior_predictive(model, X, num_draws=DRAWS, seed=1)
    f, y = drawn.latents[..., 0], drawn.observations
    variance, mean, scale = (drawn.hyperparameters[name] for name in ("variance", "mean", "scale"))
    # Below this a test of a fixed seed would be a false alarm in ten thousand.
    for values, law in (
        (variance, PRIORS["variance"][1]),
        (mean, stats.norm(0.5, 0.7)),
        (scale, stats.lognorm(0.2, scale=np.exp(0.3))),
        ((f[:, 0] - mean) / np.sqrt(variance), stats.norm()),
        ((y[:, 1] - f[:, 1]) / scale, stats.norm()),
    ):
        assert stats.kstest(values, law.cdf).pvalue > 1e-4
    # Var y = Var mean + E variance + E scale^2; its own deviation from the draws.
    expected = 0.7**2 + 1.5 + np.exp(0.6 + 2 * 0.2**2)
    squares = (y[:, 0] - 0.5) ** 2
    assert means_agree(squares, expected, squares.std())
    tree = drawn.to_arviz()
    np.testing.assert_array_equal(tree.prior["variance"][0], variance)
    np.testing.assert_array_equal(tree.prior.f[0, :, :, 0], f)
    np.testing.assert_array_equal(tree.prior_predictive.y[0], y)
    assert repr(drawn).startswith("<PriorPredictive: 2000 draws of latents, observations, ")


@pgm.likelihood(support=pgm.Binary())
def shared(y, f, shares=pgm.Parameter([0.3, 0.7], constraint=constraints.simplex)):
    p = shares[0] * pgm.sigmoid(f) + shares[1] * pgm.sigmoid(f - 1)
    return p**y * (1 - p) ** (1 - y)


def test_priors_are_drawn_within_their_constraint():
    model = pgm.Model(graded(dist.Normal(0.4, 2.0)), pgm.GP(pgm.RBF(1.0, 1.0)))
    cuts = pgm.prior_predictive(model, X, num_draws=500).hyperparameters["cuts"]
    assert (cuts[:, 0] < cuts[:, 1]).all()
    # Two normals, given their order: the smaller of the two.
    smaller = lambda x: 1 - stats.norm(0.4, 2.0).sf(x) ** 2  # noqa: E731
    assert stats.kstest(cuts[:, 0], smaller).pvalue > 1e-4
    never = pgm.Model(shared(dist.Uniform(0.0, 1.0)), pgm.GP(pgm.RBF(1.0, 1.0)))
    with pytest.raises(ValueError, match=r"prior of shares.*0 are within its constraint.*Dirichlet"):
        pgm.prior_predictive(never, X, num_draws=10)


def test_covariates_are_given_and_not_drawn():
    model = pgm.Model(pgm.Binomial(), pgm.GP(pgm.RBF(1.0, 1.0)))
    trials = np.array([0.0, 2.0, 9.0])
    drawn = pgm.prior_predictive(model, X, trials, num_draws=500)
    assert (drawn.observations <= trials).all()
    assert drawn.observations[:, 2].max() > 2
    np.testing.assert_array_equal(drawn.to_arviz().constant_data.covariates[:, 0], trials)
    with pytest.raises(ValueError, match=r"draws of y by Binomial depends on y\[1\]"):
        pgm.prior_predictive(model, X)


def test_what_cannot_be_drawn_says_so():
    gp = pgm.GP(pgm.RBF(1.0, 1.0))
    with pytest.raises(ValueError, match="undeclared has no declared support of y"):
        pgm.prior_predictive(pgm.Model(undeclared(), gp), X)
    model = pgm.Model(pgm.Bernoulli(), gp)
    with pytest.raises(ValueError, match="num_draws must be a whole number >= 1"):
        pgm.prior_predictive(model, X, num_draws=0)
    with pytest.raises(ValueError, match="X must have shape"):
        pgm.prior_predictive(model, X[0])
    with pytest.raises(ValueError, match=r"model must be a pgm\.Model"):
        pgm.prior_predictive(pgm.Bernoulli(), X)


def test_a_form_that_the_kernel_does_not_have_is_refused():
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern32(1.0, 1.0), form=pgm.Markov()))
    with pytest.raises(ValueError, match=r"reads 2.*pgm\.On"):
        pgm.prior_predictive(model, [[0.0, 0.0], [0.0, 50.0]])
