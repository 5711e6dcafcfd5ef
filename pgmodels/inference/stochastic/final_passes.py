"""Steps of svi on all rows, one epoch each, until the bound converges."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.data.sources.rows import Block
from pgmodels.data.sources.stream import in_order
from pgmodels.inference.adaptive_selection import warn_costly
from pgmodels.inference.engine import ConvergenceWarning
from pgmodels.inference.stochastic.convergence import Outcome, Settings
from pgmodels.inference.stochastic.natural_parameters import NaturalParameters, divergence_between, to_moments
from pgmodels.inference.stochastic.rows import Source
from pgmodels.inference.stochastic.sharding import DataBatch, shard_rows, to_host
from pgmodels.inference.stochastic.step import StochasticProblem, block_indices, penalised_bound
from pgmodels.model import Model
from pgmodels.numerics.anderson import History, empty_history
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.progress import progress_bar
from pgmodels.runtime.warnings import warn


class _PassResult(NamedTuple):
    """The bound of q, the q after a step on all rows, a lower bound on the step's gain, and the inducing loss.

    The step gains at least KL(q || next q): the next q maximises a lower bound that touches the bound at q and
    decreases as KL does. For the inducing loss see ``StochasticProblem.inducing_loss``.
    """

    bound: float
    naturals: tuple[NaturalParameters, ...]
    gain: float
    inducing_loss: np.ndarray


def run_final_passes(
    problem: StochasticProblem,
    model: Model,
    outcome: Outcome,
    source: Source,
    settings: Settings,
    progress: bool | None,
) -> Outcome:
    """Steps on all rows after the stochastic steps, until the bound converges or ``max_epochs`` is reached.

    Means are extrapolated by Anderson acceleration (``pgmodels.numerics.anderson``) while that raises the bound;
    otherwise the plain step is taken and the history discarded. The bounds are appended to the trace. Warns if q is not
    at the optimum, or if ``model`` has too few inducing inputs.
    """
    best = now = outcome.naturals
    fallback, history, trace, gain, converged = None, _new_history(now), list[float](), None, False
    inducing_loss = np.zeros(2)
    remaining_epochs = settings.remaining_epochs(len(outcome.trace)) // len(problem.objective.blocks)
    with progress_bar("svi, all rows", remaining_epochs, progress) as bar:
        for _ in range(remaining_epochs):
            image = _update(problem, now, outcome.vector, source, settings)
            bar.advance(1, f"bound {image.bound:.4f}")
            if trace and not image.bound >= trace[-1]:
                if fallback is None:
                    break
                now, fallback, history = fallback, None, _new_history(now)
                continue
            best, gain = image.naturals, image.gain
            trace.append(image.bound)
            converged = gain <= settings.max_gain(source.num_rows, image.bound)
            inducing_loss = image.inducing_loss
            if converged:
                break
            history, now, extrapolates = _extrapolate(history, now, best)
            fallback = best if extrapolates else None
    if not converged:
        warn_gaining(settings, gain)
    nats, share = inducing_loss.tolist()
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


def _new_history(naturals: tuple[NaturalParameters, ...]) -> History:
    return empty_history([each.potential for each in naturals])


@compiled
def _extrapolate(
    history: History, now: tuple[NaturalParameters, ...], image: tuple[NaturalParameters, ...]
) -> tuple[History, tuple[NaturalParameters, ...], Array]:
    """The history with one more step, q with extrapolated mean, and whether the history was used.

    The precision is not extrapolated: the mean converges more slowly, and is small in comparison.
    """
    was_started, before = history.started, [to_moments(each)[1] for each in now]
    history = history.after(before, [to_moments(each)[1] for each in image])
    means = jnp.split(history.combined(), np.cumsum([len(each.potential) for each in image])[:-1])
    pairs = zip(image, means, strict=True)
    return (
        history,
        tuple(NaturalParameters(each.precision, mean + each.precision @ mean) for each, mean in pairs),
        was_started,
    )


def _update(
    problem: StochasticProblem,
    naturals: tuple[NaturalParameters, ...],
    vector: Array,
    source: Source,
    settings: Settings,
) -> _PassResult:
    """A pass over all rows for each block of the objective, which are updated in turn."""
    begun, first = naturals, _pass(problem, naturals, vector, source, settings)
    for index in range(len(problem.objective.blocks)):
        statistics = first if index == 0 else _pass(problem, naturals, vector, source, settings)
        moving = block_indices(problem, index)
        naturals = tuple(statistics.targets[k] if k in moving else each for k, each in enumerate(naturals))
    return _PassResult(
        float(first.bound), naturals, float(_divergence(begun, naturals)), np.asarray(first.inducing_loss)
    )


class _PassStatistics(NamedTuple):
    """Statistics of a pass: the bound of q, the optimal q given its marginals, and the inducing loss."""

    bound: Array
    targets: tuple[NaturalParameters, ...]
    inducing_loss: Float[Array, "2"]


def _pass(
    problem: StochasticProblem,
    naturals: tuple[NaturalParameters, ...],
    vector: Array,
    source: Source,
    settings: Settings,
) -> _PassStatistics:
    """A pass over all rows."""
    total = None
    for batches, count, size in _chunks(source, settings):
        statistics = to_host(_means(problem, (naturals, vector), DataBatch.of(batches), count))
        statistics = jax.tree.map(lambda leaf, share=count * size / source.num_rows: share * leaf, statistics)
        total = statistics if total is None else jax.tree.map(jnp.add, total, statistics)
    if total is None:
        raise ValueError("a pass over the data has no rows: give the same rows in every pass.")
    return total


def _chunks(source: Source, settings: Settings) -> Iterator[tuple[Block, int, int]]:
    """All rows in stacks of equal batches, with the number and the size of the batches.

    Incomplete stacks are padded with the last batch, so that one compiled program serves all.
    """
    several: list[Block] = []

    def stacked(most: int) -> tuple[Block, int, int]:
        count = len(several)
        padded = several + [several[-1]] * (most - count)
        block = tuple(np.stack(arrays) for arrays in zip(*padded, strict=True))
        return block, count, block[0].shape[1]

    most = min(settings.window, settings.batches)
    for batch in in_order(source.rows, source.scaling, source.num_rows, settings.batch_size):
        is_rest = len(batch[1]) < settings.batch_size
        if len(several) == most or (several and is_rest):
            yield stacked(most)
            several = []
        several.append(batch)
    yield stacked(most if len(several[0][1]) == settings.batch_size else 1)


@compiled
@shard_rows
def _means(
    problem: StochasticProblem,
    at: tuple[tuple[NaturalParameters, ...], Array],
    rows: DataBatch,
    count: Any,
) -> _PassStatistics:
    """Statistics of q, averaged over ``count`` batches."""
    naturals, vector = at

    def add(index: Array, total: _PassStatistics) -> _PassStatistics:
        bound, (batch, moments) = penalised_bound(problem, naturals, vector, rows.number(index))
        targets = problem.targets(batch, moments.mean, moments.variance)
        statistics = _PassStatistics(bound, targets, problem.inducing_loss(batch, moments))
        return jax.tree.map(jnp.add, total, statistics)

    nothing = _PassStatistics(jnp.zeros(()), jax.tree.map(jnp.zeros_like, naturals), jnp.zeros(2))
    return jax.tree.map(lambda leaf: leaf / count, jax.lax.fori_loop(0, count, add, nothing))


@compiled
def _divergence(one: Sequence[NaturalParameters], other: Sequence[NaturalParameters]) -> Float[Array, ""]:
    return sum((divergence_between(*pair) for pair in zip(one, other, strict=True)), jnp.zeros(()))
