"""Linear response: posterior covariances from the derivative of a variational optimum in a linear perturbation.

Everything is in the concatenated whitened coordinates v of the latents: z = G^T v are the predictors at the data, C =
R^-T R^-1 is the covariance of v under q, and U = R^-1 G has U^T U = V, the covariance of z.
"""

from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from pgmodels.inference.corrections.response_products import by_products
from pgmodels.inference.variational.natural_gradient import positive_part
from pgmodels.objectives.base import Objective
from pgmodels.priors.block_posterior import together
from pgmodels.priors.linear_predictor import push_covariance, push_moments, push_values
from pgmodels.priors.padding import weighted
from pgmodels.priors.posterior import Posterior

# Cost of solving by products relative to a solve with the matrix of the data's moments: ten iterations, two products
# each.
_PRODUCTS = 10.0
# Above this number of moments (a matrix of 0.8 GB) use conjugate gradients if the rank is below a quarter of it.
_MOST = 10_000


class Sensitivity(NamedTuple):
    """An objective's second derivatives at each datum's marginals; u = v, or the entries of V row by row.

    ``by_means`` is B_mm (n, P, P), ``mixed`` B_um (n, R, P) and ``curved`` B_uu (n, R, R), the latter two zero in rows
    whose precision is clipped at zero.
    """

    by_means: Float[Array, "n P P"]
    mixed: Float[Array, "n R P"]
    curved: Float[Array, "n R R"]


def entries(size: int, coupled: bool) -> tuple[tuple[int, int], ...]:
    """The entries of a datum's covariance that the objective reads."""
    if coupled:
        return tuple(combinations_with_replacement(range(size), 2))
    return tuple((p, p) for p in range(size))


def sensitivity(
    objective: Objective, mean: Any, spread: Any, y: Any, row_weights: Any, parameters: Any, clipped: bool
) -> Sensitivity:
    """The second derivatives of the objective at the marginals of an optimum, times ``row_weights`` (math: section 5b).

    ``spread`` is (n, P), or (n, P, P) where a datum's predictors are coupled; ``clipped`` is whether precisions below
    zero are held at zero.
    """
    size = objective.size
    slopes, H = objective.second_derivatives(mean, spread, y, parameters)
    mixed, curved = H[:, size:, :size], H[:, size:, size:]
    if clipped:
        # A precision clipped at zero does not respond to the marginals.
        free = slopes <= 0.0
        mixed, curved = free[:, :, None] * mixed, free[:, :, None] * curved * free[:, None, :]
    return Sensitivity(*(weighted(row_weights, part) for part in (H[:, :size, :size], mixed, curved)))


class Response(NamedTuple):
    """Corrections of the posterior of the whitened coordinates v, (D,), of all latents.

    ``shift`` (D,) is added to their mean, C G E[dQ/dz] / 2 to first order (math: section 5), zero for several
    predictors per datum; ``covariance`` (D, D) is added to C. ``kept`` is I - U M U^T, which must be positive definite.
    ``residual`` is the relative residual of the equations if they were solved by products.
    """

    shift: Float[Array, " D"]
    covariance: Float[Array, "D D"]
    kept: Float[Array, "D D"]
    residual: Float[Array, ""]


def linear_response(
    objective: Objective,
    coupled: bool,
    posterior: Posterior,
    Phi: Any,
    y: Any,
    row_weights: Any,
    parameters: Any,
) -> Response:
    """Cov(v) = R^-T (I - U M U^T)^-1 R^-1, with M from the dependence of the sites on the marginals (math: section 5b).

    ``row_weights`` multiply what each datum contributes to M; they are 0 at padding rows.
    """
    mean, spread = read_at_data(objective, posterior, Phi, coupled)
    derivatives = sensitivity(objective, mean, spread, y, row_weights, parameters, not coupled)
    if posterior.is_coupled:
        precision = objective.local_sites(mean, spread, y, parameters)[1]
        precision = precision if coupled else positive_part(precision)
        W = weighted(row_weights, precision if precision.ndim == 3 else jax.vmap(jnp.diag)(precision))
    else:
        # Those of C, so that the Hessian is exact wherever the iterations ended.
        W = jax.vmap(jnp.diag)(posterior.sites.precision)
    gain, size, count = W + derivatives.by_means, W.shape[1], derivatives.mixed.shape[1]
    if Phi is None:
        # Rows with equal inputs respond together, by the sum of their derivatives.
        derivatives, gain = jax.tree.map(posterior.prior.total, (derivatives, gain))
    R, U = halves(posterior, Phi, posterior.prior.distinct.factors() if Phi is None else None)
    added, residual = _added(U, gain, derivatives, entries(size, count > size))
    identity = jnp.eye(len(R), dtype=R.dtype)
    kept = identity - 0.5 * (added + added.T)
    moved = jnp.linalg.solve(kept, identity - kept)
    # The variance that sites affect, without the residual variance of the marginals.
    slope = 2.0 * jnp.sum(U[:, :, 0] ** 2, axis=0) * derivatives.mixed[:, 0, 0] if size == 1 else jnp.zeros(U.shape[1])
    right = jnp.column_stack([0.5 * (moved + moved.T), U[:, :, 0] @ slope])
    half = solve_triangular(R, right, trans="T", lower=True)
    covariance = solve_triangular(R, half[:, :-1].T, trans="T", lower=True)
    return Response(half[:, -1], 0.5 * (covariance + covariance.T), kept, residual)


