"""Posteriors of coupled Markov processes, linear predictors, and linear response."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pgmodels.priors.base import LatentPrior, RandomKey, Sites, no_factor
from pgmodels.priors.block_posterior import condition_blocks
from pgmodels.priors.chain import (
    Chain,
    Gaps,
    Given,
    given_sites,
    information,
    joint_steps,
    one_step_back,
    one_step_earlier,
    place_of_product,
    roots_of,
    stack,
    stack_gaps,
    steps_given,
)
from pgmodels.priors.collection import (
    DependentPosterior,
    Marginals,
    Posterior,
    PriorCollection,
    has_chain,
    require_coupling,
    residual_trace,
)
from pgmodels.priors.dense import FactoredPrior
from pgmodels.priors.joint_chain import Chains, Drawn, Joint, LineSites, by_sign, condition, negative_directions
from pgmodels.priors.linalg import chunks
from pgmodels.priors.markov import MarkovPrior, chain_at, gaps_at, is_chain
from pgmodels.runtime.jit import is_traced
from pgmodels.runtime.precision import Module


def chain_groups(prior: PriorCollection) -> list[MarkovPrior]:
    """Return the groups that are chains."""
    return [group for group in prior.groups if is_chain(group)]


def effect_groups(prior: PriorCollection) -> dict[int, FactoredPrior]:
    """Return the groups of linear effects, which have factors and are not chains, by their number."""
    return {index: cast("FactoredPrior", group) for index, group in enumerate(prior.groups) if not group.is_chain}


def factors_of_effects(prior: PriorCollection) -> dict[int, Float[Array, "r n"]]:
    """Return the factors of the effects at the rows of the data, by group."""
    return {index: prior.copies.at_rows(group.factor, index) for index, group in effect_groups(prior).items()}


def chained_latents(prior: PriorCollection) -> np.ndarray:
    """Return the latents that are chains."""
    return np.flatnonzero(prior.by_latent([group.is_chain for group in prior.groups]))


def _leader(prior: PriorCollection) -> tuple[int, MarkovPrior]:
    """Return the number of the non-constant chain with the most inputs, and the chain; constants share one input."""
    chains = [(index, group) for index, group in enumerate(prior.groups) if is_chain(group)]
    return max(chains, key=lambda pair: (bool(pair[1].kernel.reads(pair[1].X.shape[1])), len(pair[1].X)))


def chain_column(prior: PriorCollection) -> int:
    """Return the column of X that the chains read."""
    return _leader(prior)[1].column


def check_columns(prior: PriorCollection) -> None:
    """Raise ValueError if chains read different columns."""
    columns = {column for group in chain_groups(prior) for column in group.kernel.reads(group.X.shape[1])}
    if len(columns) > 1:
        raise ValueError(
            "GPs with form=pgm.Markov() that a formula combines must read one column, but these read columns "
            f"{', '.join(map(str, sorted(columns)))}: keep the form for one column, and give the other GPs another "
            "form, such as pgm.Inducing(100)."
        )


def places_of(prior: PriorCollection, index: int) -> Int[Array, " n"]:
    """Return the index of a group's input at each row of the data."""
    return prior.copies.at_rows(jnp.arange(len(prior.groups[index].X)), index)


def times_of_rows(prior: PriorCollection) -> Float[Array, " n"]:
    """Return the chains' column at the rows of the data."""
    index, group = _leader(prior)
    return group.X[places_of(prior, index), group.column]


def chains_of_rows(prior: PriorCollection, order: Int[Array, " n"]) -> Chains:
    """Return the groups' chains at the sorted rows; a chain stands still if rows share an input."""
    by_group = []
    for index, group in enumerate(prior.groups):
        if is_chain(group):
            place = jnp.argsort(group.order)[places_of(prior, index)[order]]
            is_new = jnp.diff(place, prepend=-1)[:, None, None] != 0
            F, Q = (part[place] for part in group.chain)
            by_group.append(Chain(jnp.where(is_new, F, jnp.eye(group.dimension)), jnp.where(is_new, Q, 0.0)))
    return _side_by_side(prior, by_group)


