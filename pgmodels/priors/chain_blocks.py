"""Markov chains and linear effects beside them as one chain for each block of latents, along their column.

Latents are in blocks that sites do not couple: all of them, or each by itself. A block's state has the states of its
chains and the coefficients of its effects, which stand still.
"""

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.factored import FactoredPrior
from pgmodels.priors.markov.chain import Chain
from pgmodels.priors.markov.information import information, roots_of, steps_given
from pgmodels.priors.markov.response import place_of_product
from pgmodels.priors.posterior import Posterior
from pgmodels.priors.row_chains import chain_groups, chains_at, check_columns, factors_of_effects, times_of_rows
from pgmodels.runtime.jit import is_traced


class Member(NamedTuple):
    """A latent in the state of its block: its group, its number of entries, and how many of them are observed.

    Of a chain of the kernel ``kind`` that is the first one. Of effects all are: the ``coefficients`` that the data
    depend on.
    """

    group: int
    size: int
    num_observed: int
    kind: int | None = None
    coefficients: tuple[int, ...] = ()


class Layout(NamedTuple):
    """The latents of each block, in the order of all latents."""

    blocks: tuple[tuple[Member, ...], ...]

    @classmethod
    def of(cls, prior: PriorCollection, is_coupled: bool) -> "Layout":
        """The layout of a prior's posterior, outside ``jit`` without coefficients of padding.

        Raises ValueError if a group is neither a chain nor has a factor, or chains read different columns.
        """
        prior.require_coupling()
        check_columns(prior)
        d, kinds, members = max(group.dimension for group in chain_groups(prior)), itertools.count(), []
        for index, group in enumerate(prior.groups):
            if not isinstance(group, FactoredPrior):
                member = Member(index, d, 1, kind=next(kinds))
            else:
                coefficients = _nonzero(prior.at_rows(group.factor, index))
                member = Member(index, *2 * (len(coefficients),), coefficients=coefficients)
            members += [member] * group.size
        return cls((tuple(members),) if is_coupled else tuple((member,) for member in members))

    @property
    def members(self) -> list[Member]:
        """All latents."""
        return [member for block in self.blocks for member in block]

    @property
    def size(self) -> int:
        """The number of entries of a block's state x."""
        return max(sum(member.size for member in block) for block in self.blocks)

    @property
    def joint_size(self) -> int:
        """The number of entries of (x, y)."""
        return self.size + self.size * (self.size + 1) // 2

    @property
    def places(self) -> list[tuple[int, int]]:
        """The block of each latent, and its first entry there."""
        ends = [np.cumsum([0, *(member.size for member in block)]) for block in self.blocks]
        return [(number, int(end)) for number, of_block in enumerate(ends) for end in of_block[:-1]]

    @property
    def observed(self) -> list[tuple[int, int]]:
        """The block of each observed entry, and its place there, in the order of the latents."""
        pairs = zip(self.places, self.members, strict=True)
        return [(block, start + entry) for (block, start), member in pairs for entry in range(member.num_observed)]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of observed entries in one block."""
        observed = list(enumerate(self.observed))
        return [(h, k) for h, (block, _) in observed for k, (other, _) in observed[: h + 1] if block == other]

    @property
    def jointly_observed(self) -> tuple[int, ...]:
        """The places in (x, y) of all blocks of the observed entries, and then of the products of ``pairs``."""
        (blocks, entries), size = zip(*self.observed, strict=True), self.joint_size
        products = (self.size + place_of_product(entries[h], entries[k]) for h, k in self.pairs)
        return (
            *(block * size + entry for block, entry in self.observed),
            *(blocks[h] * size + place for (h, _), place in zip(self.pairs, products, strict=True)),
        )

    def steps(
        self, transition: Float[Array, "n g d d"], noise: Float[Array, "n g d d"], starts: Bool[Array, " n"]
    ) -> Chain:
        """Steps of the blocks (n, b, s, s) from those of the chains; effects are drawn where ``starts``."""
        F = Q = jnp.zeros((len(starts), len(self.blocks), self.size, self.size))
        for (block, start), member in zip(self.places, self.members, strict=True):
            entries = slice(start, start + member.size)
            if member.kind is None:
                drawn = starts[:, None, None] * jnp.eye(member.size)
                move, add = jnp.eye(member.size) - drawn, drawn
            else:
                move, add = transition[:, member.kind], noise[:, member.kind]
            F, Q = F.at[:, block, entries, entries].set(move), Q.at[:, block, entries, entries].set(add)
        return Chain(F, Q)

    def observation(self, factors: Mapping[int, Float[Array, "r n"]], count: int) -> Float[Array, "n L H"]:
        """The observation matrices of the latents, by the ``factors`` of each group of effects."""
        columns = []
        for latent, member in enumerate(self.members):
            is_chain = member.kind is not None
            values = jnp.ones((count, 1)) if is_chain else factors[member.group][np.array(member.coefficients)].T
            columns.append(jnp.zeros((count, len(self.members), member.num_observed)).at[:, latent].set(values))
        return jnp.concatenate(columns, axis=2)

    def on_states(self, precision: Float[Array, "n H H"]) -> Float[Array, "n b s s"]:
        """Precisions of the observed entries as those of the blocks' states."""
        on_blocks = jnp.zeros((len(precision), len(self.blocks), self.size, self.size))
        (blocks, entries), (h, k) = np.array(self.observed).T, np.array(self.pairs).T
        for one, other in ((h, k), (k, h)):
            on_blocks = on_blocks.at[:, blocks[h], entries[one], entries[other]].set(precision[:, h, k])
        return on_blocks

    def directions(self, A: Float[Array, "n P H"], is_paired: bool) -> Float[Array, "n S H2"]:
        """The observation matrices of predictors A x and their products, of the entries ``jointly_observed``."""
        rows, columns = np.triu_indices(A.shape[1]) if is_paired else 2 * (np.arange(A.shape[1]),)
        h, k = np.array(self.pairs).T
        one, other = A[:, rows], A[:, columns]
        products = jnp.where(h == k, 0.5, 1.0) * (one[..., h] * other[..., k] + one[..., k] * other[..., h])
        above = jnp.pad(A, ((0, 0), (0, 0), (0, len(h))))
        return jnp.concatenate([above, jnp.pad(products, ((0, 0), (0, 0), (A.shape[2], 0)))], axis=1)

    def latents(
        self, states: Float[Array, "*batch b s"], observation: Float[Array, "*rows L H"]
    ) -> Float[Array, "*batch L"]:
        """The latents' deviations from their means, of states in rows with these observation matrices."""
        blocks, entries = np.array(self.observed).T
        return jnp.sum(observation * states[..., None, blocks, entries], axis=-1)


