"""Starts of learning: optima that do not depend on units, values that run off, steps that are not finite."""

import tracemalloc
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from sklearn.datasets import load_diabetes

import pgmodels as pgm
from pgmodels.inference import search
from pgmodels.inference.bound import FELT, TIGHT, MarginalBound, Point
from pgmodels.inference.fit import FitWarning, loss_at, undetermined_values, warn_flat
from pgmodels.inference.loop import Ascent
from pgmodels.inference.objectives import expected_objective, objective_of
from pgmodels.inference.search import Limits, SearchBar, learn
from pgmodels.inference.starts import constant_latents, initial_models, spectral_periods
from pgmodels.kernels.stationary import Stationary
from pgmodels.model import Data
from pgmodels.runtime.messages import progress_bar
from tests.covering import some
from tests.own_likelihoods import graded, log_poisson
from tests.referees import log_normal
from tests.registry import CASES


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


# Optima that one start does not find, and values that the data do not determine.


RNG = np.random.default_rng(8)


@pgm.likelihood
def additive(y, f, scale=pgm.Parameter(0.1, positive=True)):
    return pgm.normal_pdf(y, f[0] + f[1], scale)


@pytest.mark.parametrize("form", ["sum", pytest.param("list", marks=pytest.mark.slow)])
def test_like_kernels_that_add_up_come_to_differ(form):
    x, rng = np.linspace(0.0, 10.0, 60), np.random.default_rng(0)
    y = 3.0 * np.sin(x / 2.5) + 0.8 * np.sin(5.0 * x) + 0.2 * rng.standard_normal(60)
    model = pgm.Model(pgm.Gaussian(0.1), pgm.GP(pgm.RBF() + pgm.RBF()))
    if form == "list":
        model = pgm.Model(additive(), [pgm.GP(pgm.RBF()), pgm.GP(pgm.RBF())])
    result = pgm.fit(model, x[:, None], y, progress=False)
    squared = (x[:, None] - x) ** 2
    near_the_truth = 4.0 * np.exp(-squared / 18.0) + 0.4 * np.exp(-squared / 0.32) + 0.04 * np.eye(60)
    # With equal lengthscales it ends 15 nats below.
    assert result.elbo > log_normal(y, near_the_truth)
    lengthscales = sorted(float(v) for name, v in result.fit.values.items() if "lengthscale" in name)
    assert lengthscales[1] > 4.0 * lengthscales[0]


@pytest.mark.slow
@pytest.mark.parametrize(("span", "frequency"), [(30.0, 5.0), (60.0, 2.0)])
def test_a_fast_part_of_a_long_series_is_found(span, frequency):
    x, rng = np.linspace(0.0, span, 150), np.random.default_rng(2)
    y = 3.0 * np.sin(x / 4.0) + 0.8 * np.sin(frequency * x) + 0.2 * rng.standard_normal(150)
    result = pgm.fit(pgm.Model(pgm.Gaussian(0.5), pgm.GP(pgm.RBF() + pgm.RBF())), x[:, None], y, progress=False)
    squared, fast = (x[:, None] - x) ** 2, 1.6 / frequency
    near_the_truth = 8.0 * np.exp(-squared / 98.0) + 0.6 * np.exp(-0.5 * squared / fast**2) + 0.04 * np.eye(150)
    # With equal lengthscales it ends 48 and 74 nats below the best.
    assert result.elbo > log_normal(y, near_the_truth)


@pytest.mark.slow
@pytest.mark.parametrize("begin", [1.1, 0.9])
def test_a_period_is_found_from_one_that_is_off(begin):
    x, rng = np.sort(np.random.default_rng(1).uniform(0.0, 15.0, 60)), np.random.default_rng(0)
    y = np.sin(2.0 * np.pi * x / 1.3) + 0.2 * rng.standard_normal(60)
    result = pgm.fit(pgm.Model(pgm.Gaussian(0.1), pgm.GP(pgm.Periodic(1.0, 1.0, begin))), x[:, None], y, progress=False)
    assert np.isclose(result.fit.values["period"], 1.3, rtol=0.01)
    assert result.fit.start.startswith("period")


def test_the_peaks_of_a_spectrum_are_the_periods_there_are():
    rng = np.random.default_rng(2)
    x = np.sort(np.concatenate([rng.uniform(50.0, 60.0, 40), rng.uniform(75.0, 90.0, 40)]))
    w = rng.uniform(0.5, 2.0, 80)
    y = 4.0 + 0.3 * x - 0.01 * x**2 + 2.0 * np.cos(2.0 * np.pi * x / 3.1 + 0.4) + np.sin(2.0 * np.pi * x / 1.7)
    periods = spectral_periods(x, w * y, w, 3)
    assert np.allclose(periods[0], 3.1, rtol=0.02)
    assert np.isclose(periods, 1.7, rtol=0.02).any()
    assert not len(spectral_periods(x[:5], y[:5], w[:5], 3))


