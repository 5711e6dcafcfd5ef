"""Small inputs from public bug reports of other libraries, Gaussian, with values found by other means.

Typed values are of dense matrices and Kalman filters in double precision; the rest is worked out here.
"""

import csv
import os
from functools import cache
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize
from scipy.special import expit, gammaln

import pgmodels as pgm

Fixed = pgm.Fixed
# Monthly means of carbon dioxide in the air, from March 1958 on; three months are missing (Keeling and Whorf 2004).
MISSING = (3, 7)
CARBON = """
316.1 317.2 317.43 315.62 314.95 313.5 313.43 314.7 315.5 316.7 316.73 317.68 318.32 318.03 316.52 314.9 313.82 313.4
314.88 315.53 316.38 316.98 317.57 319.12 319.93 319.45 318.06 315.77 314.18 313.84 315.02 316.2 316.93 317.65 318.52
319.42 320.48 319.75 318.32 316.78 315.04 315.35 316.05 316.98 317.93 318.62 319.68 320.55 320.9 320.5 319.43 317.73
316.07 315.48 316.55 317.53 318.73 318.97 319.86 321.27
"""


def numbers(table):
    return np.array(table.split(), float)


def gaussian(kernel, scale, **options):
    return pgm.Model(pgm.Gaussian(scale), pgm.GP(kernel, **options))


def log_normal(y, covariance):
    """log N(y; 0, covariance)."""
    return -0.5 * (y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(2 * np.pi * covariance)[1])


def test_a_singular_covariance_with_hardly_any_noise():
    """A square of a line, by least squares of rank 3; others clip negative variances to 0."""
    x = np.random.RandomState(4).uniform(0, 5, 10)[:, None]
    y, X_new = np.sin((x[:, 0] - 2.5) ** 2), np.array([0, 1.25, 2.5, 3.75, 5])[:, None]
    right = {
        1e-2: (
            [-0.021769, 0.619793, 0.718504, 0.274365, -0.712624],
            [0.00722526, 0.00203395, 0.00240649, 0.00174337, 0.0038575],
        ),
        1e-6: (
            [-0.045721, 0.619780, 0.729169, 0.282445, -0.720392],
            [7.951e-7, 2.079e-7, 2.449e-7, 1.778e-7, 3.884e-7],
        ),
        # The limit: least squares, and variances proportional to that of the noise.
        1e-12: (
            [-0.045724, 0.619780, 0.729170, 0.282446, -0.720393],
            [7.951e-13, 2.079e-13, 2.449e-13, 1.778e-13, 3.884e-13],
        ),
    }
    for columns in (1, 3):
        line = pgm.Constant(1.0) + pgm.Linear(1.0 / columns)
        for noise, (mean, variance) in right.items():
            model = gaussian(pgm.Constant(0.1) * line * line, noise**0.5)
            result = pgm.cavi(model, np.repeat(x, columns, axis=1), y)
            m, v = (part[:, 0] for part in result.predict_latent(np.repeat(X_new, columns, axis=1)))
            np.testing.assert_allclose(m, mean, atol=2e-6)
            np.testing.assert_allclose(v, variance, rtol=1e-3)


@pgm.likelihood(support=pgm.Given(pgm.Real(), pgm.Positive()))
def measured(y, f):
    """Of a known variance each."""
    return pgm.normal_pdf(y[0], f, pgm.sqrt(y[1]))


@pytest.mark.parametrize(("of_y", "of_x"), [(1.0, 1.0), (1e4, 1e-6), (1e-4, 1e9)])
def test_units_change_nothing(of_y, of_x):
    X = np.array([[0.3660, 0.7463], [0.8714, 0.4299], [0.5104, 0.0620], [0.1276, 0.9511]])
    y, variances = np.array([10000.0, 11000.0, 12000.0, 20000.0]), np.array([100.0, 200.0, 150.0, 100.0])
    gp = pgm.GP(pgm.RBF(1e8 * of_y**2, 0.5 * of_x), mean=13250.0 * of_y)
    result = pgm.cavi(pgm.Model(measured(), gp), X * of_x, np.column_stack([y * of_y, variances * of_y**2]))
    mean, variance = result.predict_latent(np.array([[0.5, 0.5], [0.9, 0.9]]) * of_x)
    np.testing.assert_allclose(mean[:, 0] / of_y, [7049.04629, 9283.04098], rtol=1e-8)
    np.testing.assert_allclose(np.sqrt(variance[:, 0]) / of_y, [2004.41931, 6602.40679], rtol=1e-8)
    assert result.elbo + 4.0 * np.log(of_y) == pytest.approx(-41.169176, abs=1e-6)


