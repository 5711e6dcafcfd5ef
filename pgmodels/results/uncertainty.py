"""The uncertainty of learned parameters, by the generalised delta method."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.model import GP, Model, Points
from pgmodels.numerics.quadrature import normal_nodes
from pgmodels.parameters.vector import ParameterVector, trainable
from pgmodels.priors.base import LatentPrior, Sites
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.distinct_inputs import DistinctInputs
from pgmodels.priors.inducing.representation import inducing_points_at
from pgmodels.priors.low_rank import InducingPointPrior, InducingPoints
from pgmodels.priors.padding import pad_zeros, padded_size
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.seeds import Seed, as_seed
from pgmodels.runtime.x64 import as_array, double_precision

# Nodes for moments and quantiles of parameters that have no closed form.
_NODES = 4096
# Follows a seed, for draws that are independent of others with it.
_STREAM = 64
# The step of central differences along a direction, in standard deviations: the mean is smooth, and exact to rounding.
_STEP = 1e-2


@dataclass(frozen=True, eq=False)
class ParameterUncertainty:
    """Learned parameters t ~ N(vector, C), unconstrained, and how the latents' means move with them.

    ``root`` (parameters, directions) has root root^T = C; parameters without an interval have rows of zeros. Parameters
    of the likelihood depend on the first of the standard normal directions alone. Of q at the data, ``pull`` (n, L) is
    K^-1 (m - mean), and ``pulls`` (directions, n, L) its derivative along the directions; ``shifts`` (directions, n, L)
    is the derivative of the means m at the data, and ``coefficients`` (directions, features, L) of the means of
    coefficients whose prior variances are known, None without any.

    Given t, the latents have the mean m + J (t - vector), and the covariance V at the learned values: their covariance
    is V + J C J^T (the generalised delta method: Kass and Steffey 1989; math: section 5b).
    """

    vector: Float[np.ndarray, " p"]
    root: Float[np.ndarray, "p k"]
    pull: Float[np.ndarray, "n l"]
    pulls: Float[np.ndarray, "k n l"]
    shifts: Float[np.ndarray, "k n l"]
    coefficients: Float[np.ndarray, "k c l"] | None = None

    @double_precision
    def values(self, model: Model, scores: Float[np.ndarray, "s k"]) -> dict[str, np.ndarray]:
        """The parameters by name, (s, ...), at standard normal scores."""
        learned = trainable(model)
        values = _constrained(learned, as_array(self.vector + scores @ self.root.T))
        return {name: np.asarray(value) for name, value in zip(learned.names, values, strict=True)}

    def of_likelihood(self, model: Model, scores: Float[np.ndarray, "s k"]) -> dict[str, np.ndarray]:
        """The likelihood's parameters by their names in the formula, (s, 1, entries), at standard normal scores."""
        values, names = self.values(model, scores), trainable(model).of_likelihood
        return {name: values[path].reshape(len(scores), 1, -1) for name, path in names.items()}

    def nodes(self, model: Model) -> dict[str, np.ndarray]:
        """Equally likely values of each parameter that has an interval, (nodes, ...), by name."""
        # Those of one direction have unequal weights.
        scores, _ = normal_nodes(max(2, self.root.shape[1]), _NODES)
        learned, known = trainable(model), self.root.any(axis=1)
        sizes = [int(np.prod(shape)) for shape in learned.free_shapes]
        has_interval = [entries.all() for entries in np.split(known, np.cumsum(sizes)[:-1])]
        values = self.values(model, scores[:, : self.root.shape[1]])
        return {name: values[name] for name, known in zip(learned.names, has_interval, strict=True) if known}

    def scores(self, num_draws: int, seed: Seed) -> Float[np.ndarray, "s k"]:
        """Standard normal draws of the directions, independent of other draws with the seed."""
        return np.random.default_rng([as_seed(seed), _STREAM]).standard_normal((num_draws, self.root.shape[1]))

    def count_of_likelihood(self, model: Model) -> int:
        """The number of directions that the likelihood's parameters depend on."""
        rows = self.root[trainable(model).gps < 0]
        return int(np.max(np.flatnonzero(rows.any(axis=0)), initial=-1)) + 1


