"""The default tests compile cheaply (conftest.py): every engine says the same to rounding as users' programs do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pgmodels as pgm
from tests.registry import CASES

ROOT = Path(__file__).parents[1]
PROGRAM = "import json; from tests.test_users_compilation import figures; print(json.dumps(figures()))"


def figures():
    """What each engine says of a few labels: moments of latents, or of few draws. Other tests compile most of it."""
    case = CASES["bernoulli"]
    model, (X, y) = case.unequal(), case.data(12, seed=3)
    few = {"num_samples": 3, "num_warmup": 1, "num_chains": 2, "seed": 9, "progress": False}
    vi = pgm.cavi(model, X, y)
    found = {
        "cavi": vi,
        "gaussian_vi": pgm.gaussian_vi(model, X, y),
        "correct": pgm.correct(vi),
        "fit": pgm.fit(model, X, y),
        "svi": pgm.svi(case.unequal(form=pgm.Inducing(X[:8])), X, y, max_passes=50),
        "gibbs": pgm.gibbs(case.model(), X, y, **few),
        "nuts": pgm.nuts(case.model(), X, y, **few),
    }
    return {name: [*result.mean.ravel(), *result.variance.ravel()] for name, result in found.items()}


# Three draws after one of warm-up are no sample, and are to be the same.
@pytest.mark.filterwarnings("ignore::pgmodels.DivergenceWarning", "ignore::pgmodels.MixingWarning")
def test_every_engine_says_the_same_to_rounding_when_it_is_compiled_as_users_programs_are():
    flags = {"XLA_FLAGS", "JAX_TRACEBACK_IN_LOCATIONS_LIMIT"}
    environment = {name: value for name, value in os.environ.items() if name not in flags}
    run = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    theirs, ours = json.loads(run.stdout), figures()
    assert list(theirs) == list(ours)
    for name, values in ours.items():
        # Rounding, and where the iterations of an optimiser stop.
        np.testing.assert_allclose(theirs[name], values, rtol=1e-6, atol=1e-8, err_msg=name)