@pytest.mark.slow
def test_fit_finds_the_same_optimum_in_any_unit():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (24, 1))
    y = np.sin(6 * X[:, 0]) + 0.2 * rng.normal(size=24)
    base = pgm.fit(gaussian(pgm.RBF(), 1.0, mean=0.0), X, y)
    for of_y, of_x in ((1e4, 1.0), (1e-4, 1.0), (1.0, 1e6)):
        result = pgm.fit(gaussian(pgm.RBF(), 1.0, mean=0.0), X * of_x, y * of_y)
        assert result.elbo + 24 * np.log(of_y) == pytest.approx(base.elbo, abs=1e-4)
        assert result.fit.values["lengthscale"] / of_x == pytest.approx(base.fit.values["lengthscale"], rel=1e-2)
        assert result.fit.values["scale"] / of_y == pytest.approx(base.fit.values["scale"], rel=1e-2)


def kalman(y, step, variance, lengthscale, noise):
    """log p(y), and mean and variance of the last value, of a Matern-3/2 process at equal steps."""
    rate = np.sqrt(3.0) / lengthscale
    A = np.exp(-rate * step) * np.array([[1 + rate * step, step], [-(rate**2) * step, 1 - rate * step]])
    P = stationary = np.diag([variance, variance * rate**2])
    Q, m, log_p = stationary - A @ stationary @ A.T, np.zeros(2), 0.0
    for number, value in enumerate(y):
        if number:
            m, P = A @ m, A @ P @ A.T + Q
        spread, residual = P[0, 0] + noise, value - m[0]
        log_p -= 0.5 * (np.log(2 * np.pi * spread) + residual**2 / spread)
        m, P = m + P[:, 0] * residual / spread, P - np.outer(P[:, 0], P[0]) / spread
    return log_p, m[0], P[0, 0]


def series(n):
    """The first values of one of 50,000, whose log p(y) is -37611.92072."""
    x = 0.01 * np.arange(50_000)
    y = np.sin(x) + 0.5 * np.sin(2 * np.pi * x / 7) + 0.5 * np.random.default_rng(0).standard_normal(50_000)
    return x[:n, None], y[:n]


@pytest.mark.parametrize("n", [200, pytest.param(3000, marks=pytest.mark.slow)])
def test_a_long_series_is_that_of_a_kalman_filter(n):
    X, y = series(n)
    log_p, mean, variance = kalman(y, 0.01, 1.0, 2.0, 0.25)
    result = pgm.cavi(gaussian(pgm.Matern32(1.0, 2.0), 0.5), X, y)
    assert result.elbo == pytest.approx(log_p, abs=1e-4)
    m, v = result.predict_latent(np.array([X[-1], X[-1] + 1000.0]))
    np.testing.assert_allclose([m[0, 0], v[0, 0]], [mean, variance], atol=1e-6)
    # Far ahead the prior comes back.
    np.testing.assert_allclose([m[1, 0], v[1, 0]], [0.0, 1.0], atol=1e-6)


@pytest.mark.slow
def test_the_kalman_filter_is_right():
    y = series(50_000)[1]
    log_p, mean, variance = kalman(y, 0.01, 1.0, 2.0, 0.25)
    assert log_p == pytest.approx(-37611.92072, abs=1e-4)
    np.testing.assert_allclose([mean, variance], [-0.148483, 0.0154788], atol=1e-6)


def test_a_trend_a_season_and_gaps():
    """The kernel of Mauna Loa, with the values of the book (Rasmussen and Williams 2006, section 5.4.3)."""
    months = np.delete(np.arange(3, 3 + 60 + len(MISSING)), MISSING)
    t, y = 1958 + months / 12, numbers(CARBON)
    y = y - y.mean()
    kernel = (
        pgm.RBF(44.8**2, 51.6)
        + pgm.RBF(2.64**2, 91.5) * pgm.Periodic(1.0, 1.48, 1.0)
        + pgm.RationalQuadratic(0.536**2, 0.968, 2.89)
        + pgm.RBF(0.188**2, 0.122)
    )
    r = t[:, None] - t
    square = lambda length: np.exp(-0.5 * (r / length) ** 2)  # noqa: E731
    K = 44.8**2 * square(51.6) + 2.64**2 * square(91.5) * np.exp(-2 * (np.sin(np.pi * r) / 1.48) ** 2)
    K += 0.536**2 * (1 + (r / 0.968) ** 2 / (2 * 2.89)) ** -2.89 + 0.188**2 * square(0.122)
    result = pgm.cavi(gaussian(kernel, 0.0367**0.5), t[:, None], y)
    assert result.converged
    assert result.elbo == pytest.approx(log_normal(y, K + 0.0367 * np.eye(60)), abs=1e-6)


W = np.array([1.0, 0.8, -0.5])


