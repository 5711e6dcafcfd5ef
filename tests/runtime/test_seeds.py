"""Seeds: what is none is refused by name in every call that takes one, before any work, and any other is taken."""

import copy
import inspect
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints, continuous, truncated

import pgmodels as pgm
from pgmodels.data.sources import survey
from pgmodels.datasets import load, split
from pgmodels.diagnostics.compare import importance_estimate
from pgmodels.diagnostics.vsbc import simulate_calibration
from pgmodels.inference.gibbs import GibbsRun, Settings
from pgmodels.inference.gibbs_schedule import Keep
from pgmodels.inference.starts import initial_models
from pgmodels.model import Data
from pgmodels.parameters.parameter import Hashable, as_parameter
from pgmodels.results.gaussian import MixedPredictive
from pgmodels.runtime.io import digest, identity
from pgmodels.runtime.seeds import NUM_SEEDS, as_key, as_seed
from tests import hyperpriors as priors
from tests import made_results
from tests.processes import python

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
    "joint_nodes, integrated": lambda seed: pgm.IntegratedApproximation.joint_nodes(BEFORE_ANY_WORK, X, 3, seed=seed),
    "draw_at_data": lambda seed: fitted().draw_at_data(2, seed=seed),
    "draw_at_data, integrated": lambda seed: pgm.IntegratedApproximation.draw_at_data(BEFORE_ANY_WORK, 2, seed=seed),
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
def test_invalid_seeds_are_refused_by_name(name):
    for seed in NONE + KEYS:
        with pytest.raises(ValueError, match=r"^seed must be a whole number from 0 to"):
            CALLS[name](seed)


def test_seeds_of_every_type_are_accepted():
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


# Fingerprints of models, priors and runs are the same in every process.


IDENTITY_X = np.linspace(-1.0, 2.0, 6)[:, None]
IDENTITY_Y = (np.arange(6) % 3 == 0).astype(float)
# Continuous ones that are no prior of numbers, each by itself, with a density: joint, censored, or a base of others.
OTHERS = """
CAR CirculantNormal Dirichlet EulerMaruyama GaussianCopula GaussianCopulaBeta GaussianRandomWalk GaussianStateSpace
InverseWishart InverseWishartCholesky LKJ LKJCholesky LowRankMultivariateNormal MatrixNormal MultivariateNormal
MultivariateStudentT Wishart WishartCholesky ZeroSumNormal HurdleGamma HurdleLogNormal Distribution Unit Delta
TransformedDistribution
"""


_BELOW_ONE = ("Beta", "BetaProportion", "Kumaraswamy", "RelaxedBernoulliLogits")


class Tilted(dist.Distribution):
    """A user-defined prior with a function and a set."""

    support = constraints.real
    pytree_data_fields = ("loc",)
    pytree_aux_fields = ("weigh", "kinds")

    def __init__(self, loc, power):
        self.loc, self.kinds = loc, frozenset(["one", "two", "three", power])
        self.weigh = lambda value: value**power
        super().__init__()

    def log_prob(self, value):
        return -(self.weigh(value - self.loc) ** 2)


class Chosen(pgm.Support):
    """A user-defined support with a function."""

    def __init__(self, inside):
        self.inside = inside

    check = examples = pieces = lambda self, *arguments: None


def tilted(power):
    return pgm.likelihood(lambda y, f: pgm.sigmoid(f) ** (y * power) * pgm.sigmoid(-f) ** (1 - y))


def scaled(factor):
    return lambda X, Z: factor * (X @ Z.T)


def models():
    """Models of all sorts of parts, by name."""
    gp = pgm.GP(pgm.RBF(dist.HalfCauchy(1.5), dist.LogNormal(0.1, 1.0)))
    kernel = pgm.On(pgm.Matern32(dist.Uniform(0.5, 2.0)), [0]) * pgm.RBF() + pgm.Constant(dist.HalfNormal(2.0))
    return {
        "named": pgm.Model(pgm.NegativeBinomial(dist.Gamma(2.0, 1.5)), gp),
        "kernels": pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=dist.Normal(0.0, 2.0), form=pgm.Inducing(3))),
        "callable": pgm.Model(tilted(1.0)(), pgm.GP(scaled(2.0))),
        "several": pgm.Model(pgm.HeteroscedasticGaussian(2.0), [gp, pgm.GP(pgm.RBF(2.0))]),
    }


def fingerprints_here():
    """The fingerprints of all objects in this process."""
    with jax.enable_x64(True):
        fingerprints = {f"prior {name}": Hashable(prior).signature for name, prior in priors.made().items()}
        fingerprints["own prior"] = Hashable(Tilted(0.3, 2)).signature
        for name in ("ordered_vector", "simplex", "unit_interval", "positive"):
            fingerprints[f"constraint {name}"] = Hashable(getattr(constraints, name)).signature
        fingerprints |= {f"model {name}": model.signature for name, model in models().items()}
        fingerprints["support"] = repr(Chosen(scaled(2.0)))
        fingerprints["set"] = digest({"one", "two", "three", 4.0, None})
    return json.loads(json.dumps(fingerprints))


