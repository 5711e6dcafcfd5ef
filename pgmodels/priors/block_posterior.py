"""Posteriors of blocks of latents that sites couple, and joint draws."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import combinations_with_replacement
from typing import TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int, Key, PyTree

from pgmodels.numerics.quadrature import equal_chunks, power_of_two
from pgmodels.priors import linalg
from pgmodels.priors.base import RandomKey, Sites
from pgmodels.priors.collection import (
    Coordinates,
    DependentPosterior,
    Marginals,
    Posterior,
    PriorCollection,
    factors_at,
    flatten,
    gather_blocks,
    have_factors,
    loadings_at,
    residual_trace,
    sample_given,
    scatter_blocks,
    stacked,
)
from pgmodels.priors.dense import InducingPointPrior
from pgmodels.priors.inducing import FICPrior
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.precision import Module

T = TypeVar("T", bound=PyTree)


def sum_over_rows(prior: PriorCollection, function: Callable[..., T], *terms: Float[Array, "n *_"]) -> T:
    """Sum a ``function`` of the latents' factors (r, n) and of each row's terms over rows; it must be additive."""
    if not _in_chunks(prior):
        return function(prior.loadings(), *terms)

    factors_of_rows = _by_products(prior)

    def chunk_sums(X: Array, *terms: Array) -> T:
        return function(factors_of_rows(X), *terms)

    X = _rows(prior)
    nothing = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), jax.eval_shape(chunk_sums, X, *terms))
    return linalg.summed(chunk_sums, nothing, _width(prior), X, *terms)


def _rows(prior: PriorCollection) -> Array:
    """Return the inputs of the rows, from any chunked group."""
    return next(group.X for group in prior.groups if group.is_chunked)


def _in_chunks(prior: PriorCollection) -> bool:
    return any(group.is_chunked for group in prior.groups) and all(group.has_points for group in prior.groups)


def _by_products(prior: PriorCollection) -> Callable[[Array], list[Array]]:
    groups = cast(tuple[InducingPointPrior, ...], prior.groups)
    whiteners = [linalg.inverse_root(group.root) for group in groups]

    def factors_of_rows(X: Array) -> list[Array]:
        return prior.by_latent([inverse @ group.cross(X) for inverse, group in zip(whiteners, groups, strict=True)])

    return factors_of_rows


def _width(prior: PriorCollection) -> int:
    return sum(prior.ranks) * len(prior.ranks)


class BlockPosterior(DependentPosterior):
    """N(f; mean, K) times exp(h f - f^T W f / 2) for each datum's latents f, normalised.

    ``sites`` are h (n, L) and W (n, L, L), zero between latents of different ``blocks``. In whitened coordinates v,
    concatenated over latents, it is N(centre, P^-1) with P = I + A W A^T = R R^T. ``roots`` holds one R for each block,
    over the concatenated coordinates of the block's latents.
    """

    prior: PriorCollection
    sites: Sites
    centre: Float[Array, " D"]
    roots: tuple[linalg.Root, ...]
    log_evidence: Array
    blocks: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    inverse_roots: tuple[Array | None, ...] | None = eqx.field(default=None, kw_only=True)

    def tempered(self, share: Float[Array, ""] | float) -> "BlockPosterior":
        return condition_blocks(self.prior, _tempered_sites(self, share), self.blocks)

    def standardise(self, flat: Float[Array, " D"]) -> Float[Array, " D"]:
        """Return standard normal coordinates u = R^T (v - centre) of whitened coordinates v."""
        block_vectors = gather_blocks(self.prior, self.blocks, flat - self.centre)
        turned = [linalg.upper_times(root, part) for root, part in zip(self.roots, block_vectors, strict=True)]
        return scatter_blocks(self.prior, self.blocks, turned)

    def deviation(self, u: Float[Array, " D"]) -> Float[Array, " D"]:
        """Return the deviation R^-T u of whitened coordinates from the centre."""
        inverses = (None,) * len(self.roots) if self.inverse_roots is None else self.inverse_roots
        triples = zip(self.roots, inverses, gather_blocks(self.prior, self.blocks, u), strict=True)
        turned = [linalg.solve_upper(root, v) if inverse is None else v @ inverse for root, inverse, v in triples]
        return scatter_blocks(self.prior, self.blocks, turned)

    def with_inverse_roots(self) -> "BlockPosterior":
        """Return the posterior with inverse roots computed, for drawing many deviations."""
        inverses = (None if isinstance(root, linalg.LevelRoot) else linalg.inverse_root(root) for root in self.roots)
        return replace(self, inverse_roots=tuple(inverses))

    def marginals(self) -> Marginals:
        prior = self.prior.distinct
        if _in_chunks(prior):
            factors_of_rows = _by_products(prior)
            V = linalg.each_row(lambda X: self._covariance(factors_of_rows(X)), _width(prior), _rows(prior))
        else:
            V = self._covariance(prior.loadings())
        V = self.prior.with_residuals(self.prior.copies.spread(V))
        return self.prior.latents(self.prior.unflatten(self.centre)), V

    def times(self, x: Float[Array, "n L"]) -> Float[Array, "n L"]:
        """Return the covariance of the latents at the data times x: the change of the mean with the potentials."""

        def pulled(factors: Sequence[linalg.Factor], x: Array) -> list[Array]:
            return [jnp.concatenate([linalg.times(factors[a], x[:, a]) for a in block]) for block in self.blocks]

        by_block = sum_over_rows(self.prior.distinct, pulled, self.prior.total(x))
        solved = [linalg.solve(root, part) for root, part in zip(self.roots, by_block, strict=True)]
        moved = self.prior.latents(self.prior.unflatten(scatter_blocks(self.prior, self.blocks, solved)))
        return moved - self.prior.means()

    def log_normalizer(self) -> Array:
        return self.log_evidence

    def log_normalizer_slopes(self) -> list[tuple[Float[Array, "n n"], Array]]:
        """Return the derivatives of the log normaliser in each dense group's covariance and mean.

        (b b^T - W + W V W) / 2 and b summed over the group's latents, with b = h - W m at the posterior mean m.
        """
        prior, W = self.prior.distinct, self.prior.total(self.sites.precision)
        factors = prior.factors()
        m = prior.latents(prior.unflatten(self.centre))
        b = self.prior.total(self.sites.potential) - jnp.einsum("ilk,ik->il", W, m)
        by_latent: dict[int, Array] = {}
        for block, root in zip(self.blocks, self.roots, strict=True):
            pulled = jnp.einsum("dki,ikl->ldi", self._half(block, root, factors), W[:, block][:, :, block])
            by_latent.update(zip(block, pulled, strict=True))
        slopes = []
        for part in self.prior.slices():
            halves = jnp.concatenate([*(by_latent[latent] for latent in range(part.start, part.stop)), b[:, part].T])
            diagonal = jnp.sum(jnp.diagonal(W[:, part, part], axis1=1, axis2=2), axis=1)
            slopes.append((0.5 * (halves.T @ halves - jnp.diag(diagonal)), jnp.sum(b[:, part])))
        return slopes

    def divergence(self, covariance: Float[Array, "n L L"]) -> Array:
        log_root = sum(linalg.log_determinant(root) for root in self.roots)
        quadratic = jnp.sum(self.sites.precision * covariance) - residual_trace(self.prior, self.sites.precision)
        return log_root + 0.5 * (self.centre @ self.centre - quadratic)

    def marginals_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m L"], Float[Array, "m L L"]]:
        centres = self.prior.unflatten(self.centre)
        conditionals = [group.conditional(X_new, v) for group, v in zip(self.prior.groups, centres, strict=True)]
        residuals = self.prior.by_latent([residual for _, residual in conditionals])
        V = self._covariance(loadings_at(self.prior, X_new))
        latents = jnp.arange(V.shape[-1])
        mean = jnp.concatenate([mean for mean, _ in conditionals], axis=-1)
        return mean, V.at[:, latents, latents].add(jnp.stack(residuals, axis=-1))

    def mean_and_deviation(self, key: RandomKey) -> tuple[Coordinates, Coordinates]:
        deviation = self.deviation(jax.random.normal(key, self.centre.shape, self.centre.dtype))
        return self.prior.unflatten(self.centre), self.prior.unflatten(deviation)

    def cross_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "L m L n"]:
        return self._between(factors_at(self.prior, X_new), self.prior.factors())

    def covariance_at(self, X_new: Float[Array, "m d"]) -> Float[Array, "L m L m"]:
        factors = factors_at(self.prior, X_new)
        C = self._between(factors, factors)
        for part, group in zip(self.prior.slices(), self.prior.groups, strict=True):
            latents = np.arange(part.start, part.stop)
            C = C.at[latents, :, latents].add(group.residual_covariance(X_new))
        return C

    def covariance(self) -> Float[Array, "L n L n"]:
        factors = self.prior.factors()
        return self._between(factors, factors)

    def coupled_latents(self) -> list[list[int]]:
        return [list(block) for block in self.blocks]

    def roots_and_centres(self) -> tuple[tuple[linalg.Root, ...], tuple[Array, ...]]:
        return self.roots, (self.centre,)

    def _between(self, row_factors: Sequence[Array], column_factors: Sequence[Array]) -> Float[Array, "L m L n"]:
        size = self.sites.potential.shape[1]
        C = jnp.zeros((size, row_factors[0].shape[1], size, column_factors[0].shape[1]), self.centre.dtype)
        for block, root in zip(self.blocks, self.roots, strict=True):
            ours, theirs = (self._half(block, root, factors) for factors in (row_factors, column_factors))
            part = jnp.einsum("dlm,dkn->lmkn", ours, theirs)
            C = C.at[np.ix_(block, range(C.shape[1]), block, range(C.shape[3]))].set(part)
        return C

    def _covariance(self, factors: Sequence[linalg.Factor]) -> Float[Array, "m L L"]:
        if len(self.blocks) == 1:
            return self._covariance_of(self.blocks[0], self.roots[0], factors)
        size = self.sites.potential.shape[1]
        V = jnp.zeros((factors[0].shape[1], size, size), self.centre.dtype)
        for block, root in zip(self.blocks, self.roots, strict=True):
            V = V.at[np.ix_(range(len(V)), block, block)].set(self._covariance_of(block, root, factors))
        return V

    def _covariance_of(
        self, block: tuple[int, ...], root: linalg.Root, factors: Sequence[linalg.Factor]
    ) -> Float[Array, "m b b"]:
        if isinstance(root, linalg.LevelRoot):
            return root.covariances([factors[latent] for latent in block])
        U = self._half(block, root, list(map(linalg.as_dense, factors)))
        return jnp.einsum("dli,dki->ilk", U, U)

    @staticmethod
    def _half(block: tuple[int, ...], root: linalg.Root, factors: Sequence[Array]) -> Float[Array, "D b m"]:
        """Return the U with U^T U the covariance of a block's latents, without residuals."""
        if isinstance(root, linalg.LevelRoot):
            A = stacked([factors[latent] for latent in block])
            return root.solve_lower(A).reshape(len(A), len(block), -1)
        solutions, start = [], 0
        # Eight triangular solves, over parts of the right-hand sides, need a third of the work of a single solve.
        for latents in np.array_split(block, min(len(block), 8)):
            A = stacked([factors[latent] for latent in latents])
            right = jnp.pad(A, ((0, len(root) - start - len(A)), (0, 0)))
            solutions.append(jnp.pad(solve_triangular(root[start:, start:], right, lower=True), ((start, 0), (0, 0))))
            start += len(A)
        return jnp.concatenate(solutions, axis=1).reshape(len(root), len(block), -1)


