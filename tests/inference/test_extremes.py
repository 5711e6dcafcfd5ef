"""Small, degenerate, large and far-out data; and that nothing compiles twice."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from tests.covering import some
from tests.referees import sigma
from tests.registry import CASES, NAMES

FEW = {"num_samples": 3, "num_warmup": 2, "num_chains": 2}


def assert_finite(*results):
    for result in results:
        assert np.isfinite(result.mean).all()
        assert np.isfinite(result.variance).all()
        assert (result.variance > 0).all()


def classes(case):
    """How many there are, of each of which ``data`` has an observation."""
    return getattr(case.likelihood().declared_support, "num_classes", 0) or case.num_classes


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if not classes(CASES[name])])
def test_one_datum(name):
    case = CASES[name]
    X, y = case.data(1, seed=1)
    result, draws = pgm.cavi(case.model(), X, y), pgm.gibbs(case.model(), X, y, **FEW)
    assert result.mean.shape == (1, case.num_latents)
    assert_finite(result, draws)
    mean, variance = result.predict_latent(np.array([[0.0, 0.0], [50.0, 50.0]]))
    # Fifty lengthscales away nothing is left but the prior.
    np.testing.assert_allclose(mean[1], 0.3, atol=1e-12)
    np.testing.assert_allclose(variance[1], 2.0, atol=1e-12)


def test_one_datum_of_several_classes_leaves_the_others_to_the_prior():
    with pytest.warns(pgm.DataWarning, match="y has no observation of class 0, 2 out of 3") as caught:
        result = pgm.cavi(CASES["logistic_softmax"].model(), np.zeros((1, 2)), np.ones(1))
    assert [str(warning.filename) for warning in caught] == [__file__]
    # The class seen is raised above its prior mean of 0.3, and the two that are not, are alike.
    assert result.mean[0, 1] > 0.3 > result.mean[0, 0]
    np.testing.assert_allclose(result.mean[0, 0], result.mean[0, 2], atol=1e-9)


# Each compiles CAVI and the sampler for three shapes.
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_degenerate_data(name):
    """Duplicated rows, one row twelve times, and a constant y."""
    case = CASES[name]
    X, y = case.data(12, seed=1)
    constant = np.repeat(y[:1], 12, axis=0)

    def run(X, y):
        result, draws = pgm.cavi(case.model(), X, y), pgm.gibbs(case.model(), X, y, **FEW)
        assert_finite(result, draws)
        return result, draws

    run(np.tile(X[:6], (2, 1)), y)
    result, draws = run(np.repeat(X[:1], 12, axis=0), y)
    # One latent value, twelve times: up to the jitter of 1e-10 of the variance, and its square root in a draw.
    np.testing.assert_allclose(result.mean, result.mean[:1].repeat(12, axis=0), atol=1e-8)
    np.testing.assert_allclose(draws.latents, draws.latents[:, :, :1].repeat(12, axis=2), atol=1e-3)
    if classes(case):
        with pytest.warns(pgm.DataWarning, match="y has no observation of class"):
            run(X, constant)
    else:
        run(X, constant)


def test_duplicated_rows_are_as_good_as_trials():
    """Five labels at each X are one binomial observation of five trials."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (10, 2))
    labels = (rng.random((10, 5)) < 0.4).astype(float)
    single = pgm.cavi(CASES["bernoulli"].model(), np.repeat(X, 5, axis=0), labels.ravel(), tolerance=1e-13)
    trials = np.column_stack([labels.sum(axis=1), np.full(10, 5.0)])
    grouped = pgm.cavi(CASES["binomial"].model(), X, trials, tolerance=1e-13)
    # The singular covariance needs its jitter or truncation of 1e-10.
    np.testing.assert_allclose((single.mean[::5], single.variance[::5]), (grouped.mean, grouped.variance), atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", some(NAMES, "zero_inflated"))
def test_latents_at_forty(name, sign):
    """σ(-40) = 4e-18: everything the engines evaluate is finite there, at a point mass and under a wide q."""
    case = CASES[name]
    _, y = case.data(12, seed=1)
    model = case.model()
    augmentation = model.augmentation
    with jax.enable_x64(True):
        parameters = model.parameters
        y, f = jnp.asarray(y), jnp.full(case.matrix(y).shape[:2], sign * 40.0)
        for v in (jnp.zeros_like(f), 1e-6 + jnp.zeros_like(f), 1.0 + jnp.zeros_like(f), 400.0 + jnp.zeros_like(f)):
            bound = augmentation.local_bound(f, v, y, parameters)
            h, w = augmentation.local_sites(f, v, y, parameters)
            assert np.isfinite(bound).all()
            assert np.isfinite(h).all()
            assert np.isfinite(w).all()
            assert (np.asarray(w) >= 0).all()
        # Tight where q has no variance; 1e-13 of terms of size 40 a latent and trial.
        exact = augmentation.predictor_log_density(y, f, parameters)
        np.testing.assert_allclose(augmentation.local_bound(f, 0 * f, y, parameters), exact, rtol=1e-12, atol=1e-10)
        for block in range(len(augmentation.blocks)):
            h, w = augmentation.draw_auxiliaries(jax.random.key(0), f, y, parameters, block)
            assert np.isfinite(h).all()
            assert np.isfinite(w).all()
            assert (np.asarray(w) >= 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_prior_that_reaches_forty(name):
    """A prior standard deviation of 20: chains start, and go, that far."""
    case = CASES[name]
    X, y = case.data(12, seed=1, scale=30.0, shift=5.0)
    model = case.model(variance=400.0)
    # Steps are short out there: whether 200 of them converge is not the question.
    result = pgm.cavi(model, X, y, max_iterations=200, tolerance=1e-4)
    assert np.all(np.diff(result.elbo_trace) > -1e-9 * (1 + np.abs(result.elbo_trace[1:])))
    assert_finite(result, pgm.gibbs(model, X, y, **FEW))


@pytest.mark.slow
@pytest.mark.parametrize("is_dense", [True, False])
def test_two_thousand_rows(is_dense):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (2000, 2 if is_dense else 1))
    y = (rng.random(2000) < sigma(2 * np.sin(X[:, 0]))).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern12(2.0, 1.0) if is_dense else pgm.RBF(2.0, 1.0)))
    with pytest.warns(pgm.ConvergenceWarning) if is_dense else nullcontext():
        result = pgm.cavi(model, X, y, max_iterations=3 if is_dense else 1000)
    assert_finite(result, pgm.gibbs(model, X, y, num_samples=2, num_warmup=1, num_chains=1 if is_dense else 2))
    rank = result.prior.groups[0].rank
    assert rank == 2000 if is_dense else rank < 100


