"""Distributions of auxiliary variables: draws, densities, means, integration grids and notation.

Their parameters are formulas: of the latents in complete conditionals, of q's moments under the optimal q.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
from jax.scipy.stats import norm

from pgmodels import polya_gamma
from pgmodels.augmentation.averages import Function
from pgmodels.augmentation.samplers import inverse_gaussian, truncated_normal
from pgmodels.likelihoods.algebra import add, multiply, power
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.functions import normal_cdf
from pgmodels.likelihoods.notation import Bracketed, Part, Tree, call, line, words
from pgmodels.likelihoods.symbols import Constant

ONE = Constant(1.0)


@dataclass(frozen=True)
class Grid:
    """Quadrature nodes ``values`` (points, n, ...) with weights exp(log_measure); ``known`` marks computable data."""

    values: np.ndarray
    log_measure: np.ndarray
    known: np.ndarray


class Law(ABC):
    """The distribution of an auxiliary variable.

    Where the exponent ``switch`` is zero there is no auxiliary: its density is defined as 1, and its value is zero if
    ``is_zero_where_off``, arbitrary otherwise.
    """

    switch: Expression
    is_zero_where_off: ClassVar[bool] = True

    @abstractmethod
    def draw(self, key: Any, env: Environment) -> Any:
        """One draw for each entry of the broadcast parameters."""

    @abstractmethod
    def log_density(self, value: Any, env: Environment) -> Any:
        """The log density at a value, 0 where the law is switched off."""

    @abstractmethod
    def mean(self) -> Expression:
        """The mean as a formula."""

    @abstractmethod
    def grid(self, centre: np.ndarray, env: Environment) -> Grid:
        """An integration grid around ``centre`` (n, ...), typical values of the variable."""

    @abstractmethod
    def notation(self, variable: Part) -> Tree:
        """The distribution of ``variable`` as printed in derivations."""

    def perturbed(self, value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Other values in the support, for checks away from the draws."""
        return value * rng.uniform(0.6, 1.6, value.shape)

    def off(self, env: Environment) -> Any:
        """Where the law is switched off."""
        return self.switch.evaluate(env) == 0


@dataclass(frozen=True)
class PolyaGamma(Law):
    """PG(shape, tilt)."""

    shape: Expression
    tilt: Expression

    @property
    def switch(self) -> Expression:  # type: ignore[override]
        return self.shape

    def draw(self, key: Any, env: Environment) -> Any:
        b, c = jnp.broadcast_arrays(self.shape.evaluate(env), self.tilt.evaluate(env))
        return polya_gamma.draw(key, b, c)

    def log_density(self, value: Any, env: Environment) -> Any:
        value, b, c = jnp.broadcast_arrays(value, self.shape.evaluate(env), self.tilt.evaluate(env))
        return jnp.where(b > 0, polya_gamma.log_density(value, jnp.where(b > 0, b, 1.0), c), 0.0)

    def mean(self) -> Expression:
        half = Function("tanh", jnp.tanh, multiply(0.5, self.tilt))
        return multiply(self.shape, half, power(multiply(2.0, self.tilt), -1.0))

    def grid(self, centre: np.ndarray, env: Environment) -> Grid:
        # The density vanishes at zero and decays fast beyond its mean. Its series cancels from about b = 60 on.
        b = np.broadcast_to(self.shape.evaluate(env), centre.shape)
        # At small b the mean is far below the bulk of the mass.
        centre = np.maximum(np.asarray(polya_gamma.mean(b, self.tilt.evaluate(env))), 0.15)
        return _positive_grid(np.where(b > 0, centre, 1.0), np.arange(-140, 141) * 0.025, b <= 10.0)

    def notation(self, variable: Part) -> Tree:
        return call("PG", self.shape, self.tilt)