class FICPosterior(BlockPosterior):
    """The block posterior if some priors are FIC: f = g + D e with g = mean + A^T v and coordinates (v, e).

    D is diagonal: the square roots of a datum's residual variances, 0 for latents without residual. ``span`` is the
    posterior of v with e integrated out. Given v, the e of a datum are N(gain (h - W g), (R R^T)^-1). Here
    R R^T = I + D W D, gain = (R R^T)^-1 D, and R is in ``residual_roots``. Rows are distinct rows; ``sums`` are the h
    and W summed over equal rows.
    """

    span: BlockPosterior
    sums: Sites
    residual_roots: Float[Array, "m L L"]
    gain: Float[Array, "m L L"]

    def standardise(self, flat: Float[Array, " D"]) -> Float[Array, " D"]:
        v, e = _split_sparse(self.prior.distinct, flat)
        g = self.span.prior.latents(self.span.prior.unflatten(v))
        turned = jnp.einsum("ikl,ik->il", self.residual_roots, e - self._pull(self.sums.potential, g))
        return _join_sparse(self.prior, self.span.standardise(v), turned)

    def deviation(self, u: Float[Array, " D"]) -> Float[Array, " D"]:
        ours, theirs = _split_sparse(self.prior.distinct, u)
        v = self.span.deviation(ours)
        g = self.span.prior.latents(self.span.prior.unflatten(v)) - self.span.prior.means()
        e = linalg.solve_each(self.residual_roots, theirs, transposed=True)
        return _join_sparse(self.prior, v, e + self._pull(jnp.zeros_like(g), g))

    def with_inverse_roots(self) -> "FICPosterior":
        return replace(self, span=self.span.with_inverse_roots())

    def marginals(self) -> Marginals:
        _, V = self.span.marginals()
        residual_covariance = _spread(self.prior.distinct)[:, :, None] * self.gain
        kept = jnp.eye(V.shape[-1]) - residual_covariance @ self.sums.precision
        mean = self.prior.latents(self.prior.unflatten(self.centre))
        return mean, self.prior.copies.spread(kept @ V @ jnp.swapaxes(kept, 1, 2) + residual_covariance)

    def divergence(self, covariance: Float[Array, "n L L"]) -> Array:
        return super().divergence(covariance) + jnp.sum(jnp.log(jnp.diagonal(self.residual_roots, axis1=1, axis2=2)))

    def _pull(self, h: Float[Array, "m L"], g: Float[Array, "m L"]) -> Float[Array, "m L"]:
        """Return gain (h - W g)."""
        return jnp.einsum("ikl,il->ik", self.gain, h - jnp.einsum("ilk,ik->il", self.sums.precision, g))


