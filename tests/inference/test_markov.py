"""Engines with GPs that are Markov processes, against the dense form of the same GPs and published filters."""

import os
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import stats

import pgmodels as pgm
from pgmodels.inference.bound import MarginalBound
from pgmodels.inference.evidence import block_log_ratios, weigh_blocks
from pgmodels.inference.objectives import expected_objective
from pgmodels.inference.prepare import FEW, with_chain
from pgmodels.parameters.vector import trainable
from pgmodels.priors.chain_posterior import Layout
from tests.covering import some
from tests.statistical.reference import errors_of_draws, z_scores

KERNELS = {
    "Matern12": pgm.Matern12(1.7, 0.8),
    "Matern32": pgm.Matern32(1.7, 0.8),
    "Matern52": pgm.Matern52(1.7, 0.8),
    "sum": pgm.Matern32(1.7, 5.0) + pgm.Matern12(0.3, 0.5) + pgm.Constant(0.5) + pgm.Linear(1e-5),
    "product": pgm.Matern32(1.7, 0.8) * pgm.Matern12(1.0, 30.0),
    "waves": pgm.Cosine(1.7, 6.0) * pgm.Matern12(1.0, 30.0) + pgm.RandomWalk(1e-3, start=-2e3),
    # With so many harmonics exact to 1e-13.
    "seasons": pgm.Periodic(1.7, 2.0, 6.0, harmonics=8) + pgm.Matern12(0.5, 3.0),
}
# Sums of 300 terms of size 1, solved by recursions that amplify rounding by a precision times a variance, some 10.
TIGHT = 1e-10
# The same, and the dense roots' jitter.
LOOSE = 1e-8


