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


def fit_log_sum(A: Float[Array, "M b"], sums: Float[Array, " b"], num_rows: Array) -> LogSum:
    """Ridge regression on the logarithms of known sums; weights have the prior N(0, 1)."""
    phi, size = features(A), len(sums)
    curvature = phi.T @ phi / size
    return LogSum(_solve(curvature, phi.T @ jnp.log(sums) / size, num_rows), curvature)


def newton_update(
    now: LogSum, A: Float[Array, "M b"], sums: Float[Array, " b"], num_rows: Array, rate: Array
) -> LogSum:
    """A Newton step of limited length on the loss, from unbiased estimates of the sums at some rows."""
    phi, size = features(A), len(sums)
    # The slope of -S / S0 - log S0 is S / S0 - 1, and its curvature 1 where S0 = S.
    excess = sums * jnp.exp(-(phi @ now.weights)) - 1.0
    curvature = now.curvature + rate * (phi.T @ phi / size - now.curvature)
    return LogSum(
        now.weights + rate * _solve(curvature, phi.T @ excess / size - now.weights / num_rows, num_rows), curvature
    )


def _solve(curvature: Array, slope: Array, num_rows: Array) -> Array:
    return cho_solve((jnp.linalg.cholesky(curvature + jnp.eye(len(slope)) / num_rows), True), slope)
