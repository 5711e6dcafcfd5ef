"""Programs in the cache folder: the right one or none, whatever happens to the folder."""

import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import pgmodels as pgm
from pgmodels.runtime import jit, program_store
from pgmodels.runtime.jit import compiled, supported_options

X = np.linspace(-1.0, 2.0, 7)
COMPILATION = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    place = tmp_path / "programs"
    monkeypatch.setenv("PGMODELS_CACHE", str(place))
    monkeypatch.setattr(program_store, "_num_writes", 0)
    return place


@pytest.fixture(autouse=True)
def _without_the_cache_of_the_tests(monkeypatch):
    """JAX's own, in place of which programs are stored."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    place = jax.config.jax_compilation_cache_dir
    _keep_programs_of_jax_in(None)
    yield
    _keep_programs_of_jax_in(place)


def _keep_programs_of_jax_in(place):
    jax.config.update("jax_compilation_cache_dir", place)
    compilation_cache.reset_cache()


@pytest.fixture
def compilations():
    supported_options()
    events = []

    def listen(event, seconds, **_):
        if event == COMPILATION:
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


def program(factor=2.0, **options):
    """A program of one and the same name."""

    def scaled(x):
        K = jnp.eye(len(x)) + x[:, None] * x
        return factor * jnp.linalg.solve(K, x), jnp.linalg.cholesky(K)

    return compiled(scaled, **options)


def expected(factor=2.0):
    K = np.eye(len(X)) + X[:, None] * X
    return factor * np.linalg.solve(K, X), np.linalg.cholesky(K)


def check(value, factor=2.0):
    for one, other in zip(value, expected(factor), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def files(folder):
    return sorted(folder.glob("*.program"))


def test_a_stored_program_is_not_compiled(folder, compilations):
    check(program()(X))
    assert len(compilations) == len(files(folder)) == 1
    stored = program()
    for _ in range(2):
        check(stored(X))
    assert stored.cache_size() == len(compilations) == 1
    assert folder.stat().st_mode & 0o777 == 0o700 or os.name == "nt"
    assert [path.suffix for path in folder.iterdir()] == [".program"]


SCRIPT = """
import jax
from tests.runtime.test_program_store import COMPILATION, X, check, program

calls = []
jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: calls.append(event))
stored = program()
check(stored(X))
print(calls.count(COMPILATION))
"""


@pytest.mark.slow
def test_a_later_process_compiles_nothing_whoever_writes_at_the_same_time(folder):
    def start():
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    first = [start(), start()]
    # One of the compilations is for the question which options XLA knows.
    assert {process.communicate() for process in first} <= {("2\n", ""), ("1\n", "")}
    assert [process.returncode for process in first] == [0, 0]
    assert len(files(folder)) == 1
    assert start().communicate() == ("1\n", "")


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: data[:50] + b"?" + data[51:], lambda data: b""]
)
def test_a_damaged_file_is_replaced(folder, compilations, damage):
    program()(X)
    (path,) = files(folder)
    intact = path.read_bytes()
    path.write_bytes(damage(intact))
    check(program()(X))
    assert len(compilations) == 2
    check(program()(X))
    assert len(compilations) == 2


def test_a_file_that_xla_does_not_load_is_asked_for_once(folder, compilations, monkeypatch):
    program()(X)
    with monkeypatch.context() as patch:
        asked = []

        def fails(*arguments):
            asked.append(arguments)
            raise jax.errors.JaxRuntimeError("machine features differ")

        patch.setattr(program_store, "deserialize_and_load", fails)
        for count in (2, 3):
            check(program()(X))
            assert len(compilations) == count
    assert len(asked) == 1


def test_a_loaded_program_that_fails_is_compiled(folder, compilations, monkeypatch):
    """As one does that JAX's own cache has loaded before it was stored."""
    program()(X)
    with monkeypatch.context() as patch:
        load = program_store.deserialize_and_load

        def loaded(*arguments):
            result = load(*arguments)

            def fails(*arguments):
                raise jax.errors.JaxRuntimeError("NOT_FOUND: Function")

            result._executable.unsafe_call = fails
            return result

        patch.setattr(program_store, "deserialize_and_load", loaded)
        again = program()
        check(again(X)), check(again(X))
    assert len(compilations) == 2
    check(program()(X))
    assert len(compilations) == 3
    (mark,) = folder.glob("*.failed")
    os.utime(mark, (0, time.time() - 8 * 86400))
    check(program()(X))
    assert len(compilations) == 3