@pytest.fixture(scope="module")
def data():
    """Unsorted times with ties, a gap of 370 lengthscales, and two that differ by 1e-9; binary y."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 20.0, 300)
    x[50] = x[51] = x[3]
    x[150:] += 300.0
    x[7] = x[8] + 1e-9
    y = (rng.random(300) < 1.0 / (1.0 + np.exp(-2.0 * np.sin(x)))).astype(float)
    return x[:, None], y


@pytest.fixture(scope="module")
def places(data):
    """New inputs between the data, at some of them, before all and after all."""
    near = np.random.default_rng(1).uniform(-5.0, 330.0, 30)
    return np.concatenate([near, data[0][:5, 0], [1e3, -1e3]])[:, None]


def of_form(kernel, mean=0.0, likelihood=pgm.Bernoulli()):
    """A model of one GP by its form."""
    return lambda form: pgm.Model(likelihood, pgm.GP(kernel, mean=mean, form=form))


def twins(model_of, engine, *arguments, **options):
    return [engine(model_of(form), *arguments, **options) for form in (pgm.Markov(), pgm.Dense())]


def assert_same(chain, dense, places, atol=TIGHT):
    assert chain.elbo == pytest.approx(dense.elbo, abs=100 * atol)
    np.testing.assert_allclose((chain.mean, chain.variance), (dense.mean, dense.variance), rtol=0, atol=atol)
    assert_same_predictions(chain, dense, places, atol)


def assert_same_predictions(chain, dense, places, atol):
    np.testing.assert_allclose(chain.predict_latent(places), dense.predict_latent(places), rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("name", "engine"),
    some([(name, engine) for name in KERNELS for engine in (pgm.cavi, pgm.gaussian_vi)], ("sum", pgm.cavi)),
)
def test_posteriors_are_those_of_the_dense_form(data, places, name, engine):
    assert_same(*twins(of_form(KERNELS[name], 0.4), engine, *data), places)


@pytest.mark.parametrize(
    ("name", "engine"),
    some(
        # Not of the largest state, which is slow.
        [(name, engine) for name in KERNELS if name != "seasons" for engine in (pgm.cavi, pgm.gaussian_vi)],
        ("Matern32", pgm.cavi),
    ),
)
def test_linear_response_is_that_of_the_dense_form(data, places, name, engine):
    rows, model_of = [part[:120] for part in data], of_form(KERNELS[name], 0.4)
    # At the optimum, where the sites are those of their moments.
    chain, dense = (pgm.correct(q) for q in twins(model_of, engine, *rows, tolerance=1e-13))
    assert chain.is_positive
    assert np.max(np.abs(chain.variance - chain.uncorrected.variance)) > 1e-3
    # The dense form has a jitter of 1e-10 of the variance for rows that differ by 1e-9.
    assert_same(chain, dense, places, atol=1e-8)


@pytest.mark.parametrize("likelihood", ["StudentT", pytest.param("Bernoulli", marks=pytest.mark.slow)])
def test_a_response_that_is_no_covariance_is_said(data, likelihood):
    X, y = data
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern32(60.0, 2.0), form=pgm.Markov()))
    if likelihood == "StudentT":
        # Far from the prior, where densities are not log-concave.
        y = 3.0 + 0.1 * np.random.default_rng(8).normal(size=len(X))
        model = pgm.Model(pgm.StudentT(3.0, 0.3), pgm.GP(pgm.Matern32(1.0, 2.0), form=pgm.Markov()))
    q = pgm.cavi(model, X[:40], y[:40])
    with jax.enable_x64(True):
        # Not an optimum: the covariance of the prior, with the curvature of the data at these marginals.
        elsewhere = replace(q, posterior=q.posterior.tempered(0.0))
    with pytest.warns(pgm.CorrectionWarning, match=r"not positive definite \(in row"):
        assert not pgm.correct(elsewhere).is_positive


def test_corrections_refuse_what_they_cannot_do(data):
    X, y = data
    q = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern32(1.7, 0.8), form=pgm.Markov())), X[:40], y[:40])
    corrected = pgm.correct(q)
    for call in (lambda: corrected.draw_latents(X[:3]), lambda: corrected.draw_at_data(10)):
        with pytest.raises(ValueError, match=r"raw .*uncorrected result"):
            call()
    for method in ("perturbative", "nested"):
        with pytest.raises(ValueError, match=r"no factor matrix.*pgm.Dense"):
            pgm.correct(q, method=method)


@pytest.mark.slow
def test_several_latents_are_one_chain_each_and_other_forms_beside_them(data, places):
    x, _ = data
    rng = np.random.default_rng(2)
    X = np.column_stack([x, rng.uniform(-2.0, 2.0, len(x))])
    y = rng.integers(0, 3, len(x)).astype(float)

    def model_of(form):
        trend = pgm.GP(pgm.On(pgm.Matern32(1.5, 2.0), [0]), size=2, form=form)
        return pgm.Model(pgm.LogisticSoftmax(3), [trend, pgm.GP(pgm.On(pgm.RBF(0.7, 1.0), [1]), form=pgm.Dense())])

    new = np.column_stack([places, rng.uniform(-2.0, 2.0, len(places))])
    assert_same(*twins(model_of, pgm.cavi, X, y), new, atol=1e-8)


def test_linear_response_of_several_latents_is_that_of_the_dense_form(data, places, tmp_path):
    X, _ = data
    rng = np.random.default_rng(6)
    y = np.sin(2.0 * X[:80, 0]) + rng.normal(size=80) * np.exp(0.5 * np.sin(3.0 * X[:80, 0]))

    def model_of(form):
        gps = [pgm.GP(pgm.Matern32(1.0, 0.8), form=form), pgm.GP(pgm.Matern12(1.0, 1.5), form=form)]
        return pgm.Model(pgm.HeteroscedasticGaussian(4.0), gps)

    chain, dense = (pgm.correct(q) for q in twins(model_of, pgm.cavi, X[:80], y, tolerance=1e-13))
    assert_same(chain, dense, places, atol=2e-8)
    # The latents of a row are correlated through their likelihood.
    assert np.max(np.abs(dense.covariance[:, 0, 1])) > 1e-3
    np.testing.assert_allclose(chain.covariance, dense.covariance, rtol=0, atol=2e-8)
    loaded = pgm.load(chain.save(tmp_path / "corrected"))
    np.testing.assert_allclose(loaded.predict_latent(places), chain.predict_latent(places), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_rows_without_y_are_predicted(data):
    X, y = data
    y = np.where(np.arange(len(y)) % 7 == 0, np.nan, y)
    chain, dense = twins(of_form(pgm.Matern32(1.7, 0.8)), pgm.cavi, X, y, missing="predict")
    np.testing.assert_allclose(
        chain.predict_missing().probabilities, dense.predict_missing().probabilities, rtol=0, atol=TIGHT
    )


def test_a_filter_of_a_long_series():
    # Of an independent Kalman filter, which agrees with the dense formula to 1e-11 at n = 400.
    x = 0.01 * np.arange(50_000)
    y = np.sin(x) + 0.5 * np.sin(2.0 * np.pi * x / 7.0) + 0.5 * np.random.default_rng(0).standard_normal(len(x))
    gp = pgm.GP(pgm.Matern32(1.0, 2.0), form=pgm.Markov())
    q = pgm.cavi(pgm.Model(pgm.Gaussian(pgm.Fixed(0.5)), gp), x[:, None], y)
    # The figures are printed to these digits.
    assert q.elbo == pytest.approx(-37611.92072, abs=1e-5)
    assert q.mean[-1, 0] == pytest.approx(-0.148483, abs=1e-6)
    assert q.variance[-1, 0] == pytest.approx(0.0154788, abs=1e-7)


@pytest.mark.skipif("PGMODELS_DATA" not in os.environ, reason="needs the folder of data in PGMODELS_DATA")
def test_a_filter_of_tree_rings():
    path = Path(os.environ["PGMODELS_DATA"]) / "treering.csv"
    if not path.exists():
        pytest.skip(f"needs {path}")
    years, width = np.loadtxt(path, delimiter=",", skiprows=1)[:, 1:].T
    gp = pgm.GP(pgm.Matern32(0.05, 20.0), form=pgm.Markov())
    q = pgm.cavi(pgm.Model(pgm.Gaussian(pgm.Fixed(0.08**0.5)), gp), years[:, None], width - 1.0)
    assert q.elbo == pytest.approx(-1671.12529, abs=1e-5)
    assert q.mean[-1, 0] == pytest.approx(0.126811, abs=1e-6)
    assert q.variance[-1, 0] == pytest.approx(0.0103264, abs=1e-7)


@pytest.mark.slow
def test_dates_of_a_frame_are_times_in_days(data):
    X, y = data[0][:40], data[1][:40]
    seconds = np.round(X[:, 0])
    frame = pd.DataFrame({"time": pd.Timestamp("2024-03-01") + pd.to_timedelta(seconds, unit="s")})
    second = 1.0 / 86_400.0
    kernel = pgm.Matern32(1.7, 0.8 * second)
    by_date = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.On(kernel, ["time"]), form=pgm.Markov())), frame, y)
    by_number = pgm.cavi(
        pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern32(1.7, 0.8), form=pgm.Markov())), seconds[:, None], y
    )
    np.testing.assert_allclose(by_date.mean, by_number.mean, rtol=0, atol=1e-8)
    later = frame + pd.Timedelta(seconds=0.5)
    ours, theirs = by_date.predict_latent(later), by_number.predict_latent(seconds[:, None] + 0.5)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-8)


def test_harmonics_that_are_too_few_are_said(data):
    X, y = data
    kernel = pgm.Periodic(1.7, 0.15, 6.0)
    with pytest.raises(ValueError, match=r"leave out 0.2% of the variance.*harmonics=30.*pgm.Dense"):
        pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, form=pgm.Markov())), X, y)


@pytest.mark.slow
def test_harmonics_that_the_data_would_show_are_said(data):
    X, y = data
    few = pgm.GP(pgm.Periodic(1.7, 1.0, 6.0, harmonics=4) + pgm.Matern12(0.5, 3.0), form=pgm.Markov())
    # 1.7 times 2 I_j(1) / e, j > 4.
    with pytest.warns(pgm.PrecisionWarning, match=r"variance of 3.7e-04 \(jitter, neglected pivots or harmonics"):
        pgm.cavi(pgm.Model(pgm.Gaussian(pgm.Fixed(0.01)), few), X[:40], y[:40])


@pytest.mark.slow
def test_a_walk_from_the_first_time_is_that_of_the_dense_form(data):
    x = np.abs(data[0]) + 3.0
    chain, dense = twins(of_form(pgm.RandomWalk(0.3) + pgm.Constant(0.5)), pgm.cavi, x, data[1])
    assert chain.model.gps[0].kernel.left.start.value == x.min()
    assert_same(chain, dense, x[:5] + 0.01, atol=1e-8)
    with pytest.raises(ValueError, match=r"X_new is .* before the start of RandomWalk.*start="):
        chain.predict_latent(x.min(keepdims=True)[None, 0] - 1.0)


def test_kernels_it_cannot_represent_are_refused_before_work_starts(data):
    X, y = data
    two = np.column_stack([X, X])
    for kernel, inputs, message in (
        (pgm.RBF(), X, r"RBF.*has no state-space form.*pgm.Dense"),
        (pgm.Matern32(), two, r"one column, but Matern32.* reads 2.*pgm.On\(kernel, \[0\]\)"),
        (pgm.On(pgm.Matern32(), [0]) + pgm.On(pgm.Matern12(), [1]), two, r"reads 2.*pgm.On"),
    ):
        with pytest.raises(ValueError, match=message):
            pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, form=pgm.Markov())), inputs, y)


@pytest.mark.slow
def test_joint_draws_at_new_inputs_have_the_covariance_of_the_dense_form(data):
    X, y, count = data[0][:40], data[1][:40], 20_000
    new = np.concatenate([X[:2, 0], X[:2, 0] + 0.1, X[:2, 0] + 0.2, [-0.5, 1e3]])[:, None]
    chain, dense = twins(of_form(pgm.Matern32(1.7, 0.8), 0.4), pgm.cavi, X, y)
    f = chain.draw_latents(new, count, seed=3)[:, :, 0]
    mean, _ = dense.predict_latent(new)
    with jax.enable_x64(True):
        covariance = np.asarray(dense.posterior.covariance_at(jnp.asarray(new)))[0]
    # Some 44 comparisons.
    assert errors_of_draws(f, mean[:, 0], covariance) < 5.0


@pytest.mark.slow
def test_gibbs_agrees_with_the_dense_form(data, places):
    X, y, model_of = data[0][:40], data[1][:40], of_form(pgm.Matern32(1.7, 0.8), 0.4)
    chain = pgm.gibbs(model_of(pgm.Markov()), X, y, num_samples=2000, num_warmup=50, num_chains=2, seed=1)
    dense = pgm.gibbs(model_of(pgm.Dense()), X, y, num_samples=1000, num_warmup=50, num_chains=2, seed=1)
    assert list(chain.tuning) == ["sweep"]
    # 80 comparisons at four joint standard errors.
    assert np.max(np.abs(z_scores(chain.latents, dense.latents))) < 4.0
    # Given draws at the data, what is drawn there again is the same; elsewhere both average the same function.
    np.testing.assert_allclose(chain.predict_latent(X), (chain.mean, chain.variance), atol=1e-6)
    np.testing.assert_allclose(chain.predict_latent(places), dense.predict_latent(places), atol=0.25)
    # Each draw at new inputs goes on from one of the draws, and their marginals are those of predict_latent.
    new = chain.draw_latents(np.concatenate([places, X]), num_draws=4000)
    expected = np.concatenate([chain.predict_latent(places)[0], chain.mean])
    np.testing.assert_allclose(new.mean(axis=0), expected, atol=0.1)
    assert np.all(np.isin(np.round(new[:50, len(places), 0], 6), np.round(chain.latents[:, :, 0, 0], 6)))


@pytest.mark.slow
def test_gibbs_samples_hyperparameters_as_with_the_dense_form(places, tmp_path):
    # Unsorted, with ties and a gap.
    rng = np.random.default_rng(5)
    x = np.append(rng.uniform(0.0, 8.0, 55), [30.0, 31.0, 31.5])
    x[40:43] = x[3]
    y = np.sin(x) + (0.2 + 0.4 * (np.cos(x) > 0.0)) * rng.normal(size=len(x))

    def model_of(form):
        mean = pgm.Matern32(dist.LogNormal(0.0, 0.7), dist.LogNormal(0.0, 0.7))
        spread = pgm.Matern12(dist.LogNormal(0.0, 0.5), 2.0)
        gps = [pgm.GP(mean, mean=dist.Normal(0.0, 1.0), form=form), pgm.GP(spread, mean=-0.3, form=form)]
        return pgm.Model(pgm.HeteroscedasticGaussian(dist.Gamma(3.0, 0.3)), gps)

    settings = {"num_warmup": 200, "num_chains": 2, "seed": 2}
    chain = pgm.gibbs(model_of(pgm.Markov()), x[:, None], y, num_samples=3000, **settings)
    dense = pgm.gibbs(model_of(pgm.Dense()), x[:, None], y, num_samples=1000, **settings)
    assert list(chain.tuning) == ["marginal_slice", "slice_likelihood", "sweep"]
    for name, draws in chain.hyperparameters.items():
        ours, theirs = (np.log(np.abs(part)) for part in (draws, dense.hyperparameters[name]))
        # Five hyperparameters and 116 latents, means and variances, at four joint standard errors.
        assert np.max(np.abs(z_scores(ours, theirs))) < 4.0, name
    assert np.max(np.abs(z_scores(chain.latents, dense.latents))) < 4.5
    np.testing.assert_allclose(chain.predict_latent(places), dense.predict_latent(places), atol=0.15, rtol=0.15)
    new = chain.draw_latents(places, num_draws=2000)
    np.testing.assert_allclose(new.mean(axis=0), chain.predict_latent(places)[0], atol=0.15)
    # An interrupted run goes on with the same ellipses.
    settings = {"num_warmup": 120, "num_chains": 2, "seed": 2}
    half = pgm.gibbs(model_of(pgm.Markov()), x[:, None], y, num_samples=5, checkpoint=tmp_path / "run", **settings)
    resumed = pgm.gibbs(model_of(pgm.Markov()), x[:, None], y, num_samples=9, checkpoint=tmp_path / "run", **settings)
    at_once = pgm.gibbs(model_of(pgm.Markov()), x[:, None], y, num_samples=9, **settings)
    assert half.num_samples == 5
    for name, draws in at_once.hyperparameters.items():
        np.testing.assert_array_equal(resumed.hyperparameters[name], draws)


def test_the_evidence_of_a_gaussian_likelihood_is_exact(data):
    X, y = data
    model = pgm.Model(pgm.Gaussian(0.7), pgm.GP(pgm.Matern32(1.7, 0.8), mean=0.4, form=pgm.Markov()))
    evidence = pgm.log_evidence(pgm.cavi(model, X, y), num_draws=100)
    K = model.gps[0].kernel(X, X) + 0.49 * np.eye(len(y))
    expected = stats.multivariate_normal(np.full(len(y), 0.4), np.asarray(K)).logpdf(y)
    assert evidence.value == pytest.approx(expected, abs=1e-8)
    assert evidence.standard_error < 1e-8
    assert evidence.k_hat is None


def evidences(model_of, engine, X, y):
    """Those of the two forms, which agree. CAVI's q of one latent is so far off that particles are resampled."""
    ours = pgm.log_evidence(engine(model_of(pgm.Markov()), X, y), num_draws=8000)
    theirs = pgm.log_evidence(pgm.gaussian_vi(model_of(pgm.Dense()), X, y), num_draws=8000)
    assert ours.value - ours.elbo > 5.0 * ours.standard_error
    assert ours.value == pytest.approx(theirs.value, abs=4.0 * np.hypot(ours.standard_error, theirs.standard_error))
    return ours, theirs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:gaussian_vi treats the latents of a datum as independent")
