"""Distinct inputs, and priors at new inputs."""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int, PyTree, Shaped

from pgmodels.data.arrays import distinct_rows
from pgmodels.kernels.columns import check_lookups
from pgmodels.kernels.kernel import Kernel, is_positive_semidefinite
from pgmodels.numerics.quadrature import chunk_length, equal_chunks
from pgmodels.priors.base import LatentPrior, pad_rows, padded_size, row_mask_of
from pgmodels.priors.dense import FactoredPrior
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.messages import shorten
from pgmodels.runtime.precision import Module, as_array, double_precision


class Copies(Module):
    """Index maps from the rows of the data to distinct inputs.

    ``rows`` (n,) is the index of each datum's distinct row, by all columns that any kernel reads. ``places`` has, for
    each group, the index (m,) of each distinct row's input, by the columns of the group's kernel. None is the identity.
    """

    rows: Int[Array, " n"] | None
    places: tuple[Int[Array, " m"] | None, ...]

    @property
    def shared(self) -> tuple[bool, ...]:
        """Whether rows share inputs, for each group; shared inputs do not change with the number of rows."""
        return tuple(self.rows is not None or places is not None for places in self.places)

    def spread(self, values: Shaped[Array, "m *rest"]) -> Shaped[Array, "n *rest"]:
        """Repeat values at the distinct rows for all rows."""
        return values if self.rows is None else values[self.rows]

    def at_rows(self, values: PyTree[Shaped[Array, "*_ m"]], index: int) -> PyTree[Shaped[Array, "*_ n"]]:
        """Map values at a group's inputs to the rows of the data."""
        maps = [places for places in (self.places[index], self.rows) if places is not None]
        return jax.tree.map(lambda part: reduce(lambda at, places: at[..., places], maps, part), values)

    def side_by_side(self, by_group: Sequence[Float[Array, "*batch _ _"]]) -> Float[Array, "*batch n L"]:
        """Join values at each group's inputs into values at the rows of the data."""
        pairs = zip(by_group, self.places, strict=True)
        values = jnp.concatenate([x if places is None else x[..., places, :] for x, places in pairs], axis=-1)
        return values if self.rows is None else values[..., self.rows, :]

    def resized(self, size: int) -> "Copies":
        """Return the maps truncated to ``size`` rows, or padded by repeating the first row."""
        if self.rows is not None:
            return Copies(as_array(pad_rows(self.rows, size)), self.places)
        return Copies(None, tuple(None if one is None else as_array(pad_rows(one, size)) for one in self.places))


class Levels(Module):
    """The levels of a group in the order of their first rows: the index of each input's level, and the ``keys``.

    Keys are the values of the columns that distinguish levels, padded to one of few sizes with the first key.
    """

    level: Int[Array, " m"]
    keys: Float[Array, "count c"]

    @classmethod
    def of(cls, X: Float[np.ndarray, "m c"], size: int, *, pads: bool = True) -> "Levels":
        """Return the levels of inputs; the first input is repeated up to ``size``, and keys are padded if ``pads``."""
        firsts, level = distinct_rows(X)
        keys = as_array(pad_rows(X[firsts], padded_size(len(firsts)) if pads else len(firsts)))
        return cls(as_array(pad_rows(level.astype(np.int32), size)), keys)


