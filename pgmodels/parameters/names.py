"""What the parameters of a model are called: as short as tells them apart, each by a name of its own."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from pgmodels.parameters.parameter import is_parameter

if TYPE_CHECKING:
    from pgmodels.model import Model


# What samplers and ArviZ call latents, observations and dimensions.
_TAKEN = ("f", "y", "chain", "draw", "datum", "latent", "column")


class _Place(NamedTuple):
    """Where a parameter stands: before which latents, in the how many-th of which kind of thing, by which path."""

    latents: str
    kind: str
    number: str
    own: str
    path: str

    @property
    def names(self) -> list[str]:
        """What it may be called, the shortest first."""
        what = [self.own, f"{self.kind}.{self.own}", f"{self.kind}{self.number}.{self.own}"]
        return [*(f"{self.latents}{name}" for name in what), self.path]


def parameter_names(model: "Model") -> dict[int, str]:
    """The names of all parameters of a model, by their places among its leaves.

    ``lengthscale`` and ``mean``, ``scale`` of a likelihood; where a model has several GPs, ``f[1].lengthscale`` of
    latent 1 and ``f[0:3].lengthscale`` of the first three. Where that names several, what it belongs to goes before it:
    ``RBF.variance``, ``likelihood.variance``; and its number, from 0, where there are several of these, as in
    ``RBF[1].variance``.
    """
    places = _places(model)
    levels = dict.fromkeys(places, 0)
    while True:
        names = {i: place.names[levels[i]] for i, place in places.items()}
        counts = Counter(names.values())
        shared = [i for i, name in names.items() if counts[name] > 1 or name in _TAKEN]
        if not shared:
            return names
        levels |= {i: levels[i] + 1 for i in shared}


def names_by_path(model: "Model") -> dict[str, str]:
    """The names by where parameters stand, as in ``likelihood.scale`` and ``gps[1].kernel.variance``.

    Without ``gps[0].`` where the model has one GP.
    """
    names, places = parameter_names(model), _places(model)
    first = "gps[0]." if len(model.gps) == 1 else ""
    return {place.path.removeprefix(first): names[i] for i, place in places.items()}


def _places(model: "Model") -> dict[int, _Place]:
    paths, _ = jax.tree_util.tree_flatten_with_path(model, is_leaf=is_parameter)
    before = _latents(model)
    owners: dict[tuple[str, str], list[str]] = {}
    found = {}
    for i, (path, leaf) in enumerate(paths):
        if not is_parameter(leaf):
            continue
        own = jax.tree_util.keystr(path[-1:]).strip(".[]'")
        if path[0] == jax.tree_util.GetAttrKey("likelihood"):
            found[i] = _Place("", "likelihood", "", own, f"likelihood.{own}")
            continue
        latents, owner = before[path[1].idx], jax.tree_util.keystr(path[:-1])
        kind = type(_at(model, path[:-1])).__name__
        same = owners.setdefault((latents, kind), [])
        same += [] if owner in same else [owner]
        found[i] = _Place(latents, kind, f"[{same.index(owner)}]", own, jax.tree_util.keystr(path).lstrip("."))
    return found


def _latents(model: "Model") -> list[str]:
    """What goes before the names of each GP's parameters."""
    if len(model.gps) == 1:
        return [""]
    ends = accumulate(gp.size for gp in model.gps)
    spans = [(end - gp.size, end) for gp, end in zip(model.gps, ends, strict=True)]
    return [f"f[{low}]." if high == low + 1 else f"f[{low}:{high}]." for low, high in spans]


def _at(node: Any, path: Sequence[Any]) -> Any:
    """What stands at a path of a pytree."""
    for key in path:
        if isinstance(key, jax.tree_util.GetAttrKey):
            node = getattr(node, key.name)
        else:
            node = node[key.idx if isinstance(key, jax.tree_util.SequenceKey) else key.key]
    return node
