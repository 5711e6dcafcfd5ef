"""Linear algebra: Cholesky factors with jitter, factors of levels, loops over LAPACK, Gram matrices in chunks."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.custom_batching import custom_vmap, sequential_vmap
from jax.lax.linalg import cholesky, triangular_solve
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float, Int, PyTree

from pgmodels.priors.base import Covariance
from pgmodels.runtime.jit import compiled, require_memory
from pgmodels.runtime.precision import Module

T = TypeVar("T", bound=PyTree)

# Numbers per chunk, 4 MB: a few such arrays fit in the cache.
CHUNK = 2**19
# Up to this number of entries, inputs times rows, a factor is kept in memory: 128 MB.
HELD = 2**24


def chunks(width: int, X: Float[Array, "n *d"], *terms: Float[Array, "n *_"]) -> tuple[Array, ...]:
    """Return inputs and terms of rows of ``width`` numbers in equal chunks along a new axis, padded with zero terms."""
    n = len(X)
    count = max(1, -(-n * width // CHUNK))
    length = -(-n // count)

    def padded(part: Array, mode: str) -> Array:
        beyond = [(0, count * length - n), *[(0, 0)] * (part.ndim - 1)]
        return jnp.pad(part, beyond, mode=mode).reshape(count, length, *part.shape[1:])

    return padded(X, "edge"), *(padded(part, "constant") for part in terms)


def each_row(function: Callable[[Array], T], width: int, X: Float[Array, "n d"]) -> T:
    """Map ``function`` over chunks of inputs, and join its results, whose first axis is the rows."""
    results = jax.lax.map(jax.checkpoint(function), chunks(width, X)[0])
    return jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:])[: len(X)], results)


def summed(function: Callable[..., T], start: T, width: int, X: Float[Array, "n d"], *terms: Array) -> T:
    """Return ``start`` plus the sum over chunks of ``function`` of their inputs and terms."""
    checkpointed = jax.checkpoint(function)

    def add(sums: T, chunk: tuple[Array, ...]) -> tuple[T, None]:
        # The addition is outside of the checkpoint, so that reverse mode stores no sums.
        return jax.tree.map(jnp.add, sums, checkpointed(*chunk)), None

    return jax.lax.scan(add, start, chunks(width, X, *terms))[0]


# Loops replace batched calls of LAPACK. XLA's CPU backend submits batched calls to its own thread pool: two at once
# leave no free thread, and the program deadlocks (observed on two cores, jaxlib 0.10.2). Loops cost the same.


def over_latents(function: Callable[..., T], *arrays: Array) -> T:
    """Map ``function`` over the last axis of the arrays, the latents; results are stacked along a new first axis."""
    columns = tuple(jnp.moveaxis(array, -1, 0) for array in arrays)
    if len(columns[0]) == 1:
        return jax.tree.map(lambda leaf: leaf[None], function(*(column[0] for column in columns)))
    return jax.lax.map(lambda column: function(*column), columns)


def over_states(function: Callable[..., T], *trees: PyTree) -> T:
    """Map ``function`` over the first axis of the trees' leaves; results are stacked along it."""
    if len(jax.tree.leaves(trees)[0]) == 1:
        return jax.tree.map(lambda leaf: leaf[None], function(*jax.tree.map(lambda leaf: leaf[0], trees)))
    return jax.lax.map(lambda entries: function(*entries), trees)


