"""New rows: the optimum of all rows at the hyperparameters of a result, in fewer iterations than from the start."""

import warnings
from functools import partial

import jax
import numpy as np
import pandas as pd
import pytest

import pgmodels as pgm
from pgmodels.inference import update as update_module
from tests.covering import some

RNG = np.random.default_rng(0)
N, NEW = 60, 3
X = RNG.permutation(np.linspace(0.0, 6.0, N))[:, None]
F = 3.0 * np.sin(2.0 * X[:, 0])
LABELS = (RNG.logistic(size=N) < F).astype(float)
REAL = F + 0.1 * RNG.standard_t(3, size=N)


def gp(size=1):
    return pgm.GP(pgm.RBF(9.0, 0.8), size=size)


CASES = {
    "Bernoulli": (pgm.Model(pgm.Bernoulli(), gp()), LABELS),
    "StudentT": (pgm.Model(pgm.StudentT(3.0, 0.1), gp()), REAL),
    "LogisticSoftmax": (pgm.Model(pgm.LogisticSoftmax(3), gp(3)), (F > 1.0) + (F > -1.0) * 1.0),
    "NegativeBinomial": (pgm.Model(pgm.NegativeBinomial(2.0), gp()), RNG.poisson(np.exp(F / 2)).astype(float)),
}
RUNS = [(name, engine) for name in CASES for engine in ("cavi", "gaussian_vi")]


@pytest.mark.parametrize(("name", "engine"), some(RUNS, ("StudentT", "gaussian_vi"), ("Bernoulli", "cavi")))
def test_new_rows_give_the_optimum_of_all(name, engine):
    model, y = CASES[name]
    with warnings.catch_warnings():
        # Of variances that are too small.
        warnings.simplefilter("ignore", pgm.CorrectionWarning)
        old = getattr(pgm, engine)(model, X[:-1], y[:-1])
        updated, every = pgm.update(old, X[-1:], y[-1:]), getattr(pgm, engine)(model, X, y)
    # The start of gaussian_vi is near the optimum of cavi, whose sweeps are not counted.
    assert updated.num_iterations < every.num_iterations + (engine == "gaussian_vi")
    # Both end where an iteration changes the bound by 1e-9; means are within its root.
    assert updated.elbo == pytest.approx(every.elbo, abs=1e-6)
    np.testing.assert_allclose((updated.mean, updated.variance), (every.mean, every.variance), atol=1e-3)
    np.testing.assert_array_equal(updated.X, X)
    np.testing.assert_array_equal(updated.y, y)
    assert updated.method == engine
    assert old.num_rows == N - 1


def test_a_gaussian_likelihood_is_conditioned_on_exactly():
    model = pgm.Model(pgm.Gaussian(0.3), gp())
    weights = RNG.uniform(0.5, 2.0, N)
    weights[-1] = 0.0
    old = pgm.cavi(model, X[:-NEW], REAL[:-NEW], weights=weights[:-NEW])
    updated = pgm.update(old, X[-NEW:], REAL[-NEW:], weights=weights[-NEW:])
    assert updated.num_iterations == 1
    K = 9.0 * np.exp(-0.5 * ((X - X.T) / 0.8) ** 2)[:-1, :-1]
    noisy = K + np.diag(0.09 / weights[:-1])
    np.testing.assert_allclose(updated.mean[:, 0], K @ np.linalg.solve(noisy, REAL[:-1]), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(updated.variance[:, 0], np.diag(K - K @ np.linalg.solve(noisy, K)), rtol=1e-7)


def test_new_levels_become_levels_of_the_result():
    kernel = pgm.On(pgm.White(0.8), ["group"])
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel))
    text = np.where(LABELS > 0, "yes", "no")
    groups = np.array(["b", "a"])[np.arange(N) % 2]
    groups[-NEW:] = ["z", "c", "z"]
    frame = pd.DataFrame({"group": groups})
    updated = pgm.update(pgm.cavi(model, frame[:-NEW], text[:-NEW]), frame[-NEW:], text[-NEW:])
    every = pgm.cavi(model, frame, text)
    assert updated.columns[0].levels == ("a", "b", "c", "z")
    assert updated.labels == ("no", "yes")
    new = pd.DataFrame({"group": ["z", "other", "c", "a"]})
    np.testing.assert_allclose(updated.predict_latent(new), every.predict_latent(new), atol=1e-5)


