"""Laws of auxiliary variables: draws, densities and averages."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
import scipy
from jax import Array
from jax.scipy.stats import norm

from pgmodels import polya_gamma
from pgmodels.augmentation.normal_form import Quadratic
from pgmodels.augmentation.predictors import ONE, Allocated, Auxiliary, Predictor, over_latents
from pgmodels.likelihoods.expression import Environment, Expression, Latent, Latents
from pgmodels.likelihoods.operations import Largest, add, exp, log, log_normal_interval, multiply, normal_cdf, power
from pgmodels.likelihoods.printing import (
    Applied,
    Bracketed,
    Name,
    Part,
    Tree,
    call,
    derivative,
    expectation,
    indexed,
    line,
    listed,
    words,
)
from pgmodels.numerics.elementary import EQUAL_NEWTON, RealArray, mode_of_largest
from pgmodels.polya_gamma.laws import relative_variance_at_square, tangent_hat
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.precision import as_array


@jax.custom_jvp
@compiled
def log_sigmoid_tilde(mean: Array, variance: Array) -> Array:
    """Return log σ̃+(z) = E z / 2 - log(2 cosh(√(E z^2) / 2)) for z with the given mean and variance."""
    root = jnp.sqrt(variance + mean**2)
    positive = mean > 0
    # For positive means, (E z - c) / 2 cancels; it equals -variance / (2 (c + E z)).
    shifted = jnp.where(positive, -0.5 * variance / (root + jnp.where(positive, mean, 1.0)), 0.5 * (mean - root))
    return shifted - jnp.log1p(jnp.exp(-root))


@log_sigmoid_tilde.defjvp
def _log_sigmoid_tilde_jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    (mean, variance), (by_mean, by_variance) = primals, tangents
    slope = _half_precision(variance + mean**2)
    return log_sigmoid_tilde(mean, variance), (0.5 - 2.0 * mean * slope) * by_mean - slope * by_variance


@jax.custom_jvp
@compiled
def _half_precision(s: Array) -> Array:
    """Return the derivative tanh(√s / 2) / (4 √s) of log(2 cosh(√s / 2)): half the mean of PG(1, √s)."""
    # The smallest root only has to differ from 0, since the ratio does not cancel.
    half = 0.5 * jnp.sqrt(jnp.maximum(s, jnp.finfo(s.dtype).tiny))
    return jnp.tanh(half) / (8.0 * half)


@_half_precision.defjvp
@compiled
def _half_precision_jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    (s,), (by_s,) = primals, tangents
    return _half_precision(s), jnp.asarray(-relative_variance_at_square(0.25 * s) / 64.0 * by_s)


# Symbols of variational inference: moments of q, expectations under q, and the terms of local bounds.

VARIANCE = "Var[f]"


class Marginal(Expression):
    """The mean ``m`` of a latent under q (read from ``env.f``), or its variance ``v`` (the parameter VARIANCE)."""

    labels = ("symbol", "latent")

    def __init__(self, symbol: str, latent: Latent | Latents):
        self.symbol, self.latent = symbol, latent
        self.is_vector = latent.is_vector  # type: ignore[misc]
        self.nonnegative = symbol == "v"  # type: ignore[misc]

    def evaluate(self, env: Environment) -> Array:
        values = env.f if self.symbol == "m" else as_array(env.parameters[VARIANCE])
        return self.latent.evaluate(Environment(env.y, values, env.parameters))

    def notation(self, precedence: int = 0) -> Tree:
        return indexed(self.symbol, self.latent.index)


class Expected(Expression):
    """The expectation of an auxiliary under q by name, as ``E[ω]``, or a component's probability, as ``q(j = 1)``."""

    labels = ("name", "is_vector")
    nonnegative = True  # type: ignore[assignment]

    def __init__(self, auxiliary: Auxiliary | Allocated):
        self.auxiliary = auxiliary
        self.name = f"E[{auxiliary.name}]"
        self.is_vector = auxiliary.is_vector  # type: ignore[misc]

    def evaluate(self, env: Environment) -> Array:
        return env.parameters[self.name]  # type: ignore[return-value]

    def element(self, index: Part | None) -> Tree:
        """Return the symbol with the given index."""
        if isinstance(self.auxiliary, Allocated):
            return call("q", self.auxiliary.condition)
        return expectation(self.auxiliary.element(index))

    def notation(self, precedence: int = 0) -> Tree:
        return self.element("c" if self.is_vector else None)


