"""Formulas whose parts leave the range of doubles: sums, products, powers and ratios, in logarithms with signs."""

import warnings

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

import pgmodels as pgm
from pgmodels.likelihoods.expression import Environment
from pgmodels.likelihoods.likelihood import log_density
from pgmodels.likelihoods.sampling import is_normalised

COUNTS = np.array([0.0, 1.0, 169.0, 171.0, 400.0, 1e5])


@pgm.likelihood(support=pgm.Counts())
def zero_inflated(y, f, p=pgm.Parameter(0.3, positive=True), r=pgm.Parameter(2.0, positive=True)):
    q = pgm.sigmoid(f)
    return p * (y == 0) + (1 - p) * pgm.gamma(y + r) / pgm.gamma(r) / pgm.gamma(y + 1) * q**r * (1 - q) ** y


def exact(y, f, p, r):
    """The log density and its slopes in f and p."""
    with mpmath.workdps(60):
        f, p, r = mpmath.mpf(f), mpmath.mpf(p), mpmath.mpf(r)

        def log_p(f, p):
            q = 1 / (1 + mpmath.exp(-f))
            count = mpmath.exp(
                mpmath.loggamma(y + r)
                - mpmath.loggamma(r)
                - mpmath.loggamma(y + 1)
                + r * mpmath.log(q)
                + y * mpmath.log(1 / (1 + mpmath.exp(f)))
            )
            return mpmath.log(p * (y == 0) + (1 - p) * count)

        slopes = [mpmath.diff(lambda f: log_p(f, p), f), mpmath.diff(lambda p: log_p(f, p), p)]
        return float(log_p(f, p)), [float(slope) for slope in slopes]


