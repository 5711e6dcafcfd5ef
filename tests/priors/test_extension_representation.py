"""A prior form from outside the package, without a factor matrix: CAVI, learning and Gibbs sweeps run with it.

Its dense twin is the same kernel by the covariance matrix.
"""

import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from tests.state_space import StateSpace
from tests.statistical.reference import z_scores


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    X = rng.uniform(-2.0, 2.0, (9, 1))
    # Unsorted, and one input twice.
    X[5] = X[2]
    return X, (rng.random(9) < 0.6).astype(float)


X_NEW = np.array([[-3.0], [-0.4], [0.9], [4.0]])


def model_of(form, lengthscale=0.8):
    return pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern12(1.7, lengthscale), mean=0.4, form=form))


def test_cavi_agrees_with_the_dense_twin(data):
    X, y = data
    line, dense = (pgm.cavi(model_of(form), X, y) for form in (StateSpace(), pgm.Dense()))
    assert line.elbo == pytest.approx(dense.elbo, abs=1e-8)
    places = np.vstack([X_NEW, X])
    for one, other in (
        ((line.mean, line.variance), (dense.mean, dense.variance)),
        (line.predict_latent(places), dense.predict_latent(places)),
    ):
        # Means and variances of size 1 to 3, by another order of the same operations.
        np.testing.assert_allclose(one, other, atol=1e-8)


@pytest.mark.slow
def test_learning_agrees_with_the_dense_twin(data):
    X, _ = data
    y = np.sin(2.0 * X[:, 0]) + 0.1 * np.cos(9.0 * X[:, 0])

    def learned(form):
        gp = pgm.GP(pgm.Matern12(1.7, 0.8), mean=0.4, form=form)
        return pgm.fit(pgm.Model(pgm.Gaussian(pgm.Fixed(0.3)), gp), X, y)

    # To the tolerance of the optimiser.
    assert learned(StateSpace()).elbo == pytest.approx(learned(pgm.Dense()).elbo, abs=1e-6)


@pytest.mark.slow
def test_gibbs_sweeps_agree_with_the_dense_twin(data):
    X, y = data
    line = pgm.gibbs(model_of(StateSpace()), X, y, num_samples=2000, num_warmup=50, num_chains=2, seed=1)
    dense = pgm.gibbs(model_of(pgm.Dense()), X, y, num_samples=1000, num_warmup=50, num_chains=2, seed=1)
    assert list(line.tuning) == ["sweep"]
    assert line.tuning["sweep"]["relaxation"] < -0.05
    mean, variance = z_scores(line.latents, dense.latents)
    # 18 comparisons at four joint standard errors.
    assert max(np.abs(mean).max(), np.abs(variance).max()) < 4.0
    # Given draws at the data, what is drawn there again is the same; elsewhere both average the same function.
    np.testing.assert_allclose(line.predict_latent(X), (line.mean, line.variance), atol=1e-10)
    for one, other in zip(line.predict_latent(X_NEW), dense.predict_latent(X_NEW), strict=True):
        # Some 600 effective draws of deviation 1.3 the smaller.
        np.testing.assert_allclose(one, other, atol=0.25)
    assert "lp" not in line.to_arviz().sample_stats


@pytest.mark.slow
def test_gibbs_samples_hyperparameters_as_the_dense_twin(data):
    X, y = data
    settings = {"num_samples": 1500, "num_warmup": 200, "num_chains": 2, "seed": 1}
    line, dense = (
        pgm.gibbs(model_of(form, dist.LogNormal(0.0, 0.5)), X, y, **settings) for form in (StateSpace(), pgm.Dense())
    )
    ours, theirs = (np.log(draws.hyperparameters["lengthscale"])[:, :, None, None] for draws in (line, dense))
    mean, variance = z_scores(ours, theirs)
    assert max(np.abs(mean).max(), np.abs(variance).max()) < 4.0


def test_what_needs_a_factor_says_so(data):
    X, y = data
    line = pgm.cavi(model_of(StateSpace()), X, y)
    with pytest.raises(ValueError, match=r"LinePrior has no factor matrix.*joint draws at new inputs.*pgm.Dense"):
        line.draw_latents(X_NEW)