def condition_blocks(
    prior: PriorCollection, sites: Sites, blocks: tuple[tuple[int, ...], ...], as_matrices: bool = False
) -> BlockPosterior:
    """Return the posterior given sites (n, L), (n, L, L), with one Cholesky factorisation per block.

    Groups must have a factor or be FIC. Blocks of many levels are factorised by their structure unless ``as_matrices``.
    """
    if have_factors(prior.spans()) and not have_factors(prior):
        return _condition_sparse(prior, sites, blocks)
    means, (potential, precision) = prior.means(), sites

    def block_terms(factors: Sequence[linalg.Factor], h: Array, W: Array) -> list[tuple[linalg.Root, Array]]:
        """Return A W A^T, or the root of I + A W A^T by its structure, and A h of each block."""
        terms: list[tuple[linalg.Root, Array]] = []
        for block in blocks:
            of_block, pairs = [factors[a] for a in block], list(combinations_with_replacement(block, 2))
            right = jnp.concatenate([linalg.times(factors[a], h[:, a]) for a in block])
            if not as_matrices and (led := linalg.to_eliminate(of_block)):
                terms.append((linalg.LevelRoot.of(of_block, W[:, block][:, :, block], led), right))
                continue
            upper = {(a, b): linalg.weighted_product(factors[a], W[:, a, b], factors[b]) for a, b in pairs}
            rows = [[upper[a, b] if (a, b) in upper else upper[b, a].T for b in block] for a in block]
            terms.append((jnp.concatenate([jnp.concatenate(row, axis=1) for row in rows]), right))
        return terms

    roots, centres, log_normalizer = [], [], jnp.sum(potential @ means) - 0.5 * means @ jnp.sum(precision, 0) @ means
    terms = map(prior.total, (potential - precision @ means, precision))
    for P, right in sum_over_rows(prior.distinct, block_terms, *terms):
        root = P if isinstance(P, linalg.LevelRoot) else linalg.root_of_one_plus(P)
        centre = linalg.solve(root, right)
        log_normalizer = log_normalizer - linalg.log_determinant(root) + 0.5 * right @ centre
        roots.append(root)
        centres.append(centre)
    log_evidence = log_normalizer - 0.5 * residual_trace(prior, precision)
    return BlockPosterior(prior, sites, scatter_blocks(prior, blocks, centres), tuple(roots), log_evidence, blocks)


