"""GP priors bound to inputs: the base class, and padded rows."""

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from pgmodels.numerics.quadrature import power_of_two
from pgmodels.runtime.precision import Module, as_array

# A *site* (h, w) of a latent value f is the factor exp(h f - w f^2 / 2), with potential h and precision w >= 0; for
# Markov chains w may be negative. *Coordinates* are the random vector that represents a draw of the latents: they
# determine the latents at the data (up to an independent residual) and the conditional distribution at new inputs.

RandomKey = PRNGKeyArray | Array
# Coordinates of the latents, one array for each group.
Coordinates = tuple[Array, ...]


@runtime_checkable
class Covariance(Protocol):
    """A covariance function: a kernel, or another object with these two methods."""

    def __call__(self, X: Array, Z: Array, /) -> Array:
        """Return the covariances (n, m) between rows of X and rows of Z."""
        ...

    def diagonal(self, X: Array, /) -> Array:
        """Return the variances (n,) at rows of X."""
        ...


class Sites(NamedTuple):
    """Sites of n data on l latents, or on l predictors: ``potential`` and ``precision``, (n, l) each.

    If a datum's factor couples its latents, exp(h f - f^T W f / 2), the precision is (n, l, l).
    """

    potential: Float[Array, "n l"]
    precision: Float[Array, "n l"] | Float[Array, "n l l"]

    @property
    def coupled(self) -> bool:
        """Whether the latents of a datum are coupled."""
        return self.precision.ndim == 3

    def as_coupled(self) -> "Sites":
        """Return the same sites with precisions (n, l, l)."""
        return self if self.coupled else Sites(self.potential, jax.vmap(jnp.diag)(self.precision))

    def columns(self, part: slice) -> "Sites":
        """Return the sites of a slice of the latents."""
        return Sites(self.potential[:, part], self.precision[:, part])


class Moments(NamedTuple):
    """Posterior means and variances of the latents at n data, the log normaliser of the sites, and KL(q || prior).

    q is the posterior given the sites. The divergence is computed directly, because E_q log sites - log normaliser is
    a small difference of large numbers.
    """

    mean: Float[Array, "n l"]
    variance: Float[Array, "n l"] | Float[Array, "n l l"]
    log_normalizer: Float[Array, ""]
    divergence: Float[Array, ""]


