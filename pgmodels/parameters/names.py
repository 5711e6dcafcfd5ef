"""Names of a model's parameters: unique, and as short as possible."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from pgmodels.parameters.parameter import is_parameter

if TYPE_CHECKING:
    from pgmodels.model import Model


# Names that samplers and ArviZ use for latents, observations and dimensions.
_RESERVED = ("f", "y", "chain", "draw", "datum", "latent", "column")


class _Location(NamedTuple):
    """Location of a parameter: latent prefix, class and number of its component, field name, pytree path."""

    latents: str
    component: str
    number: str
    field: str
    path: str

    @property
    def names(self) -> list[str]:
        """The candidate names, shortest first."""
        fields = [self.field, f"{self.component}.{self.field}", f"{self.component}{self.number}.{self.field}"]
        return [*(f"{self.latents}{name}" for name in fields), self.path]


def parameter_names(model: "Model") -> dict[int, str]:
    """The names of all parameters of a model, by leaf index.

    ``lengthscale``, ``mean``, or ``scale`` of a likelihood; with several GPs, ``f[1].lengthscale`` for latent 1 and
    ``f[0:3].lengthscale`` for the first three latents. Ambiguous names are prefixed with their component, as in
    ``RBF.variance`` and ``likelihood.variance``, and with its index if there are several, as in ``RBF[1].variance``.
    """
    locations = _locations(model)
    levels = dict.fromkeys(locations, 0)
    while True:
        names = {i: location.names[levels[i]] for i, location in locations.items()}
        counts = Counter(names.values())
        shared = [i for i, name in names.items() if counts[name] > 1 or name in _RESERVED]
        if not shared:
            return names
        levels |= {i: levels[i] + 1 for i in shared}


def names_by_path(model: "Model") -> dict[str, str]:
    """The names by pytree path, such as ``likelihood.scale`` and ``gps[1].kernel.variance``.

    In a model with one GP, ``gps[0].`` is omitted.
    """
    names, locations = parameter_names(model), _locations(model)
    first = "gps[0]." if len(model.gps) == 1 else ""
    return {location.path.removeprefix(first): names[i] for i, location in locations.items()}


def _locations(model: "Model") -> dict[int, _Location]:
    paths, _ = jax.tree_util.tree_flatten_with_path(model, is_leaf=is_parameter)
    prefixes = _latent_prefixes(model)
    components: dict[tuple[str, str], list[str]] = {}
    locations = {}
    for i, (path, leaf) in enumerate(paths):
        if not is_parameter(leaf):
            continue
        field = jax.tree_util.keystr(path[-1:]).strip(".[]'")
        if path[0] == jax.tree_util.GetAttrKey("likelihood"):
            locations[i] = _Location("", "likelihood", "", field, f"likelihood.{field}")
            continue
        latents, component_path = prefixes[path[1].idx], jax.tree_util.keystr(path[:-1])
        component = type(_at(model, path[:-1])).__name__
        same = components.setdefault((latents, component), [])
        same += [] if component_path in same else [component_path]
        number = f"[{same.index(component_path)}]"
        locations[i] = _Location(latents, component, number, field, jax.tree_util.keystr(path).lstrip("."))
    return locations


def _latent_prefixes(model: "Model") -> list[str]:
    """The prefix of the parameter names of each GP."""
    if len(model.gps) == 1:
        return [""]
    ends = accumulate(gp.size for gp in model.gps)
    spans = [(end - gp.size, end) for gp, end in zip(model.gps, ends, strict=True)]
    return [f"f[{low}]." if high == low + 1 else f"f[{low}:{high}]." for low, high in spans]


def _at(node: Any, path: Sequence[Any]) -> Any:
    """The node at a path of a pytree."""
    for key in path:
        if isinstance(key, jax.tree_util.GetAttrKey):
            node = getattr(node, key.name)
        else:
            node = node[key.idx if isinstance(key, jax.tree_util.SequenceKey) else key.key]
    return node
