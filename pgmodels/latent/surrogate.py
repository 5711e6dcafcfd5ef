"""A Gaussian close to the posterior: the prior times one Gaussian factor a datum, over all its latents."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from pgmodels.latent.joint import JointPrior

# Latents are factorised together up to so many whitened coordinates in all, and each by itself beyond: 72 MB a root.
JOINT_LIMIT = 3000


# Means (n, L) and covariances (n, L, L) of the latents of each datum.
Marginals = tuple[Float[Array, "n L"], Float[Array, "n L L"]]


class Surrogate(eqx.Module):
    """N(f; mean, K) times exp(h f - f^T W f / 2) for each datum's latents f, normalised.

    ``potential`` h is (n, L) and ``precision`` W is (n, L, L), zero between latents of different ``blocks``. In
    whitened coordinates v, all latents end to end, it is N(centre, P^-1), P = I + A W A^T = R R^T, with a root R a
    block.
    """

    prior: JointPrior
    potential: Float[Array, "n L"]
    precision: Float[Array, "n L L"]
    centre: Float[Array, " D"]
    roots: tuple[Array, ...]
    log_normalizer: Array
    blocks: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def log_factor(self, f: Float[Array, "n L"]) -> Array:
        """The log of the data's Gaussian factors at f."""
        return jnp.sum(self.potential * f) - 0.5 * jnp.einsum("il,ilk,ik->", f, self.precision, f)

    def standardise(self, flat: Float[Array, " D"]) -> Float[Array, " D"]:
        """Standard normal coordinates u = R^T (v - centre) of whitened ones."""
        parts = split_over(self.roots, flat - self.centre)
        return jnp.concatenate([root.T @ part for root, part in zip(self.roots, parts, strict=True)])

    def deviation(self, u: Float[Array, " D"]) -> Float[Array, " D"]:
        """The deviation R^-T u of whitened coordinates from the centre."""
        pairs = zip(self.roots, split_over(self.roots, u), strict=True)
        return jnp.concatenate([solve_triangular(root, part, trans="T", lower=True) for root, part in pairs])

    def marginals(self) -> Marginals:
        """Mean and covariance of each datum's latents."""
        return self.prior.latents(self.prior.unflatten(self.centre)), self._covariance()

    def _covariance(self) -> Float[Array, "n L L"]:
        size = self.potential.shape[1]
        V = jnp.zeros((len(self.potential), size, size), self.centre.dtype)
        factors = self.prior.factors()
        for block, root in zip(self.blocks, self.roots, strict=True):
            U = solve_triangular(root, _stacked([factors[latent] for latent in block]), lower=True)
            U = U.reshape(len(root), len(block), -1)
            own = np.ix_(range(len(V)), block, block)
            V = V.at[own].set(jnp.einsum("dli,dki->ilk", U, U))
        return V


def build_surrogate(
    prior: JointPrior,
    potential: Float[Array, "n L"],
    precision: Float[Array, "n L L"],
    blocks: tuple[tuple[int, ...], ...],
) -> Surrogate:
    """The surrogate of given factors; one Cholesky a block."""
    factors, means = prior.factors(), prior.means()
    centred = potential - precision @ means
    roots, centres, log_normalizer = [], [], jnp.sum(potential @ means) - 0.5 * means @ jnp.sum(precision, 0) @ means
    for block in blocks:
        rows = []
        for a in block:
            row = [(factors[a] * precision[:, a, b]) @ factors[b].T for b in block]
            rows.append(jnp.concatenate(row, axis=1))
        P = jnp.concatenate(rows)
        root = jnp.linalg.cholesky(jnp.eye(len(P), dtype=P.dtype) + P)
        right = jnp.concatenate([factors[a] @ centred[:, a] for a in block])
        centre = cho_solve((root, True), right)
        log_normalizer = log_normalizer - jnp.sum(jnp.log(jnp.diagonal(root))) + 0.5 * right @ centre
        roots.append(root)
        centres.append(centre)
    return Surrogate(
        prior=prior,
        potential=potential,
        precision=precision,
        centre=jnp.concatenate(centres),
        roots=tuple(roots),
        log_normalizer=log_normalizer,
        blocks=blocks,
    )


def split_over(matrices: tuple[Array, ...], flat: Array) -> list[Array]:
    """A vector over all blocks in parts, one as long as each block's matrix."""
    return jnp.split(flat, np.cumsum([len(matrix) for matrix in matrices])[:-1])


def choose_blocks(prior: JointPrior) -> tuple[tuple[int, ...], ...]:
    """All latents together where that is affordable, else each by itself."""
    ranks = [len(factor) for factor in prior.factors()]
    if sum(ranks) <= JOINT_LIMIT:
        return (tuple(range(len(ranks))),)
    return tuple((latent,) for latent in range(len(ranks)))


def _stacked(factors: list[Array]) -> Any:
    """The block-diagonal matrix of factors (r, n), (sum of r, latents n)."""
    total, columns = sum(len(factor) for factor in factors), factors[0].shape[1]
    stacked = jnp.zeros((total, len(factors) * columns), factors[0].dtype)
    row = 0
    for place, factor in enumerate(factors):
        stacked = stacked.at[row : row + len(factor), place * columns : (place + 1) * columns].set(factor)
        row += len(factor)
    return stacked