class Moves(NamedTuple):
    """F and roots of Q of the blocks' deviations from their means given sites, and observation matrices, by row."""

    transition: Float[Array, "n b s s"]
    root: Float[Array, "n b s s"]
    observation: Float[Array, "n L H"]


def moves_along(
    posterior: Posterior, row_weights: Float[Array, " n"], layout: Layout
) -> tuple[Int[Array, " n"], Moves]:
    """The order of the rows along the chains' column, padding last, and the moves of the latents along it."""
    prior, W = posterior.prior, posterior.sites.precision
    times = times_of_rows(prior)
    # Padding may have the time of any row.
    times = jnp.where(row_weights > 0, times, jnp.max(times))
    order = jnp.argsort(times)
    # Rows with equal times are steps of no length.
    chains = chains_at(prior, times[order])
    steps = layout.steps(chains.transition, chains.noise, jnp.arange(len(order)) == 0)
    observation = layout.observation(factors_of_effects(prior), len(order))[order]
    L, precision = roots_of(steps.noise), (W if posterior.is_coupled else jax.vmap(jnp.diag)(W))[order]
    informed = information(steps, L, layout.on_states(jnp.swapaxes(observation, 1, 2) @ precision @ observation))
    transition, noise = steps_given(steps, L, informed)
    return order, Moves(transition, roots_of(noise), observation)


def _nonzero(factor: Float[Array, "r n"]) -> tuple[int, ...]:
    """The rows of a factor that are not zero; all within compiled code."""
    if is_traced():
        return tuple(range(len(factor)))
    return tuple(np.flatnonzero(np.any(np.asarray(factor) != 0.0, axis=1)).tolist()) or (0,)
