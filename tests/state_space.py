"""A prior representation defined outside the package, without a factor matrix.

The Ornstein-Uhlenbeck process of one input, by Kalman filter and smoother, in O(n).
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp

from pgmodels.priors.base import GroupPosterior, LatentPrior
from pgmodels.priors.dense import centred
from pgmodels.priors.representation import EAGER, Representation


@dataclass(frozen=True)
class StateSpace(Representation):
    """The state-space representation of pgm.Matern12 on one column of X."""

    def bind(self, kernel, mean, X, size, how=EAGER):
        variance, lengthscale = (jnp.asarray(p.value) for p in (kernel.variance, kernel.lengthscale))
        X = jnp.asarray(X)
        return LinePrior(jnp.asarray(mean), X, variance, lengthscale, jnp.argsort(X[:, 0]), size)


class LinePrior(LatentPrior):
    """Coordinates are the latents at X minus their mean. ``order`` sorts the rows."""

    mean: jax.Array
    X: jax.Array
    variance: jax.Array
    lengthscale: jax.Array
    order: jax.Array
    size: int = eqx.field(static=True)

    @property
    def rank(self):
        return len(self.X)

    @property
    def sorted_inputs(self):
        return self.X[self.order, 0]

    @property
    def decays(self):
        """The correlation of each sorted value with the one before, 0 for the first."""
        return jnp.append(0.0, jnp.exp(-jnp.diff(self.sorted_inputs) / self.lengthscale))

    def unsorted(self, values):
        return jnp.zeros_like(values).at[self.order].set(values)

    def condition(self, sites):
        h, constant = centred(sites, self.mean)

        def forward(carry, datum):
            mean, variance, log_normalizer = carry
            a, h, w = datum
            m, P = a * mean, a**2 * variance + self.variance * (1.0 - a**2)
            scale = 1.0 + w * P
            gain = 0.5 * (2.0 * m * h + h**2 * P - w * m**2) / scale - 0.5 * jnp.log(scale)
            carry = (m + P * h) / scale, P / scale, log_normalizer + gain
            return carry, (m, P, *carry[:2])

        zeros = jnp.zeros(self.size)
        start, data = (zeros, zeros, zeros), (self.decays, h[self.order], sites.precision[self.order])
        (_, _, log_normalizer), (m, P, mean, variance) = jax.lax.scan(forward, start, data)
        # Each value given the next: mean gain times the next deviation, with residual variance.
        gains = jnp.append(self.decays[1:], 0.0)[:, None] * variance / jnp.roll(P, -1, axis=0)
        residuals = variance - gains**2 * jnp.roll(P, -1, axis=0)

        def backward(carry, step):
            mean, variance, next_m = carry
            gain, filtered, residual, m = step
            mean, variance = filtered + gain * (mean - next_m), residual + gain**2 * variance
            return (mean, variance, m), (mean, variance)

        _, (mean, variance) = jax.lax.scan(backward, (zeros, zeros, zeros), (gains, mean, residuals, m), reverse=True)
        return LinePosterior(self, mean, variance, gains, residuals, jnp.sum(log_normalizer + constant))

    def draw(self, key):
        def forward(before, step):
            a, noise = step
            f = a * before + jnp.sqrt(self.variance * (1.0 - a**2)) * noise
            return f, f

        noise = jax.random.normal(key, (self.rank, self.size))
        coordinates = self.unsorted(jax.lax.scan(forward, jnp.zeros(self.size), (self.decays, noise))[1])
        return self.latents(coordinates), coordinates

    def sweep_operations(self):
        return 30.0 * self.rank

    def latents(self, coordinates):
        return self.mean + coordinates

    def bridge(self, X_new):
        """The neighbours of each new input, their weights, and the residual variance."""
        t, s = jnp.asarray(X_new)[:, 0], self.sorted_inputs
        upper = jnp.searchsorted(s, t, side="right")
        has_lower, has_upper = upper > 0, upper < len(s)
        lower, upper = jnp.maximum(upper - 1, 0), jnp.minimum(upper, len(s) - 1)
        a = jnp.where(has_lower, jnp.exp(-jnp.abs(t - s[lower]) / self.lengthscale), 0.0)
        b = jnp.where(has_upper, jnp.exp(-jnp.abs(s[upper] - t) / self.lengthscale), 0.0)
        # The neighbours' correlation is a b; 0 with only one neighbour.
        weights = (a - a * b**2) / (1.0 - (a * b) ** 2), (b - a**2 * b) / (1.0 - (a * b) ** 2)
        residual = self.variance * (1.0 - weights[0] * a - weights[1] * b)
        return lower, upper, *weights, jnp.maximum(residual, 0.0)

    def conditional(self, X_new, coordinates):
        lower, upper, a, b, residual = self.bridge(X_new)
        f = coordinates[..., self.order, :]
        return self.mean + a[:, None] * f[..., lower, :] + b[:, None] * f[..., upper, :], residual


class LinePosterior(GroupPosterior):
    """Sorted: means, variances, and each value given the next."""

    prior: LinePrior
    mean: jax.Array
    variance: jax.Array
    gains: jax.Array
    residuals: jax.Array
    log_z: jax.Array

    def moments(self):
        return self.prior.mean + self.prior.unsorted(self.mean), self.prior.unsorted(self.variance)

    def log_normalizer(self):
        return self.log_z

    def predict(self, X_new):
        lower, upper, a, b, residual = (part if part.ndim == 0 else part[:, None] for part in self.prior.bridge(X_new))
        lower, upper = lower[:, 0], upper[:, 0]
        mean = self.prior.mean + a * self.mean[lower] + b * self.mean[upper]
        both = self.gains[lower] * self.variance[upper]
        return mean, a**2 * self.variance[lower] + b**2 * self.variance[upper] + 2.0 * a * b * both + residual

    def mean_and_deviation(self, key):
        def backward(after, step):
            gain, residual, noise = step
            d = gain * after + jnp.sqrt(residual) * noise
            return d, d

        noise = jax.random.normal(key, self.mean.shape)
        zeros = jnp.zeros(self.prior.size)
        _, deviation = jax.lax.scan(backward, zeros, (self.gains, self.residuals, noise), reverse=True)
        return self.prior.unsorted(self.mean), self.prior.unsorted(deviation)
