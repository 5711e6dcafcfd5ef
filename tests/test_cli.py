"""The command line: derivations, a small validation whose files can be read, and error messages."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from pgmodels import cli, workflow
from pgmodels.cli import NAMED, main
from pgmodels.datasets import load
from tests.report.test_report import read

SCRIPT = """
import pgmodels as pgm

@pgm.likelihood(support=pgm.Binary())
def slope(y, f):
    return pgm.sigmoid(2 * f - 1) ** y * pgm.sigmoid(1 - 2 * f) ** (1 - y)

@pgm.likelihood
def log_link(y, f):
    return pgm.exp(-pgm.exp(f)) * pgm.exp(y * f)

not_a_likelihood = 3
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame["y"] = (rng.random(40) < 1 / (1 + np.exp(-2 * X[:, 0]))).astype(int)
    path = tmp_path / "small.csv"
    frame.to_csv(path, index=False)
    return path


def test_the_version_has_what_a_report_of_a_fault_needs(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    first, *others = capsys.readouterr().out.splitlines()
    assert first == f"pgmodels {version('pgmodels')}"
    assert {f"{name} {version(name)}" for name in ("numpy", "jax", "jaxlib", "numpyro")} < set(others)
    assert re.search(rf"{platform.machine()}, .*Python {platform.python_version()}, JAX on \d+ \w+", others[-1])


@pytest.mark.parametrize("name", NAMED)
def test_derive_prints_every_named_likelihood(name, capsys):
    assert main(["derive", name]) == 0
    printed = capsys.readouterr().out
    for heading in (name, "Complete conditionals (Gibbs)", "CAVI updates", "Local bound and ELBO"):
        assert heading in printed


def test_derive_reads_a_script_and_verifies(script, capsys):
    assert main(["derive", f"{script}:slope", "--verify"]) == 0
    printed = capsys.readouterr().out
    assert "slope" in printed
    assert "integrate back" in printed


@pytest.mark.parametrize(("form", "sign"), [("text", "ω"), ("mermaid", "flowchart"), ("graphviz", "digraph")])
def test_derive_prints_the_graph(form, sign, capsys):
    assert main(["derive", "Bernoulli", "--graph", form]) == 0
    assert sign in capsys.readouterr().out


def test_validate_writes_files_that_open_again(table, tmp_path, capsys):
    output = tmp_path / "results"
    sizes = ["--train-size", "30", "--num-samples", "60", "--num-warmup", "20", "--num-chains", "2"]
    options = ["--columns", "0,2", "--lengthscale", "1.0", "--seed", "3", "--quiet", "--output", str(output)]
    assert main(["validate", "--data", str(table), *sizes, *options]) == 0
    printed = capsys.readouterr().out
    assert "Bernoulli, 30 training and 10 test rows" in printed
    folder = output / "small"
    frame = pd.read_csv(folder / "comparison.csv", index_col=0)
    assert list(frame.index) == ["cavi", "corrected", "gaussian", "corrected_gaussian", "gibbs"]
    tree = xr.open_datatree(folder / "gibbs.nc", engine="h5netcdf")
    try:
        assert dict(tree["posterior"].sizes) == {"chain": 2, "draw": 60, "datum": 30, "latent": 1}
        assert {"posterior_predictive", "log_likelihood", "observed_data", "sample_stats"} <= set(tree.children)
    finally:
        tree.close()
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["seed"] == 3
    assert settings["command"].startswith("pgmodels validate --data ")
    report = read(folder / "report.html")
    for value in (frame.loc["cavi", "mean_error"], frame.loc["gibbs", "negative_log_density"]):
        assert f"{value:#.4g}" in report.words
    assert settings["command"] in report.words
    assert settings["train_rows"] == 30
    assert "lengthscale=Fixed(1.0)" in settings["model"]


def test_the_studies_are_printed_in_order(monkeypatch, capsys):
    def validate(study, *, console, seed, progress, **settings):
        console.print(f"{study.data} from {seed}", f"{settings['kernel'].__name__} {progress}")

    monkeypatch.setattr(cli, "validate", validate)
    assert main(["validate", "--seed", "4", "--kernel", "Matern52", "--quiet"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "A demonstration on two data sets, for about 90 seconds on two cores."
    assert printed[1:] == ["breast-cancer from 4 Matern52 False", "wine from 4 Matern52 False"]


@pytest.mark.slow
def test_a_mistake_that_a_study_finds_is_told(capsys):
    assert main(["validate", "--data", "wine", "--train-size", "178"]) == 2
    assert "train size must leave training and test rows of 178" in capsys.readouterr().err


def test_an_interruption_has_its_status(monkeypatch):
    def validate(study, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "validate", validate)
    assert main(["validate", "--data", "wine"]) == 130


NAMES = ["<b>alpha", "beta & co", "gamma"]


@pytest.mark.slow
def test_class_names_reach_the_report(tmp_path):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(42, 2))
    path = tmp_path / "named.csv"
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": np.array(NAMES)[np.arange(42) % 3]}).to_csv(path, index=False)
    sizes = ["--train-size", "36", "--num-samples", "60", "--num-warmup", "5", "--num-chains", "2"]
    fixed = ["--variance", "1.0", "--lengthscale", "1.0", "--quiet", "--output", str(tmp_path)]
    assert main(["validate", "--data", str(path), *sizes, *fixed]) == 0
    words = read(tmp_path / "named" / "report.html").words
    assert "LogisticSoftmax" in words
    for place, name in enumerate(NAMES):
        assert f"{place} {name}" in re.sub(r"(?<=\d)(?=[<a-z])", " ", words)


def test_text_labels_become_indices(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "y": ["n", "b", "n", "a"]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = load(str(tmp_path / "t.csv"))
    assert data.y.tolist() == [2.0, 1.0, 2.0, 0.0]
    assert data.class_names == ("a", "b", "n")
    frame.loc[2, "y"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(ValueError, match="missing in row 2"):
        load(str(tmp_path / "t.csv"))
    np.savez(tmp_path / "t.npz", X=np.zeros((3, 1)), y=["n", "b", "n"])
    assert load(str(tmp_path / "t.npz")).y.tolist() == [1.0, 0.0, 1.0]
    np.savez(tmp_path / "t.npz", X=np.zeros((3, 1)), y=[0, 1, 0], target_names=["n", "b"])
    assert load(str(tmp_path / "t.npz")).class_names == ("n", "b")
    np.savez(tmp_path / "t.npz", X=np.zeros((3, 1)), y=[0, 1, 2], target_names=["a", "b"])
    with pytest.raises(ValueError, match="2 target_names"):
        load(str(tmp_path / "t.npz"))
    assert load("wine").class_names == ("class_0", "class_1", "class_2")
    assert load("breast-cancer").class_names == ("malignant", "benign")


def people():
    return pd.DataFrame(
        {
            "name": [f"person {i}" for i in range(40)],
            "age": np.arange(40) + 20,
            "group": np.array(["b", "a"])[np.arange(40) % 2],
            "ill": np.arange(40) % 3,
            "of": np.full(40, 4.0),
            "dose": np.linspace(0.0, 2.0, 40),
        }
    )


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_any_table_is_read_by_its_target(ending, tmp_path):
    frame, path = people(), tmp_path / f"people.{ending}"
    write = frame.to_csv if ending == "csv" else frame.to_parquet
    write(path, index=False)
    data = load(str(path), ["dose", "age"], "group")
    assert data.y.tolist() == [1.0, 0.0] * 20
    assert data.class_names == ("a", "b")
    np.testing.assert_allclose(data.X, frame[["dose", "age"]])
    # Numbers are places among the columns that are not y: name, age, group, dose.
    data = load(str(path), ["1", 3], "ill,of")
    np.testing.assert_array_equal(data.X, frame[["age", "dose"]])
    np.testing.assert_array_equal(data.y, frame[["ill", "of"]])
    assert load(str(path), ["age"]).y.tolist() == frame["dose"].tolist()
    for arguments, words in (
        ((None, "ill"), "column name of .* is not numeric: encode it as numbers, or select X with --columns"),
        ((["age"], "name"), r"text with 40 distinct values, person 0, .* and 30 more: too many for classes"),
        ((["age"], "ill,group"), "column group of .* is not numeric"),
    ):
        with pytest.raises(ValueError, match=words):
            load(str(path), *arguments)
    frame.loc[[3, 9], "dose"] = None
    write(path, index=False)
    with pytest.raises(ValueError, match=r"column dose of .* is missing or not finite in row 3 \(2 such rows\)"):
        load(str(path), ["age", "dose"], "ill")


def test_a_table_that_cannot_be_read_says_why(tmp_path, monkeypatch):
    for name, text in (("empty.csv", ""), ("text.parquet", "a,b\n1,2\n")):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match="cannot be read as a table"):
            load(str(tmp_path / name))
    for package in ("pyarrow", "fastparquet"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match="needs the package pyarrow: python -m pip install pyarrow"):
        load(str(tmp_path / "text.parquet"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["derive", "Bernouli"], ["Bernouli", "Bernoulli"]),
        (["derive", "missing.py:f"], ["missing.py"]),
        (["derive", "{script}:not_a_likelihood"], ["not_a_likelihood", "@pgm.likelihood"]),
        (["derive", "{script}:log_link"], ["exp(-exp(f))", "Looked for", "Pólya-Gamma"]),
        (["validate", "--data", "missing.npz"], ["missing.npz"]),
        (["validate", "--data", "{table}", "--columns", "0,9"], ["9", "0 to 2"]),
        (["validate", "--data", "{table}", "--columns", "a,d"], ["columns 0 to 2, a, b, c; got d"]),
        (["validate", "--data", "{table}", "--target", "z"], ["has no column 'z'; it has a, b, c, y"]),
        (["validate", "--data", "{table}", "--target", "a,b,c,y"], ["leave at least one for X"]),
        (
            ["validate", "--data", "wine", "--target", "y"],
            ["names a column of a .csv or .parquet file, but wine is neither"],
        ),
        (["validate", "--target", "y"], ["--target needs --data"]),
        (["validate", "--data", "missing.parquet"], ["there is no file missing.parquet"]),
        (["validate", "--data", "{table}", "--train-size", "400"], ["400", "40"]),
        (["validate", "--likelihood", "Bernoulli"], ["--data"]),
    ],
)
def test_mistakes_are_told_and_end_with_status_two(arguments, words, script, table, capsys):
    assert main([argument.format(script=script, table=table) for argument in arguments]) == 2
    message = " ".join(capsys.readouterr().err.split())
    for word in words:
        assert word in message


# The command line at its edges: mistaken options, pipes that nobody reads, scripts that fail, interruptions.


ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "pgmodels"]
# XLA says on stderr what it thinks of programs from the cache that these tests share.
UNSHARED = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
ENVIRONMENT = {**UNSHARED, "PYTHONPATH": str(ROOT)}


def start(*arguments, **options):
    return subprocess.Popen([*COMMAND, *arguments], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--seed", value) for value in (str(2**63), str(10**30), "-1", "1.5", "9" * 5000)),
        *(("--num-samples", value) for value in ("0", "-3", "many")),
        ("--num-warmup", "-1"),
        ("--num-chains", "0"),
        *(("--train-size", value) for value in ("0", "0.0", "1.0", "nan", "-0.5", "half")),
        *((option, value) for option in ("--variance", "--lengthscale") for value in ("0", "-1", "nan", "inf", "wide")),
    ],
)
def test_a_mistaken_option_is_named_before_any_work(option, value, monkeypatch, capsys):
    monkeypatch.setattr(workflow, "fit", lambda *args, **kwargs: pytest.fail("work has begun"))
    with pytest.raises(SystemExit) as exit_info:
        main(["validate", "--data", "breast-cancer", f"{option}={value}"])
    assert exit_info.value.code == 2
    assert f"argument {option}: must be a" in capsys.readouterr().err


