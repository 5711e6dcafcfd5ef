"""Engines, and the loop that drives them."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pgmodels.inference.problem import Problem, Spread
from pgmodels.numerics.iteration import History
from pgmodels.priors.base import Sites
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.messages import PgmodelsWarning, progress_bar, shorten

# Iterations compiled as one loop. The trip count is an argument, so that shorter blocks reuse the program.
BLOCK_LENGTH = 50


class Bounded(Protocol):
    """A state with a bound and its rounding error."""

    @property
    def elbo(self) -> Float[Array, ""]: ...

    @property
    def rounding(self) -> Float[Array, ""]: ...

    @property
    def _replace(self) -> Callable[..., Any]: ...


class VariationalState(Bounded, Protocol):
    """q(f): the predictors' marginal moments, the sites that produced them, the ELBO and its rounding error.

    The ELBO is minus infinity if it is unknown, as at a start or at new hyperparameters. ``memory`` is the history of
    Anderson acceleration.
    """

    @property
    def mean(self) -> Float[Array, "n p"]: ...

    @property
    def variance(self) -> Spread: ...

    @property
    def sites(self) -> Sites: ...

    @property
    def memory(self) -> History: ...


# A step of an engine.
Step = Callable[[Problem, Any], Any]


class Ascent(NamedTuple):
    """Last state, trace of the bound (from the start, if it has one; not finite at its end), whether it converged."""

    state: Any
    trace: np.ndarray
    converged: bool


class LoopState(NamedTuple):
    """State of a block: the engine's state, trace of the bound, number of iterations, and whether it converged."""

    state: Any
    trace: Float[Array, " length"]
    num_steps: Int[Array, ""]
    converged: Bool[Array, ""]


class IterationInfo(NamedTuple):
    """Information on an iteration for a callback: engine, number, ELBO, seconds since the start, learned values.

    ``values`` holds learned hyperparameters by name. For ``svi`` an iteration is a window of steps, and its ELBO the
    average over them. The ELBO of ``fit`` includes the log prior of the values.
    """

    engine: str
    number: int
    elbo: float
    seconds: float
    values: Mapping[str, np.ndarray] = {}


# Called after each iteration with the engine's state and an IterationInfo.
Callback = Callable[[Any, IterationInfo], None]


def check_callback(callback: Any) -> None:
    """Raise ValueError if a callback cannot be called."""
    if callback is not None and not callable(callback):
        raise ValueError(
            f"callback must be a function of the state and an IterationInfo, or None; got {shorten(callback)}."
        )


S = TypeVar("S", bound=Bounded)


class _Trial(NamedTuple, Generic[S]):
    state: S
    number: Int[Array, ""]
    rises: Bool[Array, ""]


def backtrack(
    attempt: Callable[[Array], S],
    state: S,
    first: Array | int,
    last: int,
    merit: Callable[[S], Array] = attrgetter("elbo"),
) -> tuple[S, Bool[Array, ""]]:
    """Return the first of the attempts ``first`` to ``last`` that does not lower the merit, and whether there is one.

    The last attempt if all lower it. A decrease within rounding is accepted. Traceable; ``attempt`` maps a number to a
    state, and ``merit`` a state to a value with the rounding error of the bound.
    """
    floor = merit(state) - 3.0 * state.rounding

    def tried(trial: _Trial[S]) -> _Trial[S]:
        moved = attempt(trial.number)
        return _Trial(moved, trial.number + 1, merit(moved) - moved.rounding >= floor)

    unfinished = lambda trial: ~trial.rises & (trial.number <= last)  # noqa: E731
    final = jax.lax.while_loop(unfinished, tried, _Trial(state, jnp.asarray(first), jnp.zeros((), bool)))
    return final.state, final.rises


def without_bound(state: S) -> S:
    """Return the state with an unknown bound, minus infinity: its next step counts as a start."""
    return state._replace(elbo=np.float64(-np.inf))