@pytest.mark.parametrize("likelihood", ["Bernoulli", "StudentT", "heteroscedastic"])
def test_the_evidence_by_particles_is_that_of_the_dense_form(data, likelihood):
    X, y = data[0][:100], data[1][:100]
    noise = np.random.default_rng(3).standard_t(3, 100)

    def model_of(form):
        gp = pgm.GP(pgm.Matern32(3.0, 0.8), mean=0.4, form=form)
        if likelihood == "Bernoulli":
            return pgm.Model(pgm.Bernoulli(), gp)
        if likelihood == "StudentT":
            return pgm.Model(pgm.StudentT(3.0, 0.5), gp)
        return pgm.Model(pgm.HeteroscedasticGaussian(3.0), [gp, pgm.GP(pgm.Matern12(0.5, 2.0), form=form)])

    y = y if likelihood == "Bernoulli" else np.sin(X[:, 0]) + 0.5 * noise
    ours, _ = evidences(model_of, pgm.gaussian_vi if likelihood == "heteroscedastic" else pgm.cavi, X, y)
    assert f"{ours.num_draws} draws of q's transitions" in str(ours)


def test_padding_is_in_no_block_of_a_series_with_ties():
    rng = np.random.default_rng(7)
    # 52 rows of padding, which have the time of the first row: the middle, or the end.
    x = np.round(rng.uniform(0.0, 100.0, 1100), 1)
    x[0] = 50.0
    y = (rng.random(1100) < 1.0 / (1.0 + np.exp(-2.0 * np.sin(x)))).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern32(3.0, 0.8), form=pgm.Markov()))
    last_first = np.roll(np.argsort(x, kind="stable"), 1)
    ours, theirs = (
        weigh_blocks(pgm.cavi(model, x[rows, None], y[rows]), 200, 0) for rows in (np.arange(1100), last_first)
    )
    np.testing.assert_allclose(ours.k_hats, theirs.k_hats, atol=1e-4)
    np.testing.assert_array_equal(x[ours.rows], x[last_first][theirs.rows])


