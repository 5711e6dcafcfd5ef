"""Driver loop shared by all engines: runs compiled blocks of iterations until the bound converges."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pgmodels.runtime.jit import compiled
from pgmodels.runtime.progress import progress_bar

# Iterations compiled as one loop. The trip count is an argument, so that shorter blocks reuse the program.
BLOCK_LENGTH = 50


class Ascent(NamedTuple):
    """Last state, trace of the bound (from the start, if it has one), and whether the bound converged.

    A bound that is not finite ends the loop and is the last of the trace.
    """

    state: Any
    trace: np.ndarray
    converged: bool


class LoopState(NamedTuple):
    """State of a block: the engine's state, trace of the bound, number of iterations, and whether it converged."""

    state: Any
    trace: Float[Array, " length"]
    taken: Int[Array, ""]
    converged: Bool[Array, ""]


class _Trial(NamedTuple):
    state: Any
    number: Int[Array, ""]
    rises: Bool[Array, ""]


def backtrack(attempt: Callable[[Any], Any], state: Any, first: Any, last: int) -> tuple[Any, Bool[Array, ""]]:
    """The first of the attempts ``first`` to ``last`` whose bound is not below the state's, and whether there is one.

    If there is none, the last attempt. A decrease within rounding is accepted. Traceable; ``attempt`` maps a number to
    a state.
    """
    floor = state.elbo - 3.0 * state.rounding

    def tried(trial: _Trial) -> _Trial:
        moved = attempt(trial.number)
        return _Trial(moved, trial.number + 1, moved.elbo - moved.rounding >= floor)

    unfinished = lambda trial: ~trial.rises & (trial.number <= last)  # noqa: E731
    final = jax.lax.while_loop(unfinished, tried, _Trial(state, jnp.asarray(first), jnp.zeros((), bool)))
    return final.state, final.rises


def enough(state: Any, tolerance: Any) -> Float[Array, ""]:
    """The largest change of a bound that counts as converged: relative tolerance, or the bound's rounding error."""
    return jnp.maximum(tolerance * jnp.maximum(1.0, jnp.abs(state.elbo)), state.rounding)


def maximise(
    step: Callable[[Any, Any], Any],
    problem: Any,
    state: Any,
    tolerance: float,
    max_iterations: int,
    *,
    title: str = "",
    progress: bool | None = False,
) -> Ascent:
    """Iterate ``state = step(problem, state)`` until ``state.elbo`` changes by less than ``tolerance``, relatively.

    If the initial state has no bound yet (minus infinity), its first step does not count.
    """
    fresh = float(state.elbo) == -np.inf
    traces = [np.zeros(0) if fresh else np.asarray(state.elbo)[None]]
    remaining, converged = max_iterations + fresh, False
    with progress_bar(title, max_iterations, progress) as bar:
        while not converged and remaining and np.isfinite(np.concatenate(traces)[-1:]).all():
            state, trace, taken, done = _run_block(step, problem, state, tolerance, min(BLOCK_LENGTH, remaining))
            traces.append(np.asarray(trace)[: int(taken)])
            remaining, converged = remaining - int(taken), bool(done)
            bar.advance(int(taken), f"ELBO {traces[-1][-1]:.4f}")
    return Ascent(state, np.concatenate(traces), converged)


def run_block(
    step: Callable[[Any, Any], Any], problem: Any, state: Any, tolerance: Any, limit: Any, length: int
) -> LoopState:
    """At most ``limit`` <= ``length`` iterations, traceable; see ``maximise``."""

    def unfinished(carry: LoopState) -> Bool[Array, ""]:
        going = (carry.taken == 0) | jnp.isfinite(carry.state.elbo)
        return (carry.taken < limit) & ~carry.converged & going

    def advance(carry: LoopState) -> LoopState:
        moved = step(problem, carry.state)
        converged = jnp.abs(moved.elbo - carry.state.elbo) <= enough(moved, tolerance)
        return LoopState(moved, carry.trace.at[carry.taken].set(moved.elbo), carry.taken + 1, converged)

    empty = LoopState(state, jnp.zeros(length), jnp.zeros((), int), jnp.zeros((), bool))
    return jax.lax.while_loop(unfinished, advance, empty)


def _many_rows(step: Callable[[Any, Any], Any], problem: Any, *_: Any) -> bool:
    return not problem.has_few_rows


@partial(compiled, static_argnames="step", optimise=_many_rows)
def _run_block(step: Callable[[Any, Any], Any], problem: Any, state: Any, tolerance: Any, limit: Any) -> LoopState:
    return run_block(step, problem, state, tolerance, limit, BLOCK_LENGTH)