@pgm.likelihood(support=pgm.Given(pgm.Real(), pgm.Classes(3)))
def outputs(y, f):
    """A shared latent by loadings, and one of each output."""
    log_terms = [(y[1] == k) * (float(W[k]) * f[0] + 0.1**0.5 * f[k + 1]) for k in range(3)]
    return pgm.normal_pdf(y[0], sum(log_terms), 0.1)


def of_index(A, B):
    share = jnp.asarray(np.outer(W, W) + 0.1 * np.eye(3))
    return share[A[:, 1].astype(int)][:, B[:, 1].astype(int)] * jnp.exp(-0.5 * ((A[:, :1] - B[:, 0]) / 0.3) ** 2)


def test_three_outputs_share_a_latent():
    """100, 50 and 50 rows in the long format; outputs learn from each other where they have no data."""
    g = np.random.default_rng(1)
    x = np.concatenate([g.random(100), 0.5 * g.random(50), 1.5 * g.random(50)])
    output = np.repeat([0.0, 1.0, 2.0], [100, 50, 50])
    y = np.choose(output.astype(int), [np.sin(6 * x), 0.8 * np.sin(6 * x), 0.3 - 0.5 * np.sin(6 * x)])
    y = y + 0.1 * g.standard_normal(200)
    X_new = np.array([(place, k) for k in range(3) for place in (0.25, 0.75, 1.25)])
    means = [0.98294, -1.01684, 0.46119, 0.77773, -0.84049, 0.31516, -0.19297, 0.83067, -0.17026]
    deviations = [0.02160, 0.02065, 0.35069, 0.02123, 0.23152, 0.43656, 0.03863, 0.03547, 0.03870]
    loadings = pgm.On(pgm.Coregion(3, loadings=W[:, None], kappa=0.1), [1])
    for kernel in (of_index, pgm.On(pgm.RBF(1.0, 0.3), [0]) * loadings):
        result = pgm.cavi(gaussian(kernel, 0.1), np.column_stack([x, output]), y)
        assert result.elbo == pytest.approx(157.950745, abs=1e-6)
        mean, variance = result.predict_latent(X_new)
        np.testing.assert_allclose(mean[:, 0], means, atol=1e-5)
        np.testing.assert_allclose(np.sqrt(variance[:, 0]), deviations, atol=1e-5)
    # The same by four latents in a formula.
    apart = pgm.cavi(pgm.Model(outputs(), pgm.GP(pgm.RBF(1.0, 0.3), size=4)), x[:, None], np.column_stack([y, output]))
    assert apart.elbo == pytest.approx(157.950745, abs=1e-5)


# Small inputs from public bug reports of other libraries, counts, grades and times, with values found by other means.
# Typed values are published, or of quadrature or importance sampling; the rest is worked out here.