def assert_same_moments(ours, theirs):
    """The first two of as many draws, within four joint standard errors."""
    for power in (1, 2):
        one, other = (((part - theirs.mean()) if power == 2 else part) ** power for part in (ours, theirs))
        assert abs(one.mean() - other.mean()) < 4.0 * np.hypot(one.std(), other.std()) / np.sqrt(len(ours))


@pytest.mark.slow
def test_a_long_series_is_diagnosed_by_blocks():
    rng = np.random.default_rng(7)
    x = np.round(rng.uniform(0.0, 100.0, 1000), 2)
    y = (rng.random(1000) < 1.0 / (1.0 + np.exp(-2.0 * np.sin(x)))).astype(float)
    q = pgm.cavi(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern32(3.0, 0.8), mean=0.4, form=pgm.Markov())), x[:, None], y)
    diagnosis = pgm.diagnose(q, num_replicates=0)
    assert 0.0 < diagnosis.pareto_k < 0.9
    assert "of 10 blocks" in diagnosis.importance.reason
    assert "effective sample size" not in str(diagnosis)
    count, starts, order = 20_000, np.array([0, 500, 900]), np.argsort(x, kind="stable")
    with jax.enable_x64(True):
        key = jax.random.key(0)
        arrays = (*q.data.padded(q.posterior.prior.num_rows), jnp.asarray(starts))
        layout = Layout.of(q.posterior.prior, is_coupled=False)
        ours = np.asarray(block_log_ratios(q.model.bare(), q.posterior, *arrays, key, count, layout))
        h, w = (np.asarray(part)[:, 0] for part in q.sites)
    # The posterior given sites by its covariance matrix.
    K = np.asarray(q.model.gps[0].kernel(x[:, None], x[:, None]))
    V = K - K @ np.linalg.solve(np.eye(1000) + w[:, None] * K, w[:, None] * K)
    for start, ratios in zip(starts, ours, strict=True):
        rows = order[start : start + 100]
        f = rng.multivariate_normal(q.mean[rows, 0], V[np.ix_(rows, rows)], count, check_valid="ignore")
        sign = 2.0 * y[rows] - 1.0
        theirs = np.sum(-np.logaddexp(0.0, -sign * f) - h[rows] * f + 0.5 * w[rows] * f**2, axis=1)
        assert_same_moments(ratios, theirs)