def chains_at(prior: PriorCollection, times: Float[Array, " m"]) -> Chains:
    """Return the chains at sorted times."""
    return _side_by_side(prior, [chain_at(group.kernel.to_state_space(), times) for group in chain_groups(prior)])


def _side_by_side(prior: PriorCollection, by_group: list[Chain]) -> Chains:
    steps = stack(by_group)
    kinds = tuple(kind for kind, group in enumerate(chain_groups(prior)) for _ in range(group.size))
    d = steps.noise.shape[-1]
    return Chains(*steps, kinds, tuple(range(0, len(kinds) * d, d)))


def gaps_of_rows(prior: PriorCollection, order: Int[Array, " n"], X_new: Float[Array, "m _"]) -> Gaps:
    """Return the place of new inputs among the sorted rows, and the steps of the chains of each kernel."""
    times, t = times_of_rows(prior)[order], X_new[:, chain_column(prior)]
    return stack_gaps([gaps_at(group.kernel.to_state_space(), times, t) for group in chain_groups(prior)])


# For each block of latents, Markov chains and linear effects are one chain along their column.
#
# Sites do not couple different blocks: all latents are one block, or each latent is a block. A block's state has the
# states of its chains and the coefficients of its effects, which stand still.


class Member(NamedTuple):
    """A latent in the state of its block: its group, and its number of entries.

    A chain, of the kernel ``kind``, has its first entry observed. Effects have all entries observed: the
    ``coefficients`` that the data depend on.
    """

    group: int
    size: int
    kind: int | None = None
    coefficients: tuple[int, ...] = ()

    @property
    def num_observed(self) -> int:
        """The number of observed entries."""
        return max(1, len(self.coefficients))


