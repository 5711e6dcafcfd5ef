"""Formulas whose parts leave the range of doubles: sums, products, powers and ratios, in logarithms with signs."""

import pickle
import warnings

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

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


def test_a_formula_without_a_factor_is_not_known_to_be_normalised():
    @pgm.likelihood(support=pgm.Counts())
    def incomplete(y, f, p=pgm.Parameter(0.3, positive=True), r=pgm.Parameter(2.0, positive=True)):
        return p * (y == 0) + pgm.gamma(y + r) / pgm.gamma(y + 1) * pgm.sigmoid(f) ** r * pgm.sigmoid(-f) ** y

    assert is_normalised(incomplete(), 1) is False


@pgm.likelihood(support=pgm.Clipped(0.0))
def without_normal_cdf(y, f):
    return pgm.normal_pdf(y, f, 0.8) ** (y > 0)


@pgm.likelihood(support=pgm.Counts())
def with_late_excess(y, f):
    return pgm.exp(y * f - pgm.exp(f)) / pgm.gamma(y + 1) + 0.1 * (y == 700)


@pytest.mark.parametrize("family", [without_normal_cdf, with_late_excess], ids=lambda family: family.__name__)
def test_mass_beyond_probabilities_that_sum_to_1_is_found(family):
    assert is_normalised(family(), 1) is False


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
    "next to an indicator that is off": (
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


# Several likelihoods side by side, against each of them in its rows.


Fixed = pgm.Fixed
# Where the value of one output is impossible for another: negative, not whole, above 1.
Y = np.array([[-0.7, 0, 1], [3.4, 0, 1], [1, 1, 1], [0, 1, 1], [7, 2, 1], [0, 2, 1], [3, 3, 5], [0, 3, 4]], float)
F = np.array([0.3, 2.9, -0.4, 1.2, 0.8, -1.1, 0.2, -0.9])


def four_kinds():
    return pgm.SwitchedLikelihood([pgm.Gaussian(0.5), pgm.Bernoulli(), pgm.NegativeBinomial(2.5), pgm.Binomial()])


def by_hand():
    """The distribution of each row of Y given F."""
    p = expit(F)
    one = [stats.norm(f, 0.5) for f in F[:2]] + [stats.bernoulli(q) for q in p[2:4]]
    return (
        one
        + [stats.nbinom(2.5, 1 - q) for q in p[4:6]]
        + [stats.binom(n, q) for n, q in zip((5, 4), p[6:], strict=True)]
    )


def shared(likelihood, kernel=None):
    return pgm.Model(likelihood, pgm.GP(kernel or pgm.RBF(1.5, 0.8), mean=0.2))


@pytest.mark.slow
def test_each_row_has_the_density_of_its_output():
    laws = by_hand()
    expected = [law.logpdf(y) if k == 0 else law.logpmf(y) for law, (y, k, _) in zip(laws, Y, strict=True)]
    np.testing.assert_allclose(log_density(four_kinds(), Y, F[:, None]), expected, rtol=1e-12)
    assert list(four_kinds().parameters) == ["scale_0", "dispersion_2"]
    assert is_normalised(four_kinds(), 1, for_all_parameters=True)


@pytest.mark.slow
def test_moments_and_draws_are_of_the_output():
    likelihood, laws = four_kinds(), by_hand()
    mean, variance = (np.asarray(part) for part in likelihood.moments(Y, F[:, None], 1))
    np.testing.assert_allclose(mean, [law.mean() for law in laws], rtol=1e-6)
    np.testing.assert_allclose(variance, [law.var() for law in laws], rtol=1e-6)
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(8), 4000)
    # The value in y is not read.
    y = np.column_stack([np.full(len(rows), np.nan), Y[rows, 1:]])
    drawn = likelihood.draw(rng, y, F[rows, None]).reshape(8, 4000)
    errors = (drawn.mean(axis=1) - mean) / np.sqrt(variance / 4000)
    assert np.abs(errors).max() < 4.0
    assert all(stats.kstest(drawn[row], laws[row].cdf).pvalue > 1e-3 for row in (0, 1))


def test_a_rate_of_one_output_may_be_infinite_where_another_is():
    """Gaussian values of 2000 would be counts of mean e^2000."""
    likelihood = pgm.SwitchedLikelihood([pgm.Gaussian(0.5), pgm.NegativeBinomial(2.5)])
    mean, variance = likelihood.moments(np.array([[1999.0, 0.0]]), np.array([[2000.0]]), 1)
    np.testing.assert_allclose([mean[0], variance[0]], [2000.0, 0.25], rtol=1e-5)