def test_corrections_are_made_again():
    model, y = CASES["Bernoulli"]
    corrected = pgm.update(pgm.correct(pgm.cavi(model, X[:-NEW], y[:-NEW])), X[-NEW:], y[-NEW:])
    expected = pgm.correct(pgm.cavi(model, X, y))
    assert corrected.method == expected.method
    np.testing.assert_allclose(corrected.variance, expected.variance, rtol=1e-4)


def test_what_cannot_be_updated_is_named():
    model, y = CASES["Bernoulli"]
    result = pgm.cavi(model, X, y)
    with pytest.raises(ValueError, match=r"result must be that of cavi.*got Model\. Run the engine on all rows"):
        pgm.update(model, X, y)
    with pytest.raises(ValueError, match=r"X_new must have the 1 column\(s\)"):
        pgm.update(result, np.zeros((2, 2)), [0, 1])
    with pytest.raises(ValueError, match="y must hold the labels 0 and 1"):
        pgm.update(result, X[:2], [1, 2])
    with pytest.raises(ValueError, match="y_new must be finite"):
        pgm.update(result, X[:2], [1, np.nan])


TIMES = np.random.default_rng(3).permutation(np.linspace(0.0, 40.0, 420))
# Ties, also among the last rows and the new ones.
TIMES[[5, 9, 17]] = TIMES[30]
TIMES[(TIMES > 35.0) & (TIMES < 38.0)] = np.round(TIMES[(TIMES > 35.0) & (TIMES < 38.0)] / 0.2) * 0.2
TIMES[np.sort(TIMES)[-3] == TIMES] = TIMES.max()
LEVELS = np.random.default_rng(4).normal(size=len(TIMES))


def series(name):
    """A model of Markov processes along the second column, and y."""
    rng, z = np.random.default_rng(5), np.sin(TIMES)
    fast = pgm.On(pgm.Matern32(1.2, 0.7) + pgm.Matern12(0.2, 0.3), [1])
    if name == "Bernoulli":
        y = rng.random(len(z)) < 1.0 / (1.0 + np.exp(-2.0 * z))
        return pgm.Model(pgm.Bernoulli(), pgm.GP(fast, mean=0.3, form=pgm.Markov())), y.astype(float)
    if name == "StudentT":
        return pgm.Model(pgm.StudentT(3.0, 0.4), pgm.GP(fast, form=pgm.Markov())), z + 0.4 * rng.standard_t(3.0, len(z))
    if name == "LogisticSoftmax":
        gps = [
            pgm.GP(fast, mean=0.3, size=2, form=pgm.Markov()),
            pgm.GP(pgm.On(pgm.Matern52(0.8, 0.5), [1]), form=pgm.Markov()),
        ]
        return pgm.Model(pgm.LogisticSoftmax(3), gps), (z > 0.5) + (z > -0.5) * 1.0
    slow = pgm.On(pgm.Matern32(1.2, 300.0), [1])
    return pgm.Model(pgm.Bernoulli(), pgm.GP(slow, form=pgm.Markov())), (z > 0.0).astype(float)


def ends(model, y, engine, count, monkeypatch, in_order=True, **options):
    """The first times with an engine, the others with ``update``; how often all rows were passed over; all at once."""
    window = update_module.Window(least=60, most=200)
    monkeypatch.setattr(update_module, "append", partial(update_module.append, window=window))
    passes, converge = [], update_module.converge

    def counted(*args, **kwargs):
        passes.append(args)
        return converge(*args, **kwargs)

    monkeypatch.setattr(update_module, "converge", counted)
    X = np.column_stack([LEVELS, TIMES])
    is_new = np.sort(TIMES)[-count] <= TIMES if in_order else np.arange(len(TIMES)) < count
    order = np.concatenate([np.flatnonzero(~is_new), np.flatnonzero(is_new)])
    powers = np.random.default_rng(6).uniform(0.5, 2.0, len(order))
    X, y = X[order], y[order]
    old = getattr(pgm, engine)(model, X[:-count], y[:-count], weights=powers[:-count], **options)
    updated = pgm.update(old, X[-count:], y[-count:], weights=powers[-count:], **options)
    return updated, len(passes), getattr(pgm, engine)(model, X, y, weights=powers, **options)


