"""Runs saved as they go: killed at any moment, they end as if nothing had happened."""

import os
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from pgmodels.inference.checkpoint_folder import EngineCheckpoint
from pgmodels.inference.gibbs import Checkpoint
from pgmodels.inference.svi import SviCheckpoint
from pgmodels.runtime.io import locked_folder, read_arrays
from tests.covering import some
from tests.processes import kill_when, python
from tests.registry import CASES

OPTIONS = {"num_warmup": 30, "num_chains": 2, "seed": 4}

SCRIPT = """
import sys, numpy as np, pgmodels as pgm
from tests.registry import CASES
X, y = CASES["bernoulli"].data(6, seed=3)
draws = pgm.gibbs(CASES["bernoulli"].model(), X, y, num_samples={samples}, num_warmup=30, num_chains=2, seed=4,
                  checkpoint=sys.argv[1])
"""


@pytest.fixture(scope="module")
def problem():
    X, y = CASES["bernoulli"].data(6, seed=3)
    return CASES["bernoulli"].model(), X, y


@pytest.fixture
def eager(monkeypatch):
    """Save after every chunk."""
    monkeypatch.setattr(EngineCheckpoint, "interval", 0.0)


def drawn(folder):
    """The iterations after warm-up that are saved."""
    index = folder / "index.npz"
    return read_arrays(index)[0]["values"]["dict"]["number"] - 30 if index.exists() else -1


@pytest.mark.slow
def test_a_killed_process_is_taken_up_bit_for_bit(problem, tmp_path):
    samples = 200_000
    kill_when(lambda: drawn(tmp_path) > 0, "-c", SCRIPT.format(samples=samples), tmp_path)
    done = drawn(tmp_path)
    assert 0 < done < samples
    # To a number of draws that the test can make again from the start.
    total = done + 333
    resumed = pgm.gibbs(*problem, num_samples=total, checkpoint=tmp_path, **OPTIONS)
    uninterrupted = pgm.gibbs(*problem, num_samples=total, **OPTIONS)
    assert np.array_equal(resumed.latents, uninterrupted.latents)
    assert np.array_equal(resumed.log_likelihood_trace, uninterrupted.log_likelihood_trace)


@contextmanager
def interrupted(name, at):
    """Interrupt a call of a function of ``os``, of which there must be so many."""
    original, calls = getattr(os, name), []

    def interrupting(*arguments):
        calls.append(arguments)
        if len(calls) == at:
            raise KeyboardInterrupt
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, name, interrupting)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.mark.parametrize(
    ("failing", "at"),
    some([("replace", 1), ("fsync", 2), ("replace", 3), ("fsync", 5), ("replace", 8)], ("replace", 3)),
)
def test_a_failure_in_the_midst_of_saving_loses_nothing_saved(problem, tmp_path, eager, failing, at):
    uninterrupted = pgm.gibbs(*problem, num_samples=260, **OPTIONS)
    with interrupted(failing, at):
        pgm.gibbs(*problem, num_samples=260, checkpoint=tmp_path, **OPTIONS)
    resumed = pgm.gibbs(*problem, num_samples=260, checkpoint=tmp_path, **OPTIONS)
    assert np.array_equal(resumed.latents, uninterrupted.latents)


def test_a_finished_run_is_read_and_goes_on(problem, tmp_path):
    first = pgm.gibbs(*problem, num_samples=60, checkpoint=tmp_path, **OPTIONS)
    again = pgm.gibbs(*problem, num_samples=60, checkpoint=tmp_path, **OPTIONS)
    assert np.array_equal(first.latents, again.latents)
    shorter = pgm.gibbs(*problem, num_samples=20, checkpoint=tmp_path, **OPTIONS)
    assert np.array_equal(first.latents[:, :20], shorter.latents)
    longer = pgm.gibbs(*problem, num_samples=130, checkpoint=tmp_path, **OPTIONS)
    assert np.array_equal(longer.latents, pgm.gibbs(*problem, num_samples=130, **OPTIONS).latents)