def test_formulas_of_users_with_exposure_and_cutpoints():
    @pgm.likelihood(support=pgm.Given(pgm.Counts(), pgm.Positive()))
    def counts(y, f, rate=pgm.Parameter(2.0, positive=True)):
        mean = rate * y[1] * pgm.sigmoid(f)
        return mean ** y[0] * pgm.exp(-mean) / pgm.gamma(y[0] + 1)

    @pgm.likelihood(support=pgm.Classes(3))
    def grades(y, f, cuts=pgm.Parameter([-0.5, 0.8])):
        below = [0, *(pgm.sigmoid(cut - f) for cut in cuts), 1]
        return pgm.sum((below[k + 1] - below[k]) * (k == y) for k in range(3))

    likelihood = pgm.SwitchedLikelihood([counts(), grades()])
    y = np.array([[4, 0, 2.5], [2, 1, 1.0], [0, 1, 1.0]])
    f = np.array([0.4, -0.2, 0.9])
    above = expit(np.array([-0.5, 0.8]) - f[1:, None])
    expected = [stats.poisson(5.0 * expit(0.4)).logpmf(4), np.log(1 - above[0, 1]), np.log(above[1, 0])]
    np.testing.assert_allclose(log_density(likelihood, y, f[:, None]), expected, rtol=1e-6)
    assert likelihood.parameters["cuts_1"].length == 2
    # Counts without declared moments: no formula for all.
    assert likelihood.conditional_mean is None
    drawn = likelihood.draw(np.random.default_rng(1), np.repeat(y, 3000, axis=0), np.repeat(f, 3000)[:, None])
    assert drawn[:3000].mean() == pytest.approx(5.0 * expit(0.4), abs=4 * np.sqrt(3.0 / 3000))
    assert (drawn[3000:6000] == 2).mean() == pytest.approx(1 - above[0, 1], abs=4 * 0.5 / np.sqrt(3000))
    with pytest.raises(ValueError, match=r"^y without its column of the output, at output 0: column 1 of.*row 2"):
        shared(likelihood).check(f[:, None], [[2, 1, 1], [0, 1, 1], [3, 0, -1]])


def data(n=30, seed=0):
    """A Gaussian output and labels of one latent: X (n, 2) and y (n, 2)."""
    rng = np.random.default_rng(seed)
    x, output = rng.uniform(0.0, 4.0, n), np.arange(n) % 2
    f = 1.5 * np.sin(2 * x)
    value = np.where(output == 0, f + 0.4 * rng.normal(size=n), rng.random(n) < expit(f))
    return np.column_stack([x, output]), np.column_stack([value, output])


def of_both(scale=0.4):
    likelihood = pgm.SwitchedLikelihood([pgm.Gaussian(Fixed(scale)), pgm.Bernoulli()])
    coregion = pgm.Coregion(2, loadings=[[1.2], [0.9]], kappa=0.1)
    return shared(likelihood, kernel=pgm.On(pgm.RBF(Fixed(1.0), 0.8), [0]) * pgm.On(coregion, [1]))


def test_two_gaussian_outputs_are_one_regression_with_two_noises():
    rng = np.random.default_rng(3)
    x, output = rng.uniform(0.0, 3.0, 20), np.arange(20) % 2
    y = rng.normal(size=20)
    likelihood = pgm.SwitchedLikelihood([pgm.Gaussian(0.3), pgm.Gaussian(0.9)])
    result = pgm.cavi(shared(likelihood), x[:, None], np.column_stack([y, output]))
    K = 1.5 * np.exp(-0.5 * ((x[:, None] - x) / 0.8) ** 2) + np.diag(np.where(output == 0, 0.09, 0.81))
    assert result.elbo == pytest.approx(stats.multivariate_normal(np.full(20, 0.2), K).logpdf(y), abs=1e-6)
    m, v = (part[:, 0] for part in result.predict_latent(x[:, None]))
    predictive = result.predict(x[:, None], covariates=output)
    np.testing.assert_allclose(predictive.mean, m, rtol=1e-6)
    np.testing.assert_allclose(predictive.variance, v + np.where(output == 0, 0.09, 0.81), rtol=1e-6)
    # A weight of 2 is a row twice, and one of 0 none.
    twice = np.r_[np.arange(18), :5]
    weights = np.r_[np.full(5, 2.0), np.ones(13), 0.0, 0.0]
    weighted = pgm.cavi(shared(likelihood), x[:, None], np.column_stack([y, output]), weights=weights)
    repeated = pgm.cavi(shared(likelihood), x[twice, None], np.column_stack([y, output])[twice])
    assert weighted.elbo == pytest.approx(repeated.elbo, abs=1e-7)