@pytest.mark.parametrize("r", [0.1, 2.0, 1e4])
@pytest.mark.parametrize("f", [-40.0, 0.7, 40.0])
def test_zero_inflated_negative_binomial_at_any_count(f, r):
    formula = zero_inflated(r=r).formula(1)

    def log_p(f, p):
        env = Environment(as_double(COUNTS), f, {"p": p, "r": as_double(r)})
        return formula.log_evaluate(env)[..., 0]

    with jax.enable_x64(True):
        as_double = lambda x: jnp.asarray(x, jnp.float64)  # noqa: E731
        at = as_double(np.full((len(COUNTS), 1), f)), as_double(np.full((len(COUNTS), 1), 0.3))
        value, pull = jax.vjp(log_p, *at)
        slopes = [np.asarray(slope)[:, 0] for slope in pull(jnp.ones(len(COUNTS)))]
    for i, y in enumerate(COUNTS):
        log_exact, slopes_exact = exact(int(y), f, 0.3, r)
        # log Γ of 1e5 is 1e6, of which a rounding is 2e-10.
        np.testing.assert_allclose(value[i], log_exact, rtol=1e-12, atol=2e-9)
        np.testing.assert_allclose([slope[i] for slope in slopes], slopes_exact, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(("p", "r", "f"), [(0.3, 0.1, 0.4), (0.05, 2.0, -3.0), (0.6, 1e4, 4.0)])
def test_scipy_has_the_same_counts(p, r, f):
    q = 1.0 / (1.0 + np.exp(-f))
    with np.errstate(divide="ignore"):
        expected = np.log(p * (COUNTS == 0) + (1 - p) * stats.nbinom.pmf(COUNTS, r, q))
    got = log_density(zero_inflated(p=p, r=r), COUNTS, np.full((len(COUNTS), 1), f))
    there = np.isfinite(expected)
    assert there.sum() >= 3
    np.testing.assert_allclose(got[there], expected[there], rtol=1e-9)


@pytest.mark.parametrize("r", [0.1, 2.0, 1e4])
def test_it_is_known_to_be_normalised_and_its_counts_are_allowed(r):
    likelihood = zero_inflated(r=r)
    assert is_normalised(likelihood, 1, for_all_parameters=True)
    model = pgm.Model(likelihood, pgm.GP(pgm.RBF(1.0, 1.0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(model.check_observations(COUNTS, len(COUNTS)), COUNTS)


def test_a_lost_factor_is_not_known_to_be_normalised():
    @pgm.likelihood(support=pgm.Counts())
    def lost(y, f, p=pgm.Parameter(0.3, positive=True), r=pgm.Parameter(2.0, positive=True)):
        return p * (y == 0) + pgm.gamma(y + r) / pgm.gamma(y + 1) * pgm.sigmoid(f) ** r * pgm.sigmoid(-f) ** y

    assert is_normalised(lost(), 1) is False


def log_and_slopes(formula, f, y=1.0, size=1):
    expression = pgm.likelihood(formula)().formula(size)
    with jax.enable_x64(True):
        y, f = jnp.asarray([y], jnp.float64), jnp.asarray(f, jnp.float64).reshape(1, size)
        value, slopes = jax.value_and_grad(lambda f: expression.log_evaluate(Environment(y, f, {})).sum())(f)
    return float(value), np.asarray(slopes)[0]


APART = np.log(1 - np.exp(-1))
EXTREMES = {
    "a difference of exponentials": (lambda y, f: pgm.exp(f) - pgm.exp(f - 1), [800.0], 800 + APART, [1.0]),
    "of small ones": (lambda y, f: pgm.exp(-f) - pgm.exp(-f - 1), [800.0], -800 + APART, [-1.0]),
    "a ratio of sums": (lambda y, f: (pgm.exp(f) + 2) / (pgm.exp(f) - 3), [800.0], 0.0, [0.0]),
    "a ratio in an argument": (lambda y, f: pgm.exp(-pgm.exp(f) / (1 + pgm.exp(f))), [800.0], -1.0, [0.0]),
    "the logarithm of a sum": (lambda y, f: pgm.exp(-2 * pgm.log(1 + pgm.exp(f))), [800.0], -1600.0, [-2.0]),
    "a power": (lambda y, f: (1 + pgm.exp(f)) ** 3 - 1, [500.0], 1500.0, [3.0]),
    "a power by y": (lambda y, f: (pgm.exp(f) - 1) ** y - 1, [500.0], 1500.0, [3.0], 3.0),
    "an even power of a negative number": (lambda y, f: (1 - pgm.exp(f)) ** 2 + 1, [500.0], 1000.0, [2.0]),
    "a negative number by y": (lambda y, f: (1 - pgm.exp(f)) ** y, [500.0], 2000.0, [4.0], 4.0),
    "a large power of f": (lambda y, f: f**150 + 1, [-1e4], 600 * np.log(10), [-0.015]),
    "abs of a difference": (lambda y, f: abs(1 - pgm.exp(f)), [800.0], 800.0, [1.0]),
    "a binomial coefficient": (
        lambda y, f: 1 + pgm.gamma(y + 1) / pgm.gamma(y / 2 + 1) ** 2 * pgm.sigmoid(f) - pgm.sigmoid(-f),
        [0.0],
        float(mpmath.loggamma(2001) - 2 * mpmath.loggamma(1001) - mpmath.log(2)),
        [0.5],
        2000.0,
    ),
    "a sum over latents": (
        lambda y, f: pgm.sum(pgm.exp(f) * (2 - pgm.positions(f))) - 1,
        [800.0, 799.0],
        800 + np.log(2 + np.exp(-1)),
        [2 / (2 + np.exp(-1)), np.exp(-1) / (2 + np.exp(-1))],
    ),
    "a product over latents": (
        lambda y, f: pgm.prod(1 - pgm.exp(f)) + 1,
        [500.0, 600.0],
        1100.0,
        [1.0, 1.0],
    ),
    "beside an indicator that is off": (
        lambda y, f: (1 - pgm.exp(f)) * (y == 0) + (2 - pgm.exp(-f)) * pgm.exp(-f),
        [800.0],
        -800 + np.log(2),
        [-1.0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXTREMES)
def test_values_and_slopes_beyond_doubles(name):
    formula, f, log_exact, slopes_exact, *y = EXTREMES[name]
    value, slopes = log_and_slopes(formula, f, *y, size=len(f))
    assert value == pytest.approx(log_exact, rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(slopes, slopes_exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("formula", "f", "log_exact", "slopes_exact"),
    [
        (lambda y, f: 1 / (1 + (y - f) ** 2), [1.0], 0.0, [0.0]),  # a Student-t density at its mode
        (lambda y, f: 1 + f[0] * f[1] * pgm.exp(f[2]), [0.0, 3.0, 2.0], 0.0, [3 * np.exp(2.0), 0.0, 0.0]),
        (lambda y, f: 1 + f**3, [0.0], 0.0, [0.0]),
    ],
)
def test_slopes_where_a_term_is_zero(formula, f, log_exact, slopes_exact):
    value, slopes = log_and_slopes(formula, f, size=len(f))
    assert value == pytest.approx(log_exact, abs=1e-15)
    np.testing.assert_allclose(slopes, slopes_exact, rtol=1e-12)


def test_the_logarithm_of_a_negative_number_is_none():
    assert np.isnan(log_and_slopes(lambda y, f: 1 - pgm.exp(f), [800.0])[0])
