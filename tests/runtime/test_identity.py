"""Fingerprints of models, priors and runs are the same in every process."""

import copy
import inspect
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints, continuous, truncated

import pgmodels as pgm
from pgmodels.inference.gibbs import GibbsRun, Settings
from pgmodels.inference.gibbs_schedule import Keep
from pgmodels.model import Data
from pgmodels.parameters.parameter import Hashable, Parameter, as_parameter
from pgmodels.runtime.io import digest, identity
from tests import hyperpriors as priors

ROOT = Path(__file__).parents[2]
X = np.linspace(-1.0, 2.0, 6)[:, None]
Y = (np.arange(6) % 3 == 0).astype(float)
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


SCRIPT = (
    "import json; from tests.runtime.test_identity import fingerprints_here; print(json.dumps(fingerprints_here()))"
)


def test_all_is_the_same_in_processes_that_hash_differently():
    processes = []
    for seed in ("1", "12"):
        environment = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONHASHSEED=seed)
        command = [sys.executable, "-c", SCRIPT]
        processes.append(
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )
    here = fingerprints_here()
    for process in processes:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-2000:]
        assert json.loads(output) == here
    signatures = [value for name, value in here.items() if name.startswith(("prior", "model"))]
    assert len(set(signatures)) == len(signatures)


def test_every_continuous_distribution_of_numpyro_is_tried():
    known = {type(prior).__name__ for prior in priors.made().values()} | set(OTHERS.split())
    for module in (continuous, truncated):
        for name, kind in vars(module).items():
            if inspect.isclass(kind) and issubclass(kind, dist.Distribution) and kind.__module__ == module.__name__:
                assert name in known


@pytest.mark.parametrize("name", priors.made())
def test_a_prior_is_taken_and_equal_to_itself_made_again_alone(name):
    prior = priors.made()[name]
    parameter = as_parameter(
        Parameter(np.full(prior.shape(), 1.1 if name not in _BELOW_ONE else 0.2), positive=False, prior=prior),
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
        begun = GibbsRun(model, Data(X, Y), settings)

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
