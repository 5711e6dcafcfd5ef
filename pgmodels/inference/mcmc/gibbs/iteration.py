"""Compiled iterations of all chains: each move in its order, and the records of draws and statistics."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pgmodels.inference.mcmc.gibbs.moves.move import Move, MoveRequirement, MoveSchedule, MoveStats
from pgmodels.inference.mcmc.gibbs.schedule import Schedule, zero_stats
from pgmodels.inference.mcmc.gibbs.target import Chain, Reference, Target, prior_at, surrogate_at
from pgmodels.inference.mcmc.gibbs.trace import CHUNK, Keep, Moments, Record
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array


class State(NamedTuple):
    """State of all chains, with chains along the first axis; within a move, of a single chain.

    ``reference`` is the prior or surrogate at each chain's hyperparameters, None if they are fixed (it is then
    ``Target.fixed_reference``). ``move_states`` holds the state of each move that has one, else ().
    """

    chains: Chain
    reference: Reference | None
    move_states: tuple[Any, ...]


def iterate(
    target: Target, schedule: Schedule, state: State, stats: Sequence[MoveStats], number: Any
) -> tuple[State, tuple[MoveStats, ...], Any]:
    """One iteration of all chains. Also returns whether all intermediate draws are finite, (chains,)."""
    finite = jnp.ones(len(state.chains.latents), bool)
    sums: list[tuple[Any, Any]] = []
    for alone, places in groupby(
        range(len(schedule.moves)), lambda i: MoveRequirement.HYPERPARAMETERS in schedule.moves[i].requirements
    ):
        run = partial(_run_moves, target, schedule, tuple(places), number)
        if alone:
            # Chains in sequence: in a batch, each chain would loop until the slowest has accepted.
            state, new_sums, fine = jax.lax.map(partial(run, lambda function: function), state)
        else:
            state, new_sums, fine = run(jax.vmap, state)
        sums += new_sums
        finite = finite & fine
    counts = [
        jnp.where(number % move_schedule.every == 0, move_schedule.repeats, 0)
        for move_schedule in schedule.move_schedules
    ]
    size = len(finite)
    added = [
        MoveStats(size * (count > 0), size * count, info, jumps)
        for count, (info, jumps) in zip(counts, sums, strict=True)
    ]
    return state, jax.tree.map(jnp.add, tuple(stats), tuple(added)), finite


def _run_moves(
    target: Target,
    schedule: Schedule,
    places: Sequence[int],
    number: Any,
    over: Callable[[Any], Any],
    state: State,
) -> tuple[State, list[tuple[Any, Any]], Any]:
    """Consecutive moves of the schedule; ``over`` lifts a function of one chain to the chains of ``state``.

    Also returns each move's summed ``info`` and its squared jumps in the hyperparameters.
    """
    chain, reference, move_states = state
    sums, finite, renewals = [], over(lambda _: jnp.array(True))(chain.unknowns), _renewals(schedule.moves)
    for place in places:
        move, move_schedule = schedule.moves[place], schedule.move_schedules[place]
        if place in renewals and reference is not None:
            reference = over(partial(_renewed, target, _needs_surrogate(schedule)))(chain, reference)
        before, count = chain.unknowns, jnp.where(number % move_schedule.every == 0, move_schedule.repeats, 0)
        steps = over(partial(_steps, target, move, move_schedule, number, count))
        chain, reference, kept, info, fine = steps(chain, reference, move_states[place])
        finite = finite & fine
        move_states = (*move_states[:place], kept, *move_states[place + 1 :])
        sums.append((info, over(partial(_jumps, target, move))(before, chain.unknowns)))
    return State(chain, reference, move_states), sums, finite


def _steps(
    target: Target,
    move: Move,
    move_schedule: MoveSchedule,
    number: Any,
    count: Any,
    chain: Chain,
    reference: Reference | None,
    state: Any,
) -> Any:
    """All steps of a move in one iteration, for one chain. Its state may be the reference that moves share."""
    if move.state is None:
        moved = move.steps(target, move_schedule.settings, chain, state, number, count)
        state = moved.state
    else:
        used = getattr(target.fixed_reference if reference is None else reference, move.state)
        moved = move.steps(target, move_schedule.settings, chain, used, number, count)
        if MoveRequirement.HYPERPARAMETERS in move.requirements:
            reference = Reference(surrogate=moved.state)
    return moved.chain, reference, state, moved.info, moved.finite


def _jumps(target: Target, move: Move, before: Any, after: Any) -> Any:
    if MoveRequirement.HYPERPARAMETERS not in move.requirements or target.fitted is None:
        return jnp.zeros_like(before)
    return target.ellipse.standard(after - before) ** 2


def _renewals(moves: Sequence[Move]) -> set[int]:
    """Indices of moves before which the shared prior or surrogate is stale and must be recomputed."""
    places, behind = set(), False
    # Two passes: a reference that is stale at the end of an iteration is recomputed in the next.
    for place, move in 2 * list(enumerate(moves)):
        if move.state is None:
            behind = behind or MoveRequirement.HYPERPARAMETERS in move.requirements
        elif behind:
            places.add(place)
            behind = False
    return places


def _needs_surrogate(schedule: Schedule) -> Any:
    """Whether any move that uses the surrogate is made."""
    pairs = zip(schedule.moves, schedule.move_schedules, strict=True)
    repeats = (move_schedule.repeats for move, move_schedule in pairs if move.state == "surrogate")
    return sum(repeats, as_array(0)) > 0


def _renewed(target: Target, surrogate: Any, chain: Chain, reference: Reference) -> Reference:
    """The reference at the chain's hyperparameters. If no move uses the surrogate, only its prior is recomputed."""
    before = reference.surrogate
    if before is None:
        return Reference(prior_at(target, chain.unknowns))
    renewed = jax.lax.cond(
        surrogate,
        lambda: surrogate_at(target, chain.unknowns),
        lambda: replace(before, prior=prior_at(target, chain.unknowns)),
    )
    return Reference(surrogate=renewed)