# Kilometres east and north, children with malaria, and children, of 65 villages (Gambia; Thomson et al. 1999).
VILLAGES = """
349.6313 1458.055 17 33; 358.5431 1460.112 19 63; 360.3081 1460.026 7 17; 363.7957 1496.919 8 24
366.4005 1460.248 10 26; 366.6875 1463.002 7 18; 368.4205 1460.569 24 38; 370.3995 1460.301 7 56
370.6277 1499.589 6 57; 374.4026 1501.392 8 26; 377.0243 1495.994 6 31; 378.2183 1459.478 12 32
379.0978 1500.023 14 32; 379.752 1459.654 5 20; 381.7725 1491.676 5 53; 382.2359 1463.017 4 29
383.1619 1500.986 8 30; 386.8494 1501.264 15 21; 387.1364 1462.602 6 28; 389.747 1466.306 12 30
390.4019 1463.426 15 30; 391.9346 1499.785 10 27; 393.3475 1497.573 10 30; 395.4336 1490.858 1 34
397.0764 1501.881 13 20; 486.8281 1502.976 6 29; 488.3052 1508.483 11 29; 493.3068 1510.61 2 32
493.3348 1504.42 0 25; 496.3828 1503.397 0 12; 496.572 1504.953 6 40; 502.8108 1497.501 4 27
506.4002 1496.196 6 35; 507.5815 1496.568 3 31; 514.695 1489.011 12 33; 515.7036 1491.979 3 28
517.5574 1489.346 8 30; 517.7782 1491.917 6 28; 519.8289 1496.607 11 41; 523.5379 1485.623 7 28
572.2874 1475.233 11 37; 578.7924 1482.075 17 30; 582.1807 1485.578 17 29; 584.5435 1478.674 9 29
584.6529 1479.619 21 62; 586.2545 1479.185 7 35; 591.2978 1471.011 15 27; 594.5996 1468.916 9 11
594.6102 1467.776 14 15; 595.1195 1482.908 13 31; 596.1815 1474.316 19 30; 599.2595 1481.671 19 30
600.1578 1470.825 19 31; 601.4945 1469.864 19 29; 602.663 1489.336 28 62; 604.6693 1478.886 19 29
604.7312 1485.729 13 27; 606.0828 1475.711 5 8; 610.3596 1477.024 15 30; 611.26 1499.891 29 37
613.5295 1473.868 20 28; 614.6656 1482.815 15 60; 614.7225 1474.32 13 31; 620.0431 1497.633 12 13
622.0861 1474.011 15 31
"""
# Girls at 25 ages, and those past menarche (Poland; Milicer and Szczotka 1966).
AGES = [9.21, 10.21, 10.58, 10.83, *np.arange(11.08, 16.0, 0.25), 17.58]
GIRLS = [
    *(376, 200, 93, 120, 90, 88, 105, 111, 100, 93, 100, 108, 99, 106, 105, 117, 98, 97, 120, 102, 122, 111, 94, 114),
    1049,
]
PAST = [0, 0, 0, 2, 2, 5, 10, 17, 16, 29, 39, 51, 47, 67, 81, 88, 79, 90, 113, 95, 117, 107, 92, 112, 1049]
# Tenants by satisfaction (fastest), influence, type of house and contact (Copenhagen; Madsen 1976).
TENANTS = """
21 21 28 34 22 36 10 11 36 61 23 17 43 35 40 26 18 54 13 9 10 8 8 12 6 7 9 18 6 7 15 13 13 7 5 11 14 19 37 17 23 40 3 5
23 78 46 43 48 45 86 15 25 62 20 23 20 10 22 24 7 10 21 57 23 13 31 21 13 5 6 13
"""
# Grades of bitterness by nine judges, of two bottles each: cold, cold with contact, warm, warm with contact (Randall
# 1989).
BITTERNESS = "233444551213235423325544323232532343333332322454112223232223333412323244"
# Herd, new cases and cattle in up to four periods (pleuropneumonia in zebu; Lesnoff et al. 2004).
HERDS = """
2 14 3 12 4 9 0 5; 3 22 1 18 1 21; 8 22 2 16 0 16 2 20; 2 10 0 10 2 9 0 6; 5 18 0 25 0 24 1 4; 3 17 0 17 0 18 1 20;
8 16 1 10 3 9 0 5; 12 34; 2 9 0 6 0 8 0 6; 1 22 1 22 0 18 2 22; 0 25 5 27 3 22 1 22; 2 10 1 8 0 6 0 5;
1 21 2 24 0 19 0 23; 11 19 0 2 0 3 0 2; 1 19 1 15 1 15 0 15
"""


@cache
def trials():
    """From none to 5,000, in four rows that have nothing to do with each other."""
    y = np.array([(3, 10), (0, 0), (39, 674), (2500, 5000)])
    return pgm.gaussian_vi(pgm.Model(pgm.Binomial(), pgm.GP(pgm.White(1.0))), np.arange(4.0)[:, None], y)


@pytest.mark.slow
def test_no_trials_say_nothing_and_five_thousand_say_much():
    """Others refuse no trials at all, or give NaN at 5,000."""
    result = trials()
    # A Gaussian's mean is not that of a skewed posterior: a hundredth of a deviation.
    np.testing.assert_allclose(result.mean[:, 0], [-0.612331, 0.0, -2.729074, 0.0], atol=1e-3)
    np.testing.assert_allclose(pgm.correct(result).variance[:, 0], [0.318468, 1.0, 0.025173, 0.00079952], rtol=2e-3)
    shares = result.predict(result.X, np.ones((4, 1))).mean
    np.testing.assert_allclose(shares, [0.361233, 0.5, 0.061913, 0.5], atol=2e-4)


@pytest.mark.slow
def test_the_evidence_of_no_trials_and_of_five_thousand():
    evidence = pgm.log_evidence(trials())
    assert abs(evidence.value - -18.560532) < 4 * evidence.standard_error
    assert evidence.standard_error < 0.003


@pytest.mark.slow
def test_trials_at_twenty_five_sites():
    successes = [96, 89, 89, 75, 82, 71, 67, 53, 51, 45, 34, 28, 17, 17, 6, 4, 1, 2, 5, 1, 1, 0, 1, 0, 0]
    X, rows = np.linspace(0.0, 1.0, 25)[:, None], [0, 6, 12, 18, 24]
    y = np.column_stack([successes, np.full(25, 100)])
    result = pgm.gaussian_vi(pgm.Model(pgm.Binomial(), pgm.GP(pgm.Matern52(9.0, 0.5))), X, y)
    np.testing.assert_allclose(result.mean[rows, 0], [2.6467, 0.6047, -1.4633, -4.1181, -5.5667], atol=2e-3)
    deviation = np.sqrt(pgm.correct(result).variance[rows, 0])
    np.testing.assert_allclose(deviation, [0.2772, 0.1085, 0.1299, 0.3111, 0.7829], rtol=5e-3)
    shares = result.predict(X[rows], np.ones((5, 1))).mean
    np.testing.assert_allclose(shares, [0.93176, 0.64633, 0.18876, 0.01675, 0.00502], atol=2e-4)
    assert pgm.log_evidence(result, num_draws=20_000).value == pytest.approx(-67.7187, abs=0.01)


