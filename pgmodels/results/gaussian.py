"""Gaussian results, and their corrections, mixtures and uncertainty of parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from pgmodels.data.arrays import check_whole_number, in_units_of
from pgmodels.likelihoods.sampling import SamplingWarning
from pgmodels.model import GP, Model, Points, have_known_coefficients, num_padded
from pgmodels.numerics.quadrature import chunk_length, equal_chunks, normal_nodes
from pgmodels.parameters.vector import ParameterVector, trainable
from pgmodels.priors.base import LatentPrior, Sites, pad_rows, pad_zeros, padded_size
from pgmodels.priors.block_posterior import draw_deviations, draw_gaussian
from pgmodels.priors.collection import Posterior, PriorCollection, check_covariances, factors_at
from pgmodels.priors.dense import InducingPointPrior, InducingPoints
from pgmodels.priors.inducing import inducing_points_at
from pgmodels.priors.linalg import transposed_times
from pgmodels.priors.rows import DistinctInputs
from pgmodels.results.predictive import (
    DrawNodes,
    GaussianNodes,
    IndependentNodes,
    PredictionWarning,
    Predictive,
    PredictorNodes,
    check_covariates,
)
from pgmodels.results.result import BaseResult, Index, check_levels
from pgmodels.runtime.jit import compiled, require_draws
from pgmodels.runtime.messages import PgmodelsWarning, shorten, suppress_warnings, warn
from pgmodels.runtime.precision import as_array, double_precision
from pgmodels.runtime.seeds import Seed, as_generator, as_seed


class CorrectionWarning(PgmodelsWarning):
    """A warning: variances need a correction, or a corrected variance is negative or larger than possible."""


# The means (m, latents) of each row, and their variances (m, latents) or covariances (m, latents, latents).
RowMoments: TypeAlias = tuple[np.ndarray, np.ndarray]


def second_order_moments(
    mean: np.ndarray, spread: np.ndarray, cross: np.ndarray, shift: np.ndarray, curvature: np.ndarray
) -> RowMoments:
    """Return moments of each row's latents corrected to second order (math: section 5).

    ``cross`` is Cov_q(f_*, f) (latents, m, n). For coupled latents it is Cov_q(f_*, z) (latents, m, n, P) with the
    predictors z of the data. ``shift`` and ``curvature`` are E[∂Q/∂z] and E[∂²Q/∂z²] at the data.
    """
    if cross.ndim == 3:
        moved = 0.5 * np.einsum("lmn,nl->ml", cross, shift)
        return mean + moved, spread + 0.5 * np.einsum("lmn,nl->ml", cross**2, curvature) - moved**2
    moved, quadratic = (np.asarray(part) for part in _coupled_terms(cross, shift, curvature))
    return mean + moved, spread + 0.5 * quadratic - moved[:, :, None] * moved[:, None, :]


@compiled
def _coupled_terms(cross: np.ndarray, shift: np.ndarray, curvature: np.ndarray) -> tuple[Array, Array]:
    moved = 0.5 * jnp.einsum("amnp,np->ma", cross, shift)
    return moved, jnp.einsum("amnp,npq,bmnq->mab", cross, curvature, cross)


def added_moments(
    factors: Sequence[Array], shift: Float[Array, " D"], response: Float[Array, "D D"]
) -> tuple[Float[Array, "m L"], Float[Array, "m L L"]]:
    """Return the terms that linear response adds to the mean (m, L) and the covariance (m, L, L) of each row's latents.

    ``factors`` are the A (rank, m) of each latent, f = mean + A^T v. ``shift`` (D,) and ``response`` (D, D) are added
    to the mean and the covariance of the concatenated v.
    """
    ends = np.cumsum([len(A) for A in factors])[:-1]
    means = [A.T @ block for A, block in zip(factors, jnp.split(shift, ends), strict=True)]
    blocks = _blocks(factors, response)
    added = [[jnp.sum(A * (block @ B), axis=0) for B, block in zip(factors, row, strict=True)] for A, row in blocks]
    return jnp.stack(means, axis=-1), jnp.moveaxis(jnp.array(added), 2, 0)


def joint_covariance(
    posterior: Posterior, X_new: Float[Array, "m d"], response: Float[Array, "D D"]
) -> Float[Array, "L m L m"]:
    """Return the covariance of the latents at new inputs by linear response, (L, m, L, m)."""
    V, factors = posterior.covariance_at(X_new), factors_at(posterior.prior, X_new)
    if not posterior.is_coupled:
        block, (size, rows, _) = jnp.arange(len(V)), V.shape
        V = jnp.zeros((size, rows, size, rows), V.dtype).at[block, :, block].set(V)
    blocks = _blocks(factors, response)
    added = [[A.T @ block @ B for B, block in zip(factors, row, strict=True)] for A, row in blocks]
    return V + jnp.moveaxis(jnp.array(added), 1, 2)


def _blocks(factors: Sequence[Array], response: Float[Array, "D D"]) -> list[tuple[Array, list[Array]]]:
    """Return the factor of each latent, and the blocks of a matrix between its coordinates and each latent's."""
    ends = np.cumsum([len(A) for A in factors])[:-1]
    return [(A, jnp.split(row, ends, axis=1)) for A, row in zip(factors, jnp.split(response, ends), strict=True)]