def test_nothing_is_stored_where_jax_stores(folder, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "of_jax"))
    check(program()(X))
    assert not folder.exists()


def test_functions_run_without_compilation(folder):
    with jax.disable_jit():
        check(program()(X))
    assert not folder.exists()


def test_a_folder_that_cannot_be_used_is_not(tmp_path, monkeypatch, compilations):
    file, shared = tmp_path / "file", tmp_path / "shared"
    file.touch()
    shared.mkdir()
    shared.chmod(0o777)
    for place in (file, file / "below", shared):
        monkeypatch.setenv("PGMODELS_CACHE", str(place))
        check(program()(X))
    assert len(compilations) == 3
    assert not list(shared.iterdir())


def test_a_read_only_folder_is_read(folder, compilations):
    program()(X)
    folder.chmod(0o500)
    check(program()(X))
    assert len(compilations) == 1
    check(program(3.0)(X), 3.0)
    folder.chmod(0o700)


def test_zero_turns_it_off(tmp_path, monkeypatch, compilations):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PGMODELS_CACHE", "0")
    check(program()(X))
    assert program_store.folder() is None
    assert not list(tmp_path.iterdir())
    monkeypatch.delenv("PGMODELS_CACHE")
    if sys.platform == "linux":
        assert program_store.folder() == tmp_path / "pgmodels" / "programs"
    assert len(compilations) == 1


def test_functions_of_one_name_with_other_constants_have_programs_of_their_own(folder, compilations):
    for factor in (2.0, 3.0, jnp.float32(3.0) * 1.0000001, np.arange(7.0), np.arange(7.0) + 1e-6 * (np.arange(7) == 5)):
        check(program(factor)(X), np.asarray(factor))
    assert len(compilations) >= len(files(folder)) == 5


def formula(scale):
    """Likelihoods of one name and with the same symbols."""

    @pgm.likelihood
    def labels(y, f):
        return pgm.sigmoid(scale * f) ** y * pgm.sigmoid(-scale * f) ** (1 - y)

    return pgm.Model(labels(), pgm.GP(pgm.RBF(2.0, 1.0)))


@pytest.mark.slow
def test_models_whose_formulas_have_one_name_have_results_of_their_own(folder, monkeypatch):
    y = (X > 0.3).astype(int)

    def means():
        jax.clear_caches()
        return [pgm.cavi(formula(scale), X[:, None], y).mean for scale in (1.0, 2.0)]

    stored = [means(), means()]
    monkeypatch.setenv("PGMODELS_CACHE", "0")
    expected = means()
    for one in stored:
        np.testing.assert_array_equal(one, expected)
    assert np.max(np.abs(expected[0] - expected[1])) > 0.05


def test_a_program_depends_on_its_options_and_on_which_arguments_it_uses(folder, compilations):
    """The lowered text of the last three is the same."""
    check(program(optimise=False)(X))
    check(program(on_one_thread=True)(X))
    check(program()(X))
    np.testing.assert_array_equal(compiled(lambda x, y: 2.0 * x)(X, X + 1.0), np.float32(2.0 * X))
    np.testing.assert_array_equal(compiled(lambda x, y: 2.0 * y)(X, X + 1.0), np.float32(2.0 * (X + 1.0)))
    result = compiled(lambda y: {"y": 2.0 * y})(X + 2.0)
    np.testing.assert_array_equal(result["y"], np.float32(2.0 * (X + 2.0)))
    assert len(compilations) == len(files(folder)) == 6
    assert compiled(lambda x: x + 1.0)(1.0).weak_type
    assert not compiled(lambda x: x + 1.0)(np.float32(1.0)).weak_type


