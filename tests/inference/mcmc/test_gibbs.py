import re
from dataclasses import replace

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

from pgmodels.inference import gibbs as gibbs_run
from pgmodels.inference.gibbs import gibbs
from pgmodels.kernels.stationary import RBF, Matern12
from pgmodels.model import GP, Model
from tests.covering import some
from tests.referees import rbf
from tests.registry import CASES
from tests.statistical.reference import effective_sizes, nuts, standard_error, z_scores


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_chains_differ(binary):
    draws = gibbs(*binary, num_samples=5, num_warmup=0, num_chains=2, seed=0)
    assert len(np.unique(draws.latents[:, :, 0, 0])) == 10


@pytest.mark.parametrize(("num_warmup", "num_samples"), [(0, 1), (1, 49), (51, 50), (50, 101), (99, 53)])
def test_any_number_of_sweeps(binary, num_warmup, num_samples):
    """Iterations are compiled in chunks of 50: what is kept must not depend on where a chunk ends."""
    model, X, y = binary
    draws = gibbs(model, X, y, num_samples=num_samples, num_warmup=num_warmup, num_chains=2, seed=4)
    assert draws.latents.shape == (2, num_samples, 20, 1)
    assert draws.log_likelihood_trace.shape == (2, num_samples)
    assert (draws.num_chains, draws.num_samples, draws.num_warmup) == (2, num_samples, num_warmup)
    pieces = gibbs(model, X, y, num_samples=1, num_warmup=num_warmup, num_chains=2, seed=4)
    while pieces.num_samples < num_samples:
        pieces = pieces.extend(min(17, num_samples - pieces.num_samples))
    assert np.array_equal(draws.latents, pieces.latents)
    assert np.array_equal(draws.log_likelihood_trace, pieces.log_likelihood_trace)


def test_extend_leaves_the_first_draws_as_they_are(binary):
    first = gibbs(*binary, num_samples=30, num_warmup=5, num_chains=2, seed=4)
    before = first.latents.copy()
    longer = first.extend(20)
    assert longer.num_samples == 50
    assert np.array_equal(first.extend(20).latents, longer.latents)
    assert first.num_samples == 30
    assert np.array_equal(first.latents, before)
    assert np.array_equal(longer.latents[:, :30], before)
    with pytest.raises(ValueError, match="num_samples must be a whole number >= 1"):
        first.extend(0)


def test_draws_of_another_engine_cannot_be_extended(binary):
    draws = replace(gibbs(*binary, num_samples=2, num_warmup=0, num_chains=2, seed=4), run=None, method="nuts")
    with pytest.raises(ValueError, match="these draws are by nuts"):
        draws.extend(5)