def vmap_as_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that ``vmap`` turns into a loop. It has no reverse-mode derivative.

    The function is compiled, because JAX 0.10 would otherwise trace it again when it lowers it. This would raise an
    error if the function contains a derivative of a ``custom_jvp`` function such as ``log_ndtr``.
    """
    return sequential_vmap(compiled(function))


def vmap_as_loop_if_batched(function: Callable[[PyTree, PyTree], T]) -> Callable[[PyTree, PyTree], T]:
    """Return a function of matrices and vectors for which ``vmap`` loops only if matrices are batched."""
    # Compiled for the same reason as in vmap_as_loop.
    batching = custom_vmap(compiled(function))

    @batching.def_vmap
    def rule(axis_size: int, batched: PyTree, matrices: PyTree, vectors: PyTree) -> tuple[T, PyTree]:
        del axis_size
        differing = jax.tree.leaves(batched[0])
        if not any(differing):
            out = jax.vmap(function, in_axes=(None, 0))(matrices, vectors)
        else:
            leaves, tree = jax.tree.flatten(matrices)
            mapped = [leaf for leaf, differs in zip(leaves, differing, strict=True) if differs]

            def one(entry: tuple[list[Array], PyTree]) -> T:
                slices, vector = iter(entry[0]), entry[1]
                full = [next(slices) if differs else leaf for leaf, differs in zip(leaves, differing, strict=True)]
                return function(jax.tree.unflatten(tree, full), vector)

            out = jax.lax.map(one, (mapped, vectors))
        return out, jax.tree.map(lambda _: True, out)

    return batching


# Linear algebra of Gaussian posteriors given sites, for one zero-mean latent.
#
# Two forms:
#
# - dense, f ~ N(0, K): B = I + W^1/2 K W^1/2 and Sigma = K - K W^1/2 B^-1 W^1/2 K;
# - factor, f = A^T v with v ~ N(0, I_r): P = I + A W A^T, and v given the sites is N(P^-1 A h, P^-1).
#
# A constant mean is subtracted first. Only B and P are factorised: their eigenvalues are at least 1.

# Up to this size, LAPACK inverts a triangle. The rest of a larger triangle is products, which several cores share.
_LEAF = 256


class DenseFactor(NamedTuple):
    """The factorisation of the sites' precisions and a dense K, shared by all quantities below.

    A point is *strong* if its site is more informative than its prior, w_i K_ii > 1. To avoid cancellation, formulas
    at strong points use the equivalent W^1/2 Sigma W^1/2 = I - B^-1.
    """

    scale: Float[Array, " n"]  # W^1/2, above 0
    strong: Bool[Array, " n"]
    root: Float[Array, "n n"]  # lower Cholesky root of B

    @property
    def strong_scale(self) -> Float[Array, " n"]:
        """W^1/2 at strong points and 1 elsewhere, safe as a divisor."""
        return jnp.where(self.strong, self.scale, 1.0)

    def half_solve(self, columns: Array) -> Array:
        """Apply root^-1 to columns (n, m), so that V^T V = columns^T B^-1 columns."""
        return solve_triangular(self.root, columns, lower=True)


def root_of_one_plus(S: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Return the lower Cholesky root of I + S without forming I; only the lower triangle of S is read."""
    diagonal = jnp.arange(len(S))
    return cholesky(S.at[diagonal, diagonal].add(1.0), symmetrize_input=False)


def dense_factor(K: Float[Array, "n n"], w: Float[Array, " n"]) -> DenseFactor:
    """Factorise B = I + W^1/2 K W^1/2."""
    scale = jnp.sqrt(_above_zero(w))
    return DenseFactor(scale, w * jnp.diagonal(K) > 1, root_of_one_plus(scale[:, None] * K * scale))


def dense_weights(
    K: Float[Array, "n n"],
    factor: DenseFactor,
    h: Float[Array, " n"],
    prior_draw: Array | float = 0.0,
    noise: Array | float = 0.0,
) -> Float[Array, " n"]:
    """Return the beta with E f = K beta. With a prior draw f0 and normal noise, f0 + K beta is a posterior draw.

    beta = eta - W^1/2 B^-1 W^1/2 (f0 + K eta) with eta = h + W^1/2 noise (Matheron's rule). At strong points, the part
    W^1/2 a of eta = W^1/2 a + b may be much larger than beta: it is computed in closed form.
    """
    a = jnp.where(factor.strong, h / factor.strong_scale, 0.0) + noise
    b = jnp.where(factor.strong, 0.0, h)
    return b + factor.scale * cho_solve((factor.root, True), a - factor.scale * (prior_draw + K @ b))


def dense_half_covariance(K: Float[Array, "n n"], factor: DenseFactor) -> Float[Array, "n n"]:
    """Return the U with Sigma = D - U^T U, D being K between weak points, W^-1 between strong ones and else 0."""
    identity = jnp.eye(len(K), dtype=K.dtype)
    solved = factor.half_solve(jnp.where(factor.strong, identity, factor.scale[:, None] * K))
    return jnp.where(factor.strong, -1.0, 1.0) / factor.strong_scale * solved