def together(posterior: Posterior, share: Float[Array, ""] | float = 1.0) -> BlockPosterior:
    """Return the posterior with the same mean and ``share`` times the sites' precisions, all latents in one block."""
    if isinstance(share, float) and share == 1.0 and isinstance(posterior, BlockPosterior):
        is_matrix = [not isinstance(root, linalg.LevelRoot) for root in posterior.roots]
        if is_matrix == [True]:
            return posterior
    sites = _tempered_sites(posterior, share)
    return condition_blocks(posterior.prior, sites, (tuple(range(sites.potential.shape[1])),), as_matrices=True)


def _tempered_sites(posterior: Posterior, share: Float[Array, ""] | float) -> Sites:
    """Return coupled sites with ``share`` times the precisions, and the same posterior mean."""
    h, W = posterior.sites.as_coupled()
    # K^-1 m = h - W m, and so h' = K^-1 m + share W m.
    return Sites(h - (1.0 - share) * jnp.einsum("ilk,ik->il", W, posterior.moments()[0]), share * W)


def _condition_sparse(prior: PriorCollection, sites: Sites, blocks: tuple[tuple[int, ...], ...]) -> FICPosterior:
    sums, spread = Sites(*map(prior.total, sites)), _spread(prior.distinct)
    precision = jnp.eye(spread.shape[1]) + spread[:, :, None] * sums.precision * spread[:, None, :]
    roots = jnp.sqrt(precision) if precision.shape[1] == 1 else jnp.linalg.cholesky(precision)
    half = linalg.solve_each(roots, jax.vmap(jnp.diag)(spread))
    gain = linalg.solve_each(roots, half, transposed=True)
    # The factor with e integrated out, exp(h' g - g^T W' g / 2) up to a constant.
    half_precision, half_potential = half @ sums.precision, jnp.einsum("ikl,il->ik", half, sums.potential)
    h = sums.potential - jnp.einsum("ikl,ik->il", half_precision, half_potential)
    W = sums.precision - jnp.swapaxes(half_precision, 1, 2) @ half_precision
    span = condition_blocks(prior.distinct.spans(), Sites(h, W), blocks)
    g = span.prior.latents(span.prior.unflatten(span.centre))
    e = jnp.einsum("ikl,il->ik", gain, sums.potential - jnp.einsum("ilk,ik->il", sums.precision, g))
    constant = 0.5 * jnp.sum(half_potential**2) - jnp.sum(jnp.log(jnp.diagonal(roots, axis1=1, axis2=2)))
    return FICPosterior(
        prior=prior,
        sites=sites,
        centre=_join_sparse(prior, span.centre, e),
        roots=span.roots,
        log_evidence=span.log_evidence + constant,
        blocks=blocks,
        span=span,
        sums=sums,
        residual_roots=roots,
        gain=gain,
    )