@pytest.mark.parametrize("keep", some(["moments", [3, 0, 17]], "moments"))
def test_keeping_less_of_the_same_draws(binary, keep):
    options = {"num_samples": 120, "num_warmup": 30, "num_chains": 2, "seed": 4}
    full, part = gibbs(*binary, **options), gibbs(*binary, keep=keep, **options)
    # Two programs, each of which rounds in its own order.
    np.testing.assert_allclose(part.log_likelihood_trace, full.log_likelihood_trace, rtol=1e-12)
    # Running sums round otherwise than a sum at the end.
    np.testing.assert_allclose(part.mean, full.mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(part.variance, full.variance, rtol=1e-9)
    assert part.whitened is None
    if keep == "moments":
        with pytest.raises(ValueError, match="were not stored"):
            _ = part.latents
    else:
        np.testing.assert_array_equal(part.rows, keep)
        np.testing.assert_allclose(part.latents, full.latents[:, :, keep], rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match='keep="all"'):
        part.predict_latent(binary[1][:2])


@pytest.mark.parametrize("keep", ["some", [], [20], [-1], [0.5], [[1]], None])
def test_refuses_what_it_cannot_keep(binary, keep):
    with pytest.raises(ValueError, match="keep"):
        gibbs(*binary, num_samples=1, keep=keep)


def test_a_state_that_is_not_finite_stops_the_run_and_keeps_what_was_drawn(binary, monkeypatch):
    original = gibbs_run.run_chunk

    def broken(target, tuning, chains, moments, first, count, *rest):
        chains, moments, probe, record = original(target, tuning, chains, moments, first, count, *rest)
        if first >= 60:
            record = record._replace(failed=record.failed.at[3, 1].set(2))
        return chains, moments, probe, record

    monkeypatch.setattr(gibbs_run, "run_chunk", broken)
    with pytest.raises(
        gibbs_run.SamplingError, match="the latents of chain 1 are not finite in iteration 63"
    ) as caught:
        gibbs(*binary, num_samples=200, num_warmup=10, num_chains=2, seed=4)
    assert caught.value.draws.num_samples == 53
    monkeypatch.undo()
    good = gibbs(*binary, num_samples=53, num_warmup=10, num_chains=2, seed=4)
    assert np.array_equal(caught.value.draws.latents, good.latents)


def compiled(caplog):
    """The names of the programs whose compilation was logged."""
    return set(re.findall(r"Compiling jit\((\w+)\)", caplog.text))


def test_nothing_is_compiled_again_for_equal_shapes(binary, caplog):
    model, X, y = binary
    gibbs(model, X, y, num_samples=60, num_warmup=30, num_chains=2, seed=4)
    other = Model(CASES["bernoulli"].likelihood(), GP(RBF(3.1, 0.9), mean=-0.2))
    with jax.log_compiles():
        gibbs(other, X[::-1], 1.0 - y, num_samples=133, num_warmup=47, num_chains=2, seed=9)
    assert not compiled(caplog)


def test_with_hyperparameters_sampled_one_kind_of_move_is_kept_and_nothing_is_compiled_again(binary, caplog):
    _, X, y = binary

    def run(num_samples, seed):
        model = Model(CASES["bernoulli"].likelihood(), GP(RBF(dist.LogNormal(0.5, 1.0), 0.9)))
        return gibbs(model, X, y, num_samples=num_samples, num_warmup=120, num_chains=2, seed=seed)

    tuning = run(20, 4).tuning
    # With so few data the expectations behind a surrogate are the dearer: both kinds of move tried, then one chosen.
    steps, slices = tuning["hamiltonian"]["repeats"], tuning["slice_unknowns"]["repeats"]
    assert (steps > 0) == (slices == 0) == (tuning["slice_latents"]["repeats"] == 0)
    with jax.log_compiles():
        run(33, 9)
    assert not compiled(caplog) & {"run_chunk", "start_chains", "renew_surrogates", "_compiled_prior", "_refine"}


@pytest.mark.parametrize("name", ["num_samples", "num_warmup", "num_chains"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "ten"])
def test_refuses_bad_counts(binary, name, value):
    with pytest.raises(ValueError, match=f"{name} must be a whole number >= "):
        gibbs(*binary, **{name: value})


@pytest.mark.parametrize("seed", [None, 1.5, "zero", True])
def test_refuses_bad_seeds(binary, seed):
    with pytest.raises(ValueError, match=r"seed must be a whole number .*, or one JAX key such as jax.random.key\(0\)"):
        gibbs(*binary, num_samples=1, num_warmup=0, seed=seed)


@pytest.mark.slow
def test_low_rank_and_dense_priors_draw_from_the_exact_posterior():
    """A smooth kernel has a low-rank prior and a rough one a dense prior: both against the exact Gaussian posterior."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-1, 1, (60, 1))
    y = np.sin(2 * X[:, 0]) + 0.5 * rng.normal(size=60)
    for kernel, K in ((RBF(2.0, 1.0), rbf(X, 2.0, 1.0)), (Matern12(2.0, 1.0), 2.0 * np.exp(-np.abs(X - X.T)))):
        model = Model(CASES["gaussian"].likelihood(), GP(kernel, mean=0.3))
        draws = gibbs(model, X, y, num_samples=1000, num_warmup=0, seed=3)
        gain = K @ np.linalg.inv(K + 0.25 * np.eye(60))
        mean, variance = 0.3 + gain @ (y - 0.3), np.diag(K - gain @ K)
        # 4,000 independent draws, 120 comparisons for each kernel.
        assert np.all(np.abs(draws.mean[:, 0] - mean) < 4 * np.sqrt(variance / 4000))
        assert np.all(np.abs(draws.variance[:, 0] / variance - 1) < 4 * np.sqrt(2 / 4000))
