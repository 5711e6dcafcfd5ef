import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import expit, logsumexp
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import pgmodels as pgm
import pgmodels.inference.correct as correct_module
from pgmodels import exp, gamma
from pgmodels.inference.correct import Limits, correct_if_reliable
from pgmodels.inference.linear_response import (
    by_matrix,
    by_products,
    corrected_moments,
    entries,
    linear_response,
    problem_at,
)
from pgmodels.inference.objectives import objective_of_result
from pgmodels.runtime.messages import warn
from tests.priors.test_inducing import LABELS, X, bernoulli
from tests.referees import rbf
from tests.registry import CASES

perturbed = partial(pgm.correct, method="perturbative")


def test_binary_formula():
    """The closed form with Var_q(ω) (Wenzel et al. 2019, A.6, with its variance mended), at data far from zero."""
    X, y = CASES["bernoulli"].data(25, seed=6)
    vi = pgm.cavi(CASES["bernoulli"].model(), X, y, tolerance=1e-13)
    fixed = perturbed(vi)
    m, v = vi.mean[:, 0], vi.variance[:, 0]
    c = np.sqrt(m**2 + v)
    V = (np.tanh(c / 2) / c - 0.5 / np.cosh(c / 2) ** 2) / (2 * c**2)
    C = np.linalg.inv(np.linalg.inv(rbf(X) + 1e-10 * np.eye(25)) + np.diag(vi.sites.precision[:, 0]))
    mean = m + C @ (v * m * V)
    variance = v + m**2 - mean**2 + 2 * m * (C @ (m * v * V)) + C**2 @ ((m**2 + v) * V)
    # The inverse of a nearly singular K loses six digits.
    np.testing.assert_allclose((fixed.mean[:, 0], fixed.variance[:, 0]), (mean, variance), atol=1e-7)


def test_nothing_to_correct_where_the_bound_is_exact():
    X, y = CASES["gaussian"].data(20, seed=6)
    vi = pgm.cavi(CASES["gaussian"].model(), X, y)
    fixed = perturbed(vi)
    # B is linear in (m, s) up to y: its Hessian is zero but for rounding.
    np.testing.assert_allclose((fixed.mean, fixed.variance), (vi.mean, vi.variance), atol=1e-12)


@pytest.fixture(scope="module")
def beyond_reach():
    """Independent latents, and a point where they add up: there the shifts add up too, the widths only in square.

    The point is also the last row of the data, with no trials: it carries no information.
    """
    one_each = np.eye(60)
    X = np.vstack([one_each, np.ones(60)])
    y = np.array([[1.0, 1.0]] * 60 + [[0.0, 0.0]])
    return X, pgm.cavi(pgm.Model(pgm.Binomial(), pgm.GP(pgm.Linear(16.0))), X, y)


def test_nonpositive_variance_at_the_data_is_reported(beyond_reach):
    _, vi = beyond_reach
    with pytest.warns(pgm.CorrectionWarning, match=r"1 of 61 corrected variances at the data are not positive.*row 60"):
        fixed = perturbed(vi)
    assert fixed.num_nonpositive == 1
    assert fixed.variance[60, 0] < 0
    assert (fixed.variance[:60] > 0).all()


def test_nonpositive_variance_at_new_points_is_reported_and_never_predicted_with(beyond_reach):
    X, vi = beyond_reach
    with pytest.warns(pgm.CorrectionWarning):
        fixed = perturbed(vi)
    with pytest.warns(pgm.CorrectionWarning, match="1 of 1 corrected variances at X_new"):
        _, variance = fixed.predict_latent(X[60:])
    np.testing.assert_allclose(variance, fixed.variance[60:], rtol=1e-8)
    with (
        pytest.warns(pgm.CorrectionWarning),
        pytest.raises(ValueError, match=r"corrected variance is .* in row 0 of X_new"),
    ):
        fixed.predict(X[60:])


def breast_cancer():
    """200 rows and the first two columns, standardised with all rows."""
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    rows = train_test_split(np.arange(len(X)), train_size=200, random_state=0)[0]
    return X[rows, :2], y[rows].astype(float)


def errors(variance, num_samples):
    """Mean absolute errors of CAVI and of the correction against Gibbs: means, then variances."""
    X, y = breast_cancer()
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(variance, 1.5)))
    vi = pgm.cavi(model, X, y)
    fixed, draws = perturbed(vi), pgm.gibbs(model, X, y, num_samples=num_samples, num_warmup=300, seed=1)
    means = [np.abs(result.mean - draws.mean).mean() for result in (vi, fixed)]
    return (*means, *(np.abs(result.variance - draws.variance).mean() for result in (vi, fixed)))


