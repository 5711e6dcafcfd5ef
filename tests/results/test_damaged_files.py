"""Saved results and checkpoints that are damaged, of another kind or malicious are refused, using little memory."""

import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
import zipfile
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import pgmodels as pgm
from pgmodels.inference import gibbs as sampler
from pgmodels.inference import svi as svi_module
from pgmodels.runtime import io as array_files

X = np.linspace(-1.0, 2.0, 12)[:, None]
Y = (np.arange(12) % 3 == 0).astype(float)
GP = pgm.GP(pgm.RBF(2.0, 1.0), form=pgm.Inducing(4))
MODEL = pgm.Model(pgm.Bernoulli(), GP)
GOLDEN = Path(__file__).parent / "golden"
# What the file of another array declares, and what the bomb unpacks to.
HUGE, MEGABYTES = 10**9, 200


def gibbs(folder, model=MODEL, y=Y, **options):
    options = {"num_samples": 6, "num_warmup": 4, "num_chains": 2, "seed": 4} | options
    return pgm.gibbs(model, X, y, checkpoint=folder, **options)


def svi(folder, model=MODEL, y=Y, **options):
    options = {"batch_size": 4, "max_epochs": 100, "tolerance": 1e-9, "seed": 4} | options
    return pgm.svi(model, X, y, checkpoint=folder, **options)


ENGINES = {"gibbs": gibbs, "svi": svi}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of each engine, and a file of a result."""
    folder = tmp_path_factory.mktemp("saved")
    gibbs(folder / "gibbs")
    with pytest.warns(pgm.ConvergenceWarning):
        svi(folder / "svi")
    pgm.cavi(MODEL, X, Y).save(folder / "result.npz")
    return folder


@pytest.fixture(scope="module")
def bomb(tmp_path_factory):
    """A file of zeros, packed."""
    path = tmp_path_factory.mktemp("bomb") / "bomb.npz"
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (MEGABYTES * 2**17,)})
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("leaf_0.npy", "w") as entry,
    ):
        entry.write(head.getvalue())
        for _ in range(MEGABYTES):
            entry.write(bytes(2**20))
    assert path.stat().st_size < 2**20
    return path


def archived(entries):
    """The bytes of a zip archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


