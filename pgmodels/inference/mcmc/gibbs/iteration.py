"""Iterations of all chains, compiled: each move's turn, and what they leave behind."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pgmodels.inference.mcmc.gibbs.moves.move import Move, MoveSchedule, Need, Seen
from pgmodels.inference.mcmc.gibbs.schedule import Schedule, nothing_seen
from pgmodels.inference.mcmc.gibbs.target import About, Chain, Target, prior_at, prior_of, surrogate_at
from pgmodels.inference.mcmc.gibbs.trace import CHUNK, Keep, Moments, Record
from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.collection import PriorCollection
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array


class State(NamedTuple):
    """All chains, and what their moves keep, the chains first; of a single chain within a move.

    ``about`` is what moves stand on at each chain's hyperparameters, None where the target holds it. ``own`` has the
    state of each move that has one of its own.
    """

    chains: Chain
    about: About | None
    own: tuple[Any, ...]


def iterate(
    target: Target, schedule: Schedule, state: State, seen: Sequence[Seen], number: Any
) -> tuple[State, tuple[Seen, ...], Any]:
    """One iteration of all chains; also whether all that was drawn on the way is finite, (chains,)."""
    finite = jnp.ones(len(state.chains.latents), bool)
    sums: list[tuple[Any, Any]] = []
    for alone, places in groupby(range(len(schedule.moves)), lambda i: Need.UNKNOWNS in schedule.moves[i].needs):
        turns = partial(_turns, target, schedule, tuple(places), number)
        if alone:
            # One chain after the other: in a batch each would go on until the slowest has found its step.
            state, found, fine = jax.lax.map(partial(turns, lambda function: function), state)
        else:
            state, found, fine = turns(jax.vmap, state)
        sums += found
        finite = finite & fine
    counts = [jnp.where(number % turn.every == 0, turn.repeats, 0) for turn in schedule.turns]
    size = len(finite)
    added = [
        Seen(size * (count > 0), size * count, info, jumps) for count, (info, jumps) in zip(counts, sums, strict=True)
    ]
    return state, jax.tree.map(jnp.add, tuple(seen), tuple(added)), finite


def _turns(
    target: Target,
    schedule: Schedule,
    places: Sequence[int],
    number: Any,
    over: Callable[[Any], Any],
    state: State,
) -> tuple[State, list[tuple[Any, Any]], Any]:
    """The turns of moves side by side in the schedule; ``over`` takes a function of one chain to those of ``state``.

    Also what each move leaves to be summed up, and its squared jumps in hyperparameters.
    """
    chain, about, own = state
    found, finite, renewals = [], over(lambda _: jnp.array(True))(chain.unknowns), _renewals(schedule.moves)
    for place in places:
        move, turn = schedule.moves[place], schedule.turns[place]
        if place in renewals and about is not None:
            about = over(partial(_renewed, target, _needs_surrogate(schedule)))(chain, about)
        before, count = chain.unknowns, jnp.where(number % turn.every == 0, turn.repeats, 0)
        steps = over(partial(_steps, target, move, turn, number, count))
        chain, about, kept, info, fine = steps(chain, about, own[place])
        finite = finite & fine
        own = (*own[:place], kept, *own[place + 1 :])
        found.append((info, over(partial(_jumps, target, move))(before, chain.unknowns)))
    return State(chain, about, own), found, finite


def _steps(
    target: Target, move: Move, turn: MoveSchedule, number: Any, count: Any, chain: Chain, about: About | None, own: Any
) -> Any:
    """The steps of one chain; their state may be one that moves share."""
    if move.state is None:
        moved = move.steps(target, turn.settings, chain, own, number, count)
        own = moved.own
    else:
        shared = about if about is not None else target.held
        given = prior_of(shared) if move.state is PriorCollection and shared is not None else shared
        moved = move.steps(target, turn.settings, chain, given, number, count)
        if Need.UNKNOWNS in move.needs:
            about = moved.own
    return moved.chain, about, own, moved.info, moved.finite


def _jumps(target: Target, move: Move, before: Any, after: Any) -> Any:
    if Need.UNKNOWNS not in move.needs or target.fitted is None:
        return jnp.zeros_like(before)
    return target.response.standard(after - before) ** 2


def _renewals(moves: Sequence[Move]) -> set[int]:
    """Before which moves what they stand on is to be made again, since others have moved the hyperparameters."""
    places, behind = set(), False
    # Twice round: what one iteration leaves behind is renewed in the next.
    for place, move in 2 * list(enumerate(moves)):
        if move.state is None:
            behind = behind or Need.UNKNOWNS in move.needs
        elif behind:
            places.add(place)
            behind = False
    return places


def _needs_surrogate(schedule: Schedule) -> Any:
    """Whether any move about the surrogate is made."""
    pairs = zip(schedule.moves, schedule.turns, strict=True)
    return sum((turn.repeats for move, turn in pairs if move.state is BlockPosterior), as_array(0)) > 0


def _renewed(target: Target, surrogate: Any, chain: Chain, about: About) -> About:
    """What moves stand on at the chain's hyperparameters; of the surrogate the prior alone where that is enough."""
    if not isinstance(about, BlockPosterior):
        return prior_at(target, chain.unknowns)
    return jax.lax.cond(
        surrogate,
        lambda: surrogate_at(target, chain.unknowns),
        lambda: replace(about, prior=prior_at(target, chain.unknowns)),
    )