def dense_variance(K: Float[Array, "n n"], factor: DenseFactor) -> Float[Array, " n"]:
    """Return the diagonal of Sigma, with an absolute rounding error relative to min(K_ii, 1 / w_i).

    It equals the diagonal from ``dense_half_covariance``, at less cost. R is the root of B. At a weak point, the column
    of R^-1 W^1/2 K is the column of R^T - R^-1 over W^1/2: an upper and a lower triangle.
    """
    upper, below = factor.root.T, _inverse_squares(factor.root.T)[1]
    diagonal = jnp.diagonal(upper)
    strong = (1.0 - below - 1.0 / diagonal**2) / factor.strong_scale**2
    reduction = jnp.sum(jnp.triu(upper, 1) ** 2, axis=0) + (diagonal - 1.0 / diagonal) ** 2 + below
    # W^1/2 at weak points and 1 elsewhere is safe as a divisor.
    weak_scale = jnp.where(factor.strong, 1.0, jnp.sqrt(_above_zero(factor.scale**2)))
    return jnp.where(factor.strong, strong, jnp.diagonal(K) - reduction / weak_scale**2)


def dense_precision(factor: DenseFactor) -> Float[Array, "n n"]:
    """Return (K + W^-1)^-1 = W^1/2 B^-1 W^1/2."""
    return factor.scale[:, None] * _times_transpose(_inverse_squares(factor.root.T)[0]) * factor.scale


def _inverse_squares(upper: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, " n"]]:
    """Return the inverse of an upper triangle, by halves, and the sums of squares of its rows off the diagonal."""
    n, half = len(upper), len(upper) // 2
    if n <= _LEAF:
        inverse = solve_triangular(upper, jnp.eye(n, dtype=upper.dtype))
        return inverse, jnp.sum(jnp.triu(inverse, 1) ** 2, axis=1)
    first, above = _inverse_squares(upper[:half, :half])
    second, below = _inverse_squares(upper[half:, half:])
    corner = first @ (upper[:half, half:] @ second)
    inverse = jnp.block([[first, -corner], [jnp.zeros((n - half, half), upper.dtype), second]])
    return inverse, jnp.concatenate([above + jnp.sum(corner**2, axis=1), below])