@dataclass(frozen=True)
class Poisson(Law):
    """Poisson(rate)."""

    rate: Expression
    switch = ONE

    def draw(self, key: Any, env: Environment) -> Any:
        return jax.random.poisson(key, self.rate.evaluate(env)).astype(env.f.dtype)

    def log_density(self, value: Any, env: Environment) -> Any:
        rate = self.rate.evaluate(env)
        return jsp.xlogy(value, rate) - rate - jsp.gammaln(value + 1.0)

    def mean(self) -> Expression:
        return self.rate

    def grid(self, centre: np.ndarray, env: Environment) -> Grid:
        largest = float(np.max(self.rate.evaluate(env)))
        # 10 standard deviations beyond the mean, in powers of 4 so that few shapes occur.
        count = 64 * 4 ** int(np.ceil(np.log(max(1.0, (largest + 10 * largest**0.5 + 20) / 64)) / np.log(4)))
        values = np.arange(float(count))[:, None, None] * np.ones_like(centre)
        return Grid(values, np.zeros_like(values), np.ones(centre.shape, dtype=bool))

    def notation(self, variable: Part) -> Tree:
        return call("Poisson", self.rate)

    def perturbed(self, value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return value + 1.0 * (value > 0)


@dataclass(frozen=True)
class Gamma(Law):
    """Gamma(shape, rate)."""

    shape: Expression
    rate: Expression

    @property
    def switch(self) -> Expression:  # type: ignore[override]
        return self.shape

    def draw(self, key: Any, env: Environment) -> Any:
        log_rate, shape = jnp.broadcast_arrays(self.rate.log_evaluate(env), self.shape.evaluate(env))
        positive = shape > 0
        log_gamma = jax.random.loggamma(key, jnp.where(positive, shape, 1.0))
        return jnp.where(positive, jnp.exp(log_gamma - log_rate), 0.0)

    def log_density(self, value: Any, env: Environment) -> Any:
        p, log_rate = self.shape.evaluate(env), self.rate.log_evaluate(env)
        log_density = p * log_rate + jsp.xlogy(p - 1, value) - jsp.gammaln(p) - value * jnp.exp(log_rate)
        return jnp.where(p > 0, log_density, 0.0)

    def mean(self) -> Expression:
        return multiply(self.shape, power(self.rate, -1.0))

    def grid(self, centre: np.ndarray, env: Environment) -> Grid:
        return _positive_grid(np.where(~self.off(env), centre, 1.0))

    def notation(self, variable: Part) -> Tree:
        return call("Gamma", self.shape, line(words("rate"), self.rate))


@dataclass(frozen=True)
class InverseGaussian(Law):
    """The inverse Gaussian law with the mean steepness / (2 root) and the shape steepness^2 / 2."""

    steepness: Expression
    root: Expression

    @property
    def switch(self) -> Expression:  # type: ignore[override]
        return self.steepness

    @property
    def shape(self) -> Expression:
        """The shape parameter."""
        return multiply(0.5, power(self.steepness, 2.0))

    def _values(self, env: Environment) -> list[Any]:
        steepness = self.steepness.evaluate(env)
        return jnp.broadcast_arrays(steepness / (2.0 * self.root.evaluate(env)), 0.5 * steepness**2)

    def draw(self, key: Any, env: Environment) -> Any:
        mean, shape = self._values(env)
        active = shape > 0
        drawn = inverse_gaussian(key, jnp.where(active, mean, 1.0), jnp.where(active, shape, 1.0))
        return jnp.where(active, drawn, 0.0)

    def log_density(self, value: Any, env: Environment) -> Any:
        mean, shape = self._values(env)
        density = 0.5 * jnp.log(shape / (2 * jnp.pi)) - 1.5 * jnp.log(value)
        deviation = shape * (value - mean) ** 2 / (2 * mean**2 * value)
        return jnp.where(shape > 0, density - deviation, 0.0)

    def mean(self) -> Expression:
        return multiply(self.steepness, power(multiply(2.0, self.root), -1.0))

    def grid(self, centre: np.ndarray, env: Environment) -> Grid:
        return _positive_grid(np.where(~self.off(env), centre, 1.0))

    def notation(self, variable: Part) -> Tree:
        return call("InverseGaussian", line(words("mean"), self.mean()), line(words("shape"), self.shape))


@dataclass(frozen=True)
class TruncatedNormal(Law):
    """N(location, 1) truncated to positive values; switched off where ``switch`` is 0."""

    location: Expression
    switch: Expression
    is_zero_where_off = False

    def draw(self, key: Any, env: Environment) -> Any:
        location, _ = jnp.broadcast_arrays(self.location.evaluate(env), self.switch.evaluate(env))
        return truncated_normal(key, location)

    def log_density(self, value: Any, env: Environment) -> Any:
        location = self.location.evaluate(env)
        return self.switch.evaluate(env) * (norm.logpdf(value, location) - jsp.log_ndtr(location))

    def mean(self) -> Expression:
        tilt = multiply(Function("φ", norm.pdf, self.location), power(normal_cdf(self.location), -1.0))
        return add(self.location, tilt)

    def grid(self, centre: np.ndarray, env: Environment) -> Grid:
        return _positive_grid(centre)

    def notation(self, variable: Part) -> Tree:
        return line(call("N", self.location, 1), words("truncated to"), variable, ">", 0, *where(self.switch))


@dataclass(frozen=True)
class Categorical(Law):
    """j = 1, 2, ... with probabilities proportional to ``weights``; j = 0 where ``switch`` is 0."""

    weights: tuple[Expression, ...]
    switch: Expression

    def log_weights(self, env: Environment) -> Any:
        """The logarithms of the weights, (weights, ...)."""
        return jnp.stack(jnp.broadcast_arrays(*(weight.log_evaluate(env) for weight in self.weights)))

    def draw(self, key: Any, env: Environment) -> Any:
        logits, off = self.log_weights(env), self.off(env)
        shape = jnp.broadcast_shapes(logits.shape[1:], off.shape)
        logits = jnp.broadcast_to(logits, (len(self.weights), *shape))
        drawn = 1.0 + jax.random.categorical(key, logits, axis=0).astype(logits.dtype)
        return jnp.where(off, 0.0, drawn)

    def log_density(self, value: Any, env: Environment) -> Any:
        logits = jax.nn.log_softmax(self.log_weights(env), axis=0)
        chosen = sum(jnp.where(value == k + 1, logits[k], 0.0) for k in range(len(self.weights)))
        return jnp.where(self.off(env), 0.0, chosen)

    def mean(self) -> Expression:
        numbered = (multiply(float(k), weight) for k, weight in enumerate(self.weights, start=1))
        return multiply(add(*numbered), power(add(*self.weights), -1.0))

    def grid(self, centre: np.ndarray, env: Environment) -> Grid:
        values = np.arange(1.0, len(self.weights) + 1.0)[:, None, None] * np.where(
            self.off(env), 0.0, np.ones_like(centre)
        )
        return Grid(values, np.zeros_like(values), np.ones(centre.shape, dtype=bool))

    def notation(self, variable: Part) -> Tree:
        law, condition = call("Categorical", *self.weights), where(self.switch)
        return line(law, *condition, words(", else"), variable, "=", 0) if condition else law

    def perturbed(self, value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        # Kept: the other auxiliaries depend on the component.
        return value


def where(switch: Expression) -> tuple[Part, ...]:
    """The condition that a 0-1 exponent is 1, as items of a printed line."""
    opposite = add(1.0, multiply(-1.0, switch))
    if switch.key == ONE.key:
        return ()
    if len(switch.children) > len(opposite.children):
        return words(", where"), opposite, "=", 0
    return words(", where"), *holds(switch)


def holds(switch: Expression) -> tuple[Part, ...]:
    """The condition that a 0-1 exponent is 1, without the brackets of a single indicator."""
    written = switch.notation()
    return (written.body,) if isinstance(written, Bracketed) and written.opening == "[" else (written, "=", 1)


def _positive_grid(centre: np.ndarray, t: np.ndarray | None = None, known: Any = True) -> Grid:
    """a = centre exp(t - e^-t): the trapezoid rule in t converges exponentially, also for powers of a near zero."""
    t = (np.arange(-260, 1201) * 0.025 if t is None else t)[:, None, None]
    values = np.where(centre > 0, centre, 1.0) * np.exp(t - np.exp(-t))
    log_measure = np.log(values) + np.log1p(np.exp(-t)) + np.log(0.025)
    return Grid(values, log_measure, np.broadcast_to(known, centre.shape))