@pytest.mark.slow
def test_integrate_agrees_with_the_dense_form(data, places, tmp_path):
    X = data[0][:100]
    y = np.random.default_rng(4).poisson(np.exp(0.5 + np.sin(X[:, 0])))
    kernel = pgm.Matern32(dist.LogNormal(0.0, 0.7), dist.LogNormal(0.3, 0.5))
    chain, dense = twins(of_form(kernel, 0.5, pgm.Poisson()), pgm.integrate, X, y, num_draws=1024)
    # The evidence at a point has a standard error of 0.01 nats or less in both.
    assert chain.log_evidence == pytest.approx(dense.log_evidence, abs=0.05)
    for name, marginal in chain.hyperparameters.items():
        assert marginal.mean == pytest.approx(dense.hyperparameters[name].mean, rel=0.02)
        assert marginal.deviation == pytest.approx(dense.hyperparameters[name].deviation, rel=0.02)
    for ours, theirs in (
        ((chain.mean, chain.variance), (dense.mean, dense.variance)),
        (chain.predict_latent(places), dense.predict_latent(places)),
    ):
        np.testing.assert_allclose(ours[0], theirs[0], atol=0.01)
        np.testing.assert_allclose(ours[1], theirs[1], rtol=0.02)
    again = pgm.load(chain.save(tmp_path / "result.npz"))
    np.testing.assert_array_equal(again.predict_latent(places), chain.predict_latent(places))
    with pytest.raises(ValueError, match=r"draw_latents of integrate.*pgm.Dense"):
        chain.draw_latents(places)


def test_gibbs_refuses_hyperparameters_of_latents_that_are_drawn_in_turns(data):
    X, y = data
    kernel = pgm.Matern32(dist.LogNormal(0.0, 1.0), 1.0)
    model = pgm.Model(pgm.HeteroscedasticGaussian(2.0), pgm.GP(kernel, size=2, form=pgm.Markov()))
    with pytest.raises(ValueError, match=r"cannot sample variance here.*latents 0 to 1.*a GP of its own"):
        pgm.gibbs(model, X[:10], y[:10])


@pytest.mark.slow
@pytest.mark.parametrize("is_coupled", [False, True])
def test_hyperparameters_are_learned_as_with_the_dense_form(data, groups, is_coupled):
    kernel = pgm.Matern32() + pgm.Constant(pgm.Fixed(0.5))
    model_of = regression if is_coupled else of_form(kernel)
    X, y = groups if is_coupled else (part[:150] for part in data)
    chain, dense = twins(model_of, pgm.fit, X, y, objective="augmented", correct=not is_coupled)
    assert chain.elbo == pytest.approx(dense.elbo, abs=1e-8)
    assert is_coupled or chain.fit.correction == "by linear response"
    for name, value in chain.fit.values.items():
        # To the tolerance of the optimiser.
        assert value == pytest.approx(dense.fit.values[name], rel=1e-4)


def test_learning_starts_from_neighbours_in_time():
    X = np.random.default_rng(0).permutation(100.0 * np.arange(50))[:, None]
    rows = pgm.Markov().subset(pgm.Matern32(), X, 12, seed=3)
    assert np.all(np.diff(rows) > 0)
    np.testing.assert_array_equal(np.diff(np.sort(X[rows, 0])), 100.0)
    assert len(rows) == 12


@pytest.mark.slow
def test_learning_from_neighbours_first_ends_at_the_same_values(data, monkeypatch):
    X, y = data
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern32(), mean=pgm.Fixed(0.0), form=pgm.Markov()))
    at_once = pgm.fit(model, X, y, correct=False)
    monkeypatch.setattr(pgm.Markov, "least_subset", 140)
    after = pgm.fit(model, X, y, correct=False)
    assert after.fit.start == "140 rows"
    assert after.elbo == pytest.approx(at_once.elbo, abs=1e-5)


