"""Linear response of Gaussian approximations."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations_with_replacement
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from pgmodels.inference.cavi import positive_part
from pgmodels.inference.objectives import objective_of_result
from pgmodels.inference.prepare import is_affordable
from pgmodels.inference.problem import Problem, Spread
from pgmodels.numerics.iteration import conjugate_gradients
from pgmodels.objectives.base import Objective
from pgmodels.priors.base import weighted
from pgmodels.priors.block_posterior import together
from pgmodels.priors.chain_posterior import ChainResponse, Factors, Layout, response_entries
from pgmodels.priors.collection import Marginals, Posterior, supports_signed
from pgmodels.results.approximation import Approximation, LinearResponse
from pgmodels.results.gaussian import CorrectionWarning, added_moments, is_invalid, warn_invalid
from pgmodels.results.nested import ChainCorrection, respond
from pgmodels.runtime.jit import compiled, require_memory
from pgmodels.runtime.messages import warn

# The equations of linear response solved by products with the data's factor, without an n x n matrix.


def by_products(
    U: Float[Array, "D n P"],
    right: Float[Array, "D n R"],
    curved: Float[Array, "n R R"],
    pairs: Sequence[tuple[int, int]],
) -> tuple[Float[Array, "D D"], Float[Array, ""]]:
    """b (I - Q B)^-1 Q b^T for the rows of b, ``right``, and the largest residual of a row, relative to b^T Q b.

    It uses conjugate gradients: in the inner product of Q, I - B Q is symmetric, and positive definite at a stable
    optimum. The residual is infinite if it is not. Q is the covariance of the moments ``pairs`` under q. Its product
    with weights x is H = sum of x_pq (U_p U_q^T + U_q U_p^T) over the data, then U_p^T H U_q at each. This costs
    4 n P D^2 operations (math: section 5b).
    """
    rank, n, size = U.shape
    rows, columns = (np.array(part) for part in zip(*pairs, strict=True))
    flat = U.reshape(rank, n * size)

    def covariances(x: Float[Array, "n R"]) -> Float[Array, "n R"]:
        weights = jnp.zeros((n, size, size), U.dtype).at[:, rows, columns].add(x).at[:, columns, rows].add(x)
        H = jnp.einsum("dip,ipq->diq", U, weights).reshape(rank, n * size) @ flat.T
        return jnp.sum(U[:, :, rows] * (H @ flat).reshape(U.shape)[:, :, columns], axis=0)

    def image(moved: Float[Array, "n R"], x: Float[Array, "n R"]) -> Float[Array, "n R"]:
        return x - jnp.einsum("irs,is->ir", curved, moved)

    def row(b: Float[Array, "n R"]) -> tuple[Float[Array, " D"], Float[Array, ""]]:
        # The relative error is in the norm of Q; a stable optimum needs about ten iterations.
        solution = conjugate_gradients(image, b, covariances, 1e-8, 200)
        return jnp.einsum("dir,ir->d", right, solution.x), jnp.where(solution.positive, solution.residual, jnp.inf)

    responses, residuals = jax.lax.map(row, right)
    return responses, jnp.max(residuals)


# Linear response: posterior covariances from the derivative of a variational optimum in a linear perturbation.
# Whitened coordinates v: predictors z = G^T v, C = R^-T R^-1 = Cov v under q, and U = R^-1 G with U^T U = Cov z.


class Sensitivity(NamedTuple):
    """An objective's second derivatives at each datum's marginals; u = v, or the entries of V row by row.

    ``by_means`` is B_mm (n, P, P), ``mixed`` B_um (n, R, P) and ``curved`` B_uu (n, R, R). ``mixed`` and ``curved``
    are zero in rows whose precision is clipped at zero.
    """

    by_means: Float[Array, "n P P"]
    mixed: Float[Array, "n R P"]
    curved: Float[Array, "n R R"]


def entries(size: int, coupled: bool) -> tuple[tuple[int, int], ...]:
    """Return the entries of a datum's covariance that the objective reads."""
    return tuple(combinations_with_replacement(range(size), 2)) if coupled else tuple((p, p) for p in range(size))


def at_data(problem: Problem, posterior: Posterior) -> tuple[Float[Array, "n P"], Spread]:
    """Return the predictors' means and each datum's variances or covariances, with a sparse prior's residual."""
    return problem.of_latents(*posterior.marginals()) if posterior.is_coupled else posterior.moments()