class Layout(NamedTuple):
    """The layout of the latents: one block if they are coupled, else one block for each."""

    members: tuple[Member, ...]
    is_coupled: bool

    @classmethod
    def of(cls, prior: PriorCollection, is_coupled: bool) -> "Layout":
        """Return the layout of a prior's posterior; outside of ``jit``, without coefficients of padding.

        Raises ValueError if a group is neither a chain nor has a factor, or chains read different columns.
        """
        require_coupling(prior)
        check_columns(prior)
        d, kinds, members = max(group.dimension for group in chain_groups(prior)), itertools.count(), []
        factors = factors_of_effects(prior)
        for index, group in enumerate(prior.groups):
            if group.is_chain:
                member = Member(index, d, kind=next(kinds))
            else:
                factor = factors[index]
                coefficients = tuple(range(len(factor)))
                if not is_traced():
                    coefficients = tuple(np.flatnonzero(np.any(np.asarray(factor) != 0.0, axis=1)).tolist()) or (0,)
                member = Member(index, len(coefficients), coefficients=coefficients)
            members += [member] * group.size
        return cls(tuple(members), is_coupled)

    @property
    def num_blocks(self) -> int:
        """The number of blocks."""
        return 1 if self.is_coupled else len(self.members)

    @property
    def size(self) -> int:
        """The number of entries of a block's state x."""
        sizes = [member.size for member in self.members]
        return sum(sizes) if self.is_coupled else max(sizes)

    @property
    def joint_size(self) -> int:
        """The number of entries of (x, y)."""
        return self.size + self.size * (self.size + 1) // 2

    @property
    def places(self) -> list[tuple[int, int]]:
        """The block of each latent, and its first entry there."""
        if not self.is_coupled:
            return [(block, 0) for block in range(len(self.members))]
        ends = itertools.accumulate(member.size for member in self.members)
        return [(0, end - member.size) for end, member in zip(ends, self.members, strict=True)]

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

    def steps(self, chain: Chain, starts: Bool[Array, " n"]) -> Chain:
        """Return the blocks' steps (n, b, s, s) from the kernels' (n, g, d, d); effects are drawn if ``starts``."""
        F = Q = jnp.zeros((len(starts), self.num_blocks, self.size, self.size))
        for (block, start), member in zip(self.places, self.members, strict=True):
            entries = slice(start, start + member.size)
            if member.kind is None:
                drawn = starts[:, None, None] * jnp.eye(member.size)
                move, add = jnp.eye(member.size) - drawn, drawn
            else:
                move, add = (part[:, member.kind] for part in chain)
            F, Q = F.at[:, block, entries, entries].set(move), Q.at[:, block, entries, entries].set(add)
        return Chain(F, Q)

    def observation(self, factors: Mapping[int, Float[Array, "r n"]], count: int) -> Float[Array, "n L H"]:
        """Return the observation matrices of the latents, by the ``factors`` of each group of effects."""
        columns = []
        for latent, member in enumerate(self.members):
            is_chain = member.kind is not None
            values = jnp.ones((count, 1)) if is_chain else factors[member.group][np.array(member.coefficients)].T
            columns.append(jnp.zeros((count, len(self.members), member.num_observed)).at[:, latent].set(values))
        return jnp.concatenate(columns, axis=2)

    def on_states(self, precision: Float[Array, "n H H"]) -> Float[Array, "n b s s"]:
        """Return precisions of the observed entries as precisions of the blocks' states."""
        on_blocks = jnp.zeros((len(precision), self.num_blocks, self.size, self.size))
        (blocks, entries), (h, k) = np.array(self.observed).T, np.array(self.pairs).T
        for one, other in ((h, k), (k, h)):
            on_blocks = on_blocks.at[:, blocks[h], entries[one], entries[other]].set(precision[:, h, k])
        return on_blocks

    def directions(self, A: Float[Array, "n P H"], is_paired: bool) -> Float[Array, "n S H2"]:
        """Return the observation matrices of predictors A x and their products, of the entries ``jointly_observed``."""
        rows, columns = np.triu_indices(A.shape[1]) if is_paired else 2 * (np.arange(A.shape[1]),)
        h, k = np.array(self.pairs).T
        one, other = A[:, rows], A[:, columns]
        products = jnp.where(h == k, 0.5, 1.0) * (one[..., h] * other[..., k] + one[..., k] * other[..., h])
        above = jnp.pad(A, ((0, 0), (0, 0), (0, len(h))))
        return jnp.concatenate([above, jnp.pad(products, ((0, 0), (0, 0), (A.shape[2], 0)))], axis=1)

    def latents(
        self, states: Float[Array, "*batch b s"], observation: Float[Array, "*rows L H"]
    ) -> Float[Array, "*batch L"]:
        """Return the latents' deviations from their means, for states in rows with these observation matrices."""
        blocks, entries = np.array(self.observed).T
        return jnp.sum(observation * states[..., None, blocks, entries], axis=-1)


class Moves(NamedTuple):
    """By row, F and roots of Q of the blocks' deviations from their means given sites, and observation matrices."""

    transition: Float[Array, "n b s s"]
    root: Float[Array, "n b s s"]
    observation: Float[Array, "n L H"]


def moves_along(
    posterior: Posterior, row_weights: Float[Array, " n"], layout: Layout
) -> tuple[Int[Array, " n"], Moves]:
    """Return the order of the rows along the chains' column, padding last, and the latents' moves in that order."""
    prior, W = posterior.prior, posterior.sites.precision
    times = times_of_rows(prior)
    # Padding may have the time of any row.
    times = jnp.where(row_weights > 0, times, jnp.max(times))
    order = jnp.argsort(times)
    # Between rows with equal times, steps have length 0.
    steps = layout.steps(chains_at(prior, times[order]).steps, jnp.arange(len(order)) == 0)
    observation = layout.observation(factors_of_effects(prior), len(order))[order]
    L, precision = roots_of(steps.noise), (W if posterior.is_coupled else jax.vmap(jnp.diag)(W))[order]
    informed = information(steps, L, layout.on_states(jnp.swapaxes(observation, 1, 2) @ precision @ observation))
    transition, noise = steps_given(steps, L, informed)
    return order, Moves(transition, roots_of(noise), observation)


