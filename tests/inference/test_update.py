"""New rows and starts from results: the optimum of all rows, in fewer iterations than from the start."""

import warnings
from functools import partial

import jax
import numpy as np
import pandas as pd
import pytest

import pgmodels as pgm
from pgmodels.inference import update as update_module
from tests.covering import some
from tests.registry import EVERY

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
    with pytest.raises(ValueError, match=r"result must be a result of cavi.*got Model\. Run the engine on all rows"):
        pgm.update(model, X, y)
    with pytest.raises(ValueError, match=r"X_new must have the 1 column\(s\)"):
        pgm.update(result, np.zeros((2, 2)), [0, 1])
    with pytest.raises(ValueError, match="y must hold the labels 0 and 1"):
        pgm.update(result, X[:2], [1, 2])
    with pytest.raises(ValueError, match="y_new must be finite"):
        pgm.update(result, X[:2], [1, np.nan])


# Starts from a result.


def moved(model, factor):
    """The model with its kernels' lengthscales times a factor."""
    gps = [
        pgm.GP(pgm.RBF(gp.kernel.variance, factor * gp.kernel.lengthscale.value), gp.mean, gp.size) for gp in model.gps
    ]
    return pgm.Model(model.likelihood, gps)


COUPLED = EVERY["additive"].unequal(), *EVERY["additive"].data(N, seed=1)
STARTS = {name: (model, X, y) for name, (model, y) in CASES.items()} | {"additive": COUPLED}


@pytest.mark.filterwarnings("ignore::pgmodels.CorrectionWarning")
@pytest.mark.parametrize(
    ("name", "engine"),
    some([(name, engine) for name in STARTS for engine in ("cavi", "gaussian_vi")], ("LogisticSoftmax", "cavi")),
)
def test_from_a_result_engines_reach_the_same_optimum_in_fewer_iterations(name, engine):
    model, X, y = STARTS[name]
    run = partial(getattr(pgm, engine), tolerance=1e-10)
    start, order, other = run(model, X[:-NEW], y[:-NEW]), np.argsort(X[:, 0]), y.copy()
    assert run(model, X[:-NEW], y[:-NEW], start=pgm.correct(start)).num_iterations <= 2
    other[order[1:]] = y[order[:-1]]
    for changed, data in ((moved(model, 1.05), y), (model, other), (model, y)):
        cold, warm = run(changed, X, data), run(changed, X, data, start=start)
        # The start of gaussian_vi is near the optimum of cavi, whose sweeps are not counted.
        assert data is other or warm.num_iterations < cold.num_iterations + (engine == "gaussian_vi")
        # Both end where an iteration changes the bound by 1e-10; means are within its root.
        assert warm.elbo == pytest.approx(cold.elbo, abs=1e-6)
        np.testing.assert_allclose((warm.mean, warm.variance), (cold.mean, cold.variance), atol=1e-3)
    updated = pgm.update(start, X[-NEW:], y[-NEW:], tolerance=1e-10)
    assert (updated.num_iterations, updated.elbo) == (warm.num_iterations, pytest.approx(warm.elbo, abs=1e-9))
    for name in ("X", "y", "mean", "variance"):
        np.testing.assert_allclose(getattr(updated, name), getattr(warm, name), atol=1e-9)
    assert (updated.method, start.num_rows) == (engine, N - NEW)


def test_an_improper_start_is_left():
    """The negative precisions of outliers leave q improper under a prior of larger variance."""
    model = lambda variance: pgm.Model(pgm.StudentT(3.0, 0.1), pgm.GP(pgm.RBF(variance, 0.1)))  # noqa: E731
    X, y = np.arange(6.0)[:, None], np.array([0.0, 0.1, 1.5, 0.0, -1.4, 0.2])
    start = pgm.gaussian_vi(model(0.01), X, y)
    assert np.min(np.asarray(start.sites.precision)) < -1.0
    warm = pgm.gaussian_vi(model(1e4), X, y, start=start)
    assert warm.elbo == pytest.approx(pgm.gaussian_vi(model(1e4), X, y).elbo, abs=1e-6)


def test_a_sweep_compiles_nothing(caplog):
    model, y = CASES["LogisticSoftmax"]
    result = pgm.cavi(moved(model, 1.01), X, y, start=pgm.cavi(model, X, y))
    jax.config.update("jax_log_compiles", True)
    try:
        for factor in (1.02, 1.03):
            result = pgm.cavi(moved(model, factor), X, y, start=result)
    finally:
        jax.config.update("jax_log_compiles", False)
    assert "Compiling" not in caplog.text


@pytest.mark.parametrize("scheme", some(["auto", "alternating"], "auto"))
def test_fit_goes_on_from_the_values_of_a_result(scheme):
    model = pgm.Model(pgm.NegativeBinomial(2.0), pgm.GP(pgm.RBF(1.0, 1.0), mean=0.0))
    y = CASES["NegativeBinomial"][1]
    fit = partial(pgm.fit, model, scheme=scheme, objective="augmented")
    start, cold = fit(X[:-NEW], y[:-NEW]), fit(X, y)
    warm = fit(X, y, start=start)
    assert warm.fit.num_steps < cold.fit.num_steps
    assert warm.elbo == pytest.approx(cold.elbo, abs=1e-3)
    assert warm.fit.start == ("result" if scheme == "auto" else scheme)
    plain = fit(X, y, start=pgm.cavi(start.model, X, y))
    assert plain.elbo == pytest.approx(cold.elbo, abs=1e-3)


