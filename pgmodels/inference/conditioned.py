"""The posterior that sites imply, with the prior's own arrays."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from pgmodels.compiled import compiled
from pgmodels.inference.problem import Problem
from pgmodels.latent.coupled import CoupledPosterior
from pgmodels.latent.joint import JointPosterior, JointPrior
from pgmodels.latent.protocol import Sites
from pgmodels.portable import Module


def condition(problem: Problem, sites: Sites) -> tuple[JointPosterior | CoupledPosterior, Array, Array]:
    """The posterior given sites, and the latents' means and variances."""
    fresh, mean, variance = _condition(problem, sites)
    return fresh.completed(problem.prior), mean, variance


class _Fresh(Module):
    """The leaves of a posterior that are not its prior's, in whose place None stands: programs copy what they return.

    ``places`` are those of the others among the prior's leaves.
    """

    leaves: list[Array | None]
    places: tuple[int | None, ...] = eqx.field(static=True)
    tree: Any = eqx.field(static=True)

    def completed(self, prior: JointPrior) -> Any:
        """The posterior, with the prior's own arrays."""
        held = jax.tree.leaves(prior)
        pairs = zip(self.leaves, self.places, strict=True)
        return jax.tree.unflatten(self.tree, [own if place is None else held[place] for own, place in pairs])


@partial(compiled, lightly=True)
def _condition(problem: Problem, sites: Sites) -> tuple[_Fresh, Array, Array]:
    posterior = problem.condition(sites)
    known = {id(leaf): place for place, leaf in enumerate(jax.tree.leaves(problem.prior))}
    leaves, tree = jax.tree.flatten(posterior)
    places = tuple(known.get(id(leaf)) for leaf in leaves)
    own = [leaf if place is None else None for leaf, place in zip(leaves, places, strict=True)]
    return _Fresh(own, places, tree), *posterior.moments()