@pytest.mark.slow
def test_ages_of_menarche():
    """Logistic regression: 1.63197 +- .0591 a year about 13.0066 by maximum likelihood (MASS)."""
    X, y = np.array(AGES)[:, None] - 13.0, np.column_stack([PAST, GIRLS])
    model = pgm.Model(pgm.Binomial(), pgm.GP(pgm.Constant(1e4) + pgm.Linear(100.0)))
    ends = np.array([[0.0], [1.0]])
    for engine in (pgm.cavi, pgm.gaussian_vi):
        result = pgm.correct(engine(model, X, y))
        at_thirteen, a_year_on = result.predict_latent(ends)[0][:, 0]
        slope = a_year_on - at_thirteen
        # Posterior means are a fifth of a percent above the maximum.
        assert slope == pytest.approx(1.63197, rel=5e-3)
        assert 13.0 - at_thirteen / slope == pytest.approx(13.0066, abs=1e-3)
        draws = result.draw_latents(ends, num_draws=4000, seed=0)[..., 0]
        # Five standard errors of a deviation from 4,000 draws, and a percent.
        assert np.std(draws[:, 1] - draws[:, 0]) == pytest.approx(0.0591, rel=0.07)


@pytest.mark.slow
def test_three_ways_to_write_children_in_villages():
    """Binomial villages, Bernoulli with weights, and 2,035 rows, in metres too."""
    places, sick, tested = (lambda t: (t[:, :2], t[:, 2], t[:, 3]))(
        np.array([numbers(village) for village in VILLAGES.replace("\n", ";").strip(";").split(";")])
    )
    ways = np.sum(gammaln(tested + 1) - gammaln(sick + 1) - gammaln(tested - sick + 1))
    twice, ones = np.concatenate([places, places]), np.repeat([1.0, 0.0], 65)
    each = np.concatenate([sick, tested - sick])
    often = np.repeat(np.arange(130), each.astype(int))

    def model(likelihood, unit=1.0):
        return pgm.Model(likelihood, pgm.GP(pgm.Matern32(1.0, 20.0 * unit) + pgm.Constant(4.0)))

    villages = pgm.gaussian_vi(model(pgm.Binomial()), places, np.column_stack([sick, tested]))
    weighted = pgm.gaussian_vi(model(pgm.Bernoulli()), twice, ones, weights=each)
    children = pgm.gaussian_vi(model(pgm.Bernoulli(), 1000.0), 1000.0 * twice[often], ones[often])
    assert len(children.y) == 2035
    assert children.posterior.prior.groups[0].rank <= 72
    for result in (weighted, children):
        assert result.elbo == pytest.approx(villages.elbo - ways, abs=1e-5)
    assert ways == pytest.approx(1010.5790, abs=1e-4)
    assert pgm.log_evidence(villages).value == pytest.approx(-211.3444, abs=0.015)
    chosen = np.array([[349.6313, 1458.055], [358.5431, 1460.112], [506.4002, 1496.196], [622.0861, 1474.011]])
    for result, unit in ((villages, 1.0), (weighted, 1.0), (children, 1000.0)):
        mean, variance = pgm.correct(result).predict_latent(unit * chosen)
        np.testing.assert_allclose(mean[:, 0], [-0.132, -0.566, -1.765, -0.139], atol=4e-3)
        np.testing.assert_allclose(np.sqrt(variance[:, 0]), [0.304, 0.206, 0.268, 0.302], atol=4e-3)
    shares = villages.predict(chosen, np.ones((4, 1))).mean
    np.testing.assert_allclose(shares, [0.4678, 0.3635, 0.1493, 0.4660], atol=1e-3)


@pgm.likelihood(support=pgm.Given(pgm.Counts(), pgm.Positive()))
def exposed(y, f, dispersion=pgm.Parameter(1.0, positive=True)):
    z = f + pgm.log(y[1])
    ways = pgm.gamma(y[0] + dispersion) / (pgm.gamma(dispersion) * pgm.gamma(y[0] + 1))
    return ways * pgm.sigmoid(z) ** y[0] * pgm.sigmoid(-z) ** dispersion


