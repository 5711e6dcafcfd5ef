"""A Gaussian truncated to one of several intervals, selected by the data."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

from pgmodels.augmentation.averages import Function
from pgmodels.augmentation.laws import ONE, Grid, Law, holds
from pgmodels.augmentation.samplers import interval_normal
from pgmodels.likelihoods.algebra import add, multiply, power
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.functions import log, normal_cdf
from pgmodels.likelihoods.notation import Part, Tree, call, line, listed, words
from pgmodels.likelihoods.operations import log_normal_interval


@dataclass(frozen=True)
class Interval:
    """The interval (lower, upper), active where ``exponent`` is 1; a limit of None is infinite."""

    exponent: Expression
    lower: Expression | None
    upper: Expression | None


@dataclass(frozen=True)
class IntervalNormal(Law):
    """N(location, 1) truncated to the interval whose exponent is 1; switched off where all exponents are 0."""

    location: Expression
    intervals: tuple[Interval, ...]
    is_zero_where_off = False

    @property
    def switch(self) -> Expression:  # type: ignore[override]
        return add(*(interval.exponent for interval in self.intervals))

    def ends(self, env: Environment) -> tuple[Any, Any]:
        """The limits minus the location: infinite where absent, (-1, 1) where the law is switched off."""
        location, off = self.location.evaluate(env), self.off(env)
        low, high = jnp.where(off, -1.0, -jnp.inf), jnp.where(off, 1.0, jnp.inf)
        for interval in self.intervals:
            on = interval.exponent.evaluate(env) != 0
            if interval.lower is not None:
                low = jnp.where(on, interval.lower.evaluate(env) - location, low)
            if interval.upper is not None:
                high = jnp.where(on, interval.upper.evaluate(env) - location, high)
        return tuple(jnp.broadcast_arrays(low + 0.0 * location, high))  # type: ignore[return-value]

    def draw(self, key: Any, env: Environment) -> Any:
        return self.location.evaluate(env) + interval_normal(key, *self.ends(env))

    def log_density(self, value: Any, env: Environment) -> Any:
        log_density = norm.logpdf(value - self.location.evaluate(env)) - log_normal_interval(*self.ends(env))
        return jnp.where(self.off(env), 0.0, log_density)

    def masses(self) -> Iterator[tuple[Interval, Expression]]:
        """Each interval and the mass of N(location, 1) on it, as a formula."""
        z = multiply(-1.0, self.location)
        for interval in self.intervals:
            if interval.lower is None and interval.upper is not None:
                yield interval, normal_cdf(add(interval.upper, z))
            elif interval.upper is None and interval.lower is not None:
                yield interval, normal_cdf(multiply(-1.0, add(interval.lower, z)))
            else:
                upper, lower = (add(end, z) for end in (interval.upper, interval.lower) if end is not None)
                yield interval, add(normal_cdf(upper), multiply(-1.0, normal_cdf(lower)))

    def log_mass(self) -> Expression:
        """The logarithm of the mass of N(location, 1) on the interval, 0 where the law is switched off."""
        return IntervalMass(self)

    def mean(self) -> Expression:
        return IntervalMean(self)

    def grid(self, centre: np.ndarray, env: Environment) -> Grid:
        # u = low + (high - low) / (1 + exp(-2 sinh t)): the trapezoid rule in t converges fast. N(0, 1) is 0 at 40.
        low, high = (np.clip(np.asarray(end), -40.0, 40.0) for end in self.ends(env))
        t = np.arange(-130, 131)[:, None, None] * 0.025
        share = 1.0 / (1.0 + np.exp(-2.0 * np.sinh(t)))
        slope = 2.0 * np.cosh(t) / (2.0 + 2.0 * np.cosh(2.0 * np.sinh(t)))
        values = np.asarray(self.location.evaluate(env)) + low + (high - low) * share
        log_measure = np.log((high - low) * slope * 0.025) + np.zeros_like(values)
        return Grid(values, log_measure, np.ones(centre.shape, dtype=bool))

    def notation(self, variable: Part) -> Tree:
        return line(call("N", self.location, 1), words("truncated to"), self.limits(variable))

    def limits(self, variable: Part) -> Tree:
        """The intervals, each with its condition, as a formula."""
        return listed(*(_limits(interval, variable) for interval in self.intervals), sign=";")

    def perturbed(self, value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        # Draws of the same datum by other rows of the batch: all lie in its interval.
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
    """log(Φ(upper - z) - Φ(lower - z)) of the selected interval, evaluated once for all intervals."""

    def __init__(self, law: IntervalNormal):
        self.law = law
        self.children = (add(*(multiply(interval.exponent, log(mass)) for interval, mass in law.masses())),)

    def evaluate(self, env: Environment) -> Any:
        return jnp.where(self.law.off(env), 0.0, log_normal_interval(*self.law.ends(env)))

    def notation(self, precedence: int = 0) -> Tree:
        return self.children[0].notation(precedence)


class IntervalMean(Expression):
    """The mean of the law, z - (φ(upper - z) - φ(lower - z)) / (Φ(upper - z) - Φ(lower - z)); stable in the tails."""

    def __init__(self, law: IntervalNormal):
        self.law = law
        z, terms = multiply(-1.0, law.location), [law.location]
        for interval, mass in law.masses():
            ends = [(end, sign) for end, sign in ((interval.upper, -1.0), (interval.lower, 1.0)) if end is not None]
            densities = add(*(multiply(sign, Function("φ", norm.pdf, add(end, z))) for end, sign in ends))
            terms.append(multiply(interval.exponent, densities, power(mass, -1.0)))
        self.children = (add(*terms),)

    def evaluate(self, env: Environment) -> Any:
        low, high = self.law.ends(env)
        log_mass = log_normal_interval(low, high)
        above, below = (jnp.exp(norm.logpdf(end) - log_mass) for end in (high, low))
        # φ's difference cancels for narrow intervals: clip the mean to the interval.
        return self.law.location.evaluate(env) + jnp.clip(below - above, low, high)

    def notation(self, precedence: int = 0) -> Tree:
        return self.children[0].notation(precedence)
