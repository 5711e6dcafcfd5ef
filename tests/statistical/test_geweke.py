"""Geweke's test of every move of the Gibbs engine, for every likelihood. Run with ``python -m pytest -m slow``.

Two to eleven kernels a test, 35 to 230 scores a kernel: all moves with hyperparameters fixed, and with kernel variance,
unequal lengthscales, mean and likelihood parameters sampled. Were the engine exact, 1 run of the whole battery in 100
would fail by chance (Bonferroni over all scores). The seeds are fixed, so that a failure is not chance twice. With
20,000 replicas the battery sees a shift of 0.04 standard deviations of what a kernel changes.
"""

import jax
import numpy as np
import pytest

from tests.registry import NAMES
from tests.statistical.geweke import Geweke, inputs
from tests.statistical.joint import JointLaw
from tests.statistical.planted import ERRORS

pytestmark = pytest.mark.slow

REPLICAS, STEPS = 20_000, 3
# Kernels in all: four with hyperparameters fixed, eleven with them sampled, and four of a low-rank prior; two of the
# four blocks of Gamma rules, for two likelihoods and for that prior, and two of a softmax.
NUM_KERNELS = 15 * len(NAMES) + 4 + 6 + 2
FALSE_ALARMS = 0.01 / NUM_KERNELS


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield
    jax.clear_caches()


def check_all(geweke: Geweke, replicas: int) -> None:
    for name, kernel in geweke.kernels().items():
        scores = geweke.scores(kernel, replicas, STEPS)
        print(f"{name}: {len(scores.z)} scores, largest |z| {scores.worst()[0]:.2f}")
        assert not scores.broken(FALSE_ALARMS), f"{name}: {scores.broken(FALSE_ALARMS)}"


@pytest.mark.parametrize("sampled", [False, True], ids=["fixed", "sampled"])
@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_keeps_the_joint_law(name, sampled):
    check_all(Geweke(JointLaw(name, inputs(), sampled), seed=1), REPLICAS)


def test_the_kernels_of_a_softmax_keep_the_joint_law():
    check_all(Geweke(JointLaw("softmax", inputs(), False), seed=4), REPLICAS)


def test_a_low_rank_prior_keeps_the_joint_law():
    # On a line, so that 26 inputs have fewer pivots than the 16 coordinates that are the least.
    X = np.column_stack([np.linspace(-1.0, 1.0, 26), np.full(26, 0.3)])
    geweke = Geweke(JointLaw("logistic_softmax", X, False), seed=2)
    assert geweke.low_rank
    check_all(geweke, 5_000)


@pytest.mark.parametrize("error", ERRORS, ids=[f"{e.plant.__name__}-{e.case}-{e.kernel}" for e in ERRORS])
def test_a_planted_error_is_found(error, planting):
    # Before the likelihood's rules are derived.
    error.plant(planting)
    geweke = Geweke(JointLaw(error.case, inputs(), error.sampled), seed=3)
    scores = geweke.scores(geweke.kernels()[error.kernel], REPLICAS, STEPS)
    print(f"|z| {scores.worst()[0]:.1f}")
    assert scores.broken(FALSE_ALARMS)