# What 20,000 Gibbs sweeps gave in an independent calculation.
KNOWN = {1.0: (0.029, 0.007, 0.067, 0.027), 4.0: (0.086, 0.040, 0.288, 0.175), 16.0: (0.202, 0.127, 0.999, 0.745)}


@pytest.mark.slow
def test_correction_on_breast_cancer():
    got = errors(4.0, num_samples=1500)
    # 6,000 draws, of which a tenth or more effective, of latents with variance about 1.5: a mean has standard error
    # 0.05 at most and a variance 0.09; averaged over 200 points, a third of that.
    np.testing.assert_allclose(got[:2], KNOWN[4.0][:2], atol=0.025)
    np.testing.assert_allclose(got[2:], KNOWN[4.0][2:], atol=0.045)
    assert got[1] < got[0]
    assert got[3] < got[2]


@pytest.mark.slow
@pytest.mark.parametrize("variance", KNOWN)
def test_correction_on_breast_cancer_in_full(variance):
    got = errors(variance, num_samples=20_000)
    print(variance, got)
    # The known figures have the Monte-Carlo error of their own 20,000 sweeps: 1 % of the prior standard deviation
    # a mean, and its square root of two times that, in units of the prior variance, a variance.
    scale = np.sqrt(variance)
    np.testing.assert_allclose(got[:2], KNOWN[variance][:2], atol=0.01 * scale)
    np.testing.assert_allclose(got[2:], KNOWN[variance][2:], atol=0.014 * variance)


def test_refuses_where_two_latents_multiply():
    X, y = CASES["heteroscedastic"].data(10, seed=2)
    with pytest.raises(ValueError, match=r"two latents of one datum multiply.*linear_response"):
        perturbed(pgm.cavi(CASES["heteroscedastic"].model(), X, y))


def test_keeps_what_is_corrected_already_and_refuses_what_is_no_approximation():
    X, y = CASES["bernoulli"].data(10, seed=2)
    fixed = perturbed(pgm.cavi(CASES["bernoulli"].model(), X, y))
    assert pgm.correct(fixed) is fixed
    with pytest.raises(ValueError, match="approximation must be the result of cavi, gaussian_vi or fit; got ndarray"):
        pgm.correct(np.zeros(3))
    with pytest.raises(ValueError, match="must be one of 'linear_response', 'perturbative', 'nested'; got 'third'"):
        pgm.correct(pgm.cavi(CASES["bernoulli"].model(), X, y), method="third")


# Predictions of y from corrected results, where the response is skewed, against quadrature.


Fixed = pgm.Fixed


@pgm.likelihood(support=pgm.Counts(), mean=lambda y, f: exp(f), variance=lambda y, f: exp(f))
def poisson(y, f):
    return exp(y * f - exp(f)) / gamma(y + 1)


@pgm.likelihood(support=pgm.Positive(), mean=lambda y, f: exp(-f), variance=lambda y, f: exp(-2 * f))
def exponential(y, f):
    return exp(f - y * exp(f))


# Of each: the likelihood, log p(y | f) up to a constant, E[y | f], observations.
MODELS = {
    "poisson": (poisson(), lambda y, f: y * f - np.exp(f), np.exp, (0, 1, 3, 20)),
    "exponential": (exponential(), lambda y, f: f - y * np.exp(f), lambda f: np.exp(-f), (0.05, 1.0, 4.0, 20.0)),
    "bernoulli": (pgm.Bernoulli(), lambda y, f: y * f - np.logaddexp(0.0, f), expit, (0, 1, 0, 1)),
}


def by_itself(likelihood, variance, mean=0.0):
    """A model in which each row is a group by itself."""
    return pgm.Model(likelihood, pgm.GP(pgm.White(variance), mean=Fixed(mean)))


def truth(name, y, variance, mean):
    """E[y] of each row by quadrature over its one latent."""
    _, log_density, response, _ = MODELS[name]
    f = mean + np.sqrt(variance) * np.linspace(-12.0, 12.0, 20_001)
    log_p = log_density(np.asarray(y)[:, None], f) - 0.5 * (f - mean) ** 2 / variance
    return np.exp(log_p - logsumexp(log_p, axis=1, keepdims=True)) @ response(f)


