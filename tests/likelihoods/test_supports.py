"""Supports: sums over supports with atoms, events and covariates, draws, and a user-defined support."""

import numpy as np
import pytest
from scipy import stats

import pgmodels as pgm
from pgmodels.likelihoods.sampling import draw_observations, is_normalised

POSITIVE = pgm.Parameter(0.7, positive=True)


@pgm.likelihood(support=pgm.Clipped(0.0), num_latents=1)
def tobit(y, f, scale=POSITIVE):
    return pgm.normal_cdf(-f / scale) ** (y == 0) * pgm.normal_pdf(y, f, scale) ** (y > 0)


@pgm.likelihood(support=pgm.Clipped(-1.0, 2.0), num_latents=1)
def clipped_twice(y, f, scale=POSITIVE):
    ends = pgm.normal_cdf((-1 - f) / scale) ** (y == -1) * pgm.normal_cdf((f - 2) / scale) ** (y == 2)
    return ends * pgm.normal_pdf(y, f, scale) ** ((y > -1) * (y < 2))


@pgm.likelihood(support=pgm.Censored(), num_latents=1)
def log_logistic(y, f, shape=pgm.Parameter(1.5, positive=True)):
    z = shape * (pgm.log(y[0]) - f)
    return (shape / y[0] * pgm.sigmoid(z)) ** y[1] * pgm.sigmoid(-z)


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
ALPHA = 1e-4  # as in test_prediction: the seed is fixed


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
    observed = np.bincount(np.minimum(y, 30).astype(int), minlength=31)
    law = stats.nbinom(2.0, 2.0 / (2.0 + mean))
    expected = N * np.append(law.pmf(np.arange(30)), law.sf(29))
    assert stats.chisquare(observed, expected).pvalue > ALPHA
    assert draw(attempts(), -1.0).min() == 1.0


WRONG = {
    "a time of 0": (log_logistic, [[0.0, 1.0]], r"y\[0\] must hold times > 0; got 0 in row 0"),
    "an event that is none": (log_logistic, [[1.0, 2.0]], r"y\[1\] must hold 1 .* and 0 where it is censored; got 2"),
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