# Posteriors of latents that the sites couple, of which some are Markov chains of one column: O(n) time.
#
# All other latents have factors A, f = mean + A^T v: they are linear effects v next to the chains.


class ChainPosterior(DependentPosterior):
    """N(f; mean, K) times sites that couple chains with each other and with linear effects, normalised.

    ``order`` (n,) sorts the rows by the chains' column, and ``joint`` has the sorted rows. ``sites`` are pulled to the
    latents, h (n, L) and W (n, L, L).
    """

    prior: PriorCollection
    sites: Sites
    order: Int[Array, " n"]
    joint: Joint
    log_evidence: Float[Array, ""]

    def marginals(self) -> Marginals:
        mean, covariance = self.joint.marginals()
        mean, covariance = (jnp.zeros_like(part).at[self.order].set(part) for part in (mean, covariance))
        mean, V = _combined(self.prior, mean, covariance, factors_of_effects(self.prior), self.joint.columns)
        return mean, self.prior.with_residuals(V)

    def log_normalizer(self) -> Float[Array, ""]:
        return self.log_evidence

    def divergence(self, covariance: Float[Array, "n L L"]) -> Float[Array, ""]:
        W = self.sites.precision
        return self.joint.divergence() - 0.5 * (jnp.sum(W * covariance) - residual_trace(self.prior, W))

    def tempered(self, share: Float[Array, ""] | float) -> "ChainPosterior":
        h, W = self.sites
        pull = jnp.einsum("ilk,ik->il", W, self.moments()[0])
        return condition_chains(self.prior, *decoupled(Sites(h - (1.0 - share) * pull, share * W)))

    def marginals_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m L"], Float[Array, "m L L"]]:
        mean, covariance = self.joint.marginals_at(gaps_of_rows(self.prior, self.order, X_new))
        pairs = {index: group.factor_at(X_new) for index, group in effect_groups(self.prior).items()}
        factors = {index: A for index, (A, _) in pairs.items()}
        mean, V = _combined(self.prior, mean, covariance, factors, self.joint.columns)
        for index, (_, residual) in pairs.items():
            latents = np.arange(len(self.prior.means()))[self.prior.slices()[index]]
            V = V.at[:, latents, latents].add(residual[:, None])
        return mean, V

    def mean_and_deviation(self, key: RandomKey) -> tuple[Any, Any]:
        mean, deviation = self._draw(self.joint, key)
        return self._coordinates(*mean), self._coordinates(*deviation)

    extends = True

    def drawn_at(self, X_new: Float[Array, "m d"], keys: RandomKey) -> Float[Array, "draws m L"]:
        """Return joint draws at new inputs, one for each key, by chains through the data and the new inputs."""
        n, t = len(self.order), X_new[:, chain_column(self.prior)]
        times = jnp.concatenate([times_of_rows(self.prior), t])
        order = jnp.argsort(times)
        chains = chains_at(self.prior, times[order])

        def with_new(part: Array) -> Array:
            # In the order of the data, followed by the new inputs.
            return jnp.zeros((n + len(t), *part.shape[1:])).at[self.order].set(part)[order]

        sites = jax.tree.map(with_new, self.joint.sites)
        joint, places = condition(chains, sites), jnp.argsort(order)[n:]
        effects = effect_groups(self.prior)
        factors = {index: group.factor_at(X_new)[0] for index, group in effects.items()}
        residuals = {index: group.residual_root(X_new) for index, group in effects.items()}

        def one(key: RandomKey) -> Array:
            of_joint, of_residual = jax.random.split(key)
            v, states = map(jnp.add, *self._draw(joint, of_joint))
            states = chains.read(states[places][..., None])
            f = self.prior.means() + _of_groups(self.prior, states, factors, v[:, None])[..., 0]
            noise = jax.random.normal(of_residual, f.shape)
            for index, root in residuals.items():
                part = self.prior.slices()[index]
                f = f.at[:, part].add(root @ noise[:, part])
            return f

        # The draws of a batch share one scan.
        return jax.lax.map(one, keys, batch_size=16)

    def covariance(self) -> Float[Array, "L n L n"]:
        raise no_factor(chain_groups(self.prior)[0])

    def cross_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "L m L n"]:
        raise no_factor(chain_groups(self.prior)[0])

    def covariance_at(self, X_new: Float[Array, "m d"]) -> Float[Array, "L m L m"]:
        raise no_factor(chain_groups(self.prior)[0])

    def coupled_latents(self) -> list[list[int]]:
        return [list(range(self.sites.potential.shape[1]))]

    def roots_and_centres(self) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        raise no_factor(chain_groups(self.prior)[0])

    def _draw(self, joint: Joint, key: RandomKey) -> tuple[Drawn, Drawn]:
        """Return the means of effects and states, and draws of their deviations."""
        shapes = joint.centre.shape, joint.forward.mean.shape[:2], joint.sites.potential.shape
        effects, steps, sites = map(jax.random.normal, jax.random.split(key, 3), shapes)
        roots = roots_of(joint.chains.noise)
        may_be_signed = any(group.noise_roots is None for group in chain_groups(self.prior))

        def draw(is_signed: bool) -> tuple[Drawn, Drawn]:
            return joint.mean_and_deviation(roots, effects, steps, sites, is_signed)

        return by_sign(draw, joint.sites.precision, may_be_signed)

    def _coordinates(self, v: Float[Array, " r"], states: Float[Array, "n ld"]) -> tuple[Array, ...]:
        """Return the coordinates by group of effects v and sorted states."""
        states, coordinates = states.reshape(len(states), -1, self.joint.chains.dimension), []
        for index, (group, part) in enumerate(_by_group(self.prior, states, v)):
            if is_chain(group):
                of_group, places = part[..., : group.dimension], places_of(self.prior, index)[self.order]
                at_inputs = jnp.zeros((len(group.X), *of_group.shape[1:])).at[places].set(of_group)
                part = jnp.swapaxes(at_inputs, 1, 2).reshape(group.rank, group.size).T
            coordinates.append(part.T)
        return tuple(coordinates)


