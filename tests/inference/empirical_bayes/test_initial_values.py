"""Starts of learning: optima that do not depend on units, values that run off, steps that are not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from sklearn.datasets import load_diabetes

import pgmodels as pgm
from pgmodels.inference.fit import FitWarning
from pgmodels.inference.objectives import expected_objective
from pgmodels.inference.starts import constant_latents, initial_models
from pgmodels.kernels.stationary import Stationary
from pgmodels.model import Data
from tests.own_likelihoods import log_poisson


def wave(n=40, seed=0):
    """X (n, 1) and y of standard deviation near 1, noise 0.3."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, (n, 1))
    return X, np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 0] + 0.3 * rng.normal(size=n)


def noisy(scale=0.5, lengthscale=1.0, mean=0.0):
    return pgm.Model(pgm.Gaussian(scale), pgm.GP(pgm.RBF(1.0, lengthscale), mean=mean))


@pytest.mark.slow
def test_units_of_the_data_do_not_change_what_is_learned():
    """The density of c y + d has c times the scales and an ELBO n log c lower; the rows' unit changes nothing else."""
    X, y = wave()
    plain = pgm.fit(noisy(), X, y)
    for c, d, unit in ((1e4, 0.0, 1.0), (1e-4, 0.0, 1.0), (1.0, 50.0, 1.0), (1e4, 50.0, 1e-3), (1e-4, 0.05, 1e4)):
        moved = pgm.fit(noisy(), unit * X, c * y + d)
        # L-BFGS stops at a relative change of 1e-9 of an ELBO of a few hundred; the values follow by its square root.
        np.testing.assert_allclose(moved.elbo, plain.elbo - len(y) * np.log(c), atol=1e-3)
        values, expected = moved.fit.values, plain.fit.values
        for name, factor in (("scale", c), ("variance", c**2), ("lengthscale", unit)):
            np.testing.assert_allclose(values[name] / factor, expected[name], rtol=0.02)
        np.testing.assert_allclose((values["mean"] - d) / c, expected["mean"], atol=0.02)


def test_far_start_values_reach_the_same_optimum():
    X, y = wave()
    plain = pgm.fit(noisy(), X, y)
    for scale, lengthscale in ((0.05, 0.001), (30.0, 1e3)):
        np.testing.assert_allclose(pgm.fit(noisy(scale, lengthscale), X, y).elbo, plain.elbo, atol=1e-3)


@pytest.mark.slow
def test_diabetes_from_a_start_at_which_every_row_stands_alone():
    """From noise 0.05 and lengthscale 0.1 in ten columns the gradient leads to -278, where the kernel is noise."""
    data = load_diabetes()
    X, y = (data.data - data.data.mean(0)) / data.data.std(0), (data.target - data.target.mean()) / data.target.std()
    fitted = pgm.fit(noisy(0.05, 0.1, pgm.Fixed(0.0)), X[:200], y[:200])
    # scikit-learn, from ten random starts: -224.0.
    assert fitted.elbo > -224.1


