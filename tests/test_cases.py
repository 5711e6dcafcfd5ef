"""Small inputs from public bug reports of other libraries, Gaussian, with values found by other means.

Typed values are of dense matrices and Kalman filters in double precision; the rest is worked out here.
"""

import jax.numpy as jnp
import numpy as np
import pytest

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
