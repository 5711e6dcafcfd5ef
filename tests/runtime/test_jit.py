"""Programs compiled with the package's options give the numbers of the same operations run one by one."""

import ast
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax.scipy.linalg import solve_triangular

import pgmodels as pgm
from pgmodels.kernels.kernel import scaled_squared_distance
from pgmodels.parameters.parameter import bare
from pgmodels.runtime import jit
from pgmodels.runtime.jit import clear_programs, compiled
from tests.processes import ROOT, python
from tests.registry import CASES

RNG = np.random.default_rng(4)
X = RNG.uniform(-1.5, 1.5, (32, 2))
# Two new rows, two that are also data, and one of the new ones again.
X_NEW = np.vstack([RNG.uniform(-2.0, 2.0, (2, 2)), X[[4, 11]]])
X_NEW = np.vstack([X_NEW, X_NEW[:1]])
HALF = RNG.normal(size=(32, 32))
LOWER = np.linalg.cholesky(np.eye(32) + HALF @ HALF.T / 32)
KERNELS = [
    pgm.RBF(1.4, np.array([0.6, 1.7])),
    pgm.Matern12(1.4, np.array([0.6, 1.7])),
    pgm.Matern32(1.4, np.array([0.6, 1.7])),
    pgm.Matern32(1.4, 0.8),
    pgm.Matern52(1.4, np.array([0.6, 1.7])),
]


def as_installed(function):
    """With XLA's own options, which the default tests leave: as NumPyro's programs and a user's are compiled."""
    options = {"xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True}
    supported = jit.supported_options()
    return jax.jit(function, compiler_options={name: options[name] for name in options if name in supported})


OURS = [compiled, partial(compiled, optimise=False), partial(compiled, on_one_thread=True)]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("compile_", [*OURS, as_installed])
def test_covariances_of_a_row_with_itself_that_are_used_twice(compile_, kernel):
    """XLA gets the half of a variance wrong where a choice in another one gives a distance."""
    check_twice_used(compile_, kernel)


class Chosen(eqx.Module):
    """Matern32 by a choice in a choice: what the options are for."""

    lengthscale: np.ndarray

    def __call__(self, X, Z):
        squared = 3.0 * scaled_squared_distance(X, Z, jnp.asarray(self.lengthscale))
        positive = squared > 0.0
        s = jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1.0)), 0.0)
        return 1.4 * ((1.0 + s) * jnp.exp(-s))


@pytest.mark.parametrize("compile_", OURS)
def test_a_choice_in_a_choice(compile_):
    check_twice_used(compile_, Chosen(np.array([0.6, 1.7])))


def check_twice_used(compile_, kernel):

    def both(kernel, X, row_mask, root, X_new):
        K = row_mask[:, None] * kernel(X, X_new)
        return K, jnp.sum(solve_triangular(root, row_mask[:, None] * K, lower=True) ** 2, axis=0)

    with jax.enable_x64(True):
        values = jax.tree.map(jnp.asarray, bare(kernel))
        K, explained = compile_(both)(values, *map(jnp.asarray, (X, np.ones(32), LOWER, X_NEW)))
        expected = np.asarray(kernel(jnp.asarray(X), jnp.asarray(X_NEW)))
    np.testing.assert_allclose(K, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(explained, np.sum(np.linalg.solve(LOWER, expected) ** 2, axis=0), rtol=1e-10)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, OSError])
def test_an_interruption_of_a_host_function_is_one_of_the_program(raised):
    def host(x):
        raise raised

    program = compiled(lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct((), x.dtype), x))
    with pytest.raises((KeyboardInterrupt, RuntimeError, ValueError)) as caught:
        jax.block_until_ready(program(jnp.zeros(())))
    assert (caught.type is KeyboardInterrupt) == (raised is KeyboardInterrupt)


def test_the_package_compiles_in_one_place():
    """Where options hold that JAX alone would not give; the check of an installation needs what JAX alone gives."""
    package = Path(pgm.__file__).parent
    names = {"jit", "filter_jit", "pmap", "filter_pmap"}
    files = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            used = isinstance(node, ast.Attribute) and node.attr in names
            imported = isinstance(node, ast.ImportFrom) and names & {alias.name for alias in node.names}
            if used or imported:
                files.add(path.relative_to(package).as_posix())
    assert files == {"runtime/jit.py"}