@pytest.mark.parametrize("is_coupled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_slopes_in_hyperparameters_are_those_of_the_dense_form(data, groups, is_coupled):
    kernel = pgm.Matern52(1.7, 0.8) * pgm.Matern12(0.9, 3.0) + pgm.White(0.2)
    model_of = regression if is_coupled else of_form(kernel, 0.4)
    X, y = (part[:60] for part in (groups if is_coupled else data))
    slopes = []
    for model in (model_of(pgm.Markov()), model_of(pgm.Dense())):
        with jax.enable_x64(True):
            bound = MarginalBound.of(trainable(model), model.check(X, y))
            point = bound.at(bound.learnable.start())
            slopes.append((point.value, point.slope))
    assert slopes[0][0] == pytest.approx(slopes[1][0], abs=1e-8)
    np.testing.assert_allclose(slopes[0][1], slopes[1][1], rtol=0, atol=1e-6)
    assert np.all(np.abs(slopes[1][1]) > 1e-3)


@pytest.fixture(scope="module")
def outliers(data):
    """Observations with outliers, where the log density is not concave."""
    rng = np.random.default_rng(9)
    return np.sin(data[0][:80, 0]) + 0.4 * rng.standard_t(3.0, 80)


@pytest.mark.parametrize("kernel", ["Matern32", pytest.param("sum", marks=pytest.mark.slow)])
def test_posteriors_with_outliers_are_those_of_the_dense_form(data, places, outliers, kernel):
    def model_of(form):
        return pgm.Model(pgm.StudentT(3.0, 0.4), pgm.GP(KERNELS[kernel], mean=0.4, form=form))

    chain, dense = twins(model_of, pgm.gaussian_vi, data[0][:80], outliers, tolerance=1e-14)
    # Precisions are negative where that is the optimum.
    assert np.min(np.asarray(chain.posterior.sites.precision)) < -0.1
    assert_same(chain, dense, places, atol=1e-6)
    assert_same(pgm.correct(chain), pgm.correct(dense), places, atol=1e-6)


def test_slopes_with_outliers_are_those_of_differences(data, outliers):
    gp = pgm.GP(pgm.Matern32(1.7, 0.8), mean=0.4, form=pgm.Markov())
    model = pgm.Model(pgm.StudentT(3.0, 0.4), gp)
    with jax.enable_x64(True):
        bound = MarginalBound.of(trainable(model), model.check(data[0][:80], outliers), expected_objective(model))
        start = bound.learnable.start()
        best = bound.at(start)
        for i, step in enumerate(1e-4 * np.eye(len(start))):
            difference = (bound.at(start + step, best).value - bound.at(start - step, best).value) / 2e-4
            assert best.slope[i] == pytest.approx(difference, rel=1e-5, abs=1e-5)
        # Far away the precisions of the best values are improper.
        far = start + np.array([0.0, 0.0, np.log(10.0), -np.log(5.0), 0.0])
        assert bound.learnable.names[2:4] == ["variance", "lengthscale"]
        afresh = MarginalBound.of(trainable(model), model.check(data[0][:80], outliers), expected_objective(model))
        assert bound.at(far, best).value == pytest.approx(afresh.at(far).value, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("is_coupled", [False, True])
def test_results_are_saved_and_updated(data, places, groups, is_coupled, tmp_path):
    X, y = groups if is_coupled else (part[:40] for part in data)
    one = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern32(1.7, 0.8), form=pgm.Markov()))
    model, new, count = (regression(pgm.Markov()), NEW, 200) if is_coupled else (one, places, 30)
    q = pgm.cavi(model, X, y)
    for result in (q,) if is_coupled else (q, pgm.correct(q)):
        again = pgm.load(result.save(tmp_path / "result.npz"), likelihood=q.model.likelihood)
        assert type(again) is type(result)
        np.testing.assert_allclose(
            again.predict_latent(new), result.predict_latent(new), rtol=0, atol=1e-10 if is_coupled else 0
        )
    updated = pgm.update(pgm.cavi(model, X[:count], y[:count]), X[count:], y[count:])
    # Both to a tolerance of 1e-9 of the ELBO, which is flat at the optimum.
    np.testing.assert_allclose(updated.mean, q.mean, rtol=0, atol=1e-4)


def of_two_columns():
    gps = [pgm.GP(pgm.On(pgm.Matern32(), [column]), form=pgm.Markov()) for column in (0, 1)]
    return pgm.Model(pgm.LogisticSoftmax(2), gps)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, X, y: pgm.svi(model, X, y), r"svi needs .* factor matrix, and form=Markov\(\).*pgm.Inducing"),
        (
            lambda model, X, y: pgm.log_evidence(pgm.cavi(of_two_columns(), np.column_stack([X, X]), y)),
            r"log_evidence .* needs the other GPs of that form too, along the same column.*pgm.Dense",
        ),
    ],
)
def test_what_needs_a_factor_says_so(data, call, message):
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern32(1.7, 0.8), form=pgm.Markov()))
    with pytest.raises(ValueError, match=message):
        call(model, data[0][:40], data[1][:40])


# Engines with Markov processes that a formula combines, against the dense form of the same GPs.


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
def groups():
    """A series beside 12 groups and two linear columns; binary y."""
    rng = np.random.default_rng(1)
    t, group, z = rng.uniform(0.0, 20.0, 300), rng.integers(0, 12, 300), rng.normal(size=(300, 2))
    t[50] = t[3]
    eta = np.sin(t) + rng.normal(0.0, 0.7, 12)[group] + z @ [0.5, -0.3]
    y = (rng.random(300) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    return np.column_stack([t, group, z]), y


@pytest.fixture(scope="module")
def coupled(games, groups):
    """Data of each model whose formula combines latents."""
    X, y = groups
    few = np.column_stack([X[:, 0], X[:, 1] % 4, X[:, 2]]), y
    return {regression: groups, ratings: games, a_series_beside_few_groups: few}


NEW = np.column_stack([[-1.0, 4.0, 7.3, 19.0, 40.0], [0, 3, 5, 11, 14], np.ones((5, 2))])


def regression(form, columns=(2, 3)):
    slopes = pgm.Linear(pgm.Fixed(np.full(len(columns), 0.5)))
    gps = [
        pgm.GP(pgm.On(pgm.Matern32(1.7, 0.8), [0]), 0.3, form=form),
        pgm.GP(pgm.On(pgm.White(0.5), [1]), pgm.Fixed(0.0)),
        pgm.GP(pgm.On(slopes, columns), pgm.Fixed(0.0)),
    ]
    return pgm.Model(pgm.with_predictor(pgm.Bernoulli(), 3), gps)


def a_series_beside_few_groups(form):
    """Fewer coefficients than in ``regression``: the states of linear response have their products, too."""
    return regression(form, columns=(2,))


def ratings(form):
    return pgm.Model(game(), pgm.GP(pgm.Matern32(1.0, 2.0), size=4, form=form))


def assert_same_coupled(chain, dense, new, covariates=None):
    assert chain.elbo == pytest.approx(dense.elbo, abs=LOOSE)
    assert_same(chain, dense, new, LOOSE)
    # Predictions read the covariances between the latents of a row.
    ours, theirs = (q.predict(new, covariates=covariates).mean for q in (chain, dense))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=LOOSE)


