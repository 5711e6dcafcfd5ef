"""Linear response in O(n) for latents that are Markov chains of one column, and linear effects beside them.

Latents are in blocks that q keeps independent: all of them if sites couple them, or each by itself. A block is one
chain, of the states of its chains and the coefficients of its effects, which stand still. Corrected covariances are
those of the chain of states x and their products y given factors of the predictors and their products: see
pgmodels.priors.markov.response.
"""

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pgmodels.priors.base import Sites
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.factored import FactoredPrior
from pgmodels.priors.linear_predictor import condition_jointly
from pgmodels.priors.markov.chain import Chain, roots
from pgmodels.priors.markov.joint import Chains, Joint, LineSites, condition
from pgmodels.priors.markov.response import (
    Given,
    given_sites,
    joint_steps,
    one_step_back,
    place_of_product,
    steps_given,
)
from pgmodels.priors.posterior import Marginals, Posterior
from pgmodels.priors.row_chains import (
    chain_groups,
    chains_of_rows,
    check_columns,
    effect_groups,
    factors_of_effects,
    gaps_of_rows,
    times_of_rows,
)
from pgmodels.runtime.jit import is_traced
from pgmodels.runtime.pickling import Module


class Factors(NamedTuple):
    """What responds at each row: the factor of predictors z = Phi f and their products u has the precision (n, S, S).

    That is minus the Hessian of the objective in the moments of (z, u); u are the products of each predictor and itself
    or, if ``is_paired``, of all pairs in the order of an upper triangle. ``slope`` is the gradient in the mean of the
    one predictor that shifts the mean; None if means do not move. ``Phi`` is None if predictors are latents.
    """

    precision: Float[Array, "n S S"]
    slope: Float[Array, " n"] | None
    Phi: Float[Array, "n P L"] | None


class Member(NamedTuple):
    """A latent in the state of its block: its group, its number of entries, and those that it reads.

    A chain of the kernel ``kind`` reads the first one. Effects read all: the ``coefficients`` that the data depend on.
    """

    group: int
    size: int
    reads: int
    kind: int | None = None
    coefficients: tuple[int, ...] = ()


class Layout(NamedTuple):
    """The latents of each block, in the order of all latents."""

    blocks: tuple[tuple[Member, ...], ...]

    @classmethod
    def of(cls, posterior: Posterior) -> "Layout":
        """The layout of a posterior, outside ``jit`` without coefficients of padding.

        Raises ValueError if a group is neither a chain nor has a factor, or chains read different columns.
        """
        prior = posterior.prior
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
        return cls((tuple(members),) if posterior.is_coupled else tuple((member,) for member in members))

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
    def heads(self) -> list[tuple[int, int]]:
        """The block and the entry there of all that latents read."""
        pairs = zip(self.places, self.members, strict=True)
        return [(block, start + entry) for (block, start), member in pairs for entry in range(member.reads)]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of heads in one block."""
        heads = list(enumerate(self.heads))
        return [(h, k) for h, (block, _) in heads for k, (other, _) in heads[: h + 1] if block == other]

    @property
    def joint_heads(self) -> tuple[int, ...]:
        """The entries of (x, y) of all blocks that are heads, and then the products of ``pairs``."""
        (blocks, entries), size = zip(*self.heads, strict=True), self.joint_size
        products = (self.size + place_of_product(entries[h], entries[k]) for h, k in self.pairs)
        return (
            *(block * size + entry for block, entry in self.heads),
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

    def reading(self, factors: Mapping[int, Float[Array, "r n"]], count: int) -> Float[Array, "n L H"]:
        """The latents as combinations of heads, by the ``factors`` of each group of effects."""
        columns = []
        for latent, member in enumerate(self.members):
            is_chain = member.kind is not None
            values = jnp.ones((count, 1)) if is_chain else factors[member.group][np.array(member.coefficients)].T
            columns.append(jnp.zeros((count, len(self.members), member.reads)).at[:, latent].set(values))
        return jnp.concatenate(columns, axis=2)

    def on_states(self, precision: Float[Array, "n H H"]) -> Float[Array, "n b s s"]:
        """Precisions of the heads as those of the blocks' states."""
        on_blocks = jnp.zeros((len(precision), len(self.blocks), self.size, self.size))
        for h, k in self.pairs:
            (block, one), (_, other) = self.heads[h], self.heads[k]
            on_blocks = on_blocks.at[:, block, one, other].set(precision[:, h, k])
            on_blocks = on_blocks.at[:, block, other, one].set(precision[:, h, k])
        return on_blocks

    def directions(self, A: Float[Array, "n P H"], is_paired: bool) -> Float[Array, "n S H2"]:
        """Predictors A x and their products as combinations of ``joint_heads``."""
        rows, columns = np.triu_indices(A.shape[1]) if is_paired else 2 * (np.arange(A.shape[1]),)
        h, k = np.array(self.pairs).T
        one, other = A[:, rows], A[:, columns]
        products = jnp.where(h == k, 0.5, 1.0) * (one[..., h] * other[..., k] + one[..., k] * other[..., h])
        above = jnp.pad(A, ((0, 0), (0, 0), (0, len(h))))
        return jnp.concatenate([above, jnp.pad(products, ((0, 0), (0, 0), (A.shape[2], 0)))], axis=1)


