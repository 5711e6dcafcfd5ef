"""Runs with priors of NumPyro's, interrupted and taken up by another process that hashes otherwise."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from pgmodels.inference import gibbs as checkpoint
from pgmodels.inference import svi as svi_checkpoint

ROOT = Path(__file__).parents[3]
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


ENGINES = {"gibbs": (gibbs, checkpoint, "Checkpoint"), "svi": (svi, svi_checkpoint, "SviCheckpoint")}


def run(engine, folder, seed, killed=False):
    """What a run finds, and how often it saves; or it is ended when it has saved once."""
    call, module, kind = ENGINES[engine]
    saves = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pgmodels.inference.checkpoint_folder._INTERVAL", 0.0)
        save = getattr(module, kind).save

        def counted(self, *arguments, **options):
            save(self, *arguments, **options)
            saves.append(1)
            if killed:
                raise KeyboardInterrupt

        patched.setattr(getattr(module, kind), "save", counted)
        return call(folder, seed) | {"saves": len(saves)}


SCRIPT = """
import sys, numpy
from tests.inference.mcmc.test_resume import run
numpy.savez(sys.argv[3], **run(sys.argv[1], sys.argv[2], 4))
"""


# That the identity of a run is the same in every process has a default test (test_identity.py).
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["gibbs", "svi"])
def test_another_process_ends_an_interrupted_run_as_if_nothing_had_happened(tmp_path, engine):
    uninterrupted = run(engine, tmp_path / "whole", 4)
    with pytest.raises(KeyboardInterrupt):
        run(engine, tmp_path / "run", jax.random.key(4), killed=True)
    environment = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONHASHSEED="12")
    command = [sys.executable, "-c", SCRIPT, engine, tmp_path / "run", tmp_path / "found.npz"]
    done = subprocess.run(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(tmp_path / "found.npz") as resumed:
        assert resumed["saves"] == uninterrupted.pop("saves") - 1 > 0
        for name, values in uninterrupted.items():
            np.testing.assert_array_equal(resumed[name], values, err_msg=name)
