"""Supports: sums over supports with atoms, events and covariates, draws, and a user-defined support."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.stats import multivariate_normal, norm

import pgmodels as pgm
from pgmodels.inference.objectives import expected_objective
from pgmodels.likelihoods.expression import Environment
from pgmodels.likelihoods.likelihood import log_density
from pgmodels.likelihoods.printing import to_latex
from pgmodels.likelihoods.sampling import draw_observations, is_normalised
from pgmodels.runtime.precision import double_precision
from tests.likelihoods.test_sampling import ALPHA, follows
from tests.own_likelihoods import log_logistic, tobit

POSITIVE = pgm.Parameter(0.7, positive=True)


@pgm.likelihood(support=pgm.Clipped(-1.0, 2.0), num_latents=1)
def clipped_twice(y, f, scale=POSITIVE):
    ends = pgm.normal_cdf((-1 - f) / scale) ** (y == -1) * pgm.normal_cdf((f - 2) / scale) ** (y == 2)
    return ends * pgm.normal_pdf(y, f, scale) ** ((y > -1) * (y < 2))


@pgm.likelihood(support=pgm.Given(pgm.Counts(), pgm.Positive()), num_latents=1)
def exposed(y, f, dispersion=pgm.Parameter(2.0, positive=True)):
    z = f + pgm.log(y[1])
    ways = pgm.gamma(y[0] + dispersion) / (pgm.gamma(dispersion) * pgm.gamma(y[0] + 1))
    return ways * pgm.sigmoid(z) ** y[0] * pgm.sigmoid(-z) ** dispersion


@pgm.likelihood(support=pgm.Given(pgm.SuccessesOfTrials(), pgm.Real()), num_latents=1)
def shifted_trials(y, f):
    z = f + y[2]
    ways = pgm.gamma(y[1] + 1) / (pgm.gamma(y[0] + 1) * pgm.gamma(y[1] - y[0] + 1))
    return ways * pgm.sigmoid(z) ** y[0] * pgm.sigmoid(-z) ** (y[1] - y[0])


@pgm.likelihood(support=pgm.Positive(), num_latents=1)
def exponential(y, f):
    return pgm.exp(-f - y * pgm.exp(-f))


class Attempts(pgm.Support):
    """1, 2, 3, ...: attempts up to the first success."""

    def check(self, y):
        if np.any((y < 1) | (y != np.round(y))):
            raise ValueError("y must hold attempts, whole numbers >= 1.")

    def pieces(self, y):
        return [pgm.Piece(1, np.inf, is_discrete=True)]

    def examples(self, rng, n):
        return rng.geometric(0.4, n).astype(float)


@pgm.likelihood(support=Attempts(), num_latents=1)
def attempts(y, f):
    return pgm.sigmoid(f) * pgm.sigmoid(-f) ** (y - 1)


NORMALISED = [tobit, clipped_twice, log_logistic, exposed, shifted_trials, exponential, attempts]


@pytest.mark.parametrize("family", NORMALISED, ids=lambda family: family.__name__)
def test_formulas_sum_to_one_over_what_could_have_been_observed(family):
    assert is_normalised(family(), 1, for_all_parameters=True) is True


@pytest.mark.parametrize("family", [tobit, log_logistic, exposed], ids=lambda family: family.__name__)
def test_a_missing_factor_is_seen(family):
    name = family.arguments[0].name
    changed = family.function

    def formula(y, f, **parameters):
        return parameters[name] ** 0.1 * changed(y, f, **parameters)

    lacking = pgm.likelihood(lambda y, f, value=POSITIVE: formula(y, f, **{name: value}), support=family.support)
    assert is_normalised(lacking(), 1, for_all_parameters=True) is False


def test_large_and_narrow_laws_are_covered():
    for lik in (pgm.NegativeBinomial(5e4), pgm.SigmoidPoisson(3e5), pgm.StudentT(1.0, 1e-3), pgm.Gaussian(1e-4)):
        assert is_normalised(lik, 1) is True


N = 2_000


def draw(lik, f, covariates=None):
    return draw_observations(lik, np.full((N, 1, 1), f), covariates, np.random.default_rng(11))[:, 0]


def test_draws_with_atoms_follow_their_distribution():
    for lik, low, high in ((tobit(), 0.0, np.inf), (clipped_twice(), -1.0, 2.0)):
        y, law = draw(lik, 0.4), stats.norm(0.4, 0.7)
        for atom, share in ((low, law.cdf(low)), (high, law.sf(high))):
            # Six standard errors of a share.
            assert abs(np.mean(y == atom) - share) <= 6 * np.sqrt(share * (1 - share) / N)
        inside = y[(y > low) & (y < high)]
        between = lambda x, low=low, high=high, law=law: (law.cdf(x) - law.cdf(low)) / (law.cdf(high) - law.cdf(low))  # noqa: E731
        assert stats.kstest(inside, between).pvalue > ALPHA


class Stated(pgm.Censored):
    """A user-defined support whose event indicator is a covariate."""

    num_covariates = 1

    def others(self, covariates):
        return covariates


@pytest.mark.slow
def test_draws_of_positive_numbers_and_times_follow_their_distribution():
    assert stats.kstest(draw(exponential(), 3.0), stats.expon(scale=np.exp(3.0)).cdf).pvalue > ALPHA
    times = draw(log_logistic(), 0.4)
    assert stats.kstest(times, stats.fisk(1.5, scale=np.exp(0.4)).cdf).pvalue > ALPHA
    stated = pgm.likelihood(log_logistic.function, support=Stated())
    np.testing.assert_array_equal(draw(stated(), 0.4, [1.0]), times)
    with pytest.raises(ValueError, match=r"cannot be drawn where y\[1\] is 0, as in row 0: draws require 1"):
        draw(stated(), 0.4, [0.0])


def test_draws_given_an_exposure_follow_their_distribution():
    y = draw(exposed(), 0.4, [3.0])
    mean = 2.0 * 3.0 * np.exp(0.4)
    assert follows(y, stats.nbinom(2.0, 2.0 / (2.0 + mean)))
    assert draw(attempts(), -1.0).min() == 1.0


WRONG = {
    "a time of 0": (log_logistic, [[0.0, 1.0]], r"y\[0\] must hold times > 0; got 0 in row 0"),
    "an event that is none": (log_logistic, [[1.0, 2.0]], r"y\[1\] must hold 1 .* and 0 for a censored one; got 2"),
    "below the end": (tobit, [-0.5], r"y must hold numbers from 0 to inf.*got -0.5 in row 0"),
    "no exposure": (exposed, [[3.0, 0.0]], r"column 1 of y: y must hold real numbers > 0; got 0 in row 0"),
    "no count": (exposed, [[3.5, 1.0]], r"y must hold counts.*got 3.5 in row 0"),
    "one's own": (attempts, [0.0], "y must hold attempts"),
}


@pytest.mark.parametrize("name", WRONG)
def test_observations_outside_a_support_are_refused(name):
    family, y, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        pgm.Model(family(), pgm.GP(pgm.RBF(1.0, 1.0))).check([[0.3]], y)


def test_coefficients_without_a_value_are_refused():
    @pgm.likelihood
    def undeclared(y, f):
        return pgm.sigmoid(f + pgm.log(y[1])) ** y[0] * pgm.sigmoid(-f - pgm.log(y[1]))

    with pytest.raises(ValueError, match=r"y is outside what the formula allows: log\(y\[1\]\).* in row 1"):
        pgm.Model(undeclared(), pgm.GP(pgm.RBF(1.0, 1.0))).check([[0.3], [0.4]], [[2.0, 1.5], [0.0, 0.0]])


@pytest.mark.parametrize("call", [lambda: pgm.Clipped(), lambda: pgm.Clipped(2.0, 1.0), lambda: pgm.Given(pgm.Real())])
def test_supports_that_say_nothing_are_refused(call):
    with pytest.raises(ValueError, match=r"pgm\.|must be numbers"):
        call()


def test_supports_are_equal_where_their_fields_are():
    assert pgm.Given(pgm.Counts(), pgm.Positive()) == pgm.Given(pgm.Counts(), pgm.Positive())
    assert pgm.Clipped(0.0) != pgm.Clipped(1.0)
    assert repr(pgm.Given(pgm.Classes(3), pgm.Real())) == "Given(Classes(num_classes=3), Real())"


RNG = np.random.default_rng(8)
X = RNG.uniform(-2.0, 2.0, (24, 1))


@pytest.mark.slow
def test_a_class_with_a_covariate_has_probabilities_of_its_own():
    @pgm.likelihood(support=pgm.Given(pgm.Binary(), pgm.Real()), num_latents=1)
    def offset(y, f):
        return pgm.sigmoid(f + y[1]) ** y[0] * pgm.sigmoid(-f - y[1]) ** (1 - y[0])

    y = np.column_stack([X[:, 0] > 0.3, RNG.normal(size=24)]).astype(float)
    model = pgm.Model(offset(), pgm.GP(pgm.RBF(1.0, 1.0)))
    vi = pgm.cavi(model, X, y)
    p = vi.predict(X, y[:, 1:]).probabilities
    f = vi.mean[:, 0] + np.sqrt(vi.variance[:, 0]) * stats.norm.ppf((np.arange(4000) + 0.5) / 4000)[:, None]
    # A midpoint rule in probability, of second order in 1 / 4000 but for the tails.
    np.testing.assert_allclose(p[:, 1], np.mean(1 / (1 + np.exp(-f - y[:, 1])), axis=0), atol=1e-4)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-6)
    draws = pgm.gibbs(model, X, y, num_samples=40, num_warmup=20, num_chains=2, seed=0)
    comparison = pgm.compare(gibbs=draws, cavi=vi, X=X, y=y)
    misclassified = comparison.to_dataframe().loc["cavi", "misclassification"]
    assert misclassified == np.mean((p[:, 1] > 0.5) != y[:, 0])


def times(f):
    return np.column_stack([stats.fisk.rvs(2.5, scale=np.exp(f), random_state=3), np.arange(24) % 3 > 0])


def counts(f):
    exposure = RNG.choice([2.0, 4.0], 24)
    return np.column_stack([RNG.poisson(exposure * RNG.gamma(2.0, np.exp(f) / 2.0)), exposure])


LEARNED = {
    "tobit": (tobit, "scale", lambda f: np.maximum(f + RNG.normal(0.0, 0.5, 24), 0.0)),
    "log_logistic": (log_logistic, "shape", times),
    "exposed": (exposed, "dispersion", counts),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNED)
def test_parameters_of_censored_and_exposed_models_are_learned(name, recwarn):
    family, parameter, make = LEARNED[name]
    y = make(np.sin(X[:, 0]) + 0.3).astype(float)
    model = pgm.Model(family(), pgm.GP(pgm.RBF(pgm.Fixed(1.0), pgm.Fixed(1.0))))
    fitted = pgm.fit(model, X, y, objective="augmented")
    assert not [warning for warning in recwarn if "holds" in str(warning.message)]
    start = model.likelihood.values[parameter]
    value = fitted.model.likelihood.values[parameter]
    assert value != start
    # Learning maximises the ELBO that cavi reports: no value near by is better.
    for near in (0.97 * value, 1.03 * value):
        moved = pgm.Model(family(float(near)), model.gps)
        assert pgm.cavi(moved, X, y).elbo < fitted.elbo


# Supports of censored values and shares, and arguments of the likelihoods that use them.


def test_intervals_are_recorded_as_they_were_looked_at():
    y = np.array([[2.0, 0, 2.0], [2.0, 1, 2.0], [2.0, 2, 2.0], [2.0, 3, 5.0]])
    drawn = np.array([[1.0] * 4, [3.0] * 4, [7.0] * 4])
    early = [[1.0, 1, 1.0], [1.0, 1, 1.0], [2.0, 2, 2.0], [2.0, 2, 2.0]]
    later = [[2.0, 0, 2.0], [3.0, 1, 3.0], [2.0, 0, 2.0], [2.0, 3, 5.0]]
    last = [[2.0, 0, 2.0], [7.0, 1, 7.0], [2.0, 0, 2.0], [5.0, 0, 5.0]]
    support = pgm.IntervalCensored()
    np.testing.assert_array_equal(support.recorded(drawn, y), [early, later, last])
    for records in (early, later, last):
        support.check(np.array(records))


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        (pgm.Weibull(1.0, "interval"), [[0.0, 2.0, 3.0]], r"y\[0\] must hold times > 0; got 0 in row 0"),
        (pgm.Weibull(1.0, "interval"), [[1.0, 2.0, 0.0]], r"y\[2\] must hold times > 0.*repeats y\[0\]"),
        (pgm.LogLogistic(1.0, "interval"), [[1.0, 4.0, 1.0]], r"y\[1\] must hold a code.*got 4 in row 0"),
        (pgm.LogLogistic(1.0, "interval"), [[1.0, 3.0, 1.0]], r"above y\[0\] if the code y\[1\] is 3; got 1 to 1"),
        (pgm.Weibull(1.0, "counting"), [[2.0, 1.0, 2.0]], r"y\[2\] must hold entry times >= 0.*got 2 with the time 2"),
        (pgm.Weibull(1.0, "counting"), [[2.0, 1.0, -1.0]], r"y\[2\] must hold entry times >= 0.*got -1 with"),
        (pgm.Weibull(1.0, "counting"), [[2.0, 3.0, 0.0]], r"y\[1\] must hold 1 for an observed time"),
        (pgm.CensoredGaussian(1.0), [[-1.0, 3.0, -2.0]], r"got -1 to -2 in row 0"),
        (pgm.Beta(2.0), [0.3, 1.0], r"above 0 and below 1; got 1 in row 1.*y \* \(n - 1\) \+ 0.5"),
        (pgm.Gamma(2.0), [0.3, 0.0], r"real numbers > 0; got 0 in row 1"),
        (pgm.KnownNoise(), [[0.3, 0.0]], r"column 1 of y"),
        (pgm.Ordinal(3), [1.0, 3.0], r"class indices 0 to 2"),
    ],
)
def test_wrong_observations_are_named(likelihood, y, message):
    model = pgm.Model(likelihood, pgm.GP(pgm.RBF(1.0, 1.0)))
    with pytest.raises(ValueError, match=message):
        model.check(np.arange(len(y))[:, None], y)


def test_negative_values_of_the_line_may_be_censored():
    y = [[-1.0, 2.0, -1.0], [-3.0, 3.0, -2.0], [0.0, 1.0, 0.0]]
    model = pgm.Model(pgm.CensoredGaussian(1.0), pgm.GP(pgm.RBF(1.0, 1.0)))
    model.check(np.arange(3.0)[:, None], y)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pgm.Ordinal(1), "num_classes must be a whole number >= 2"),
        (
            lambda: pgm.Ordinal(3, link="log"),
            "link of Ordinal must be one of 'logit', 'probit', 'cloglog', 'cauchit'; got 'log'",
        ),
        (lambda: pgm.Ordinal(3, cuts=[1.0, 0.0]), "cuts of Ordinal must satisfy"),
        (lambda: pgm.Ordinal(3, cuts=[0.0, 1.0, 2.0]), r"must be 2 increasing numbers.*got an array of shape \(3,\)"),
        (lambda: pgm.Weibull(-1.0), "shape of Weibull must be positive"),
        (
            lambda: pgm.LogLogistic(1.0, "left"),
            "censoring of LogLogistic must be 'right', 'counting' or 'interval'; got",
        ),
        (lambda: pgm.IntervalCensored(2.0), "low of IntervalCensored must be 0 for times or -inf"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_cuts_may_be_fixed_or_have_a_prior():
    fixed = pgm.Ordinal(3, cuts=pgm.Fixed([-0.3, 0.9])).parameters["cuts"]
    assert not fixed.learned
    np.testing.assert_array_equal(fixed.value, [-0.3, 0.9])
    prior = pgm.Ordinal(3, cuts=dist.Normal(0.0, 2.0).expand([2])).parameters["cuts"]
    np.testing.assert_allclose(prior.value, [-np.log(2.0), np.log(2.0)])
    assert prior.prior is not None


def test_code_of_categories_is_their_printed_form():
    made = pgm.Ordinal(3, link="probit", cuts=pgm.Fixed([-0.3, 0.9]))
    assert (
        repr(made)
        == "Ordinal(num_classes=3, link='probit', cuts=Parameter(Fixed([-0.3, 0.9]), constraint=ordered_vector))"
    )
    assert repr(pgm.Weibull(pgm.Fixed(1.5))) == "Weibull(censoring='right', shape=Fixed(1.5))"


# Steps and largest latents in formulas: values, notation, checks, and what engines make of their jumps.


ERROR = pgm.Parameter(0.07, positive=True)


@pgm.likelihood(support=pgm.Binary())
def noisy_step(y, f, error=ERROR):
    return error + (1 - 2 * error) * pgm.step((2 * y - 1) * (1.5 * f - 0.4))


@pgm.likelihood
def noisy_largest(y, f, error=ERROR):
    return (1 - error) * pgm.largest(f, y) + error / 2 * (1 - pgm.largest(f, y))


@pgm.likelihood
def multinomial(y, f, noise=pgm.Parameter(0.6, positive=True)):
    return pgm.largest(f, y, noise)


F = np.array([[0.3, -0.4, 0.1], [1.0, 1.0, -2.0], [0.5, 0.5, 0.5], [-3.0, 4.0, 1.0]])


def probabilities(likelihood, f):
    """p(y | f) of each class (classes, n)."""
    return np.exp([log_density(likelihood, np.full(len(f), float(y)), f) for y in range(f.shape[1])])


def test_a_step_is_one_half_at_zero():
    f = np.array([[-1.0], [0.0], [2.0]])
    likelihood = pgm.likelihood(lambda y, f: pgm.step(f) + 0 * y)()
    np.testing.assert_array_equal(np.exp(log_density(likelihood, np.zeros(3), f)), [0.0, 0.5, 1.0])


def test_ties_share_the_indicator_of_the_largest():
    share = np.array([[1, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1, 0]]).T
    np.testing.assert_allclose(probabilities(noisy_largest(), F), 0.93 * share + 0.035 * (1 - share), rtol=1e-14)


def test_with_noise_it_is_a_probability_of_two_differences():
    expected = np.empty((3, len(F)))
    # The differences to the others share the noise of f[y].
    covariance = 0.6 * (np.eye(2) + 1)
    for y, i in np.ndindex(expected.shape):
        others = [c for c in range(3) if c != y]
        expected[y, i] = multivariate_normal.cdf(F[i, y] - F[i, others], np.zeros(2), covariance, abseps=1e-11)
    np.testing.assert_allclose(probabilities(multinomial(), F), expected, atol=1e-9)


def test_of_two_latents_it_is_a_normal_cdf_also_far_out():
    f = np.array([[0.3, -0.4], [-30.0, 5.0]])
    exact = norm.logcdf((f[:, 0] - f[:, 1]) / np.sqrt(2 * 0.6))
    np.testing.assert_allclose(log_density(multinomial(), np.zeros(2), f), exact, rtol=1e-12)


@pytest.mark.parametrize(
    ("likelihood", "size", "text", "latex"),
    [
        (
            noisy_step,
            1,
            "error + (1 - 2 error) step((2 y - 1) (3 f / 2 - 0.4))",
            r"\mathrm{error} + (1 - 2 \, \mathrm{error}) \, "
            r"\operatorname{step}\left( (2 y - 1) \left( \frac{3 f}{2} - 0.4 \right) \right)",
        ),
        (
            noisy_largest,
            3,
            "(1 - error) largest(f, y) + error (1 - largest(f, y)) / 2",
            r"(1 - \mathrm{error}) \, \operatorname{largest}(f, y) + "
            r"\frac{\mathrm{error} \, (1 - \operatorname{largest}(f, y))}{2}",
        ),
        (multinomial, 3, "largest(f, y, noise)", r"\operatorname{largest}(f, y, \mathrm{noise})"),
    ],
    ids=["step", "largest", "noise"],
)
def test_notation_support_and_normalisation(likelihood, size, text, latex):
    formula = likelihood().formula(size)
    assert formula.text() == text
    assert to_latex(formula.notation()) == latex
    assert likelihood().support(size) == (pgm.Binary() if size == 1 else pgm.Classes(3))
    assert is_normalised(likelihood(), size, for_all_parameters=True)


def test_draws_have_these_frequencies():
    rng, f = np.random.default_rng(1), np.repeat(F[:1], 2000, axis=0)
    for likelihood in (noisy_largest(), multinomial()):
        drawn = draw_observations(likelihood, f, None, rng)
        frequencies = np.bincount(drawn.astype(int), minlength=3) / len(f)
        # Four standard errors.
        np.testing.assert_allclose(frequencies, probabilities(likelihood, F[:1])[:, 0], atol=4 * 0.5 / np.sqrt(len(f)))


@pytest.mark.parametrize(
    ("formula", "size", "message"),
    [
        (lambda y, f: pgm.largest(f[0], y), 3, r"largest takes the vector of at least two latents f; got f\[0\]"),
        (lambda y, f: pgm.largest(f, y), 1, "largest takes the vector of at least two latents f; got f"),
        (lambda y, f: pgm.largest(f, 3), 3, "a position y of 0 to 2 in the latents f; got 3"),
        (lambda y, f: pgm.largest(f, 0.5), 3, "a position y of 0 to 2 in the latents f; got 1/2"),
        (lambda y, f: pgm.largest(f, f[0]), 3, r"a position y that is a number or a function of y alone; got f\[0\]"),
        (lambda y, f: pgm.largest(f, y, -1.0), 3, "noise of largest must be a variance >= 0 free of f; got -1"),
        (lambda y, f: pgm.largest(f, y, f[1]), 3, r"noise of largest must be .* got f\[1\]"),
    ],
    ids=["one", "one_latent", "out_of_range", "no_position", "latent_position", "negative", "latent_noise"],
)
def test_wrong_arguments(formula, size, message):
    with pytest.raises(ValueError, match=message):
        pgm.likelihood(formula)().formula(size)


def test_nuts_refuses_what_has_no_gradient():
    X = np.linspace(0.0, 1.0, 3)[:, None]
    y = np.array([0.0, 1.0, 0.0])
    for likelihood, size, node in ((noisy_step(), 1, r"step\("), (noisy_largest(), 2, r"largest\(f, y\)")):
        with pytest.raises(ValueError, match=f"nuts needs a gradient .* since {node}.* jumps. Use gaussian_v"):
            pgm.nuts(pgm.Model(likelihood, pgm.GP(pgm.RBF(), size=size)), X, y)


@pgm.likelihood(support=pgm.Binary())
def stairs(y, f):
    return 0.05 + 0.3 * pgm.step((2 * y - 1) * (1.5 * f - 0.4)) + 0.6 * pgm.step((2 * y - 1) * (f + 1))


@double_precision
def test_the_expected_log_density_of_steps_is_exact():
    m, v, y = np.array([0.5, -1.1, 2.0, 0.1]), np.array([0.4, 1.7, 0.01, 3.0]), np.array([1.0, 1.0, 0.0, 0.0])
    objective = expected_objective(pgm.Model(stairs(), pgm.GP(pgm.RBF())))
    assert len(objective.kinks) == 2
    bound, h, w = (
        np.asarray(part)[:4] for part in jax.jit(objective.local_bound_and_sites)(m[:, None], v[:, None], y, {})
    )
    # Constant between the ends of the steps, for y = 1 and y = 0.
    levels = np.log([[0.05, 0.65, 0.95], [0.95, 0.35, 0.05]])[(1 - y).astype(int)]
    z = (m - np.array([[-1.0], [0.4 / 1.5]])) / np.sqrt(v)
    heights = np.diff(levels, axis=1).T
    np.testing.assert_allclose(bound, levels[:, 0] + np.sum(heights * norm.cdf(z), axis=0), atol=1e-10)
    precision = np.sum(heights * norm.pdf(z) * z, axis=0) / v
    np.testing.assert_allclose(w[:, 0], precision, atol=1e-8)
    gradient = np.sum(heights * norm.pdf(z), axis=0) / np.sqrt(v)
    np.testing.assert_allclose(h[:, 0], gradient + precision * m, atol=1e-8)
    # Rows on the wrong side have negative precisions.
    assert w.min() < 0 < w.max()


@pytest.mark.parametrize(
    ("formula", "size"),
    [(lambda y, f: 0.9 * pgm.step(f[0]) * pgm.step(f[1]) + 0.05, 2), (lambda y, f: 0.9 * pgm.step(f**2 - 1) + 0.05, 1)],
    ids=["two", "square"],
)
def test_jumps_that_quadrature_cannot_follow_are_refused(formula, size):
    model = pgm.Model(pgm.likelihood(formula, support=pgm.Binary())(), pgm.GP(pgm.RBF(), size=size))
    with pytest.raises(
        ValueError, match=r"objective='expected' cannot integrate .* since step\(.*\) jumps: expected are"
    ):
        expected_objective(model)


@double_precision
def test_derivatives_of_the_noisy_one():
    likelihood, y = multinomial(), np.array([2.0])
    formula = likelihood.formula(3)

    def log_p(f, noise):
        return formula.log_evaluate(Environment(y, f[None], {"noise": noise}))[0, 0]

    f, noise, step = jnp.asarray(F[0]), jnp.asarray(0.6), 1e-4
    by_f, by_noise = jax.jit(jax.grad(log_p, argnums=(0, 1)))(f, noise)
    value = jax.jit(log_p)
    for c in range(3):
        shift = step * jnp.eye(3)[c]
        np.testing.assert_allclose(by_f[c], (value(f + shift, noise) - value(f - shift, noise)) / (2 * step), atol=1e-7)
    numerical = (value(f, noise + step) - value(f, noise - step)) / (2 * step)
    np.testing.assert_allclose(by_noise, numerical, atol=1e-7)
    # A sum of equal shifts changes nothing.
    assert abs(by_f.sum()) < 1e-9
