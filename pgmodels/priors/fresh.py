"""Pytrees without the leaves that are inputs of the program, which would be copied on return."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from pgmodels.runtime.pickling import Module


class Fresh(Module):
    """A pytree in which leaves of a known tree are replaced by None, since programs copy the arrays they return.

    ``places`` are the indices of the omitted leaves among the known ones, None for new leaves.
    """

    leaves: list[Array | None]
    places: tuple[int | None, ...] = eqx.field(static=True)
    tree: Any = eqx.field(static=True)

    @classmethod
    def beside(cls, known: Any, tree: Any) -> "Fresh":
        """Omit from a tree the leaves of a known one; inside a program."""
        by_id = {id(leaf): place for place, leaf in enumerate(jax.tree.leaves(known))}
        leaves, structure = jax.tree.flatten(tree)
        places = tuple(by_id.get(id(leaf)) for leaf in leaves)
        new_leaves = [leaf if place is None else None for leaf, place in zip(leaves, places, strict=True)]
        return cls(new_leaves, places, structure)

    def completed(self, known: Any) -> Any:
        """The full tree, with the known leaves restored."""
        known_leaves = jax.tree.leaves(known)
        pairs = zip(self.leaves, self.places, strict=True)
        return jax.tree.unflatten(self.tree, [leaf if place is None else known_leaves[place] for leaf, place in pairs])