@pytest.mark.parametrize("x", [RNG.uniform(-3.0, 9.0, 61), np.arange(50.0), np.round(RNG.uniform(0.0, 9.0, 80), 1)])
def test_the_highest_peak_is_where_a_wave_leaves_the_least_squares(x):
    w, y = RNG.uniform(0.5, 2.0, len(x)), RNG.standard_normal(len(x)) + 0.1 * x**2
    span, root = np.ptp(x), np.sqrt(w)
    frequencies = np.arange(2.0, len(np.unique(x)) / 2.0, 1.0 / 8.0) / span
    left_over = []
    for frequency in frequencies:
        angles = 2.0 * np.pi * frequency * x
        design = root[:, None] * np.column_stack([np.vander(x, 3), np.cos(angles), np.sin(angles)])
        left_over.append(np.sum((root * y - design @ np.linalg.lstsq(design, root * y)[0]) ** 2))
    highest = spectral_periods(x, w * y, w, 1)[0]
    np.testing.assert_allclose(highest, 1.0 / frequencies[np.argmin(left_over)], rtol=1e-9)


def test_the_periods_of_a_long_series_are_found_in_memory_that_grows_with_its_rows():
    n = 50_000
    x = RNG.uniform(0.0, 2500.0, n)
    y = np.sin(2.0 * np.pi * x / 7.3) + 0.5 * np.cos(2.0 * np.pi * x / 0.31) + 3.0 * RNG.standard_normal(n)
    tracemalloc.start()
    periods = spectral_periods(x, y, np.ones(n), 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # An eighth of a cycle over the range, the step between frequencies.
    np.testing.assert_allclose(2500.0 / periods, [2500.0 / 7.3, 2500.0 / 0.31], atol=0.125)
    assert peak < 2000 * n


@pytest.mark.slow
def test_a_period_of_a_long_series_is_learned():
    n = 50_000
    x = np.sort(RNG.uniform(0.0, 2500.0, n))
    y = np.sin(2.0 * np.pi * x / 7.3) + 0.5 * RNG.standard_normal(n)
    model = pgm.Model(pgm.Gaussian(0.3), pgm.GP(pgm.Cosine(1.0, 5.0), form=pgm.Markov()))
    result = pgm.fit(model, x[:, None], y, correct=False, progress=False)
    np.testing.assert_allclose(result.fit.values["period"], 7.3, rtol=1e-4)


@pytest.mark.slow
def test_a_noise_that_varies_is_found_where_constants_say_nothing_of_it():
    x, rng = np.linspace(0.0, 10.0, 50), np.random.default_rng(3)
    y = 40.0 * np.sin(x) + np.where(x < 4.0, 1.5, 20.0) * rng.standard_normal(50)
    gps = [pgm.GP(pgm.RBF()), pgm.GP(pgm.RBF(), mean=0.0)]
    result = pgm.fit(pgm.Model(pgm.HeteroscedasticGaussian(pgm.Fixed(1.0)), gps), x[:, None], y, progress=False)
    gps = [pgm.GP(pgm.RBF(1000.0, 1.5)), pgm.GP(pgm.RBF(4.0, 2.0), mean=-3.0)]
    near = pgm.fit(
        pgm.Model(pgm.HeteroscedasticGaussian(pgm.Fixed(1.0)), gps), x[:, None], y, num_starts=1, progress=False
    )
    assert result.elbo > near.elbo - 0.05
    assert result.fit.values["f[1].variance"] > 0.1


@pytest.mark.slow
def test_a_ridge_that_no_value_shows_by_itself_is_named():
    """A dispersion r far out with the mean log(5.5 / r): each by itself matters, both together do not."""
    X, y = np.linspace(0.0, 1.0, 30)[:, None], np.tile([5.0, 6.0], 15)
    gp = pgm.GP(pgm.RBF(pgm.Fixed(0.01), pgm.Fixed(1.0)), mean=0.0)
    model = pgm.Model(pgm.NegativeBinomial(1.0), gp)
    with jax.enable_x64(True), progress_bar("fit", 1, False) as bar:
        maximum = learn(model, Data(X, y), objective_of(model, "expected"), Limits(50, 1e-9), SearchBar(bar))
        bound, best, ridge = maximum.bound, maximum.best, maximum.best.vector
        assert bound.learnable.names == ["dispersion", "mean"]
        assert [list(names) for names in undetermined_values(maximum)] == [["dispersion"], []]
        # The counts are less variable than a Poisson's, so that r is without a bound; r exp(f) is their mean.
        assert ridge[0] > np.log(1e4)
        np.testing.assert_allclose(ridge.sum(), np.log(5.5), atol=0.02)
        assert loss_at(bound, ridge + np.log([10.0, 1.0]), best) > FELT
        assert abs(loss_at(bound, ridge + np.log([10.0, 0.1]), best)) < FELT


@pytest.mark.slow
def test_a_cut_point_without_a_grade_above_is_named():
    X = np.linspace(-2.0, 2.0, 20)[:, None]
    y = (X[:, 0] + np.tile([0.7, -0.7], 10) > 0).astype(float)
    model = pgm.Model(graded(), pgm.GP(pgm.RBF(pgm.Fixed(4.0), pgm.Fixed(1.0))))
    with (
        pytest.warns(pgm.DataWarning, match="fit may move cuts to extreme values"),
        pytest.warns(pgm.FitWarning, match=r"do not determine cuts = \["),
    ):
        pgm.fit(model, X, y, objective="augmented", progress=False)


def test_a_poor_optimum_is_told_from_what_is_not_determined():
    with pytest.warns(pgm.FitWarning, match="variance = 1e-09 may be a poor local optimum.*Raise num_starts"):
        warn_flat({"variance": "1e-09"}, 1, "Raise num_starts")
    with pytest.warns(pgm.FitWarning, match="do not determine variance = 1e-09.*the best of 4 starts ends there"):
        warn_flat({"variance": "1e-09"}, 4, "Raise num_starts")
    with pytest.raises(ValueError, match="num_starts must be"):
        pgm.fit(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF())), [[0.0], [1.0]], [0, 1], num_starts=0)