def halves(
    posterior: Posterior, Phi: Any, factors: Sequence[Array] | None = None
) -> tuple[Float[Array, "D D"], Float[Array, "D n P"]]:
    """The R with C = R^-T R^-1, and the U with U^T U the predictors' covariance without its residual.

    U is at the inputs of the ``factors`` of the latents, by default those of the posterior.
    """
    (R,), factors = together(posterior).roots, posterior.prior.factors() if factors is None else factors
    size = len(factors)
    Phi = jnp.broadcast_to(jnp.eye(size), (factors[0].shape[1], size, size)) if Phi is None else Phi
    G = jnp.concatenate([A[:, :, None] * Phi[:, :, latent] for latent, A in enumerate(factors)])
    return R, solve_triangular(R, G.reshape(len(R), -1), lower=True).reshape(G.shape)


def read_at_data(objective: Objective, posterior: Posterior, Phi: Any, coupled: bool) -> tuple[Array, Array]:
    """``at_data``, with variances if the objective does not read covariances."""
    mean, spread = at_data(posterior, Phi, coupled)
    is_read = spread.ndim == 2 or objective.takes_covariances
    return mean, spread if is_read else jnp.diagonal(spread, axis1=1, axis2=2)


def at_data(
    posterior: Posterior, Phi: Any, coupled: bool
) -> tuple[Float[Array, "n P"], Float[Array, "n P"] | Float[Array, "n P P"]]:
    """The predictors' means and each datum's variances or covariances, including the residual of a sparse prior.

    The response involves only the latents' coordinates, but the objective depends on their full variance.
    """
    if not posterior.is_coupled:
        return posterior.moments()
    mean, covariance = posterior.marginals()
    if Phi is None:
        return mean, covariance if coupled else jnp.diagonal(covariance, axis1=1, axis2=2)
    spread = push_covariance(Phi, covariance) if coupled else push_moments(Phi, mean, covariance)[1]
    return push_values(Phi, mean), spread


def _added(
    U: Float[Array, "D n P"], gain: Float[Array, "n P P"], derivatives: Sensitivity, pairs: tuple[tuple[int, int], ...]
) -> tuple[Float[Array, "D D"], Float[Array, ""]]:
    """U M U^T, M = gain + B_mu (I - Q B_uu)^-1 Q B_um with Q the response of covariances to precisions.

    Also the residual of the solve, which uses matrices of the data or products with them, whichever costs less.
    """
    rank, n, size = U.shape
    count = n * len(pairs)
    direct = jnp.einsum("dip,ipq,eiq->de", U, gain, U)
    right = jnp.einsum("irp,dip->dir", derivatives.mixed, U)
    if count**3 < _PRODUCTS * n * size * rank**3 and (count <= _MOST or 4 * rank > count):
        return direct + _by_matrix(U, right, derivatives.curved, pairs), jnp.zeros((), U.dtype)
    through, residual = by_products(U, right, derivatives.curved, pairs)
    return direct + through, residual


def _by_matrix(
    U: Float[Array, "D n P"], right: Float[Array, "D n R"], curved: Float[Array, "n R R"], pairs: Any
) -> Float[Array, "D D"]:
    """b (I - Q B)^-1 Q b^T with Q written out."""
    rows, columns = (np.array(part) for part in zip(*pairs, strict=True))
    V = jnp.einsum("dip,djq->ipjq", U, U)
    ours, others = V[:, rows], V[:, columns]
    # Cov of an entry (p, q) of datum i with an entry (a, b) of j: V_pa V_qb + V_pb V_qa.
    Q = ours[..., rows] * others[..., columns] + ours[..., columns] * others[..., rows]
    count = right[0].size
    by_curved = jnp.einsum("irjs,jst->irjt", Q, curved).reshape(count, count)
    b = right.reshape(-1, count)
    return b @ jnp.linalg.solve(jnp.eye(count, dtype=U.dtype) - by_curved, Q.reshape(count, count) @ b.T)