@pytest.mark.parametrize(
    ("name", "engine"),
    some(
        [(name, engine) for name in ("Bernoulli", "LogisticSoftmax", "StudentT") for engine in ("cavi", "gaussian_vi")],
        ("Bernoulli", "gaussian_vi"),
    ),
)
def test_a_series_goes_on_from_the_state_of_its_filter(name, engine, monkeypatch, tmp_path):
    model, y = series(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pgm.MeanFieldWarning)
        updated, passes, every = ends(model, y, engine, 7, monkeypatch, tolerance=1e-13)
    assert passes == 0
    assert updated.elbo == pytest.approx(every.elbo, abs=1e-5)
    # Rows before those that move by less than 1e-4 deviations.
    np.testing.assert_allclose((updated.mean, updated.variance), (every.mean, every.variance), atol=5e-5)
    new = np.column_stack([np.zeros(7), [-3.0, 20.02, 38.9, 39.5, 39.71, 40.0, 41.0]])
    np.testing.assert_allclose(updated.predict_latent(new), every.predict_latent(new), atol=5e-5)
    draws = [q.draw_latents(new, num_draws=3, seed=0) for q in (updated, every)]
    np.testing.assert_allclose(*draws, atol=1e-3)
    with jax.enable_x64(True):
        logs = [float(q.posterior.log_normalizer()) for q in (updated, every)]
    assert logs[0] == pytest.approx(logs[1], abs=1e-3)
    path = updated.save(tmp_path / "updated")
    np.testing.assert_allclose(pgm.load(path).predict_latent(new), updated.predict_latent(new), atol=1e-6)


@pytest.mark.slow
def test_corrections_of_a_series_are_made_again(monkeypatch):
    model, y = series("Bernoulli")
    updated, passes, every = ends(model, y, "gaussian_vi", 7, monkeypatch, tolerance=1e-13)
    assert passes == 0
    np.testing.assert_allclose(pgm.correct(updated).variance, pgm.correct(every).variance, atol=5e-5)


@pytest.mark.slow
def test_a_series_goes_on_again_and_again(monkeypatch):
    model, y = series("StudentT")
    updated, passes, every = ends(model, y, "gaussian_vi", 7, monkeypatch, tolerance=1e-13)
    X, y = every.X, np.append(every.y, [0.3, -0.4])
    new = np.array([[0.0, 40.3], [0.0, 40.2]])
    monkeypatch.setattr(update_module, "converge", None)
    again = pgm.update(updated, new, y[-2:], tolerance=1e-13)
    powers = np.append(every.weights, [1.0, 1.0])
    every = pgm.gaussian_vi(model, np.concatenate([X, new]), y, weights=powers, tolerance=1e-13)
    assert passes == 0
    assert again.elbo == pytest.approx(every.elbo, abs=1e-5)
    np.testing.assert_allclose((again.mean, again.variance), (every.mean, every.variance), atol=1e-4)


def test_an_improper_state_of_the_filter_is_not_gone_on_from(monkeypatch):
    """The outlier at a time far from all before is improper by itself."""
    monkeypatch.setattr(f"{__name__}.TIMES", np.concatenate([np.linspace(0.0, 20.0, 300), 1e3 + 0.01 * np.arange(68)]))
    monkeypatch.setattr(f"{__name__}.LEVELS", np.zeros(368))
    model = pgm.Model(pgm.StudentT(3.0, 0.4), pgm.GP(pgm.On(pgm.Matern32(4.0, 0.7), [1]), form=pgm.Markov()))
    y = np.random.default_rng(0).normal(0.0, 0.2, 368)
    y[300] = 1.2
    updated, passes, every = ends(model, y, "gaussian_vi", 7, monkeypatch)
    assert np.asarray(every.posterior.sites.precision)[300, 0] < -0.5
    assert passes == 1
    np.testing.assert_allclose(updated.mean, every.mean, atol=1e-3)


@pytest.mark.parametrize("name", ["slow", pytest.param("unordered", marks=pytest.mark.slow)])
def test_a_series_that_cannot_go_on_is_passed_over(name, monkeypatch):
    model, y = series("Bernoulli" if name == "unordered" else name)
    updated, passes, every = ends(model, y, "gaussian_vi", 7, monkeypatch, in_order=name != "unordered")
    assert passes == 1
    np.testing.assert_allclose(updated.mean, every.mean, atol=1e-3)
