"""Seeds: what is none is refused by name in every call that takes one, before any work, and any other is taken."""

from functools import cache
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from pgmodels.data.sources import survey
from pgmodels.datasets import load, split
from pgmodels.diagnostics.compare import importance_estimate
from pgmodels.diagnostics.vsbc import simulate_calibration
from pgmodels.inference.starts import initial_models
from pgmodels.results.gaussian import MixedPredictive
from pgmodels.results.integrated import IntegratedApproximation
from pgmodels.runtime.seeds import NUM_SEEDS, as_key, as_seed
from tests import made_results

RNG = np.random.default_rng(5)
X = RNG.normal(size=(6, 2))
Y = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
MODEL = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, 1.0)))
UNKNOWN = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(dist.LogNormal(0.0, 1.0), 1.0)))
HUGE = 10**30
BEFORE_ANY_WORK: Any = None  # a result that nothing is asked of
TOO_MANY_DIGITS = 10**5000  # Python writes out no such number


@cache
def fitted():
    return pgm.cavi(MODEL, X, Y)


def drawn():
    return made_results.results("bernoulli")["gibbs"]


CALLS = {
    "gibbs": lambda seed: pgm.gibbs(MODEL, X, Y, seed=seed),
    "nuts": lambda seed: pgm.nuts(MODEL, X, Y, seed=seed),
    "svi": lambda seed: pgm.svi(MODEL, X, Y, seed=seed),
    "cavi": lambda seed: pgm.cavi(MODEL, X, Y, seed=seed),
    "gaussian_vi": lambda seed: pgm.gaussian_vi(MODEL, X, Y, seed=seed),
    "fit": lambda seed: pgm.fit(MODEL, X, Y, correct=False, seed=seed),
    "GibbsKernel": lambda seed: pgm.GibbsKernel(MODEL, X, Y, seed=seed),
    "gibbs_steps": lambda seed: pgm.gibbs_steps(MODEL, X, Y, seed=seed),
    "loo": lambda seed: pgm.loo(fitted(), seed=seed),
    "check": lambda seed: pgm.check(MODEL, X, Y, seed=seed),
    "integrate": lambda seed: pgm.integrate(UNKNOWN, X, Y, seed=seed),
    "log_evidence": lambda seed: pgm.log_evidence(fitted(), seed=seed),
    "prior_predictive": lambda seed: pgm.prior_predictive(MODEL, X, seed=seed),
    "verify": lambda seed: pgm.derive(MODEL).verify(seed=seed),
    "diagnose": lambda seed: pgm.diagnose(fitted(), seed=seed),
    "simulate_calibration": lambda seed: simulate_calibration(fitted(), 2, seed=seed),
    "compare": lambda seed: pgm.compare(**made_results.results("bernoulli"), seed=seed),
    "to_arviz": lambda seed: fitted().to_arviz(seed=seed),
    "to_arviz of draws": lambda seed: drawn().to_arviz(seed=seed),
    "draw_latents": lambda seed: fitted().draw_latents(X, seed=seed),
    "draw_latents of draws": lambda seed: drawn().draw_latents(X, seed=seed),
    # Where draw_latents draws.
    "joint_nodes, integrated": lambda seed: IntegratedApproximation.joint_nodes(BEFORE_ANY_WORK, X, 3, seed=seed),
    "draw_at_data": lambda seed: fitted().draw_at_data(2, seed=seed),
    "draw_at_data, integrated": lambda seed: IntegratedApproximation.draw_at_data(BEFORE_ANY_WORK, 2, seed=seed),
    "draw_marginals": lambda seed: drawn().draw_marginals(X, seed=seed),
    "predict": lambda seed: drawn().predict(X, seed=seed),
    "draw": lambda seed: fitted().predict(X).draw(seed=seed),
    "draw, mixed": lambda seed: MixedPredictive(np.ones(1), [fitted().predict(X)]).draw(seed=seed),
    "quantiles": lambda seed: fitted().predict(X).quantiles([0.5], seed=seed),
    "split": lambda seed: split(load("wine"), 0.5, seed),
}
NONE = [-1, 2**63, 2**64, HUGE, TOO_MANY_DIGITS, np.uint64(2**63), 1.0, "0", None, True, [1, 2], np.ones(2, np.uint32)]
KEYS = [jax.random.split(jax.random.key(0)), jax.numpy.zeros(3, jax.numpy.uint32), jax.numpy.zeros(2)]


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_seed_is_refused_by_name(name):
    for seed in NONE + KEYS:
        with pytest.raises(ValueError, match=r"^seed must be a whole number from 0 to"):
            CALLS[name](seed)