def condition_chains(prior: PriorCollection, Phi: Float[Array, "n K L"], sites: Sites) -> ChainPosterior:
    """Return the posterior given sites (n, K) on Phi f; ValueError if chains' columns differ or factors are missing."""
    require_coupling(prior)
    check_columns(prior)
    (h, w), means = sites, prior.means()
    order = jnp.argsort(times_of_rows(prior))
    chained, factors = chained_latents(prior), factors_of_effects(prior)
    slopes, latents = [jnp.zeros((*h.shape, 1))], np.arange(len(means))
    for index, A in factors.items():
        slopes += [Phi[:, :, latent, None] * A.T[:, None] for latent in latents[prior.slices()[index]]]
    shift = Phi @ means
    lines = LineSites(Phi[:, :, chained], jnp.concatenate(slopes, axis=2), h - w * shift, w)
    lines = LineSites(*(part[order] for part in lines))
    joint = condition(chains_of_rows(prior, order), lines)
    pulled = pull_sites(Phi, sites)
    constant = jnp.sum(h * shift - 0.5 * w * shift**2) - 0.5 * residual_trace(prior, pulled.precision)
    return ChainPosterior(prior, pulled, order, joint, joint.log_normalizer() + constant)


def decoupled(sites: Sites) -> tuple[Float[Array, "n L L"], Sites]:
    """Return predictors Phi f and independent sites on them, equal to sites with precisions (n, L, L) of any sign."""
    h, W = sites.as_coupled()
    w, axes = jnp.linalg.eigh(W)
    # Eigenvalues below this share of a row's largest eigenvalue are rounding errors of zero.
    w = jnp.where(jnp.abs(w) > 1e-14 * jnp.max(jnp.abs(w), axis=1, keepdims=True), w, 0.0)
    return jnp.swapaxes(axes, 1, 2), Sites(jnp.einsum("nlp,nl->np", axes, h), w)