def _read_at_data(problem: Problem, posterior: Posterior) -> tuple[Float[Array, "n P"], Spread]:
    """``at_data``, with variances if the objective does not read covariances."""
    mean, spread = at_data(problem, posterior)
    is_read = spread.ndim == 2 or problem.objective.takes_covariances
    return mean, spread if is_read else jnp.diagonal(spread, axis1=1, axis2=2)


def _sensitivity(problem: Problem, mean: Float[Array, "n P"], spread: Spread, clipped: bool) -> Sensitivity:
    """The objective's second derivatives at an optimum, times row weights; ``clipped`` holds precisions at 0."""
    size = problem.objective.size
    slopes, H = problem.objective.second_derivatives(mean, spread, problem.y, problem.parameters)
    mixed, curved = H[:, size:, :size], H[:, size:, size:]
    if clipped:
        # A precision clipped at zero does not respond to the marginals.
        free = slopes <= 0.0
        mixed, curved = free[:, :, None] * mixed, free[:, :, None] * curved * free[:, None, :]
    return Sensitivity(*(weighted(problem.row_weights, part) for part in (H[:, :size, :size], mixed, curved)))


class Response(NamedTuple):
    """Corrections of the posterior of the whitened coordinates v, (D,), of all latents.

    ``shift`` (D,) is added to their mean: C G E[dQ/dz] / 2 to first order (math: section 5), zero for several
    predictors per datum. ``covariance`` (D, D) is added to C. ``kept`` is I - U M U^T, which must be positive definite.
    ``residual`` is the relative residual of the equations if they were solved by products.
    """

    shift: Float[Array, " D"]
    covariance: Float[Array, "D D"]
    kept: Float[Array, "D D"]
    residual: Float[Array, ""]


def linear_response(problem: Problem, posterior: Posterior, with_products: bool | None = None) -> Response:
    """Cov(v) = R^-T (I - U M U^T)^-1 R^-1, with M from the dependence of the sites on the marginals (math: section 5b).

    Row weights multiply what each datum contributes to M; they are 0 at padding rows. ``with_products`` is whether the
    equations are solved by products, by default where that costs less than the matrix of the data's moments.
    """
    Phi, (mean, spread) = problem.mixing(), _read_at_data(problem, posterior)
    derivatives = _sensitivity(problem, mean, spread, clipped=not problem.coupled)
    if posterior.is_coupled:
        precision = problem.objective.local_sites(mean, spread, problem.y, problem.parameters)[1]
        precision = precision if problem.coupled else positive_part(precision)
        W = weighted(problem.row_weights, precision if precision.ndim == 3 else jax.vmap(jnp.diag)(precision))
    else:
        # Those of C, so that the Hessian is exact wherever the iterations ended.
        W = jax.vmap(jnp.diag)(posterior.sites.precision)
    gain, size, count = W + derivatives.by_means, W.shape[1], derivatives.mixed.shape[1]
    if Phi is None:
        # Rows with equal inputs respond together, by the sum of their derivatives.
        derivatives, gain = jax.tree.map(posterior.prior.total, (derivatives, gain))
    R, U = halves(posterior, Phi, posterior.prior.distinct.factors() if Phi is None else None)
    added, residual = _added(U, gain, derivatives, entries(size, count > size), with_products)
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
    posterior: Posterior, Phi: Float[Array, "n P L"] | None, factors: Sequence[Array] | None = None
) -> tuple[Float[Array, "D D"], Float[Array, "D n P"]]:
    """Return R with C = R^-T R^-1, and U with U^T U the predictors' covariance at ``factors``, without residual."""
    (R,) = cast(tuple[Array], together(posterior).roots)
    factors = posterior.prior.factors() if factors is None else factors
    size = len(factors)
    Phi = jnp.broadcast_to(jnp.eye(size), (factors[0].shape[1], size, size)) if Phi is None else Phi
    G = jnp.concatenate([A[:, :, None] * Phi[:, :, latent] for latent, A in enumerate(factors)])
    return R, solve_triangular(R, G.reshape(len(R), -1), lower=True).reshape(G.shape)


def _added(
    U: Float[Array, "D n P"],
    gain: Float[Array, "n P P"],
    derivatives: Sensitivity,
    pairs: tuple[tuple[int, int], ...],
    with_products: bool | None,
) -> tuple[Float[Array, "D D"], Float[Array, ""]]:
    """U M U^T, M = gain + B_mu (I - Q B_uu)^-1 Q B_um (Q: covariances by precisions), and the solve's residual."""
    rank, n, size = U.shape
    count = n * len(pairs)
    direct = jnp.einsum("dip,ipq,eiq->de", U, gain, U)
    right = jnp.einsum("irp,dip->dir", derivatives.mixed, U)
    if with_products is None:
        # Products cost ten iterations of two each. Above 10,000 moments, whose matrix has 0.8 GB, they are also chosen
        # if the rank is at most a quarter of these.
        with_products = count**3 >= 10.0 * n * size * rank**3 or (count > 10_000 and 4 * rank <= count)
    if not with_products:
        return direct + by_matrix(U, right, derivatives.curved, pairs), jnp.zeros((), U.dtype)
    through, residual = by_products(U, right, derivatives.curved, pairs)
    return direct + through, residual