@pytest.mark.parametrize("keep", some(["moments", [4, 1]], "moments"))
def test_what_is_kept_survives_too(problem, tmp_path, eager, keep):
    options = {**OPTIONS, "keep": keep}
    pgm.gibbs(*problem, num_samples=70, checkpoint=tmp_path, **options)
    resumed = pgm.gibbs(*problem, num_samples=150, checkpoint=tmp_path, **options)
    uninterrupted = pgm.gibbs(*problem, num_samples=150, **options)
    assert np.array_equal(resumed.mean, uninterrupted.mean)
    assert np.array_equal(resumed.variance, uninterrupted.variance)
    if keep != "moments":
        assert np.array_equal(resumed.latents, uninterrupted.latents)


def unknown():
    """The data, and a model with priors."""
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(dist.LogNormal(), dist.LogNormal())))
    return model, *CASES["bernoulli"].data(6, seed=3)


@pytest.mark.slow
def test_sampled_hyperparameters_survive_too(tmp_path, eager):
    options = {"num_warmup": 120, "num_chains": 2, "seed": 4}
    pgm.gibbs(*unknown(), num_samples=20, checkpoint=tmp_path, **options)
    resumed = pgm.gibbs(*unknown(), num_samples=45, checkpoint=tmp_path, **options)
    assert_same_draws(resumed, pgm.gibbs(*unknown(), num_samples=45, **options))


@pytest.mark.slow
@pytest.mark.parametrize("saves", [1, 2, 3])
def test_an_interrupted_warm_up_goes_on_with_what_it_has_seen(tmp_path, eager, monkeypatch, saves):
    options = {"num_samples": 20, "num_warmup": 160, "num_chains": 2, "seed": 4}
    original, numbers = Checkpoint.save, []

    def interrupted(self, run, final):
        original(self, run, final)
        numbers.append(run.number)
        if len(numbers) == saves:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pgm.gibbs(*unknown(), checkpoint=tmp_path, **options)
    assert numbers[-1] < 160
    resumed = pgm.gibbs(*unknown(), checkpoint=tmp_path, **options)
    assert numbers[saves] > numbers[saves - 1]
    assert_same_draws(resumed, pgm.gibbs(*unknown(), **options))


def assert_same_draws(resumed, uninterrupted):
    for name, values in uninterrupted.hyperparameters.items():
        assert np.array_equal(resumed.hyperparameters[name], values)
    assert np.array_equal(resumed.latents, uninterrupted.latents)


@pytest.mark.parametrize("engine", ["gibbs", "svi"])
def test_a_folder_that_another_run_uses_is_refused_before_any_work(problem, tmp_path, monkeypatch, engine):
    def work(*args, **kwargs):
        raise AssertionError("the folder is to be checked before any work")

    monkeypatch.setattr("pgmodels.inference.gibbs.GibbsRun", work)
    monkeypatch.setattr("pgmodels.inference.svi.source_of", work)
    model, X, y = problem
    calls = {
        "gibbs": lambda: pgm.gibbs(model, X, y, num_samples=5, checkpoint=tmp_path, **OPTIONS),
        "svi": lambda: pgm.svi(model.with_form(pgm.Inducing(3)), X, y, checkpoint=tmp_path),
    }
    message = f"checkpoint: {tmp_path} is in use by a run of gibbs in process {os.getpid()} on "
    with locked_folder(tmp_path, "checkpoint", "gibbs"), pytest.raises(ValueError, match=message):
        calls[engine]()
    # An error within the call leaves the folder to the next one.
    for _ in range(2):
        with pytest.raises(AssertionError, match="before any work"):
            calls[engine]()


def test_an_index_on_disk_names_a_state_that_is_there_at_any_moment(problem, tmp_path, monkeypatch, eager):
    checked = []

    def checking(function):
        def checked_around(*arguments, **options):
            for moment in ("before", "after"):
                index = tmp_path / "index.npz"
                if index.exists():
                    assert (tmp_path / read_arrays(index)[0]["values"]["dict"]["state"]).exists(), moment
                    checked.append(moment)
                if moment == "before":
                    result = function(*arguments, **options)
            return result

        return checked_around

    monkeypatch.setattr(os, "replace", checking(os.replace))
    monkeypatch.setattr(Path, "unlink", checking(Path.unlink))
    pgm.gibbs(*problem, num_samples=110, checkpoint=tmp_path, **OPTIONS)
    assert len(checked) > 10
    # One state is left, and nothing that was written in part.
    kinds = sorted(path.name.split("-")[0] for path in tmp_path.iterdir())
    assert [kind for kind in kinds if kind != "draws"] == ["index.npz", "pgmodels.lock", "state"]


