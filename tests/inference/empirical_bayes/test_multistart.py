"""Optima that one start does not find, and values that the data do not determine."""

import tracemalloc

import jax
import numpy as np
import pytest
from numpyro.distributions.constraints import ordered_vector

import pgmodels as pgm
from pgmodels.inference.bound import FELT
from pgmodels.inference.fit import _loss, _report, _undetermined
from pgmodels.inference.objectives import objective_of
from pgmodels.inference.search import Limits, SearchBar, learn
from pgmodels.inference.starts import spectral_periods
from pgmodels.model import Data
from pgmodels.runtime.messages import progress_bar

RNG = np.random.default_rng(8)


def evidence(K, y):
    """log N(y; 0, K)."""
    return -0.5 * (y @ np.linalg.solve(K, y) + np.linalg.slogdet(K)[1] + len(y) * np.log(2.0 * np.pi))


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
    assert result.elbo > evidence(near_the_truth, y)
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
    assert result.elbo > evidence(near_the_truth, y)


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
        bound, ridge = maximum.bound, maximum.bound.vector.copy()
        assert bound.learnable.names == ["dispersion", "mean"]
        assert [list(names) for names in _undetermined(maximum)] == [["dispersion"], []]
        # The counts are less variable than a Poisson's, so that r is without a bound; r exp(f) is their mean.
        assert ridge[0] > np.log(1e4)
        np.testing.assert_allclose(ridge.sum(), np.log(5.5), atol=0.02)
        np.testing.assert_array_equal(bound.vector, ridge)
        assert _loss(bound, ridge + np.log([10.0, 1.0]), bound.best) > FELT
        assert abs(_loss(bound, ridge + np.log([10.0, 0.1]), bound.best)) < FELT


@pgm.likelihood(support=pgm.Classes(3))
def ordered(y, f, cuts=pgm.Parameter([-1.0, 1.0], constraint=ordered_vector)):
    below = [0, *(pgm.sigmoid(cut - f) for cut in cuts), 1]
    return pgm.sum((below[k + 1] - below[k]) * (y == k) for k in range(3))


@pytest.mark.slow
def test_a_cut_point_without_a_grade_above_is_named():
    X = np.linspace(-2.0, 2.0, 20)[:, None]
    y = (X[:, 0] + np.tile([0.7, -0.7], 10) > 0).astype(float)
    model = pgm.Model(ordered(), pgm.GP(pgm.RBF(pgm.Fixed(4.0), pgm.Fixed(1.0))))
    with (
        pytest.warns(pgm.DataWarning, match="fit may take cuts to extreme values"),
        pytest.warns(pgm.FitWarning, match=r"do not determine cuts = \["),
    ):
        pgm.fit(model, X, y, objective="augmented", progress=False)


def test_a_poor_optimum_is_told_from_what_is_not_determined():
    with pytest.warns(pgm.FitWarning, match="variance = 1e-09 may be a poor local optimum.*Raise num_starts"):
        _report({"variance": "1e-09"}, 1, "Raise num_starts")
    with pytest.warns(pgm.FitWarning, match="do not determine variance = 1e-09.*the best of 4 starts ends there"):
        _report({"variance": "1e-09"}, 4, "Raise num_starts")
    with pytest.raises(ValueError, match="num_starts must be"):
        pgm.fit(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF())), [[0.0], [1.0]], [0, 1], num_starts=0)
