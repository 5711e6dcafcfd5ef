"""The command line at its edges: mistaken options, pipes that nobody reads, scripts that fail, interruptions."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pgmodels import workflow as validation
from pgmodels.cli import main

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
    monkeypatch.setattr(validation, "fit", lambda *args, **kwargs: pytest.fail("work has begun"))
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