def _spread(prior: PriorCollection) -> Float[Array, "n L"]:
    """Return square roots of the FIC residual variances, 0 for latents without residual coordinates."""
    # FIC groups never share inputs between distinct rows: see Representation.shares.
    zeros = jnp.zeros(prior.num_rows)
    roots = [zeros if fic is None else jnp.sqrt(fic.residual) for fic in _fic_groups(prior)]
    return jnp.stack(prior.by_latent(roots), axis=1)


def _split_sparse(prior: PriorCollection, flat: Float[Array, " D"]) -> tuple[Float[Array, " d"], Float[Array, "n L"]]:
    """Split coordinates into v (flat) and e (0 for latents without residual coordinates)."""
    spans, residuals = [], []
    for fic, size, part in zip(_fic_groups(prior), prior.sizes, prior.unflatten(flat), strict=True):
        v, e = (part, jnp.zeros((prior.num_rows, size))) if fic is None else fic.split(part)
        spans.append(v)
        residuals.append(e)
    return flatten(spans), jnp.concatenate(residuals, axis=1)


def _join_sparse(prior: PriorCollection, flat: Float[Array, " d"], e: Float[Array, "n L"]) -> Float[Array, " D"]:
    triples = zip(_fic_groups(prior), prior.spans().unflatten(flat), prior.slices(), strict=True)
    return flatten([v if fic is None else jnp.concatenate([v, e[:, part]]) for fic, v, part in triples])


