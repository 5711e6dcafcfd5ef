"""Simulation-based calibration: where q is exact, where it is known to be wrong, and against quadrature."""

from functools import cache
from itertools import count

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

import pgmodels as pgm
from pgmodels.diagnostics.vsbc import LEVELS, Calibration, refit, simulate_calibration, symmetry_test
from pgmodels.inference import loop
from pgmodels.likelihoods.sampling import draw_observations
from tests.own_likelihoods import undeclared

pytestmark = pytest.mark.slow


def model_of(likelihood, size=1, variance=2.0, mean=0.4):
    return pgm.Model(likelihood, pgm.GP(pgm.RBF(variance, 0.8), mean=mean, size=size))


@cache
def gaussian():
    X = np.array([-1.6, -1.0, -0.1, 0.3, 0.9, 1.7])[:, None]
    return pgm.cavi(model_of(pgm.Gaussian(0.6)), X, np.sin(2 * X[:, 0]))


@cache
def exact():
    """Exact inference, 4,000 replicates of six data."""
    return simulate_calibration(gaussian(), 4000, seed=11)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_symmetry_has_the_law_of_all_sign_patterns(count):
    magnitudes = np.random.default_rng(3).gamma(2.0, size=count)
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * count)).reshape(count, -1)
    distance, p = symmetry_test(magnitudes[:, None] * signs)
    # The share of all 2^count equally likely patterns that are at least as far.
    expected = [(distance >= d - 1e-9).mean() for d in distance]
    np.testing.assert_allclose(p, expected, rtol=1e-12)


def test_symmetry_distance_is_the_two_sample_one():
    x = np.random.default_rng(4).normal(0.3, 1.0, (50, 8))
    distance, p = symmetry_test(x)
    for column in range(8):
        two = stats.ks_2samp(x[:, column], -x[:, column], method="asymp")
        np.testing.assert_allclose(distance[column], two.statistic, rtol=1e-12)
        # The two-sample law takes x and -x for independent, and rejects too often.
        assert p[column] > two.pvalue


def test_exact_inference_is_calibrated():
    result = exact()
    assert (result.num_replicates, result.num_failed, result.num_unconverged) == (4000, 0, 0)
    # One datum of every replicate: independent uniforms. Six tests, false alarms of 0.1 % each.
    for datum in range(6):
        assert stats.kstest(result.p[:, datum, 0], "uniform").pvalue > 1e-3
    for value, error, expected in (
        (*result.bias, 0.0),
        (*result.dispersion, 1.0),
        *((value, error, level) for value, error, level in zip(*result.coverage, LEVELS, strict=True)),
    ):
        assert (np.abs(value - expected) < 4 * error).all()


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_stated():
    """Each test at 5 %, over 100 batches of 40 replicates: at most 12, exceeded with probability 0.15 % at 5 %."""
    batches = split(exact())
    assert sum(batch.symmetry_corrected[0] < 0.05 for batch in batches) <= 12
    assert sum(batch.bias_p[0] < 0.05 for batch in batches) <= 12
    for level in range(2):
        assert sum(batch.coverage_p[level, 0] < 0.05 for batch in batches) <= 12


def test_errors_count_replicates_and_not_data():
    batches = split(exact())
    # The standard deviation of 100 values is within 25 % of its own; the data of a replicate are correlated.
    for name in ("bias", "dispersion", "coverage"):
        estimates = [getattr(batch, name) for batch in batches]
        scatter = np.std([value for value, _ in estimates], axis=0)
        np.testing.assert_allclose(np.mean([error for _, error in estimates], axis=0), scatter, rtol=0.25)
    shares, errors = zip(*(batch.histogram(5) for batch in batches), strict=True)
    np.testing.assert_allclose(np.mean(errors, axis=0), np.std(shares, axis=0), rtol=0.25)
    np.testing.assert_allclose(np.mean(shares, axis=0), 0.2, atol=0.02)
    np.testing.assert_allclose(shares[0].sum(axis=0), 1.0, rtol=1e-12)


def split(result):
    """The replicates in 100 batches."""
    pairs = zip(np.split(result.z, 100), np.split(result.exact, 100), strict=True)
    return [Calibration(z, exact, 0, 0) for z, exact in pairs]


def planted(change):
    def wrong(*args):
        posterior, mean, variance, done = refit(*args)
        return posterior, *change(mean, variance), done

    return simulate_calibration(gaussian(), 100, seed=2, refit=wrong)


def test_halved_variances_are_found():
    result = planted(lambda mean, variance: (mean, variance / 2))
    value, error = result.dispersion
    assert abs(value[0] - np.sqrt(2)) < 4 * error[0]
    assert (result.coverage_p[:, 0] < 1e-4).all()
    coverage, errors = result.coverage
    # Half the variance: the 50 % interval covers 2 Φ(0.6745 / √2) - 1 = 0.3666, the 90 % interval 0.7552.
    np.testing.assert_array_less(np.abs(coverage[:, 0] - [0.3666, 0.7552]), 4 * errors[:, 0])
    assert result.symmetry_corrected[0] > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_shift_is_found_with_its_direction(sign):
    result = planted(lambda mean, variance: (mean + sign * 0.6 * variance**0.5, variance))
    value, error = result.bias
    assert abs(value[0] + sign * 0.6) < 4 * error[0]
    assert result.bias_p[0] < 1e-4
    assert result.symmetry_corrected[0] < 0.01