@pytest.mark.parametrize("engine", [pgm.cavi, pytest.param(pgm.gaussian_vi, marks=pytest.mark.slow)])
def test_a_series_beside_groups_and_lines(groups, engine):
    assert_same_coupled(*twins(regression, engine, *groups), NEW)


@pytest.mark.parametrize("likelihood", [pgm.Poisson(), pytest.param(pgm.Gamma(2.0), marks=pytest.mark.slow)])
def test_log_rates_that_are_sums_are_one_predictor(groups, likelihood):
    """In y (f[0] + f[1]) - exp(f[0] + f[1]) the data are a factor of the first sum."""
    X, _ = groups
    y = np.random.default_rng(3).poisson(np.exp(0.5 * np.sin(X[:100, 0]))) + (likelihood.name == "Gamma") * 0.5

    def model_of(form):
        gps = [pgm.GP(pgm.On(pgm.Matern32(1.0, 2.0), [0]), form=form), pgm.GP(pgm.On(pgm.White(0.5), [1]))]
        return pgm.Model(pgm.with_predictor(likelihood, 2), gps)

    assert expected_objective(model_of(pgm.Markov())).size == 1
    chain, dense = twins(model_of, pgm.gaussian_vi, X[:100], y, tolerance=1e-13)
    assert chain.elbo == pytest.approx(dense.elbo, abs=1e-8)
    np.testing.assert_allclose(chain.variance, dense.variance, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_outliers_of_a_sum_are_those_of_the_dense_form(groups):
    X, rng = groups[0][:90], np.random.default_rng(4)
    y = np.sin(X[:, 0]) + 0.4 * rng.standard_t(2.0, len(X))

    def model_of(form):
        gps = [pgm.GP(pgm.On(pgm.Matern32(1.0, 2.0), [0]), 0.2, form=form), pgm.GP(pgm.On(pgm.White(0.5), [1]))]
        return pgm.Model(pgm.with_predictor(pgm.StudentT(3.0, 0.4), 2), gps)

    chain, dense = twins(model_of, pgm.gaussian_vi, X, y, tolerance=1e-14)
    assert np.min(np.linalg.eigvalsh(np.asarray(chain.posterior.sites.precision))) < -0.1
    assert chain.elbo == pytest.approx(dense.elbo, abs=1e-8)
    for ours, theirs in ((chain, dense), (pgm.correct(chain), pgm.correct(dense))):
        np.testing.assert_allclose((ours.mean, ours.variance), (theirs.mean, theirs.variance), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pgm.cavi, pgm.gaussian_vi])
def test_ratings_by_differences_that_read_the_items_of_a_row(games, engine):
    assert_same_coupled(*twins(ratings, engine, *games), [[2.0], [30.0]], covariates=[[0, 1], [3, 2]])


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pgm.cavi, pgm.gaussian_vi])
@pytest.mark.parametrize("model_of", [a_series_beside_few_groups, ratings])
def test_linear_response_of_coupled_chains_is_that_of_the_dense_form(coupled, model_of, engine):
    X, y = coupled[model_of]
    new, covariates = ([[2.0], [30.0]], [[0, 1], [3, 2]]) if model_of is ratings else (NEW[:, :3] % 4.0, None)
    chain, dense = (pgm.correct(q) for q in twins(model_of, engine, X[:120], y[:120], tolerance=1e-13))
    assert np.max(np.abs(chain.variance - chain.uncorrected.variance)) > 1e-3
    np.testing.assert_allclose(chain.variance, dense.variance, rtol=0, atol=1e-7)
    assert_same_predictions(chain, dense, new, 1e-7)
    ours, theirs = (q.predict(new, covariates=covariates).mean for q in (chain, dense))
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
@pytest.mark.parametrize("model_of", [regression, ratings])
def test_gibbs_of_coupled_chains_agrees_with_the_dense_form(coupled, model_of):
    X, y = (part[:40] for part in coupled[model_of])
    options = {"num_samples": 2000, "num_warmup": 50, "num_chains": 2, "seed": 1}
    chain, dense = (pgm.gibbs(model_of(form).fixed(), X, y, **options) for form in (pgm.Markov(), pgm.Dense()))
    assert list(chain.tuning) == ["sweep"]
    # 320 comparisons at 4.5 joint standard errors.
    assert np.max(np.abs(z_scores(chain.latents, dense.latents))) < 4.5
    new = NEW if model_of is regression else np.array([[2.0], [30.0]])
    np.testing.assert_allclose(chain.predict_latent(new), dense.predict_latent(new), atol=0.25)