@pytest.mark.parametrize(
    "name", ["bernoulli", *(pytest.param(name, marks=pytest.mark.slow) for name in ("heteroscedastic", "offset"))]
)
def test_a_second_call_compiles_nothing(name, compilations):
    """Other data of the same shape, a new equal model, other values of its hyperparameters, another seed and length."""
    case = CASES[name]

    def run(seed, **model):
        X, y = case.data(17, seed=seed)
        kernel = pgm.Matern12(model["variance"], model["lengthscale"])
        model = pgm.Model(case.likelihood(), pgm.GP(kernel, mean=model["mean"], size=case.num_latents))
        result = pgm.cavi(model, X, y)
        draws = pgm.gibbs(model, X, y, num_samples=50 + seed, num_warmup=seed, num_chains=3, seed=seed)
        result.predict_latent(X[:5])
        draws.predict_latent(X[:5])
        if name != "heteroscedastic":
            pgm.correct(result).predict_latent(X[:5])

    run(1, variance=2.0, lengthscale=1.2, mean=0.3)
    assert compilations, "the log of compilations was not heard"
    compilations.clear()
    run(1, variance=2.0, lengthscale=1.2, mean=0.3)
    assert not compilations
    run(2, variance=3.0, lengthscale=0.7, mean=-0.5)
    assert not compilations


def test_formulas_written_twice_share_their_programs(compilations):
    X, y = CASES["logistic_softmax"].data(13, seed=1)
    first = pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(pgm.Matern12(1.0, 1.0), size=3))
    second = pgm.Model(CASES["own_softmax"].likelihood(), pgm.GP(pgm.Matern12(1.0, 1.0), size=3))
    one = pgm.cavi(first, X, y)
    compilations.clear()
    other = pgm.cavi(second, X, y)
    assert not compilations
    assert np.array_equal(one.mean, other.mean)