SCRIPT = "import json; from tests.runtime.test_seeds import fingerprints_here; print(json.dumps(fingerprints_here()))"


def test_fingerprints_agree_across_hash_seeds():
    with ThreadPoolExecutor(2) as pool:
        printed = pool.map(lambda seed: python("-c", SCRIPT, PYTHONHASHSEED=seed), ("1", "12"))
        here = fingerprints_here()
    for text in printed:
        assert json.loads(text) == here
    signatures = [value for name, value in here.items() if name.startswith(("prior", "model"))]
    assert len(set(signatures)) == len(signatures)


def test_every_continuous_distribution_of_numpyro_is_tried():
    known = {type(prior).__name__ for prior in priors.made().values()} | set(OTHERS.split())
    for module in (continuous, truncated):
        for name, kind in vars(module).items():
            if inspect.isclass(kind) and issubclass(kind, dist.Distribution) and kind.__module__ == module.__name__:
                assert name in known


@pytest.mark.parametrize("name", priors.made())
def test_priors_are_equal_only_to_themselves(name):
    prior = priors.made()[name]
    parameter = as_parameter(
        pgm.Parameter(np.full(prior.shape(), 1.1 if name not in _BELOW_ONE else 0.2), positive=False, prior=prior),
        "scale",
        positive=False,
    )
    assert parameter.prior is prior
    assert Hashable(prior) == Hashable(priors.made()[name])
    assert copy.deepcopy(Hashable(prior)) == pickle.loads(pickle.dumps(Hashable(prior))) == Hashable(prior)
    others = [Hashable(other) for label, other in priors.made().items() if label != name]
    assert Hashable(prior) not in others


def test_a_number_that_differs_makes_another():
    assert Hashable(dist.Normal(0.3, 1.5)) != Hashable(dist.Normal(0.3, 1.5 + 1e-15))
    assert Hashable(dist.Normal(0.3, 1.5)) == Hashable(dist.Normal(np.float64(0.3), np.array(1.5)))
    assert Hashable(dist.Normal(0.3, 1.5)) != Hashable(dist.Normal(1.5, 0.3))
    assert Hashable(dist.Normal(0.3, 1.5)) != Hashable(dist.Normal(0.3, 1.5).expand([2]))
    assert Hashable(dist.TruncatedNormal(0.3, 1.5, low=0.0)) != Hashable(dist.TruncatedNormal(0.3, 1.5, low=0.1))
    assert Hashable(Tilted(0.3, 2)) == Hashable(Tilted(0.3, 2))
    assert Hashable(Tilted(0.3, 2)) != Hashable(Tilted(0.3, 4))
    assert Hashable(constraints.greater_than(1.0)) != Hashable(constraints.greater_than(1.0 + 1e-12))


def test_models_differ_in_what_their_words_do_not_show():
    gp = pgm.GP(pgm.RBF(2.0))
    assert pgm.Model(tilted(1.0)(), gp).signature != pgm.Model(tilted(2.0)(), gp).signature
    assert pgm.Model(tilted(1.0)(), gp).signature == pgm.Model(tilted(1.0)(), gp).signature
    signatures = [pgm.Model(pgm.Bernoulli(), pgm.GP(scaled(factor))).signature for factor in (2.0, 2.0, 3.0)]
    assert signatures[0] == signatures[1] != signatures[2]
    close = [pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(value))).signature for value in (2.0, 2.0 + 1e-12)]
    assert close[0] != close[1]
    signatures = [pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(value))).signature for value in (2.0, pgm.Fixed(2.0))]
    assert signatures[0] != signatures[1]


def test_sizes_and_seeds_are_those_of_a_run_however_they_are_typed():
    model, settings = (
        pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0))),
        Settings(0, 2, jax.random.key(3), Keep("all")),
    )
    with jax.enable_x64(True):
        begun = GibbsRun(model, Data(IDENTITY_X, IDENTITY_Y), settings)

    def told_by(**changes):
        other = begun.copy()
        other.settings = settings._replace(**changes)
        return other.fingerprint

    fingerprint = told_by()
    assert told_by(num_warmup=np.int64(0), num_chains=np.int32(2)) == fingerprint
    others = {"seed": {"key": jax.random.key(4)}, "sizes": {"num_warmup": 11}}
    for part, change in others.items():
        other = told_by(**change)
        assert [name for name in fingerprint if fingerprint[name] != other[name]] == [part]
    assert told_by(key=jax.random.key(3, impl="rbg"))["seed"] != fingerprint["seed"]
    assert digest(jax.random.key(3)) == digest(jax.random.wrap_key_data(jax.random.PRNGKey(3)))


def test_what_refers_to_itself_or_is_cached_has_an_identity():
    cyclic = []
    cyclic.append(cyclic)
    assert identity(cyclic) == ("list", "itself")

    def countdown(count):
        return count and countdown(count - 1)

    assert digest(countdown) == digest(countdown)
    assert identity(np.sin) == identity(np.sin) != identity(np.cos)
    assert digest({"a": 1, "b": {2, "c"}}) == digest({"b": {"c", 2}, "a": 1})
    assert digest((1.0, 2.0)) != digest((2.0, 1.0))