def test_what_a_killed_run_wrote_in_part_is_removed(problem, tmp_path):
    (tmp_path / ".state-000000030.npz.0123456789abcdef.tmp").write_text("half")
    (tmp_path / "notes.txt").write_text("mine")
    pgm.gibbs(*problem, num_samples=5, checkpoint=tmp_path, **OPTIONS)
    names = {path.name.split("-")[0] for path in tmp_path.iterdir()}
    assert names == {"draws", "index.npz", "notes.txt", "pgmodels.lock", "state"}


# Runs with priors of NumPyro's, interrupted and taken up by another process that hashes otherwise.


X = np.linspace(-1.0, 2.0, 12)[:, None]
Y = np.sin(2.0 * X[:, 0]) + 0.3


def gibbs(folder, seed):
    # NumPyro keeps the names of this distribution's fields, and of those that it is made of, in sets.
    model = pgm.Model(pgm.Gaussian(dist.TruncatedNormal(0.5, 0.7, low=0.1, high=4.0)), pgm.GP(pgm.RBF(2.0, 1.0)))
    draws = pgm.gibbs(model, X, Y, num_samples=110, num_warmup=0, num_chains=2, seed=seed, checkpoint=folder)
    return draws.hyperparameters | {"f": draws.latents, "log likelihood": draws.log_likelihood_trace}


def svi(folder, seed):
    kernel = pgm.RBF(dist.HalfCauchy(1.5), dist.LogNormal(0.1, 0.5))
    model = pgm.Model(pgm.Gaussian(dist.TruncatedNormal(0.5, 0.7, low=0.1)), pgm.GP(kernel, form=pgm.Inducing(4)))
    options = {"batch_size": 4, "train_hyperparameters": True, "tolerance": 1e-9, "max_epochs": 200, "seed": seed}
    with pytest.warns(pgm.ConvergenceWarning):
        result = pgm.svi(model, pgm.ArrayRows(X, Y), checkpoint=folder, **options)
    mean, variance = result.predict_latent(X)
    return result.fit.values | {"mean of f": mean, "variance of f": variance, "bounds": result.elbo_trace}


ENGINES = {"gibbs": (gibbs, Checkpoint), "svi": (svi, SviCheckpoint)}


def run(engine, folder, seed, killed=False):
    """What a run finds, and how often it saves; or it is ended when it has saved once."""
    call, kind = ENGINES[engine]
    saves = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EngineCheckpoint, "interval", 0.0)
        save = kind.save

        def counted(self, *arguments, **options):
            save(self, *arguments, **options)
            saves.append(1)
            if killed:
                raise KeyboardInterrupt

        patched.setattr(kind, "save", counted)
        return call(folder, seed) | {"saves": len(saves)}


RESUME_SCRIPT = """
import sys, numpy
from tests.inference.test_checkpoint import run
numpy.savez(sys.argv[3], **run(sys.argv[1], sys.argv[2], 4))
"""


# That the identity of a run is the same in every process has a default test (test_seeds.py).
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["gibbs", "svi"])
def test_another_process_ends_an_interrupted_run_as_if_nothing_had_happened(tmp_path, engine):
    uninterrupted = run(engine, tmp_path / "whole", 4)
    with pytest.raises(KeyboardInterrupt):
        run(engine, tmp_path / "run", jax.random.key(4), killed=True)
    python("-c", RESUME_SCRIPT, engine, tmp_path / "run", tmp_path / "found.npz", PYTHONHASHSEED="12")
    with np.load(tmp_path / "found.npz") as resumed:
        assert resumed["saves"] == uninterrupted.pop("saves") - 1 > 0
        for name, values in uninterrupted.items():
            np.testing.assert_array_equal(resumed[name], values, err_msg=name)