def _by_group(
    prior: PriorCollection, chained: Float[Array, "m l *c"], effects: Float[Array, "r *e"]
) -> Iterator[tuple[LatentPrior, Array]]:
    """Yield each group, with its part of the chains, or of the effects by latent (size, rank, ...)."""
    chain = effect = 0
    for group in prior.groups:
        if group.is_chain:
            yield group, chained[:, chain : chain + group.size]
            chain += group.size
        else:
            count = group.size * group.rank
            yield group, effects[effect : effect + count].reshape(group.size, group.rank, *effects.shape[1:])
            effect += count


def _of_groups(
    prior: PriorCollection, chained: Float[Array, "m l c"], factors: dict[int, Array], effects: Float[Array, "r c"]
) -> Float[Array, "m L c"]:
    """Return columns of all latents, minus their mean, from columns of chains and effects; ``factors`` are by group."""
    parts = enumerate(_by_group(prior, chained, effects))
    columns = [part if i not in factors else jnp.einsum("rm,lrc->mlc", factors[i], part) for i, (_, part) in parts]
    return jnp.concatenate(columns, axis=1)


def _combined(
    prior: PriorCollection, mean: Array, covariance: Array, factors: dict[int, Array], columns: Array
) -> Marginals:
    """Return the mean and covariance of all latents from the chains' (m, l, c), (m, l, l): see ``Joint.marginals``."""
    chained, size = chained_latents(prior), len(prior.means())

    def of_rows(mean: Array, covariance: Array, *by_row: Array) -> Marginals:
        # The latents are columns times (1, u) with u standard normal.
        f = _of_groups(prior, mean, dict(zip(factors, (A.T for A in by_row), strict=True)), columns[1:])
        V = jnp.einsum("mlc,mkc->mlk", f[:, :, 1:], f[:, :, 1:])
        return f[:, :, 0], V.at[:, chained[:, None], chained].add(covariance)

    rows = mean, covariance, *(A.T for A in factors.values())
    mapped = jax.lax.map(lambda chunk: of_rows(*chunk), chunks(size * len(columns), *rows))
    centre, V = (part.reshape(-1, *part.shape[2:])[: len(mean)] for part in mapped)
    return prior.means() + centre, V


def push_values(Phi: Float[Array, "n P L"], f: Float[Array, "*batch n L"]) -> Float[Array, "*batch n P"]:
    """Return the predictors of latents."""
    return jnp.einsum("ipl,...il->...ip", Phi, f)


def push_moments(
    Phi: Float[Array, "n P L"], mean: Float[Array, "n L"], covariance: Float[Array, "n L L"]
) -> tuple[Float[Array, "n P"], Float[Array, "n P"]]:
    """Return the mean and the variance of the predictors from the latents of each datum."""
    return push_values(Phi, mean), jnp.einsum("ipl,ilk,ipk->ip", Phi, covariance, Phi)


def push_covariance(Phi: Float[Array, "n P L"], covariance: Float[Array, "n L L"]) -> Float[Array, "n P P"]:
    """Return the covariance of the predictors of each datum from the covariance of its latents."""
    return jnp.einsum("ipl,ilk,iqk->ipq", Phi, covariance, Phi)


def condition_predictors(
    prior: PriorCollection, Phi: Float[Array, "n P L"], sites: Sites, blocks: tuple[tuple[int, ...], ...]
) -> DependentPosterior:
    """Return the posterior of the latents given sites on predictors; ``blocks`` are the latents that sites couple."""
    if has_chain(prior) and not sites.coupled:
        return condition_chains(prior, Phi, sites)
    return condition_jointly(prior, pull_sites(Phi, sites), blocks)


