"""Priors in coefficients, whose posteriors are exact at any prior variances, against closed forms of 60 digits."""

from functools import partial

import jax
import mpmath
import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from pgmodels.priors.dense import CoefficientPrior, turned_features

rng = np.random.default_rng(7)
YEARS = np.arange(1990.0, 2030.0, 5.0)
LINE = np.column_stack([np.ones_like(YEARS), YEARS])
Y = 3.0 + 0.2 * (YEARS - 2007.0) + 1.45 * rng.standard_normal(len(YEARS))
NEW = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 2031.5]])
THREE = rng.standard_normal((7, 3))


def closed_form(F, noise, y, new):
    """Mean and sd of new @ beta given y = F beta + noise with beta ~ N(0, I), in 60 digits."""
    with mpmath.workdps(60):
        F, y, new = mpmath.matrix(F), mpmath.matrix(y), mpmath.matrix(new)
        precision = mpmath.eye(F.cols) + F.T * F / mpmath.mpf(noise) ** 2
        covariance = precision**-1
        mean = new * (covariance * (F.T * y)) / mpmath.mpf(noise) ** 2
        variance = [(new[i, :] * covariance * new[i, :].T)[0] for i in range(new.rows)]
        return np.array([float(m) for m in mean]), np.array([float(mpmath.sqrt(v)) for v in variance])


def linear(sds, **options):
    return pgm.GP(pgm.Linear(pgm.Fixed(np.square(sds))), mean=pgm.Fixed(0.0), **options)


KERNELS = {
    "linear": pgm.Linear([0.5, 2.0, 3.0]),
    "constant": pgm.Constant(0.7),
    "correlated": pgm.On(pgm.Linear([2.0, 0.5], [[1.0, 0.0], [-0.6, 0.8]]), [1, 0]),
    "sum": pgm.On(pgm.Linear(0.5), [2]) + pgm.Constant(0.3),
    "product": (pgm.Constant(2.0) + pgm.On(pgm.Linear(0.5), [2])) * (pgm.On(pgm.Linear(1.5), [0]) + pgm.Constant(0.3)),
    "difference": pgm.Difference(pgm.Linear(0.5), [0], [2]),
}