def mixing(model: Model, y: np.ndarray | Array) -> Float[Array, "n P L"] | None:
    """Return Φ at the data; None if no factor combines latents."""
    predictors = model.predictors
    return None if predictors is None else predictors.matrix(as_array(y), model.parameters)


def is_invalid(variance: np.ndarray) -> np.ndarray:
    """Return whether corrected variances are invalid: negative or NaN. 0 is valid if the prior variance is 0."""
    return ~(variance >= 0)


def warn_invalid(variance: np.ndarray, where: str) -> int:
    """Warn of invalid corrected variances, and return their number; see ``is_invalid``."""
    bad = is_invalid(variance)
    count = int(np.sum(bad))
    if count:
        row = int(np.argwhere(bad)[0][0])
        warn(
            f"{count} of {variance.size} corrected variances at {where} are not positive (first in row {row}, the "
            f"lowest {variance.min():.3g}): the correction is not reliable there.",
            CorrectionWarning,
        )
    return count


def require_variances(spread: np.ndarray) -> None:
    """Raise ValueError, and warn, if variances or covariances at X_new are not valid."""
    variances = diagonals(spread)
    count = warn_invalid(variances, "X_new")
    if count:
        row = int(np.argwhere(is_invalid(variances))[0][0])
        raise ValueError(
            f"the corrected variance is {variances[row].min():.3g} in row {row} of X_new ({count} such rows): the "
            "correction is not valid there. Predict with the uncorrected result or with draws."
        )


def diagonals(spread: np.ndarray) -> np.ndarray:
    """Return the variances (m, latents) of each row's latents from their variances or covariances."""
    return spread if spread.ndim == 2 else np.diagonal(spread, axis1=1, axis2=2)


def as_covariances(spread: np.ndarray) -> np.ndarray:
    """Return the covariances (m, latents, latents) of each row's latents from their variances or covariances."""
    return spread if spread.ndim == 3 else spread[:, :, None] * np.eye(spread.shape[1])


# The uncertainty of learned parameters, by the generalised delta method.


