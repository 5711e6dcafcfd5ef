"""Whatever leaves the process comes back the same: doubles, formulas, random keys, and draws that can be continued."""

import copy
import importlib
import io
import pickle
import pkgutil
import threading
from itertools import product

import cloudpickle
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from pgmodels.diagnostics.vsbc import Calibration
from pgmodels.inference import loop, problem
from pgmodels.runtime import precision
from pgmodels.runtime.precision import Module, Picklable
from tests.covering import some
from tests.on_demand import OnDemand
from tests.processes import python
from tests.results.test_saving import LABELS, NEW, X, assert_same, figures, gp, sampled_model

COUNTS = np.random.default_rng(4).poisson(2.0, 14).astype(float)


@pgm.likelihood(
    support=pgm.Counts(),
    num_latents=1,
    mean=lambda y, f, rate: rate * pgm.sigmoid(f),
    variance=lambda y, f, rate: rate * pgm.sigmoid(f),
)
def own_counts(y, f, rate=pgm.Parameter(5.0, positive=True)):
    return (rate * pgm.sigmoid(f)) ** y * pgm.exp(-rate * pgm.sigmoid(f)) / pgm.gamma(y + 1)


def plain_logit(y, f):
    return pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y)


renamed_logit = pgm.likelihood(plain_logit, support=pgm.Binary(), num_latents=1)


def local_logit(tilt):
    """A formula that only its closure knows."""

    @pgm.likelihood(support=pgm.Binary(), num_latents=1)
    def tilted(y, f):
        return pgm.sigmoid(tilt * f) ** y * pgm.sigmoid(-tilt * f) ** (1 - y)

    return tilted


def exponential(scale):
    """A user-defined kernel that closes over a JAX array."""
    return lambda A, B: jnp.exp(-jnp.abs(A[:, None, 0] - B[None, :, 0]) / scale)


def by_pickle(thing):
    return pickle.loads(pickle.dumps(thing))


def by_python_pickle(thing):
    """By the pickler that is written in Python, in an old protocol."""
    file = io.BytesIO()
    pickle._Pickler(file, protocol=2).dump(thing)
    return pickle.loads(file.getvalue())


def by_cloudpickle(thing):
    return pickle.loads(cloudpickle.dumps(thing))


WAYS = [by_pickle, by_python_pickle, by_cloudpickle, copy.deepcopy, copy.copy]


class WithoutJax(pickle.Pickler):
    """Refuses JAX's arrays, which JAX would revive in single precision."""

    def reducer_override(self, thing):
        assert not isinstance(thing, jax.Array), f"an array of JAX travels: {thing}"
        return NotImplemented


@pytest.fixture(scope="module")
def results():
    """A result of each kind, on few data, by name."""
    model = pgm.Model(pgm.Bernoulli(), gp())
    with jax.enable_x64(True):
        own_kernel = pgm.GP(exponential(jnp.asarray(0.7)))
    few = {"num_warmup": 0, "num_chains": 2}
    return OnDemand(
        {
            "cavi": lambda all: pgm.cavi(model, X, LABELS),
            "own formula": lambda all: pgm.cavi(pgm.Model(own_counts(4.0), gp()), X, COUNTS),
            "local formula": lambda all: pgm.cavi(pgm.Model(local_logit(0.7)(), own_kernel), X, LABELS),
            "correct": lambda all: pgm.correct(all["cavi"]),
            "gibbs": lambda all: pgm.gibbs(model, X, LABELS, num_samples=12, seed=3, **few),
            "gibbs, sampled": lambda all: pgm.gibbs(sampled_model(), X, LABELS, num_samples=6, seed=5, **few),
        }
    )


RESULTS = ["cavi", "own formula", "local formula", "correct", "gibbs", "gibbs, sampled"]


@pytest.fixture(scope="module")
def expected(results):
    """The figures of each result, by name, before any has travelled."""
    return OnDemand({name: lambda all, name=name: figures(results[name]) for name in results})


# Every way, and every result but the one that takes longest to make.
EACH = [
    ("cavi", by_pickle),
    ("own formula", by_python_pickle),
    ("local formula", by_cloudpickle),
    ("correct", copy.deepcopy),
    ("gibbs", copy.copy),
]


@pytest.mark.parametrize(("name", "way"), some(product(RESULTS, WAYS), *EACH))
def test_pickled_results_have_the_same_figures(results, expected, name, way):
    assert_same(figures(way(results[name])), expected[name])


@pytest.mark.parametrize("name", some(RESULTS, *(name for name, _ in EACH)))
def test_pickles_have_no_arrays_of_jax(results, name):
    WithoutJax(io.BytesIO()).dump(results[name])