class GroupPosterior(Module):
    """The latents of one group given sites: its Gaussian prior times the sites, normalised, with its factorisation."""

    @abstractmethod
    def moments(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        """Return the mean and the variance of the latents at the data."""

    @abstractmethod
    def log_normalizer(self) -> Float[Array, ""]:
        """Return the logarithm of the integral of the prior times the sites."""

    @abstractmethod
    def predict(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m l"], Float[Array, "m l"]]:
        """Return the mean and the variance of the latents at new inputs."""

    @abstractmethod
    def mean_and_deviation(self, key: RandomKey) -> tuple[Float[Array, "r l"], Float[Array, "r l"]]:
        """Return the mean of the coordinates, and an exact joint draw of their deviation from it."""

    def extended(self, X_new: Float[Array, "m d"]) -> "GroupPosterior":
        """Return the posterior of the latents at the data followed by new inputs; Markov chains use it for draws."""
        raise NotImplementedError(f"{type(self).__name__} does not implement extended.")


class LatentPrior(Module):
    """``size`` independent latents with one kernel and one constant mean, at the inputs X.

    These methods suffice for CAVI and Gibbs sweeps.
    """

    mean: eqx.AbstractVar[Array]
    X: eqx.AbstractVar[Array]
    size: eqx.AbstractVar[int]
    # Whether it stores the covariance at X.
    is_dense: ClassVar[bool] = False
    # Whether it has a factor matrix: see pgmodels.priors.dense.
    has_factor: ClassVar[bool] = False
    # Whether its factor depends on X through inducing points.
    has_points: ClassVar[bool] = False
    # Whether its factor is computed in chunks of rows, and not kept.
    is_chunked: ClassVar[bool] = False
    # Whether it is a Markov chain. Sites may couple it with other latents (see pgmodels.priors.chain_posterior), and
    # independent sites may have negative precisions: log normaliser and divergence are NaN if the posterior is
    # improper. Its posteriors draw jointly at new inputs by ``extended``.
    is_chain: ClassVar[bool] = False
    # Whether products with the factor cost little compared with conditioning.
    has_cheap_products: ClassVar[bool] = False
    # Whether rounding errors of posterior variances are relative to the posterior variances, not to the prior's.
    is_exact: ClassVar[bool] = False

    def resized(self, size: int) -> "LatentPrior":
        """Return the prior truncated or padded to ``size`` rows; outside ``jit``. Optional: engines work without it."""
        raise NotImplementedError(f"{type(self).__name__} does not implement resized, which pads the prior.")

    @property
    def noise_size(self) -> int:
        """The number of standard normals in a draw at a new input, given coordinates."""
        return 1

    def draw_given(
        self, X_new: Float[Array, "m d"], coordinates: Float[Array, "*batch r l"], noise: Float[Array, "*batch m l k"]
    ) -> Float[Array, "*batch m l"]:
        """Return joint draws at new inputs given coordinates, from standard normals; ValueError without a factor."""
        raise no_factor(self)

    @property
    def approximation_error(self) -> Float[Array, ""]:
        """The largest variance that the form adds (jitter) or omits (truncation); 0 is rounding only."""
        return jnp.zeros(())

    def neglected_variance(self) -> Float[Array, " n"]:
        """Return the variance at each row of X that the representation adds or omits; by default the largest."""
        return jnp.full(len(self.X), self.approximation_error)

    def mean_by_pull(self, X_new: Float[Array, "m d"], pull: Float[Array, "n l"]) -> Float[Array, "m l"]:
        """Return the mean at new inputs plus their covariance with X times ``pull``."""
        return self.condition(Sites(pull, jnp.zeros_like(pull))).predict(X_new)[0]

    def truncated_shares(self) -> Float[Array, " n"] | None:
        """Return the share of the kernel's variance at X that the prior leaves out; None if it is zero."""
        return None

    def residual_variance(self) -> Float[Array, " n"] | None:
        """Return the variance at X given the coordinates, independent across data; None if it is zero."""
        return None

    def replaced(self, **changes: Any) -> "LatentPrior":
        """Return the prior with another ``mean`` or ``size``."""
        return replace(self, **changes)

    def coloured(self, whitened: Float[Array, "r l"]) -> Float[Array, "r l"]:
        """Return the coordinates of a draw from an equal number of standard normals; by default the same numbers."""
        return whitened

    def for_sampling(self) -> "LatentPrior":
        """Return the prior as a generative model; some representations only define a variational posterior."""
        return self

    @property
    @abstractmethod
    def rank(self) -> int:
        """The number of coordinates of one latent."""

    @property
    def num_across(self) -> int:
        """The number of values in memory for each new input of a prediction: its covariances with the coordinates."""
        return self.rank

    @abstractmethod
    def condition(self, sites: Sites) -> GroupPosterior:
        """Return the posterior given sites, factorised once."""

    def moments(self, sites: Sites) -> Moments:
        """Return moments, log normaliser and divergence given sites, without keeping the factorisation."""
        posterior, (h, w) = self.condition(sites), sites
        mean, variance = posterior.moments()
        log_normalizer = posterior.log_normalizer()
        divergence = jnp.sum(h * mean - 0.5 * w * (variance + mean**2)) - log_normalizer
        return Moments(mean, variance, log_normalizer, divergence)

    def marginals(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        """Return the prior mean and variance at X."""
        zeros = jnp.zeros((self.X.shape[0], self.size))
        return self.moments(Sites(zeros, zeros))[:2]

    def draw(self, key: RandomKey) -> tuple[Float[Array, "n l"], Float[Array, "r l"]]:
        """Return a prior draw of the latents and its coordinates, which are standard normal by default."""
        coordinates = self.coloured(jax.random.normal(key, (self.rank, self.size), dtype=self.mean.dtype))
        return latents_given(self, key, coordinates), coordinates

    def residual_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "m m"]:
        """Return the covariance of a latent at new inputs, given its coordinates; ValueError without a factor."""
        raise no_factor(self)

    @abstractmethod
    def sweep_operations(self) -> float:
        """Return the floating-point operations to condition one latent on sites and draw from the posterior."""

    @abstractmethod
    def latents(self, coordinates: Float[Array, "*batch r l"]) -> Float[Array, "*batch n l"]:
        """Return the latents at X."""

    @abstractmethod
    def conditional(
        self, X_new: Float[Array, "m d"], coordinates: Float[Array, "*batch r l"]
    ) -> tuple[Float[Array, "*batch m l"], Float[Array, " m"]]:
        """Return the mean and the variance of the latents at new inputs, given coordinates."""


def latents_given(prior: LatentPrior, key: RandomKey, coordinates: Float[Array, "r l"]) -> Float[Array, "n l"]:
    """Draw the latents at X given coordinates; ``key`` may be the one that drew the coordinates."""
    latents, residual = prior.latents(coordinates), prior.residual_variance()
    if residual is None:
        return latents
    # The number separates the noise from the coordinates.
    noise = jax.random.normal(jax.random.fold_in(key, 2**31 - 1), latents.shape, latents.dtype)
    return latents + jnp.sqrt(residual)[:, None] * noise


def no_factor(prior: LatentPrior) -> ValueError:
    """Return the error for a prior without the factor matrix that the operation needs."""
    return ValueError(
        f"the prior {type(prior).__name__} has no factor matrix. Formulas that combine latents, minibatches, moves "
        "about a fitted Gaussian, corrections other than linear response, evidences and joint draws at new inputs need "
        "one: choose another form of the GP, such as pgm.Dense() or pgm.Inducing(300)."
    )


# Data are padded to one of few sizes, so that data sets of similar length share compiled programs.
#
# Padding rows follow the data, repeat the first row and have weight 0: no term in sums over the data, and zero sites.


def padded_size(count: int) -> int:
    """Return the smallest size >= ``count``, at most 1/8 or seven rows larger; ``count`` itself above 16,384."""
    # Above this number of rows, the computation costs more than the compilation, and a padded copy is expensive.
    if count > 16384:
        return count
    # Eight sizes between two powers of two.
    step = max(8, power_of_two(count) // 16)
    return -(-count // step) * step


def pad_rows(array: Shaped[Array, "n *rest"] | np.ndarray, size: int) -> np.ndarray:
    """Truncate to ``size`` rows, or pad by repeating the first row."""
    array = np.asarray(array)
    if size <= len(array):
        return array[:size]
    return np.concatenate([array, np.broadcast_to(array[:1], (size - len(array), *array.shape[1:]))])


def pad_zeros(array: Float[Array, "n *rest"] | np.ndarray, size: int) -> np.ndarray:
    """Truncate to ``size`` rows, or pad with zeros."""
    array = np.asarray(array)[:size]
    return np.concatenate([array, np.zeros((size - len(array), *array.shape[1:]), array.dtype)])


def pad_sites(sites: Sites, size: int) -> Sites:
    """Return the sites truncated to ``size`` rows, or padded with zero sites."""
    return Sites(*(as_array(pad_zeros(part, size)) for part in sites))


def pad_square(matrix: Float[Array, "n n"] | np.ndarray, size: int, diagonal: float) -> np.ndarray:
    """Return the leading block of ``size``, or the matrix padded with ``diagonal`` on the diagonal."""
    matrix = np.asarray(matrix)[:size, :size]
    if len(matrix) == size:
        return matrix
    padded = np.diag(np.full(size, diagonal, matrix.dtype))
    padded[: len(matrix), : len(matrix)] = matrix
    return padded


def row_mask_of(count: int, size: int) -> np.ndarray:
    """Return the mask (size,): 1 for data and 0 for padding."""
    return (np.arange(size) < count).astype(np.float64)


def masked(row_mask: Float[Array, " n"] | None, terms: Float[Array, "n *rest"]) -> Float[Array, "n *rest"]:
    """Return the terms of each row, zero where ``row_mask`` is zero; None means no padding."""
    if row_mask is None:
        return terms
    return jnp.where(row_mask.reshape(-1, *[1] * (terms.ndim - 1)) > 0, terms, 0.0)


def weighted(row_weights: Float[Array, " n"] | None, terms: Float[Array, "n *rest"]) -> Float[Array, "n *rest"]:
    """Return terms of each row times its weight, zero for padding even if not finite; None means weights of 1."""
    if row_weights is None:
        return terms
    return masked(row_weights, row_weights.reshape(-1, *[1] * (terms.ndim - 1)) * terms)
