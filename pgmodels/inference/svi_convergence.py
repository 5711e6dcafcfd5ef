"""When stochastic variational inference stops; rows of minibatches and final passes."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from pgmodels.data.arrays import Column, Columns, MissingChoice, check_missing
from pgmodels.data.sources import ArrayRows, Block, Rows, Scaling, batches, in_order, stacked_batches, survey
from pgmodels.inference import latent_subsampling
from pgmodels.inference.loop import Callback, ConvergenceWarning, IterationInfo
from pgmodels.inference.prepare import warn_costly
from pgmodels.inference.problem import are_few_rows
from pgmodels.inference.starts import initial_models
from pgmodels.inference.svi_step import (
    DataBatch,
    NaturalParameters,
    Rates,
    StochasticProblem,
    SviState,
    WindowAverage,
    block_indices,
    divergence_between,
    first_state,
    penalised_bound,
    shard_rows,
    step,
    to_host,
    to_moments,
)
from pgmodels.kernels.columns import check_lookups
from pgmodels.kernels.kernel import check_traced
from pgmodels.model import Data, Model, unseen_classes, warn_unseen, with_numbered_columns
from pgmodels.numerics.iteration import History, empty_history
from pgmodels.numerics.quadrature import CHUNK_VALUES, chunk_length
from pgmodels.objectives.base import Objective
from pgmodels.priors.base import RandomKey
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.messages import progress_bar, warn
from pgmodels.runtime.precision import as_array

# Stochastic steps in windows; convergence is judged by the averages of successive windows.

# Batches for the initial averages of the adaptive rate.
_RATE_BATCHES = 10

# An endless stream of stacked batches, starting at a given batch.
Stream = Callable[[int], Iterator[Block]]


class Settings(NamedTuple):
    """Step sizes and limits: at most ``passes`` epochs of ``batches`` steps, in windows of ``window`` steps.

    Averages are over ``pool`` windows, since short epochs are noisy. Each latent is updated once in ``sweep`` steps on
    average: 1 without latent subsampling. Steps are ``noisy`` unless exact and on all rows and latents.
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
        """Maximum number of steps."""
        return self.passes * self.batches

    @property
    def windows(self) -> int:
        """Maximum number of windows; the last may be shorter."""
        return -(-self.steps // self.window)

    def num_steps(self, windows: int) -> int:
        """Return the number of steps in ``windows`` windows."""
        return min(windows * self.window, self.steps)

    def max_gain(self, num_rows: int, bound: float) -> float:
        """Return the largest gain in nats of a step on all rows at which q counts as converged."""
        # A fraction of the tolerance for each row, and relative to the bound as in ``cavi``. For separable classes and
        # rare events, which converge slowly, a gain of 1e-7 nats (at the default tolerance) left means at a tenth of a
        # standard deviation from the optimum, 1e-6 at half of one.
        return max(1e-6 * self.tolerance * num_rows, 1e-9 * max(1.0, abs(bound)))

    def remaining_epochs(self, windows: int) -> int:
        """Return the epochs that remain after ``windows`` windows."""
        return self.passes - -(-self.num_steps(windows) // self.batches)


class Ascent(NamedTuple):
    """State of the optimisation: bounds of windows, SviState, averages of the last windows, whether it has converged.

    ``learning`` is Adam's learning rate, 0 after training, and ``windows_at_rate`` the number of windows at that rate.
    ``window`` averages the current pool, so far of ``pooled`` windows, and ``before`` the previous pool.
    """

    trace: np.ndarray
    state: SviState
    learning: float
    windows_at_rate: int = 0
    window: WindowAverage | None = None
    before: WindowAverage | None = None
    pooled: int = 0
    converged: bool = False


class Outcome(NamedTuple):
    """Final q and unconstrained values, the bound of each window, and whether the steps have converged."""

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
    window_steps: int = 200,
) -> Settings:
    """Return the settings for ``num_rows`` rows of ``width`` numbers each.

    A window is an epoch of at most ``window_steps`` steps; if hyperparameters are trained, it has ``window_steps``.
    With latent subsampling, its steps update each latent that often. ``exact`` steps on all rows have no noise: each
    block of q gets its optimum.
    """
    size = min(batch_size, num_rows)
    count = num_rows // size
    window = min(
        sweep * (window_steps if train_hyperparameters else min(count, window_steps)),
        chunk_length(size * width, 4 * CHUNK_VALUES),
    )
    passes = sweep * max(100, -(-10_000 // count)) if max_epochs is None else max_epochs
    # Without noise, nothing needs to be averaged.
    noisy = not exact or size < num_rows or sweep > 1
    delay, power = decay if decay is not None and noisy else (1.0, 0.0)
    rates = Rates(*map(as_array, np.array([delay, power, 0.05 if train_hyperparameters else 0.0])))
    pool = 1 if train_hyperparameters or not noisy else -(-sweep * window_steps // window)
    return Settings(size, count, window, pool, passes, rates, tolerance, sweep, noisy)


@partial(compiled, optimise=False)
@shard_rows
def _first(problem: StochasticProblem, vector: Array, rows: DataBatch) -> SviState:
    if problem.sample is not None:
        return latent_subsampling.first_state(problem, problem.sample, vector, rows)
    return first_state(problem, vector, rows)


def _takes_many_steps(problem: StochasticProblem, state: SviState, rows: DataBatch, *_: object) -> bool:
    """Not where the values are fixed and each step has all rows: a few steps reach the optimum."""
    learns, is_few = bool(problem.parameters.leaf_indices), are_few_rows(rows.X.shape[1], problem.coupled)
    return learns or len(rows.X) > 1 or not is_few


@partial(compiled, optimise=_takes_many_steps)
@shard_rows
def advance(
    problem: StochasticProblem, state: SviState, rows: DataBatch, rates: Rates, first: Array | int, last: Array | int
) -> tuple[SviState, WindowAverage]:
    """Steps ``first`` to ``last`` - 1, cycling through the batches; returns the state and the window's averages."""
    if problem.sample is not None:
        return latent_subsampling.advance(problem, problem.sample, state, rows, rates, first, last)

    def body(index: Array, carry: tuple[SviState, WindowAverage]) -> tuple[SviState, WindowAverage]:
        state, info = step(problem, carry[0], rows.number(index), rates)
        vector, remaining = state.values.vector, carry[1].share
        now = WindowAverage(state.naturals, vector, vector**2, info.centre, info.bound, -state.rate * remaining)
        return state, jax.tree.map(jnp.add, carry[1], now)

    values, zero = jnp.zeros_like(state.values.vector), jnp.zeros(())
    centre = jnp.concatenate([jnp.zeros_like(block.potential) for block in state.naturals])
    nothing = WindowAverage(jax.tree.map(jnp.zeros_like, state.naturals), values, values, centre, zero, jnp.ones(()))
    # The step numbers are arguments, so that one program serves any number of steps.
    state, total = jax.lax.fori_loop(first, last, body, (state, nothing))
    return state, jax.tree.map(lambda leaf: leaf / (last - first), total)._replace(share=1.0 - total.share)


def initial_ascent(
    problem: StochasticProblem, sample: Data, stream: Stream, settings: Settings
) -> tuple[Ascent, dict[str, float]]:
    """Return the initial state, after trial steps from the best start if values are trained, and the starts' bounds."""
    rows = DataBatch.of(next(stream(0)))
    first = rows.first(_RATE_BATCHES)

    def started(vector: np.ndarray) -> SviState:
        return to_host(_first(problem, as_array(vector), first))

    learning, model = float(settings.rates.learning), problem.parameters.model
    if not problem.parameters.leaf_indices:
        return Ascent(np.zeros(0), started(problem.start()), learning), {}
    # Start values are computed from a few rows, evenly spaced, since rows may be sorted.
    few = sample.at(np.linspace(0, len(sample.X) - 1, min(5000, len(sample.X))).astype(int))
    # Constant latents are fitted by the augmented bound, if there is one, which is cheap. With latent subsampling by
    # none: the bound at constants involves all latents.
    objective = model.augmentation if model.is_augmentable else problem.objective
    starts = initial_models(model, few, objective if problem.sample is None else None)
    models = {name: start.model for name, start in starts.items() if start.kind == "level"}
    states = {name: started(problem.start(model)) for name, model in models.items()}
    fixed_rates = settings.rates._replace(learning=as_array(np.float64(0.0)))
    # A few trial steps from each start value, on the same batches, so that the noise of their bounds is shared.
    count = 5 * settings.sweep
    tried = {name: advance(problem, state, rows, fixed_rates, 0, count) for name, state in states.items()}
    bounds = {name: float(window.bound) for name, (_, window) in tried.items()}
    finite = {name: bound for name, bound in bounds.items() if np.isfinite(bound)}
    if not finite:
        raise ValueError(
            "svi: the ELBO is not finite at the initial values. Give hyperparameters on the scale of the data."
        )
    best = to_host(tried[max(finite, key=lambda name: finite[name])][0])
    return Ascent(np.zeros(0), best, learning), finite


def structure(problem: StochasticProblem, stream: Stream, settings: Settings) -> Ascent:
    """Return an Ascent after windows, with shapes instead of arrays, without computation."""
    rows = DataBatch.of(next(stream(0)))
    first = _first.shapes(problem, as_array(problem.start()), rows.first(_RATE_BATCHES))
    state, window = advance.shapes(problem, first, rows, settings.rates, 0, settings.window)
    return Ascent(np.zeros(0), state, 0.0, 0, window, window, 0, False)


def maximise(
    problem: StochasticProblem,
    ascent: Ascent,
    stream: Stream,
    settings: Settings,
    save: Callable[[Ascent, bool, bool], None],
    progress: bool | None,
    callback: Callback | None = None,
) -> Outcome:
    """Windows of steps until convergence; ``save`` is called after each, with whether it is full and the last."""
    done, start_time = len(ascent.trace), time.perf_counter()
    rows = stream(done * settings.window)
    with progress_bar("svi", settings.windows, progress) as bar:
        bar.advance(done)
        while not ascent.converged and len(ascent.trace) < settings.windows:
            start, done = time.perf_counter(), len(ascent.trace)
            count = settings.num_steps(done + 1) - settings.num_steps(done)
            following = next_window if count == settings.window else last_window
            ascent = following(problem, ascent, DataBatch.of(next(rows)), settings)
            speed = count * settings.batch_size / (time.perf_counter() - start)
            save(ascent, count == settings.window, ascent.converged or done + 1 == settings.windows)
            bar.advance(1, f"bound {ascent.trace[-1]:.4f}, {speed:,.0f} rows/s")
            if callback is not None:
                values = map(np.asarray, problem.values_at(ascent.state.values.vector))
                named = dict(zip(problem.parameters.names, values, strict=True))
                seconds = time.perf_counter() - start_time
                callback(ascent.state, IterationInfo("svi", len(ascent.trace), float(ascent.trace[-1]), seconds, named))
    if not settings.noisy or ascent.window is None:
        return Outcome(ascent.state.naturals, ascent.state.values.vector, ascent.trace, ascent.converged)
    # The averages of the last windows.
    return Outcome(ascent.window.naturals, ascent.window.vector, ascent.trace, ascent.converged)


def _advanced(
    problem: StochasticProblem, ascent: Ascent, rows: DataBatch, settings: Settings, first: int, last: int
) -> tuple[SviState, WindowAverage]:
    """Steps on some of the batches. Raises ValueError if the bound or the means are not finite."""
    rates = settings.rates._replace(learning=as_array(np.float64(ascent.learning)))
    state, window = to_host(advance(problem, ascent.state, rows, rates, first, last))
    if not np.isfinite(window.bound) or not np.isfinite(np.asarray(window.centre)).all():
        raise ValueError(
            "svi: the bound is not finite. Look for extreme values in y, prior variances of many orders of magnitude, "
            "or a likelihood scale close to zero."
        )
    return state, window


def last_window(problem: StochasticProblem, ascent: Ascent, rows: DataBatch, settings: Settings) -> Ascent:
    """Make the last steps, which fill no window: averaged with the previous pool, or else over their later half."""
    count = settings.steps - len(ascent.trace) * settings.window
    half = count // 2 if ascent.window is None else 0
    if half:
        ascent = ascent._replace(state=_advanced(problem, ascent, rows, settings, 0, half)[0])
    state, window = _advanced(problem, ascent, rows, settings, half, count)
    trace = np.append(ascent.trace, float(window.bound))
    if ascent.window is not None:
        window = _merged(ascent.window, window, ascent.pooled * settings.window / count)
    return ascent._replace(state=state, window=window, trace=trace)


def next_window(problem: StochasticProblem, ascent: Ascent, rows: DataBatch, settings: Settings) -> Ascent:
    """Make the steps of a full window; then Adam's learning rate may fall, or q converge without training."""
    state, window = _advanced(problem, ascent, rows, settings, 0, settings.window)
    trace, windows_at_rate = np.append(ascent.trace, float(window.bound)), ascent.windows_at_rate + 1
    learning, before, pooled = ascent.learning, ascent.window, 1
    if ascent.window is not None and ascent.pooled < settings.pool:
        window, before, pooled = _merged(ascent.window, window, ascent.pooled), ascent.before, ascent.pooled + 1
    gains = not is_flat(trace[-windows_at_rate:])
    if learning > 0.0:
        if before is not None:
            learning = _reduced_rate(learning, before, window, gains, problem, settings)
        if not learning:
            state = state._replace(values=state.values._replace(vector=window.vector))
        windows_at_rate = windows_at_rate if learning == ascent.learning else 0
        return Ascent(trace, state, learning, windows_at_rate, window, before, pooled)
    # A bound on a subset of the rows is noisy: stop if its gain is below that noise.
    is_hidden = settings.batches > settings.window and not gains
    converged = False
    if before is not None:
        # Whether averages of E v differ by less than the tolerance (Wenzel et al. 2019).
        moved, size = (np.linalg.norm(part) for part in (window.centre - before.centre, window.centre))
        is_still = bool(moved <= settings.tolerance * float(window.share) * size)
        converged = is_hidden or (pooled == settings.pool and is_still)
    return Ascent(trace, state, learning, windows_at_rate, window, before, pooled, converged)


def _merged(window: WindowAverage, following: WindowAverage, count: float) -> WindowAverage:
    """The average of two windows, the first of ``count`` times as many steps as the second."""
    mean = jax.tree.map(lambda first, second: first + (second - first) / (count + 1), window, following)
    return mean._replace(share=1.0 - (1.0 - window.share) * (1.0 - following.share))


def _reduced_rate(
    learning: float,
    before: WindowAverage,
    now: WindowAverage,
    gains: bool,
    problem: StochasticProblem,
    settings: Settings,
) -> float:
    """Adam's next rate: halved up to 4 times if steps are noise or gain nothing, and 0 once averages settle."""
    # Inducing inputs keep moving in directions that hardly change the bound: they count if nothing else is learned.
    counts = slice(len(problem.parameters.gps) or None)
    moved = np.abs(np.asarray(now.vector - before.vector))[counts]
    if np.all(moved <= 0.1 * settings.tolerance * np.asarray(problem.units)[counts]):
        return 0.0
    spread = np.sqrt(np.maximum(np.asarray(now.square - now.vector**2), 0.0))[counts]
    if gains and np.any(moved > spread):
        return learning
    return learning / 2.0 if learning > float(settings.rates.learning) / 16.0 else 0.0


def is_flat(bounds: np.ndarray) -> bool:
    """Return whether the last third of the bounds exceeds the previous third by at most its standard error."""
    third = len(bounds) // 3
    if third < 2:
        return False
    later, earlier = bounds[-third:], bounds[-2 * third : -third]
    error = np.sqrt((later.var(ddof=1) + earlier.var(ddof=1)) / third)
    return bool(later.mean() - earlier.mean() <= error)


class Source(NamedTuple):
    """A source: rows, their number, the standardisation and names of inputs, and a digest, empty if all in memory."""

    rows: Rows
    num_rows: int
    scaling: Scaling
    columns: Columns | None
    digest: str


def paired(X: Any, y: Any) -> tuple[Any, Any]:
    """Return X and y, which may be passed as a pair. Raises ValueError if y is missing."""
    if y is not None or isinstance(X, Rows):
        return X, y
    if isinstance(X, tuple) and len(X) == 2:
        return X
    raise ValueError(
        f"y is missing, and X, of type {type(X).__name__}, has none: give X and y, or rows that have both, "
        "pgm.ArrayRows(X, y), pgm.ParquetRows(files, target) or pgm.IterableRows(pairs), of pairs (X, y)."
    )


class RowCheck:
    """A model's checks of successive blocks of rows; ``unseen`` are the classes without an observation."""

    def __init__(self, model: Model):
        self.model = model
        self.unseen: list[int] = []
        self.num_columns: int | None = None

    def __call__(self, X: np.ndarray, y: np.ndarray) -> Block:
        """A block as float64. Raises ValueError with the row within the block."""
        inputs = self.model.check_inputs(X, "X")
        is_first, num_columns = self.num_columns is None, inputs.shape[1]
        if is_first:
            self.num_columns = num_columns
            for gp in self.model.gps:
                check_traced(gp.kernel, num_columns)
                gp.form.check(gp.kernel, num_columns)
        elif num_columns != self.num_columns:
            raise ValueError(f"X must have {self.num_columns} column(s), as the first rows; got shape {np.shape(X)}.")
        for gp in self.model.gps:
            check_lookups(gp.kernel, inputs, "X")
        observations = self.model.check_observations(y, len(inputs))
        unseen = unseen_classes(self.model, observations)
        self.unseen = unseen if is_first else sorted(set(unseen) & set(self.unseen))
        return inputs, observations


def source_of(
    model: Model,
    X: Any,
    y: Any,
    weights: ArrayLike | None,
    missing: MissingChoice,
    train_hyperparameters: bool,
    objective: Objective,
    seed: int,
) -> tuple[Model, Data, Source]:
    """Return the model, the checked data or a sample of the rows, and the source of batches."""
    if isinstance(X, Rows):
        check_missing(missing)
        if missing != "raise":
            raise ValueError(f"missing={missing!r} needs an array X; {Rows.__name__} must have a y in each row.")
        extra = [name for name, value in (("y", y), ("weights", weights)) if value is not None]
        if extra:
            raise ValueError(f"{extra[0]} needs an array X: {Rows.__name__} have their own y, and no weights.")
    reasons = {
        "rows that are not in memory": isinstance(X, Rows),
        "train_hyperparameters=True": train_hyperparameters,
        f"objective={objective.name!r}": not objective.is_monotone,
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    for gp in model.gps:
        if reason is not None and not gp.form.num_inputs:
            raise ValueError(
                f"svi with {reason} needs GPs with inducing inputs; got {gp!r}. Use "
                "pgm.GP(kernel, form=pgm.Inducing(300))."
            )
    if not isinstance(X, Rows):
        model, data = model.prepare(X, y, weights, missing)
        unscaled = Scaling(np.zeros(data.X.shape[1]), np.ones(data.X.shape[1]))
        rows = ArrayRows(data.X, data.y)
        if data.weights is not None:
            rows.arrays = (*rows.arrays, data.weights)
        return model, data, Source(rows, len(data.X), unscaled, data.columns, "")
    columns = None if X.columns is None else tuple(map(Column, X.columns))
    model = with_numbered_columns(model, columns)
    check = RowCheck(model)
    surveyed = survey(X, check, seed)
    warn_unseen(model, check.unseen)
    indexed = sorted(set().union(*(gp.kernel.reads(surveyed.X.shape[1], "levels") for gp in model.gps)))
    if X.standardise and indexed:
        raise ValueError(
            f"standardise=True would change column {indexed[0]} of X, whose values are numbers of outputs: standardise "
            "the other columns beforehand, and leave it out."
        )
    source = Source(X, surveyed.num_rows, surveyed.scaling, columns, surveyed.digest)
    return model, Data(surveyed.X, surveyed.y, columns), source


def shuffled(source: Source, settings: Settings, key: RandomKey) -> Stream:
    """Return stacks of batches, one per window, in a new order every epoch; one batch if it has all rows."""
    seed = np.asarray(jax.random.key_data(key)).ravel().tolist()

    def stream(first: int) -> Iterator[Block]:
        every = batches(source.rows, source.scaling, source.num_rows, settings.batch_size, seed, first)
        return stacked_batches(every, settings.window if settings.batch_size < source.num_rows else 1)

    return stream


class PassStatistics(NamedTuple):
    """Of a pass over all rows: the bound of q, the optimal q given its marginals, and the inducing loss."""

    bound: Array
    targets: tuple[NaturalParameters, ...]
    inducing_loss: Float[Array, "2"]


def run_final_passes(
    problem: StochasticProblem,
    model: Model,
    outcome: Outcome,
    source: Source,
    settings: Settings,
    progress: bool | None,
) -> Outcome:
    """Steps on all rows after the stochastic steps, until the bound converges or ``max_epochs`` is reached.

    Means are extrapolated by Anderson acceleration (``pgmodels.numerics.iteration``) while that raises the bound;
    otherwise the plain step is taken and the history discarded. The bounds are appended to the trace. Warns if q is not
    at the optimum, or if ``model`` has too few inducing inputs.
    """
    num_blocks = len(problem.objective.blocks)

    def by_stack(naturals: tuple[NaturalParameters, ...]) -> Iterator[PassStatistics]:
        for rows, count, size in _stacks(source, settings):
            means = to_host(_means(problem, naturals, rows, outcome.vector, count))
            yield jax.tree.map(lambda leaf, share=count * size / source.num_rows: share * leaf, means)

    def step(naturals: tuple[NaturalParameters, ...]) -> tuple[PassStatistics, tuple[NaturalParameters, ...]]:
        """Statistics at q, and the q after a step of each block of the objective, by a pass for each."""
        passes = []
        for block in range(num_blocks):
            passes.append(reduce(partial(jax.tree.map, jnp.add), by_stack(naturals)))
            targets, moving = passes[-1].targets, block_indices(problem, block)
            naturals = tuple(targets[k] if k in moving else each for k, each in enumerate(naturals))
        return passes[0], naturals

    best = now = outcome.naturals
    fallback, history, trace, gain, converged = None, _new_history(now), list[float](), None, False
    inducing_loss: Array | np.ndarray = np.zeros(2)
    remaining_epochs = settings.remaining_epochs(len(outcome.trace)) // num_blocks
    with progress_bar("svi, all rows", remaining_epochs, progress) as bar:
        for _ in range(remaining_epochs):
            statistics, image = step(now)
            bound = float(statistics.bound)
            bar.advance(1, f"bound {bound:.4f}")
            if trace and not bound >= trace[-1]:
                if fallback is None:
                    break
                now, fallback, history = fallback, None, _new_history(now)
                continue
            best, inducing_loss = image, statistics.inducing_loss
            trace.append(bound)
            # The step gains at least KL(q || next q): the next q maximises a lower bound that touches the bound at q
            # and decreases as KL does.
            gain = float(_divergence(now, image))
            converged = gain <= settings.max_gain(source.num_rows, bound)
            if converged:
                break
            history, now, extrapolates = _extrapolate(history, now, best)
            fallback = best if extrapolates else None
    if not converged:
        warn_gaining(settings, gain)
    nats, share = np.asarray(inducing_loss).tolist()
    warn_costly(model, nats, share)
    return Outcome(best, outcome.vector, np.append(outcome.trace, trace), converged)


def warn_gaining(settings: Settings, gain: float | None) -> None:
    """Warn that q is not at the optimum; ``gain`` is the gain of a step on all rows, None if no pass remained."""
    gains = "none remains to measure the gain of a step on all rows"
    if gain is not None:
        gains = f"a step on all rows still gains {gain:.2g} nats"
    warn(
        f"svi did not converge: after {settings.passes} passes {gains}. Raise max_epochs or tolerance.",
        ConvergenceWarning,
    )


def _stacks(source: Source, settings: Settings) -> Iterator[tuple[DataBatch, int, int]]:
    """All rows in stacks of equal batches, the last padded, with the number and the size of the batches."""
    several: list[Block] = []

    def stacked(length: int) -> tuple[DataBatch, int, int]:
        padded = several + [several[-1]] * (length - len(several))
        rows = DataBatch.of(tuple(np.stack(arrays) for arrays in zip(*padded, strict=True)))
        return rows, len(several), rows.X.shape[1]

    most = min(settings.window, settings.batches)
    for batch in in_order(source.rows, source.scaling, source.num_rows, settings.batch_size):
        if len(several) == most or (several and (len(batch[1]) < settings.batch_size)):
            yield stacked(most)
            several = []
        several.append(batch)
    if not several:
        raise ValueError("a pass over the data has no rows: give the same rows in every pass.")
    yield stacked(most if len(several[0][1]) == settings.batch_size else 1)


def _new_history(naturals: tuple[NaturalParameters, ...]) -> History:
    return empty_history([each.potential for each in naturals])


@compiled
def _extrapolate(
    history: History, now: tuple[NaturalParameters, ...], image: tuple[NaturalParameters, ...]
) -> tuple[History, tuple[NaturalParameters, ...], Array]:
    """The history with one more step, q with extrapolated mean (not precision), and whether the history was used."""
    was_started, before = history.started, [to_moments(each)[1] for each in now]
    history = history.after(before, [to_moments(each)[1] for each in image])
    means = jnp.split(history.combined(), np.cumsum([len(each.potential) for each in image])[:-1])
    pairs = zip(image, means, strict=True)
    extrapolated = tuple(NaturalParameters(each.precision, mean + each.precision @ mean) for each, mean in pairs)
    return history, extrapolated, was_started


@compiled
@shard_rows
def _means(
    problem: StochasticProblem,
    naturals: tuple[NaturalParameters, ...],
    rows: DataBatch,
    vector: Array,
    count: Array | int,
) -> PassStatistics:
    """The means of the statistics of ``count`` batches."""

    def add(index: Array, total: PassStatistics) -> PassStatistics:
        bound, (batch, moments) = penalised_bound(problem, naturals, vector, rows.number(index))
        targets = problem.targets(batch, moments.mean, moments.variance)
        return jax.tree.map(jnp.add, total, PassStatistics(bound, targets, problem.inducing_loss(batch, moments)))

    nothing = PassStatistics(jnp.zeros(()), jax.tree.map(jnp.zeros_like, naturals), jnp.zeros(2))
    return jax.tree.map(lambda leaf: leaf / count, jax.lax.fori_loop(0, count, add, nothing))


@compiled
def _divergence(one: Sequence[NaturalParameters], other: Sequence[NaturalParameters]) -> Float[Array, ""]:
    return sum((divergence_between(*pair) for pair in zip(one, other, strict=True)), jnp.zeros(()))