def test_what_nothing_can_start_from_is_named():
    model, y = CASES["Bernoulli"]
    result = pgm.cavi(model, X, y)
    for engine in (pgm.vi, pgm.cavi, pgm.gaussian_vi, pgm.fit):
        with pytest.raises(ValueError, match=r"start must be a result of .* at its data; got .*Give such a result, or"):
            engine(model, X, y, start=model)
        with pytest.raises(ValueError, match=r"are the first rows of X; got a result of 60 rows, .* the 59 rows .*Put"):
            engine(model, X[1:], y[1:], start=result)
        with pytest.raises(
            ValueError, match=r"start must be a result for StudentT of 1 latent.*; got one for Bernoulli"
        ):
            engine(CASES["StudentT"][0], X, REAL, start=result)
    with pytest.raises(ValueError, match=r"the parameters variance of the same shapes; got .*lengthscale"):
        pgm.fit(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.White(1.0))), X, y, start=result)
    with pytest.raises(ValueError, match=r"start replaces the start points; got num_starts=2 too. Omit one of both"):
        pgm.fit(model, X, y, start=result, num_starts=2)


# Many small data sets.


def sets_of(name, count=6, n=11):
    """Data sets of unequal numbers of rows; what is masked is NaN, which nothing reads."""
    X, y = (np.array(part) for part in zip(*(EVERY[name].data(n, seed=k) for k in range(count)), strict=True))
    X, y, mask = X, y.astype(float), np.random.default_rng(4).random((count, n)) < 0.8
    X[~mask], y[~mask] = np.nan, np.nan
    return X, y, mask


BATCHED = ["bernoulli", "student_t", "gaussian", "logistic_softmax", "heteroscedastic", "additive"]


@pytest.mark.filterwarnings("ignore::pgmodels.CorrectionWarning")
@pytest.mark.parametrize(
    ("name", "engine"),
    some(
        [*((name, engine) for name in BATCHED for engine in ("cavi", "gaussian_vi")), ("log_poisson", "gaussian_vi")],
        ("logistic_softmax", "cavi"),
    ),
)
def test_each_set_of_a_batch_is_that_of_the_engine_alone(name, engine):
    model, (X, y, mask) = EVERY[name].model(), sets_of(name)
    lengthscales, new = np.linspace(0.6, 1.8, len(X)), np.random.default_rng(0).normal(size=(len(X), 3, 2))
    results = getattr(pgm.batch(model, lengthscale=lengthscales), engine)(X, y, mask, tolerance=1e-12)
    assert len(results) == len(X)
    assert results.converged.all()
    means = results.predict_latent(new)[0]
    for k in (0, 3, -1):
        gp = pgm.GP(pgm.RBF(2.0, lengthscales[k]), mean=0.3, size=model.num_latents)
        alone = getattr(pgm, engine)(pgm.Model(model.likelihood, gp), X[k][mask[k]], y[k][mask[k]], tolerance=1e-12)
        result = results[k]
        assert result.elbo == pytest.approx(alone.elbo, abs=1e-6)
        np.testing.assert_allclose((result.mean, result.variance), (alone.mean, alone.variance), atol=1e-4)
        np.testing.assert_allclose(means[k], alone.predict_latent(new[k])[0], atol=1e-3)
        np.testing.assert_allclose(results.mean[k][mask[k]], alone.mean, atol=1e-3)
        assert np.isnan(results.variance[k][~mask[k]]).all()
        assert (result.method, result.model.gps[0].kernel.lengthscale.value) == (engine, lengthscales[k])
    assert results.elbo[3] == pytest.approx(results[3:4][0].elbo, abs=1e-5)


def test_what_a_batch_refuses():
    model, (X, y, mask) = EVERY["bernoulli"].model(), sets_of("bernoulli")
    batch = pgm.batch(model)
    with pytest.raises(ValueError, match=r"shapes \(sets, n, d\) and \(sets, n\).*got \(11, 2\).*Pad shorter sets"):
        batch.cavi(X[0], y[0])
    with pytest.raises(ValueError, match=r"mask must have shape \(6, 11\) and a True entry for each set"):
        batch.cavi(X, y, mask & (np.arange(6) > 0)[:, None])
    with pytest.raises(ValueError, match=r"the model has no parameter scale, but variance, lengthscale, mean"):
        pgm.batch(model, scale=np.ones(6)).cavi(X, y, mask)
    with pytest.raises(
        ValueError, match=r"variance of a batch must have shape \(6,\), a value for each set; got \(2,\)"
    ):
        pgm.batch(model, variance=np.ones(2)).cavi(X, y, mask)
    with pytest.raises(ValueError, match=r"batch accepts GPs of the default form.*or run the engine on each set"):
        pgm.batch(model.with_form(pgm.Inducing(5))).cavi(X, y, mask)
    with pytest.raises(ValueError, match=r"X_new must have shape \(m, 2\) or \(6, m, 2\); got"):
        batch.cavi(X, y, mask).predict_latent([[0.0]])


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
