"""Names of parameters, and the unconstrained vector of the learned parameters."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pgmodels.parameters.parameter import EXPONENTIAL, IDENTITY, Parameter, is_parameter
from pgmodels.runtime.precision import Picklable

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
        """Return the candidate names, shortest first."""
        fields = [self.field, f"{self.component}.{self.field}", f"{self.component}{self.number}.{self.field}"]
        return [*(f"{self.latents}{name}" for name in fields), self.path]


def parameter_names(model: "Model") -> dict[int, str]:
    """Return the names of all parameters of a model, by leaf index.

    Examples: ``lengthscale``, ``mean``, or ``scale`` of a likelihood; with several GPs ``f[1].lengthscale`` of latent 1
    and ``f[0:3].lengthscale`` of the first three latents. Ambiguous names are prefixed with the component, e.g.
    ``RBF.variance`` or ``likelihood.variance``, and its index if there are several, e.g. ``RBF[1].variance``.
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


def _locations(model: "Model") -> dict[int, _Location]:
    paths, _ = jax.tree_util.tree_flatten_with_path(model, is_leaf=is_parameter)
    spans = [(end - gp.size, end) for gp, end in zip(model.gps, accumulate(gp.size for gp in model.gps), strict=True)]
    prefixes = [f"f[{low}]." if high == low + 1 else f"f[{low}:{high}]." for low, high in spans]
    prefixes = prefixes if len(model.gps) > 1 else [""]
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


def _at(node: Any, path: Sequence[Any]) -> Any:
    for key in path:
        if isinstance(key, jax.tree_util.GetAttrKey):
            node = getattr(node, key.name)
        else:
            node = node[key.idx if isinstance(key, jax.tree_util.SequenceKey) else key.key]
    return node


# Modules whose distributions, constraints and transforms have no code that depends on their numbers.
_TRACEABLE = ("numpyro", "pgmodels", "builtins")


@jax.tree_util.register_pytree_node_class
class ParameterVector(Picklable):
    """The parameters of a model for which ``chosen`` is True: names, constrained values and the unconstrained vector.

    A pytree whose leaves are the numbers of the ``priors``. They are arguments of compiled code, which therefore serves
    data sets whose default priors differ only in numbers. All else is static.

    ``parameter_names`` defines the names. ``of_likelihood`` maps the name of each chosen likelihood parameter in the
    formula to its name here. ``gp_indices`` has the GP of each parameter, and ``gps`` the GP of each vector entry; -1
    is the likelihood.
    """

    def __init__(self, model: "Model", chosen: Callable[[Parameter], bool]):
        self.model = model
        paths, _ = jax.tree_util.tree_flatten_with_path(model, is_leaf=is_parameter)
        self.leaves = [leaf for _, leaf in paths]
        self.leaf_indices = tuple(i for i, leaf in enumerate(self.leaves) if is_parameter(leaf) and chosen(leaf))
        names = parameter_names(model)
        self.names = [names[i] for i in self.leaf_indices]
        of_model = [paths[i][0] for i in self.leaf_indices]
        ends = zip((path[-1] for path in of_model), self.names, strict=True)
        self.of_likelihood = {end.key: name for end, name in ends if isinstance(end, jax.tree_util.DictKey)}
        self.priors = [p.prior for p in self.parameters]
        self.shapes = [np.shape(self.leaves[i].value) for i in self.leaf_indices]
        self.free_shapes = [free_shape(p) for p in self.parameters]
        sizes = [int(np.prod(shape)) for shape in self.free_shapes]
        self.splits = np.cumsum(sizes)[:-1]
        is_likelihood = jax.tree_util.GetAttrKey("likelihood")
        self.gp_indices = [-1 if path[0] == is_likelihood else path[1].idx for path in of_model]
        self.gps = np.repeat(np.array(self.gp_indices, dtype=int), sizes)

    def __hash__(self) -> int:
        return hash(self.signature)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ParameterVector) and self.signature == other.signature

    @cached_property
    def signature(self) -> tuple[Any, ...]:
        """The static parts except the leaves' structure: names, leaf indices, shapes, constraints, other priors."""
        priors = (None if has else p.hashable_prior for has, p in zip(self._has_leaves, self.parameters, strict=True))
        constraints = ((p.positive, p.hashable_constraint) for p in self.parameters)
        return tuple(zip(self.names, self.leaf_indices, self.shapes, constraints, priors, strict=True))

    @cached_property
    def _has_leaves(self) -> list[bool]:
        return [_is_traceable(p) for p in self.parameters]

    def tree_flatten(self) -> tuple[list[Any], "ParameterVector"]:
        """Return the priors whose numbers are leaves, and the vector itself, which ``signature`` compares."""
        return [prior for prior, traced in zip(self.priors, self._has_leaves, strict=True) if traced], self

    @classmethod
    def tree_unflatten(cls, vector: "ParameterVector", priors: Sequence[Any]) -> "ParameterVector":
        """Return a copy with other numbers of priors."""
        copied, new = cls.__new__(cls), iter(priors)
        vars(copied).update(vars(vector))
        pairs = zip(vector.priors, vector._has_leaves, strict=True)
        copied.priors = [next(new) if traced else prior for prior, traced in pairs]
        return copied

    @property
    def parameters(self) -> list[Parameter]:
        """The chosen parameters, in order."""
        return [self.leaves[i] for i in self.leaf_indices]

    def start(self) -> np.ndarray:
        """The current values, unconstrained."""
        values = [p.transform.inv(np.asarray(p.value)) for p in self.parameters]
        return np.concatenate([np.ravel(value) for value in values]) if values else np.zeros(0)

    def values_in(self, model: "Model") -> list[Any]:
        """The values in another model to start from; ValueError if its parameters have other names or shapes."""
        values = self.of(model) if parameter_names(model) == parameter_names(self.model) else []
        if [np.shape(value) for value in values] != self.shapes:
            raise ValueError(
                f"start must be a result of a model with the parameters {', '.join(self.names) or 'none'} of the same "
                f"shapes; got {', '.join(parameter_names(model).values())}. Give the same kernels, or leave start out."
            )
        return values

    def constrain(self, vector: Array | np.ndarray) -> list[Any]:
        """Return the constrained values of an unconstrained vector."""
        return constrain(self.parameters, vector)

    def log_prior(self, values: list[Any]) -> Array:
        """Return the log prior density of constrained values, summed over the parameters that have a prior."""
        pairs = zip(self.priors, values, strict=True)
        return sum((jnp.sum(prior.log_prob(v)) for prior, v in pairs if prior is not None), jnp.zeros(()))

    def log_prior_unconstrained(self, vector: Array | np.ndarray) -> Array:
        """Return the log prior density of an unconstrained vector, including the log Jacobian of the transforms."""
        if not self.leaf_indices:
            return jnp.zeros(())
        total = self.log_prior(self.constrain(vector))
        for p, entries, shape in zip(self.parameters, jnp.split(vector, self.splits), self.free_shapes, strict=True):
            if p.prior is not None:
                x = entries.reshape(shape)
                total = total + jnp.sum(p.transform.log_abs_det_jacobian(x, p.transform(x)))
        return total

    def median(self, draws: list[np.ndarray]) -> list[np.ndarray]:
        """Return entrywise medians of draws (chains, draws, ...), mapped back into the constraints."""
        pairs = zip(self.parameters, (np.median(values, axis=(0, 1)) for values in draws), strict=True)
        return [m if p.constraint is None else np.asarray(p.transform(p.transform.inv(m))) for p, m in pairs]

    def with_values(self, values: list[Any]) -> "Model":
        """Return the model with other values."""
        return with_values(self.model, self.leaf_indices, values)

    def apply(self, model: "Model", vector: Array | np.ndarray) -> "Model":
        """Return a model of the same structure, e.g. one without priors, at the values of an unconstrained vector."""
        return with_values(model, self.leaf_indices, self.constrain(vector))

    def of(self, tree: object) -> list[Any]:
        """Return the values of the chosen parameters in a pytree with the model's structure."""
        leaves = jax.tree_util.tree_leaves(tree, is_leaf=is_parameter)
        return [leaves[i].value for i in self.leaf_indices]


