"""The papers' systems learn from data like theirs, are the calls that they say they are, and can be used afterwards."""

import inspect
import re
from functools import cache, partial

import numpy as np
import pytest

import pgmodels as pgm
from pgmodels import systems

# A hundred rows determine little, of which engines warn.
pytestmark = pytest.mark.filterwarnings("ignore::pgmodels.PgmodelsWarning")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(500, 2))
LABELS = (X[:, 0] + 0.4 * RNG.normal(size=500) > 0.3).astype(float)
CLASSES = np.where(X[:, 0] > 0.0, 1.0, np.where(X[:, 1] > 0.4, 2.0, 0.0))
VALUES = np.sin(2.0 * X[:, 0]) + 0.2 * np.random.default_rng(1).normal(size=500)
NOISE_VARIANCE = np.full(500, 0.04)
SMALL = {"num_inducing": 12, "seed": 0, "progress": False}
TRAIN, TEST = slice(100), slice(100, None)

BATCHES = {
    name: partial(getattr(systems, name), batch_size=30)
    for name in systems.__all__
    if "batch_size" in inspect.signature(getattr(systems, name)).parameters
}
BINARY = {
    **{name: BATCHES[name] for name in ("x_gpc", "svgpc", "gpc_1", "gpc_2", "gpc_3", "svi")},
    **{
        name: getattr(systems, name)
        for name in ("pgpr", "svgp", "merged", "vi_jj", "vi_jj_hybrid", "vi_jj_full", "vi_taylor")
    },
    "pgpr with moved inputs": partial(systems.pgpr, select="kmeans", train_inducing=True),
}
SEVERAL = {
    **{
        name: BATCHES[name]
        for name in ("logistic_softmax", "softmax", "robust_max", "multinomial_probit", "gpc_1", "gpc_3", "gpc_sm")
    },
    "logistic_softmax apart": partial(BATCHES["logistic_softmax"], bound="augmented", shared=False),
    "gpc_sm by some classes": partial(BATCHES["gpc_sm"], class_batch_size=2),
}
# With what they learn from: labels, classes, values, or values and noise variances.
SYSTEMS = {
    **{f"{name} of labels": (system, LABELS) for name, system in BINARY.items()},
    **{f"{name} of classes": (system, CLASSES) for name, system in SEVERAL.items()},
    "sgpr": (systems.sgpr, VALUES),
    "hgpr": (partial(systems.hgpr, noise_variance=NOISE_VARIANCE[TRAIN]), VALUES),
}
# Their densities jump, so that no sampler takes them.
WITHOUT_SAMPLER = ("gpc_1 of labels", "gpc_1 of classes", "robust_max of classes")
NO_ROWS = r"stores no rows: run pgm\.vi\(result\.model, X, y, objective='{}'\).*with X scaled by result\.scaling"


@cache
def learned(name):
    system, y = SYSTEMS[name]
    return system(X[TRAIN], y[TRAIN], **SMALL)


def observed(name):
    """The observations as predictions and comparisons take them."""
    return np.column_stack([VALUES, NOISE_VARIANCE]) if name == "hgpr" else SYSTEMS[name][1]


@cache
def learned_with_rows(name):
    """The result, or what the message proposes for one that stores no rows."""
    result = learned(name)
    if not isinstance(result, pgm.SparseApproximation):
        return result
    y = observed(name)[TRAIN]
    return pgm.vi(result.model, result.scaling(X[TRAIN]), y, objective=result.objective, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SYSTEMS if " of " in name])