@dataclass(frozen=True, eq=False)
class ParameterUncertainty:
    """Learned parameters t ~ N(vector, C), unconstrained, and the derivatives of the latents' means in them.

    ``root`` (parameters, directions) has root root^T = C; parameters without an interval have rows of zeros. Parameters
    of the likelihood depend only on the first of the standard normal directions. For q at the data, ``pull`` (n, L) is
    K^-1 (m - mean). Three fields are derivatives along the directions: ``pulls`` (directions, n, L) of the pull, and
    ``shifts`` (directions, n, L) of the means m. ``coefficients`` (directions, features, L) is the derivative of the
    means of coefficients with known prior variances; None without such coefficients.

    Given t, the latents have the mean m + J (t - vector), and the covariance V at the learned values. Their covariance
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
        """Return the parameters by name, (s, ...), at standard normal scores."""
        learned = trainable(model)
        values = constrained(learned, as_array(self.vector + scores @ self.root.T))
        return {name: np.asarray(value) for name, value in zip(learned.names, values, strict=True)}

    def of_likelihood(self, model: Model, scores: Float[np.ndarray, "s k"]) -> dict[str, np.ndarray]:
        """Return the likelihood's parameters by name in the formula, (s, 1, entries), at standard normal scores."""
        values, names = self.values(model, scores), trainable(model).of_likelihood
        return {name: values[path].reshape(len(scores), 1, -1) for name, path in names.items()}

    def nodes(self, model: Model) -> dict[str, np.ndarray]:
        """Return equally likely values of each parameter that has an interval, (nodes, ...), by name."""
        # Enough nodes for moments and quantiles without a closed form. One direction alone has unequal weights.
        scores, _ = normal_nodes(max(2, self.root.shape[1]), 4096)
        learned, known = trainable(model), self.root.any(axis=1)
        sizes = [int(np.prod(shape)) for shape in learned.free_shapes]
        has_interval = [entries.all() for entries in np.split(known, np.cumsum(sizes)[:-1])]
        values = self.values(model, scores[:, : self.root.shape[1]])
        return {name: values[name] for name, known in zip(learned.names, has_interval, strict=True) if known}

    def scores(self, num_draws: int, seed: Seed) -> Float[np.ndarray, "s k"]:
        """Return standard normal draws of the directions, independent of other draws with the seed."""
        # The second number separates this stream from all others with the seed.
        return np.random.default_rng([as_seed(seed), 64]).standard_normal((num_draws, self.root.shape[1]))

    def count_of_likelihood(self, model: Model) -> int:
        """Return the number of directions that the likelihood's parameters depend on."""
        return int(np.max(np.flatnonzero(self.root[trainable(model).gps < 0].any(axis=0)), initial=-1)) + 1


def with_shifts(spread: np.ndarray, shifts: Float[np.ndarray, "k m l"]) -> np.ndarray:
    """Return variances (m, 1), or covariances (m, l, l) of several latents, plus the covariance of the shifts."""
    if not len(shifts):
        return spread
    if shifts.shape[2] == 1 and spread.ndim == 2:
        return spread + np.sum(shifts**2, axis=0)
    return as_covariances(spread) + np.einsum("kml,kmj->mlj", shifts, shifts)


def cubature(size: int) -> tuple[Float[np.ndarray, "s k"], Float[np.ndarray, " s"]]:
    """Return nodes and weights of a standard normal, exact to degree 5 in one dimension and to degree 3 in several."""
    if size == 1:
        return np.sqrt(3.0) * np.array([[-1.0], [0.0], [1.0]]), np.array([1.0, 4.0, 1.0]) / 6.0
    ends = np.sqrt(size) * np.eye(size)
    return np.concatenate([ends, -ends]), np.full(2 * size, 0.5 / size)


@double_precision
def shifts_at(
    uncertainty: ParameterUncertainty, model: Model, X: np.ndarray, prior: PriorCollection, X_new: Array
) -> Float[np.ndarray, "k m l"]:
    """Return the derivatives of the means at new inputs along the directions of a result's parameters.

    The mean is the prior mean plus K(X_new, X) times the pull, for each form of the prior. If coefficients are known,
    it is the prior mean plus the features times the coefficients.
    """
    # The step of central differences, in standard deviations: the mean is smooth, and exact to rounding.
    step = 1e-2
    inputs, signs = model.inputs(X, padded=True), (step, -step)
    points = tuple(_points(gp, group) for gp, group in zip(model.gps, prior.spans().groups, strict=True))
    size = num_padded(model, len(X))
    vectors = np.concatenate([uncertainty.vector + sign * uncertainty.root.T for sign in signs])
    pulls = np.concatenate([uncertainty.pull + sign * uncertainty.pulls for sign in signs])
    coefficients: list[Array | None] = [None] * len(model.gps)
    if uncertainty.coefficients is not None:
        moved = np.concatenate([sign * uncertainty.coefficients for sign in signs])
        for index in np.flatnonzero(have_known_coefficients(model, inputs)):
            part = prior.slices()[index]
            # Used instead of the pull, whose product with the covariance is rounding error if the prior is wide.
            pulls[:, :, part], coefficients[index] = 0.0, as_array(moved[:, :, part])
    padded = np.moveaxis(pad_zeros(np.moveaxis(pulls, 1, 0), size), 0, 1)
    steps = as_array(vectors), as_array(padded), coefficients
    above, below = np.split(np.asarray(_means(trainable(model), model.bare(), inputs, points, steps, X_new)), 2)
    return (above - below) / (2.0 * step)