def test_unsupported_options_of_xla_are_left_out(monkeypatch):
    every = jit.supported_options()
    monkeypatch.setitem(jit._DEFAULT, "xla_invented_by_a_test", 3)
    jit.supported_options.cache_clear()
    assert jit.supported_options() == every
    assert compiled(lambda x: x + 1.0)(1.5) == 2.5
    jit.supported_options.cache_clear()
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_invented_by_a_test"):
        jax.jit(lambda x: x, compiler_options={"xla_invented_by_a_test": 3})(1.0)


def test_what_is_compiled_can_be_a_part_of_what_jax_traces():
    square = compiled(lambda x, power: x**power, static_argnames="power")
    assert jax.jit(lambda x: square(x, power=3) + 1.0)(2.0) == 9.0
    assert compiled(lambda x: square(x, power=3) + 1.0)(2.0) == 9.0
    assert jax.grad(square)(2.0, power=3) == 12.0
    np.testing.assert_array_equal(jax.vmap(partial(square, power=2))(jnp.arange(3.0)), [0.0, 1.0, 4.0])
    assert square.cache_size() == 0
    assert square(2.0, power=3) == 8.0
    assert square.cache_size() == 1


def test_programs_are_forgotten_where_there_are_too_many(monkeypatch):
    traced = []

    @compiled
    def double(x):
        traced.append(x.shape)
        return 2.0 * x

    monkeypatch.setattr(jit, "MAX_PROGRAMS", jit.num_programs() + 3)
    for size in (1, 2, 3, 1, 2, 3):
        np.testing.assert_array_equal(double(np.ones(size)), np.full(size, 2.0))
    assert traced == [(1,), (2,), (3,)]
    for size in (4, 1):
        np.testing.assert_array_equal(double(np.ones(size)), np.full(size, 2.0))
    assert traced == [(1,), (2,), (3,), (4,), (1,)]
    assert jit.num_programs() == 1


def test_programs_of_the_users_own_functions_stay_compiled_where_there_are_too_many_of_the_package(monkeypatch):
    traced, compilations = [], []

    @jax.jit
    def of_the_user(x):
        traced.append(x.shape)
        return jnp.linalg.cholesky(jnp.eye(len(x)) + x[:, None] * x)

    program = compiled(lambda x: 3.0 * x)
    inputs = [jnp.ones(size) for size in (2, 3)]
    for x in inputs:
        of_the_user(x)
    monkeypatch.setattr(jit, "MAX_PROGRAMS", 0)
    np.testing.assert_array_equal(program(np.ones(2)), [3.0, 3.0])
    assert jit.num_programs() == 0

    def listen(event, seconds, **_):
        compilations.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for x in inputs:
            of_the_user(x)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compilations == []
    assert traced == [(2,), (3,)]


def test_a_program_that_jax_has_forgotten_is_compiled_again():
    square = compiled(lambda x: x**2)
    assert square(3.0) == 9.0
    jax.clear_caches()
    assert square(3.0) == 9.0
    square.clear()
    assert square.cache_size() == 0
    assert square(3.0) == 9.0
    assert square.cache_size() == 1


def test_a_call_that_fails_while_it_is_traced_is_not_counted():
    @compiled
    def raises(x):
        raise OSError

    with pytest.raises(OSError):
        raises(1.0)
    assert raises.cache_size() == 0


def test_shapes_of_a_call_are_those_of_its_one_program():
    traced = []

    @compiled
    def doubled(x):
        traced.append(x.shape)
        return 2.0 * x

    assert doubled.shapes(np.ones(3)).shape == (3,)
    np.testing.assert_array_equal(doubled(np.ones(3)), [2.0, 2.0, 2.0])
    assert traced == [(3,)]
    assert doubled.cache_size() == 1


def test_fits_of_sizes_in_turn_compile_nothing_again():
    """As many programs as two data sets need are far from the bound."""
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 0.8)))
    for size in (10, 32):
        pgm.cavi(model, X[:size], X[:size, 0] > 0)
    before = jit.num_programs()
    assert before < jit.MAX_PROGRAMS / 2
    for size in (10, 32) * 2:
        pgm.cavi(model, X[:size], X[:size, 0] > 0)
    assert jit.num_programs() == before


# How many programs an engine's first call compiles: most of its time goes there.


