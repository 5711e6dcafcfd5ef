"""Compiled code has the numbers of priors as arguments."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import pgmodels as pgm
from pgmodels.parameters.vector import trainable
from pgmodels.runtime.jit import compiled
from tests.hyperpriors import INTERVAL, made

PRIORS = {name: prior for name, prior in made().items() if not prior.shape()}


def vector_of(prior):
    return trainable(pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0), mean=prior)))


def density(vector, point):
    return vector.log_prior_unconstrained(point)


def evaluated(vector):
    """The density by the same operations, one by one and compiled with the vector as an argument."""
    point = jnp.asarray(vector.start() + 0.3)
    return float(density(vector, point)), float(compiled(density)(vector, point))


@pytest.mark.parametrize("name", sorted(PRIORS.keys() - INTERVAL.keys()))
def test_the_density_of_a_prior_that_is_an_argument(name):
    with jax.enable_x64(True):
        expected, result = evaluated(vector_of(PRIORS[name]))
    # Rounding.
    assert result == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["Beta", "Uniform", "truncated"])
def test_the_numbers_of_a_transform_are_static(name):
    vector = vector_of(PRIORS[name])
    assert not jax.tree.leaves(vector)
    assert jax.tree.structure(vector) == jax.tree.structure(vector_of(made()[name]))
    assert jax.tree.structure(vector) != jax.tree.structure(vector_of(dist.Uniform(-1.0, 3.0)))


PAIRS = {
    "normal": (dist.LogNormal(0.0, 1.0), dist.LogNormal(0.5, 2.0)),
    "of a deviation": (pgm.sd(dist.StudentT(3.0, 0.0, 2.5)), pgm.sd(dist.StudentT(3.0, 0.0, 1.7))),
    "folded": (dist.FoldedDistribution(dist.Normal(0.0, 2.5)), dist.FoldedDistribution(dist.Normal(0.3, 1.0))),
    "within a constraint": (
        pgm.Parameter(1.0, prior=dist.Normal(0.0, 1.0), constraint=constraints.positive),
        pgm.Parameter(1.0, prior=dist.Normal(0.5, 2.0), constraint=constraints.positive),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_priors_of_one_kind_share_a_program(name):
    with jax.enable_x64(True):
        program = compiled(density)
        for prior in PAIRS[name]:
            vector = vector_of(prior)
            point = jnp.asarray(vector.start())
            assert float(program(vector, point)) == pytest.approx(float(density(vector, point)), rel=1e-12)
        assert program.cache_size() == 1


def test_priors_of_other_kinds_have_other_programs():
    structures = [
        jax.tree.structure(vector_of(prior))
        for prior in (dist.LogNormal(0.0, 1.0), dist.Gamma(2.0, 1.0), dist.Normal(0.0, 1.0), 1.0)
    ]
    assert len(set(structures)) == len(structures)


class Chosen(dist.LogNormal):
    """A user's prior, whose code depends on its numbers."""

    def log_prob(self, value):
        return super().log_prob(value) if self.scale > 1.0 else jnp.zeros_like(value)


def test_numbers_of_users_priors_are_static():
    with jax.enable_x64(True):
        for prior in (Chosen(0.0, 2.0), Chosen(0.0, 0.5)):
            vector = vector_of(prior)
            expected, result = evaluated(vector)
            assert not jax.tree.leaves(vector)
            assert result == pytest.approx(expected, rel=1e-12)