class Tilde(Expression):
    """The value σ̃₊(z) or σ̃₋(z) under q's marginals (math: section 2), or its logarithm."""

    labels = ("predictor", "side", "logarithm")

    def __init__(self, predictor: Predictor, side: int, logarithm: bool = False):
        self.predictor, self.side, self.logarithm = predictor, side, logarithm
        self.mean, self.variance = mean_of(predictor), variance_of(predictor)
        self.is_vector = predictor.is_vector  # type: ignore[misc]
        self.nonnegative = not logarithm  # type: ignore[misc]

    def evaluate(self, env: Environment) -> Array:
        value = log_sigmoid_tilde(self.side * self.mean.evaluate(env), self.variance.evaluate(env))
        return value if self.logarithm else jnp.exp(value)

    def notation(self, precedence: int = 0) -> Tree:
        value = call("σ̃₊" if self.side > 0 else "σ̃₋", self.predictor.expression)
        return Applied(Name("log"), value) if self.logarithm else value


class Thinning(Expression):
    """The value 1 - σ̃₋(z), which replaces σ(z) in bounds; it is computed without cancellation."""

    labels = ("down",)
    nonnegative = True  # type: ignore[assignment]

    def __init__(self, predictor: Predictor):
        self.down = Tilde(predictor, -1)
        self.log_down = Tilde(predictor, -1, logarithm=True)
        self.written = add(1.0, multiply(-1.0, self.down))
        self.is_vector = predictor.is_vector  # type: ignore[misc]

    def evaluate(self, env: Environment) -> Array:
        return -jnp.expm1(self.log_down.evaluate(env))

    def notation(self, precedence: int = 0) -> Tree:
        return self.written.notation(precedence)


class Root(Expression):
    """The root ζ = sqrt(E[z^2]) under q's marginals."""

    labels = ("name", "definition")
    nonnegative = True  # type: ignore[assignment]

    def __init__(self, name: str, predictor: Predictor):
        self.name, self.predictor = name, predictor
        mean = mean_of(predictor)
        self.definition = power(add(power(mean, 2.0), variance_of(predictor)), 0.5)
        self.is_vector = self.definition.is_vector  # type: ignore[misc]

    def evaluate(self, env: Environment) -> Array:
        return self.definition.evaluate(env)

    def notation(self, precedence: int = 0) -> Tree:
        return indexed(self.name, "c" if self.is_vector else None)


class Function(Expression):
    """A named function of one argument, in the form of printed derivations."""

    labels = ("name",)
    nonnegative = True  # type: ignore[assignment]

    def __init__(self, name: str, function: Callable[[Array], Array], argument: Expression):
        self.name, self.function, self.argument = name, function, argument
        self.children = (argument,)

    def evaluate(self, env: Environment) -> Array:
        return self.function(self.argument.evaluate(env))

    def notation(self, precedence: int = 0) -> Tree:
        return call(self.name, self.argument)


def mean_of(predictor: Predictor) -> Expression:
    """Return E[z] under q's marginals, as a formula."""
    return add(multiply(predictor.scale, Marginal("m", predictor.latent)), predictor.shift)


def variance_of(predictor: Predictor) -> Expression:
    """Return Var[z] under q's marginals, as a formula."""
    return multiply(power(predictor.scale, 2.0), Marginal("v", predictor.latent))


def mean_quadratic(quadratic: Quadratic) -> Expression:
    """Return E[Q] under q's marginals, as a formula."""
    total = quadratic.constant
    for square in quadratic.squares:
        value = multiply(square.weight, add(power(mean_of(square.predictor), 2.0), variance_of(square.predictor)))
        total = add(total, over_latents(value) if square.reduced else value)
    return total


# Exact draws from truncated normal and inverse Gaussian distributions.


def truncated_normal(key: Array, mean: Array) -> Array:
    """Draw from N(mean, 1) truncated to positive values, exactly for means of either sign and any size."""
    # u > 0 means ε > -mean. The upper tail probability is drawn in logs, so that Φ(mean) may underflow.
    log_tail = jsp.log_ndtr(mean) + jnp.log1p(-jax.random.uniform(key, mean.shape, mean.dtype))
    return jnp.maximum(mean - _normal_quantile(log_tail), jnp.finfo(mean.dtype).tiny)


