"""Linear response: the covariance of a posterior from how a variational optimum moves when it is tilted."""

from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.inference.gaussian_vi import positive_part
from pgmodels.latent.coupled import CoupledPosterior
from pgmodels.latent.joint import JointPosterior
from pgmodels.latent.mixing import push_covariance, push_moments, push_values
from pgmodels.latent.rows import of_data
from pgmodels.objectives.protocol import Objective
from pgmodels.precision import as_array

# Relative to the variances: V has no more digits than that, and its root needs it where latents are nearly one.
_JITTER = 1e-10
# Data whose second derivatives are taken at a time.
_ROWS = 64


class Sensitivity(NamedTuple):
    """What an objective's second derivatives are at each datum's marginals, u = v or the entries of V, row by row.

    ``gain`` is B_mm + W (n, P, P), ``mixed`` B_um (n, R, P) and ``curved`` B_uu (n, R, R), zero in a row where the
    precision is held at its bound.
    """

    gain: Float[Array, "n P P"]
    mixed: Float[Array, "n R P"]
    curved: Float[Array, "n R R"]


def entries(size: int, joint: bool) -> tuple[tuple[int, int], ...]:
    """The entries of a datum's covariance that the objective reads."""
    if joint:
        return tuple(combinations_with_replacement(range(size), 2))
    return tuple((p, p) for p in range(size))


def sensitivity(objective: Objective, mean: Any, spread: Any, precision: Any, y: Any, parameters: Any) -> Sensitivity:
    """The second derivatives of the objective at the marginals of an optimum with these precisions (math: section 5b).

    ``spread`` and ``precision`` are (n, P), or (n, P, P) where a datum's predictors are coupled.
    """
    size, joint = objective.size, spread.ndim == 3
    pairs = entries(size, joint)
    rows, columns = (np.array(part) for part in zip(*pairs, strict=True))
    u = spread[:, rows, columns] if joint else spread

    def bound(point: Any, y_i: Any) -> Any:
        m, u = point[:size], point[size:]
        V = jnp.zeros((size, size), u.dtype).at[rows, columns].set(u).at[columns, rows].set(u) if joint else u
        return objective.local_bound(m[None], V[None], y_i[None], parameters)[0]

    def derivatives(point: Any, y_i: Any) -> tuple[Any, Any]:
        return jax.jacfwd(lambda point: (jax.grad(bound)(point, y_i),) * 2, has_aux=True)(point)

    points, n = jnp.concatenate([mean, u], axis=1), len(mean)
    # In pieces of one length, the last of which repeats the last row: one program, and little memory.
    rows_of = np.minimum(np.arange(n + -n % min(_ROWS, n)), n - 1).reshape(-1, min(_ROWS, n))
    pieces = jax.lax.map(lambda own: jax.vmap(derivatives)(points[own], as_array(y)[own]), rows_of)
    H, slopes = (part.reshape(-1, *part.shape[2:])[:n] for part in pieces)
    W = precision if joint else jax.vmap(jnp.diag)(precision)
    mixed, curved = H[:, size:, :size], H[:, size:, size:]
    if not joint:
        # A precision that would be negative stays at zero, whatever the marginals do.
        free = slopes[:, size:] <= 0.0
        mixed, curved = free[:, :, None] * mixed, free[:, :, None] * curved * free[:, None, :]
    return Sensitivity(H[:, :size, :size] + W, mixed, curved)