@pytest.mark.parametrize("name", KERNELS)
def test_features_of_a_kernel_multiply_to_its_matrix(name):
    X, Z = THREE[:4], THREE[3:]
    with jax.enable_x64(True):
        F, G = (np.asarray(KERNELS[name].features(jax.numpy.array(rows))) for rows in (X, Z))
    np.testing.assert_allclose(F @ G.T, KERNELS[name](X, Z), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("kernel", [pgm.RBF(1.0, 1.0), pgm.White(), pgm.Linear() + pgm.Matern12(1.0, 1.0)])
def test_kernels_without_features_keep_their_prior(kernel):
    model = pgm.Model(pgm.Gaussian(scale=1.0), pgm.GP(kernel))
    assert not isinstance(model.prior(THREE).groups[0], CoefficientPrior)


@pytest.mark.parametrize("sds", [(1e8, 1e8), (1e8, 1.0), (1e-3, 1e8)])
def test_turned_features_are_a_root_with_nearly_orthogonal_rows_at_any_sizes(sds):
    F = LINE * np.array(sds)
    A, turn = turned_features(F)
    np.testing.assert_allclose(turn.T @ turn, np.eye(2), atol=1e-14)
    np.testing.assert_allclose(A.T, F @ turn, rtol=1e-12, atol=1e-13 * np.abs(F).max())
    # Normalised rows: the columns, of which one is almost a multiple of the other, have a correlation of 0.99998.
    normal = A / np.linalg.norm(A, axis=1, keepdims=True)
    assert abs(normal[0] @ normal[1]) < 0.01
    # The determinant of F^T F, in which the rounding of a product F turn would show.
    with mpmath.workdps(60):
        exact = mpmath.det(mpmath.matrix(F).T * mpmath.matrix(F))
        np.testing.assert_allclose(float(mpmath.det(mpmath.matrix(A) * mpmath.matrix(A).T) / exact), 1.0, rtol=1e-9)


@pytest.mark.parametrize("engine", [pgm.cavi, pgm.gaussian_vi])
@pytest.mark.parametrize("sds", [(1e4, 1e4), (1e8, 1e8), (1e8, 0.3), (2.0, 1e6)])
def test_a_line_over_years_is_exact_at_any_prior_deviations(engine, sds):
    result = engine(pgm.Model(pgm.Gaussian(scale=1.45), linear(sds)), LINE, Y)
    mean, sd = closed_form(LINE * sds, 1.45, Y, NEW * sds)
    m, v = (part[:, 0] for part in result.predict_latent(NEW))
    np.testing.assert_allclose(m, mean, rtol=1e-8, atol=1e-6 * sd.min())
    np.testing.assert_allclose(np.sqrt(v), sd, rtol=1e-8)


def test_a_cubic_over_years_is_exact():
    """Its columns are equal to 1e-7, so that F^T F is singular in double precision."""
    F = np.column_stack([(YEARS / 2000.0) ** power for power in range(4)]) * 1e8
    result = pgm.cavi(pgm.Model(pgm.Gaussian(scale=1.45), linear([1e8] * 4)), F / 1e8, Y)
    mean, sd = closed_form(F, 1.45, Y, F)
    np.testing.assert_allclose(result.mean[:, 0], mean, rtol=1e-7)
    np.testing.assert_allclose(np.sqrt(result.variance[:, 0]), sd, rtol=1e-7)


@pytest.mark.parametrize("coupled", [False, True])
def test_collinear_columns_have_the_posterior_of_their_span(coupled):
    """Twice the same column, of prior variance s^2 each, is once the column, of 2 s^2."""
    X = np.column_stack([LINE, YEARS])
    one = np.column_stack([LINE[:, 0], YEARS * np.sqrt(2.0)]) * 1e5
    likelihood = pgm.with_predictor(pgm.Gaussian(scale=1.45), 2 if coupled else 1)
    more = [pgm.GP(pgm.Constant(pgm.Fixed(4.0)), mean=pgm.Fixed(0.0))] * coupled
    result = pgm.cavi(pgm.Model(likelihood, [linear([1e5] * 3), *more]), X, Y)
    F = np.column_stack([one, 2.0 * np.ones(len(one))]) if coupled else one
    mean, sd = closed_form(F, 1.45, Y, np.column_stack([one, 0.0 * one])[:, : F.shape[1]])
    m, v = (part[:, 0] for part in result.predict_latent(X))
    np.testing.assert_allclose(m, mean, rtol=1e-6)
    np.testing.assert_allclose(np.sqrt(v), sd, rtol=1e-6)


def test_effects_of_groups_beside_a_wide_line_are_exact():
    groups = np.array([0.0, 1, 0, 2, 1, 0, 2, 2])
    sds = np.array([1e8, 1e8])
    white = pgm.GP(pgm.On(pgm.White(pgm.Fixed(0.49)), [2]), mean=pgm.Fixed(0.0))
    on = pgm.GP(pgm.On(pgm.Linear(pgm.Fixed(sds**2)), [0, 1]), mean=pgm.Fixed(0.0))
    model = pgm.Model(pgm.with_predictor(pgm.Gaussian(scale=1.45), 2), [on, white])
    result = pgm.cavi(model, np.column_stack([LINE, groups]), Y)
    effects = 0.7 * (groups[:, None] == np.arange(3))
    F = np.column_stack([LINE * sds, effects])
    new = np.zeros((5, 5))
    new[:2, :2], new[2:, 2:] = np.diag(sds), 0.7 * np.eye(3)
    mean, sd = closed_form(F, 1.45, Y, new)
    at = np.column_stack([np.vstack([np.eye(2), np.zeros((3, 2))]), [0.0, 0, 0, 1, 2]])
    m, v = result.predict_latent(at)
    latent = np.array([0, 0, 1, 1, 1])
    np.testing.assert_allclose(m[np.arange(5), latent], mean, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(np.sqrt(v[np.arange(5), latent]), sd, rtol=1e-7)


def test_more_coefficients_than_rows_keep_the_variance_that_the_rows_do_not_see():
    X, sds = THREE[:2], np.array([1e3, 1e6, 10.0])
    result = pgm.cavi(pgm.Model(pgm.Gaussian(scale=0.5), linear(sds)), X, np.array([0.3, -1.2]))
    mean, sd = closed_form(X * sds, 0.5, [0.3, -1.2], THREE * sds)
    m, v = (part[:, 0] for part in result.predict_latent(THREE))
    np.testing.assert_allclose(m, mean, rtol=1e-7, atol=1e-6)
    np.testing.assert_allclose(np.sqrt(v), sd, rtol=1e-6)


@pytest.mark.parametrize("sd", [1e4, 1e5, 1e8])
def test_fit_of_a_line_over_years_has_restricted_maximum_likelihood(sd):
    """With flat priors of the coefficients, the scale is that of n - 2 degrees of freedom. There is no warning."""
    model = pgm.Model(pgm.Gaussian(scale=1.0), linear([1e4 * sd, sd]))
    result = pgm.fit(model, LINE, Y)
    beta, (squares,), _, _ = np.linalg.lstsq(LINE, Y, rcond=None)
    scale = np.sqrt(squares / (len(Y) - 2))
    np.testing.assert_allclose(result.model.likelihood.parameters["scale"].value, scale, rtol=1e-4)
    m, v = (part[:, 0] for part in result.predict_latent(np.eye(2)))
    np.testing.assert_allclose(m, beta, rtol=1e-4)
    expected = scale * np.sqrt(np.diag(np.linalg.inv(LINE.T @ LINE)))
    np.testing.assert_allclose(np.sqrt(v), expected, rtol=2e-4)


def test_coefficients_of_a_wide_prior_move_with_learned_parameters_as_in_closed_form():
    """Of the generalised delta method: central differences of the mean in closed form at moved parameters."""
    groups = np.array([0.0, 1, 0, 2, 1, 0, 2, 2])
    wide = pgm.GP(pgm.On(pgm.Linear(pgm.Fixed([1e12, 1e12])), [0, 1]), mean=pgm.Fixed(0.0))
    white = pgm.GP(pgm.On(pgm.White(dist.LogNormal(0.0, 1.0)), [2]), mean=pgm.Fixed(0.0))
    model = pgm.Model(pgm.with_predictor(pgm.Gaussian(scale=dist.LogNormal(0.0, 0.5)), 2), [wide, white])
    y = Y + np.array([1.5, -2.0, 0.5])[groups.astype(int)]
    result = pgm.fit(model, np.column_stack([LINE, groups]), y)
    indicators = (groups[:, None] == np.arange(3)).astype(float)

    def line(scores):
        values = result.uncertainty.values(result.model, scores[None])
        scale, variance = (float(next(v for k, v in values.items() if k.endswith(n))[0]) for n in ("scale", "variance"))
        F = np.column_stack([1e6 * LINE, np.sqrt(variance) * indicators])
        return closed_form(F, scale, y, np.eye(2, 5) * 1e6)[0]

    steps = 1e-3 * np.eye(result.uncertainty.root.shape[1])
    expected = np.array([(line(step) - line(-step)) / 2e-3 for step in steps])
    shifts = result.shifts_at(np.column_stack([np.eye(2), np.zeros(2)]))[:, :, 0]
    largest = np.abs(expected).max(axis=0)
    # Of the intercept and the slope, far above the rounding of the closed form.
    assert (largest > [1.0, 1e-3]).all()
    np.testing.assert_allclose(shifts / largest, expected / largest, atol=1e-3)


@pytest.mark.parametrize("beside", [False, True])
def test_fit_of_levels_of_a_wide_prior_has_their_means_and_the_variance_within(beside):
    """With flat priors of the levels, the scale is that of n - 3 degrees of freedom."""
    groups = np.repeat([0.0, 1.0, 2.0], [3, 4, 5])
    y = np.array([5.0, -3.0, 2.0])[groups.astype(int)] + 1.3 * np.random.default_rng(0).standard_normal(12)
    white = pgm.GP(pgm.White(pgm.Fixed(1e16)), mean=pgm.Fixed(0.0))
    nothing = pgm.GP(pgm.Linear(pgm.Fixed(1e-12)), mean=pgm.Fixed(0.0))
    likelihood = pgm.with_predictor(pgm.Gaussian(scale=1.0), 2) if beside else pgm.Gaussian(scale=1.0)
    result = pgm.fit(pgm.Model(likelihood, [white, nothing] if beside else white), groups[:, None], y)
    means = np.array([y[groups == k].mean() for k in range(3)])
    scale = np.sqrt(np.sum((y - means[groups.astype(int)]) ** 2) / 9.0)
    np.testing.assert_allclose(result.model.likelihood.parameters["scale"].value, scale, rtol=1e-4)
    m, v = (part[:, 0] for part in result.predict_latent([[0.0], [1.0], [2.0], [7.0]]))
    np.testing.assert_allclose(m, [*means, 0.0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(np.sqrt(v), [*(scale / np.sqrt([3.0, 4.0, 5.0])), 1e8], rtol=2e-4)
    with jax.enable_x64(True):
        C = np.asarray(result.posterior.covariance_at(jax.numpy.array([[1.0], [1.0], [7.0], [7.0]])))
    C = C[0, :, 0] if beside else C[0]
    np.testing.assert_allclose(C[:2, :2], scale**2 / 4.0, rtol=1e-3)
    np.testing.assert_allclose(C[2:, 2:], 1e16, rtol=1e-12)
    np.testing.assert_allclose(C[:2, 2:], 0.0, atol=1e-6)


def test_fit_learns_the_variance_of_a_slope_as_in_closed_form():
    """Of one coefficient and known noise, the variance that maximises the marginal likelihood, in closed form."""
    model = pgm.Model(pgm.Gaussian(scale=pgm.Fixed(1.45)), pgm.GP(pgm.Linear(1.0), mean=pgm.Fixed(0.0)))
    x = YEARS - 2000.0
    result = pgm.fit(model, x[:, None], Y)
    estimate = x @ Y / (x @ x)
    # beta-hat ~ N(0, variance + noise^2 / x'x).
    expected = estimate**2 - 1.45**2 / (x @ x)
    np.testing.assert_allclose(result.model.gps[0].kernel.variance.value, expected, rtol=1e-4)


def test_fit_of_a_line_without_noise_says_that_the_bound_rises():
    model = pgm.Model(pgm.Gaussian(scale=1.0), linear([10.0, 10.0]))
    x = np.column_stack([np.ones(12), np.linspace(0.0, 1.0, 12)])
    with pytest.warns(pgm.FitWarning, match="ELBO still rises at the end of the search, scale = .*fit y exactly"):
        pgm.fit(model, x, x @ [1.0, 2.0])


def test_centred_and_raw_columns_have_the_same_slope_for_counts():
    """With a wide prior of the intercept it takes up the shift, whatever the likelihood."""
    y = np.array([0.0, 2, 1, 4, 3, 6, 9, 8])
    fits = [
        pgm.gaussian_vi(pgm.Model(pgm.Poisson(), linear([sd, 3.0])), np.column_stack([np.ones(8), x]), y)
        for x, sd in ((YEARS / 10.0, 1e7), (YEARS / 10.0 - 200.7, 1e7))
    ]
    (m, v), (expected_m, expected_v) = (result.predict_latent([[0.0, 1.0]]) for result in fits)
    np.testing.assert_allclose(m, expected_m, rtol=1e-5)
    np.testing.assert_allclose(v, expected_v, rtol=1e-5)


def test_joint_draws_at_new_rows_have_the_posterior_of_a_wide_prior():
    model = pgm.Model(pgm.Gaussian(scale=1.45), linear([1e8, 1e8]))
    result = pgm.cavi(model, LINE, Y)
    draws = result.draw_latents(NEW, num_draws=4000, seed=1)[:, :, 0]
    mean, sd = closed_form(LINE * 1e8, 1.45, Y, NEW * 1e8)
    # Five standard errors, of means and of deviations.
    assert (abs(draws.mean(axis=0) - mean) < 5.0 * sd / np.sqrt(4000)).all()
    assert (abs(draws.std(axis=0) / sd - 1.0) < 5.0 / np.sqrt(8000)).all()
    # The third row is the intercept and 2031.5 times the slope.
    np.testing.assert_allclose(draws[:, 2], draws[:, 0] + 2031.5 * draws[:, 1], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pgm.integrate, partial(pgm.gibbs, num_samples=4000)])
def test_engines_that_sample_the_scale_are_right_at_a_wide_prior(engine):
    """The slope given the scale is normal: its variance is E scale^2 / Sxx, with the scale's density by quadrature."""
    model = pgm.Model(pgm.Gaussian(scale=dist.HalfNormal(3.0)), linear([1e8, 1e8]))
    result = engine(model, LINE, Y)
    squares = np.linalg.lstsq(LINE, Y, rcond=None)[1][0]
    scale = np.linspace(0.05, 20.0, 20_000)
    logs = -(len(Y) - 2) * np.log(scale) - squares / (2.0 * scale**2) - scale**2 / 18.0
    weights = np.exp(logs - logs.max())
    expected = (weights @ scale**2) / weights.sum() / np.sum((YEARS - YEARS.mean()) ** 2)
    variance = result.predict_latent(np.eye(2))[1][1, 0]
    np.testing.assert_allclose(variance, expected, rtol=0.08)