def _fic_groups(prior: PriorCollection) -> list[FICPrior | None]:
    """Return the FIC groups, and None for each other group."""
    pairs = zip(prior.groups, prior.spans().groups, strict=True)
    return [None if span is group else cast(FICPrior, group) for group, span in pairs]


class CorrectedGaussian(Module):
    """A Gaussian of whitened v = centre + half u with u standard normal; ``log_determinant`` is log |det half|."""

    prior: PriorCollection
    centre: Float[Array, " D"]
    half: Float[Array, "D D"]
    log_determinant: Float[Array, ""]

    def draw(self, key: Key[Array, ""]) -> tuple[Float[Array, "n L"], Coordinates]:
        """Return a joint draw of the latents at the data, and its coordinates by group."""
        v = self.prior.unflatten(self.centre + self.half @ jax.random.normal(key, self.centre.shape))
        return sample_given(self.prior, key, v), v

    def place(self, keys: RandomKey, noise: Float[Array, "S D"]) -> tuple[Float[Array, "S n L"], Float[Array, " S"]]:
        """Return the latents at the data for standard normal u, and log p(f) minus the log density of the draw.

        ``keys`` (S,) draw the residual of the latents given the coordinates; they may have drawn u.
        """
        v = self.centre + noise @ self.half.T
        log_ratio = 0.5 * jnp.sum(noise**2 - v**2, axis=1) + self.log_determinant
        coordinates = jax.vmap(self.prior.unflatten)(v)
        return jax.vmap(lambda key, v: sample_given(self.prior, key, v))(keys, coordinates), log_ratio

    def log_density_ratio(self, coordinates: Coordinates) -> Float[Array, " S"]:
        """Return the log density ratio to the prior for coordinates by group, (S, rank, latents of the group) each."""
        v = jax.vmap(flatten)(coordinates)
        u = jnp.linalg.solve(self.half, (v - self.centre).T).T
        return 0.5 * jnp.sum(v**2 - u**2, axis=1) - self.log_determinant


def move(
    posterior: Posterior,
    shift: Float[Array, " D"] | Float[np.ndarray, " D"],
    response: Float[Array, "D D"] | Float[np.ndarray, "D D"],
    share: Float[Array, ""] | float = 1.0,
) -> CorrectedGaussian:
    """Return a posterior's Gaussian with ``shift`` added to its coordinates' mean, ``response`` to their covariance.

    A ``share`` below 1 of the data's precisions widens it: if the data are weak, its tails are the prior's.
    """
    gaussian = together(posterior, share)
    posterior_root, R = cast(tuple[Array, Array], together(posterior).roots + gaussian.roots)
    turned = solve_triangular(R, posterior_root @ posterior_root.T, lower=True)
    S = jnp.eye(len(R), dtype=R.dtype) + turned @ response @ turned.T
    root = jnp.linalg.cholesky(0.5 * (S + S.T))
    half = solve_triangular(R, jnp.column_stack([turned @ shift, root]), trans="T", lower=True)
    log_determinant = jnp.sum(jnp.log(jnp.diagonal(root))) - jnp.sum(jnp.log(jnp.diagonal(R)))
    return CorrectedGaussian(gaussian.prior, gaussian.centre + half[:, 0], half[:, 1:], log_determinant)


