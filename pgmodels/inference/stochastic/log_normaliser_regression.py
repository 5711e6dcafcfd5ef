"""Regression of the log sum over all latents at an input, from unbiased estimates with a few latents."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float


class LogSum(NamedTuple):
    """log S0(x) = ``weights`` · (A(x), 1), with A the prior's factor; ``curvature`` averages the squared features.

    The loss of the tangent, E[S / S0 + log S0], is least where S0 is the best fit of S(x) by these features.
    """

    weights: Float[Array, " F"]
    curvature: Float[Array, "F F"]


def features(A: Float[Array, "M b"]) -> Float[Array, "b F"]:
    """The features of rows, in which log S0 is linear."""
    return jnp.concatenate([A.T, jnp.ones((A.shape[1], 1))], axis=1)


def fit_log_sum(A: Float[Array, "M b"], log_sums: Float[Array, " b"], num_rows: Array) -> LogSum:
    """Ridge regression on known log sums; weights have the prior N(0, 1)."""
    phi, size = features(A), len(log_sums)
    curvature = phi.T @ phi / size
    return LogSum(_solve(curvature, phi.T @ log_sums / size, num_rows), curvature)


def newton_update(
    now: LogSum, A: Float[Array, "M b"], log_ratios: Float[Array, " b"], num_rows: Array, rate: Array
) -> LogSum:
    """A Newton step of limited length on the loss, from the logs of unbiased estimates of S / S0 at some rows."""
    phi, size = features(A), len(log_ratios)
    # The slope of -S / S0 - log S0 is S / S0 - 1, and its curvature 1 where S0 = S. No row moves its log S0 by more
    # than 1, which estimates from a share of the latents never do where S0 = S and the rate is at most that share.
    excess = jnp.minimum(jnp.expm1(log_ratios), 1.0 / rate)
    curvature = now.curvature + rate * (phi.T @ phi / size - now.curvature)
    return LogSum(
        now.weights + rate * _solve(curvature, phi.T @ excess / size - now.weights / num_rows, num_rows), curvature
    )


def _solve(curvature: Array, slope: Array, num_rows: Array) -> Array:
    return cho_solve((jnp.linalg.cholesky(curvature + jnp.eye(len(slope)) / num_rows), True), slope)
