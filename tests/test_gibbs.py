import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgmodels.inference.gibbs import gibbs
from pgmodels.kernels import RBF, Matern12
from pgmodels.model import GP, Model
from tests.registry import CASES, NAMES, rbf
from tests.statistical.reference import effective_sizes, nuts, standard_error, z_scores


@pytest.mark.parametrize("name", ["bernoulli", "logistic_softmax", "heteroscedastic"])
def test_agrees_with_nuts_without_auxiliaries(name):
    """A short version of tests/statistical/test_nuts.py: four joint standard errors, at 80 to 240 comparisons."""
    case = CASES[name]
    X, y = case.data(40, seed=7)
    draws = gibbs(case.model(), X, y, num_samples=1200, num_warmup=200, seed=1)
    referee = nuts(case, rbf(X) + 1e-8 * np.eye(40), 0.3, y, num_samples=400, num_warmup=300, seed=2)
    # Enough for the standard errors themselves to be known to 5 %.
    assert effective_sizes(draws.latents).min() > 400
    assert effective_sizes(referee).min() > 400
    mean, variance = z_scores(draws.latents, referee)
    assert np.abs(mean).max() < 4.0
    assert np.abs(variance).max() < 4.0


def test_gaussian_likelihood_against_the_exact_posterior():
    X, y = CASES["gaussian"].data(30, seed=4)
    draws = gibbs(CASES["gaussian"].model(), X, y, num_samples=2001, num_warmup=0, seed=1)
    K = rbf(X)
    gain = K @ np.linalg.inv(K + 0.25 * np.eye(30))
    mean, variance = 0.3 + gain @ (y - 0.3), np.diag(K - gain @ K)
    # The draws are independent: 60 comparisons at four standard errors.
    error = standard_error(draws.latents)[:, 0]
    assert np.all(np.abs(draws.mean[:, 0] - mean) < 4 * error)
    # A sample variance of m Gaussian draws has relative standard error √(2 / m).
    assert np.all(np.abs(draws.variance[:, 0] / variance - 1) < 4 * np.sqrt(2 / (4 * 2001)))


def test_a_list_of_gps_is_the_same_model_as_one_gp_of_that_size():
    case = CASES["heteroscedastic"]
    X, y = case.data(40, seed=8)
    listed = Model(case.likelihood(), [GP(RBF(2.0, 1.2), mean=0.3), GP(RBF(2.0, 1.2), mean=0.3)])
    # The same law, drawn with other keys.
    together = gibbs(case.model(), X, y, num_samples=600, num_warmup=100, seed=2)
    apart = gibbs(listed, X, y, num_samples=600, num_warmup=100, seed=1)
    assert apart.latents.shape == (4, 600, 40, 2)
    mean, variance = z_scores(apart.latents, together.latents)
    assert np.abs(mean).max() < 4.0
    assert np.abs(variance).max() < 4.0


@pytest.fixture(scope="module")
def binary():
    X, y = CASES["bernoulli"].data(20, seed=3)
    return CASES["bernoulli"].model(), X, y


def test_the_seed_decides_every_draw(binary):
    options = {"num_samples": 7, "num_warmup": 3, "num_chains": 2}
    one, again = (gibbs(*binary, seed=5, **options) for _ in range(2))
    with jax.enable_x64(True):
        key = jax.random.key(5)
    by_key = gibbs(*binary, seed=key, **options)
    other = gibbs(*binary, seed=6, **options)
    for same in (again, by_key, gibbs(*binary, seed=np.int64(5), **options)):
        assert np.array_equal(one.latents, same.latents)
        assert np.array_equal(one.log_likelihood_trace, same.log_likelihood_trace)
    assert not np.any(one.latents == other.latents)


# The formula of one's own shares LogisticSoftmax's program.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "own_softmax"])
def test_draws_are_reproducible_for_every_likelihood(name):
    X, y = CASES[name].data(6, seed=3)
    options = {"num_samples": 3, "num_warmup": 1, "num_chains": 2, "seed": 9}
    one, again = (gibbs(CASES[name].model(), X, y, **options) for _ in range(2))
    assert one.latents.shape == (2, 3, 6, CASES[name].num_latents)
    assert np.isfinite(one.latents).all()
    assert np.array_equal(one.latents, again.latents)
    with jax.enable_x64(True):
        density = CASES[name].log_density
        expected = [[float(density(jnp.asarray(y), jnp.asarray(f)).sum()) for f in chain] for chain in one.latents]
    # Rounding of the two ways of writing the density.
    np.testing.assert_allclose(one.log_likelihood_trace, expected, rtol=1e-9, atol=1e-9)


def test_chains_differ(binary):
    draws = gibbs(*binary, num_samples=5, num_warmup=0, num_chains=3, seed=0)
    assert len(np.unique(draws.latents[:, :, 0, 0])) == 15


@pytest.mark.parametrize(("num_warmup", "num_samples"), [(0, 1), (1, 49), (51, 50), (50, 101), (99, 53)])
def test_any_number_of_sweeps(binary, num_warmup, num_samples):
    """Sweeps are compiled in chunks of 50: what is kept must not depend on where a chunk ends."""
    model, X, y = binary
    draws = gibbs(model, X, y, num_samples=num_samples, num_warmup=num_warmup, num_chains=2, seed=4)
    assert draws.latents.shape == (2, num_samples, 20, 1)
    assert draws.log_likelihood_trace.shape == (2, num_samples)
    assert (draws.num_chains, draws.num_samples, draws.num_warmup) == (2, num_samples, num_warmup)
    whole = gibbs(model, X, y, num_samples=num_warmup + num_samples, num_warmup=0, num_chains=2, seed=4)
    assert np.array_equal(draws.latents, whole.latents[:, num_warmup:])


@pytest.mark.parametrize("name", ["num_samples", "num_warmup", "num_chains"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "ten"])
def test_refuses_bad_counts(binary, name, value):
    with pytest.raises(ValueError, match=f"{name} must be a whole number >= "):
        gibbs(*binary, **{name: value})


@pytest.mark.parametrize("seed", [None, 1.5, "zero", True])
def test_refuses_bad_seeds(binary, seed):
    with pytest.raises(ValueError, match=r"seed must be an int or a JAX key such as jax.random.key\(0\)"):
        gibbs(*binary, num_samples=1, num_warmup=0, seed=seed)


def test_low_rank_and_dense_priors_draw_from_the_exact_posterior():
    """A smooth kernel has a low-rank prior and a rough one a dense prior: both against the exact Gaussian posterior."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-1, 1, (60, 1))
    y = np.sin(2 * X[:, 0]) + 0.5 * rng.normal(size=60)
    for kernel, K in (
        (RBF(2.0, 1.0), rbf(X, 2.0, 1.0)),
        (Matern12(2.0, 1.0), 2.0 * np.exp(-np.abs(X - X.T))),
    ):
        model = Model(CASES["gaussian"].likelihood(), GP(kernel, mean=0.3))
        draws = gibbs(model, X, y, num_samples=1000, num_warmup=0, seed=3)
        gain = K @ np.linalg.inv(K + 0.25 * np.eye(60))
        mean, variance = 0.3 + gain @ (y - 0.3), np.diag(K - gain @ K)
        # 4,000 independent draws, 120 comparisons for each kernel.
        assert np.all(np.abs(draws.mean[:, 0] - mean) < 4 * np.sqrt(variance / 4000))
        assert np.all(np.abs(draws.variance[:, 0] / variance - 1) < 4 * np.sqrt(2 / 4000))