def draw_latents(
    gaussian: PriorCollection | Posterior | CorrectedGaussian, count: int, seed: int, *path: int
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Return draws of the latents at a prior's or posterior's rows, (count, n, latents), and coordinates by group.

    The key of a draw is the seed's key, folded with the path and the draw's number. Gaussians are padded to one of few
    sizes, so that data sets of similar length share compiled programs.
    """
    key = jax.random.key(seed)
    # At most 512 draws form a batch, so that larger numbers of draws share one program.
    chunks = equal_chunks(np.arange(count), min(512, power_of_two(count)))
    # For few draws, optimised compilation costs more than it saves.
    draw = _draw_few if len(chunks[0]) <= 64 else _draw_many
    batches = [jax.tree.map(np.asarray, draw(gaussian, key, path, chunk)) for chunk in chunks]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *batches)


def draw_gaussian(mean: np.ndarray, covariance: np.ndarray, num_draws: int, rng: np.random.Generator) -> np.ndarray:
    """Return joint draws (num_draws, m, latents) of a Gaussian of mean (m, latents).

    ``covariance`` is the covariance of each latent (latents, m, m), or of all latents (latents, m, latents, m). It may
    be singular, for example if rows are equal.
    """
    rows, size = mean.shape
    blocks = covariance if covariance.ndim == 3 else covariance.reshape(1, size * rows, size * rows)
    # The number of rows of a root is the rank of the covariance: it is small for few groups at many rows.
    roots = [linalg.pivoted_cholesky(block, linalg.ROUNDING).A for block in blocks]
    deviations = np.stack([rng.standard_normal((num_draws, len(A))) @ A for A in roots], axis=1)
    return mean + np.swapaxes(deviations.reshape(num_draws, size, rows), 1, 2)


def draw_deviations(spread: np.ndarray, num_draws: int, rng: np.random.Generator) -> np.ndarray:
    """Return deviations from the mean (num_draws, m, latents), with the same standard normals for all rows.

    ``spread`` has variances (m, latents) or covariances (m, latents, latents). Symmetric roots are continuous in them.
    """
    noise = rng.standard_normal((num_draws, 1, spread.shape[1]))
    if spread.ndim == 2:
        return np.sqrt(np.maximum(spread, 0.0)) * noise
    values, vectors = np.linalg.eigh(spread)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    return np.einsum("mlk,smk->sml", root, np.broadcast_to(noise, (num_draws, *spread.shape[:2])))


def draw_given(
    prior: PriorCollection, X_new: Float[Array, "m d"], coordinates: Coordinates, noise: Float[Array, "*batch m l k"]
) -> Float[Array, "*batch m l"]:
    """Return joint draws of the latents at new inputs given coordinates, from standard normals. Usable under ``jit``.

    For each latent and row, ``noise`` has as many numbers as the largest ``LatentPrior.noise_size``.
    """
    triples = zip(prior.slices(), prior.groups, coordinates, strict=True)
    drawn = [group.draw_given(X_new, v, noise[..., part, : group.noise_size]) for part, group, v in triples]
    return jnp.concatenate(drawn, axis=-1)


def _draw(
    gaussian: PriorCollection | Posterior | CorrectedGaussian,
    key: Key[Array, ""],
    path: tuple[int | Int[Array, ""], ...],
    numbers: np.ndarray | Int[Array, " draws"],
) -> tuple[Array, Coordinates]:
    key = reduce(jax.random.fold_in, path, key)
    # The Gaussian is not batched, because it is already factorised.
    return jax.vmap(lambda number: gaussian.draw(jax.random.fold_in(key, number)))(numbers)


_draw_few = compiled(_draw, optimise=False)
_draw_many = compiled(_draw)