def test_what_is_a_seed_is_taken():
    assert [as_seed(seed) for seed in (0, np.int32(3), np.uint64(7), 2**63 - 1)] == [0, 3, 7, NUM_SEEDS - 1]
    for seed in (5, np.int64(5), jax.random.key(5), jax.random.PRNGKey(5)):
        assert as_key(seed) == jax.random.key(5)
    assert [as_seed(key) for key in (jax.random.key(5), jax.random.PRNGKey(5))] == [5, 5]
    assert 0 <= as_seed(jax.random.split(jax.random.key(5))[1]) < NUM_SEEDS
    # The largest, and those that are made from it.
    latents = fitted().draw_latents(X, 3, seed=NUM_SEEDS - 1)
    np.testing.assert_array_equal(latents, fitted().draw_latents(X, 3, seed=np.uint64(NUM_SEEDS - 1)))
    assert np.isfinite(importance_estimate(fitted(), 200, NUM_SEEDS - 1).pareto_k)


NUMBERS = {
    "draw_latents": lambda seed: fitted().draw_latents(X, 3, seed=seed),
    "draw_latents of draws": lambda seed: drawn().draw_latents(X, 3, seed=seed),
    "predict": lambda seed: drawn().predict(X, seed=seed).probabilities,
    "draw": lambda seed: fitted().predict(X).draw(20, seed=seed),
    "log_evidence": lambda seed: pgm.log_evidence(fitted(), num_draws=100, seed=seed).value,
    "prior_predictive": lambda seed: pgm.prior_predictive(MODEL, X, num_draws=3, seed=seed).latents,
    "to_arviz": lambda seed: fitted().to_arviz(num_draws=3, seed=seed).posterior["f"].values,
    "diagnose": lambda seed: pgm.diagnose(fitted(), num_replicates=0, num_draws=100, seed=seed).pareto_k,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_key_draws_what_its_number_draws(name):
    by_number, by_key, by_another = (NUMBERS[name](seed) for seed in (3, jax.random.key(3), 4))
    np.testing.assert_array_equal(by_number, by_key)
    assert not np.array_equal(by_number, by_another)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pgm.cavi, pgm.gaussian_vi, pgm.fit, pgm.svi])
def test_inducing_inputs_that_are_drawn_depend_on_the_seed(engine):
    inputs = np.random.default_rng(0).uniform(size=(60, 1))
    labels = (inputs[:, 0] > 0.5).astype(float)
    model = pgm.Model(
        pgm.Bernoulli(), pgm.GP(pgm.RBF(pgm.Fixed(1.0), pgm.Fixed(0.3)), form=pgm.Inducing(20, "uniform"))
    )

    def chosen(**seed):
        return engine(model, inputs, labels, **seed, progress=False).model.gps[0].form.inputs

    assert chosen() == chosen(seed=0) == chosen(seed=jax.random.key(0)) != chosen(seed=1)


def test_rows_that_are_drawn_to_begin_with_depend_on_the_seed():
    inputs = np.arange(30_000.0)[:, None]
    sample = [survey(pgm.ArrayRows(inputs, inputs[:, 0]), lambda X, y: (X, y), seed).X for seed in (0, 0, 1)]
    assert np.array_equal(sample[0], sample[1])
    assert not np.array_equal(sample[0], sample[2])


def test_starts_that_are_drawn_depend_on_the_seed():
    model, data = MODEL.resolve(X), MODEL.check(X, Y)
    names = ("random 4", "random 5")
    starts = [initial_models(model, data, None, 6, seed) for seed in (0, 0, 1)]
    values = [[str(each[name].model) for name in names if name in each] for each in starts]
    assert values[0]
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32 + 3, NUM_SEEDS - 1])
@pytest.mark.parametrize("double", [True, False])
def test_a_key_is_that_of_jax(seed, double):
    with jax.enable_x64(double):
        if double or seed < 2**31:
            assert as_key(seed) == jax.random.key(seed)


def test_keys_follow_the_settings_of_jax():
    with jax.enable_x64(True), jax.default_prng_impl("rbg"):
        assert as_key(3) == jax.random.key(3)