def by_matrix(
    U: Float[Array, "D n P"],
    right: Float[Array, "D n R"],
    curved: Float[Array, "n R R"],
    pairs: Sequence[tuple[int, int]],
) -> Float[Array, "D D"]:
    """b (I - Q B)^-1 Q b^T, as ``by_products``, with Q written out."""
    rows, columns = (np.array(part) for part in zip(*pairs, strict=True))
    V = jnp.einsum("dip,djq->ipjq", U, U)
    ours, others = V[:, rows], V[:, columns]
    # Cov of an entry (p, q) of datum i with an entry (a, b) of j: V_pa V_qb + V_pb V_qa.
    Q = ours[..., rows] * others[..., columns] + ours[..., columns] * others[..., rows]
    count = right[0].size
    by_curved = jnp.einsum("irjs,jst->irjt", Q, curved).reshape(count, count)
    b = right.reshape(-1, count)
    return b @ jnp.linalg.solve(jnp.eye(count, dtype=U.dtype) - by_curved, Q.reshape(count, count) @ b.T)


def problem_at(approximation: Approximation, objective: Objective) -> Problem:
    """Return the problem of which a result is the optimum, at the rows of its posterior."""
    posterior, parameters = approximation.posterior, approximation.model.parameters
    y, row_weights = approximation.data.padded(posterior.prior.num_rows)
    may_couple = posterior.is_coupled and (objective.signed or objective.takes_covariances)
    coupled = may_couple and is_affordable(objective, posterior.prior)
    return Problem(objective, posterior.prior, y, parameters, coupled, row_weights)


def _moves_means(objective: Objective) -> bool:
    """Whether means are corrected: not of the variational Gaussian, nor with several predictors per datum."""
    return objective.has_auxiliaries and objective.size == 1


def correct_by_response(approximation: Approximation) -> LinearResponse:
    """Return covariances by linear response (math: section 5b)."""
    start = time.perf_counter()
    posterior, n = approximation.posterior, len(approximation.y)
    objective, count = objective_of_result(approximation), sum(posterior.prior.ranks)
    problem = problem_at(approximation, objective)
    require_memory(
        # Four matrices of the coordinates are in memory together, and three of them at each row.
        32.0 * count**2 + 24.0 * count * objective.size * posterior.prior.distinct.num_rows,
        f"the matrices of linear response of {count:,} coordinates",
        "Use the uncorrected result, fewer inducing inputs, as in form=pgm.Inducing(300), or gibbs.",
    )
    response, *moments = _respond(problem, posterior)
    (mean, covariance), residual = (np.asarray(part)[:n] for part in moments), float(response.residual)
    is_positive = check_covariance(response, lambda: _halves(posterior, problem.mixing())[1], n)
    if is_positive and residual > 1e-6:
        warn(
            f"the equations of linear response are solved only to a relative residual of {residual:.1g}: the "
            "corrected covariances are no more accurate. Use gibbs, or gaussian_vi for a result of cavi.",
            CorrectionWarning,
        )
    return LinearResponse(
        **_corrected(approximation, start, mean, covariance, is_positive),
        shift=np.asarray(response.shift),
        response=np.asarray(response.covariance),
        residual=residual,
    )


def _corrected(
    approximation: Approximation, start: float, mean: np.ndarray, covariance: np.ndarray, is_positive: bool
) -> dict[str, Any]:
    """The fields that corrections by linear response have in common, with a warning of variances that are invalid."""
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    return {
        "uncorrected": approximation,
        "seconds": approximation.seconds + time.perf_counter() - start,
        "mean": mean,
        "variance": variance,
        "covariance": covariance,
        "is_positive": is_positive,
        "num_nonpositive": warn_invalid(variance, "the data") if is_positive else int(is_invalid(variance).sum()),
    }