@pytest.mark.parametrize(("likelihood", "value"), [("LogisticSoftmax", "0"), ("LogisticSoftmax", "-2")])
def test_no_latents_are_refused(likelihood, value, capsys):
    with pytest.raises(SystemExit):
        main(["derive", likelihood, f"--latents={value}"])
    assert "argument --latents: must be a whole number from 1" in capsys.readouterr().err


def test_latents_that_do_not_fit_are_refused(capsys):
    assert main(["derive", "Bernoulli", "--latents", "2"]) == 2
    assert "--latents: Bernoulli always has 1" in capsys.readouterr().err


def test_a_script_that_fails_says_where(tmp_path, capsys):
    script = tmp_path / "own.py"
    script.write_text("import math\n\n\ndef call():\n    return math.sqrt(-1)\n\n\ncall()\n")
    assert main(["derive", f"{script}:own"]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"pgmodels: likelihood: {script} raised ValueError: math domain error\n")
    assert "line 5, in call" in message


@pytest.mark.parametrize("arguments", [("derive", "Bernoulli"), ("--help",)])
def test_a_reader_that_goes_is_no_error(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    process = start(*arguments, stdout=writing)
    os.close(writing)
    _, message = process.communicate(timeout=120)
    assert message == ""
    assert process.returncode in (0, 141)


def interrupted(seconds, tmp_path, *arguments):
    """The exit status and the error output after Ctrl-C, some seconds after the start."""
    output = str(tmp_path / f"after{seconds}")
    # Shells start what runs in the background with interruptions ignored, and processes inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = start(
            "validate", "--quiet", "--output", output, *arguments, stdout=subprocess.DEVNULL, process_group=0
        )
    finally:
        signal.signal(signal.SIGINT, before)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, message = process.communicate(timeout=120)
    return process.returncode, message


def test_an_interruption_ends_the_command(tmp_path):
    # After the import, which takes a second, the first programs are compiled.
    assert interrupted(4.0, tmp_path, "--data", "breast-cancer") == (130, "")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--data", "breast-cancer")])
def test_interruptions_end_the_command_at_any_time(arguments, tmp_path):
    for tenths in range(40, 140, 10):
        assert interrupted(tenths / 10, tmp_path, *arguments) == (130, ""), f"after {tenths / 10} s"