def _points(gp: GP, group: LatentPrior) -> InducingPoints | None:
    if not group.has_points:
        return None
    group = cast(InducingPointPrior, group)
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
        prior = learned.apply(model, vector).prior(inputs, traced=True, points=points, for_moments=True)
        pulls, means = prior.sites_by_group(Sites(pull, jnp.zeros_like(pull))), []
        groups: Any = prior.groups
        for group, of_group, c in zip(groups, pulls, coefficients, strict=True):
            means.append(group.mean_by_pull(X_new, of_group.potential))
            if c is not None:
                A = group.loadings_at(X_new)[0]
                means[-1] += transposed_times(A, c[: len(A)])
        return jnp.concatenate(means, axis=1)

    return jax.lax.map(mean, steps)


@partial(compiled, optimise=False)
def constrained(learned: ParameterVector, vectors: Float[Array, "s p"]) -> list[Array]:
    """Return the constrained values of each parameter, (s, ...), from unconstrained vectors."""
    return jax.vmap(learned.constrain)(vectors)


class NormalDensity:
    """Normal densities (...) with means and variances (...); NaN for a variance that is not positive."""

    def __init__(self, mean: np.ndarray, variance: np.ndarray):
        self.mean, self.variance = mean, variance
        self.deviation = np.sqrt(np.where(variance >= 0.0, variance, np.nan))

    def __getitem__(self, where: Index) -> "NormalDensity":
        return NormalDensity(self.mean[where], self.variance[where])

    @property
    def skewness(self) -> np.ndarray:
        """The third central moments in units of the standard deviation: 0."""
        return np.zeros_like(self.mean)

    def pdf(self, values: np.ndarray) -> np.ndarray:
        """Return the densities at values (k, ...), broadcast against the densities."""
        return np.exp(-0.5 * ((values - self.mean) / self.deviation) ** 2) / (np.sqrt(2.0 * np.pi) * self.deviation)

    def quantiles(self, levels: ArrayLike) -> np.ndarray:
        """Return quantiles (levels, ...) at levels between 0 and 1."""
        return self.mean + self.deviation * scipy.special.ndtri(check_levels(levels)).reshape(-1, *[1] * self.mean.ndim)

    def wasserstein(self, sorted_draws: np.ndarray) -> np.ndarray:
        """Return exact Wasserstein-1 distances (...) from sorted draws (draws, ...).

        The integral of |x_(i) - mean - deviation Phi^-1(u)| over u in ((i - 1) / S, i / S), summed over the S draws.
        """
        edges = np.linspace(0.0, 1.0, len(sorted_draws) + 1).reshape(-1, *[1] * self.mean.ndim)
        scores = scipy.special.ndtri(edges)
        heights = np.exp(-0.5 * scores**2) / np.sqrt(2.0 * np.pi)
        offset = sorted_draws - self.mean
        # The integrand changes sign where the normal's quantile equals the draw.
        with np.errstate(divide="ignore"):
            z = np.clip(in_units_of(self.deviation, offset), scores[:-1], scores[1:])
        height = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
        at_sign_change = 2.0 * (offset * scipy.special.ndtr(z) + self.deviation * height)
        ends = offset * (edges[:-1] + edges[1:]) + self.deviation * (heights[:-1] + heights[1:])
        return np.maximum(at_sign_change - ends, 0.0).sum(axis=0)