def condition_jointly(prior: PriorCollection, sites: Sites, blocks: tuple[tuple[int, ...], ...]) -> DependentPosterior:
    """Return the posterior given sites (n, L), (n, L, L) on the latents."""
    return condition_chains(prior, *decoupled(sites)) if has_chain(prior) else condition_blocks(prior, sites, blocks)


def pull_sites(Phi: Float[Array, "n P L"], sites: Sites) -> Sites:
    """Return sites on predictors as coupled sites on the latents."""
    potential = jnp.einsum("ipl,ip->il", Phi, sites.potential)
    if sites.coupled:
        return Sites(potential, jnp.einsum("ipl,ipq,iqk->ilk", Phi, sites.precision, Phi))
    return Sites(potential, jnp.einsum("ipl,ip,ipk->ilk", Phi, sites.precision, Phi))


# Linear response in O(n), for latents that are Markov chains of one column, and linear effects next to them.
#
# Corrected covariances are covariances of each block's chain of states x and their products y, given factors of the
# predictors and their products: see pgmodels.priors.chain_posterior and pgmodels.priors.chain.


class Factors(NamedTuple):
    """The responding factors of each row, on predictors z = Phi f and their products u, with precisions (n, S, S).

    A precision is minus the Hessian of the objective in the moments of (z, u). u are the squares of the predictors. If
    S is larger than twice their number, u are the products of all pairs in the order of an upper triangle. ``slope`` is
    the gradient in the mean of the one predictor that shifts the mean; None if means do not move. ``Phi`` is None if
    predictors are latents.
    """

    precision: Float[Array, "n S S"]
    slope: Float[Array, " n"] | None
    Phi: Float[Array, "n P L"] | None


class ChainResponse(Module):
    """The corrected moments of the latents, at the data and at new inputs.

    ``rows`` has the responding rows: the rows of the data, or their distinct rows if no site couples latents.
    ``order`` sorts them. The mean of ``shifted`` is the shift of the mean.
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
        """Return the shift of the mean, and the covariance of each datum's latents."""
        count = len(self.layout.observed)
        sorted_rows = self.joint.marginals()[1][:, :count, :count]
        V = self._of_latents(jnp.zeros_like(sorted_rows).at[self.order].set(sorted_rows), factors_of_effects(self.rows))
        V = V if self.posterior.is_coupled else self.posterior.prior.copies.spread(V)
        V = self.posterior.prior.with_residuals(V)
        return jnp.zeros(V.shape[:2]) if self.shifted is None else self.shifted.moments()[0], V

    def predict(self, X_new: Float[Array, "m d"]) -> Marginals:
        """Return the shift of the mean, and the covariance of the latents, at new inputs."""
        gaps, states = gaps_of_rows(self.rows, self.order, X_new), self.conditioned.covariance
        nowhere, last = jnp.zeros(len(X_new), dtype=bool), len(states) - 1
        before, after = jnp.maximum(gaps.before, 0), jnp.minimum(gaps.after, last)
        to, onward = self.layout.steps(gaps.to, gaps.before < 0), self.layout.steps(gaps.onward, nowhere)
        of_onward = roots_of(onward.noise)
        ahead = jnp.where((gaps.after <= last)[:, None, None, None], self.conditioned.informed[after], 0.0)
        informed = one_step_back(onward.transition, of_onward, ahead)
        to = joint_steps(to, steps_given(to, roots_of(to.noise), informed), states[before])
        # The covariance before only enters the noise of a step, which is not read.
        onward = joint_steps(onward, steps_given(onward, of_onward, ahead), states[before])
        V = self.joint.marginals_at(gaps._replace(to=to, onward=onward))[1]
        effects = {index: group.factor_at(X_new) for index, group in effect_groups(self.rows).items()}
        count = len(self.layout.observed)
        V = self._of_latents(V[:, :count, :count], {index: A for index, (A, _) in effects.items()})
        for latent, member in enumerate(self.layout.members):
            if member.kind is None:
                A, residual = effects[member.group]
                # Coefficients that the data do not depend on have their prior variance, 1.
                unknown = np.setdiff1d(np.arange(len(A)), member.coefficients)
                V = V.at[:, latent, latent].add(residual + jnp.sum(A[unknown] ** 2, axis=0))
        return jnp.zeros(V.shape[:2]) if self.shifted is None else self.shifted.marginals_at(X_new)[0], V

    def negative(self) -> Int[Array, " m"]:
        """Return terms of the responding rows, whose sum counts negative eigenvalues of the precision of all (x, y)."""
        directions = negative_directions(self.joint.forward.gained, self.joint.sites.precision)
        counts = jnp.sum(directions, axis=1).astype(int)
        return jnp.zeros_like(counts).at[self.order].set(counts)

    def _of_latents(self, V: Float[Array, "n H H"], factors: Mapping[int, Array]) -> Float[Array, "n L L"]:
        if not factors:
            return V
        observation = self.layout.observation(factors, len(V))
        return observation @ V @ jnp.swapaxes(observation, 1, 2)


