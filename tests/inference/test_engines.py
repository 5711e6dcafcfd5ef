"""Every engine on every likelihood: the rows of ``engines.py`` crossed with those of ``registry.py``."""

import warnings
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpmath import mp

import pgmodels as pgm
from pgmodels.inference import bound as penalised_bound
from pgmodels.inference.bound import MarginalBound
from pgmodels.inference.loop import backtrack
from pgmodels.inference.search import BoundSearch, Limits, SearchBar
from pgmodels.parameters.vector import trainable
from pgmodels.runtime.messages import progress_bar
from tests.covering import some
from tests.engines import ENGINES
from tests.referees import log_normal
from tests.registry import EVERY

# By default each likelihood with one engine and each engine with a likelihood: those with dear laws with a cheap one.
DEFAULT = {
    "bernoulli": "linear response of gaussian_vi", "probit": "gaussian_vi", "binomial": "svi",
    "negative_binomial": "linear response of cavi", "sigmoid_poisson": "derived bound", "logistic_softmax": "cavi",
    "stick_breaking": "cavi", "student_t": "fit of gaussian_vi", "laplace": "gibbs", "gaussian": "fit",
    "heteroscedastic": "cavi", "own_softmax": "derived bound", "affine": "perturbative correction", "offset": "nuts",
    "ordered_logit": "derived bound", "ordered_probit": "derived bound", "zero_inflated": "derived bound",
    "label_noise": "cavi", "additive": "gaussian_vi", "varying": "gibbs", "shared": "derived bound",
    "multinomial_probit": "derived bound", "log_poisson": "gaussian_vi", "softmax": "nuts",
}  # fmt: skip
BY_NAME = {engine.name: engine for engine in ENGINES}
CELLS = [(engine.name, name) for engine, (name, case) in product(ENGINES, EVERY.items()) if engine.takes(case)]


@pytest.mark.parametrize(("engine", "case"), some(CELLS, *((engine, name) for name, engine in DEFAULT.items())))
def test_its_law_holds(engine, case):
    BY_NAME[engine].holds(EVERY[case])


# The ELBO where its terms are far larger than it is: far offsets of y, wide priors, next to no noise.


Fixed = pgm.Fixed
ROUNDING_ENGINES = (pgm.cavi, pgm.gaussian_vi)


def square(r):
    return mp.exp(-r * r / 2)


def matern(r):
    s = mp.sqrt(5) * r
    return (1 + s + s * s / 3) * mp.exp(-s)


def log_evidence(profile, variance, lengthscale, scale, X, y):
    """log N(y; 0, K + scale^2 I) in forty digits."""
    n = len(y)
    with mp.workdps(40):
        rows = [[mp.mpf(float(x)) / mp.mpf(float(unit)) for x, unit in zip(row, lengthscale, strict=True)] for row in X]
        K = mp.matrix(n, n)
        for i in range(n):
            for j in range(i + 1):
                r = mp.sqrt(sum((a - b) ** 2 for a, b in zip(rows[i], rows[j], strict=True)))
                K[i, j] = K[j, i] = mp.mpf(variance) * profile(r) + (mp.mpf(scale) ** 2 if i == j else 0)
        root = mp.cholesky(K)
        half = mp.lu_solve(root, mp.matrix([mp.mpf(float(value)) for value in y]))
        return float(-mp.fdot(half, half) / 2 - sum(mp.log(root[i, i]) for i in range(n)) - n * mp.log(2 * mp.pi) / 2)


def of_fit(profile, fitted, X, y):
    """log p(y) at the values of a fit."""
    values = fitted.fit.values
    lengthscale = np.broadcast_to(values["lengthscale"], X.shape[1])
    return log_evidence(
        profile, float(values["variance"]), lengthscale, float(values["scale"]), X, y - float(values["mean"])
    )


