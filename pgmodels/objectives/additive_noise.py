"""The bound with additive noise: likelihoods that are affine in one probability that the latents decide."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax.scipy.special import log_ndtr, ndtr

from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.indicators import Largest
from pgmodels.numerics.largest import log_probability_of_largest
from pgmodels.objectives.base import Objective, bound_and_sites_of

if TYPE_CHECKING:
    from pgmodels.augmentation.predictors import Predictors

# The least variance of a threshold's argument: at 0 its derivative would be infinite.
_TINY = 1e-24


class Event(ABC):
    """An event that Gaussian latents decide, plus independent Gaussian noise.

    ``key`` identifies its formula, and ``is_noisy`` is whether there is any noise.
    """

    key: Hashable
    is_noisy: bool

    @abstractmethod
    def log_probabilities(self, m: Any, v: Any, env: Environment) -> tuple[Any, Any]:
        """log P(event) and log P(no event) for latents N(m, v), (n, P) each; shapes (n,)."""

    def probability(self, m: Any, v: Any, env: Environment) -> Any:
        """P(event), (n,)."""
        return jnp.exp(self.log_probabilities(m, v, env)[0])


class Threshold(Event):
    """scale * f + shift + noise > 0, with f the only latent or predictor and noise N(0, ``noise``)."""

    def __init__(self, scale: Expression, shift: Expression, noise: float):
        self.scale, self.shift, self.noise = scale, shift, noise
        self.key, self.is_noisy = ("threshold", scale.key, shift.key, noise), noise > 0

    def _standardised(self, m: Any, v: Any, env: Environment) -> Any:
        scale, shift = (jnp.broadcast_to(part.evaluate(env), m.shape)[:, 0] for part in (self.scale, self.shift))
        spread = jnp.maximum(scale**2 * v[:, 0] + self.noise, _TINY)
        return (scale * m[:, 0] + shift) / jnp.sqrt(spread)

    def log_probabilities(self, m: Any, v: Any, env: Environment) -> tuple[Any, Any]:
        z = self._standardised(m, v, env)
        return log_ndtr(z), log_ndtr(-z)

    def probability(self, m: Any, v: Any, env: Environment) -> Any:
        return ndtr(self._standardised(m, v, env))


class TopLatent(Event):
    """The latent of an index, plus noise, is the largest of all latents with noise."""

    def __init__(self, node: Largest):
        self.node = node
        self.key, self.is_noisy = node.key, not node.is_indicator

    def log_probabilities(self, m: Any, v: Any, env: Environment) -> tuple[Any, Any]:
        log_p = log_probability_of_largest(m, v + self.node.noise.evaluate(env), self.node.chosen(env))[..., 0]
        return log_p, jnp.log1p(-jnp.exp(log_p))


class AdditiveNoise(Objective):
    """B = S log p₁ + (1 - S) log p₀ for p(y | f) = p₀ + (p₁ - p₀) P(event | f), with S = P(event) under q.

    p₁ and p₀ are free of the latents, which are independent under q. The event's noise is part of the latents: B is
    E log p(y | g) over f ~ N(m, v) and g = f + noise, below E log p(y | f) unless there is no noise (math: section 6).
    Precisions have any sign: they are negative in rows on the wrong side. Source: Liu et al. 2019, equations 5 to 19.
    """

    name = "additive_noise"
    title = "the bound with additive noise"
    method = "Variational inference with additive noise"
    signed = True
    saturates = True

    def __init__(
        self,
        event: Event,
        if_so: Expression,
        if_not: Expression,
        size: int,
        predictors: "Predictors | None" = None,
    ):
        self.event, self.if_so, self.if_not, self.size, self.predictors = event, if_so, if_not, size, predictors

    @property
    def is_exact(self) -> bool:  # type: ignore[override]
        """Whether B is E log p(y | f): there is no noise."""
        return not self.event.is_noisy

    @property
    def _identity(self) -> Hashable:
        return type(self), self.event.key, self.if_so.key, self.if_not.key, self.size, self.num_latents

    def __hash__(self) -> int:
        return hash(self._identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AdditiveNoise) and self._identity == other._identity

    def local_bound(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        env = Environment(y, jnp.zeros_like(m), parameters)
        one, zero = self._log_outcomes(env)
        return zero + self.event.probability(m, v, env) * (one - zero)

    def local_bound_and_sites(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """The integral of the largest latent is computed once for both."""
        return bound_and_sites_of(lambda m, v: self.local_bound(m, v, y, parameters), m, v)

    def log_marginal(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """log E p(y | f) of each datum for latents or predictors N(m, v), (n, size) each; shape (n,)."""
        env = Environment(y, jnp.zeros_like(m), parameters)
        one, zero = self._log_outcomes(env)
        log_p, log_rest = self.event.log_probabilities(m, v, env)
        return jnp.logaddexp(one + log_p, zero + log_rest)

    def _log_outcomes(self, env: Environment) -> tuple[Any, Any]:
        """log p₁ and log p₀, (n,)."""
        one, zero = (part.log_evaluate(env)[..., 0] for part in (self.if_so, self.if_not))
        return one, zero


class ExpectedIndicator(AdditiveNoise):
    """The expected log density of a formula that is affine in one indicator of independent latents."""

    name = "expected"
    title = "the expected log density"
    method = "The variational Gaussian"

    def is_concave(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """False for each datum, (n,): a log density that jumps is not concave."""
        return jnp.zeros(len(m), dtype=bool)