def respond(posterior: Posterior, factors: Factors, layout: Layout) -> ChainResponse:
    """Return the linear response of a posterior to factors at the rows of its data."""
    rows, precision, weights = _responding(posterior), factors.precision, posterior.sites.precision
    if not posterior.is_coupled:
        # Rows with equal inputs respond together: their factors are summed.
        precision, weights = posterior.prior.total(precision), jax.vmap(jnp.diag)(posterior.prior.total(weights))
    order = jnp.argsort(times_of_rows(rows))
    steps = layout.steps(chains_of_rows(rows, order).steps, jnp.arange(len(order)) == 0)
    observation = layout.observation(factors_of_effects(rows), len(order))
    of_sites = layout.on_states(jnp.swapaxes(observation, 1, 2) @ weights @ observation)[order]
    conditioned = given_sites(steps, roots_of(steps.noise), of_sites)
    both = joint_steps(steps, conditioned.steps, one_step_earlier(conditioned.covariance))
    of_blocks = Chains(*both, tuple(range(layout.num_blocks)), layout.jointly_observed)
    A = observation if factors.Phi is None else factors.Phi @ observation
    w, axes = jnp.linalg.eigh(precision)
    # Negative precisions come last: no earlier covariance fails unless the last one fails.
    w, axes = w[:, ::-1], jnp.swapaxes(axes, 1, 2)[:, ::-1]
    directions = axes @ layout.directions(A, precision.shape[1] > 2 * A.shape[1])
    nothing = jnp.zeros_like(w)
    sites = LineSites(directions, nothing[..., None], nothing, w)
    joint = condition(of_blocks, jax.tree.map(lambda part: part[order], sites))
    return ChainResponse(posterior, order, conditioned, joint, _shifted(posterior, factors), layout)


def response_entries(posterior: Posterior) -> int:
    """Return the number of entries in a matrix of linear response at all rows. Raise ValueError as ``Layout.of``."""
    layout = Layout.of(posterior.prior, posterior.is_coupled)
    return _responding(posterior).num_rows * (layout.num_blocks * layout.joint_size) ** 2


def _responding(posterior: Posterior) -> PriorCollection:
    return posterior.prior if posterior.is_coupled else posterior.prior.distinct


def _shifted(posterior: Posterior, factors: Factors) -> Posterior | None:
    """Return the posterior of deviations from the mean, with the slope as the potential of the one predictor."""
    if factors.slope is None:
        return None
    prior = posterior.prior
    groups = tuple(group.replaced(mean=jnp.zeros_like(group.mean)) for group in prior.groups)
    centred, slope = PriorCollection(groups, prior.copies), factors.slope[:, None]
    if not posterior.is_coupled:
        return centred.condition(Sites(slope, posterior.sites.precision))
    potential = jnp.einsum("ipl,ip->il", factors.Phi, slope)
    return condition_jointly(centred, Sites(potential, posterior.sites.precision), ())