def interval_normal(key: Array, low: Array, high: Array) -> Array:
    """Draw from N(0, 1) truncated to (low, high), exactly in both tails; either end may be infinite."""
    # The interval is reflected so that most of it is below zero: there log Φ keeps all digits.
    reflected = low + high > 0
    below, above = jnp.where(reflected, -high, low), jnp.where(reflected, -low, high)
    log_above = jsp.log_ndtr(above)
    # At the draw, Φ is Φ(above) - U (Φ(above) - Φ(below)).
    share = -jnp.expm1(jsp.log_ndtr(below) - log_above)
    log_cdf = log_above + jnp.log1p(-jax.random.uniform(key, low.shape, low.dtype) * share)
    drawn = jnp.clip(_normal_quantile(log_cdf), below, above)
    return jnp.where(reflected, -drawn, drawn)


def normals_of_largest(key: Array, mean: Array, chosen: Array) -> Array:
    """Draw independent N(mean, 1), (..., C), given that the ``chosen`` entry, (..., C), is the largest.

    Exact for means of any size, nan if not finite. The largest is drawn first, the rest truncated below it.
    """
    largest_key, others_key = jax.random.split(key)
    largest = _largest(largest_key, mean, chosen)
    others = interval_normal(others_key, jnp.full_like(mean, -jnp.inf), largest - mean)
    return jnp.where(chosen, largest, mean + others)


def _largest(key: Array, mean: Array, chosen: Array) -> Array:
    """Draw the largest x + mean_k of these normals, (..., 1), by rejection from three tangents to its log density."""
    centre = jnp.sum(jnp.where(chosen, mean, 0.0), axis=-1, keepdims=True)
    gap = centre - mean

    def log_density(x: RealArray) -> RealArray:
        return -0.5 * x**2 + jnp.sum(jnp.where(chosen, 0.0, jsp.log_ndtr(gap + x)), axis=-1, keepdims=True)

    mode, curvature = mode_of_largest(gap, 1.0, chosen, EQUAL_NEWTON)
    # Tangents of a normal density at ±√2 deviations and at its mode have the least mass.
    reach = jnp.sqrt(2.0 / curvature)
    top, slope = jax.jvp(log_density, (mode,), (jnp.ones_like(mode),))
    # The slope falls by at least 1 per unit. It is negative at the last point even before Newton's method converges.
    points = jnp.stack([mode - reach, mode, mode + jnp.maximum(slope, 0.0) + reach])
    heights, slopes = jax.jvp(log_density, (points,), (jnp.ones_like(points),))
    hat = tangent_hat(points, heights - top, slopes)

    def propose(state: tuple[int, Array, Array]) -> tuple[int, Array, Array]:
        i, active, drawn = state
        uniforms = jax.random.uniform(jax.random.fold_in(key, i), (2, *mode.shape), mode.dtype)
        x, log_hat = hat.propose(uniforms[0])
        accepted = active & (jnp.log1p(-uniforms[1]) + log_hat < log_density(x) - top)
        return i + 1, active & ~accepted, jnp.where(accepted, x, drawn)

    # A hat without a finite mass would never be accepted.
    active = jnp.isfinite(hat.masses.sum(0))
    start = 0, active, jnp.full_like(mode, jnp.nan)
    return centre + jax.lax.while_loop(lambda state: jnp.any(state[1]), propose, start)[2]


def _normal_quantile(log_p: Array) -> Array:
    """Return Φ^-1(exp(log_p)); in the tail by Newton's method on log Φ, which is concave: monotone convergence."""
    near = jnp.clip(log_p, -30.0, None)
    start = jnp.where(log_p > -30.0, jsp.ndtri(jnp.exp(near)), -jnp.sqrt(-2.0 * log_p))

    def newton(_: int, x: Array) -> Array:
        log_cdf = jsp.log_ndtr(x)
        return x - (log_cdf - log_p) / jnp.exp(norm.logpdf(x) - log_cdf)

    far = jax.lax.fori_loop(0, 6, newton, jnp.where(log_p > -30.0, -8.0, start))
    return jnp.where(log_p > -30.0, start, far)