def test_a_function_with_a_callback_is_not_stored(folder, compilations):
    for addend in (1.0, 2.0):

        def host(x, addend=addend):
            return np.asarray(x) + np.float32(addend)

        called = compiled(lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
        np.testing.assert_allclose(called(X), X + addend, rtol=1e-6)
    assert len(compilations) == 2
    assert not files(folder)


def test_a_function_is_traced_once(folder, compilations):
    traced = []

    @compiled
    def double(x):
        traced.append(x.shape)
        return 2.0 * x

    assert double.shapes(X).shape == (7,)
    double(X), double(X), double(X[:3]), double(X[:3])
    assert traced == [(7,), (3,)]
    assert double.cache_size() == 2
    assert len(compilations) == len(files(folder)) == 2


def test_calls_cost_what_they_cost_without_a_store(folder, monkeypatch):
    """Counted in calls of Python's functions: JAX finds a program without any."""

    def num_calls(function):
        for x in (X, X[:3], X):  # looked up, too
            function(x)
        events = []
        sys.setprofile(lambda frame, event, _: events.append(event))
        function(X)
        sys.setprofile(None)
        return len(events)

    program()(X)
    stored, first = num_calls(program()), num_calls(program(3.0))
    monkeypatch.setenv("PGMODELS_CACHE", "0")
    assert stored == first == num_calls(program())


def test_stored_programs_are_counted_and_forgotten_where_there_are_too_many(folder, monkeypatch, compilations):
    monkeypatch.setattr(jit, "MAX_PROGRAMS", jit.num_programs() + 3)
    double = compiled(lambda x: 2.0 * x)
    for size in (1, 2, 3):
        double(np.ones(size))
    assert double.cache_size() == 3
    double(np.ones(4))
    assert double.cache_size() == jit.num_programs() == 1
    double(np.ones(1))
    assert len(compilations) == 4


def test_an_error_of_the_function_is_raised_as_it_is(folder):
    def failing(x):
        raise ValueError("no")

    with pytest.raises(ValueError, match=r"^no\b") as caught:
        compiled(failing)(X)
    assert caught.value.__context__ is None


def test_what_was_used_least_recently_is_removed_beyond_the_bound(folder, monkeypatch):
    for factor in (1.0, 2.0, 3.0):
        program(factor)(X)
        for path in files(folder):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 100.0))
    one = files(folder)[0].stat().st_size
    program(1.0)(X)  # used now
    monkeypatch.setattr(program_store, "MAX_BYTES", int(2.5 * one))
    monkeypatch.setattr(program_store, "_num_writes", 0)
    program(4.0)(X)
    assert len(files(folder)) == 2
    compiled_again = len(files(folder))
    program(1.0)(X)
    assert len(files(folder)) == compiled_again
    program(2.0)(X)
    assert len(files(folder)) == compiled_again + 1


CPUINFO = """processor\t: {core}
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC
cpu MHz\t\t: {speed}
core id\t\t: {core}
apicid\t\t: {core}
cpuid level\t: 16
flags\t\t: fpu sse2 pcid cpuid {more}rdpid
bogomips\t: {speed}
"""


def test_processors_differ_by_their_instruction_sets_alone():
    def lasting(core=0, speed=2600.0, more="avx512f "):
        return program_store._lasting(CPUINFO.format(core=core, speed=speed, more=more))

    assert lasting() == lasting(core=3, speed=3100.0)
    assert lasting() != lasting(more="")


@pytest.mark.parametrize("value", ["~nobody-of-this-name/programs", None])
def test_a_user_without_a_home_stores_nothing(value, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PGMODELS_CACHE", raising=False)
    if value is None:
        monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: Path("~/.cache/pgmodels"))
    else:
        monkeypatch.setenv("PGMODELS_CACHE", value)
        monkeypatch.setattr(Path, "expanduser", fail)
    assert program_store.folder() is None
    assert not program_store.is_on()