@pytest.mark.parametrize("place", [0, 1])
def test_a_constant_may_come_first(place):
    """A few times, out of order: as many as a constant's padded input."""
    t = np.tile([3.0, 1.0, 2.0], 5)[:, None]
    y = (np.random.default_rng(2).random(15) < 0.4).astype(float)
    kernels = [pgm.Matern32(1.5, 2.0)]
    kernels.insert(place, pgm.Constant(0.7))

    def model_of(form):
        gps = [pgm.GP(kernel, mean=0.1, form=form) for kernel in kernels]
        return pgm.Model(pgm.with_predictor(pgm.Bernoulli(), 2), gps)

    chain, dense = twins(model_of, pgm.gaussian_vi, t, y)
    np.testing.assert_allclose(chain.elbo, dense.elbo, atol=LOOSE)
    X_new = [[0.0], [1.4], [5.0]]
    np.testing.assert_allclose(chain.predict_latent(X_new), dense.predict_latent(X_new), atol=1e-6)


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
def test_the_evidence_of_coupled_chains_is_that_of_the_dense_form(coupled, model_of):
    ours, theirs = evidences(model_of, pgm.cavi, *(part[:120] for part in coupled[model_of]))
    assert np.hypot(ours.standard_error, theirs.standard_error) < 0.1


@pytest.mark.slow
def test_integrate_of_coupled_chains_agrees_with_the_dense_form(games):
    (t, y), kernel = games, pgm.Matern32(1.0, dist.LogNormal(0.5, 0.3))

    def model_of(form):
        return pgm.Model(game(), pgm.GP(kernel, pgm.Fixed(0.0), size=4, form=form))

    chain, dense = twins(model_of, pgm.integrate, t[:80], y[:80], num_draws=4000)
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
        assert_same_moments(ratios, theirs)
    assert 0.0 < pgm.diagnose(q, num_replicates=0).pareto_k < 0.9


def test_many_effects_beside_chains_are_refused_by_particles(groups):
    X, y = groups
    gps = [pgm.GP(pgm.On(pgm.Matern32(), [0]), form=pgm.Markov()), pgm.GP(pgm.On(pgm.White(), [2]))]
    result = pgm.cavi(pgm.Model(pgm.with_predictor(pgm.Bernoulli(), 2), gps), X, y)
    with pytest.raises(ValueError, match=r"log_evidence .* at most 64 coefficients.*pgm\.Dense\(\)"):
        pgm.log_evidence(result)


def test_fit_notes_that_a_correction_of_many_coefficients_is_too_large(groups):
    X, y = groups
    kernel = pgm.Matern32(pgm.Fixed(1.0), pgm.Fixed(2.0))
    gps = [
        pgm.GP(pgm.On(kernel, [0]), form=pgm.Markov()),
        pgm.GP(pgm.On(pgm.White(pgm.Fixed(0.5)), [2]), pgm.Fixed(0.0)),
    ]
    model = pgm.Model(pgm.with_predictor(pgm.Bernoulli(), 2), gps)
    fitted = pgm.fit(model, X[:100], y[:100], objective="augmented", progress=False)
    assert "none: with" in fitted.fit.correction


# Where a latent is a Markov process by itself, and that its posterior is that of the dense form.


MANY = FEW + 100
TIMES = np.random.default_rng(0).uniform(0.0, MANY / 50.0, (MANY, 1))
M32, PLANE = pgm.Matern32(1.0, 2.0), np.column_stack([TIMES, TIMES])
CASES = {
    "a chain": (M32, TIMES, True),
    "sums and products": (M32 * pgm.Cosine(1.0, 0.5) + pgm.RandomWalk(0.1, 0.0) + pgm.Constant(), TIMES, True),
    "one of two columns": (pgm.On(M32, [1]), PLANE, True),
    "both columns": (M32, PLANE, False),
    "a lengthscale for each": (pgm.Matern32(1.0, [1.0, 2.0]), PLANE, False),
    "few rows": (M32, TIMES[:FEW], False),
    "few distinct times": (M32, np.floor(TIMES), False),
    "no form": (pgm.RBF(1.0, 2.0), TIMES, False),
    "harmonics": (M32 + pgm.Periodic(1.0, 30.0), TIMES, False),
    "low rank": (pgm.Linear() + pgm.Constant() + pgm.Cosine(), TIMES, False),
    "a large state": (M32 * M32 * M32 * M32 * M32 * M32, TIMES, False),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_chosen_where_exact_and_cheaper(name):
    kernel, X, is_chosen = CASES[name]
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=0.3))
    expected = model.with_form(pgm.Markov()) if is_chosen else model
    assert with_chain(model, X) == expected


def test_it_is_not_chosen_over_another_form_or_for_several_latents():
    dense = pgm.Model(pgm.Bernoulli(), pgm.GP(M32, form=pgm.Dense()))
    several = pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(M32, size=3))
    for model in (dense, several):
        assert with_chain(model, TIMES) is model


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pgm.cavi, pgm.gaussian_vi])
def test_the_posterior_is_that_of_the_dense_form(engine):
    y = (np.sin(TIMES[:, 0]) + np.random.default_rng(1).normal(size=MANY) > 0.0).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(M32 + pgm.White(0.1), mean=0.3))
    chosen, dense = (engine(each, TIMES, y) for each in (model, model.with_form(pgm.Dense())))
    assert chosen.model.gps[0].form == pgm.Markov()
    assert chosen.elbo == pytest.approx(dense.elbo, abs=1e-8)
    assert_same(chosen, dense, np.linspace(-1.0, MANY / 50.0 + 3.0, 30)[:, None], 1e-8)


@pytest.mark.slow
def test_fit_keeps_what_the_default_form_allows():
    y = (np.sin(TIMES[:, 0]) > np.random.default_rng(1).normal(size=MANY)).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern32()))
    result = pgm.fit(model, TIMES, y, progress=False)
    assert result.model.gps[0].form == pgm.Markov()
    # No correction by itself, after which the latents could not be drawn jointly.
    assert "then there is no joint density" in result.fit.correction
    assert result.draw_latents(TIMES[:5], 3).shape == (3, 5, 1)
    asked = pgm.fit(model.with_form(pgm.Markov()), TIMES, y, progress=False)
    assert asked.fit.correction == "by linear response"
    assert asked.elbo == pytest.approx(result.elbo, abs=1e-6)