def inverse_gaussian(key: Array, mean: Array, shape: Array) -> Array:
    """Draw from the inverse Gaussian without cancellation (Michael, Schucany and Haas 1976); Lévy at infinite means."""
    normal_key, uniform_key = jax.random.split(key)
    half = jax.random.normal(normal_key, mean.shape, mean.dtype) ** 2 / (2.0 * shape)
    inverse = 1.0 / mean
    # The smaller root of the quadratic.
    smaller = 1.0 / (inverse + half + jnp.sqrt(half * (half + 2.0 * inverse)))
    accept = jax.random.uniform(uniform_key, mean.shape, mean.dtype) * (1.0 + smaller * inverse) <= 1.0
    return jnp.where(accept, smaller, mean * (mean / smaller))


# Distributions of auxiliary variables.
# Their parameters are formulas: of the latents in complete conditionals, of q's moments under the optimal q.


class Grid(NamedTuple):
    """Quadrature nodes ``values`` (points, n, ...) with weights exp(log_measure); ``known`` marks computable data."""

    values: np.ndarray
    log_measure: np.ndarray
    known: np.ndarray | bool = True


class Law(ABC):
    """The distribution of an auxiliary variable.

    If the exponent ``switch`` is zero, there is no auxiliary. Its density is then 1 by definition, and its value is
    zero with ``is_zero_where_off``, and arbitrary otherwise.
    """

    switch: Expression
    is_zero_where_off: ClassVar[bool] = True

    @abstractmethod
    def draw(self, key: Array, env: Environment) -> Array:
        """Return one draw for each entry of the broadcast parameters."""

    @abstractmethod
    def log_density(self, value: Array, env: Environment) -> Array:
        """Return the log density at a value, 0 if the law is switched off."""

    @abstractmethod
    def mean(self) -> Expression:
        """Return the mean as a formula."""

    @abstractmethod
    def grid(self, centre: np.ndarray, env: Environment) -> Grid:
        """Return an integration grid around ``centre`` (n, ...), typical values of the variable."""

    @abstractmethod
    def notation(self, variable: Part) -> Tree:
        """Return the distribution of ``variable`` in the form of printed derivations."""

    def perturbed(self, value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return other values in the support, for checks away from the draws."""
        return value * rng.uniform(0.6, 1.6, value.shape)

    def off(self, env: Environment) -> Array:
        """Return a mask of the data at which the law is switched off."""
        return self.switch.evaluate(env) == 0


@dataclass(frozen=True)
class PolyaGamma(Law):
    """The law PG(shape, tilt)."""

    shape: Expression
    tilt: Expression

    @property
    def switch(self) -> Expression:  # type: ignore[override]
        return self.shape

    def draw(self, key: Array, env: Environment) -> Array:
        b, c = jnp.broadcast_arrays(self.shape.evaluate(env), self.tilt.evaluate(env))
        return polya_gamma.draw(key, b, c)

    def log_density(self, value: Array, env: Environment) -> Array:
        value, b, c = jnp.broadcast_arrays(value, self.shape.evaluate(env), self.tilt.evaluate(env))
        return jnp.where(b > 0, polya_gamma.log_density(value, jnp.where(b > 0, b, 1.0), c), 0.0)

    def mean(self) -> Expression:
        half = Function("tanh", jnp.tanh, multiply(0.5, self.tilt))
        return multiply(self.shape, half, power(multiply(2.0, self.tilt), -1.0))

    def grid(self, centre: np.ndarray, env: Environment) -> Grid:
        # The density vanishes at zero and decays fast beyond its mean. Its series cancels from about b = 60 on.
        b = np.broadcast_to(self.shape.evaluate(env), centre.shape)
        # At small b, the mean is far below the bulk of the mass.
        centre = np.maximum(np.asarray(polya_gamma.mean(b, self.tilt.evaluate(env))), 0.15)
        return _positive_grid(np.where(b > 0, centre, 1.0), np.arange(-140, 141) * 0.025, b <= 10.0)

    def notation(self, variable: Part) -> Tree:
        return call("PG", self.shape, self.tilt)


@dataclass(frozen=True)
class Poisson(Law):
    """The law Poisson(rate)."""

    rate: Expression
    switch = ONE

    def draw(self, key: Array, env: Environment) -> Array:
        return jax.random.poisson(key, self.rate.evaluate(env)).astype(env.f.dtype)

    def log_density(self, value: Array, env: Environment) -> Array:
        rate = self.rate.evaluate(env)
        return jsp.xlogy(value, rate) - rate - jsp.gammaln(value + 1.0)

    def mean(self) -> Expression:
        return self.rate

    def grid(self, centre: np.ndarray, env: Environment) -> Grid:
        largest = float(np.max(self.rate.evaluate(env)))
        # 10 standard deviations above the mean, in powers of 4, so that few shapes occur.
        count = 64 * 4 ** int(np.ceil(np.log(max(1.0, (largest + 10 * largest**0.5 + 20) / 64)) / np.log(4)))
        values = np.arange(float(count))[:, None, None] * np.ones_like(centre)
        return Grid(values, np.zeros_like(values))

    def notation(self, variable: Part) -> Tree:
        return call("Poisson", self.rate)

    def perturbed(self, value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return value + 1.0 * (value > 0)


@dataclass(frozen=True)
class PositivePoisson(Law):
    """Poisson(rate) given that it is not 0; 0 where ``switch`` is 0."""

    rate: Expression
    switch: Expression

    def draw(self, key: Array, env: Environment) -> Array:
        rate, off = jnp.broadcast_arrays(self.rate.evaluate(env), self.off(env))
        first_key, later_key = jax.random.split(key)
        # The first arrival of a process of unit rate, given that it is before the rate; the others come later.
        first = -jnp.log1p(jax.random.uniform(first_key, rate.shape, rate.dtype) * jnp.expm1(-rate))
        later = jax.random.poisson(later_key, jnp.maximum(rate - first, 0.0)).astype(rate.dtype)
        return jnp.where(off, 0.0, 1.0 + later)

    def log_density(self, value: Array, env: Environment) -> Array:
        rate = self.rate.evaluate(env)
        density = jsp.xlogy(value, rate) - jsp.gammaln(value + 1.0) - rate - jnp.log(-jnp.expm1(-rate))
        return jnp.where(self.off(env), 0.0, density)

    def mean(self) -> Expression:
        return multiply(self.switch, self.rate, power(add(1.0, multiply(-1.0, exp(multiply(-1.0, self.rate)))), -1.0))

    def grid(self, centre: np.ndarray, env: Environment) -> Grid:
        grid = Poisson(self.rate).grid(centre, env)
        return Grid(np.where(self.off(env), grid.values, grid.values + 1.0), grid.log_measure)

    def notation(self, variable: Part) -> Tree:
        return line(call("Poisson", self.rate), words("without 0"), *where(self.switch))

    def perturbed(self, value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return value + 1.0 * (value > 0)


@dataclass(frozen=True)
class Gamma(Law):
    """The law Gamma(shape, rate)."""

    shape: Expression
    rate: Expression

    @property
    def switch(self) -> Expression:  # type: ignore[override]
        return self.shape

    def draw(self, key: Array, env: Environment) -> Array:
        log_rate, shape = jnp.broadcast_arrays(self.rate.log_evaluate(env), self.shape.evaluate(env))
        positive = shape > 0
        drawn = jnp.exp(jax.random.loggamma(key, jnp.where(positive, shape, 1.0)) - log_rate)
        return jnp.where(positive, drawn, 0.0)

    def log_density(self, value: Array, env: Environment) -> Array:
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
    """The inverse Gaussian law with mean steepness / (2 root) and shape steepness^2 / 2."""

    steepness: Expression
    root: Expression

    @property
    def switch(self) -> Expression:  # type: ignore[override]
        return self.steepness

    @property
    def shape(self) -> Expression:
        """Return the shape parameter."""
        return multiply(0.5, power(self.steepness, 2.0))

    def _values(self, env: Environment) -> list[Array]:
        steepness = self.steepness.evaluate(env)
        return jnp.broadcast_arrays(steepness / (2.0 * self.root.evaluate(env)), 0.5 * steepness**2)

    def draw(self, key: Array, env: Environment) -> Array:
        mean, shape = self._values(env)
        active = shape > 0
        drawn = inverse_gaussian(key, jnp.where(active, mean, 1.0), jnp.where(active, shape, 1.0))
        return jnp.where(active, drawn, 0.0)

    def log_density(self, value: Array, env: Environment) -> Array:
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
    """The law N(location, 1) truncated to positive values; it is switched off if ``switch`` is 0."""

    location: Expression
    switch: Expression
    is_zero_where_off = False

    def draw(self, key: Array, env: Environment) -> Array:
        location, _ = jnp.broadcast_arrays(self.location.evaluate(env), self.switch.evaluate(env))
        return truncated_normal(key, location)

    def log_density(self, value: Array, env: Environment) -> Array:
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
    """The law of j = 1, 2, ... with probabilities proportional to ``weights``; j = 0 if ``switch`` is 0."""

    weights: tuple[Expression, ...]
    switch: Expression

    def log_weights(self, env: Environment) -> Array:
        """Return the logarithms of the weights, (weights, ...)."""
        return jnp.stack(jnp.broadcast_arrays(*(weight.log_evaluate(env) for weight in self.weights)))

    def draw(self, key: Array, env: Environment) -> Array:
        logits, off = self.log_weights(env), self.off(env)
        logits = jnp.broadcast_to(logits, (len(self.weights), *jnp.broadcast_shapes(logits.shape[1:], off.shape)))
        drawn = 1.0 + jax.random.categorical(key, logits, axis=0).astype(logits.dtype)
        return jnp.where(off, 0.0, drawn)

    def log_density(self, value: Array, env: Environment) -> Array:
        logits = jax.nn.log_softmax(self.log_weights(env), axis=0)
        chosen = sum(jnp.where(value == k + 1, logits[k], 0.0) for k in range(len(self.weights)))
        return jnp.where(self.off(env), 0.0, chosen)

    def mean(self) -> Expression:
        numbered = (multiply(float(k), weight) for k, weight in enumerate(self.weights, start=1))
        return multiply(add(*numbered), power(add(*self.weights), -1.0))

    def grid(self, centre: np.ndarray, env: Environment) -> Grid:
        on = np.where(self.off(env), 0.0, np.ones_like(centre))
        values = np.arange(1.0, len(self.weights) + 1.0)[:, None, None] * on
        return Grid(values, np.zeros_like(values))

    def notation(self, variable: Part) -> Tree:
        law, condition = call("Categorical", *self.weights), where(self.switch)
        return line(law, *condition, words(", else"), variable, "=", 0) if condition else law

    def perturbed(self, value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        # The values are kept, since the other auxiliaries depend on the component.
        return value


def where(switch: Expression) -> tuple[Part, ...]:
    """Return the condition that a 0-1 exponent is 1, as items of a printed line."""
    opposite = add(1.0, multiply(-1.0, switch))
    if switch.key == ONE.key:
        return ()
    if len(switch.children) > len(opposite.children):
        return words(", where"), opposite, "=", 0
    return words(", where"), *holds(switch)


def holds(switch: Expression) -> tuple[Part, ...]:
    """Return the condition that a 0-1 exponent is 1, without the brackets of a single indicator."""
    written = switch.notation()
    return (written.body,) if isinstance(written, Bracketed) and written.opening == "[" else (written, "=", 1)


def _positive_grid(centre: np.ndarray, t: np.ndarray | None = None, known: np.ndarray | bool = True) -> Grid:
    """Return a grid a = centre exp(t - e^-t): the rule in t converges exponentially, also for powers of a near 0."""
    t = (np.arange(-260, 1201) * 0.025 if t is None else t)[:, None, None]
    values = np.where(centre > 0, centre, 1.0) * np.exp(t - np.exp(-t))
    return Grid(values, np.log(values) + np.log1p(np.exp(-t)) + np.log(0.025), known)


class LargestMean(Largest):
    """The value of ``Largest`` at the means of the latents under q."""

    symbol = "m"

    def __init__(self, node: Largest):
        super().__init__(node.latents, node.index, node.noise)
        self.children = (Marginal("m", node.latents), node.index, node.noise)


class LargestSlope(Expression):
    """The derivative of the logarithm of a ``Largest`` with respect to each latent."""

    is_vector = True  # type: ignore[assignment]

    def __init__(self, node: Largest):
        self.node = node
        self.children = (node,)

    def evaluate(self, env: Environment) -> Array:
        def total(f: Array) -> Array:
            return jnp.sum(self.node.log_evaluate(Environment(env.y, f, env.parameters)))

        return jax.grad(total)(env.f)

    def notation(self, precedence: int = 0) -> Tree:
        return derivative(call("log", self.node), indexed(self.node.symbol, "c"))


@dataclass(frozen=True)
class ArgmaxNormal(Law):
    """The law of independent N(location, 1) given that the entry of ``node`` is the largest; off if ``switch`` is 0.

    ``node`` is the probability of this event. ``location`` is its latents divided by the noise's standard deviation.
    """

    location: Expression
    node: Largest
    switch: Expression
    is_zero_where_off = False

    def draw(self, key: Array, env: Environment) -> Array:
        chosen = self.node.chosen(env)
        location, chosen, _ = jnp.broadcast_arrays(self.location.evaluate(env), chosen, self.switch.evaluate(env))
        return normals_of_largest(key, location, chosen)

    def log_density(self, value: Array, env: Environment) -> Array:
        """Return the log density at vectors, (..., 1), as in ``Law``."""
        each = norm.logpdf(value, self.location.evaluate(env))
        return jnp.where(self.off(env), 0.0, jnp.sum(each, axis=-1, keepdims=True) - self.node.log_evaluate(env))

    def mean(self) -> Expression:
        return add(self.location, multiply(power(self.node.noise, 0.5), LargestSlope(self.node)))

    def grid(self, centre: np.ndarray, env: Environment) -> Grid:
        # The trapezoid rule for the largest entry. Every other entry is at a quantile of its law given the largest.
        # There, the integrand is free of the quantile's level: one point is exact, and levels differ between points.
        location, chosen = (np.asarray(part) for part in (self.location.evaluate(env), self.node.chosen(env)))
        t = np.arange(-200, 201)[:, None, None] * 0.05
        largest = np.sum(np.where(chosen, centre, 0.0), axis=-1, keepdims=True) + t
        levels = (0.5 + np.arange(len(t))[:, None, None] * np.sqrt(2.0) * np.arange(1, centre.shape[-1] + 1)) % 1.0
        others = scipy.special.ndtri_exp(np.log(levels) + scipy.special.log_ndtr(largest - location))
        inverse_density = scipy.special.log_ndtr(largest - location) - np.asarray(norm.logpdf(others))
        log_measure = np.log(0.05) + np.sum(np.where(chosen, 0.0, inverse_density), axis=-1, keepdims=True)
        return Grid(np.where(chosen, largest, location + others), log_measure)

    def notation(self, variable: Part) -> Tree:
        at = words(", the largest at"), "c", "=", self.node.index
        return line(call("N", self.location, 1), *at, *where(self.switch))

    def perturbed(self, value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        # Draws of the same datum from other rows of the batch: all have the same largest entry.
        return np.roll(value, 1, axis=0)


@dataclass(frozen=True)
class Interval:
    """The interval (lower, upper), active if ``exponent`` is 1; a limit of None is infinite."""

    exponent: Expression
    lower: Expression | None
    upper: Expression | None


@dataclass(frozen=True)
class IntervalNormal(Law):
    """The law N(location, 1), truncated to the interval with exponent 1; off if all exponents are 0."""

    location: Expression
    intervals: tuple[Interval, ...]
    is_zero_where_off = False

    @property
    def switch(self) -> Expression:  # type: ignore[override]
        return add(*(interval.exponent for interval in self.intervals))

    def ends(self, env: Environment) -> tuple[Array, Array]:
        """Return the limits minus the location: infinite if absent, (-1, 1) if the law is switched off."""
        location, off = self.location.evaluate(env), self.off(env)
        low, high = jnp.where(off, -1.0, -jnp.inf), jnp.where(off, 1.0, jnp.inf)
        for interval in self.intervals:
            on = interval.exponent.evaluate(env) != 0
            if interval.lower is not None:
                low = jnp.where(on, interval.lower.evaluate(env) - location, low)
            if interval.upper is not None:
                high = jnp.where(on, interval.upper.evaluate(env) - location, high)
        return tuple(jnp.broadcast_arrays(low + 0.0 * location, high))  # type: ignore[return-value]

    def draw(self, key: Array, env: Environment) -> Array:
        return self.location.evaluate(env) + interval_normal(key, *self.ends(env))

    def log_density(self, value: Array, env: Environment) -> Array:
        log_density = norm.logpdf(value - self.location.evaluate(env)) - log_normal_interval(*self.ends(env))
        return jnp.where(self.off(env), 0.0, log_density)

    def masses(self) -> Iterator[tuple[Interval, Expression]]:
        """Return each interval and the mass of N(location, 1) on it, as a formula."""
        z = multiply(-1.0, self.location)
        for interval in self.intervals:
            if interval.lower is None and interval.upper is not None:
                yield interval, normal_cdf(add(interval.upper, z))
            elif interval.upper is None and interval.lower is not None:
                yield interval, normal_cdf(multiply(-1.0, add(interval.lower, z)))
            else:
                upper, lower = (add(end, z) for end in (interval.upper, interval.lower) if end is not None)
                yield interval, add(normal_cdf(upper), multiply(-1.0, normal_cdf(lower)))

    def mean(self) -> Expression:
        return IntervalMean(self)

    def grid(self, centre: np.ndarray, env: Environment) -> Grid:
        # u = low + (high - low) / (1 + exp(-2 sinh t)): the trapezoid rule in t converges fast. N(0, 1) is 0 at 40.
        low, high = (np.clip(np.asarray(end), -40.0, 40.0) for end in self.ends(env))
        t = np.arange(-130, 131)[:, None, None] * 0.025
        share = 1.0 / (1.0 + np.exp(-2.0 * np.sinh(t)))
        slope = 2.0 * np.cosh(t) / (2.0 + 2.0 * np.cosh(2.0 * np.sinh(t)))
        values = np.asarray(self.location.evaluate(env)) + low + (high - low) * share
        return Grid(values, np.log((high - low) * slope * 0.025) + np.zeros_like(values))

    def notation(self, variable: Part) -> Tree:
        return line(call("N", self.location, 1), words("truncated to"), self.limits(variable))

    def limits(self, variable: Part) -> Tree:
        """Return the intervals, each with its condition, as a formula."""
        return listed(*(_limits(interval, variable) for interval in self.intervals), sign=";")

    def perturbed(self, value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        # Draws of the same datum from other rows of the batch: all are in its interval.
        return np.roll(value, 1, axis=0)


def _limits(interval: Interval, variable: Part) -> Tree:
    inside: list[Part] = [variable]
    if interval.upper is None and interval.lower is not None:
        inside += [">", interval.lower]
    elif interval.upper is not None:
        inside += ["<", interval.upper]
        inside[:0] = [] if interval.lower is None else [interval.lower, "<"]
    if interval.exponent.key == ONE.key:
        return line(*inside)
    return line(*inside, words("where"), *holds(interval.exponent))


class IntervalMass(Expression):
    """The value log(Φ(upper - z) - Φ(lower - z)) of the selected interval, for all at once; 0 if the law is off."""

    def __init__(self, law: IntervalNormal):
        self.law = law
        self.children = (add(*(multiply(interval.exponent, log(mass)) for interval, mass in law.masses())),)

    def evaluate(self, env: Environment) -> Array:
        return jnp.where(self.law.off(env), 0.0, log_normal_interval(*self.law.ends(env)))

    def notation(self, precedence: int = 0) -> Tree:
        return self.children[0].notation(precedence)


class IntervalMean(Expression):
    """The mean z - (φ(upper - z) - φ(lower - z)) / (Φ(upper - z) - Φ(lower - z)) of the law, stable in the tails."""

    def __init__(self, law: IntervalNormal):
        self.law = law
        z, terms = multiply(-1.0, law.location), [law.location]
        for interval, mass in law.masses():
            ends = [(end, sign) for end, sign in ((interval.upper, -1.0), (interval.lower, 1.0)) if end is not None]
            densities = add(*(multiply(sign, Function("φ", norm.pdf, add(end, z))) for end, sign in ends))
            terms.append(multiply(interval.exponent, densities, power(mass, -1.0)))
        self.children = (add(*terms),)

    def evaluate(self, env: Environment) -> Array:
        low, high = self.law.ends(env)
        log_mass = log_normal_interval(low, high)
        above, below = (jnp.exp(norm.logpdf(end) - log_mass) for end in (high, low))
        # The difference of φ cancels for narrow intervals, so the mean is clipped to the interval.
        return self.law.location.evaluate(env) + jnp.clip(below - above, low, high)

    def notation(self, precedence: int = 0) -> Tree:
        return self.children[0].notation(precedence)