class DistinctInputs(Module):
    """The distinct inputs (m, d) of each group, their row masks, and the map from rows of the data.

    ``row_mask`` is None without padding: see pgmodels.priors.base. ``spanning`` are a few inputs (r, d) that determine
    all latent values, for all values of the kernel's parameters. It is None without such inputs, as is ``levels``.
    """

    X: tuple[Float[Array, "_ d"], ...]
    row_mask: tuple[Float[Array, " _"] | None, ...]
    copies: Copies
    spanning: tuple[Float[Array, "_ d"] | None, ...]
    levels: tuple[Levels | None, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of distinct inputs of each group, without padding; outside ``jit``."""
        pairs = zip(self.X, self.row_mask, strict=True)
        return tuple(len(X) if row_mask is None else int(np.asarray(row_mask).sum()) for X, row_mask in pairs)

    @classmethod
    def each_row(cls, X: Float[Array, "n d"], num_groups: int) -> "DistinctInputs":
        """Return each row as a separate input; inputs may be traced."""
        nothing = (None,) * num_groups
        return cls((X,) * num_groups, nothing, Copies(None, nothing), nothing, nothing)

    def masked(self) -> list[np.ndarray]:
        """Return the distinct inputs of each group, without padding; outside ``jit``."""
        return [np.asarray(X)[:count] for X, count in zip(self.X, self.counts, strict=True)]


class Sharing(NamedTuple):
    """The columns that distinguish a group's inputs, and whether rows that are equal in them share a latent value.

    ``can_pad``: whether its inputs can be padded (see pgmodels.priors.base). A latent is a sum of functions, and
    ``terms`` are their columns. ``levels`` are the columns in which independent latents differ. Both may be empty.
    """

    columns: tuple[int, ...]
    terms: tuple[tuple[int, ...], ...]
    levels: tuple[int, ...]
    shares: bool
    can_pad: bool


@double_precision
def find_distinct_inputs(X: np.ndarray, groups: Sequence[Sharing], size: int) -> DistinctInputs:
    """Return the distinct inputs of each group among the rows of X (n, d), with index maps padded to ``size`` rows.

    With repeated rows, the distinct rows are padded to one of few sizes if each group can be padded.
    """
    firsts, equal = distinct_rows(X[:, sorted(set().union(*(group.columns for group in groups)))])
    rows = None
    if len(firsts) < len(X):
        rows, X = as_array(pad_rows(equal.astype(np.int32), size)), X[firsts]
        size = padded_size(len(X)) if all(group.can_pad for group in groups) else len(X)
    inputs, row_mask, places, spanning, levels = [], [], [], [], []
    for group in groups:
        firsts, equal = distinct_rows(X[:, group.columns] if group.shares else X)
        shared = len(firsts) < len(X)
        count = size if not shared else padded_size(len(firsts)) if group.can_pad else len(firsts)
        inputs.append(as_array(pad_rows(X[firsts], count)))
        row_mask.append(as_array(row_mask_of(len(firsts), count)) if group.can_pad else None)
        places.append(as_array(pad_rows(equal.astype(np.int32), size)) if shared else None)
        few = spanning_rows(X[firsts], group.terms)
        spanning.append(None if few is None else as_array(X[firsts][few]))
        of_group = X[firsts][:, group.levels]
        levels.append(Levels.of(of_group, count, pads=group.can_pad) if group.levels else None)
    return DistinctInputs(tuple(inputs), tuple(row_mask), Copies(rows, tuple(places)), tuple(spanning), tuple(levels))


def spanning_rows(X: np.ndarray, terms: Sequence[tuple[int, ...]]) -> np.ndarray | None:
    """Return the few rows of X (n, d) that determine any sum of functions of the given columns; None if they are many.

    The sum is linear in the values of the functions at the levels of their columns. The number of rows is therefore the
    rank of the level indicators. An example is effects of crossed groups.
    """
    levels = [distinct_rows(X[:, term])[1] for term in terms] if len(terms) > 1 else []
    ends = np.cumsum([0, *(int(level.max()) + 1 for level in levels)])
    # With more levels per row, a factor is more expensive than a dense root.
    if len(terms) < 2 or ends[-1] > 0.5 * len(X):
        return None
    indicators = np.zeros((ends[-1], len(X)))
    for begin, level in zip(ends[:-1], levels, strict=True):
        indicators[begin + level, np.arange(len(X))] = 1.0
    triangle, rows = scipy.linalg.qr(indicators, mode="r", pivoting=True, check_finite=False)
    # Pivots of independent rows exceed one over the number of levels; rounding errors are far smaller.
    return np.sort(rows[: int(np.sum(np.abs(np.diagonal(triangle)) > 1e-8))])


# The variance of a new latent that the data explain may exceed its variance by this fraction, plus rounding errors of
# the prior's matrix.
_TOLERANCE = 1e-8


@double_precision
def check_new_inputs(prior: LatentPrior, X_new: np.ndarray, name: str = "X_new", jointly: bool = False) -> None:
    """Raise ValueError if a user-defined kernel is not a covariance function at a prior's inputs and X_new.

    Each row of X_new (m, d) is checked separately, or all rows ``jointly`` in O(m^3). Kernels of the package, which are
    covariance functions, and priors without a factor are skipped.
    """
    if not prior.has_factor:
        return
    prior = cast(FactoredPrior, prior)
    if isinstance(prior.kernel, Kernel) and is_positive_semidefinite(prior.kernel):
        return
    check_lookups(prior.kernel, X_new, name)
    length = min(padded_size(len(X_new)), chunk_length(max(prior.rank, 1)))
    for rows in equal_chunks(np.arange(len(X_new)), length):
        _check_rows(prior, X_new, rows, name)
    if jointly:
        covariance = np.asarray(_residual_covariance(prior, as_array(X_new)))
        rounding = float(np.max(np.asarray(_variances(prior, as_array(X_new))[2])))
        least, largest = np.linalg.eigvalsh(covariance)[0], np.max(np.diagonal(covariance))
        if least < -len(X_new) * (_TOLERANCE * max(largest, 0.0) + rounding):
            _reject(prior, f"given those at the data, the matrix at {name} has the eigenvalue {least:.3g}")


def _check_rows(group: FactoredPrior, X_new: np.ndarray, rows: np.ndarray, name: str) -> None:
    diagonal, across, rounding = (np.asarray(part) for part in _variances(group, as_array(X_new[rows])))
    is_bad = ~np.isfinite(diagonal) | ~np.isfinite(across)
    for bad, fault in ((is_bad, "is not finite"), (diagonal < 0, "has a negative variance")):
        if bad.any():
            row = int(rows[np.flatnonzero(bad)[0]])
            raise ValueError(
                f"the kernel {group.kernel!r} {fault} at row {row} of {name}, {shorten(X_new[row].tolist())}. Check "
                "its formula there, or leave such rows out."
            )
    excess = across - diagonal
    if np.any(excess > _TOLERANCE * diagonal + rounding):
        worst = int(np.argmax(excess / np.maximum(diagonal, np.finfo(np.float64).eps)))
        row = int(rows[worst])
        _reject(
            group,
            f"at row {row} of {name}, {shorten(X_new[row].tolist())}, the latents at the data would explain "
            f"{across[worst]:.3g} of its variance {diagonal[worst]:.3g}",
        )


def _reject(group: FactoredPrior, fault: str) -> None:
    raise ValueError(
        f"the kernel {group.kernel!r} is not a covariance function: {fault}. If its matrix is positive semi-definite "
        "only at the data, variances elsewhere are negative. Check its formula (a function of distances on a circle or "
        "a graph need not be a covariance), or use a kernel of the package, such as pgm.Periodic."
    )


@compiled
def _variances(group: FactoredPrior, X_new: Float[Array, "m d"]) -> tuple[Array, Array, Array]:
    """Return variances at new inputs (m,), the part that coordinates explain, and a bound on its rounding error."""
    A, _ = group.factor_at(X_new)
    root = getattr(group, "root", jnp.eye(len(A)))
    weights = jnp.sum(jnp.abs(solve_triangular(root, A, lower=True, trans="T")), axis=0)
    # An error E of the coordinates' matrix L L^T changes the explained part by a^T E a, a = L^-T A.
    rounding = len(A) * float(np.finfo(np.float64).eps) * jnp.max(jnp.sum(root**2, axis=1))
    return group.kernel.diagonal(X_new), jnp.sum(A**2, axis=0), rounding * weights**2


@compiled
def _residual_covariance(group: FactoredPrior, X_new: Float[Array, "m d"]) -> Array:
    return group.residual_covariance(X_new)