@pytest.mark.slow
def test_exposure_counts_once():
    """Against maximum likelihood by SciPy, whose mean is e^f times the dispersion."""
    rng = np.random.default_rng(5)
    X, exposure = rng.normal(size=(100, 2)), rng.choice([10.0, 20.0, 30.0], 100)
    mean = exposure * np.exp(0.5 + X @ [1.0, -0.4])
    y = rng.negative_binomial(0.8, 0.8 / (0.8 + mean)).astype(float)

    def loss(p):
        r, rate = np.exp(p[0]), exposure * np.exp(p[1] + X @ p[2:])
        ways = gammaln(y + r) - gammaln(r) - gammaln(y + 1)
        return -np.sum(ways + r * np.log(r / (r + rate)) + y * np.log(rate / (r + rate)))

    right = minimize(loss, np.zeros(4), method="BFGS").x
    gp = pgm.GP(pgm.Constant(Fixed(1e4)) + pgm.Linear(Fixed(100.0)))
    result = pgm.fit(pgm.Model(exposed(), gp), X, np.column_stack([y, exposure]), objective="augmented")
    dispersion = float(result.fit.values["dispersion"])
    f = result.predict_latent(np.vstack([np.zeros(2), np.eye(2)]))[0][:, 0]
    np.testing.assert_allclose(dispersion, np.exp(right[0]), rtol=0.03)
    np.testing.assert_allclose([f[0] + np.log(dispersion), *(f[1:] - f[0])], right[1:], atol=0.03)
    once, twice = (result.predict(X[:3], factor * exposure[:3]).mean for factor in (1.0, 2.0))
    np.testing.assert_allclose(twice, 2.0 * once, rtol=1e-9)
    with pytest.raises(ValueError, match=r"depends on y\[1\], which was not given"):
        _ = result.predict(X[:3]).mean


def ordered(classes):
    return pgm.Model(pgm.Ordinal(classes), pgm.GP(pgm.Linear(Fixed(100.0)), mean=Fixed(0.0)))


def learned_grades(result, num_columns):
    """Coefficients and cut-points."""
    return result.predict_latent(np.eye(num_columns))[0][:, 0], result.fit.values["cuts"]


@pytest.mark.slow
def test_satisfied_tenants_with_weights():
    """MASS has .5664 1.2888 -.5723 -.3662 -1.0910 .3603, cut-points -.4961 .6907, and a deviance of 3479.1493."""
    contact, kind, influence, y = (part.ravel() for part in np.indices((2, 4, 3, 3)))
    X = np.column_stack([influence == 1, influence == 2, kind == 1, kind == 2, kind == 3, contact == 1]).astype(float)
    y, weights = y.astype(float), numbers(TENANTS)
    assert weights.sum() == 1681
    result = pgm.fit(ordered(3), X, y, weights=weights, objective="augmented")
    slopes, cuts = learned_grades(result, 6)
    # A twentieth of the smallest standard error, .096.
    np.testing.assert_allclose(slopes, [0.5664, 1.2888, -0.5723, -0.3662, -1.0910, 0.3603], atol=4e-3)
    np.testing.assert_allclose(cuts, [-0.4961, 0.6907], atol=4e-3)
    p = result.predict(X).probabilities
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-12)
    # Averages over the posterior are a little behind the maximum.
    assert 3479.1493 < -2 * weights @ np.log(p[np.arange(72), y.astype(int)]) < 3479.3
    often = np.repeat(np.arange(72), weights.astype(int))
    repeated = pgm.cavi(result.model.fixed(), X[often], y[often])
    assert repeated.elbo == pytest.approx(result.elbo, abs=1e-5)


@pytest.mark.slow
def test_grades_of_wine():
    """``ordinal`` has 2.5031 for warm and 1.5278 for contact, and cut-points -1.3444 1.2508 3.4669 5.0064."""
    warm, contact = np.tile(np.repeat([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], 2, axis=0), (9, 1)).T
    y = np.array([*map(float, BITTERNESS)]) - 1.0
    result = pgm.fit(ordered(5), np.column_stack([warm, contact]), y, objective="augmented")
    slopes, cuts = learned_grades(result, 2)
    # A percent is a twentieth of the smallest standard error.
    np.testing.assert_allclose(slopes, [2.5031, 1.5278], rtol=0.01)
    np.testing.assert_allclose(cuts, [-1.3444, 1.2508, 3.4669, 5.0064], rtol=0.01)


@pgm.likelihood(support=pgm.Given(pgm.SuccessesOfTrials(), pgm.Real()))
def shifted(y, f):
    z = f + y[2]
    ways = pgm.gamma(y[1] + 1) / (pgm.gamma(y[0] + 1) * pgm.gamma(y[1] - y[0] + 1))
    return ways * pgm.sigmoid(z) ** y[0] * pgm.sigmoid(-z) ** (y[1] - y[0])