@pytest.mark.slow
def test_values_that_data_do_not_determine_are_named_and_bounded():
    """Uniform noise wants no heavy tails, and the second column says nothing of y."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-3.0, 3.0, (40, 2))
    y = np.sin(2.0 * X[:, 0]) + rng.uniform(-0.3, 0.3, 40)
    model = pgm.Model(pgm.StudentT(4.0, 0.5), pgm.GP(pgm.RBF(1.0, np.ones(2))))
    with pytest.warns(FitWarning, match="determine df") as caught:
        fitted = pgm.fit(model, X, y)
    assert "lengthscale[1]" in str(caught[0].message)
    assert "lengthscale[0]" not in str(caught[0].message)
    assert all(np.all(value < 1e9) for value in fitted.fit.values.values())


class Breaking(Stationary):
    """A kernel that is not a number at lengthscales above 0.5, where the optimum is."""

    def __init__(self, variance=1.0, lengthscale=None):
        super().__init__(variance, lengthscale)

    def profile(self, squared):
        return jnp.where(jnp.asarray(self.lengthscale.value) > 0.5, jnp.nan, jnp.exp(-0.5 * squared))


@pytest.mark.filterwarnings("ignore::pgmodels.inference.loop.ConvergenceWarning")
def test_steps_that_are_not_finite_are_stepped_back_from():
    X, y = wave()
    fitted = pgm.fit(pgm.Model(pgm.Gaussian(0.5), pgm.GP(Breaking(1.0, 0.1))), X, y)
    assert fitted.fit.start_elbos["median distance * 4"] == -np.inf
    assert 0.4 < fitted.fit.values["lengthscale"] <= 0.5
    assert np.isfinite(fitted.elbo)
    assert fitted.elbo > max(fitted.fit.start_elbos.values())


def test_constant_latents_are_the_likeliest_ones():
    """With Gaussian noise: mean and standard deviation of y, to the pull of 1/4 nat that the value given has."""
    y = np.array([3.0, 7.0, 4.0, 9.0, -1.0] * 8) * 1e3
    with jax.enable_x64(True):
        level = constant_latents(noisy(), Data(y[:, None], y), noisy().augmentation)
    np.testing.assert_allclose(level.location, y.mean())
    np.testing.assert_allclose(level.parameters["scale"], y.std(), rtol=0.05)
    np.testing.assert_allclose(level.potential[:, 0] / level.precision[:, 0], y)


def test_an_error_rate_does_not_start_at_that_of_a_guess():
    # There the likelihood does not depend on the latents, and no slope leads away.
    y = np.tile([0.0, 1.0, 2.0], 40)
    model = pgm.Model(pgm.RobustMax(3, 0.001), pgm.GP(pgm.RBF(1.0, 1.0), mean=0.0, size=3))
    with jax.enable_x64(True):
        level = constant_latents(model, Data(np.arange(120.0)[:, None], y), expected_objective(model))
    guess, declared = (np.log(rate / (1.0 - rate)) for rate in (2.0 / 3.0, 0.001))
    middle = 0.5 * (guess + declared)
    assert level.parameters["error"] == pytest.approx(1.0 / (1.0 + np.exp(-middle)), rel=0.1)
    assert np.abs(level.potential - level.precision * level.location).max() > 0.1


def test_constant_latents_of_a_log_link_are_not_led_beyond_the_counts():
    """The logarithm of the mean count, which full steps from f = 0 overshoot by a hundred powers of e."""
    y = np.array([0.0, 900.0, 2.0, 31.0, 0.0, 7.0, 120.0, 404.0])
    model = pgm.Model(log_poisson(), pgm.GP(pgm.RBF(1.0, 0.5), mean=0.0))
    with jax.enable_x64(True):
        level = constant_latents(model, Data(y[:, None], y), expected_objective(model))
    # E exp(f) is at the mean count: half the variance of one constant, 1 / sum(y), is the difference.
    np.testing.assert_allclose(level.location, np.log(y.mean()), atol=1e-3)
    np.testing.assert_allclose(level.precision[:, 0], y.mean(), rtol=1e-2)


def test_fixed_values_and_priors_stay():
    X, y = wave()
    kernel = pgm.RBF(pgm.Fixed(2.0), dist.LogNormal(0.0, 1.0)) * pgm.Matern32(3.0, 1.0) + pgm.Constant(5.0)
    model = pgm.Model(pgm.Gaussian(pgm.Fixed(0.3)), pgm.GP(kernel, mean=pgm.Fixed(1.5)))
    with jax.enable_x64(True):
        starts = initial_models(model, Data(X, y), model.augmentation)
    assert list(starts) == ["values given", "median distance", "median distance / 4", "median distance * 4"]
    for start in starts.values():
        gp, rbf = start.model.gps[0], start.model.gps[0].kernel.left.left
        values = start.model.likelihood.values["scale"], gp.mean.value, rbf.variance.value, rbf.lengthscale.value
        assert [float(value) for value in values] == [0.3, 1.5, 2.0, 1.0]


def test_a_scaled_kernel_is_the_kernel_times_a_factor():
    X = wave(6)[0]
    kernel = pgm.RBF(pgm.Fixed(2.0), 0.7) * pgm.Matern32(3.0, 1.0) + pgm.Constant(5.0) + pgm.Linear(np.array([0.4]))
    np.testing.assert_allclose(kernel.scaled(7.5)(X, X), 7.5 * kernel(X, X), rtol=1e-6)