def check_covariance(response: Response, half: Callable[[], Array], num_rows: int) -> bool:
    """Return whether the response is a covariance, or warn with rows' names. ``half`` returns U (D, n, P) of q."""
    kept, where = np.asarray(response.kept), ""
    if np.isfinite(kept).all():
        try:
            np.linalg.cholesky(kept)
            if np.isfinite(response.residual):
                return True
        except np.linalg.LinAlgError:
            values, vectors = np.linalg.eigh(kept)
            weights = np.sum(np.tensordot(vectors[:, values <= 0], np.asarray(half()), axes=(0, 0)) ** 2, axis=2)
            rows = np.unique(np.argmax(weights[:, :num_rows], axis=1))
            where = f" ({int(np.sum(values <= 0))} directions, most in row {', '.join(map(str, rows[:5]))})"
    warn(
        f"the covariance by linear response is not positive definite{where}: the variational optimum is "
        "nearly unstable, and the corrected covariances are not valid. Use gibbs, or gaussian_vi for a result of "
        "cavi.",
        CorrectionWarning,
    )
    return False


def _is_long(problem: Problem, _: Posterior) -> bool:
    """Whether second derivatives of log densities take longer to compute unoptimised than to compile."""
    return len(problem.y) * problem.objective.num_nodes * problem.objective.size**2 > 10_000_000


# Compiled without optimisation where LAPACK dominates: second derivatives of a bound are long formulas.
@partial(compiled, optimise=_is_long)
def _respond(problem: Problem, posterior: Posterior) -> tuple[Response, Array, Array]:
    response = linear_response(problem, posterior)
    if not _moves_means(problem.objective):
        response = response._replace(shift=jnp.zeros_like(response.shift))
    return response, *corrected_moments(posterior, response.shift, response.covariance)


_halves = compiled(halves)


def corrected_moments(posterior: Posterior, shift: Float[Array, " D"], response: Float[Array, "D D"]) -> Marginals:
    """Return mean (n, L) and covariance (n, L, L) of each datum's latents."""
    mean, V = posterior.marginals()
    moved, added = added_moments(posterior.prior.factors(), shift, response)
    return mean + moved, V + added


def correct_by_scans(approximation: Approximation) -> ChainCorrection:
    """Return covariances of each datum's latents by scans over rows; ValueError without factors or chains."""
    start, n, posterior = time.perf_counter(), len(approximation.y), approximation.posterior
    require_memory(
        # Some six matrices of the response at each row.
        48.0 * response_entries(posterior),
        "the matrices of linear response at all rows",
        "Use kernels with a smaller state, such as pgm.Periodic with fewer harmonics, fewer linear effects, or gibbs.",
    )
    factors = factors_of(problem_at(approximation, objective_of_result(approximation)), posterior)
    response = respond(posterior, factors, Layout.of(posterior.prior, posterior.is_coupled))
    shift, covariance = (np.asarray(part)[:n] for part in _moments(response))
    is_finite, negative = np.isfinite(covariance).all(axis=(1, 2)), response.negative()
    is_positive = bool(is_finite.all() and not int(jnp.sum(negative)))
    if not is_positive:
        at_rows = np.asarray(negative if posterior.is_coupled else posterior.prior.copies.spread(negative))
        rows = np.flatnonzero((at_rows[:n] > 0) | ~is_finite)
        warn(
            f"the covariance by linear response is not positive definite (in row {', '.join(map(str, rows[:5]))}): the "
            "variational optimum is nearly unstable, and the corrected variances are not valid. Use gibbs, or "
            "gaussian_vi if this was cavi's result.",
            CorrectionWarning,
        )
    return ChainCorrection(
        **_corrected(approximation, start, approximation.mean + shift, covariance, is_positive),
        factors=np.asarray(factors.precision)[:n],
        slope=None if factors.slope is None else np.asarray(factors.slope)[:n],
    )


@compiled
def factors_of(problem: Problem, posterior: Posterior) -> Factors:
    """What responds at each row, see ``linear_response``."""
    Phi, (mean, spread) = problem.mixing(), _read_at_data(problem, posterior)
    clipped = not problem.coupled and not supports_signed(posterior.prior, Phi is not None)
    by_means, mixed, curved = _sensitivity(problem, mean, spread, clipped)
    precision = -jnp.block([[by_means, jnp.swapaxes(mixed, 1, 2)], [mixed, curved]])
    slope = None
    if _moves_means(problem.objective):
        residual = posterior.prior.residual_variances()
        # The variance that sites affect, without the residual variance of a sparse prior.
        kept = 0.0 if residual is None else jnp.sum(residual if Phi is None else Phi[:, 0] ** 2 * residual, axis=1)
        slope = 2.0 * (spread.reshape(len(mean)) - kept) * mixed[:, 0, 0]
    return Factors(precision, slope, Phi)


_moments = compiled(ChainResponse.moments)