def test_one_label_against_quadrature():
    """Moments of z for one Bernoulli datum, over f by quadrature and over y exactly."""
    X, model = np.array([[0.0]]), model_of(pgm.Bernoulli(), variance=9.0, mean=1.2)
    result = simulate_calibration(pgm.cavi(model, X, np.array([1.0])), 4000, seed=5)
    f = np.linspace(1.2 - 24.0, 1.2 + 24.0, 20_001)
    density = stats.norm.pdf(f, 1.2, 3.0) * (f[1] - f[0])
    moments = np.zeros(4)
    for y, p in ((0.0, expit(-f)), (1.0, expit(f))):
        q = pgm.cavi(model, X, np.array([y]))
        z = (f - q.mean[0, 0]) / np.sqrt(q.variance[0, 0])
        moments += [(density * p * g).sum() for g in (z, z**2, np.abs(z) < 0.67449, np.abs(z) < 1.64485)]
    assert abs(result.bias[0][0] - moments[0]) < 4 * result.bias[1][0]
    assert abs(result.dispersion[0][0] - np.sqrt(moments[1])) < 4 * result.dispersion[1][0]
    np.testing.assert_array_less(np.abs(result.coverage[0][:, 0] - moments[2:]), 4 * result.coverage[1][:, 0])
    assert moments[1] > 1.2
    # q is wrong; the error of a share of 4,000 independent uniforms, from 8 draws each, is that of an exact q.
    np.testing.assert_allclose(result.histogram()[1], np.sqrt(0.1 * 0.9 / 4000), rtol=0.05)


def test_cavi_on_labels_is_too_narrow():
    X = np.random.default_rng(0).uniform(-2.0, 2.0, (30, 2))
    vi = pgm.cavi(model_of(pgm.Bernoulli(), variance=9.0), X, (X[:, 0] > 0.2).astype(float))
    result = simulate_calibration(vi, 100, seed=1)
    assert result.dispersion[0][0] > 1.1
    assert (result.coverage_p[:, 0] < 0.001).any()
    assert (result.coverage[0][:, 0] < LEVELS).all()


@pytest.mark.slow
def test_replicates_are_what_cavi_finds_with_covariates_kept():
    X = np.random.default_rng(0).uniform(-2.0, 2.0, (8, 1))
    trials = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0])
    vi = pgm.cavi(model_of(pgm.Binomial()), X, np.column_stack([np.ones(8), trials]))
    result = simulate_calibration(vi, 3, seed=7)
    with jax.enable_x64(True):
        prior_key, _ = jax.random.split(jax.random.key(7))
        f = np.stack([vi.prior.draw(key)[0] for key in jax.random.split(prior_key, 3)])
    successes = draw_observations(vi.model.likelihood, f, trials[:, None], np.random.default_rng(7))
    assert (successes <= trials).all()
    for r in range(3):
        again = pgm.cavi(vi.model, X, np.column_stack([successes[r], trials]))
        # Both stop at a relative change of the ELBO of 1e-9, which leaves about 1e-6 in the moments.
        np.testing.assert_allclose(result.z[r], (f[r] - again.mean) / np.sqrt(again.variance), atol=1e-5)


@pytest.mark.slow
def test_nothing_compiles_twice_and_unseen_classes_do_no_harm():
    X = np.array([[-1.0], [0.3], [1.1], [1.5]])
    vi = pgm.cavi(model_of(pgm.LogisticSoftmax(3), size=3), X, np.array([0.0, 1.0, 2.0, 2.0]))
    result = simulate_calibration(vi, 12, seed=0)
    traced = loop._run_block.cache_size()
    other = simulate_calibration(vi, 12, seed=1)
    assert loop._run_block.cache_size() == traced
    # Four data of three classes: some class is missing in most replicates.
    assert result.z.shape == (12, 4, 3)
    assert np.isfinite(result.z).all()
    assert not np.allclose(result.z, other.z)
    np.testing.assert_array_equal(result.z, simulate_calibration(vi, 12, seed=0).z)


@pytest.mark.parametrize("corrected", [False, True], ids=["cavi", "corrected"])
def test_any_number_of_workers_finds_the_same(corrected):
    X = np.random.default_rng(5).normal(size=(30, 2))
    vi = pgm.cavi(model_of(pgm.Bernoulli()), X, (X[:, 0] > 0.3).astype(float))
    vi = pgm.correct(vi) if corrected else vi
    alone, many = (simulate_calibration(vi, 12, seed=3, num_workers=number) for number in (1, 5))
    np.testing.assert_array_equal(many.z, alone.z)
    np.testing.assert_array_equal(many.exact, alone.exact)


def test_failed_and_unconverged_replicates_are_counted():
    numbers = count(1)

    def failing(*args):
        number = next(numbers)
        posterior, mean, variance, done = refit(*args)
        return posterior, mean * np.nan if number == 2 else mean, variance, done and number != 4

    result = simulate_calibration(gaussian(), 6, refit=failing)
    assert (result.num_replicates, result.num_failed, result.num_unconverged) == (5, 1, 1)
    with pytest.raises(ValueError, match="100 of 100 simulated data sets"):
        planted(lambda mean, variance: (mean * np.nan, variance))


def test_a_formula_that_says_not_what_y_can_be_is_refused():
    vi = pgm.cavi(model_of(undeclared()), np.array([[0.0], [1.0]]), np.array([0.0, 1.0]))
    with pytest.raises(ValueError, match="has no declared support of y"):
        simulate_calibration(vi, 4)