def stored(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def announced(shape):
    """An array of 64 bytes whose header says another shape."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(64)


def overstated(content):
    """An archive whose directory says that its first entry has more bytes than the file."""
    turned, at = bytearray(content), content.index(b"PK\x01\x02")
    for place in (20, 24):
        turned[at + place : at + place + 4] = HUGE.to_bytes(4, "little")
    return bytes(turned)


def turned(content):
    other = bytearray(content)
    other[len(content) // 3] ^= 1
    return bytes(other)


DAMAGES = {
    "empty": lambda content: b"",
    "a byte": lambda content: content[:1],
    "the beginning": lambda content: content[:100],
    "half": lambda content: content[: len(content) // 2],
    "all but a byte": lambda content: content[:-1],
    "random": lambda content: np.random.default_rng(0).bytes(500),
    "text": lambda content: b"some text",
    "a pickle": lambda content: pickle.dumps([1.0]),
    "a turned bit": turned,
    "npy": lambda content: announced((8,)),
    "an empty archive": lambda content: archived({}),
    "an archive of text": lambda content: archived({"notes.txt": "some text"}),
    "an archive of no array": lambda content: archived({"leaf_0.npy": "some text"}),
    "a long header": lambda content: archived({"leaf_0.npy": b"\x93NUMPY\x02\x00" + b"\xff" * 4 + b"(" * 90_000}),
    "other arrays": lambda content: stored(X=X),
    "objects": lambda content: stored(leaf_0=np.array([None, {}])),
    "an announcement": lambda content: archived({"leaf_0.npy": announced((HUGE,))}),
    "a negative announcement": lambda content: archived({"leaf_0.npy": announced((-1, -8))}),
    "an overstatement": overstated,
    "a document that is a list": lambda content: stored(pgmodels=np.frombuffer(b"[1]", np.uint8)),
    "a deep document": lambda content: stored(pgmodels=np.frombuffer(b"[" * 100_000, np.uint8)),
    "a document of nothing": lambda content: stored(pgmodels=np.frombuffer(b"{}", np.uint8)),
}
# The files of checkpoints, and the file that ``load`` reads.
FILES = ["gibbs/index.npz", "gibbs/state-*.npz", "gibbs/draws-000000.npz", "svi/svi.npz", "result.npz"]


def copied(saved, folder, pattern):
    """A copy of what is saved, and the path of one file in it."""
    shutil.copytree(saved, folder / "copy")
    (path,) = (folder / "copy").glob(pattern)
    return path


def assert_refused(path, words=""):
    """That what reads the file says which one it is, what is wrong and what to do."""
    if path.name == "result.npz":
        with pytest.raises(ValueError, match=rf"(?s){path.name}.*{words}.*[Pp]ass a") as caught:
            pgm.load(path)
    else:
        with pytest.raises(ValueError, match=rf"(?s)^checkpoint: .*{path.name}.*{words}.*delete the folder") as caught:
            ENGINES[path.parent.name](path.parent)
        assert "name another" in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("pattern", FILES)
def test_what_is_no_such_file_is_refused(saved, tmp_path, pattern, damage, monkeypatch):
    # Neither file nor message is so long that reading it takes what it announces.
    path = copied(saved, tmp_path, pattern)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    monkeypatch.setattr(pickle, "load", None)
    assert_refused(path, {"objects": "pickled objects", "an announcement": "needs 8000000000"}.get(damage, ""))


@pytest.mark.parametrize("pattern", FILES)
def test_a_file_that_cannot_be_read_is_refused(saved, tmp_path, pattern, monkeypatch):
    path = copied(saved, tmp_path, pattern)
    refused, original = [], io.open

    def opened(file, *arguments, **options):
        if str(file) == str(path):
            refused.append(file)
            raise PermissionError(13, "Permission denied")
        return original(file, *arguments, **options)

    monkeypatch.setattr(io, "open", opened)
    monkeypatch.setattr("builtins.open", opened)
    assert_refused(path, "Permission denied")
    assert refused


@pytest.mark.parametrize("pattern", FILES)
def test_a_bomb_is_refused_before_it_is_unpacked(saved, tmp_path, pattern, bomb):
    path = copied(saved, tmp_path, pattern)
    shutil.copy(bomb, path)
    with pytest.raises(ValueError, match="compressed"):
        read_in_little_memory(path)
    assert_refused(path, "is compressed")
    for damage in ("an announcement", "an overstatement"):
        path.write_bytes(DAMAGES[damage](stored(leaf_0=X)))
        with pytest.raises(ValueError, match="damaged"):
            read_in_little_memory(path)


def read_in_little_memory(path):
    tracemalloc.start()
    try:
        array_files.read_arrays(path)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**20


def changes(arrays):
    """Every way in which one array of some is another, by a name."""
    for name, array in arrays.items():
        if name == "pgmodels":
            continue
        yield f"without {name}", {n: a for n, a in arrays.items() if n != name}
        yield f"{name} longer", arrays | {name: np.append(array, 1.0)}
        yield f"{name} with an axis", arrays | {name: array[None]}
        yield f"{name} in single precision", arrays | {name: array.astype(np.float32)}
    yield "more", arrays | {"more": X}


@pytest.mark.parametrize("pattern", FILES[1:])
def test_arrays_of_other_shapes_and_types_are_refused(saved, tmp_path, pattern):
    path = copied(saved, tmp_path, pattern)
    with np.load(path) as archive:
        original = dict(archive)
    for what, arrays in changes(original):
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match="but should be"):
            array_files.read_arrays(path)
        assert what
    assert_refused(path, "more is of type .*, but should be missing")


@pytest.mark.parametrize(("pattern", "prefix"), [("gibbs/state-*.npz", ""), ("svi/svi.npz", "states.full.")])
def test_a_state_whose_document_goes_with_its_wrong_arrays_is_refused(saved, tmp_path, pattern, prefix):
    path = copied(saved, tmp_path, pattern)
    document, arrays = array_files.read_arrays(path)
    for number, other in [(1, np.zeros(7)), (2, np.zeros((3, 3), np.float32))]:
        array_files.write_arrays(path, document, arrays | {f"{prefix}leaves.{number}": other})
        assert_refused(path, f"array {number} of the state is of type .* and should be")
    array_files.write_arrays(path, document, {n: a for n, a in arrays.items() if n != f"{prefix}leaves.0"})
    assert_refused(path, "leaves.0")
    state = document["values"]["dict"]
    for name in prefix.split(".")[:-1]:
        state = state[name]["dict"]
    state["leaves"] = state["leaves"][1:]
    array_files.write_arrays(path, document, arrays)
    assert_refused(path, "arrays of the state, and should have")


DOCUMENTS = {
    "gibbs/index.npz": [
        {"number": 9},
        {"number": -5},
        {"number": "ten"},
        {"state": "../state-000000010.npz"},
        {"parts": ["../draws-000000.npz"]},
        {"parts": []},
        {"parts": ["draws-000000.npz", "draws-000001.npz"]},
        {"parts": ["draws-000000.npz", "draws-000000.npz"]},
        {"failed_fits": 3},
        {"format": 8},
        {"format": None},
        {"kind": "a shopping list"},
        {"fingerprint": None},
        {"fingerprint": "0" * 64},
    ],
    "svi/svi.npz": [
        {"format": 5},
        {"kind": "a checkpoint of gibbs"},
        {"num_steps": "two"},
        {"states": {"dict": {}}},
        {"states": {"dict": {"full": {"dict": {"learning": 0.1}}}}},
        {"states": {"dict": {"half": {"dict": {}}}}},
        {"states": {"class": "Model", "fields": {}}},
        {"starts": 3},
        {"fingerprint": "0"},
    ],
}


@pytest.mark.parametrize(("file", "change"), [(file, change) for file in DOCUMENTS for change in DOCUMENTS[file]])
def test_a_checkpoint_whose_document_does_not_fit_is_refused(saved, tmp_path, file, change):
    path = copied(saved, tmp_path, file)
    document, arrays = array_files.read_arrays(path)
    (name,) = change
    entries = document if name in document else document["values"]["dict"]
    entries |= change
    array_files.write_arrays(path, document, arrays)
    with pytest.raises(ValueError, match=rf"^checkpoint: .*copy/{path.parent.name}.*delete the folder"):
        ENGINES[path.parent.name](path.parent)
    del entries[name]
    array_files.write_arrays(path, document, arrays)
    assert_refused(path)


OTHER_RUNS = [
    ({"model": pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0 + 1e-9, 1.0), form=pgm.Inducing(4)))}, "model"),
    ({"y": 1.0 - Y}, "data"),
    ({"seed": 5}, "seed"),
    ({"seed": jax.random.key(4, impl="rbg")}, "seed"),
]


@pytest.mark.parametrize(
    ("engine", "change", "part"),
    [
        *(("gibbs", *other) for other in OTHER_RUNS),
        *(("svi", *other) for other in OTHER_RUNS),
        ("gibbs", {"num_warmup": 5}, "sizes"),
        ("gibbs", {"num_chains": 3}, "sizes"),
        ("gibbs", {"keep": "moments"}, "sizes"),
        ("svi", {"model": pgm.Model(pgm.Probit(), GP)}, "model"),
        ("svi", {"batch_size": 3}, "options"),
        ("svi", {"tolerance": 1e-8}, "options"),
        ("svi", {"train_hyperparameters": True}, "options"),
        ("svi", {"objective": "expected"}, "options"),
    ],
)
def test_another_run_is_refused_with_what_differs(saved, engine, change, part):
    before = contents(saved / engine)
    with pytest.raises(
        ValueError,
        match=rf"checkpoint: .*/{engine} contains another run of {engine}, which differs in: .*{part}.*Name another",
    ):
        ENGINES[engine](saved / engine, **change)
    assert contents(saved / engine) == before


def contents(folder):
    return sorted((path.name, path.read_bytes()) for path in folder.iterdir())


@pytest.mark.parametrize(("engine", "other"), [("gibbs", "svi"), ("svi", "gibbs")])
def test_the_checkpoint_of_the_other_engine_is_refused_and_kept(saved, tmp_path, engine, other):
    shutil.copytree(saved / other, tmp_path / "copy")
    before = contents(tmp_path / "copy")
    with pytest.raises(ValueError, match=f"^checkpoint: .* belongs to a run of {other}, not of {engine}. Name another"):
        ENGINES[engine](tmp_path / "copy")
    assert contents(tmp_path / "copy") == before


def never(*arguments, **options):
    raise AssertionError("work was begun")


@pytest.mark.parametrize("engine", ENGINES)
def test_where_nothing_can_be_saved_that_is_said_before_any_work(saved, tmp_path, monkeypatch, engine):
    monkeypatch.setattr(sampler, "select_inducing_inputs", never)
    monkeypatch.setattr(svi_module, "inputs_for_steps", never)
    file = tmp_path / "file"
    file.touch()
    for folder, words in [
        (file, "must be a writable folder; got .*/file"),
        (file / "folder", "must be a writable folder;.*Not a directory"),
        (3.5, "must be the path of a folder; got 3.5"),
        ("/proc/none/folder", "must be a writable folder;.*Choose another"),
    ]:
        with pytest.raises(ValueError, match=f"^checkpoint:? {words}"):
            ENGINES[engine](folder)
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "TemporaryFile", read_only)
        with pytest.raises(ValueError, match=r"^checkpoint must be a writable folder;.*Read-only file system"):
            ENGINES[engine](tmp_path)
    path = copied(saved, tmp_path, {"gibbs": "gibbs/index.npz", "svi": "svi/svi.npz"}[engine])
    path.write_bytes(b"")
    assert_refused(path)
    # A folder that is not there yet is made, with those above it.
    with pytest.raises(AssertionError, match="work was begun"):
        ENGINES[engine](tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").is_dir()


def read_only(**options):
    raise OSError(30, "Read-only file system")


def test_a_checkpoint_is_no_result(saved):
    for path, words in [
        ("gibbs/index.npz", "contains a checkpoint of gibbs"),
        ("gibbs/draws-000000.npz", "contains a checkpoint of gibbs"),
        ("svi/svi.npz", "contains a checkpoint of svi"),
    ]:
        with pytest.raises(ValueError, match=f"not a result saved by pgmodels|{words}") as caught:
            pgm.load(saved / path)
        assert words in str(caught.value)


def test_files_of_others_in_the_folder_stay(tmp_path):
    for name in ("state-of-affairs.npz", "draws.npz", "notes.txt"):
        (tmp_path / name).write_text("mine")
    gibbs(tmp_path)
    gibbs(tmp_path, num_samples=9)
    for name in ("state-of-affairs.npz", "draws.npz", "notes.txt"):
        assert (tmp_path / name).read_text() == "mine"
    assert len(list(tmp_path.glob("state-0*.npz"))) == 1


KILLED = """
import importlib.util, os, signal, sys
import numpy as np
from pathlib import Path
spec = importlib.util.spec_from_file_location("storage", sys.argv[1])
storage = importlib.util.module_from_spec(spec)
spec.loader.exec_module(storage)
path = Path(sys.argv[2])
def half(file, **arrays):
    file.write(b"half of it")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
def late(*names):
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "writing":
    np.savez = half
else:
    os.replace = late
storage.write_arrays(path, {"kind": "new"}, {"x": np.ones(3)})
"""


@pytest.mark.parametrize("moment", ["writing", "replacing"])
def test_a_kill_while_a_file_is_written_leaves_the_former_one(tmp_path, moment):
    path = tmp_path / "fit.npz"
    array_files.write_arrays(path, {"kind": "former"}, {"x": np.arange(3.0)})
    before = path.read_bytes()
    process = subprocess.run([sys.executable, "-c", KILLED, array_files.__file__, path, moment], check=False)
    assert process.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2
    # What the kill left is in nobody's way.
    array_files.write_arrays(path, {"kind": "new"}, {"x": np.ones(3)})
    array_files.remove_temporary(tmp_path, "fit.npz")
    assert list(tmp_path.iterdir()) == [path]
    assert array_files.read_arrays(path)[0]["kind"] == "new"


def test_objects_are_not_written_and_nothing_else_is(tmp_path):
    with pytest.raises(ValueError, match="rows holds Python objects"):
        array_files.write_arrays(tmp_path / "fit.npz", {}, {"rows": np.array([None])})
    assert not list(tmp_path.iterdir())
    array_files.write_arrays(tmp_path / "fit.npz", {}, {"rows": np.arange(3)})
    with np.load(tmp_path / "fit.npz") as stored:
        assert sorted(stored.files) == ["pgmodels", "rows"]


@pytest.mark.slow
def test_a_run_with_a_key_of_another_kind_is_taken_up(tmp_path, monkeypatch):
    monkeypatch.setattr("pgmodels.inference.checkpoint_folder.EngineCheckpoint.interval", 0.0)
    options = {"seed": jax.random.key(4, impl="rbg")}
    gibbs(tmp_path, num_samples=60, **options)
    resumed = gibbs(tmp_path, num_samples=130, **options)
    assert np.array_equal(resumed.latents, gibbs(None, num_samples=130, **options).latents)


@pytest.fixture(scope="module")
def results(saved):
    """A folder of files of results of all kinds: the golden files and others."""
    shutil.copytree(GOLDEN, saved, dirs_exist_ok=True)
    outputs = pgm.GP(pgm.On(pgm.RBF(), [0]) * pgm.On(pgm.Coregion(2), [1]))
    two = np.column_stack([X[:, 0], np.arange(12) % 2])
    pgm.cavi(pgm.Model(pgm.Ordinal(3), outputs), two, np.arange(12.0) % 3).save(saved / "outputs.npz")
    frame = pd.DataFrame({"y": [1.0, 2.0, 4.0, 3.0], "x": [0.0, 1.0, 2.0, 3.0], "g": ["a", "b", "a", "b"]})
    pgm.formula("y ~ x + (1|g)", frame).cavi().save(saved / "formula.npz")
    return saved


def tampered(results, name, tmp_path, change):
    """A copy of a file of a result after a change of its document and arrays."""
    document, arrays = array_files.read_arrays(results / f"{name}.npz")
    change(document, arrays)
    path = tmp_path / f"{name}.npz"
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(100_000)
        array_files.write_arrays(path, document, arrays)
    finally:
        sys.setrecursionlimit(limit)
    return path


def entry(name, value):
    """A change of one array: to a value, or by a function."""

    def change(document, arrays):
        arrays[name] = value(arrays[name].copy()) if callable(value) else value

    return change


def put(*path):
    """A change of one value of the document, the last of the arguments, at the place that the others name."""
    *places, last, value = path

    def change(document, arrays):
        for place in places:
            document = document[place]
        document[last] = value(document[last]) if callable(value) else value

    return change


def without(*path):
    """A change that removes an entry of the document."""
    *places, last = path

    def change(document, arrays):
        for place in places:
            document = document[place]
        del document[last]

    return change


def with_nan(array):
    array.flat[-1] = np.nan
    return array


def nested(depth):
    def deep(kernel):
        for _ in range(depth):
            kernel = {"class": "On", "fields": {"kernel": kernel, "columns": [0], "names": None}}
        return kernel

    return deep


GPS = ("model", "fields", "gps")
KERNEL = (*GPS, 0, "fields", "kernel")
VARIANCE = (*KERNEL, "fields", "variance", "fields")
LIKELIHOOD = ("model", "fields", "likelihood", "dict")
FIELDS = ("result", "fields")


def distribution(name="Normal", **arguments):
    return {
        "class": "Distribution",
        "fields": {"name": name, "double": True, "arguments": {"dict": arguments or {"loc": 0.0, "scale": 1.0}}},
    }


TAMPERED = {
    "no model": ("result", without("model")),
    "no result": ("result", without("result")),
    "no format": ("result", without("format")),
    "no sites": ("result", without(*FIELDS, "sites")),
    "no blocks": ("result", without(*FIELDS, "blocks")),
    "no prior": ("result", without(*FIELDS, "groups")),
    "sites that are not a number": ("result", entry("sites.precision", with_nan)),
    "moments that are not a number": ("result", entry("mean", with_nan)),
    "inputs that are not a number": ("result", entry("X", with_nan)),
    "inputs of fewer rows": ("result", entry("X", lambda X: X[:5])),
    "inputs of more columns": ("result", entry("X", lambda X: np.hstack([X, X])[:, :, None])),
    "inputs without rows": ("result", entry("X", lambda X: X[:0])),
    "observations of fewer rows": ("result", entry("y", lambda y: y[:5])),
    "sites of fewer rows": ("result", entry("sites.potential", lambda h: h[:5])),
    "sites of more latents": ("result", entry("sites.potential", lambda h: np.hstack([h, h]))),
    "sites in single precision": ("result", entry("sites.potential", lambda h: h.astype(np.float32))),
    "inputs that are whole numbers": ("result", entry("X", lambda X: X.astype(int))),
    "no trace": ("result", entry("elbo_trace", lambda trace: trace[:0])),
    "a tolerance that is text": ("result", put(*FIELDS, "tolerance", "1e-9")),
    "a tolerance that is no number": ("result", put(*FIELDS, "tolerance", float("nan"))),
    "a flag that is a number": ("result", put(*FIELDS, "converged", 3)),
    "columns for other inputs": ("result", put(*FIELDS, "columns", 2 * [{"class": "Column", "fields": {"name": "a"}}])),
    "a list as the kind": ("result", put("kind", ["Approximation"])),
    "a kind that holds draws": ("result", put("kind", "Draws")),
    "a table that is a number": ("result", put(*FIELDS, 3)),
    "20,000 GPs": ("result", put(*GPS, lambda gps: gps * 20_000)),
    "a GP of many latents": ("result", put(*GPS, 0, "fields", "size", 10**9)),
    "a GP of no whole number of latents": ("result", put(*GPS, 0, "fields", "size", 1.0)),
    "deeply nested kernels": ("result", put(*KERNEL, nested(2_000))),
    "a variance that is not a number": ("result", put(*VARIANCE, "value", float("nan"))),
    "a variance beyond all numbers": ("result", put(*VARIANCE, "value", 10**400)),
    "a kernel of no name": ("result", put(*KERNEL, "class", "Exec")),
    "a kernel of another column": ("outputs", put(*KERNEL, "fields", "left", "fields", "columns", [10**9])),
    "a lengthscale for each of many columns": (
        "result", put(*KERNEL, "fields", "lengthscale", "fields", "value", [1.0] * 99)
    ),
    "many outputs": ("outputs", put(*KERNEL, "fields", "right", "fields", "kernel", "fields", "num_outputs", 10**10)),
    "many classes": ("outputs", put(*LIKELIHOOD, "options", "dict", "num_classes", 10**10)),
    "options that are a list": ("outputs", put(*LIKELIHOOD, "options", [1])),
    "inducing inputs that are text": ("result", put(*GPS, 0, "fields", "form", "fields", "inputs", "many")),
    "functions beyond memory": (
        "cavi",
        put(*GPS, 0, "fields", "form", {"class": "Hilbert", "fields": {"count": 10**10, "boundary": 2.0}}),
    ),
    "a prior that is a module": ("result", put(*VARIANCE, "prior", distribution("transforms"))),
    "a prior that is a function": ("result", put(*VARIANCE, "prior", distribution("biject_to"))),
    "a prior with text": ("result", put(*VARIANCE, "prior", distribution(loc="many", scale=1.0))),
    "a prior of an array that is not there": (
        "result", put(*VARIANCE, "prior", distribution(loc={"array": "loc"}, scale=1.0))
    ),
    "a prior that is a kernel": ("result", put(*VARIANCE, "prior", {"class": "White", "fields": {}})),
    "a kernel that is a result": ("result", lambda document, _: put(*KERNEL, document["result"])(document, _)),
    "a class of no public name": ("result", put(*KERNEL, {"class": "Picklable", "fields": {}})),
    "a class that is a list": ("result", put(*KERNEL, {"class": ["RBF"], "fields": {}})),
    "a prior of many numbers": (
        "result",
        put(*VARIANCE, "prior", distribution("ExpandedDistribution", base_dist=distribution(), batch_shape=[10**12])),
    ),
    "a constraint that is a function": (
        "result",
        put(*VARIANCE, "constraint", {"class": "Constraint", "fields": {"name": "_boolean", "bounds": {"dict": {}}}}),
    ),
    "a covariance of fewer rows": ("linear_response", entry("covariance", lambda c: c[:3])),
    "a response of other coordinates": ("linear_response", entry("response", lambda R: R[:3, :3])),
    "a shift that is not a number": ("linear_response", entry("shift", with_nan)),
    "coordinates of more chains": ("gibbs_inducing", entry("whitened.0", lambda v: np.concatenate([v, v]))),
    "coordinates that are not a number": ("gibbs_inducing", entry("whitened.0", with_nan)),
    "coordinates of more latents": ("gibbs_inducing", entry("whitened.0", lambda v: np.repeat(v, 2, axis=-1))),
    "coordinates of more rows": ("gibbs_inducing", entry("whitened.0", lambda v: np.repeat(v, 9, axis=-2))),
    "coordinates of fewer rows": ("gibbs_inducing", entry("whitened.0", lambda v: v[:, :, :2])),
    "weights of points below 0": ("integrate", entry("shares", lambda s: -s)),
    "points that are not there": ("integrate", entry("owners", lambda places: places + 10**6)),
    "moments of fewer points": ("integrate", entry("means", lambda m: m[1:])),
    "covariances that are not a number": ("integrate", entry("covariances", with_nan)),
    "a posterior of other inducing inputs": ("svi_rows", entry("roots.0", lambda R: R[:, :2, :2])),
    "a centre that is not a number": ("svi_rows", entry("centres.0", with_nan)),
    "inducing inputs that are not a number": ("svi_rows", entry("groups.0.Z", with_nan)),
    "many more GPs than inducing inputs": ("svi_rows", put(*GPS, lambda gps: gps * 20_000)),
    "a scale of 0": ("svi_rows", entry("scaling.scale", np.zeros_like)),
    "blocks of latents that are not there": ("svi_coupled", put(*FIELDS, "blocks", [[0, 7]])),
    "blocks for latents on their own": ("svi_rows", put(*FIELDS, "blocks", [[0]])),
}  # fmt: skip


@pytest.mark.parametrize("fault", TAMPERED)
def test_a_result_whose_parts_do_not_fit_is_refused(results, tmp_path, fault):
    name, change = TAMPERED[fault]
    path = tampered(results, name, tmp_path, change)
    started = time.process_time()
    with pytest.raises(ValueError, match=rf"{name}\.npz.*([Pp]ass (an unchanged|a) file|load it with)") as caught:
        pgm.load(path)
    assert len(str(caught.value)) < 600
    # Nothing is built of what it claims.
    assert time.process_time() - started < 20.0


FORMULA = ("regression", "dict")
TAMPERED_FORMULAS = {
    "a column of fewer rows": entry("regression.columns.x.array", lambda column: column[:2]),
    "columns of fewer rows": lambda document, arrays: arrays.update(
        {name: array[:2] for name, array in arrays.items() if name.startswith("regression")}
    ),
    "codes of no level": entry("regression.columns.g.array", lambda codes: codes + 9),
    "no columns": put(*FORMULA, "columns", {"dict": {}}),
    "columns that are a list": put(*FORMULA, "columns", [1]),
    "a column of another kind": put(*FORMULA, "columns", "dict", "x", "dict", "kind", "code"),
    "a unit of no time": put(*FORMULA, "columns", "dict", "x", "dict", lambda x: x | {"kind": "date", "unit": "eons"}),
    "a family that is a list": put(*FORMULA, "family", ["gaussian"]),
    "a link that is a list": put(*FORMULA, "link", ["logit"]),
    "a formula that is a number": put(*FORMULA, "formula", 3),
    "a formula of many parentheses": put(*FORMULA, "formula", ["y ~ " + "(" * 50_000 + "x" + ")" * 50_000]),
    "sites that are not a number": entry("sites.potential", with_nan),
}


@pytest.mark.parametrize("fault", TAMPERED_FORMULAS)
def test_a_result_of_a_formula_whose_parts_do_not_fit_is_refused(results, tmp_path, fault):
    path = tampered(results, "formula", tmp_path, TAMPERED_FORMULAS[fault])
    with pytest.raises(ValueError, match=r"formula\.npz") as caught:
        pgm.load_formula(path)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("dtype", ["S100000000", "V100", "U0", "M8[D]", "f4,i8"])
def test_an_array_that_is_no_numbers_is_refused(saved, tmp_path, dtype):
    path = copied(saved, tmp_path, "result.npz")
    with np.load(path) as archive:
        arrays = dict(archive) | {"X": np.zeros((0, 1), dtype)}
    np.savez(path, **arrays)
    assert_refused(path, "files of pgmodels hold only numbers and booleans")


@pytest.mark.parametrize("pattern", FILES)
@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a device", "a link to a device"])
def test_what_is_no_file_is_refused_before_it_is_opened(saved, tmp_path, pattern, kind):
    path = copied(saved, tmp_path, pattern)
    path.unlink()
    words = "cannot be read" if kind == "a folder" else "not a regular file"
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        (tmp_path / "link").symlink_to("/dev/zero")
        path.symlink_to(tmp_path / "link")
    assert_refused(path, words)
    if path.name == "result.npz":
        with pytest.raises(ValueError, match=words):
            pgm.load_formula(path)


@pytest.mark.parametrize("pattern", FILES)
def test_a_file_beyond_what_is_read_is_refused_with_its_size(saved, tmp_path, pattern):
    path = copied(saved, tmp_path, pattern)
    # Without blocks on disk.
    os.truncate(path, 2**43)
    assert_refused(path, "it has 8,796,093,022,208 bytes, and at most [0-9,]+ are read")


def test_a_document_beyond_what_is_read_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(array_files, "_LARGEST", 1000)
    with pytest.raises(ValueError, match="more than 1000: use pickle"):
        array_files.write_arrays(tmp_path / "fit.npz", {"levels": ["a"] * 1000}, {})
    assert not list(tmp_path.iterdir())