# Searches whose bound is only as exact as the steps ask for end where an exact one does.


@pytest.fixture
def tolerances(monkeypatch):
    """The tolerance of every evaluation of a bound from here on."""
    used, evaluate = [], MarginalBound.at

    def recorded(self, vector, start=None, tolerance=TIGHT, **options):
        used.append(tolerance)
        return evaluate(self, vector, start, tolerance, **options)

    monkeypatch.setattr(MarginalBound, "at", recorded)
    return used


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.InducingWarning")
@pytest.mark.parametrize("form", some([pgm.Dense(), pgm.Inducing(12)], pgm.Dense()), ids=["dense", "inducing"])
def test_bounds_are_as_exact_as_steps_ask(form, tolerances, monkeypatch):
    X, y = CASES["bernoulli"].data(70, seed=2, scale=2.5)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0), form=form))
    # Of the search alone.
    eased = pgm.fit(model, X, y, objective="augmented", correct=False, progress=False)
    starts = tolerances.count(search.SETTINGS.start_tolerance)
    used = tolerances[starts:]
    # The start once more, and the first step.
    assert used[:2] == [search.SETTINGS.loosest] * 2
    assert all(later <= earlier for earlier, later in pairwise(used))
    assert used[-1] <= search.SETTINGS.sure
    monkeypatch.setattr(search, "SETTINGS", search.SETTINGS._replace(loosest=TIGHT))
    exact = pgm.fit(model, X, y, objective="augmented", progress=False)
    assert eased.converged
    assert exact.converged
    np.testing.assert_allclose(eased.elbo, exact.elbo, rtol=1e-8)
    for name, value in eased.fit.values.items():
        np.testing.assert_allclose(value, exact.fit.values[name], rtol=1e-3)


class Falling:
    """A bound that an ascent still raises: its negative values by tolerance, loosest first."""

    def __init__(self, losses):
        self.losses, self.tolerances = losses, []

    def at(self, vector, start, tolerance):
        """The point at a tolerance, a part of whose value is due to the lower limit on variances."""
        self.tolerances.append(tolerance)
        return start._replace(value=self.losses[len(self.tolerances) - 1] + 7.0, floor_loss=7.0)


@pytest.mark.parametrize(
    ("losses", "is_felt", "count"),
    [
        ((100.05, np.nan, np.nan), False, 1),
        ((190.0, np.nan, np.nan), True, 1),
        ((101.0, 100.05, np.nan), False, 2),
        ((101.0, 100.3, np.nan), True, 2),
        ((100.5, 100.11, 100.1001), True, 3),
        ((100.5, 100.11, 100.09), False, 3),
    ],
)
def test_what_the_bound_feels_is_looked_at_as_closely_as_it_takes(losses, is_felt, count):
    """A tenth of a nat above the best, 100: at once where no more ascent can change the answer."""
    bound, best = Falling(losses), Point(np.zeros(1), (), (), Ascent(None, np.zeros(0), True), value=100.0)
    assert (loss_at(bound, np.zeros(1), best) >= FELT) is is_felt
    assert len(bound.tolerances) == count
    assert bound.tolerances == sorted(bound.tolerances, reverse=True)


def test_an_inverse_hessian_that_rounding_spoiled_is_one_again():
    from scipy.optimize import minimize, rosen, rosen_der

    # Symmetric but for rounding, and with an eigenvalue below zero.
    for spoiled in (np.array([[2.0, 0.3 + 1e-16], [0.3, 1.0]]), np.array([[1.0, 1.0 + 1e-9], [1.0, 1.0]])):
        inverse_hessian = search.definite(spoiled)
        np.testing.assert_allclose(inverse_hessian, spoiled, rtol=1e-8)
        # SciPy refuses others.
        solution = minimize(rosen, np.zeros(2), jac=rosen_der, method="BFGS", options={"hess_inv0": inverse_hessian})
        np.testing.assert_allclose(solution.x, 1.0, rtol=1e-4)