def cattle():
    """Herds, and cases, cattle and the linear predictor at the maximum that lme4 finds with nAGQ."""
    rows = []
    for herd, counts in enumerate(HERDS.strip().split(";"), 1):
        rows += [(herd, period, *pair) for period, pair in enumerate(numbers(counts).reshape(-1, 2))]
    herd, period, cases, size = np.array(rows).T
    of_period = np.array([0.0, -0.9914, -1.1278, -1.5795])[period.astype(int)] - 1.3992
    return herd[:, None], np.column_stack([cases, size, of_period])


@pytest.mark.slow
def test_herds_with_effects_of_their_own():
    """The log likelihood of a mixed model is -91.9834 there; a herd that is new has the prior's variance."""
    X, y = cattle()
    assert len(y) == 56
    result = pgm.gaussian_vi(pgm.Model(shifted(), pgm.GP(pgm.White(0.64752**2))), X, y)
    evidence = pgm.log_evidence(result, num_draws=20_000)
    assert abs(evidence.value - -91.9834) < 4 * evidence.standard_error
    mean, variance = pgm.correct(result).predict_latent(np.array([[99.0]]))
    np.testing.assert_allclose([mean[0, 0], variance[0, 0]], [0.0, 0.64752**2], atol=1e-9)


@pytest.mark.slow
def test_times_that_are_censored():
    """Accelerated failure times against maximum likelihood by SciPy."""
    rng = np.random.default_rng(7)
    X = np.column_stack([np.ones(100), rng.normal(size=100)])
    time, limit = np.exp(X @ [1.8, 0.7] + 0.6 * rng.logistic(size=100)), rng.exponential(20.0, 100)
    y, event = np.minimum(time, limit), (time <= limit).astype(float)

    def loss(p):
        z = np.exp(p[0]) * (np.log(y) - X @ p[1:])
        return -np.sum(event * (p[0] - np.log(y) + np.log(expit(z))) + np.log(expit(-z)))

    right = minimize(loss, np.zeros(3), method="BFGS")
    model = pgm.Model(pgm.LogLogistic(1.5), pgm.GP(pgm.Linear(Fixed(100.0)), mean=Fixed(0.0)))
    result = pgm.fit(model, X, np.column_stack([y, event]), objective="expected")
    corrected = pgm.correct(result)
    mean, variance = corrected.conditional.predict_latent(np.eye(2))
    np.testing.assert_allclose(mean[:, 0], right.x[1:], atol=0.02)
    # With the shape held.
    spread = np.linalg.inv(np.linalg.inv(right.hess_inv)[1:, 1:])
    np.testing.assert_allclose(variance[:, 0], np.diag(spread), rtol=0.1)
    np.testing.assert_allclose(result.fit.values["shape"], np.exp(right.x[0]), rtol=0.03)
    # Times that were cut short are later than their records: taken for events, they would make others earlier.
    blind = pgm.gaussian_vi(result.model.fixed(), X, np.column_stack([y, np.ones(100)]))
    later, earlier = (one.predict(np.array([[1.0, 0.0]])).survival(6.0) for one in (result, blind))
    assert later > 1.3 * earlier
    with pytest.raises(ValueError, match="must hold times > 0; got 0 in row 0"):
        pgm.cavi(model, X[:2], np.array([[0.0, 1.0], [2.0, 1.0]]))


@pgm.likelihood(support=pgm.Clipped(low=0.0))
def tobit(y, f, scale=pgm.Parameter(1.0, positive=True)):
    return pgm.normal_cdf(-f / scale) ** (y == 0) * pgm.normal_pdf(y, f, scale) ** (y > 0)