def _times_transpose(upper: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Return U U^T of an upper triangle U in a third of a product's work: for [[A, B], [0, C]] its corner is B C^T."""
    n, half = len(upper), len(upper) // 2
    if n <= _LEAF:
        return upper @ upper.T
    B, C = upper[:half, half:], upper[half:, half:]
    corner = B @ C.T
    return jnp.block([[_times_transpose(upper[:half, :half]) + B @ B.T, corner], [corner.T, _times_transpose(C)]])


def _above_zero(w: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return precisions bounded below by a negligible positive number, safe as divisors."""
    return jnp.maximum(w, jnp.finfo(w.dtype).tiny ** 0.5)


def dense_covariance(K: Float[Array, "n n"], factor: DenseFactor) -> Float[Array, "n n"]:
    """Return the posterior covariance Sigma."""
    U = dense_half_covariance(K, factor)
    weak = ~factor.strong
    D = jnp.where(weak[:, None] & weak, K, 0.0) + jnp.diag(jnp.where(weak, 0.0, 1 / factor.strong_scale**2))
    return D - U.T @ U


def factor_root(A: Float[Array, "r n"], w: Float[Array, " n"]) -> Float[Array, "r r"]:
    """Return the lower Cholesky root R of P = I + A W A^T."""
    scaled = A * jnp.sqrt(w)
    return root_of_one_plus(scaled @ scaled.T)


def solve_columns(root: Float[Array, "r r"], columns: Float[Array, "r m"]) -> Float[Array, "r m"]:
    """Return R^-1 columns, as a product: several devices can share its columns, but not the columns of a solve."""
    if jax.device_count() == 1:
        return solve_triangular(root, columns, lower=True)
    return inverse_root(root) @ columns


def inverse_root(root: Float[Array, "r r"]) -> Float[Array, "r r"]:
    """Return R^-1, from X R = I: products X B are then as accurate as the solution of R A = B."""
    return triangular_solve(root, jnp.eye(len(root), dtype=root.dtype), left_side=False, lower=True)


def root_by_rank(C: Float[Array, "m m"], least: Float[Array, ""]) -> Float[Array, "m m"]:
    """Return the R with R R^T = C, by pivoted Cholesky, until all residual variances are below ``least``.

    The cost is O(r m^2), with r the rank. If rounding makes C indefinite, entries are clipped so that the variances are
    kept. Usable under ``jit``.
    """
    m = len(C)

    def has_more(state: tuple[Array, Array, Array]) -> Array:
        column, _, variances = state
        return (column < m) & (jnp.max(variances) > least)

    def add(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        column, A, variances = state
        row, most = jnp.argmax(variances), jnp.sqrt(variances)
        entries = jnp.clip((C[row] - A[:, row] @ A) / most[row], -most, most)
        return column + 1, A.at[column].set(entries), jnp.maximum(variances - entries**2, 0.0).at[row].set(0.0)

    start = jnp.zeros((), int), jnp.zeros_like(C), jnp.maximum(jnp.diagonal(C), 0.0)
    return jax.lax.while_loop(has_more, add, start)[1].T


# Factors of latents that have coordinates for each level of a group, and roots of their precisions.

# With at least this many coordinates of levels, a block's precision is factorised by its structure.
MANY_COORDINATES = 256


class LevelFactor(Module):
    """The factor A (count k, n) with k nonzero entries in each column, for the coefficients of the row's level.

    Coordinates are sorted by level. Rows of unknown levels have zero ``features``. Levels are values of the inputs'
    ``columns``.
    """

    level: Int[Array, " n"]
    features: Float[Array, "k n"]
    count: int = eqx.field(static=True)
    columns: tuple[int, ...] = eqx.field(static=True)

    def __len__(self) -> int:
        return self.count * len(self.features)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of coordinates, and of rows."""
        return len(self), self.features.shape[1]

    def total(self, terms: Float[Array, "n *c"]) -> Float[Array, "count *c"]:
        """Return sums of terms over the rows of each level."""
        return jax.ops.segment_sum(terms, self.level, self.count)


# A dense factor (r, n), or a factor of levels.
Factor = Array | LevelFactor


def as_dense(A: Factor) -> Float[Array, "r n"]:
    """Return the factor as a matrix."""
    if not isinstance(A, LevelFactor):
        return A
    k, n = A.features.shape
    return jnp.zeros((A.count, k, n)).at[A.level, :, jnp.arange(n)].set(A.features.T).reshape(-1, n)


def times(A: Factor, x: Float[Array, "n *c"]) -> Float[Array, "r *c"]:
    """Return A x."""
    if not isinstance(A, LevelFactor):
        return A @ x
    return A.total(jnp.einsum("kn,n...->nk...", A.features, x)).reshape(len(A), *x.shape[1:])


def transposed_times(A: Factor, v: Float[Array, "*batch r c"]) -> Float[Array, "*batch n c"]:
    """Return A^T v."""
    if not isinstance(A, LevelFactor):
        # This order reads A contiguously: it is three times faster for few columns.
        return jnp.swapaxes(jnp.swapaxes(v, -1, -2) @ A, -1, -2)
    blocks = v.reshape(*v.shape[:-2], A.count, -1, v.shape[-1])
    return jnp.einsum("kn,...nkc->...nc", A.features, blocks[..., A.level, :, :])


def weighted_product(A: Factor, w: Float[Array, " n"], B: Factor) -> Float[Array, "r s"]:
    """Return A W B^T."""
    if isinstance(A, LevelFactor) and isinstance(B, LevelFactor):
        terms = jnp.einsum("jn,n,kn->njk", A.features, w, B.features)
        zeros = jnp.zeros((A.count, B.count, *terms.shape[1:]))
        return jnp.swapaxes(zeros.at[A.level, B.level].add(terms), 1, 2).reshape(len(A), len(B))
    if isinstance(A, LevelFactor):
        return times(A, w[:, None] * as_dense(B).T)
    return weighted_product(B, w, A).T if isinstance(B, LevelFactor) else (A * w) @ B.T


def _products_at_rows(A: Factor, M: Float[Array, "r s"], B: Factor) -> Float[Array, " n"]:
    """a^T M b for the columns a of A and b of B at each row."""
    if isinstance(A, LevelFactor) and isinstance(B, LevelFactor):
        blocks = M.reshape(A.count, len(A.features), B.count, len(B.features))
        return jnp.einsum("jn,njk,kn->n", A.features, blocks[A.level, :, B.level], B.features)
    if isinstance(A, LevelFactor):
        return jnp.sum(transposed_times(A, M) * as_dense(B).T, axis=1)
    return _products_at_rows(B, M.T, A) if isinstance(B, LevelFactor) else jnp.sum((M.T @ A) * B, axis=0)


class LevelRoot(Module):
    """A root R of the precision P = I + A W A^T of latents, some of which have coordinates for each level of a group.

    P is [[D, C^T], [C, B]]. D has a block (q, q) for each level, and B belongs to the few other coordinates, ``rest``.
    R = [[D^1/2, 0], [across^T, root of B - across^T across]] with ``across`` = D^-1/2 C^T. Vectors are in the order of
    the latents' coordinates. ``layout`` has two numbers for each latent: its coordinates, and its coordinates per
    level (0 for the rest).
    """

    of_levels: Float[Array, "m q q"]
    across: Float[Array, "m q s"]
    rest: Float[Array, "s s"]
    layout: tuple[tuple[int, int], ...] = eqx.field(static=True)

    @classmethod
    def of(cls, factors: Sequence[Factor], W: Float[Array, "n L L"], eliminated: Sequence[int]) -> "LevelRoot":
        """Return the root for the ``factors`` of latents; the ``eliminated`` factors have the same levels.

        Raises MemoryError, while the program is traced, if its matrices do not fit into memory.
        """
        led = [(place, cast(LevelFactor, factors[place])) for place in eliminated]
        others = [(place, A) for place, A in enumerate(factors) if place not in eliminated]
        levels, size = led[0][1], sum(len(A) for _, A in others)
        features = jnp.concatenate([A.features for _, A in led])
        # Memory: about six matrices, between the largest group's and all other coefficients, and between the latter.
        count = levels.count * sum(len(A.features) for _, A in led)
        require_memory(
            48.0 * size * (count + size),
            f"the covariances of {size:,} coefficients of the smaller groups and other terms with all {count + size:,}",
            "Leave out a term, or merge levels of the smaller groups; the largest group alone needs no such matrix.",
        )
        of_feature = np.repeat(list(eliminated), [len(A.features) for _, A in led])
        D = levels.total(jnp.einsum("jn,njk,kn->njk", features, W[:, of_feature][:, :, of_feature], features))
        root = _cholesky_of_each(D + jnp.eye(len(features)))

        def beside(a: int, A: Factor) -> Array:
            products = (weighted_product(A, W[:, a, b], B) for b, B in others)
            return jnp.concatenate([jnp.zeros((len(A), 0)), *products], axis=1)

        C = [beside(a, A).reshape(levels.count, len(A.features), size) for a, A in led]
        across = solve_each(root, jnp.concatenate(C, axis=1))
        B = jnp.concatenate([jnp.zeros((0, size)), *(beside(b, A) for b, A in others)])
        widths = {place: len(A.features) for place, A in led}
        layout = tuple((len(A), widths.get(place, 0)) for place, A in enumerate(factors))
        return cls(root, across, root_of_one_plus(B - jnp.tensordot(across, across, ((0, 1), (0, 1)))), layout)

    def solve_lower(self, right: Float[Array, "r *c"]) -> Float[Array, "r *c"]:
        """Return R^-1 b."""
        levels, rest = self._split(right)
        levels = solve_each(self.of_levels, levels)
        rest = rest - jnp.tensordot(self.across, levels, ((0, 1), (0, 1)))
        return self._join(levels, solve_triangular(self.rest, rest, lower=True))

    def solve_transposed(self, right: Float[Array, "r *c"]) -> Float[Array, "r *c"]:
        """Return R^-T b."""
        levels, rest = self._split(right)
        rest = solve_triangular(self.rest, rest, lower=True, trans="T")
        return self._join(solve_each(self.of_levels, levels - jnp.tensordot(self.across, rest, 1), True), rest)

    def transposed_times(self, v: Float[Array, "r *c"]) -> Float[Array, "r *c"]:
        """Return R^T v."""
        levels, rest = self._split(v)
        turned = jnp.einsum("mji,mj...->mi...", self.of_levels, levels) + jnp.tensordot(self.across, rest, 1)
        return self._join(turned, jnp.tensordot(self.rest.T, rest, 1))

    def log_determinant(self) -> Float[Array, ""]:
        """Return log det R."""
        diagonals = jnp.diagonal(self.of_levels, axis1=1, axis2=2), jnp.diagonal(self.rest)
        return sum((jnp.sum(jnp.log(part)) for part in diagonals), jnp.zeros(()))

    def covariances(self, factors: Sequence[Factor]) -> Float[Array, "n L L"]:
        """Return A^T P^-1 A at each row, by the entries of P^-1 that a row needs."""
        identity = jnp.broadcast_to(jnp.eye(self.of_levels.shape[1]), self.of_levels.shape)
        inverse, rest = solve_each(self.of_levels, identity), inverse_root(self.rest)
        turned = jnp.tensordot(self.across, rest.T, 1)
        D = jnp.einsum("mji,mjk,mkl->mil", inverse, identity + turned @ jnp.swapaxes(turned, 1, 2), inverse)
        C, B = -solve_each(self.of_levels, turned @ rest, True), rest.T @ rest
        places, starts = [], [0, 0]
        for size, k in self.layout:
            width = k or size
            places.append(slice(starts[bool(k)], starts[bool(k)] + width))
            starts[bool(k)] += width

        def entries(one: int, other: int) -> Array:
            A, E, (size, k), (_, is_level) = factors[one], factors[other], self.layout[one], self.layout[other]
            if k and is_level:
                of_one, of_other = cast(LevelFactor, A), cast(LevelFactor, E)
                blocks = D[of_one.level][:, places[one], places[other]]
                return jnp.einsum("jn,njk,kn->n", of_one.features, blocks, of_other.features)
            if is_level:
                return entries(other, one)
            M = C[:, places[one]].reshape(size, -1)[:, places[other]] if k else B[places[one], places[other]]
            return _products_at_rows(A, M, E)

        L = len(factors)
        lower = {(a, b): entries(a, b) for a in range(L) for b in range(a + 1)}
        return jnp.stack([jnp.stack([lower[max(a, b), min(a, b)] for b in range(L)], axis=1) for a in range(L)], axis=1)

    def _split(self, v: Float[Array, "r *c"]) -> tuple[Float[Array, "m q *c"], Float[Array, "s *c"]]:
        parts = jnp.split(v, np.cumsum([size for size, _ in self.layout])[:-1])
        pairs = list(zip(parts, self.layout, strict=True))
        levels = [part.reshape(-1, k, *v.shape[1:]) for part, (_, k) in pairs if k]
        return jnp.concatenate(levels, axis=1), jnp.concatenate([v[:0], *(part for part, (_, k) in pairs if not k)])

    def _join(self, levels: Float[Array, "m q *c"], rest: Float[Array, "s *c"]) -> Float[Array, "r *c"]:
        parts = []
        for size, k in self.layout:
            taken, levels, rest = (levels[:, :k], levels[:, k:], rest) if k else (rest[:size], levels, rest[size:])
            parts.append(taken.reshape(size, *rest.shape[1:]))
        return jnp.concatenate(parts)


# A lower Cholesky root, or a root of levels.
Root = Array | LevelRoot


def solve(root: Root, right: Float[Array, "r *c"]) -> Float[Array, "r *c"]:
    """Return (R R^T)^-1 b."""
    if isinstance(root, LevelRoot):
        return root.solve_transposed(root.solve_lower(right))
    return cho_solve((root, True), right)


def solve_lower(root: Root, right: Float[Array, "r *c"]) -> Float[Array, "r *c"]:
    """Return R^-1 b."""
    return root.solve_lower(right) if isinstance(root, LevelRoot) else solve_triangular(root, right, lower=True)


def solve_upper(root: Root, right: Float[Array, "r *c"]) -> Float[Array, "r *c"]:
    """Return R^-T b."""
    if isinstance(root, LevelRoot):
        return root.solve_transposed(right)
    return solve_triangular(root, right, lower=True, trans="T")


def upper_times(root: Root, v: Float[Array, "r *c"]) -> Float[Array, "r *c"]:
    """Return R^T v."""
    return root.transposed_times(v) if isinstance(root, LevelRoot) else root.T @ v


def log_determinant(root: Root) -> Float[Array, ""]:
    """Return log det R."""
    if isinstance(root, LevelRoot):
        return root.log_determinant()
    return jnp.sum(jnp.log(jnp.diagonal(root)))


def variances(root: Root, A: Factor) -> Float[Array, " n"]:
    """Return the diagonal of A^T (R R^T)^-1 A."""
    if isinstance(root, LevelRoot):
        return root.covariances([A])[:, 0, 0]
    return jnp.sum(solve_triangular(root, as_dense(A), lower=True) ** 2, axis=0)


def to_eliminate(factors: Sequence[Factor]) -> tuple[int, ...]:
    """Return the places of factors whose levels, of the same columns, have most coordinates; none if they are few."""
    places: dict[tuple[int, ...], list[int]] = {}
    for place, A in enumerate(factors):
        if isinstance(A, LevelFactor):
            places.setdefault(A.columns, []).append(place)
    sizes = {columns: sum(len(factors[place]) for place in members) for columns, members in places.items()}
    most = max(sizes, key=lambda columns: sizes[columns], default=())
    return tuple(places[most]) if sizes.get(most, 0) >= MANY_COORDINATES else ()


def find_levels(keys: Float[Array, "count c"], X: Float[Array, "m c"]) -> Int[Array, " m"]:
    """Return the index of the key that each row equals, at least ``count`` for rows that equal no key."""
    rows = jnp.concatenate([keys, X])
    # The sort is stable: keys come before equal rows, and the first of equal keys comes first.
    order = jnp.lexsort(rows.T[::-1])
    ordered = rows[order]
    begins = jnp.concatenate([jnp.ones(1, bool), jnp.any(ordered[1:] != ordered[:-1], axis=1)])
    firsts = order[jax.lax.cummax(jnp.where(begins, jnp.arange(len(rows)), 0))]
    return jnp.zeros(len(rows), firsts.dtype).at[order].set(firsts)[len(keys) :]


# Loops over small matrices are used, because batched calls of LAPACK may deadlock.


def _cholesky_of_each(matrices: Float[Array, "m q q"]) -> Float[Array, "m q q"]:
    columns: list[Array] = []
    for j in range(matrices.shape[-1]):
        rest = matrices[:, :, j] - sum(column * column[:, j, None] for column in columns)
        columns.append(jnp.where(jnp.arange(matrices.shape[-1]) < j, 0.0, rest / jnp.sqrt(rest[:, j, None])))
    return jnp.stack(columns, axis=-1)


def solve_each(
    roots: Float[Array, "n L L"], right: Float[Array, "n L *c"], transposed: bool = False
) -> Float[Array, "n L *c"]:
    """Return R^-1 B of each datum, or R^-T B."""
    size, rows = roots.shape[-1], jnp.swapaxes(roots, 1, 2) if transposed else roots

    def substitute(number: Array, solved: Array) -> Array:
        # Unsolved rows are zero.
        i = size - 1 - number if transposed else number
        pivot = rows[:, i, i].reshape(-1, *[1] * (right.ndim - 2))
        return solved.at[:, i].set((right[:, i] - jnp.einsum("nj,nj...->n...", rows[:, i], solved)) / pivot)

    return jax.lax.fori_loop(0, size, substitute, jnp.zeros_like(right))


# The kernel matrix at the data, outside ``jit``: checks, the Cholesky root with jitter, pivoted Cholesky.

JITTERS = (0.0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)
TOLERANCE = JITTERS[1]
RANK_MULTIPLE = 16
# Rows per strip of blocked matrix operations.
STRIP = 128
# Pivots below this fraction of the largest variance are rounding errors.
ROUNDING = 4e-15


@compiled
def gram(kernel: Covariance, X: Array) -> Array:
    """Return kernel(X, X)."""
    return kernel(X, X)


class PivotedFactor(NamedTuple):
    """The A (r, n) with K = A^T A, and its r pivots."""

    A: np.ndarray
    pivots: np.ndarray

    @property
    def padded_rank(self) -> int:
        """The rank rounded up to a multiple of RANK_MULTIPLE."""
        return -(-max(len(self.A), 1) // RANK_MULTIPLE) * RANK_MULTIPLE


def pivoted_cholesky(K: np.ndarray, tolerance: float) -> PivotedFactor:
    """Return the pivoted Cholesky factorisation of K, up to a tolerance relative to the largest variance."""
    # K is symmetric: its transpose is in LAPACK's column-major order.
    upper, pivots, rank, info = scipy.linalg.lapack.dpstrf(K.T, tol=tolerance * np.max(np.diagonal(K)), lower=0)
    if info < 0:
        raise RuntimeError(f"LAPACK's dpstrf rejected its argument {-info}.")
    A = np.empty((rank, len(K)))
    for begin in range(0, rank, STRIP):
        strip = np.s_[begin : begin + STRIP]
        A[strip, pivots - 1] = np.triu(upper[:rank][strip], begin)
    return PivotedFactor(A, pivots[:rank] - 1)


@compiled
def _row(kernel: Covariance, x: Array, X: Array) -> Array:
    return kernel(x[None], X)[0]


def pivoted_columns(kernel: Covariance, X: Array, tolerance: float, most: int) -> PivotedFactor | None:
    """Return ``pivoted_cholesky`` of kernel(X, X) from the rows of its pivots; None if it needs more than ``most``."""
    variances = np.array(kernel.diagonal(X))
    least = tolerance * np.max(variances)
    A = np.empty((most, len(X)))
    pivots: list[int] = []
    while np.max(variances) > least:
        if len(pivots) == most:
            return None
        r, pivot = len(pivots), int(np.argmax(variances))
        A[r] = (np.asarray(_row(kernel, X[pivot], X)) - A[:r, pivot] @ A[:r]) / np.sqrt(variances[pivot])
        variances = variances - A[r] ** 2
        # Rounding may leave as much variance at a pivot as at other rows.
        variances[pivot] = 0.0
        pivots.append(pivot)
    return PivotedFactor(A[: len(pivots)], np.array(pivots, dtype=int))


def jittered_root(
    kernel: Covariance, K: np.ndarray, jitters: tuple[float, ...] = JITTERS
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return K + jitter I (in place), its root and the first jitter with a root. Raise ValueError if none has."""
    variances = np.diagonal(K).copy()
    for relative in jitters:
        jitter = relative * float(np.mean(variances))
        np.fill_diagonal(K, variances + jitter)
        try:
            return K, scipy.linalg.cholesky(K, lower=True, check_finite=False), jitter
        except scipy.linalg.LinAlgError:
            continue
    np.fill_diagonal(K, variances)
    _reject(kernel, f"not positive semi-definite: its smallest eigenvalue is {np.linalg.eigvalsh(K)[0]:.3g}")


def check_gram(kernel: Covariance, K: np.ndarray) -> None:
    """Raise ValueError if K has a wrong shape, is not finite, has negative variances or is not symmetric."""
    if K.ndim != 2 or K.shape[0] != K.shape[1] or not K.size:
        _reject(kernel, f"of shape {K.shape}, but must be a square matrix of the data")
    if not np.all(np.isfinite(K)):
        row, column = np.argwhere(~np.isfinite(K))[0]
        _reject(kernel, f"not finite: entry ({row}, {column}) is {K[row, column]}")
    scale = np.max(np.abs(np.diagonal(K)))
    if np.min(np.diagonal(K)) < 0 or scale == 0:
        row = int(np.argmin(np.diagonal(K)))
        _reject(kernel, f"not a covariance: the variance at row {row} is {K[row, row]:.3g}")
    # K is checked in strips that fit the cache.
    ends = range(STRIP, len(K) + STRIP, STRIP)
    strips = (K[end - STRIP : end, :end] - K[:end, end - STRIP : end].T for end in ends)
    if max(float(np.max(np.abs(strip))) for strip in strips) > TOLERANCE * scale:
        row, column = np.unravel_index(np.argmax(np.abs(K - K.T)), K.shape)
        _reject(
            kernel,
            f"not symmetric: entry ({row}, {column}) is {K[row, column]:.6g} "
            f"and entry ({column}, {row}) is {K[column, row]:.6g}",
        )


def _reject(kernel: Covariance, fault: str) -> NoReturn:
    name = getattr(kernel, "__name__", type(kernel).__name__)
    raise ValueError(
        f"The matrix of kernel {name} at the data is {fault}. Expected a finite, symmetric, positive semi-definite "
        "matrix: check its formula and hyperparameters and the scale of X, or add a White kernel to it."
    )