class ChainResponse(Module):
    """The corrected moments of the latents, at the data and at new inputs.

    ``rows`` has the rows that respond: those of the data, or their distinct ones if no site couples latents. ``order``
    sorts them. ``shifted`` has the mean's shift as its mean.
    """

    posterior: Posterior
    order: Int[Array, " m"]
    conditioned: Given
    joint: Joint
    shifted: Posterior | None
    layout: Layout = eqx.field(static=True)

    @property
    def rows(self) -> PriorCollection:
        """The prior at the rows that respond."""
        return _responding(self.posterior)

    def moments(self) -> Marginals:
        """The shift of the mean, and the covariance of each datum's latents."""
        count = len(self.layout.heads)
        sorted_rows = self.joint.marginals()[1][:, :count, :count]
        V = self._of_latents(jnp.zeros_like(sorted_rows).at[self.order].set(sorted_rows), factors_of_effects(self.rows))
        V = V if self.posterior.is_coupled else self.posterior.prior.spread(V)
        residual = self.posterior.prior.residual_variances()
        V = V if residual is None else V + jax.vmap(jnp.diag)(residual)
        return jnp.zeros(V.shape[:2]) if self.shifted is None else self.shifted.moments()[0], V

    def predict(self, X_new: Float[Array, "m d"]) -> Marginals:
        """The same at new inputs."""
        gaps, states = gaps_of_rows(self.rows, self.order, X_new), self.conditioned.covariance
        nowhere, last = jnp.zeros(len(X_new), dtype=bool), len(states) - 1
        before, after = jnp.maximum(gaps.before, 0), jnp.minimum(gaps.after, last)
        through = self.layout.steps(gaps.transition, gaps.noise, gaps.before < 0)
        onward = self.layout.steps(gaps.onward, gaps.onward_noise, nowhere)
        of_onward = _roots(onward.noise)
        ahead = jnp.where((gaps.after <= last)[:, None, None, None], self.conditioned.informed[after], 0.0)
        informed = one_step_back(onward.transition, of_onward, ahead)
        F, Q = joint_steps(through, steps_given(through, _roots(through.noise), informed), states[before])
        # The covariance before matters to the noise of a step alone, which is not read.
        onward = joint_steps(onward, steps_given(onward, of_onward, ahead), states[before])
        chains, forward = self.joint.chains, self.joint.forward
        P = chains.forward(F, forward.covariance[before])
        P = chains.forward(F, jnp.swapaxes(P, 1, 2)) + chains.block_diagonal(Q)
        V = self.joint.after(forward.mean[before], P, onward.transition, gaps.after)[1]
        effects = {index: group.factor_at(X_new) for index, group in effect_groups(self.rows).items()}
        count = len(self.layout.heads)
        V = self._of_latents(V[:, :count, :count], {index: A for index, (A, _) in effects.items()})
        for latent, member in enumerate(self.layout.members):
            if member.kind is None:
                A, residual = effects[member.group]
                # Coefficients that the data do not depend on have their prior variance, 1.
                unknown = np.setdiff1d(np.arange(len(A)), member.coefficients)
                V = V.at[:, latent, latent].add(residual + jnp.sum(A[unknown] ** 2, axis=0))
        return jnp.zeros(V.shape[:2]) if self.shifted is None else self.shifted.marginals_at(X_new)[0], V

    def negative(self) -> Int[Array, " m"]:
        """Row by row that responds, what sums to the number of negative eigenvalues of the precision of all (x, y).

        A factor's direction of precision w that turns the sign of the determinant adds one if w < 0, or takes one.
        """
        turns = jnp.where(self.joint.forward.gained < -1.0, -jnp.sign(self.joint.sites.precision), 0.0)
        counts = jnp.sum(turns, axis=1).astype(int)
        return jnp.zeros_like(counts).at[self.order].set(counts)

    def _of_latents(self, V: Float[Array, "n H H"], factors: Mapping[int, Array]) -> Float[Array, "n L L"]:
        if not factors:
            return V
        reads = self.layout.reading(factors, len(V))
        return reads @ V @ jnp.swapaxes(reads, 1, 2)