@pytest.mark.slow
def test_a_tobit_regression():
    """Against maximum likelihood by SciPy; y is 0 with the probability that is said."""
    rng = np.random.default_rng(9)
    X = np.column_stack([np.ones(100), rng.normal(size=100)])
    y = np.maximum(X @ [-0.5, 1.5] + 2.0 * rng.normal(size=100), 0.0)

    def loss(p):
        scale, f = np.exp(p[0]), X @ p[1:]
        return -np.sum(np.where(y == 0, stats.norm.logcdf(-f / scale), stats.norm.logpdf(y, f, scale)))

    right = minimize(loss, np.zeros(3), method="BFGS")
    model = pgm.Model(tobit(), pgm.GP(pgm.Linear(Fixed(1e4)), mean=Fixed(0.0)))
    result = pgm.fit(model, X, y, objective="expected")
    corrected = pgm.correct(result)
    mean, variance = corrected.conditional.predict_latent(np.eye(2))
    np.testing.assert_allclose(mean[:, 0], right.x[1:], atol=0.05)
    # With the scale held.
    spread = np.linalg.inv(np.linalg.inv(right.hess_inv)[1:, 1:])
    np.testing.assert_allclose(variance[:, 0], np.diag(spread), rtol=0.1)
    # And learned; the inverse Hessian of BFGS is rough.
    np.testing.assert_allclose(corrected.predict_latent(np.eye(2))[1][:, 0], np.diag(right.hess_inv)[1:], rtol=0.25)
    np.testing.assert_allclose(result.fit.values["scale"], np.exp(right.x[0]), rtol=0.03)
    drawn = result.predict(X[:5]).draw(4000, seed=0)
    m, v = result.predict_latent(X[:5])
    none = stats.norm.cdf(-m[:, 0] / np.sqrt(v[:, 0] + result.fit.values["scale"] ** 2))
    np.testing.assert_allclose(np.mean(drawn == 0, axis=0), none, atol=5 * 0.5 / np.sqrt(4000))


# Published regressions of censored times and of counts, on tables of the folder PGMODELS_DATA, if they are there.


def table(name):
    path = Path(os.environ.get("PGMODELS_DATA", "")) / f"{name}.csv"
    if not path.is_file():
        pytest.skip(f"{name}.csv is not in the folder PGMODELS_DATA")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {column: np.array([row[column] for row in rows]) for column in rows[0]}


def learned(likelihood, X, y):
    """The fit of a linear predictor with wide priors, and means and deviations of the coefficients."""
    model = pgm.Model(likelihood, pgm.GP(pgm.Linear(Fixed(100.0)), mean=Fixed(0.0)))
    result = pgm.fit(model, X, y, objective="expected")
    mean, variance = pgm.correct(result).predict_latent(np.eye(X.shape[1]))
    return result, mean[:, 0], np.sqrt(variance[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "censoring", "slopes", "shape"),
    [
        (pgm.LogLogistic, "right", [1.8814, 0.0394, -0.0339], 1 / 0.62027),
        (pgm.LogLogistic, "interval", [1.8814, 0.0394, -0.0339], 1 / 0.62027),
        (pgm.Weibull, "right", [2.6879, 0.0353, -0.1268], 1 / 1.02063),
    ],
)
def test_lung_cancer(make, censoring, slopes, shape):
    """Days to death of 137 veterans (Kalbfleisch and Prentice 1980), by R's ``survreg``."""
    rows = table("veteran")
    time, event, score, treatment = (rows[name].astype(float) for name in ("time", "status", "karno", "trt"))
    y = np.column_stack([time, event] if censoring == "right" else [time, event, time])
    X = np.column_stack([np.ones(137), score, treatment == 2])
    result, mean, deviation = learned(make(1.0, censoring=censoring), X, y)
    # A twentieth of a standard error.
    np.testing.assert_array_less(np.abs(mean - slopes), 0.05 * deviation)
    # The shape that maximises the evidence is lower by a fifth of its standard error, 7 %.
    np.testing.assert_allclose(result.fit.values["shape"], shape, rtol=0.02)
    # A fifth of the deviation of the slope moves a median by less than a percent.
    at_sixty = result.predict(np.array([[1.0, 60.0, 0.0]]))
    log_median = np.dot(slopes, [1.0, 60.0, 0.0])
    half = np.exp(log_median) * (np.log(2.0) ** (1 / shape) if make is pgm.Weibull else 1.0)
    np.testing.assert_allclose(at_sixty.survival(half), 0.5, atol=0.02)


@pytest.mark.slow
def test_roaches():
    """Counts of 262 apartments with days of exposure (Gelman and Hill 2007), by R's ``glm.nb``."""
    rows = table("roaches")
    count, before, treated, senior, exposure = (
        rows[name].astype(float) for name in ("y", "roach1", "treatment", "senior", "exposure2")
    )
    X = np.column_stack([np.ones(262), before / 100, treated, senior])
    y = np.column_stack([count, np.log(exposure)])
    result, mean, deviation = learned(pgm.with_predictor(pgm.NegativeBinomial2(1.0), 1, offset=True), X, y)
    # The maximum of a skewed posterior is a sixth of a standard error from its mean.
    np.testing.assert_array_less(np.abs(mean - [2.8388, 1.2882, -0.7768, -0.3444]), 0.2 * deviation)
    np.testing.assert_allclose(result.fit.values["dispersion"], 0.27427, rtol=0.03)
    _, mean, deviation = learned(pgm.with_predictor(pgm.Poisson(), 1, offset=True), X, y)
    np.testing.assert_array_less(np.abs(mean - [3.0892, 0.6983, -0.5167, -0.3799]), 0.05 * deviation)
