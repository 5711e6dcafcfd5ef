"""Each move of the Gibbs engine keeps the joint law of hyperparameters, latents and data; with an error it does not.

A newcomer is a row of KERNELS (tests/statistical/geweke.py), and its planted errors rows here. This is a short version
of tests/statistical/test_geweke.py, which takes every likelihood. Were the engine exact, 1 run of this
file in 500 would fail by chance.
"""

import numpy as np
import pytest

from pgmodels.inference.gibbs_schedule import SCHEMES
from tests.covering import some
from tests.statistical import planted
from tests.statistical.geweke import KERNELS, Geweke, inputs
from tests.statistical.joint import JointLaw
from tests.statistical.planted import GIVEN_SITES, HAMILTONIAN, OF_LIKELIHOOD, SLICE, WITHOUT_SLICES

pytestmark = pytest.mark.usefixtures("double_precision")

REPLICAS, STEPS, FALSE_ALARMS = 2_000, 3, 0.001 / 3


def test_every_move_has_a_row():
    moves = {type(move) for scheme in SCHEMES.values() for move in scheme.moves}
    assert {type(row.move) for row in KERNELS} >= moves


def test_every_error_can_be_planted():
    for error in planted.ERRORS:
        with pytest.MonkeyPatch.context() as patch:
            error.plant(patch)


@pytest.mark.parametrize(
    ("name", "sampled", "kernel"),
    [
        ("heteroscedastic", False, "overrelaxed sweep"),
        pytest.param("stick_breaking", False, "iterations", marks=pytest.mark.slow),
        ("gaussian", True, SLICE),
        ("gaussian", True, HAMILTONIAN),
        ("bernoulli", True, GIVEN_SITES),
        ("gaussian", True, OF_LIKELIHOOD),
        pytest.param("gaussian", True, WITHOUT_SLICES, marks=pytest.mark.slow),
        ("logistic_softmax", False, "iterations of four blocks"),
        ("softmax", False, "one versus rest"),
    ],
)
def test_keeps_the_joint_law(name, sampled, kernel):
    geweke = Geweke(JointLaw(name, inputs(), sampled), seed=1)
    assert geweke.scores(geweke.kernels()[kernel], REPLICAS, STEPS).broken(FALSE_ALARMS) == ""


# Fewer inducing inputs than data, and none of them a datum.
Z = np.array([[-0.9, 0.4], [0.8, -0.7]])


@pytest.mark.parametrize(
    ("name", "kernel"),
    some(
        [
            ("gaussian", SLICE),
            ("varying", "overrelaxed sweep"),
            ("bernoulli", "slice of latents"),
            ("heteroscedastic", "iterations"),
        ],
        ("bernoulli", "slice of latents"),
    ),
)
def test_keeps_the_joint_law_of_the_sparse_model(name, kernel):
    geweke = Geweke(JointLaw(name, inputs(), True, Z), seed=1)
    assert geweke.scores(geweke.kernels()[kernel], REPLICAS, STEPS).broken(FALSE_ALARMS) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "name", "kernel"),
    [
        (planted.no_determinant, "gaussian", SLICE),
        (planted.residuals_by_themselves, "gaussian", SLICE),
        (planted.no_factors, "bernoulli", "slice of latents"),
    ],
)
def test_a_planted_error_is_found_with_the_sparse_model(plant, name, kernel, planting):
    plant(planting)
    geweke = Geweke(JointLaw(name, inputs(), True, Z), seed=1)
    assert geweke.scores(geweke.kernels()[kernel], REPLICAS, STEPS).broken(FALSE_ALARMS)


@pytest.mark.parametrize(
    ("plant", "name", "sampled", "kernel"),
    some(
        [
            (planted.poisson_at_the_wrong_sign, "sigmoid_poisson", False, "sweep"),
            (planted.overrelaxation_with_the_plain_deviation, "gaussian", False, "overrelaxed sweep"),
            (planted.overrelaxation_without_noise, "gaussian", False, "overrelaxed sweep"),
            (planted.no_jacobian, "gaussian", True, SLICE),
            (planted.no_jacobian, "bernoulli", True, GIVEN_SITES),
            (planted.no_jacobian, "gaussian", True, OF_LIKELIHOOD),
            (planted.stretched_coordinates, "gaussian", True, HAMILTONIAN),
            (planted.prior_left_behind, "gaussian", True, WITHOUT_SLICES),
            (planted.no_lengths, "gaussian", True, HAMILTONIAN),
            (planted.no_normalizer, "gaussian", True, SLICE),
            (planted.no_factors, "bernoulli", False, "slice of latents"),
            (planted.one_unit_more, "bernoulli", False, "sweep"),
            (planted.latents_without_their_coordinates, "bernoulli", False, "slice of latents"),
            (planted.rate_without_counts, "logistic_softmax", False, "four blocks"),
            (planted.rest_without_its_pull, "softmax", False, "one versus rest"),
        ],
        (planted.poisson_at_the_wrong_sign, "sigmoid_poisson", False, "sweep"),
    ),
)
def test_a_planted_error_is_found(plant, name, sampled, kernel, planting):
    # Before the likelihood's rules are derived.
    plant(planting)
    geweke = Geweke(JointLaw(name, inputs(), sampled), seed=1)
    assert geweke.scores(geweke.kernels()[kernel], REPLICAS, STEPS).broken(FALSE_ALARMS)