def with_shifts(spread: np.ndarray, shifts: Float[np.ndarray, "k m l"]) -> np.ndarray:
    """Variances (m, 1), or covariances (m, l, l), plus those of the directions; of several latents covariances."""
    if not len(shifts):
        return spread
    if shifts.shape[2] == 1 and spread.ndim == 2:
        return spread + np.sum(shifts**2, axis=0)
    covariance = spread if spread.ndim == 3 else spread[:, :, None] * np.eye(spread.shape[1])
    return covariance + np.einsum("kml,kmj->mlj", shifts, shifts)


def cubature(size: int) -> tuple[Float[np.ndarray, "s k"], Float[np.ndarray, " s"]]:
    """Nodes and weights of a standard normal: exact for polynomials of degree 5 in one dimension, 3 in several."""
    if size == 1:
        return np.sqrt(3.0) * np.array([[-1.0], [0.0], [1.0]]), np.array([1.0, 4.0, 1.0]) / 6.0
    ends = np.sqrt(size) * np.eye(size)
    return np.concatenate([ends, -ends]), np.full(2 * size, 0.5 / size)


@double_precision
def shifts_at(
    uncertainty: ParameterUncertainty, model: Model, X: np.ndarray, prior: PriorCollection, X_new: Array
) -> Float[np.ndarray, "k m l"]:
    """The derivatives of the means at new inputs along the directions of a result's parameters.

    The mean is the prior's plus K(X_new, X) times the pull, for every form of the prior, or plus the features times the
    coefficients.
    """
    inputs, signs = model.inputs(X, padded=True), (_STEP, -_STEP)
    points = tuple(_points(gp, group) for gp, group in zip(model.gps, prior.spans().groups, strict=True))
    size = padded_size(len(X)) if model.can_pad else len(X)
    vectors = np.concatenate([uncertainty.vector + sign * uncertainty.root.T for sign in signs])
    pulls = np.concatenate([uncertainty.pull + sign * uncertainty.pulls for sign in signs])
    coefficients: list[Array | None] = [None] * len(model.gps)
    if uncertainty.coefficients is not None:
        moved = np.concatenate([sign * uncertainty.coefficients for sign in signs])
        for index in np.flatnonzero(model.have_known_coefficients(inputs)):
            part = prior.slices()[index]
            # In place of the pull: at a wide prior its product with the covariance is rounding error.
            pulls[:, :, part], coefficients[index] = 0.0, as_array(moved[:, :, part])
    padded = np.moveaxis(pad_zeros(np.moveaxis(pulls, 1, 0), size), 0, 1)
    steps = as_array(vectors), as_array(padded), coefficients
    means = _means(trainable(model), model.bare(), inputs, points, steps, X_new)
    above, below = np.split(np.asarray(means), 2)
    return (above - below) / (2.0 * _STEP)


def _points(gp: GP, group: LatentPrior) -> InducingPoints | None:
    """The inducing points of a group's prior, or its pivots; None if it has neither."""
    if not isinstance(group, InducingPointPrior):
        return None
    if not gp.form.num_inputs:
        return InducingPoints(group.Z, group.active, as_array(0.0))
    return inducing_points_at(gp.kernel, np.asarray(group.Z)[np.asarray(group.active) > 0.0])


@partial(compiled, optimise=False)
def _means(
    learned: ParameterVector, model: Model, inputs: DistinctInputs, points: Points,
    steps: tuple[Array, Array, list[Array | None]], X_new: Array,
) -> Float[Array, "k m l"]:  # fmt: skip
    def mean(at: tuple[Array, Array, list[Array | None]]) -> Array:
        vector, pull, coefficients = at
        prior = learned.apply(model, vector).traced_prior(inputs, points=points, for_moments=True)
        pulls, means = prior.sites_by_group(Sites(pull, jnp.zeros_like(pull))), []
        groups: Any = prior.groups
        for group, of_group, c in zip(groups, pulls, coefficients, strict=True):
            means.append(group.mean_by_pull(X_new, of_group.potential))
            if c is not None:
                basis = group.basis(X_new)
                means[-1] += basis @ c[: basis.shape[1]]
        return jnp.concatenate(means, axis=1)

    return jax.lax.map(mean, steps)


@partial(compiled, optimise=False)
def _constrained(learned: ParameterVector, vectors: Array) -> Any:
    return jax.vmap(learned.constrain)(vectors)