PARTS = {
    "model": lambda results: results["cavi"].model,
    "model with priors": lambda results: sampled_model(),
    "likelihood": lambda results: pgm.StudentT(4.0, 0.5),
    "likelihood of sized classes": lambda results: pgm.StickBreaking(4),
    "own likelihood": lambda results: own_counts(),
    "kernel": lambda results: pgm.Periodic(1.0, 0.4, 2.0) * (pgm.Linear() + pgm.RBF()),
    "GP": lambda results: gp(size=3),
    "prior at the data": lambda results: results["cavi"].prior,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PARTS)
def test_pickled_parts_of_a_model_are_equal(results, name, way):
    part = PARTS[name](results)
    back = way(part)
    assert back == part
    assert hash(back) == hash(part)
    assert repr(back) == repr(part)
    leaves, others = jax.tree.leaves(part), jax.tree.leaves(back)
    assert [np.asarray(leaf).dtype for leaf in leaves] == [np.asarray(leaf).dtype for leaf in others]


@pytest.mark.parametrize("way", [by_pickle, by_cloudpickle, copy.deepcopy])
def test_comparisons_diagnoses_and_derivations_are_pickled(results, way):
    vi, draws = results["cavi"], results["gibbs"]
    comparison = pgm.compare(gibbs=draws, cavi=vi, X=NEW, y=LABELS[:5])
    diagnosis = pgm.diagnose(vi, num_replicates=0, num_draws=100)
    z = np.random.default_rng(4).normal(size=(6, 4, 1))
    calibration = Calibration(z=z, exact=np.stack([z, -z], axis=1), num_failed=0, num_unconverged=0)
    assert str(way(comparison)) == str(comparison)
    assert str(way(diagnosis)) == str(diagnosis)
    assert_same({"p": way(calibration).p}, {"p": calibration.p})
    derivation = pgm.derive(vi.model)
    assert str(way(derivation)) == str(derivation)
    assert way(derivation).augmentation == derivation.augmentation
    predictive = vi.predict(NEW)
    assert_same({"mean": way(predictive).mean}, {"mean": predictive.mean})


@pytest.mark.slow
def test_slow_results_are_pickled(results):
    for made in (
        pgm.fit(sampled_model(), X, LABELS),
        pgm.nuts(sampled_model(), X, LABELS, num_samples=6, num_warmup=6, num_chains=1),
    ):
        WithoutJax(io.BytesIO()).dump(made)
        assert_same(figures(by_pickle(made)), figures(made))
    diagnosis = pgm.diagnose(results["cavi"], num_replicates=3, num_draws=100)
    WithoutJax(io.BytesIO()).dump(diagnosis)
    assert str(by_pickle(diagnosis)) == str(diagnosis)


@pytest.mark.parametrize("name", some(["gibbs", "gibbs, sampled"], "gibbs"))
@pytest.mark.parametrize("way", [by_pickle, by_cloudpickle, copy.deepcopy])
def test_pickled_draws_extend_as_the_original_and_compile_nothing(results, name, way, caplog):
    expected = results[name].extend(3)
    with jax.log_compiles():
        longer = way(results[name]).extend(3)
    assert "jit(run_chunk)" not in caplog.text
    assert longer.num_samples == results[name].num_samples + 3
    assert np.array_equal(longer.latents, expected.latents)
    assert np.array_equal(longer.log_likelihood_trace, expected.log_likelihood_trace)


@pytest.mark.parametrize("name", ["cavi", "own formula", "local formula"])
def test_a_revived_model_shares_compiled_code(results, name):
    result = results[name]
    # Once more: programs may have been forgotten since.
    pgm.cavi(result.model, X, result.y)
    sizes = problem._condition.cache_size(), loop._run_block.cache_size()
    again = pgm.cavi(by_pickle(result.model), X, result.y)
    assert (problem._condition.cache_size(), loop._run_block.cache_size()) == sizes
    assert np.array_equal(again.mean, result.mean)


READER = """
import pickle, sys, jax
from tests.results.test_saving import figures
with open(sys.argv[1], "rb") as file:
    results = pickle.load(file)
expected = {name: figures(result) for name, result in results.items()}
longer = results["gibbs"].extend(3)
assert not jax.config.jax_enable_x64
with open(sys.argv[2], "wb") as file:
    pickle.dump((expected, longer.latents), file)
"""


@pytest.mark.slow
def test_pickles_have_the_same_figures_in_a_process_without_x64(results, expected, tmp_path):
    written, answer = tmp_path / "results.pickle", tmp_path / "answer.pickle"
    written.write_bytes(pickle.dumps(dict(results)))
    python("-c", READER, written, answer)
    there, latents = pickle.loads(answer.read_bytes())
    for name in RESULTS:
        assert_same(there[name], expected[name])
    assert np.array_equal(latents, results["gibbs"].extend(3).latents)


