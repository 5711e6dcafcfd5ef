"""Engines with Markov processes that a formula combines, against the dense form of the same GPs."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from pgmodels.inference.bound import MarginalBound
from pgmodels.inference.evidence import block_log_ratios
from pgmodels.inference.objectives import expected_objective
from pgmodels.parameters.vector import trainable
from pgmodels.priors.chain_posterior import Layout
from tests.statistical.reference import z_scores

# As in test_markov.py: sums of 300 terms, and the dense roots' jitter.
TIGHT = 1e-8


@pgm.likelihood(support=pgm.Given(pgm.Binary(), pgm.Classes(4), pgm.Classes(4)))
def game(y, f):
    z = f[y[1]] - f[y[2]]
    return pgm.sigmoid(z) ** y[0] * pgm.sigmoid(-z) ** (1 - y[0])


@pytest.fixture(scope="module")
def games():
    """Times of games with ties, and (won, first, second)."""
    rng = np.random.default_rng(0)
    t = rng.uniform(0.0, 10.0, 150)
    t[:4] = t[20]
    first = rng.integers(0, 4, len(t))
    second = (first + rng.integers(1, 4, len(t))) % 4
    won = rng.random(len(t)) < 1.0 / (1.0 + np.exp(-2.0 * (np.sin(t + first) - np.sin(t + second))))
    return t[:, None], np.column_stack([won, first, second]).astype(float)


@pytest.fixture(scope="module")
def data():
    """A series beside 12 groups and two linear columns; binary y."""
    rng = np.random.default_rng(1)
    t, group, z = rng.uniform(0.0, 20.0, 300), rng.integers(0, 12, 300), rng.normal(size=(300, 2))
    t[50] = t[3]
    eta = np.sin(t) + rng.normal(0.0, 0.7, 12)[group] + z @ [0.5, -0.3]
    y = (rng.random(300) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    return np.column_stack([t, group, z]), y


NEW = np.column_stack([[-1.0, 4.0, 7.3, 19.0, 40.0], [0, 3, 5, 11, 14], np.ones((5, 2))])


def regression(form):
    gps = [
        pgm.GP(pgm.On(pgm.Matern32(1.7, 0.8), [0]), 0.3, form=form),
        pgm.GP(pgm.On(pgm.White(0.5), [1]), pgm.Fixed(0.0)),
        pgm.GP(pgm.On(pgm.Linear(pgm.Fixed([0.5, 0.5])), [2, 3]), pgm.Fixed(0.0)),
    ]
    return pgm.Model(pgm.with_predictor(pgm.Bernoulli(), 3), gps)


def ratings(form):
    return pgm.Model(game(), pgm.GP(pgm.Matern32(1.0, 2.0), size=4, form=form))


def twins(model_of, engine, *arguments, **options):
    return [engine(model_of(form), *arguments, **options) for form in (pgm.Markov(), pgm.Dense())]


def assert_same(chain, dense, *new, covariates=None):
    assert chain.elbo == pytest.approx(dense.elbo, abs=TIGHT)
    pairs = [
        ((chain.mean, chain.variance), (dense.mean, dense.variance)),
        [q.predict_latent(*new) for q in (chain, dense)],
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours[0], theirs[0], rtol=0, atol=TIGHT)
        np.testing.assert_allclose(ours[1], theirs[1], rtol=0, atol=TIGHT)
    # Predictions read the covariances between the latents of a row.
    ours, theirs = (q.predict(*new, covariates=covariates).mean for q in (chain, dense))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TIGHT)


@pytest.mark.parametrize("engine", [pgm.cavi, pytest.param(pgm.gaussian_vi, marks=pytest.mark.slow)])
def test_a_series_beside_groups_and_lines(data, engine):
    assert_same(*twins(regression, engine, *data), NEW)


@pytest.mark.parametrize("likelihood", [pgm.Poisson(), pytest.param(pgm.Gamma(2.0), marks=pytest.mark.slow)])
def test_log_rates_that_are_sums_are_one_predictor(data, likelihood):
    """In y (f[0] + f[1]) - exp(f[0] + f[1]) the data are a factor of the first sum."""
    X, _ = data
    y = np.random.default_rng(3).poisson(np.exp(0.5 * np.sin(X[:100, 0]))) + (likelihood.name == "Gamma") * 0.5

    def model_of(form):
        gps = [pgm.GP(pgm.On(pgm.Matern32(1.0, 2.0), [0]), form=form), pgm.GP(pgm.On(pgm.White(0.5), [1]))]
        return pgm.Model(pgm.with_predictor(likelihood, 2), gps)

    assert expected_objective(model_of(pgm.Markov())).size == 1
    chain, dense = (
        pgm.gaussian_vi(model_of(form), X[:100], y, tolerance=1e-13) for form in (pgm.Markov(), pgm.Dense())
    )
    assert chain.elbo == pytest.approx(dense.elbo, abs=1e-8)
    np.testing.assert_allclose(chain.variance, dense.variance, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_outliers_of_a_sum_are_those_of_the_dense_form(data):
    X, rng = data[0][:90], np.random.default_rng(4)
    y = np.sin(X[:, 0]) + 0.4 * rng.standard_t(2.0, len(X))

    def model_of(form):
        gps = [pgm.GP(pgm.On(pgm.Matern32(1.0, 2.0), [0]), 0.2, form=form), pgm.GP(pgm.On(pgm.White(0.5), [1]))]
        return pgm.Model(pgm.with_predictor(pgm.StudentT(3.0, 0.4), 2), gps)

    chain, dense = (pgm.gaussian_vi(model_of(form), X, y, tolerance=1e-14) for form in (pgm.Markov(), pgm.Dense()))
    assert np.min(np.linalg.eigvalsh(np.asarray(chain.posterior.sites.precision))) < -0.1
    assert chain.elbo == pytest.approx(dense.elbo, abs=1e-8)
    for ours, theirs in ((chain, dense), (pgm.correct(chain), pgm.correct(dense))):
        np.testing.assert_allclose(ours.mean, theirs.mean, rtol=0, atol=1e-5)
        np.testing.assert_allclose(ours.variance, theirs.variance, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pgm.cavi, pgm.gaussian_vi])
def test_ratings_by_differences_that_read_the_items_of_a_row(games, engine):
    assert_same(*twins(ratings, engine, *games), [[2.0], [30.0]], covariates=[[0, 1], [3, 2]])


def a_series_beside_few_groups(form):
    """Fewer coefficients than in ``regression``: the states of linear response have their products, too."""
    gps = [
        pgm.GP(pgm.On(pgm.Matern32(1.7, 0.8), [0]), 0.3, form=form),
        pgm.GP(pgm.On(pgm.White(0.5), [1])),
        pgm.GP(pgm.On(pgm.Linear(0.5), [2])),
    ]
    return pgm.Model(pgm.with_predictor(pgm.Bernoulli(), 3), gps)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pgm.cavi, pgm.gaussian_vi])
@pytest.mark.parametrize("model_of", [a_series_beside_few_groups, ratings])
def test_linear_response_is_that_of_the_dense_form(data, games, model_of, engine):
    X, y = games if model_of is ratings else data
    if model_of is not ratings:
        X = np.column_stack([X[:, 0], X[:, 1] % 4, X[:, 2]])
    new, covariates = ([[2.0], [30.0]], [[0, 1], [3, 2]]) if model_of is ratings else (NEW[:, :3] % 4.0, None)
    chain, dense = (pgm.correct(q) for q in twins(model_of, engine, X[:120], y[:120], tolerance=1e-13))
    assert np.max(np.abs(chain.variance - chain.uncorrected.variance)) > 1e-3
    np.testing.assert_allclose(chain.variance, dense.variance, rtol=0, atol=1e-7)
    pairs = zip(chain.predict_latent(new), dense.predict_latent(new), strict=True)
    for ours, theirs in (*pairs, [q.predict(new, covariates=covariates).mean for q in (chain, dense)]):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-7)


def test_a_difference_and_its_negative_are_one_predictor():
    text = str(pgm.derive(ratings(pgm.Dense())))
    assert "where z = ([y[1] = 0] - [y[2] = 0]) f[0] + " in text
    assert "the number of latents that f[y[1]] selects" in text
    # Single latents, which no factor combines, stay as they are.
    one = pgm.likelihood(lambda y, f: pgm.sigmoid(f[y[1]]) ** y[0] * pgm.sigmoid(-f[y[1]]) ** (1 - y[0]))
    assert pgm.Model(one(), pgm.GP(pgm.RBF(), size=5)).predictors is None


def test_an_item_that_is_none_is_refused(games):
    t, y = games
    open_game = pgm.likelihood(game.function)
    model = pgm.Model(open_game(), pgm.GP(pgm.Matern32(1.0, 2.0), size=4, form=pgm.Markov()))
    with pytest.raises(ValueError, match=r"the number of latents that f\[y\[1\]\] selects"):
        pgm.cavi(model, t, np.where(y == 3, 7.0, y))


@pytest.mark.slow
def test_slopes_in_hyperparameters_are_those_of_the_dense_form(data):
    X, y = data[0][:80], data[1][:80]
    slopes = []
    for form in (pgm.Markov(), pgm.Dense()):
        with jax.enable_x64(True):
            bound = MarginalBound(trainable(regression(form)), regression(form).check(X, y))
            slopes.append(bound(bound.vector))
    assert slopes[0][0] == pytest.approx(slopes[1][0], abs=TIGHT)
    np.testing.assert_allclose(slopes[0][1], slopes[1][1], rtol=0, atol=1e-6)
    assert np.all(np.abs(slopes[1][1]) > 1e-3)


@pytest.mark.slow
def test_hyperparameters_are_learned_as_with_the_dense_form(data):
    chain, dense = twins(regression, pgm.fit, *data, objective="augmented", correct=False)
    assert chain.elbo == pytest.approx(dense.elbo, abs=1e-8)
    for name, value in chain.fit.values.items():
        # To the tolerance of the optimiser.
        assert value == pytest.approx(dense.fit.values[name], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("model_of", [regression, ratings])
def test_gibbs_agrees_with_the_dense_form(data, games, model_of):
    X, y = data if model_of is regression else games
    X, y = X[:40], y[:40]
    options = {"num_samples": 2000, "num_warmup": 50, "num_chains": 2, "seed": 1}
    chain, dense = (pgm.gibbs(model_of(form).fixed(), X, y, **options) for form in (pgm.Markov(), pgm.Dense()))
    assert list(chain.tuning) == ["sweep"]
    mean, variance = z_scores(chain.latents, dense.latents)
    # 320 comparisons at 4.5 joint standard errors.
    assert max(np.abs(mean).max(), np.abs(variance).max()) < 4.5
    new = NEW if model_of is regression else np.array([[2.0], [30.0]])
    for ours, theirs in zip(chain.predict_latent(new), dense.predict_latent(new), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.25)


@pytest.mark.slow
def test_results_are_saved_and_updated(data, tmp_path):
    X, y = data
    q = pgm.cavi(regression(pgm.Markov()), X, y)
    again = pgm.load(q.save(tmp_path / "result.npz"), likelihood=q.model.likelihood)
    for ours, theirs in zip(again.predict_latent(NEW), q.predict_latent(NEW), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)
    updated = pgm.update(pgm.cavi(regression(pgm.Markov()), X[:200], y[:200]), X[200:], y[200:])
    # Both to a tolerance of 1e-9 of the ELBO, which is flat at the optimum.
    np.testing.assert_allclose(updated.mean, q.mean, rtol=0, atol=1e-4)


@pytest.mark.parametrize("place", [0, 1])
def test_a_constant_may_come_first(place):
    """A few times, out of order: as many as a constant's padded input."""
    t = np.tile([3.0, 1.0, 2.0], 5)[:, None]
    y = (np.random.default_rng(2).random(15) < 0.4).astype(float)
    kernels = [pgm.Matern32(1.5, 2.0)]
    kernels.insert(place, pgm.Constant(0.7))
    results = []
    for form in (pgm.Markov(), pgm.Dense()):
        gps = [pgm.GP(kernel, mean=0.1, form=form) for kernel in kernels]
        results.append(pgm.gaussian_vi(pgm.Model(pgm.with_predictor(pgm.Bernoulli(), 2), gps), t, y))
    chain, dense = results
    np.testing.assert_allclose(chain.elbo, dense.elbo, atol=TIGHT)
    X_new = [[0.0], [1.4], [5.0]]
    for ours, theirs in zip(chain.predict_latent(X_new), dense.predict_latent(X_new), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_the_evidence_with_a_constant_first():
    """A constant, and the same with a process that hardly moves, whose times are those of the rows."""
    rng = np.random.default_rng(4)
    t, y = rng.permutation(30)[:, None] / 3.0, rng.normal(size=30)
    estimates = []
    for first in (pgm.Constant(0.5), pgm.Constant(0.5) + pgm.Matern12(1e-6, 2.0)):
        gps = [pgm.GP(kernel, form=pgm.Markov()) for kernel in (first, pgm.Matern12(0.5, 2.0))]
        result = pgm.vi(pgm.Model(pgm.HeteroscedasticGaussian(1.5), gps), t, y, objective="mean_field")
        estimates.append(pgm.log_evidence(result))
    error = np.hypot(*(estimate.standard_error for estimate in estimates))
    assert error < 0.2
    assert abs(estimates[0].value - estimates[1].value) < 4.0 * error


@pytest.mark.slow
@pytest.mark.parametrize("model_of", [a_series_beside_few_groups, ratings])
def test_the_evidence_by_particles_is_that_of_the_dense_form(data, games, model_of):
    X, y = games if model_of is ratings else data
    if model_of is not ratings:
        X = np.column_stack([X[:, 0], X[:, 1] % 4, X[:, 2]])
    # Far from the posterior, so that particles are resampled.
    ours = pgm.log_evidence(pgm.cavi(model_of(pgm.Markov()), X[:120], y[:120]), num_draws=8000)
    theirs = pgm.log_evidence(pgm.gaussian_vi(model_of(pgm.Dense()), X[:120], y[:120]), num_draws=8000)
    assert ours.value - ours.elbo > 5.0 * ours.standard_error
    error = np.hypot(ours.standard_error, theirs.standard_error)
    assert error < 0.1
    assert ours.value == pytest.approx(theirs.value, abs=4.0 * error)


@pytest.mark.slow
def test_integrate_agrees_with_the_dense_form(games):
    t, y = games
    results = []
    for form in (pgm.Markov(), pgm.Dense()):
        kernel = pgm.Matern32(1.0, dist.LogNormal(0.5, 0.3))
        model = pgm.Model(game(), pgm.GP(kernel, pgm.Fixed(0.0), size=4, form=form))
        results.append(pgm.integrate(model, t[:80], y[:80], num_draws=4000))
    chain, dense = results
    # Particles and weights, with some .02 nats at a point.
    assert chain.log_evidence == pytest.approx(dense.log_evidence, abs=0.1)
    np.testing.assert_allclose(chain.mean, dense.mean, atol=0.02)
    np.testing.assert_allclose(chain.variance, dense.variance, rtol=0.02)


def test_blocks_of_a_long_series_beside_groups():
    rng = np.random.default_rng(5)
    t, group, z = rng.uniform(0.0, 110.0, 1100), rng.integers(0, 4, 1100), rng.normal(size=1100)
    eta = np.sin(t) + np.array([0.7, -0.4, 0.1, -0.9])[group] + 0.5 * z
    y = (rng.random(1100) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    q = pgm.cavi(a_series_beside_few_groups(pgm.Markov()), np.column_stack([t, group, z]), y)
    with jax.enable_x64(True):
        layout = Layout.of(q.posterior.prior, is_coupled=True)
        arrays = (*q.data.padded(q.posterior.prior.num_rows), jnp.array([0, 700]))
        ours = np.asarray(block_log_ratios(q.model.bare(), q.posterior, *arrays, jax.random.key(0), 4000, layout))
        f = np.asarray(jax.lax.map(lambda key: q.posterior.draw(key)[0], jax.random.split(jax.random.key(1), 4000)))
        (h, W), order = map(np.asarray, q.posterior.sites), np.argsort(t)
    for start, ratios in zip((0, 700), ours, strict=True):
        rows = order[start : start + 100]
        at = f[:, rows]
        sites = np.sum(h[rows] * at, axis=2) - 0.5 * np.einsum("sil,ilk,sik->si", at, W[rows], at)
        theirs = np.sum(-np.logaddexp(0.0, -(2.0 * y[rows] - 1.0) * at.sum(axis=2)) - sites, axis=1)
        # Four comparisons at four joint standard errors.
        for power in (1, 2):
            one, other = (((part - theirs.mean()) if power == 2 else part) ** power for part in (ratios, theirs))
            assert abs(one.mean() - other.mean()) < 4.0 * np.hypot(one.std(), other.std()) / np.sqrt(4000)
    assert 0.0 < pgm.diagnose(q, num_replicates=0).pareto_k < 0.9


def test_many_effects_beside_chains_are_refused_by_particles(data):
    X, y = data
    gps = [pgm.GP(pgm.On(pgm.Matern32(), [0]), form=pgm.Markov()), pgm.GP(pgm.On(pgm.White(), [2]))]
    result = pgm.cavi(pgm.Model(pgm.with_predictor(pgm.Bernoulli(), 2), gps), X, y)
    with pytest.raises(ValueError, match=r"log_evidence .* at most 64 coefficients.*pgm\.Dense\(\)"):
        pgm.log_evidence(result)


def test_fit_notes_that_a_correction_of_many_coefficients_is_too_large(data):
    X, y = data
    kernel = pgm.Matern32(pgm.Fixed(1.0), pgm.Fixed(2.0))
    gps = [
        pgm.GP(pgm.On(kernel, [0]), form=pgm.Markov()),
        pgm.GP(pgm.On(pgm.White(pgm.Fixed(0.5)), [2]), pgm.Fixed(0.0)),
    ]
    model = pgm.Model(pgm.with_predictor(pgm.Bernoulli(), 2), gps)
    fitted = pgm.fit(model, X[:100], y[:100], objective="augmented", progress=False)
    assert "none: the system has" in fitted.fit.correction