def smooth(n):
    """Rows in the unit square, and y a smooth function of them with noise."""
    r = np.random.default_rng(3)
    X = r.uniform(0, 1, (n, 2))
    return X, np.sin(6 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * r.standard_normal(n)


def gaussian(kernel, scale, mean=Fixed(0.0), form=None):
    return pgm.Model(pgm.Gaussian(scale), pgm.GP(kernel, mean=mean, **({} if form is None else {"form": form})))


@pytest.mark.parametrize("engine", ROUNDING_ENGINES)
def test_the_elbo_of_a_gaussian_model_is_its_evidence_wherever_y_is(engine):
    """-1.0 and 0.0 were said of the one row, and sixty iterations of the three did not converge."""
    one, three = np.zeros((1, 1)), np.array([[0.0], [1.0], [3.0]])
    cases = [
        (one, np.array([1e8]), 1.0, 1.0, 1.0, 1e8),
        (three, np.array([10000.0, 10003.0, 9998.5]), 1e6, 10.0, 0.2, 0.0),
        (three, np.array([1e7 + 0.5, 1e7 - 1.0, 1e7 + 0.25]), 2.0, 1.5, 0.01, 1e7),
    ]
    for X, y, variance, lengthscale, scale, mean in cases:
        model = gaussian(pgm.RBF(Fixed(variance), Fixed(lengthscale)), Fixed(scale), Fixed(mean), pgm.Dense())
        result = engine(model, X, y)
        right = log_evidence(square, variance, [lengthscale], scale, X, y - mean)
        # Means of 1e7 have digits of 2e-9, a five-millionth of the noise's deviation.
        assert result.elbo == pytest.approx(right, abs=1e-5)
        assert result.converged
        assert result.num_iterations <= 3


@pytest.mark.slow
@pytest.mark.parametrize("engine", ROUNDING_ENGINES)
@pytest.mark.parametrize("form", [None, pgm.Dense(), "inducing", "coupled"])
@pytest.mark.parametrize("scale", [0.2, 0.04])
def test_sixty_rows_ten_million_away(engine, form, scale):
    X, y = smooth(60)
    y = y + 1e7
    kernel = pgm.RBF(Fixed(1.0), Fixed(0.3))
    if form == "coupled":
        halves = [pgm.GP(pgm.RBF(Fixed(0.5), Fixed(0.3)), mean=Fixed(mean)) for mean in (4e6, 6e6)]
        model = pgm.Model(pgm.likelihood(lambda y, f: pgm.normal_pdf(y, f[0] + f[1], scale), num_latents=2)(), halves)
    else:
        model = gaussian(kernel, Fixed(scale), Fixed(1e7), pgm.Inducing(X) if form == "inducing" else form)
    right = log_evidence(square, 1.0, [0.3, 0.3], scale, X, y - 1e7)
    assert engine(model, X, y).elbo == pytest.approx(right, abs=1e-3)


def test_fit_is_the_same_wherever_y_is():
    """y + 10,000 took 203 s and did not converge; y of 1.7e9 stayed at its starts."""
    X, y = smooth(24)
    near = pgm.fit(gaussian(pgm.RBF(), 1.0, 0.0), X, y)
    for offset in (1e4, 1e6):
        far = pgm.fit(gaussian(pgm.RBF(), 1.0, 0.0), X, y + offset)
        assert far.converged
        assert far.elbo == pytest.approx(near.elbo, abs=1e-4)
        assert far.fit.values["mean"] == pytest.approx(offset + near.fit.values["mean"], abs=1e-2)
        assert far.fit.num_evaluations <= 2 * near.fit.num_evaluations
    values = near.fit.values
    squares = np.sum((X[:, None] - X) ** 2, axis=-1) / values["lengthscale"] ** 2
    K = values["variance"] * np.exp(-0.5 * squares) + values["scale"] ** 2 * np.eye(24)
    assert near.elbo == pytest.approx(log_normal(y - values["mean"], K), abs=1e-6)


def test_fit_of_data_without_noise_ends_at_a_floor_that_is_named():
    """36,933.5 was said of the first, whose log p(y) was 13.72."""
    x = np.linspace(0, 3, 10)[:, None]
    with pytest.warns(pgm.FitWarning, match="scale = "):
        fitted = pgm.fit(gaussian(pgm.RBF(), 0.1, 0.0), x, np.sin(2 * x[:, 0]))
    assert fitted.converged
    assert fitted.elbo == pytest.approx(of_fit(square, fitted, x, np.sin(2 * x[:, 0])), abs=0.02)
    # A function of the span of few eigenfunctions: the evidence grows as long as the noise falls.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rising = pgm.fit(gaussian(pgm.RBF(), 0.1, 0.0), 10 * x, x[:, 0] ** 2)
    named = [warning for warning in caught if "the smallest value that rounding errors allow" in str(warning.message)]
    assert [warning.category for warning in named] == [pgm.FitWarning]
    assert "scale = " in str(named[0].message)
    share = rising.fit.values["scale"] ** 2 / rising.fit.values["variance"]
    assert 1e-14 < share < 1e-11
    assert rising.elbo == pytest.approx(of_fit(square, rising, 10 * x, x[:, 0] ** 2), abs=0.2)
    mean, variance = rising.predict_latent(np.linspace(1, 29, 7)[:, None])
    assert np.all(np.asarray(variance) > 0)
    np.testing.assert_allclose(np.ravel(mean), (np.linspace(1, 29, 7) / 10) ** 2, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("separate", [False, True])
def test_an_emulator_of_branin_is_as_good_as_that_of_scikit_learn(separate):
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor, kernels

    def branin(X):
        a, b = X.T
        curve = (b - 5.1 / (4 * np.pi**2) * a**2 + 5 / np.pi * a - 6) ** 2
        return curve + 10 * (1 - 1 / (8 * np.pi)) * np.cos(a) + 10

    r = np.random.default_rng(2)
    X, X_new = ([-5.0, 0.0] + 15.0 * r.uniform(size=(n, 2)) for n in (40, 2000))
    y, y_new = branin(X), branin(X_new)
    start = np.ones(2) if separate else 1.0
    theirs = GaussianProcessRegressor(kernels.ConstantKernel() * kernels.RBF(start), normalize_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        theirs.fit(X, y)
        warnings.simplefilter("ignore", pgm.FitWarning)
        fitted = pgm.fit(gaussian(pgm.RBF(lengthscale=start if separate else None), 1.0, 0.0), X, y)
    mean, variance = (np.ravel(part) for part in fitted.predict_latent(X_new))
    error = mean - y_new
    assert fitted.converged
    assert fitted.fit.num_evaluations < 200
    assert np.sqrt(np.mean(error**2)) <= 1.5 * np.sqrt(np.mean((theirs.predict(X_new) - y_new) ** 2))
    assert fitted.elbo == pytest.approx(of_fit(square, fitted, X, y), abs=0.1)
    z = np.abs(error) / np.sqrt(variance + fitted.fit.values["scale"] ** 2)
    assert np.quantile(z, 0.5) < 1.5
    assert np.max(z) < 6.0


def test_an_elbo_that_is_off_says_by_how_much():
    """y a hundred noise deviations from a smooth prior: the jitter of the dense form takes 8 nats, silently before."""
    r = np.random.default_rng(0)
    x = np.linspace(0, 3, 14)[:, None]
    y = np.sin(2 * x[:, 0]) + 0.1 * r.standard_normal(14)
    right = log_evidence(square, 1.0, [3.0], 1e-3, x, y)
    with pytest.warns(pgm.PrecisionWarning, match="may be off by") as caught:
        result = pgm.cavi(gaussian(pgm.RBF(Fixed(1.0), Fixed(3.0)), Fixed(1e-3), form=pgm.Dense()), x, y)
    said = float(str(caught[0].message).split("may be off by ")[1].split(" nats")[0])
    assert abs(result.elbo - right) > 1.0
    assert said == pytest.approx(abs(result.elbo - right), rel=0.2)
    # The default form has the digits.
    result = pgm.cavi(gaussian(pgm.RBF(Fixed(1.0), Fixed(3.0)), Fixed(1e-3)), x, y)
    assert result.elbo == pytest.approx(right, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("form", [None, pgm.Dense(), "inducing"])
@pytest.mark.parametrize("lengthscale", [0.3, 3.0])
def test_matern_without_noise_is_right_or_says_that_it_is_not(form, lengthscale):
    x = np.linspace(0, 3, 30)[:, None]
    y, form = np.sin(2 * x[:, 0]), pgm.Inducing(x) if form == "inducing" else form
    for scale in (1.5e-7, 1e-5):
        model = gaussian(pgm.Matern52(Fixed(1.0), Fixed(lengthscale)), Fixed(scale), form=form)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = pgm.cavi(model, x, y)
        is_right = abs(result.elbo - log_evidence(matern, 1.0, [lengthscale], scale, x, y)) < 0.1
        assert is_right or any(warning.category is pgm.PrecisionWarning for warning in caught)
        # With noise of 1e-10 of the variance every form has the digits.
        assert is_right or scale < 1e-6


def test_a_value_that_rounding_made_is_refused(monkeypatch):
    """A trial step of a search had a bound of 1.9e15, became the best, and nothing was ever better."""
    x = np.linspace(0, 3, 10)[:, None]
    model, data = gaussian(pgm.RBF(), 0.1, 0.0).prepare(x, np.sin(2 * x[:, 0]), None)
    with jax.enable_x64(True):
        bound = MarginalBound.of(trainable(model.resolve(data.X)), data)
        start = bound.at(bound.learnable.start())
        limits, box = Limits(10, 1e-9), np.full((2, len(start.vector)), [[-np.inf], [np.inf]])
        with progress_bar("fit", 10, False) as bar:
            search = BoundSearch(bound, box, limits, SearchBar(bar), np.ones(len(start.vector)), start)
        true_ascent, further = penalised_bound._ascend, start.vector + 0.1

        def garbage(rounding):
            def maximise(*arguments):
                ascent, value, slope, lost = true_ascent(*arguments)
                state = ascent.state._replace(rounding=jnp.asarray(rounding))
                return ascent._replace(state=state), value + 1.9e15, slope, lost

            return maximise

        monkeypatch.setattr(penalised_bound, "_ascend", garbage(4e15))
        value, slope = search(further)
        assert value > start.value
        assert np.all(slope > 0)
        assert search.point is start
        # What rounding cannot have made counts.
        monkeypatch.setattr(penalised_bound, "_ascend", garbage(4e14))
        assert search(further)[0] == search.point.value < -1e15
    # Nor is less than that a gain.
    assert limits.enough(search.point) == search.point.rounding == 4e14


def test_steps_do_not_rise_by_rounding_alone():
    """A bound that is above by less than what rounding did to it is not above."""

    class State(NamedTuple):
        elbo: Any
        rounding: Any

    def tried(gain, rounding):
        now = State(jnp.asarray(-10.0), jnp.asarray(1e-6))
        return bool(backtrack(lambda _: State(now.elbo + gain, jnp.asarray(rounding)), now, 0, 0)[1])

    assert tried(1e-3, 1e-6)
    assert tried(-1e-6, 1e-6)
    assert not tried(-1e-3, 1e-6)
    assert not tried(1e3, 1e4)


# Priors and likelihoods of extreme scales: what double precision holds is right, and what it does not is said.


SCALE, VARIANCE, N = 1e-4, 1e4, 60


@pytest.fixture(scope="module")
def extreme():
    """X, y, and log p(y) and the posterior mean in sixty digits."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-2.0, 2.0, (N, 1)), axis=0)
    y = np.sin(2 * X[:, 0]) + SCALE * rng.normal(size=N)
    with mp.workdps(60):
        points, noise = [mp.mpf(x) for x in X[:, 0]], mp.mpf(SCALE) ** 2
        K = mp.matrix(N, N)
        for i in range(N):
            for j in range(N):
                K[i, j] = VARIANCE * mp.exp(-((points[i] - points[j]) ** 2) / 2) + (noise if i == j else 0)
        root, observed = mp.cholesky(K), mp.matrix([mp.mpf(value) for value in y])
        half = mp.lu_solve(root, observed)
        weights = mp.lu_solve(root.T, half)
        log_evidence = -mp.fdot(half, half) / 2 - sum(mp.log(root[i, i]) for i in range(N)) - N * mp.log(2 * mp.pi) / 2
        mean = np.array([float(observed[i] - noise * weights[i]) for i in range(N)])
    return X, y, float(log_evidence), mean


def test_a_prior_a_hundred_million_times_wider_than_the_noise(extreme):
    X, y, log_evidence, mean = extreme
    vi = pgm.cavi(pgm.Model(pgm.Gaussian(SCALE), pgm.GP(pgm.RBF(VARIANCE, 1.0))), X, y)
    # Twelve of sixteen digits are between the prior's variance and the noise's.
    assert abs(vi.elbo - log_evidence) < 0.02
    np.testing.assert_allclose(vi.mean[:, 0], mean, atol=0.02 * SCALE)


@pytest.mark.slow
def test_draws_of_a_prior_a_hundred_million_times_wider_than_the_noise(extreme):
    X, y, _, mean = extreme
    model = pgm.Model(pgm.Gaussian(SCALE), pgm.GP(pgm.RBF(VARIANCE, 1.0)))
    draws = pgm.gibbs(model, X, y, num_samples=400, num_warmup=25, num_chains=1, progress=False)
    # Independent draws: five standard errors.
    np.testing.assert_allclose(draws.mean[:, 0], mean, atol=5 * SCALE / np.sqrt(400))


def test_a_form_that_is_not_accurate_says_so(extreme):
    X, y, _, _ = extreme
    model = pgm.Model(pgm.Gaussian(SCALE), pgm.GP(pgm.RBF(VARIANCE, 1.0), form=pgm.Dense()))
    with pytest.warns(pgm.PrecisionWarning, match="approximated to a variance of 1.0e-06") as caught:
        pgm.cavi(model, X, y)
    assert [str(warning.filename) for warning in caught] == [__file__]