SCRIPT = """
import pickle, sys
import numpy as np
from joblib import Parallel, delayed
import pgmodels as pgm
from tests.results.test_saving import LABELS, NEW, X

@pgm.likelihood(support=pgm.Binary(), num_latents=1, mean=lambda y, f: pgm.sigmoid(f - 0.4),
                variance=lambda y, f: pgm.sigmoid(f - 0.4) * pgm.sigmoid(0.4 - f))
def shifted(y, f):
    return pgm.sigmoid(f - 0.4) ** y * pgm.sigmoid(0.4 - f) ** (1 - y)

def predicted(result):
    return result.predict(NEW).mean

if __name__ == "__main__":
    vi = pgm.cavi(pgm.Model(shifted(), pgm.GP(pgm.RBF(1.0, 1.0))), X, LABELS)
    here = predicted(vi)
    there = Parallel(n_jobs=2)(delayed(predicted)(vi) for _ in range(2))
    assert all(np.array_equal(here, other) for other in there), (here, there)
    with open(sys.argv[1], "wb") as file:
        pickle.dump((vi, here), file)
"""


@pytest.mark.slow
def test_formula_of_a_script_is_pickled_to_workers_and_other_programs(tmp_path):
    script, written = tmp_path / "script.py", tmp_path / "result.pickle"
    script.write_text(SCRIPT)
    python(script, written)
    vi, expected = pickle.loads(written.read_bytes())
    assert np.array_equal(vi.predict(NEW).mean, expected)


def test_a_formula_of_a_module_is_sent_by_its_name():
    assert by_pickle(own_counts) is own_counts
    for family in (own_counts, renamed_logit, pgm.Binomial):
        made, back = family(), by_cloudpickle(family())
        assert back.function is made.function
        assert back.conditional_mean is made.conditional_mean
        assert back.conditional_variance is made.conditional_variance
        assert b"cloudpickle" not in pickle.dumps(made)


def test_formula_that_cannot_be_pickled_is_refused_with_a_remedy():
    lock = threading.Lock()

    @pgm.likelihood(num_latents=1)
    def locked(y, f):
        with lock:
            return pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y)

    with pytest.raises(pickle.PicklingError, match=r"locked.*lock.*top level of an importable module"):
        pickle.dumps(pgm.Model(locked(), gp()))
    assert copy.deepcopy(locked()) == locked()


def test_errors_with_draws_are_pickled(results):
    back = by_pickle(pgm.SamplingError("not finite", results["gibbs"]))
    assert str(back) == "not finite"
    assert np.array_equal(back.draws.mean, results["gibbs"].mean)


class Holder(Picklable):
    pass


@pytest.mark.parametrize("way", WAYS)
def test_arrays_come_back_as_they_were(way):
    holder = Holder()
    with jax.enable_x64(True):
        holder.values = {"z": jnp.array([0.1, 0.2]), "a": [jnp.asarray(1), jnp.asarray(0.1), None, "text"]}
        holder.half = jnp.ones(3, jnp.float16)
    holder.keys = jax.random.split(jax.random.key(3), 2), jax.random.key(4, impl="rbg"), jax.random.PRNGKey(5)
    back = way(holder)
    assert list(back.values) == ["z", "a"]
    assert back.values["a"][2:] == [None, "text"]
    for before, after in zip(jax.tree.leaves(vars(holder)), jax.tree.leaves(vars(back)), strict=True):
        if isinstance(before, jax.Array):
            assert isinstance(after, jax.Array)
            # Shape, type, and whether that is weak: what compiled code goes by.
            assert after.aval == before.aval
    assert np.array_equal(back.values["z"], holder.values["z"])
    drawn = [[jax.random.bits(key, (3,)) for key in (keys[0][1], *keys[1:])] for keys in (holder.keys, back.keys)]
    assert np.array_equal(*drawn)


def test_doubles_inside_functions_and_priors_stay_doubles():
    holder = Holder()
    with jax.enable_x64(True):
        holder.prior = dist.Gamma(jnp.array([0.1, 0.3]), 2.0)
        holder.kernel = pgm.GP(exponential(jnp.asarray(0.7))).kernel
    sent = pickle.dumps(holder)
    # As in another process, which has not met them.
    precision._objects.clear()
    back = pickle.loads(sent)
    assert back.prior is not holder.prior
    assert back.prior.concentration.dtype == np.float64
    assert np.array_equal(back.prior.concentration, holder.prior.concentration)
    with jax.enable_x64(True):
        assert np.array_equal(back.kernel(X, NEW), holder.kernel(X, NEW))


def every_module():
    for module in pkgutil.walk_packages(pgm.__path__, "pgmodels."):
        importlib.import_module(module.name)
    pending = [eqx.Module]
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if cls.__module__.startswith("pgmodels."):
            yield cls


def test_every_pytree_of_the_package_is_portable():
    classes = list(every_module())
    assert len(classes) > 20
    assert [cls for cls in classes if not issubclass(cls, Module)] == []
