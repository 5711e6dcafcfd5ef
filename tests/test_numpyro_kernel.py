"""The Gibbs engine inside NumPyro's MCMC."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

import pgmodels as pgm
from tests.registry import CASES
from tests.statistical.reference import z_scores


def run(kernel, method, num_samples=400, thinning=1, seed=3):
    with jax.enable_x64(True):
        options = {"chain_method": method, "progress_bar": False, "thinning": thinning}
        sampler = MCMC(kernel, num_warmup=20, num_samples=num_samples, num_chains=3, **options)
        sampler.run(jax.random.key(seed))
        return {name: np.asarray(value) for name, value in sampler.get_samples(group_by_chain=True).items()}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vectorized", "sequential"])
def test_draws_are_those_of_gibbs(method):
    case = CASES["bernoulli"]
    X, y = case.data(15, seed=3)
    kernel = pgm.GibbsKernel(case.model(), X, y)
    found = run(kernel, method)["f"]
    assert found.shape == (3, 400, 15, 1)
    draws = pgm.gibbs(case.model(), X, y, num_samples=2000, seed=7)
    mean, variance = z_scores(found, draws.latents)
    assert max(np.abs(mean).max(), np.abs(variance).max()) < 4.0
    assert len(np.unique(found[:, 0, 0, 0])) == 3
    assert np.array_equal(run(kernel, method, num_samples=20, thinning=4)["f"], found[:, 3:20:4])


def test_draws_are_of_the_rows_of_the_data_chain_by_chain():
    case = CASES["bernoulli"]
    X, y = case.data(15, seed=3)
    f = run(pgm.GibbsKernel(case.model(), X, y), "sequential", num_samples=4)["f"]
    assert f.shape == (3, 4, 15, 1)
    assert np.isfinite(f).all()
    assert len(np.unique(f[..., 0, 0])) == 12


@pytest.mark.slow
def test_sampled_hyperparameters_have_their_names_and_law():
    X = np.linspace(-1.5, 1.5, 12)[:, None]
    y = np.sin(2.0 * X[:, 0]) + 0.2
    model = pgm.Model(pgm.Gaussian(dist.LogNormal(-1.0, 0.5)), pgm.GP(pgm.RBF(1.2, dist.LogNormal(0.0, 0.5))))
    found = run(pgm.GibbsKernel(model, X, y), "vectorized")
    assert set(found) == {"f", "lengthscale", "scale"}
    draws = pgm.gibbs(model, X, y, num_samples=2000, seed=7)
    for name, values in draws.hyperparameters.items():
        mean, variance = z_scores(np.log(found[name])[..., None, None], np.log(values)[..., None, None])
        assert max(np.abs(mean).max(), np.abs(variance).max()) < 4.0


def test_misuse_is_refused():
    case = CASES["bernoulli"]
    X, y = case.data(15, seed=3)
    kernel = pgm.GibbsKernel(case.model(), X, y)
    sampler = MCMC(kernel, num_warmup=2, num_samples=2, progress_bar=False)
    with pytest.raises(ValueError, match="64-bit"):
        sampler.run(jax.random.key(0))
    with jax.enable_x64(True), pytest.raises(ValueError, match="without arguments"):
        sampler.run(jax.random.key(0), X)
