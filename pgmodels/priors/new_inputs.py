"""Checks that user-defined kernels are covariance functions at new inputs together with the data."""

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from pgmodels.kernels.kernel import Kernel
from pgmodels.kernels.lookups import check_lookups
from pgmodels.numerics.quadrature import chunk_length, equal_chunks
from pgmodels.priors.base import LatentPrior
from pgmodels.priors.factored import FactoredPrior
from pgmodels.priors.padding import padded_size
from pgmodels.runtime.formatting import shorten
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array, double_precision

# The variance of a new latent explained by the data may exceed its variance by this fraction, plus rounding error of
# the prior's matrix: eps times an entry's size times a power of the number of rows, here the first.
_TOLERANCE = 1e-8
_EPS = float(np.finfo(np.float64).eps)


@double_precision
def check_new_inputs(prior: LatentPrior, X_new: np.ndarray, name: str = "X_new", jointly: bool = False) -> None:
    """ValueError if a user-defined kernel is not a covariance function at a prior's inputs and X_new.

    Checks each row of X_new (m, d) separately, or ``jointly``, O(m^3). Kernels of the package, which are covariance
    functions, and priors without a factor are skipped.
    """
    if not isinstance(prior, FactoredPrior) or (
        isinstance(prior.kernel, Kernel) and prior.kernel.is_positive_semidefinite
    ):
        return
    check_lookups(prior.kernel, X_new, name)
    length = min(padded_size(len(X_new)), chunk_length(max(prior.rank, 1)))
    for rows in equal_chunks(np.arange(len(X_new)), length):
        _check_rows(prior, X_new, rows, name)
    if jointly:
        _check_jointly(prior, X_new, name)


def _check_rows(group: FactoredPrior, X_new: np.ndarray, rows: np.ndarray, name: str) -> None:
    diagonal, across, rounding = (np.asarray(part) for part in _variances(group, as_array(X_new[rows])))
    for bad, fault in (
        (~np.isfinite(diagonal) | ~np.isfinite(across), "is not finite"),
        (diagonal < 0, "has a negative variance"),
    ):
        if bad.any():
            row = int(rows[np.flatnonzero(bad)[0]])
            raise ValueError(
                f"the kernel {group.kernel!r} {fault} at row {row} of {name}, {shorten(X_new[row].tolist())}. Check "
                "its formula there, or leave such rows out."
            )
    excess = across - diagonal
    if np.any(excess > _TOLERANCE * diagonal + rounding):
        worst = int(np.argmax(excess / np.maximum(diagonal, _EPS)))
        row = int(rows[worst])
        _reject(
            group,
            f"at row {row} of {name}, {shorten(X_new[row].tolist())}, the latents at the data would explain "
            f"{across[worst]:.3g} of its variance {diagonal[worst]:.3g}",
        )


def _check_jointly(group: FactoredPrior, X_new: np.ndarray, name: str) -> None:
    covariance = np.asarray(_residual_covariance(group, as_array(X_new)))
    rounding = float(np.max(np.asarray(_variances(group, as_array(X_new))[2])))
    least, largest = np.linalg.eigvalsh(covariance)[0], np.max(np.diagonal(covariance))
    if least < -len(X_new) * (_TOLERANCE * max(largest, 0.0) + rounding):
        _reject(group, f"given those at the data, the matrix at {name} has the eigenvalue {least:.3g}")


def _reject(group: FactoredPrior, fault: str) -> None:
    raise ValueError(
        f"the kernel {group.kernel!r} is not a covariance function: {fault}. If its matrix is positive semi-definite "
        "only at the data, variances elsewhere are negative: check its formula (a function of distances on a circle or "
        "a graph need not be a covariance), or use a kernel of the package, such as pgm.Periodic."
    )


@compiled
def _variances(group: FactoredPrior, X_new: Float[Array, "m d"]) -> tuple[Array, Array, Array]:
    """Variances at new inputs (m,), the part explained by the coordinates, and a bound on its rounding error.

    With a = L^-T A, an error E of the coordinates' matrix L L^T changes the explained part by a^T E a.
    """
    A, _ = group.factor_at(X_new)
    root = group.root if hasattr(group, "root") else jnp.eye(len(A))
    weights = jnp.sum(jnp.abs(solve_triangular(root, A, lower=True, trans="T")), axis=0)
    scale = jnp.max(jnp.sum(root**2, axis=1))
    return group.kernel.diagonal(X_new), jnp.sum(A**2, axis=0), len(A) * _EPS * scale * weights**2


@compiled
def _residual_covariance(group: FactoredPrior, X_new: Float[Array, "m d"]) -> Array:
    return group.residual_covariance(X_new)