COUNT = """
import jax
import numpy as np
import pgmodels as pgm
from pgmodels.runtime.jit import supported_options

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 2))
y = (X[:, 0] + rng.normal(size=60) > 0).astype(int)
model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(4.0, 1.5)))
sparse = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(4.0, 1.5), form=pgm.Inducing(10)))
calls = {
    "cavi": lambda: pgm.cavi(model, X, y),
    "fit": lambda: pgm.fit(model, X, y, correct=False),
    "fit, corrected": lambda: pgm.fit(model, X, y),
    "svi": lambda: pgm.svi(sparse, X, y),
    "gibbs": lambda: pgm.gibbs(model, X, y, num_samples=20, num_warmup=20, num_chains=2),
}
supported_options()  # the question which options XLA knows is asked option by option where it lacks one
events = []
jax.monitoring.register_event_duration_secs_listener(lambda event, seconds, **_: events.append(event))
for name, call in calls.items():
    # As in a new process.
    jax.clear_caches()
    events.clear()
    call()
    print(events.count("/jax/core/compile/backend_compile_duration"), name)
"""

# As counted with jax 0.10.1. Five of the programs of a corrected fit correct its result. What svi ends with on all rows
# is cavi's: a start and a stretch of steps.
COUNTED = {"cavi": 6, "fit": 6, "fit, corrected": 11, "svi": 11, "gibbs": 8}
# For JAX's own small programs, of keys and of operations between programs, which differ from release to release.
SLACK = 1


def test_programs_of_a_first_call():
    lines = python("-c", COUNT).splitlines()
    counts = {name: int(count) for count, name in (line.split(maxsplit=1) for line in lines)}
    assert counts.keys() == COUNTED.keys()
    beyond = {name: count for name, count in counts.items() if count > COUNTED[name] + SLACK}
    assert not beyond


def simulated(seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"x": rng.normal(size=43), "g": np.resize(list("abcdef"), 43)})
    return frame.assign(y=3.0 * seed + frame["x"] + np.resize(rng.normal(size=6), 43) + seed * rng.normal(size=43))


def test_other_data_of_equal_shapes_compile_nothing(compilations):
    """The default priors of formulas depend on the data: their numbers are no part of the programs."""
    # None is cleared between the fits.
    clear_programs()
    counts = []
    for seed in (1, 2):
        compilations.clear()
        pgm.formula("y ~ x + (1|g)", simulated(seed)).fit(progress=False).summary()
        counts.append(len(compilations))
    assert counts[0] > 0
    assert counts[1] == 0


# The default tests compile cheaply (conftest.py): every engine agrees to rounding with programs as users compile them.


PROGRAM = "import json, sys; from tests.runtime import test_jit as t; print(json.dumps(getattr(t, sys.argv[1])()))"


CASE = CASES["bernoulli"]


def approximations():
    """Moments of a few latents, by every engine that is not a sampler. Other tests compile some of it."""
    model, (X, y) = CASE.unequal(), CASE.data(12, seed=3)
    vi = pgm.cavi(model, X, y)
    results = {
        "cavi": vi,
        "gaussian_vi": pgm.gaussian_vi(model, X, y),
        "correct": pgm.correct(vi),
        "fit": pgm.fit(model, X, y),
        "svi": pgm.svi(CASE.unequal(form=pgm.Inducing(X[:8])), X, y, max_epochs=50),
    }
    return {name: [*result.mean.ravel(), *result.variance.ravel()] for name, result in results.items()}


def draws():
    """The first draws of a few latents, by the samplers, and of hyperparameters."""
    kernel, (X, y) = pgm.RBF(dist.LogNormal(0.5, 0.3), 0.8), CASE.data(6, seed=3)
    sampled = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=0.3))
    few = {"num_samples": 2, "num_warmup": 0, "num_chains": 2, "seed": 9, "progress": False}
    results = {
        "gibbs": pgm.gibbs(CASE.model(), X, y, **few),
        "gibbs, sampled": pgm.gibbs(sampled, X, y, **few),
        "nuts": pgm.nuts(CASE.model(), X, y, **few),
    }
    return {name: result.latents.ravel().tolist() for name, result in results.items()}


# Half a minute of compilation; .ci/nightly also runs the default tests compiled as users' programs are.
@pytest.mark.slow
@pytest.mark.parametrize("figures", [approximations, draws])
def test_engines_agree_with_the_compilation_of_users(figures):
    flags = {"XLA_FLAGS", "JAX_TRACEBACK_IN_LOCATIONS_LIMIT"}
    environment = {name: value for name, value in os.environ.items() if name not in flags}
    command = [sys.executable, "-c", PROGRAM, figures.__name__]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8")
    assert run.returncode == 0, run.stderr
    theirs, ours = json.loads(run.stdout), figures()
    assert list(theirs) == list(ours)
    for name, values in ours.items():
        # Rounding, and where the iterations of an optimiser stop.
        np.testing.assert_allclose(theirs[name], values, rtol=1e-6, atol=1e-8, err_msg=name)