@pytest.mark.parametrize(
    "name", ["poisson", *(pytest.param(name, marks=pytest.mark.slow) for name in list(MODELS)[1:])]
)
def test_means_are_no_worse_than_uncorrected(name):
    likelihood, *_, y = MODELS[name]
    X = np.arange(4.0)[:, None]
    errors, warned = [], 0
    for variance, mean in ((1.0, -3.0), (9.0, 0.0), (100.0, 0.5)):
        result = pgm.gaussian_vi(by_itself(likelihood, Fixed(variance), mean), X, np.asarray(y, float), progress=False)
        corrected = pgm.correct(result)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            after, before, right = corrected.predict(X).mean, result.predict(X).mean, truth(name, y, variance, mean)
        warned += any("uncorrected Gaussian" in str(warning.message) for warning in caught)
        with np.errstate(divide="ignore"):
            errors.append([np.abs(np.log(part / right)) for part in (before, after)])
        # The latents' own moments are the corrected ones, at the data and beside them.
        np.testing.assert_allclose(corrected.predict_latent(X)[1], corrected.variance, rtol=1e-8)
    before, after = np.moveaxis(np.array(errors), 1, 0)
    assert np.all(after < before + 0.2)
    assert after.mean() < before.mean() + 0.02
    # Where nothing warns, nothing was replaced, and this would be a test of nothing.
    assert warned


def test_poisson_with_one_zero():
    for variance, mean in ((9.0, 0.281), (100.0, 0.083)):
        result = pgm.gaussian_vi(by_itself(poisson(), Fixed(variance)), [[0.0]], [0], progress=False)
        corrected = pgm.correct(result)
        with pytest.warns(pgm.PredictionWarning, match="1 of 1 rows"):
            predictive = corrected.predict([[0.0]])
        uncorrected = result.predict([[0.0]])
        assert predictive.mean[0] == pytest.approx(mean, rel=0.04)
        for y in (0, 1, 7):
            np.testing.assert_allclose(predictive.log_density([y]), uncorrected.log_density([y]), rtol=1e-12)
        np.testing.assert_array_equal(predictive.draw(50, seed=1), uncorrected.draw(50, seed=1))


def test_corrected_gaussian_is_kept_where_responses_agree():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (40, 1))
    y = (rng.uniform(size=40) < expit(2.0 * X[:, 0] - 1.0)).astype(float)
    result = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(4.0, 1.5))).fixed(), X, y, progress=False)
    corrected = pgm.correct(result)
    probabilities = corrected.predict(X[:5]).probabilities
    # Of the corrected moments, by quadrature.
    mean, variance = corrected.predict_latent(X[:5])
    z = np.linspace(-9.0, 9.0, 4001)
    weights = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    np.testing.assert_allclose(probabilities[:, 1], expit(mean + np.sqrt(variance) * z) @ weights, atol=1e-7)
    assert np.abs(probabilities - result.predict(X[:5]).probabilities).max() > 1e-3


def test_posterior_predictive_draws_take_the_same_gaussian():
    result = pgm.gaussian_vi(by_itself(poisson(), Fixed(9.0)), [[0.0], [1.0]], [0, 20], progress=False)
    corrected = pgm.correct(result)
    with pytest.warns(pgm.PredictionWarning, match="1 of 2 rows of the data"):
        tree = corrected.to_arviz(num_draws=4000)
    drawn = tree["posterior_predictive"]["y"].values.mean((0, 1))
    f = tree["posterior"]["f"].values[0, :, :, 0]
    assert drawn[0] == pytest.approx(0.281, abs=0.05)
    assert drawn[1] == pytest.approx(truth("poisson", [20], 9.0, 0.0)[0], rel=0.02)
    np.testing.assert_allclose(f.var(axis=0), corrected.variance[:, 0], rtol=0.1)


@pytest.mark.slow
def test_integrated_mean_of_five_zeros():
    prior = dist.LogNormal(2.0, 1.0)
    model = pgm.Model(poisson(), pgm.GP(pgm.RBF(prior, Fixed(1.0)), mean=Fixed(0.0)))
    result = pgm.integrate(model, np.zeros((5, 1)), np.zeros(5), progress=False)
    log_v = np.linspace(-3.0, 8.0, 400)[:, None]
    f = np.linspace(-150.0, 20.0, 20_001)
    log_p = -5.0 * np.exp(f) - 0.5 * f**2 / np.exp(log_v) - 0.5 * log_v - 0.5 * (log_v - 2.0) ** 2
    right = np.exp(log_p + f).sum() / np.exp(log_p).sum()
    with pytest.warns(pgm.PredictionWarning, match="1 of 1 rows of X_new"):
        assert result.predict([[0.0]]).mean[0] == pytest.approx(right, rel=0.05)
    with pytest.warns(pgm.PredictionWarning, match="5 of 5 rows of the data"):
        tree = result.to_arviz(num_draws=4000)
    assert tree["posterior_predictive"]["y"].values.mean() == pytest.approx(right, rel=0.15)