def respond(V: Float[Array, "n P n P"], found: Sensitivity, joint: bool) -> Float[Array, "N N"]:
    """The M with Cov = (V^-1 - M)^-1, N = n P: what the objective adds when its precisions follow the marginals.

    M = B_mm + W + B_mu (I - Q B_uu)^-1 Q B_um, Q the response of covariances to precisions (math: section 5b).
    """
    n, size = V.shape[:2]
    rows, columns = (np.array(part) for part in zip(*entries(size, joint), strict=True))
    ours, others = V[:, rows], V[:, columns]
    # Cov of an entry (p, q) of datum i with an entry (a, b) of j: V_pa V_qb + V_pb V_qa.
    Q = ours[..., rows] * others[..., columns] + ours[..., columns] * others[..., rows]
    count = n * len(rows)
    by_curved = jnp.einsum("irjs,jst->irjt", Q, found.curved).reshape(count, count)
    by_mixed = jnp.einsum("irjs,jsp->irjp", Q, found.mixed).reshape(count, n * size)
    moved = jnp.linalg.solve(jnp.eye(count, dtype=V.dtype) - by_curved, by_mixed)
    M = jnp.einsum("irp,irN->ipN", found.mixed, moved.reshape(n, len(rows), n * size))
    own = jnp.arange(n)
    M = M.reshape(n, size, n, size).at[own, :, own, :].add(found.gain).reshape(n * size, n * size)
    return 0.5 * (M + M.T)


def linear_response(
    objective: Objective,
    joint: bool,
    posterior: JointPosterior | CoupledPosterior,
    Phi: Any,
    y: Any,
    live: Any,
    parameters: Any,
) -> tuple[Float[Array, "N N"], Float[Array, "N N"], Float[Array, " N"]]:
    """The T with Cov(f_*) = V_** + V_*z T V_z*, and I - UᵀMU for V = UUᵀ, which must be positive definite.

    ``live`` is 0 at rows that fill up the data: there M and T are zero, and I - UᵀMU is I.
    Also, of one predictor a datum, the shift E[∂Q/∂z] = 4 v B_mv of the expansion to second order (math: section 5);
    zero of several.
    """
    mean, V, spread = at_data(posterior, Phi, joint)
    n, size = mean.shape
    precision = objective.local_sites(mean, spread, y, parameters)[1]
    precision = precision if joint else positive_part(precision)
    found = sensitivity(objective, mean, spread, precision, y, parameters)
    found = Sensitivity(*(of_data(live, part) for part in found))
    M = respond(V, found, joint)
    # The variance that sites move: marginals may have a residual beside it.
    shift = jnp.zeros(n * size) if size > 1 else 4.0 * jnp.einsum("ipip->i", V) * found.mixed[:, 0, 0]
    flat = V.reshape(n * size, n * size)
    flat = 0.5 * (flat + flat.T)
    U = jnp.linalg.cholesky(flat + _JITTER * jnp.mean(jnp.diagonal(flat)) * jnp.eye(n * size, dtype=flat.dtype))
    S = jnp.eye(n * size, dtype=flat.dtype) - U.T @ M @ U
    S = 0.5 * (S + S.T)
    half = U.T @ M
    T = M + half.T @ jnp.linalg.solve(S, half)
    return 0.5 * (T + T.T), S, shift


def at_data(
    posterior: JointPosterior | CoupledPosterior, Phi: Any, joint: bool
) -> tuple[Float[Array, "n P"], Float[Array, "n P n P"], Array]:
    """Mean (n, P), covariance (n, P, n, P) and each datum's variances or covariances of the predictors.

    The covariance is of what sites move, and the variances have the residual of an inducing prior too: a tilt reaches
    the latents through their values at the inducing inputs alone.
    """
    if isinstance(posterior, JointPosterior):
        mean, variance = posterior.moments()
        size = mean.shape[1]
        V = jnp.zeros((len(mean), size, len(mean), size), mean.dtype)
        own = jnp.arange(size)
        return mean, V.at[:, own, :, own].set(posterior.covariance()), variance
    mean, covariance = posterior.marginals()
    V = jnp.transpose(posterior.covariance(), (1, 0, 3, 2))
    if Phi is None:
        return mean, V, covariance if joint else jnp.diagonal(covariance, axis1=1, axis2=2)
    V = jnp.einsum("ipl,iljk,jqk->ipjq", Phi, V, Phi)
    spread = push_covariance(Phi, covariance) if joint else push_moments(Phi, mean, covariance)[1]
    return push_values(Phi, mean), V, spread