class GaussianPredictions(BaseResult):
    """Predictions at new inputs from a model and a Gaussian posterior of its latents."""

    if TYPE_CHECKING:
        posterior: Posterior

    def _inputs_at(self, X_new: ArrayLike, jointly: bool = False) -> np.ndarray:
        """Return checked new inputs, standardised if the model's inputs are."""
        inputs = self.check_inputs(X_new)
        check_covariances(self.posterior.prior, inputs, jointly=jointly)
        return inputs

    def predict_latent(self, X_new: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = self._marginals_at(X_new)
        return mean, diagonals(variance)

    def predict(self, X_new: ArrayLike, covariates: ArrayLike | None = None) -> Predictive:
        mean, variance = self._marginals_at(X_new)
        covariates = check_covariates(self.likelihood, self.model.num_latents, covariates, len(mean))
        return Predictive(self.likelihood, nodes_at(self.model, mean, variance, covariates), covariates, self.labels)

    @double_precision
    def _marginals_at(self, X_new: ArrayLike) -> RowMoments:
        """Return the means (m, latents) at X_new, and each row's variances or, for coupled latents, covariances."""
        inputs, width = self._inputs_at(X_new), self._num_across * self.model.num_latents
        # Rows are processed in chunks that fit into memory; the last chunk is padded.
        chunks = equal_chunks(np.arange(len(inputs)), min(padded_size(len(inputs)), chunk_length(width)))
        moments = zip(*(self._moments_at(as_array(inputs[rows])) for rows in chunks), strict=True)
        mean, variance = (np.concatenate(both)[: len(inputs)] for both in moments)
        bad = ~np.isfinite(variance.reshape(len(inputs), -1)).all(axis=1)
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(
                f"X_new: the variance of a latent overflows double precision in row {row}, "
                f"{shorten(inputs[row].tolist())}. Check the scale of X_new, or leave such rows out."
            )
        return mean, variance

    @property
    def _num_across(self) -> int:
        return max(group.num_across for group in self.posterior.prior.groups)

    def _moments_at(self, inputs: Array) -> RowMoments:
        mean, spread = _marginals(self.posterior, inputs)
        return np.asarray(mean), np.asarray(spread)

    def joint_nodes(self, X_new: ArrayLike, num_draws: int, seed: Seed = 0) -> DrawNodes:
        check_whole_number(num_draws, "num_draws", 1)
        return DrawNodes(self._drawn_at(X_new, num_draws, as_seed(seed)))

    def _drawn_at(self, X_new: ArrayLike, num_draws: int, seed: int) -> np.ndarray:
        count, size = len(self.check_inputs(X_new)), self.model.num_latents
        if self.posterior.extends:
            require_draws(num_draws, count, size)
            inputs, keys = self._inputs_at(X_new, jointly=True), jax.random.split(jax.random.key(seed), num_draws)
            padded = as_array(pad_rows(inputs, padded_size(len(inputs))))
            return np.asarray(_drawn_at(self.posterior, padded, keys))[:, : len(inputs)]
        # Memory: three copies of the covariance of each latent, or five copies of the covariance of all latents.
        entries = 3.0 * size * count**2 if not self.posterior.is_coupled else 5.0 * (size * count) ** 2
        require_draws(num_draws, count, size, 8.0 * entries)
        mean, _ = self._marginals_at(X_new)
        covariance = self._covariance_at(as_array(self._inputs_at(X_new, jointly=True)))
        return draw_gaussian(mean, covariance, num_draws, np.random.default_rng(seed))

    def marginal_nodes(self, X_new: ArrayLike, num_draws: int, seed: Seed = 0) -> DrawNodes:
        check_whole_number(num_draws, "num_draws", 1)
        mean, spread = self._marginals_at(X_new)
        require_draws(num_draws, *mean.shape)
        return DrawNodes(mean + draw_deviations(spread, num_draws, as_generator(seed)))

    def _covariance_at(self, X_new: Array) -> np.ndarray:
        return np.asarray(_covariance_at(self.posterior, X_new))


@double_precision
def nodes_at(model: Model, mean: np.ndarray, variance: np.ndarray, covariates: np.ndarray | None) -> GaussianNodes:
    """Return quadrature nodes over the latents of each row, from variances (m, latents) or covariances."""
    if variance.ndim == 2:
        return IndependentNodes(mean, variance)
    return PredictorNodes(mean, variance, mixing_at(model, len(mean), covariates))


def mixing_at(model: Model, num_rows: int, covariates: np.ndarray | None) -> np.ndarray | None:
    """Return the Φ of predictors at new inputs (m, P, L); None without predictors or without their covariates."""
    predictors, support = model.predictors, model.likelihood.support(model.num_latents)
    if predictors is None:
        return None
    observed = set(range(support.num_columns - support.num_covariates))
    columns = np.empty((num_rows, 0)) if covariates is None else covariates
    read = set(predictors.columns_read)
    if read & observed or (read and columns.shape[1] < support.num_covariates):
        return None
    y = np.column_stack([np.zeros(num_rows), support.others(columns)]) if read else np.zeros(num_rows)
    return np.asarray(predictors.matrix(y, model.parameters))


@compiled
def _marginals(posterior: Posterior, X_new: Array) -> tuple[Array, Array]:
    return posterior.marginals_at(X_new) if posterior.is_coupled else posterior.predict(X_new)


@compiled
def _drawn_at(posterior: Any, X_new: Array, keys: Key[Array, " draws"]) -> Array:
    return posterior.drawn_at(X_new, keys)


@compiled
def _covariance_at(posterior: Posterior, X_new: Array) -> Array:
    return posterior.covariance_at(X_new)


# Mixtures: of Gaussian marginals, and of predictive distributions.


def mixed_moments(weights: np.ndarray, means: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the variance (...) of mixtures of components with these moments, (components, ...)."""
    mean = np.tensordot(weights, means, axes=1)
    return mean, np.tensordot(weights, variances + (means - mean) ** 2, axes=1)


def mixed_quantiles(levels: ArrayLike, weights: np.ndarray, means: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Return quantiles (levels, ...) of mixtures of normal distributions, (components, ...), by bisection."""
    probabilities, scales = check_levels(levels), np.sqrt(variances)
    reach = 10.0 * scales
    shape = (len(probabilities), *means.shape[1:])
    low, high = (np.broadcast_to(end, shape).copy() for end in ((means - reach).min(0), (means + reach).max(0)))
    target = probabilities.reshape(-1, *[1] * (means.ndim - 1))
    for _ in range(60):
        middle = 0.5 * (low + high)
        scores = in_units_of(scales[:, None], middle[None] - means[:, None])
        below = np.tensordot(weights, scipy.special.ndtr(scores), axes=1) < target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)


class MixedPredictive(Predictive):
    """A mixture of predictive distributions, each with its parameters; ``weights`` sum to 1."""

    def __init__(self, weights: np.ndarray, components: Sequence[Predictive]):
        self.weights, self.components = weights, tuple(components)
        first = components[0]
        self.likelihood, self.support, self.covariates = first.likelihood, first.support, first.covariates
        self.labels = first.labels

    @property
    def mean(self) -> np.ndarray:
        return self._mix([part.mean for part in self.components])

    @property
    def variance(self) -> np.ndarray:
        means, variances = zip(*((part.mean, part.variance) for part in self.components), strict=True)
        return mixed_moments(self.weights, np.stack(means), np.stack(variances))[1]

    @property
    def probabilities(self) -> np.ndarray:
        return self._mix([part.probabilities for part in self.components])

    def log_density_at(self, y_new: np.ndarray) -> np.ndarray:
        each = np.stack([part.log_density_at(y_new) for part in self.components])
        return scipy.special.logsumexp(each, axis=0, b=self.weights[:, None])

    def survival(self, times: ArrayLike) -> np.ndarray:
        return self._mix([part.survival(times) for part in self.components])

    def probabilities_of(self, values: ArrayLike) -> np.ndarray:
        return self._mix([part.probabilities_of(values) for part in self.components])

    def draw(self, num_draws: int = 1000, seed: Seed = 0) -> np.ndarray:
        """Return draws of the components in proportion to their weights, in random order; see Predictive."""
        check_whole_number(num_draws, "num_draws", 1)
        rng = as_generator(seed)
        counts = rng.multinomial(num_draws, self.weights)
        seeds = rng.integers(1 << 31, size=len(counts))
        chosen = zip(self.components, counts.tolist(), seeds.tolist(), strict=True)
        return rng.permutation(np.concatenate([part.draw(count, seed) for part, count, seed in chosen if count]))

    def _mix(self, values: Sequence[np.ndarray]) -> np.ndarray:
        return np.tensordot(self.weights, np.stack(values), axes=1)


# For each row, the response of y is averaged over the corrected or over the uncorrected Gaussian.

# A response is skewed if both conditions hold: the two averages differ by more than 0.1 standard deviations of y given
# the latents, and by more than 20 % of the average. Errors against quadrature (uncorrected, corrected, this rule), with
# one latent, one or eight data, prior variances 0.25 to 100 and means -3 to 1.5, at the data and next to them:
# log E y (at most 1): Poisson 0.015, 0.101, 0.027; negative binomial 0.082, 0.107, 0.081, by cavi 0.127, 0.136, 0.110;
# exponential times (mean in the heavy tail) 0.179, 0.139, 0.151. Label probabilities in 0.001 nats: Bernoulli 0.1, 2.3,
# 0.2, by cavi 1.2, 6.6, 1.5; probit 0.6, 6.2, 0.5, by cavi 9.9, 38, 12. The first condition excludes rare events: 20 %
# of a small probability is not visible in y (breast-cancer by cavi: in 43 of 300 rows the corrected probabilities are
# thirty times more accurate). The second condition excludes large counts.
_VISIBLE, _SKEWED = 0.1, 0.2


@double_precision
def averaging(
    model: Model, y: np.ndarray, corrected: RowMoments, plain: RowMoments, covariates: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the moments of each row's latents for predicting y, and the rows (m,) with uncorrected ones.

    Moments are means (m, latents) with variances (m, latents) or covariances, after and before a correction. The
    response is E[y | f], or the probability of each value of y. If neither is known, no row is replaced. Without
    ``covariates`` (m, columns), the covariates of the first observation of ``y`` are used.
    """
    (mean, spread), (centre, other) = corrected, plain
    other = as_covariances(other) if spread.ndim == 3 else diagonals(other)
    columns = model.likelihood.support(model.num_latents).covariate_columns(y)
    if covariates is None and columns is not None:
        covariates = np.repeat(columns[:1], len(mean), axis=0)
    with suppress_warnings(PredictionWarning), suppress_warnings(SamplingWarning):
        try:
            # Both Gaussians have one mean here, because a shift by the correction is not skewness.
            after, _ = _responses(model, mean, spread, covariates)
            before, _ = _responses(model, mean, other, covariates)
            _, noise = _responses(model, mean, np.zeros_like(other), covariates, at_mean=True)
        except ValueError:
            # Formulas with unknown constants or support have no average response.
            return mean, spread, np.zeros(len(mean), dtype=bool)
    with np.errstate(invalid="ignore"):
        # Only finite averages and variances are compared.
        least = _VISIBLE * np.sqrt(np.maximum(noise, 0.0))
        moved = np.abs(after - before) > np.maximum(least, _SKEWED * np.abs(before))
    rows = (moved & np.isfinite(before)).any(axis=1)
    mask = rows.reshape(-1, *[1] * (spread.ndim - 1))
    return np.where(rows[:, None], centre, mean), np.where(mask, other, spread), rows


def _responses(
    model: Model, mean: np.ndarray, variance: np.ndarray, covariates: np.ndarray | None, at_mean: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return averages of the responses (m, responses) over Gaussians, and the conditional variances of y."""
    nodes = nodes_at(model, mean, variance, covariates)
    # Just accurate enough to compare two averages.
    count = 16 if nodes.num_directions == 1 else 256
    nodes.levels = (1 if at_mean else count,) * 2
    predictive = Predictive(model.likelihood, nodes, covariates)
    if predictive.support.values() is None:
        return predictive.mean[:, None], predictive.variance[:, None]
    p = predictive.probabilities
    return p, p * (1.0 - p)


def warn_skewed(rows: np.ndarray, where: str) -> None:
    """Warn of rows in which y is predicted by the uncorrected Gaussian."""
    count = int(rows.sum())
    if count:
        warn(
            f"in {count} of {len(rows)} rows of {where} (first in row {int(np.argmax(rows))}) y is predicted with the "
            "uncorrected Gaussian: the corrected one would change the mean of y or a label's probability by more than "
            f"{_SKEWED:.0%}, by a tail that a skewed posterior lacks. For exact predictions, use gibbs or nuts.",
            PredictionWarning,
        )