def test_systems_for_classes_learn(name):
    y = SYSTEMS[name][1]
    probabilities = learned(name).predict(X[TEST]).probabilities
    log_loss = -np.mean(np.log(probabilities[np.arange(400), y[TEST].astype(int)]))
    shares = np.bincount(y[TRAIN].astype(int)) / 100
    # Far better than the shares of the classes.
    assert log_loss < 0.75 * -np.mean(np.log(shares[y[TEST].astype(int)]))


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_results_predict_the_same_after_loading(name, tmp_path):
    result, covariates = learned(name), NOISE_VARIANCE[TEST] if name == "hgpr" else None

    def predictions(of):
        predictive = of.predict(X[TEST], covariates=covariates)
        return *of.predict_latent(X[TEST]), predictive.log_density(observed(name)[TEST])

    loaded = pgm.load(result.save(tmp_path / "fit.npz"))
    assert loaded.model == result.model
    assert loaded.elbo == result.elbo
    for ours, theirs in zip(predictions(loaded), predictions(result), strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_results_are_diagnosed(name):
    result = learned(name)
    if isinstance(result, pgm.SparseApproximation):
        with pytest.raises(ValueError, match=NO_ROWS.format(result.objective)):
            pgm.diagnose(result)
    diagnosis = pgm.diagnose(learned_with_rows(name), num_replicates=2, num_draws=200, progress=False)
    assert np.isfinite(diagnosis.gap).all()
    assert np.isfinite(diagnosis.vsbc.z).all()
    assert not np.isnan(diagnosis.pareto_k)
    assert "k-hat" in str(diagnosis)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_results_are_compared_with_draws(name, tmp_path):
    result, sparse = learned_with_rows(name), learned(name)
    stores_rows = sparse is result
    with pytest.raises(ValueError, match="compare needs draws of the posterior"):
        pgm.compare(one=result, other=result)
    # The labels are nearly separable: NUTS makes a thousand steps a draw where the kernel's variance is learned large.
    sampler, num_samples = (pgm.gibbs, 40) if result.model.is_augmentable else (pgm.nuts, 10)
    sample = partial(sampler, result.model, result.X, result.y, num_samples=num_samples, num_warmup=5, num_chains=2)
    if name in WITHOUT_SAMPLER:
        with pytest.raises(ValueError, match=r"no augmentation(.|\n)*pgm\.gaussian_vi, pgm\.nuts"):
            pgm.gibbs(result.model, result.X, result.y)
        with pytest.raises(ValueError, match=r"jumps.*Use gaussian_vi, or add noise to the latents"):
            sample()
        return
    draws = sample(seed=0, progress=False)
    if not stores_rows:
        with pytest.raises(ValueError, match=NO_ROWS.format(sparse.objective)):
            pgm.compare(draws=draws, one=sparse)
    test = X[TEST] if stores_rows else sparse.scaling(X[TEST])
    loaded = pgm.load(result.save(tmp_path / "fit.npz"))
    comparison = pgm.compare(draws=draws, one=result, same=result, loaded=loaded, X=test, y=observed(name)[TEST])
    assert comparison.notes == ()
    frame = comparison.to_dataframe()
    columns = [column for column in frame if np.isfinite(frame.loc["one", column])]
    assert {"mean_error", "wasserstein", "negative_log_density", "elbo"} <= set(columns)
    for other in ("same", "loaded"):
        np.testing.assert_allclose(frame.loc[other, columns], frame.loc["one", columns], rtol=1e-6)


@pytest.mark.slow
def test_known_noise_equals_single_variance_when_equal():
    rows, y = X[:90], VALUES[:90]
    same = systems.hgpr(rows, y, np.full(90, 0.04), select="kmeans", **SMALL)
    kernel = same.model.gps[0].kernel
    model = pgm.Model(pgm.Gaussian(0.2), pgm.GP(kernel, form=pgm.Inducing(same.prior.groups[0].Z)))
    again = pgm.cavi(model.fixed(), rows, y)
    assert same.elbo == pytest.approx(again.elbo, abs=1e-6)
    np.testing.assert_allclose(same.mean, again.mean, atol=1e-6)


def test_regression_learns_the_noise():
    result = systems.sgpr(X[:150], VALUES[:150], num_inducing=30, seed=0, progress=False)
    assert result.model.parameters["scale"] == pytest.approx(0.2, rel=0.25)
    error = result.predict_latent(X[150:200])[0][:, 0] - np.sin(2.0 * X[150:200, 0])
    assert np.sqrt(np.mean(error**2)) < 0.15


@pytest.mark.slow
def test_a_system_is_its_call():
    result = systems.pgpr(X, LABELS, select="kmeans", **SMALL)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(), form=pgm.Inducing(12, "kmeans")))
    expected = pgm.fit(model, X, LABELS, objective="augmented", correct=False, seed=0, progress=False)
    assert result.elbo == expected.elbo
    np.testing.assert_array_equal(result.mean, expected.mean)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: systems.gpc_1(X, LABELS - 0.5), r"y must have shape \(n,\) and hold the classes 0, 1, \.\.\."),
        (lambda: systems.logistic_softmax(X, CLASSES, num_classes=1), "num_classes must be a whole number >= 2"),
        (lambda: systems.hgpr(X, LABELS, np.ones(3)), r"noise_variance must have shape \(n,\), one number per row"),
        (lambda: systems.logistic_softmax(X[:, 0], CLASSES), r"X must have shape \(n, d\)"),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", systems.__all__)
def test_a_system_documents_its_arguments(name):
    system = getattr(systems, name)
    assert (system.__module__, system.__qualname__) == ("pgmodels.systems", name)
    documented = re.findall(r"^(\**\w+)(?: : .+)?\n    \S", inspect.getdoc(system), re.MULTILINE)
    expected = [str(argument).split(":")[0] for argument in inspect.signature(system).parameters.values()]
    assert documented[: len(expected)] == expected


def test_an_argument_that_a_system_does_not_have_is_refused():
    with pytest.raises(TypeError, match="missing a required argument: 'noise_variance'"):
        systems.hgpr(X, VALUES)
    with pytest.raises(TypeError, match="unexpected keyword argument 'batch_size'"):
        systems.vi_jj(X, LABELS, batch_size=3)
