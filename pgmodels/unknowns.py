"""The uncertain values of a model: hyperparameters, means and likelihood parameters, as one unconstrained vector."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.model import Model
from pgmodels.naming import parameter_names
from pgmodels.parameters import Parameter, is_parameter
from pgmodels.portable import Portable
from pgmodels.precision import as_array


class Unknowns(Portable):
    """The values of a model that ``chosen`` picks, by name, on the natural scale or unconstrained.

    Names are those of ``pgmodels.naming``. ``of_likelihood`` holds the names of the likelihood's parameters among them
    by what the formula calls them.
    """

    def __init__(self, model: Model, chosen: Callable[[Parameter], bool]):
        self.model = model
        paths, _ = jax.tree_util.tree_flatten_with_path(model, is_leaf=is_parameter)
        self.leaves = [leaf for _, leaf in paths]
        self.places = tuple(i for i, leaf in enumerate(self.leaves) if is_parameter(leaf) and chosen(leaf))
        names = parameter_names(model)
        self.names = [names[i] for i in self.places]
        self.of_likelihood = {
            paths[i][0][-1].key: name
            for i, name in zip(self.places, self.names, strict=True)
            if isinstance(paths[i][0][-1], jax.tree_util.DictKey)
        }
        self.shapes = [np.shape(self.leaves[i].value) for i in self.places]
        self.free_shapes = [free_shape(p) for p in self.parameters]
        self.splits = np.cumsum([int(np.prod(shape)) for shape in self.free_shapes])[:-1]

    def __hash__(self) -> int:
        return hash(self.signature)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unknowns) and self.signature == other.signature

    @cached_property
    def signature(self) -> tuple[Any, ...]:
        """Names, places, shapes, priors and constraints: unknowns with equal signatures share compiled code."""
        entries = []
        for name, place, shape, p in zip(self.names, self.places, self.shapes, self.parameters, strict=True):
            entries.append((name, place, shape, p.positive, p.held_prior, p.held_constraint))
        return tuple(entries)

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters picked, in order."""
        return [self.leaves[i] for i in self.places]

    def start(self) -> np.ndarray:
        """The current values, unconstrained."""
        parts = [p.transform.inv(as_array(p.value)) for p in self.parameters]
        return np.concatenate([np.ravel(part) for part in parts]) if parts else np.zeros(0)

    def constrain(self, vector: Any) -> list[Any]:
        """The values of an unconstrained vector."""
        return constrain(self.parameters, vector)

    def log_prior(self, values: list[Any]) -> Any:
        """The log prior density of the values, over those that have a prior."""
        pairs = zip(self.parameters, values, strict=True)
        return sum((jnp.sum(p.prior.log_prob(v)) for p, v in pairs if p.prior is not None), jnp.zeros(()))

    def log_prior_unconstrained(self, vector: Any) -> Any:
        """The log prior density of an unconstrained vector, the transforms' Jacobian included."""
        if not self.places:
            return jnp.zeros(())
        parts = jnp.split(vector, self.splits)
        total = self.log_prior(self.constrain(vector))
        for p, part, shape in zip(self.parameters, parts, self.free_shapes, strict=True):
            x = part.reshape(shape)
            total = total + jnp.sum(p.transform.log_abs_det_jacobian(x, p.transform(x)))
        return total

    def middle(self, draws: list[np.ndarray]) -> list[np.ndarray]:
        """The medians of draws (chains, draws, ...), entry by entry and put back within the constraints."""
        medians = [np.median(values, axis=(0, 1)) for values in draws]
        pairs = zip(self.parameters, medians, strict=True)
        return [m if p.constraint is None else np.asarray(p.transform(p.transform.inv(m))) for p, m in pairs]

    def with_values(self, values: list[Any]) -> Model:
        """The model with other values."""
        return with_values(self.model, self.places, values)

    def of(self, tree: Any) -> list[Any]:
        """The entries of a pytree shaped like the model that belong to the values picked."""
        leaves = jax.tree_util.tree_leaves(tree, is_leaf=is_parameter)
        return [leaves[i].value for i in self.places]


def free_shape(parameter: Parameter) -> tuple[int, ...]:
    """The shape of a parameter's unconstrained values: a simplex has one fewer than entries."""
    return parameter.transform.inverse_shape(np.shape(parameter.value))


def constrain(parameters: Sequence[Parameter], vector: Any) -> list[Any]:
    """The values of parameters whose unconstrained values are one vector."""
    shapes = [free_shape(p) for p in parameters]
    splits = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    # NumPy splits without compiling anything.
    split: Any = np.split if isinstance(vector, np.ndarray) else jnp.split
    parts = split(vector, splits) if parameters else []
    return [p.transform(part.reshape(shape)) for p, part, shape in zip(parameters, parts, shapes, strict=True)]


def with_values(model: Model, places: Sequence[int], values: Sequence[Any]) -> Model:
    """A model with other values at some places of its pytree; it may be one that has lost its priors."""
    leaves, tree = jax.tree_util.tree_flatten(model, is_leaf=is_parameter)
    for i, value in zip(places, values, strict=True):
        leaves[i] = leaves[i].with_value(value)
    return jax.tree_util.tree_unflatten(tree, leaves)


def learned(model: Model) -> Unknowns:
    """What ``fit`` may change: all that is not Fixed."""
    return Unknowns(model, lambda parameter: parameter.learned)


def uncertain(model: Model) -> Unknowns:
    """What a fully Bayesian engine samples: all that has a prior and is not Fixed."""
    return Unknowns(model, is_uncertain)


def is_uncertain(parameter: Parameter) -> bool:
    """Whether a fully Bayesian engine samples a parameter."""
    return parameter.learned and parameter.prior is not None


def are_held(model: Model) -> tuple[bool, ...]:
    """Of each group of latents, whether nothing of its kernel is uncertain."""
    return tuple(not _any_uncertain(gp.kernel) for gp in model.gps)


def has_one_prior(model: Model) -> bool:
    """Whether nothing is uncertain of the latents' prior, neither kernels nor means."""
    return not _any_uncertain(model.gps)


def _any_uncertain(tree: Any) -> bool:
    leaves = jax.tree.leaves(tree, is_leaf=is_parameter)
    return any(is_parameter(leaf) and is_uncertain(leaf) for leaf in leaves)
