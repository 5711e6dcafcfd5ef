"""What programs return without a copy of what they were given."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from pgmodels.portable import Module


class Fresh(Module):
    """The leaves of a tree that are not among known ones, in whose place None stands: programs copy what they return.

    ``places`` are those of the others among the known leaves.
    """

    leaves: list[Array | None]
    places: tuple[int | None, ...] = eqx.field(static=True)
    tree: Any = eqx.field(static=True)

    @classmethod
    def beside(cls, known: Any, tree: Any) -> "Fresh":
        """What a tree has beside the leaves of a known one, within a program."""
        by_id = {id(leaf): place for place, leaf in enumerate(jax.tree.leaves(known))}
        leaves, structure = jax.tree.flatten(tree)
        places = tuple(by_id.get(id(leaf)) for leaf in leaves)
        own = [leaf if place is None else None for leaf, place in zip(leaves, places, strict=True)]
        return cls(own, places, structure)

    def completed(self, known: Any) -> Any:
        """The tree, with the known one's own arrays."""
        held = jax.tree.leaves(known)
        pairs = zip(self.leaves, self.places, strict=True)
        return jax.tree.unflatten(self.tree, [own if place is None else held[place] for own, place in pairs])
