"""The law of a Gamma rate given its Poisson counts, against the joint density of rate, counts and data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.likelihoods.expression import Environment
from pgmodels.model import GP, Model
from tests.registry import CASES

pytestmark = pytest.mark.usefixtures("double_precision")

F = np.array([[0.7, -1.2, 2.5], [3.0, 0.1, -0.4]])
LABELS = np.array([2.0, 0.0])


@pgm.likelihood
def background(y, f):
    """A constant, unequal weights of terms of one latent each, and a power."""
    return pgm.sigmoid(f[y]) ** 2 / (0.4 + pgm.sigmoid(f[0]) + 2.5 * pgm.sigmoid(f[1]) + 0.3 * pgm.sigmoid(f[2])) ** 1.5


@pgm.likelihood
def weighted_sum(y, f):
    """Weights by latent within one sum over the latents, and a Bernoulli factor with auxiliaries of its own."""
    return pgm.sigmoid(f[0]) / pgm.sum((1 + pgm.positions(f)) * pgm.sigmoid(f)) ** (1 + y)


@pgm.likelihood
def product(y, f):
    """A product over the latents: a rate for each."""
    return pgm.prod(pgm.sigmoid(f) ** (y == 1) / (0.5 + 1.7 * pgm.sigmoid(f)) ** 2)


@pytest.mark.parametrize("likelihood", [CASES["logistic_softmax"].likelihood, background, weighted_sum, product])
def test_the_density_given_the_counts_is_the_joint_density_up_to_a_constant(likelihood):
    augmentation = Model(likelihood(), GP(pgm.RBF(), size=3)).augmentation
    ((name, law),) = augmentation.complete_laws.items()
    f, y = jnp.asarray(F), jnp.asarray(LABELS)
    drawn = augmentation.draw_chain(jax.random.key(3), f, y, {})
    (rate,) = [rule.auxiliary for rule in augmentation.rules if rule.auxiliary.name == name]
    counts = {count.name: drawn[count.name] for count in augmentation.children_of(rate)}
    assert counts
    ratios = []
    for factor in (0.3, 1.0, 4.0):
        values = counts | {name: factor * drawn[name]}
        joint = augmentation.log_joint(values, f, y, {})
        density = jnp.sum(law.log_density(values[name], Environment(y, f, values)), axis=-1)
        ratios.append(joint - density)
    # Sums of a few terms below 100.
    np.testing.assert_allclose(ratios[1:], [ratios[0]] * 2, atol=1e-11)


def test_only_gamma_rules_have_one():
    assert {name for name, case in CASES.items() if case.model().augmentation.complete_laws} == {
        "logistic_softmax",
        "own_softmax",
    }
