"""The Markov chains of a prior at the rows of the data, sorted by their column, and the linear effects beside them."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.factored import FactoredPrior
from pgmodels.priors.markov.joint import Chains
from pgmodels.priors.markov.prior import MarkovPrior, chain_at, gaps_at


def chain_groups(prior: PriorCollection) -> list[MarkovPrior]:
    """The groups that are chains."""
    return [group for group in prior.groups if isinstance(group, MarkovPrior)]


def effect_groups(prior: PriorCollection) -> dict[int, FactoredPrior]:
    """The groups with a factor, which are linear effects, by their number."""
    return {index: group for index, group in enumerate(prior.groups) if isinstance(group, FactoredPrior)}


def factors_of_effects(prior: PriorCollection) -> dict[int, Float[Array, "r n"]]:
    """The factors of the effects at the rows of the data, by group."""
    return {index: prior.at_rows(group.factor, index) for index, group in effect_groups(prior).items()}


def chained_latents(prior: PriorCollection) -> np.ndarray:
    """The latents that are chains."""
    return np.flatnonzero([isinstance(group, MarkovPrior) for group in prior.groups for _ in range(group.size)])


def _leader(prior: PriorCollection) -> tuple[int, MarkovPrior]:
    """The chain with the most inputs of those that are no constants, which share theirs, and its number."""
    chains = [(index, group) for index, group in enumerate(prior.groups) if isinstance(group, MarkovPrior)]
    return max(chains, key=lambda pair: (bool(pair[1].kernel.reads(pair[1].X.shape[1])), len(pair[1].X)))


def chain_column(prior: PriorCollection) -> int:
    """The column of X that the chains read."""
    return _leader(prior)[1].column


def check_columns(prior: PriorCollection) -> None:
    """Raise ValueError if chains read different columns."""
    chains = chain_groups(prior)
    columns = {column for group in chains for column in group.kernel.reads(group.X.shape[1])}
    if len(columns) > 1:
        raise ValueError(
            "GPs with form=pgm.Markov() that a formula combines must be of one column, and these read columns "
            f"{', '.join(map(str, sorted(columns)))}: give all but those of one column another form, such as "
            "pgm.Inducing(100)."
        )


def places_of(prior: PriorCollection, index: int) -> Int[Array, " n"]:
    """The input of a group at each row of the data."""
    return prior.at_rows(jnp.arange(len(prior.groups[index].X)), index)


def times_of_rows(prior: PriorCollection) -> Float[Array, " n"]:
    """The chains' column at the rows of the data."""
    index, group = _leader(prior)
    return group.X[places_of(prior, index), group.column]


def chains_of_rows(prior: PriorCollection, order: Int[Array, " n"]) -> Chains:
    """The chains at the sorted rows: those of the groups, which stand still where rows share an input."""
    steps, noise = [], []
    for index, group in enumerate(prior.groups):
        if isinstance(group, MarkovPrior):
            place = jnp.argsort(group.order)[places_of(prior, index)[order]]
            is_new = jnp.diff(place, prepend=-1)[:, None, None] != 0
            steps.append(jnp.where(is_new, group.chain.transition[place], jnp.eye(group.dimension)))
            noise.append(jnp.where(is_new, group.chain.noise[place], 0.0))
    return _as_chains(prior, steps, noise)


def chains_at(prior: PriorCollection, times: Float[Array, " m"]) -> Chains:
    """The chains at sorted times."""
    by_group = [chain_at(group.kernel.to_state_space(), times) for group in chain_groups(prior)]
    return _as_chains(prior, *([getattr(at, name) for at in by_group] for name in ("transition", "noise")))


class RowGaps(NamedTuple):
    """Of new inputs the sorted rows before and after, and the chains' steps from and to these: see ``Gaps``."""

    before: Int[Array, " m"]
    after: Int[Array, " m"]
    transition: Float[Array, "m g d d"]
    noise: Float[Array, "m g d d"]
    onward: Float[Array, "m g d d"]
    onward_noise: Float[Array, "m g d d"]


def gaps_of_rows(prior: PriorCollection, order: Int[Array, " n"], X_new: Float[Array, "m _"]) -> RowGaps:
    """The place of new inputs among the sorted rows."""
    times, column = times_of_rows(prior)[order], chain_column(prior)
    gaps = [gaps_at(group.kernel.to_state_space(), times, X_new[:, column]) for group in chain_groups(prior)]
    d = max(at.noise.shape[1] for at in gaps)
    steps = (_stacked([getattr(at, name) for at in gaps], d) for name in RowGaps._fields[2:])
    return RowGaps(gaps[0].before, gaps[0].after, *steps)


def _as_chains(prior: PriorCollection, steps: list[Array], noise: list[Array]) -> Chains:
    kinds = tuple(kind for kind, group in enumerate(chain_groups(prior)) for _ in range(group.size))
    d = max(part.shape[1] for part in steps)
    return Chains(_stacked(steps, d), _stacked(noise, d), kinds, tuple(range(0, len(kinds) * d, d)))


def _stacked(matrices: list[Array], d: int) -> Float[Array, "n g d d"]:
    """Matrices of the chains of each kernel, padded with zeros."""
    padded = [jnp.pad(part, ((0, 0), *2 * ((0, d - part.shape[1]),))) for part in matrices]
    return jnp.stack(padded, axis=1)