def binary(kernel=None):
    """60 labels, and a model of them to learn."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = (X[:, 0] + rng.normal(size=60) > 0).astype(int)
    return pgm.Model(pgm.Bernoulli(), pgm.GP(kernel or pgm.RBF(4.0, 1.5))), X, y


def test_fit_corrects_its_result(tmp_path):
    model, X, y = binary()
    options = {"objective": "augmented"}
    fitted, q = pgm.fit(model, X, y, **options), pgm.fit(model, X, y, **options, correct=False)
    # As by hand, at the same values, of the q that the other call returns.
    by_hand = pgm.correct(q)
    np.testing.assert_allclose(fitted.conditional.variance, by_hand.variance, rtol=1e-8)
    np.testing.assert_allclose(fitted.mean, by_hand.mean, rtol=1e-8, atol=1e-10)
    assert (fitted.conditional.variance > q.variance).all()
    np.testing.assert_allclose(fitted.uncorrected.variance, q.variance, rtol=1e-8)
    assert fitted.elbo == q.elbo
    assert fitted.converged
    assert fitted.uncorrected.method == q.method == "fit"
    assert fitted.fit.values.keys() == q.fit.values.keys()
    assert q.uncorrected is q
    assert by_hand.uncorrected is q
    assert (fitted.method, fitted.fit.correction) == ("linear_response", "by linear response")
    # Which it is, in print.
    assert "corrected by linear response" in repr(fitted)
    assert "corrected by linear response" in str(fitted)
    assert "corrected by linear" not in str(q)
    assert "correction none, with correct=False" in " ".join(str(q).split())
    assert "correction none: this is the result before it" in " ".join(str(fitted.uncorrected).split())
    # What is corrected stays as it is, and another method starts from q.
    assert pgm.correct(fitted) is fitted
    assert pgm.correct(fitted, method="linear_response") is fitted
    other = pgm.correct(fitted, method="perturbative")
    by_hand = pgm.correct(q, method="perturbative")
    np.testing.assert_allclose(other.conditional.variance, by_hand.variance, rtol=1e-8)
    assert pgm.correct(other) is other
    assert other.uncorrected is fitted.uncorrected
    assert other.fit.correction == "to second order"
    np.testing.assert_allclose(pgm.correct(other, method="linear_response").variance, fitted.variance, rtol=1e-8)
    # In a file, with its report.
    loaded = pgm.load(fitted.save(tmp_path / "fit.npz"))
    np.testing.assert_array_equal(loaded.variance, fitted.variance)
    np.testing.assert_allclose(loaded.uncorrected.variance, q.variance, rtol=1e-8)
    assert loaded.fit.correction == "by linear response"
    # With what goes through q.
    assert pgm.plot_elbo(fitted).axes
    assert pgm.plot_auxiliaries(fitted).axes
    with pytest.raises(ValueError, match="correct must be 'auto', True or False; got 'no'"):
        pgm.fit(model, X, y, correct="no")


def test_fit_corrects_few_latents_by_linear_response_and_keeps_q_where_that_is_not_reliable(monkeypatch):
    model, X, y = binary(pgm.RBF(Fixed(4.0), Fixed(1.5)))
    q = pgm.fit(model, X, y, correct=False)
    assert within(q).method == "linear_response"
    check = correct_module.check_against_prior
    monkeypatch.setattr(correct_module, "check_against_prior", doubtful_once(check))
    doubtful = within(q)
    assert not doubtful.is_corrected
    assert "not reliable here: covariances mean nothing" in doubtful.fit.correction


def within(result, **limits):
    """The result of ``fit``, corrected within other limits."""
    with jax.enable_x64(True):
        return correct_if_reliable(result, "auto", False, by_scans=False, limits=Limits(**limits))


def doubtful_once(check):
    """The check of a correction, which warns at its first call."""
    calls = []

    def doubtful(*args):
        calls.append(args)
        if len(calls) == 1:
            warn("covariances mean nothing", pgm.CorrectionWarning)
        check(*args)

    return doubtful


def test_fit_leaves_results_that_are_exact():
    x = np.linspace(0.0, 3.0, 12)[:, None]
    fitted = pgm.fit(pgm.Model(pgm.Gaussian(Fixed(0.3)), pgm.GP(pgm.RBF(1.0, 1.0))), x, np.sin(2 * x[:, 0]))
    assert fitted.fit.correction == "none: the likelihood is Gaussian in f, and so is the posterior"
    assert type(fitted.conditional) is pgm.Approximation
    assert "so is the posterior" in " ".join(str(fitted).split())


@pytest.mark.slow
def test_fit_says_why_it_does_not_correct(monkeypatch):
    model, X, y = binary(pgm.RBF(Fixed(4.0), Fixed(1.5)))
    large = within(pgm.fit(model, X, y, correct=False), num_coordinates=59)
    assert type(large) is pgm.Approximation
    assert "60 coordinates and 60 rows" in large.fit.correction
    assert type(pgm.fit(model, X, y, correct=True)) is not pgm.Approximation

    # A correction that warns or raises is left, with its message; asked for, it warns.
    def doubtful(*args, **kwargs):
        warn("covariances mean nothing", pgm.CorrectionWarning)

    monkeypatch.setattr("pgmodels.inference.correct.check_against_prior", doubtful)
    fitted = pgm.fit(model, X, y)
    assert type(fitted.conditional) is pgm.Approximation
    assert "not reliable here: covariances mean" in fitted.fit.correction
    with pytest.warns(pgm.CorrectionWarning, match="covariances mean nothing"):
        pgm.fit(model, X, y, correct=True)


# Linear response solved by products against the same with a matrix of all the data's moments.


def equations(size, joint, height):
    """A factor of five coordinates at 13 data, right-hand sides, and second derivatives of either sign."""
    rng, pairs = np.random.default_rng(size), entries(size, joint)
    U = rng.normal(size=(5, 13, size)) / 4.0
    curved = height * rng.normal(size=(13, len(pairs), len(pairs)))
    return tuple(map(jnp.asarray, (U, rng.normal(size=(5, 13, len(pairs))), curved + curved.swapaxes(1, 2)))), pairs


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(("size", "joint"), [(1, False), (3, False), (2, True)])
def test_products_solve_what_the_matrix_solves(size, joint):
    (U, right, curved), pairs = equations(size, joint, 0.2)
    response, residual = jax.jit(lambda *arguments: by_products(*arguments, pairs))(U, right, curved)
    expected = by_matrix(U, right, curved, pairs)
    # What the series does beyond its first term is seen.
    first = by_matrix(U, right, 0.0 * curved, pairs)
    assert np.abs(expected - first).max() > 0.02 * np.abs(first).max()
    assert residual < 1e-7
    np.testing.assert_allclose(response, expected, atol=1e-6 * np.abs(expected).max())


@pytest.mark.usefixtures("double_precision")
def test_equations_that_are_not_positive_definite_and_those_without_a_right_side_are_told():
    (U, right, curved), pairs = equations(1, False, 0.2)
    solved = jax.jit(lambda *arguments: by_products(*arguments, pairs))
    assert solved(U, right, 0.0 * curved + 50.0)[1] == np.inf
    response, residual = solved(U, 0.0 * right, curved)
    assert residual == 0.0
    assert not np.any(response)


@pytest.mark.usefixtures("double_precision")
def test_corrections_by_products_are_those_by_matrices():
    result = pgm.cavi(bernoulli(pgm.Inducing(X[:9])), X, LABELS)
    problem = problem_at(result, objective_of_result(result))

    def solved(with_products):
        def run(posterior):
            response = linear_response(problem, posterior, with_products)
            return response, *corrected_moments(posterior, response.shift, response.covariance)

        return jax.jit(run)(result.posterior)

    (one, *moments), (other, *others) = solved(False), solved(True)
    assert one.residual == 0.0
    assert 0.0 < other.residual < 1e-7
    for name in ("shift", "covariance"):
        np.testing.assert_allclose(getattr(other, name), getattr(one, name), atol=1e-7)
    for ours, theirs in zip(others, moments, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-7)
    np.testing.assert_allclose(moments[1][: len(X), :, 0], pgm.correct(result).variance, atol=1e-7)
    assert np.abs(moments[1][: len(X), :, 0] / result.variance - 1.0).max() > 0.01