@partial(compiled, on_one_thread=True, static_argnames="keep")
def run_chunk(
    target: Target, schedule: Schedule, state: State, moments: Moments, first: Any, count: Any, keep: Keep
) -> tuple[State, Moments, tuple[MoveStats, ...], Record]:
    """``count`` <= CHUNK iterations of all chains, starting at ``first``; records are (CHUNK, chains, ...)."""
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
        state, moments, stats, records = carry
        state, stats, finite = iterate(target, schedule, state, stats, first + i)
        entry = record(state.chains, jnp.where(finite, 0, 1))
        records = jax.tree.map(lambda store, value: store.at[i].set(value), records, entry)
        return state, moments.add(state.chains.latents), stats, records

    chains = state.chains
    empty = jax.eval_shape(record, chains, jnp.zeros(len(chains.latents), int))
    records = jax.tree.map(lambda leaf: jnp.zeros((CHUNK, *leaf.shape), leaf.dtype), empty)
    return jax.lax.fori_loop(0, count, body, (state, moments, zero_stats(schedule, chains), records))


def started_chains(target: Target, moves: tuple[Move, ...], vector: Any, keys: Any) -> State:
    """Chains, one for each key, at independent draws of the surrogate or else the prior, with equal hyperparameters."""
    reference = target.reference(vector)

    def one(key: Any) -> State:
        key, draw = jax.random.split(key)
        chain = Chain(key, vector, *reference.draw(draw))
        move_states = tuple(move.init(target, chain) if move.state is None else () for move in moves)
        return State(chain, reference if target.fixed_reference is None else None, move_states)

    return jax.vmap(one, out_axes=0)(keys)


start_chains = compiled(started_chains, static_argnames="moves", optimise=False, on_one_thread=True)


@partial(compiled, on_one_thread=True)
def renew_surrogates(target: Target, state: State) -> State:
    """The same chains, with the surrogates of a new target."""
    surrogate = jax.lax.map(partial(surrogate_at, target), state.chains.unknowns)
    return state._replace(reference=Reference(surrogate=surrogate))