def maximise(
    step: Step,
    problem: Problem,
    state: VariationalState,
    tolerance: float,
    max_iterations: int,
    *,
    title: str = "",
    progress: bool | None = False,
    callback: Callback | None = None,
    before: np.ndarray | None = None,
    start_time: float | None = None,
) -> Ascent:
    """Iterate ``state = step(problem, state)`` until ``state.elbo`` changes by less than ``tolerance``, relatively.

    If the initial state has no bound yet (minus infinity), its first step does not count. ``before`` is the trace of
    previous iterations, up to the initial state: they count towards ``max_iterations`` and are part of the result's
    trace. ``start_time`` is the start time for the seconds passed to a callback.
    """
    fresh, start_time = float(state.elbo) == -np.inf, time.perf_counter() if start_time is None else start_time
    traces = [np.zeros(0) if fresh else np.asarray(state.elbo)[None]] if before is None else [before]
    remaining, converged = max_iterations + fresh - (0 if before is None else len(before) - 1), False
    # With a callback each block is a single iteration, of the same program.
    length = BLOCK_LENGTH if callback is None else 1
    with progress_bar(title, max_iterations, progress) as bar:
        while not converged and remaining > 0 and np.isfinite(np.concatenate(traces)[-1:]).all():
            state, trace, num_steps, done = _run_block(step, problem, state, tolerance, min(length, remaining))
            traces.append(np.asarray(trace)[: int(num_steps)])
            remaining, converged = remaining - int(num_steps), bool(done)
            bar.advance(int(num_steps), f"ELBO {traces[-1][-1]:.4f}")
            if callback is not None:
                number, seconds = sum(map(len, traces)) - 1, time.perf_counter() - start_time
                callback(state, IterationInfo(title, number, float(traces[-1][-1]), seconds))
    return Ascent(state, np.concatenate(traces), converged)


def run_block(
    step: Step, problem: Problem, state: VariationalState, tolerance: Array | float, limit: Array | int, length: int
) -> LoopState:
    """Run at most ``limit`` <= ``length`` iterations, traceable; see ``maximise``."""

    def unfinished(carry: LoopState) -> Bool[Array, ""]:
        going = (carry.num_steps == 0) | jnp.isfinite(carry.state.elbo)
        return (carry.num_steps < limit) & ~carry.converged & going

    def advance(carry: LoopState) -> LoopState:
        moved = step(problem, carry.state)
        # A damped step may pass the optimum and end where the bound is the same.
        change = jnp.maximum(jnp.abs(moved.elbo - carry.state.elbo), getattr(moved, "missed", 0.0))
        # Relative tolerance, or the bound's rounding error.
        enough = jnp.maximum(tolerance * jnp.maximum(1.0, jnp.abs(moved.elbo)), moved.rounding)
        return LoopState(moved, carry.trace.at[carry.num_steps].set(moved.elbo), carry.num_steps + 1, change <= enough)

    empty = LoopState(state, jnp.zeros(length), jnp.zeros((), int), jnp.zeros((), bool))
    if problem.objective.has_fixed_sites:
        swept = advance(empty)
        return swept._replace(converged=jnp.isfinite(swept.state.elbo))
    return jax.lax.while_loop(unfinished, advance, empty)


def _many_rows(step: Step, problem: Problem, *_: Any) -> bool:
    return not problem.has_few_rows


@partial(compiled, static_argnames="step", optimise=_many_rows)
def _run_block(
    step: Step, problem: Problem, state: VariationalState, tolerance: Array | float, limit: Array | int
) -> LoopState:
    return run_block(step, problem, state, tolerance, limit, BLOCK_LENGTH)


# Maximum iterations of an inner loop, or of one that continues from another's state.
MANY = 2000


class ConvergenceWarning(PgmodelsWarning):
    """An iteration stopped before its tolerance was reached."""


class Engine(ABC):
    """A fixed-point iteration for the sites of q(f).

    Laws: ``step`` never lowers the ELBO beyond rounding error, or the log posterior density at q's mean if the
    objective is not ``is_maximised``. At a fixed point the sites are the optimal ones at q's marginals. ``init``
    and ``step`` are traceable functions of a Problem. One loop drives every engine: see ``pgmodels.inference.loop``.
    """

    @abstractmethod
    def init(self, problem: Problem) -> Any:
        """Return the state to start from."""

    @abstractmethod
    def state_of(self, problem: Problem, sites: Sites) -> Any:
        """Return the state of given sites."""

    @abstractmethod
    def step(self, problem: Problem, state: Any) -> Any:
        """Return the state after one iteration."""

    @abstractmethod
    def plain_step(self, problem: Problem, state: Any) -> Any:
        """Return the state after one iteration of a published scheme, without acceleration or history."""

    def finish(self, name: str, problem: Problem, ascent: Ascent) -> Ascent:
        """Return the ascent after the loop; an engine that can stall marks it as not converged, and warns."""
        return ascent
