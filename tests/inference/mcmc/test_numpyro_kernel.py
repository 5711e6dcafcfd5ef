"""The Gibbs engine inside NumPyro's MCMC."""

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

import pgmodels as pgm
from pgmodels.priors.base import padded_size
from tests.covering import some
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
    samples = run(kernel, method)["f"]
    assert samples.shape == (3, 400, 15, 1)
    draws = pgm.gibbs(case.model(), X, y, num_samples=2000, seed=7)
    mean, variance = z_scores(samples, draws.latents)
    assert max(np.abs(mean).max(), np.abs(variance).max()) < 4.0
    assert len(np.unique(samples[:, 0, 0, 0])) == 3
    assert np.array_equal(run(kernel, method, num_samples=20, thinning=4)["f"], samples[:, 3:20:4])


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
    samples = run(pgm.GibbsKernel(model, X, y), "vectorized")
    assert set(samples) == {"f", "lengthscale", "scale"}
    draws = pgm.gibbs(model, X, y, num_samples=2000, seed=7)
    for name, values in draws.hyperparameters.items():
        mean, variance = z_scores(np.log(samples[name])[..., None, None], np.log(values)[..., None, None])
        assert max(np.abs(mean).max(), np.abs(variance).max()) < 4.0


def test_misuse_is_refused():
    case = CASES["bernoulli"]
    X, y = case.data(15, seed=3)
    kernel = pgm.GibbsKernel(case.model(), X, y)
    sampler = MCMC(kernel, num_warmup=2, num_samples=2, progress_bar=False)
    with pytest.raises(ValueError, match="64-bit"):
        sampler.run(jax.random.key(0))
    with jax.enable_x64(True), pytest.raises(ValueError, match="without further arguments"):
        sampler.run(jax.random.key(0), X)


# Rows are filled up to more than these.
ROWS = 20


@pytest.fixture(scope="module")
def padded():
    """A kernel, and draws by gibbs, whose means at the first and the last data are far apart."""
    assert padded_size(ROWS) > ROWS
    X = np.linspace(-1.5, 1.5, ROWS)[:, None]
    y = np.where(X[:, 0] > 0.3, 1.0, 0.0)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0)))
    draws = pgm.gibbs(model, X, y, num_samples=500, num_warmup=50, num_chains=2, seed=7)
    return pgm.GibbsKernel(model, X, y), draws


def sampler_of(kernel, num_chains, method):
    options = {"num_warmup": 0, "num_samples": 400, "progress_bar": False}
    return MCMC(kernel, num_chains=num_chains, chain_method=method, **options)


# On one device chains that are to be parallel follow each other.
@pytest.mark.parametrize(
    ("num_chains", "method"),
    some([(1, "sequential"), (2, "parallel"), (2, "vectorized"), (2, "sequential")], (2, "vectorized")),
)
def test_chains_of_every_method_have_the_rows_and_the_means_of_gibbs_and_go_on(padded, num_chains, method):
    kernel, draws = padded
    with jax.enable_x64(True):
        warns = (num_chains, method) == (2, "parallel") and jax.local_device_count() == 1
        with pytest.warns(UserWarning, match="not enough devices") if warns else nullcontext():
            sampler = sampler_of(kernel, num_chains, method)

        def run(seed, first):
            sampler.run(jax.random.key(seed), extra_fields=("number",))
            numbers = sampler.get_extra_fields(group_by_chain=True)["number"]
            assert np.array_equal(numbers, np.tile(np.arange(first, first + 400), (num_chains, 1)))
            samples = np.asarray(sampler.get_samples(group_by_chain=True)["f"])
            assert samples.shape == (num_chains, 400, ROWS, 1)
            assert np.array_equal(sampler.get_samples()["f"], samples.reshape(-1, ROWS, 1))
            assert len(np.unique(samples[:, 0, 0, 0])) == num_chains
            return samples

        samples = run(3, 1)
        sampler.post_warmup_state = sampler.last_state
        following = run(4, 401)
        sampler.post_warmup_state = None
        assert np.array_equal(run(3, 1), samples)
    assert not np.any(samples == following)
    # Each mean is over some 200 independent draws at least.
    for each in (samples, following):
        mean, deviation = each.mean(axis=(0, 1)), np.sqrt(draws.variance)
        assert np.all(np.abs(mean - draws.mean) < 0.4 * deviation)
    assert np.ptp(draws.mean) > 2.0 * deviation.max()


TWO_DEVICES = """
import numpyro
numpyro.set_host_device_count(2)
numpyro.enable_x64()
import jax, numpy as np, pgmodels as pgm
from numpyro.infer import MCMC
from tests.registry import CASES
X, y = CASES["bernoulli"].data(20, seed=3)
kernel, found = pgm.GibbsKernel(CASES["bernoulli"].model(), X, y), []
for method in ("parallel", "sequential"):
    sampler = MCMC(kernel, num_warmup=3, num_samples=5, num_chains=2, chain_method=method, progress_bar=False)
    for seed in (1, 2):
        sampler.run(jax.random.key(seed), extra_fields=("number",))
        numbers = sampler.get_extra_fields(group_by_chain=True)["number"]
        assert np.all(numbers[:, -1] == {1: 8, 2: 13}[seed])
        sampler.post_warmup_state = sampler.last_state
        found.append(np.asarray(sampler.get_samples(group_by_chain=True)["f"]))
assert found[0].shape == (2, 5, 20, 1)
np.testing.assert_allclose(found[:2], found[2:], rtol=1e-9, atol=1e-9)
"""


@pytest.mark.slow
def test_chains_on_two_devices_are_those_that_follow_each_other():
    root = Path(__file__).parents[3]
    environment = dict(os.environ, PYTHONPATH=str(root))
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES], cwd=root, env=environment, stderr=subprocess.PIPE, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
