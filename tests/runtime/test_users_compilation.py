"""The default tests compile cheaply (conftest.py): every engine says the same to rounding as users' programs do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pytest

import pgmodels as pgm
from tests.registry import CASES

ROOT = Path(__file__).parents[2]
PROGRAM = (
    "import json, sys; from tests.runtime import test_users_compilation as t; "
    "print(json.dumps(getattr(t, sys.argv[1])()))"
)


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
def test_every_engine_says_the_same_to_rounding_when_it_is_compiled_as_users_programs_are(figures):
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