def respond(posterior: Posterior, factors: Factors, layout: Layout) -> ChainResponse:
    """The linear response of a posterior to factors at the rows of its data."""
    rows, precision, weights = _responding(posterior), factors.precision, posterior.sites.precision
    if not posterior.is_coupled:
        # Rows with equal inputs respond together, by the sum of their factors.
        precision, weights = posterior.prior.total(precision), jax.vmap(jnp.diag)(posterior.prior.total(weights))
    order = jnp.argsort(times_of_rows(rows))
    chains = chains_of_rows(rows, order)
    steps = layout.steps(chains.transition, chains.noise, jnp.arange(len(order)) == 0)
    reads = layout.reading(factors_of_effects(rows), len(order))
    conditioned = given_sites(
        steps, _roots(steps.noise), layout.on_states(jnp.swapaxes(reads, 1, 2) @ weights @ reads)[order]
    )
    before = jnp.concatenate([jnp.zeros_like(conditioned.covariance[:1]), conditioned.covariance[:-1]])
    both = joint_steps(steps, Chain(*conditioned[:2]), before)
    of_blocks = Chains(both.transition, both.noise, tuple(range(len(layout.blocks))), layout.joint_heads)
    A = reads if factors.Phi is None else factors.Phi @ reads
    w, axes = jnp.linalg.eigh(precision)
    # Negative precisions last: no covariance on the way fails unless the last one does.
    w, axes = w[:, ::-1], jnp.swapaxes(axes, 1, 2)[:, ::-1]
    directions = axes @ layout.directions(A, precision.shape[1] > 2 * A.shape[1])
    nothing = jnp.zeros_like(w)
    sites = LineSites(directions, jnp.zeros((*w.shape, 0)), nothing, w)
    joint = condition(of_blocks, jax.tree.map(lambda part: part[order], sites))
    return ChainResponse(posterior, order, conditioned, joint, _shifted(posterior, factors), layout)


def response_entries(posterior: Posterior) -> int:
    """The entries of a matrix of linear response at all rows. Raises ValueError as ``Layout.of``."""
    layout = Layout.of(posterior)
    return _responding(posterior).num_rows * (len(layout.blocks) * layout.joint_size) ** 2


def _responding(posterior: Posterior) -> PriorCollection:
    return posterior.prior if posterior.is_coupled else posterior.prior.distinct


def _shifted(posterior: Posterior, factors: Factors) -> Posterior | None:
    """The posterior of deviations from the mean, with the slope as the potential of the one predictor."""
    if factors.slope is None:
        return None
    prior = posterior.prior
    groups = tuple(group.with_mean(jnp.zeros_like(group.mean)) for group in prior.groups)
    centred, slope = PriorCollection(groups, prior.copies), factors.slope[:, None]
    if not posterior.is_coupled:
        return centred.condition(Sites(slope, posterior.sites.precision))
    potential = jnp.einsum("ipl,ip->il", factors.Phi, slope)
    return condition_jointly(centred, Sites(potential, posterior.sites.precision), ())


def _nonzero(factor: Float[Array, "r n"]) -> tuple[int, ...]:
    """The rows of a factor that are not zero; all within compiled code."""
    if is_traced():
        return tuple(range(len(factor)))
    return tuple(np.flatnonzero(np.any(np.asarray(factor) != 0.0, axis=1)).tolist()) or (0,)


def _roots(matrices: Float[Array, "n b s s"]) -> Float[Array, "n b s s"]:
    return roots(matrices.reshape(-1, *matrices.shape[-2:])).reshape(matrices.shape)
