"""How many programs an engine's first call compiles: most of its time goes there."""

import logging
import subprocess
import sys

import jax
import numpy as np
import pandas as pd

import pgmodels as pgm
from pgmodels.runtime.jit import clear_programs

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
    process = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    counts = {name: int(count) for count, name in (line.split(maxsplit=1) for line in process.stdout.splitlines())}
    assert counts.keys() == COUNTED.keys()
    beyond = {name: count for name, count in counts.items() if count > COUNTED[name] + SLACK}
    assert not beyond


def simulated(seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"x": rng.normal(size=43), "g": np.resize(list("abcdef"), 43)})
    return frame.assign(y=3.0 * seed + frame["x"] + np.resize(rng.normal(size=6), 43) + seed * rng.normal(size=43))


def test_other_data_of_equal_shapes_compile_nothing(caplog):
    """The default priors of formulas depend on the data: their numbers are no part of the programs."""
    # None is cleared between the fits.
    clear_programs()
    counts = []
    for seed in (1, 2):
        with jax.log_compiles(), caplog.at_level(logging.WARNING, logger="jax"):
            pgm.formula("y ~ x + (1|g)", simulated(seed)).fit(progress=False).summary()
        counts.append(sum(record.getMessage().startswith("Compiling") for record in caplog.records))
        caplog.clear()
    assert counts[0] > 0
    assert counts[1] == 0