def _is_traceable(parameter: Parameter) -> bool:
    """Return whether the numbers of a parameter's prior are arguments of compiled code, not static numbers."""
    prior = parameter.prior
    if prior is None or (parameter.constraint is None and parameter.transform not in (IDENTITY, EXPONENTIAL)):
        return False
    leaves = jax.tree.leaves(prior, is_leaf=lambda node: type(node).__module__.split(".")[0] not in _TRACEABLE)
    return all(map(eqx.is_array_like, leaves))


def free_shape(parameter: Parameter) -> tuple[int, ...]:
    """Return the shape of a parameter's unconstrained values; a simplex has one entry less."""
    return parameter.transform.inverse_shape(np.shape(parameter.value))


def constrain(parameters: Sequence[Parameter], vector: Array | np.ndarray) -> list[Any]:
    """Return the constrained values of parameters, from their unconstrained values in one vector."""
    shapes = [free_shape(p) for p in parameters]
    splits = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    # NumPy splits an array without compilation.
    split: Any = np.split if isinstance(vector, np.ndarray) else jnp.split
    pieces = split(vector, splits) if parameters else []
    return [p.transform(piece.reshape(shape)) for p, piece, shape in zip(parameters, pieces, shapes, strict=True)]


def with_values(model: "Model", leaf_indices: Sequence[int], values: Sequence[Any]) -> "Model":
    """Return the model with other values of some parameters, by leaf index; it may have no priors (``bare``)."""
    leaves, tree = jax.tree_util.tree_flatten(model, is_leaf=is_parameter)
    for i, value in zip(leaf_indices, values, strict=True):
        leaves[i] = leaves[i].with_value(value)
    return jax.tree_util.tree_unflatten(tree, leaves)


def trainable(model: "Model") -> ParameterVector:
    """Return the parameters that ``fit`` may change: all except Fixed ones."""
    return ParameterVector(model, lambda parameter: parameter.learned)


def with_priors(model: "Model") -> ParameterVector:
    """Return the parameters that samplers draw: all with a prior, except Fixed ones."""
    return ParameterVector(model, is_sampled)


def is_sampled(parameter: Parameter) -> bool:
    """Return whether samplers draw a parameter: it has a prior and is not Fixed."""
    return parameter.learned and parameter.prior is not None


def have_fixed_kernels(model: "Model") -> tuple[bool, ...]:
    """Return for each group of latents whether no parameter of its kernel is sampled."""
    return tuple(not _any_uncertain(gp.kernel) for gp in model.gps)


def has_one_prior(model: "Model") -> bool:
    """Return whether no parameter of the latents' prior is sampled, of kernels or of means."""
    return not _any_uncertain(model.gps)


def _any_uncertain(tree: object) -> bool:
    return any(is_parameter(leaf) and is_sampled(leaf) for leaf in jax.tree.leaves(tree, is_leaf=is_parameter))