@pytest.mark.slow
def test_a_mixed_model_predicts_each_kind(tmp_path):
    X, y = data()
    model = of_both()
    result = pgm.cavi(model, X, y)
    new = np.array([[1.0, 0.0], [1.0, 1.0]])
    predictive = result.predict(new, covariates=[0, 1])
    m, v = (part[:, 0] for part in result.predict_latent(new))
    # The mean of a label by quadrature over its latent.
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    p = np.sum(weights * expit(m[1] + np.sqrt(v[1]) * nodes)) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(predictive.mean, [m[0], p], rtol=1e-6)
    np.testing.assert_allclose(predictive.variance, [v[0] + 0.16, p * (1 - p)], rtol=1e-6)
    expected = [stats.norm(m[0], np.sqrt(v[0] + 0.16)).logpdf(0.7), np.log(p)]
    np.testing.assert_allclose(predictive.log_density([[0.7, 0], [1, 1]]), expected, rtol=1e-6)
    with pytest.raises(ValueError, match=r"the mean of y by SwitchedLikelihood depends on y\[1\]"):
        _ = result.predict(new).mean
    with pytest.raises(ValueError, match=r"covariates must have the number of the output in column 0, 0 to 1; got 2"):
        result.predict(new, covariates=[0, 2])
    copy = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(copy.predict(new, covariates=[0, 1]).mean, predictive.mean)
    path = result.save(tmp_path / "fit.npz")
    with pytest.raises(ValueError, match="SwitchedLikelihood has a custom formula"):
        pgm.load(path)
    assert pgm.load(path, likelihood=model.likelihood).elbo == result.elbo


@pytest.mark.slow
def test_the_derivation_is_that_of_each_output():
    pgm.derive(of_both()).verify(seed=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "likelihoods",
    [
        [pgm.StudentT(4.0, 0.5), pgm.Laplace(0.6)],
        [pgm.Probit(), pgm.SigmoidPoisson(6.0)],
        [pgm.NegativeBinomial(2.0), pgm.Binomial(), pgm.Gaussian(0.5)],
        [pgm.StickBreaking(3), pgm.HeteroscedasticGaussian(4.0)],
    ],
    ids=lambda likelihoods: "_".join(likelihood.name for likelihood in likelihoods),
)
def test_derivations_of_other_kinds(likelihoods):
    likelihood = pgm.SwitchedLikelihood(likelihoods)
    assert is_normalised(likelihood, likelihood.num_latents, for_all_parameters=True)
    pgm.derive(pgm.Model(likelihood, pgm.GP(pgm.RBF(), size=likelihood.num_latents))).verify(seed=0)


@pytest.mark.slow
def test_engines_agree_on_a_mixed_model():
    X, y = data(24)
    draws = pgm.nuts(of_both(), X, y, num_samples=4000, num_warmup=1000, num_chains=2, seed=0)
    gibbs = pgm.gibbs(of_both(), X, y, num_samples=8000, num_warmup=500, num_chains=2, seed=1)
    normal = pgm.gaussian_vi(of_both(), X, y)
    deviation = np.sqrt(draws.variance)
    # Some 2000 effective draws: four standard errors of a mean.
    assert np.abs((gibbs.mean - draws.mean) / deviation).max() < 4 * np.sqrt(2 / 2000)
    # Of the variance, twice that; gaussian_vi has besides the error of a normal, hundredths of a deviation here.
    assert np.abs(gibbs.variance / draws.variance - 1).max() < 4 * np.sqrt(4 / 2000)
    assert np.abs((normal.mean - draws.mean) / deviation).max() < 4 * np.sqrt(1 / 2000) + 0.03
    assert np.abs(normal.variance / draws.variance - 1).max() < 4 * np.sqrt(2 / 2000) + 0.05


def test_what_it_cannot_be_is_named():
    with pytest.raises(ValueError, match=r"must be a list of likelihoods.*got <likelihood Bernoulli>"):
        pgm.SwitchedLikelihood([pgm.Gaussian(0.1), pgm.Bernoulli])
    with pytest.raises(ValueError, match="must be a list of likelihoods"):
        pgm.SwitchedLikelihood(pgm.Gaussian(0.1))
    with pytest.raises(ValueError, match=r"must have the same latents; got \[1, 2\] latents"):
        pgm.SwitchedLikelihood([pgm.Gaussian(0.1), pgm.HeteroscedasticGaussian(1.0)])

    @pgm.likelihood
    def undeclared(y, f):
        return pgm.sigmoid(f) ** y

    @pgm.likelihood(support=pgm.Censored())
    def times(y, f):
        return pgm.exp(f * y[1] - y[0] * pgm.exp(f))

    with pytest.raises(ValueError, match="likelihood 1 of SwitchedLikelihood, undeclared, has no declared support"):
        pgm.SwitchedLikelihood([pgm.Gaussian(0.1), undeclared()])
    with pytest.raises(ValueError, match="likelihood 0 of SwitchedLikelihood, times, observes more than one column"):
        pgm.SwitchedLikelihood([times(), pgm.Gaussian(0.1)])
    X, model = np.zeros((3, 2)), of_both()
    with pytest.raises(ValueError, match=r"y must have the number of the output in column 1, 0 to 1; got 2 in row 1"):
        model.check(X, [[0.1, 0], [1, 2], [1, 1]])
    with pytest.raises(ValueError, match=r"column 0 of y, at output 1, in row 2: y must hold the labels 0 and 1"):
        model.check(X, [[0.1, 0], [1, 1], [2, 1]])
    with pytest.raises(ValueError, match=r"column 0 of y, at output 1: .*got 4 in row 2"):
        model.check(X[[0, 0, 0, 0, 0]], [[0.1, 0], [1, 1], [4, 1], [2, 1], [0, 1]])
