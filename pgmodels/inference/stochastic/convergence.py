"""Stochastic steps in windows, whose averages say when nothing moves any more."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.data.sources.rows import Block
from pgmodels.inference.empirical_bayes.initial_values import initial_models
from pgmodels.inference.stochastic import latent_subsampling
from pgmodels.inference.stochastic.natural_parameters import NaturalParameters
from pgmodels.inference.stochastic.sharding import shard_rows
from pgmodels.inference.stochastic.step import Rates, StochasticProblem, SviState, WindowAverage, first_state, step
from pgmodels.model import Data
from pgmodels.numerics.quadrature import CHUNK_VALUES, chunk_length
from pgmodels.objectives.base import Objective
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.progress import progress_bar
from pgmodels.runtime.x64 import as_array

# Steps whose averages are compared, or more. A window has so many where a pass has, and where values are learned.
_WINDOW = 200
# The length of Adam's first steps, and how much of the tolerance values may move by from window to window at the last.
_LEARNING_RATE, _VALUE_TOLERANCE = 0.05, 0.1
# Steps of Adam's that are not halved any more.
_MIN_LEARNING_RATE = _LEARNING_RATE / 16.0
# Passes that are made at most, and steps where that is more, unless it is said.
_EPOCHS, _STEPS = 100, 10_000
# Batches over which the adaptive rate takes its first averages, before any step.
_RATE_BATCHES = 10
# Nats a row that a step on all rows gains at most where q is at the optimum, as a share of the tolerance; and the share
# of the bound that counts as nothing, as for ``cavi``. Of separable classes and of rare events, whose steps are slow,
# 1e-7 nats, those of the default tolerance, left means a tenth of a deviation from the optimum, 1e-6 half of one.
_MAX_GAIN, _RELATIVE_GAIN = 1e-6, 1e-9
# Rows that starts are made from.
_ROWS = 5000
# Steps of each latent from every start before the best is taken: the same for all of them, hardly noisy beside another.
_TRIAL_STEPS = 5

# Batches without end, some at a time along a first axis, from the one of a number on.
Stream = Callable[[int], Iterator[Block]]


class Settings(NamedTuple):
    """How steps are made, and when they end: ``passes`` are the most, of ``batches`` each, by ``window`` at a time.

    Averages are compared over a ``pool`` of windows, as those of a pass of few steps have the noise of each. In
    ``sweep`` steps each latent has one on average: 1 where all are in every step. Steps are ``noisy`` unless they are
    on all rows and latents, and exact.
    """

    batch_size: int
    batches: int
    window: int
    pool: int
    passes: int
    rates: Rates
    tolerance: float
    sweep: int
    noisy: bool

    @property
    def steps(self) -> int:
        """How many there are at most."""
        return self.passes * self.batches

    @property
    def windows(self) -> int:
        """Those of the most steps, the last of which may be shorter."""
        return -(-self.steps // self.window)

    def num_steps(self, windows: int) -> int:
        """The steps of so many windows."""
        return min(windows * self.window, self.steps)

    def max_gain(self, num_rows: int, bound: float) -> float:
        """The nats that a step on so many rows may gain at the optimum, beside a bound."""
        return max(_MAX_GAIN * self.tolerance * num_rows, _RELATIVE_GAIN * max(1.0, abs(bound)))

    def remaining_epochs(self, windows: int) -> int:
        """The passes that the steps of so many windows leave."""
        return self.passes - -(-self.num_steps(windows) // self.batches)


class Ascent(NamedTuple):
    """Where the windows are: the state, the last pool of them, the bound of each, and whether they stand still.

    ``learning`` is the length of Adam's steps, 0 once they ended, and ``held`` the number of windows with that length.
    ``window`` is that of the last pool's steps, so far of ``pooled`` windows, and ``before`` that of the pool before.
    """

    state: SviState
    learning: float
    windows_at_rate: int
    window: WindowAverage | None
    before: WindowAverage | None
    pooled: int
    trace: tuple[float, ...]
    converged: bool


class Outcome(NamedTuple):
    """Where the steps ended: q and the unconstrained values, the bound of each window, and whether they stand still."""

    naturals: tuple[NaturalParameters, ...]
    vector: Float[Array, " values"]
    trace: np.ndarray
    converged: bool


def make_settings(
    num_rows: int,
    width: int,
    batch_size: int,
    decay: tuple[float, float] | None,
    max_epochs: int | None,
    tolerance: float,
    train_hyperparameters: bool,
    sweep: int,
    exact: bool,
) -> Settings:
    """The settings for rows of so many numbers. A window is a pass or, where values are learned, a number of steps.

    Of steps on some latents it is as many as give each that many. Where steps are ``exact``, those on all rows lead to
    the optimum for the others and have no noise.
    """
    size = min(batch_size, num_rows)
    count = num_rows // size
    window = min(
        sweep * (_WINDOW if train_hyperparameters else min(count, _WINDOW)),
        chunk_length(size * width, 4 * CHUNK_VALUES),
    )
    passes = sweep * max(_EPOCHS, -(-_STEPS // count)) if max_epochs is None else max_epochs
    # Without noise nothing is to be averaged out.
    noisy = not exact or size < num_rows or sweep > 1
    delay, power = decay if decay is not None and noisy else (1.0, 0.0)
    rates = Rates(*map(as_array, np.array([delay, power, _LEARNING_RATE if train_hyperparameters else 0.0])))
    pool = 1 if train_hyperparameters or not noisy else -(-sweep * _WINDOW // window)
    return Settings(size, count, window, pool, passes, rates, tolerance, sweep, noisy)


@partial(compiled, optimise=False)
@shard_rows
def _first(problem: StochasticProblem, vector: Array, X: Float[Array, "count b d"], y: Array) -> SviState:
    if problem.sample is not None:
        return latent_subsampling.first_state(problem, problem.sample, vector, X, y)
    return first_state(problem, vector, X, y)


@compiled
@shard_rows
def advance(
    problem: StochasticProblem,
    state: SviState,
    X: Float[Array, "most b d"],
    y: Array,
    rates: Rates,
    first: Any,
    last: Any,
) -> tuple[SviState, WindowAverage]:
    """Steps on some batches, one after the other, from the one of a number up to before another.

    After the last of them comes the first.
    """
    if problem.sample is not None:
        return latent_subsampling.advance(problem, problem.sample, state, X, y, rates, first, last)

    def body(index: Array, carry: tuple[SviState, WindowAverage]) -> tuple[SviState, WindowAverage]:
        state, info = step(problem, carry[0], X[index % len(X)], y[index % len(y)], rates)
        vector, remaining = state.values.vector, carry[1].share
        now = WindowAverage(state.naturals, vector, vector**2, info.centre, info.bound, -state.rate * remaining)
        return state, jax.tree.map(jnp.add, carry[1], now)

    values, zero = jnp.zeros_like(state.values.vector), jnp.zeros(())
    centre = jnp.concatenate([jnp.zeros_like(block.potential) for block in state.naturals])
    # Of the way that is left at first all.
    nothing = WindowAverage(jax.tree.map(jnp.zeros_like, state.naturals), values, values, centre, zero, jnp.ones(()))
    # Their numbers are arguments, so that any number of steps is the same program.
    state, total = jax.lax.fori_loop(first, last, body, (state, nothing))
    mean = jax.tree.map(lambda leaf: leaf / (last - first), total)
    return state, mean._replace(share=1.0 - total.share)


def initial_ascent(
    problem: StochasticProblem, sample: Data, stream: Stream, settings: Settings
) -> tuple[Ascent, dict[str, float]]:
    """The state at the values given, or with values to learn some steps on from the start with the largest bound.

    The bounds with it.
    """
    X, y = next(stream(0))
    first, rows = problem.sharding.shard((X[:_RATE_BATCHES], y[:_RATE_BATCHES])), problem.sharding.shard((X, y))

    def started(vector: np.ndarray) -> SviState:
        return problem.sharding.to_host(_first(problem, as_array(vector), *first))

    learning = float(settings.rates.learning)
    if not problem.learnable.leaf_indices:
        return Ascent(started(problem.start()), learning, 0, None, None, 0, (), False), {}
    # From everywhere: rows may be sorted.
    places = np.linspace(0, len(sample.X) - 1, min(_ROWS, len(sample.X))).astype(int)
    few = Data(sample.X[places], sample.y[places])
    begun = initial_models(problem.learnable.model, few, _constant_objective(problem))
    models = {name: start.model for name, start in begun.items() if start.kind == "level"}
    states = {name: started(problem.start(model)) for name, model in models.items()}
    fixed_rates = settings.rates._replace(learning=as_array(np.float64(0.0)))
    count = settings.sweep * _TRIAL_STEPS
    tried = {name: advance(problem, state, *rows, fixed_rates, 0, count) for name, state in states.items()}
    bounds = {name: float(window.bound) for name, (_, window) in tried.items()}
    finite = {name: bound for name, bound in bounds.items() if np.isfinite(bound)}
    if not finite:
        raise ValueError("svi: the bound is not finite at the start values. Give start values nearer to the data.")
    best = problem.sharding.to_host(tried[max(finite, key=lambda name: finite[name])][0])
    return Ascent(best, learning, 0, None, None, 0, (), False), finite


def _constant_objective(problem: StochasticProblem) -> Objective | None:
    """What says which constants are likely: the derived bound where there is one, which costs little.

    None for steps on some latents: at constants it is one of all of them.
    """
    model = problem.learnable.model
    if problem.sample is not None:
        return None
    return model.augmentation if model.is_augmentable else problem.objective


def structure(problem: StochasticProblem, stream: Stream, settings: Settings) -> Any:
    """A tree like that of a state and a window; nothing is computed."""
    X, y = problem.sharding.shard(next(stream(0)))
    first = _first.shapes(problem, as_array(problem.start()), X[:_RATE_BATCHES], y[:_RATE_BATCHES])
    return advance.shapes(problem, first, X, y, settings.rates, 0, settings.window)


def maximise(
    problem: StochasticProblem,
    ascent: Ascent,
    stream: Stream,
    settings: Settings,
    save: Callable[[Ascent, bool], None],
    progress: bool | None,
) -> Outcome:
    """Windows of steps until their averages stand still; ``save`` is called after each, and told which is the last."""
    done = len(ascent.trace)
    rows = stream(done * settings.window)
    with progress_bar("svi", settings.windows, progress) as bar:
        bar.advance(done)
        while not ascent.converged and len(ascent.trace) < settings.windows:
            start, done = time.perf_counter(), len(ascent.trace)
            count = settings.num_steps(done + 1) - settings.num_steps(done)
            following = _next if count == settings.window else _last
            ascent = following(problem, ascent, problem.sharding.shard(next(rows)), settings)
            speed = count * settings.batch_size / (time.perf_counter() - start)
            if count == settings.window:
                save(ascent, ascent.converged or settings.num_steps(done + 2) < (done + 2) * settings.window)
            bar.advance(1, f"bound {ascent.trace[-1]:.4f}, {speed:,.0f} rows/s")
    return _outcome(ascent, settings)


def _advanced(
    problem: StochasticProblem, ascent: Ascent, rows: tuple[Array, Array], settings: Settings, first: int, last: int
) -> tuple[SviState, WindowAverage]:
    """Steps on some of the batches. Raises ValueError where they led nowhere."""
    rates = settings.rates._replace(learning=as_array(np.float64(ascent.learning)))
    state, window = problem.sharding.to_host(advance(problem, ascent.state, *rows, rates, first, last))
    if not np.isfinite(window.bound) or not np.isfinite(np.asarray(window.centre)).all():
        raise ValueError(
            "svi: the bound is not finite. Look for extreme values in y, prior variances of many orders of magnitude, "
            "or a likelihood scale close to zero."
        )
    return state, window


def _last(problem: StochasticProblem, ascent: Ascent, rows: tuple[Array, Array], settings: Settings) -> Ascent:
    """The steps that fill no window: their average and that of the pool before, of the later half where there is none.

    They say nothing of whether anything stands still.
    """
    count = settings.steps - len(ascent.trace) * settings.window
    half = count // 2 if ascent.window is None else 0
    if half:
        ascent = ascent._replace(state=_advanced(problem, ascent, rows, settings, 0, half)[0])
    state, window = _advanced(problem, ascent, rows, settings, half, count)
    trace = (*ascent.trace, float(window.bound))
    if ascent.window is not None:
        window = _merged(ascent.window, window, ascent.pooled * settings.window / count)
    return ascent._replace(state=state, window=window, trace=trace)


def _next(problem: StochasticProblem, ascent: Ascent, rows: tuple[Array, Array], settings: Settings) -> Ascent:
    state, window = _advanced(problem, ascent, rows, settings, 0, settings.window)
    bound, learning = float(window.bound), ascent.learning
    windows_at_rate, trace = ascent.windows_at_rate + 1, (*ascent.trace, bound)
    before, pooled = ascent.window, 1
    if ascent.window is not None and ascent.pooled < settings.pool:
        window, before, pooled = _merged(ascent.window, window, ascent.pooled), ascent.before, ascent.pooled + 1
    gains = not _bound_is_flat(trace[-windows_at_rate:])
    if learning > 0.0:
        if before is not None:
            learning = _reduced_rate(learning, before, window, gains, problem, settings.tolerance)
        if not learning:
            state = state._replace(values=state.values._replace(vector=window.vector))
        windows_at_rate = windows_at_rate if learning == ascent.learning else 0
        return Ascent(state, learning, windows_at_rate, window, before, pooled, trace, False)
    # Of fewer rows than there are a bound has noise, and what it hides is nothing to go on for.
    hidden = settings.batches > settings.window and not gains
    full = pooled == settings.pool
    converged = before is not None and (hidden or (full and _has_converged(before, window, settings.tolerance)))
    return Ascent(state, learning, windows_at_rate, window, before, pooled, trace, converged)


def _merged(window: WindowAverage, following: WindowAverage, count: float) -> WindowAverage:
    """The window of ``count`` times as many steps as follow, and of these."""
    mean = jax.tree.map(lambda first, second: first + (second - first) / (count + 1), window, following)
    return mean._replace(share=1.0 - (1.0 - window.share) * (1.0 - following.share))


def _outcome(ascent: Ascent, settings: Settings) -> Outcome:
    """The averages of the last windows; their last step where there is no noise."""
    at: Any = ascent.window
    if not settings.noisy or at is None:
        return Outcome(ascent.state.naturals, ascent.state.values.vector, np.array(ascent.trace), ascent.converged)
    return Outcome(at.naturals, at.vector, np.array(ascent.trace), ascent.converged)


def _reduced_rate(
    learning: float,
    before: WindowAverage,
    now: WindowAverage,
    gains: bool,
    problem: StochasticProblem,
    tolerance: float,
) -> float:
    """The length of Adam's next steps: half where they are noise or the bound gains nothing, and at last 0.

    That is where the averages of two windows hardly differ, or steps are short. Inducing inputs go on moving where
    nothing depends on them: they count where they alone are learned.
    """
    counts = slice(len(problem.learnable.start()) or None)
    moved = np.abs(np.asarray(now.vector - before.vector))[counts]
    if np.all(moved <= _VALUE_TOLERANCE * tolerance * np.asarray(problem.units)[counts]):
        return 0.0
    spread = np.sqrt(np.maximum(np.asarray(now.square - now.vector**2), 0.0))[counts]
    if gains and np.any(moved > spread):
        return learning
    return learning / 2.0 if learning > _MIN_LEARNING_RATE else 0.0


def _has_converged(before: WindowAverage, now: WindowAverage, tolerance: float) -> bool:
    """Whether the averages of E v over two windows differ by less than the tolerance.

    Source: Wenzel et al. 2019, who look at a window of global parameters.
    """
    centre = np.asarray(now.centre)
    moved = np.linalg.norm(centre - np.asarray(before.centre))
    return bool(moved <= tolerance * float(now.share) * np.linalg.norm(centre))


def _bound_is_flat(bounds: tuple[float, ...]) -> bool:
    """Whether the last third of some windows' bounds is above the third before by no more than its standard error."""
    third = len(bounds) // 3
    if third < 2:
        return False
    later, earlier = np.array(bounds[-third:]), np.array(bounds[-2 * third : -third])
    error = np.sqrt((later.var(ddof=1) + earlier.var(ddof=1)) / third)
    return bool(later.mean() - earlier.mean() <= error)
