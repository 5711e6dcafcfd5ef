"""Independent Gaussians of which one, selected by the data, is the largest."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.stats import norm

from pgmodels.augmentation.averages import Marginal
from pgmodels.augmentation.laws import Grid, Law, where
from pgmodels.augmentation.samplers import normals_of_largest
from pgmodels.likelihoods.algebra import add, multiply, power
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.indicators import Largest
from pgmodels.likelihoods.notation import Part, Tree, call, derivative, indexed, line, words


class LargestMean(Largest):
    """``Largest`` at the means of the latents under q."""

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

    def evaluate(self, env: Environment) -> Any:
        def total(f: Any) -> Any:
            return jnp.sum(self.node.log_evaluate(Environment(env.y, f, env.parameters)))

        return jax.grad(total)(env.f)

    def notation(self, precedence: int = 0) -> Tree:
        return derivative(call("log", self.node), indexed(self.node.symbol, "c"))


@dataclass(frozen=True)
class ArgmaxNormal(Law):
    """Independent N(location, 1) of which that of the index of ``node`` is the largest; off where ``switch`` is 0.

    ``node`` is the probability of that, and ``location`` its latents divided by the noise's standard deviation.
    """

    location: Expression
    node: Largest
    switch: Expression
    is_zero_where_off = False

    def draw(self, key: Any, env: Environment) -> Any:
        chosen = self.node.chosen(env)
        location, chosen, _ = jnp.broadcast_arrays(self.location.evaluate(env), chosen, self.switch.evaluate(env))
        return normals_of_largest(key, location, chosen)

    def log_density(self, value: Any, env: Environment) -> Any:
        """The log density at vectors, (..., 1); see Law."""
        each = norm.logpdf(value, self.location.evaluate(env))
        total = jnp.sum(each, axis=-1, keepdims=True) - self.node.log_evaluate(env)
        return jnp.where(self.off(env), 0.0, total)

    def mean(self) -> Expression:
        return add(self.location, multiply(power(self.node.noise, 0.5), LargestSlope(self.node)))

    def grid(self, centre: np.ndarray, env: Environment) -> Grid:
        # The trapezoid rule for the largest. Each of the others lies at a quantile of its law given the largest: there
        # the integrand is free of the quantile's level, so that one point is exact; levels differ between points.
        location, chosen = (np.asarray(part) for part in (self.location.evaluate(env), self.node.chosen(env)))
        t = np.arange(-200, 201)[:, None, None] * 0.05
        largest = np.sum(np.where(chosen, centre, 0.0), axis=-1, keepdims=True) + t
        levels = (0.5 + np.arange(len(t))[:, None, None] * np.sqrt(2.0) * np.arange(1, centre.shape[-1] + 1)) % 1.0
        others = scipy.special.ndtri_exp(np.log(levels) + scipy.special.log_ndtr(largest - location))
        inverse_density = scipy.special.log_ndtr(largest - location) - np.asarray(norm.logpdf(others))
        log_measure = np.log(0.05) + np.sum(np.where(chosen, 0.0, inverse_density), axis=-1, keepdims=True)
        values = np.where(chosen, largest, location + others)
        return Grid(values, log_measure, np.ones(centre.shape, dtype=bool))

    def notation(self, variable: Part) -> Tree:
        at = words(", the largest at"), "c", "=", self.node.index
        return line(call("N", self.location, 1), *at, *where(self.switch))

    def perturbed(self, value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        # Draws of the same datum by other rows of the batch: in all of them the same one is the largest.
        return np.roll(value, 1, axis=0)