@partial(compiled, on_one_thread=True, static_argnames="keep")
def run_chunk(
    target: Target, schedule: Schedule, state: State, moments: Moments, first: Any, count: Any, keep: Keep
) -> tuple[State, Moments, tuple[Seen, ...], Record]:
    """``count`` <= CHUNK iterations of all chains from number ``first`` on; records are (CHUNK, chains, ...)."""
    sampled = bool(target.unknowns.leaf_indices)
    likelihood = jax.vmap(target.log_likelihood)

    def record(chains: Chain, failed: Any) -> Record:
        latents = chains.latents
        kept = {"all": latents if sampled else None, "moments": None, "rows": latents[:, jnp.array(keep.rows, int)]}
        coordinates = chains.coordinates if keep.what == "all" else None
        log_likelihood = likelihood(latents, chains.unknowns)
        finite = jnp.all(jnp.isfinite(latents), axis=(1, 2))
        failed = jnp.where(failed > 0, failed, jnp.where(finite, 0, 2))
        failed = jnp.where(failed > 0, failed, jnp.where(jnp.isfinite(log_likelihood), 0, 3))
        return Record(coordinates, kept[keep.what], chains.unknowns, log_likelihood, failed)

    def body(i: Any, carry: Any) -> Any:
        state, moments, seen, records = carry
        state, seen, finite = iterate(target, schedule, state, seen, first + i)
        entry = record(state.chains, jnp.where(finite, 0, 1))
        records = jax.tree.map(lambda store, value: store.at[i].set(value), records, entry)
        return state, moments.add(state.chains.latents), seen, records

    chains = state.chains
    empty = jax.eval_shape(record, chains, jnp.zeros(len(chains.latents), int))
    records = jax.tree.map(lambda leaf: jnp.zeros((CHUNK, *leaf.shape), leaf.dtype), empty)
    return jax.lax.fori_loop(0, count, body, (state, moments, nothing_seen(schedule, chains), records))


def started_chains(target: Target, moves: tuple[Move, ...], vector: Any, keys: Any) -> State:
    """Chains at independent draws, a key each, all at the same hyperparameters: of the surrogate, else of the prior."""
    about = target.about(vector)

    def one(key: Any) -> State:
        key, draw = jax.random.split(key)
        if isinstance(about, BlockPosterior):
            coordinates = about.centre + about.deviation(jax.random.normal(draw, about.centre.shape))
            latents = about.prior.latents(about.prior.unflatten(coordinates))
        else:
            latents, parts = about.draw(draw)
            coordinates = about.flatten(parts)
        chain = Chain(key, vector, latents, coordinates)
        own = tuple(move.init(target, chain) if move.state is None else () for move in moves)
        return State(chain, about if target.held is None else None, own)

    return jax.vmap(one, out_axes=0)(keys)


start_chains = compiled(started_chains, static_argnames="moves", optimise=False, on_one_thread=True)


@partial(compiled, on_one_thread=True)
def renew_surrogates(target: Target, state: State) -> State:
    """The chains as they are, with the surrogates of another target."""
    return state._replace(about=jax.lax.map(partial(surrogate_at, target), state.chains.unknowns))
