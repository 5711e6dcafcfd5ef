"""Steps of svi on all rows, a pass each, until one gains next to nothing: they say whether q is at its optimum."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.data.sources.rows import Block
from pgmodels.data.sources.stream import in_order
from pgmodels.inference.inducing_selection import warn_costly
from pgmodels.inference.stochastic.convergence import Outcome, Settings
from pgmodels.inference.stochastic.natural_parameters import NaturalParameters, divergence_between, solved
from pgmodels.inference.stochastic.rows import Source
from pgmodels.inference.stochastic.sharding import split_rows, where_rows_are
from pgmodels.inference.stochastic.step import StochasticProblem, penalised_bound, places
from pgmodels.inference.variational.cavi import ConvergenceWarning
from pgmodels.model import Model
from pgmodels.numerics.anderson import History, empty_history
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.progress import progress_bar
from pgmodels.runtime.warnings import warn


class _Image(NamedTuple):
    """The bound of q, the q to which a step on all rows leads, what it gains at least, and what q leaves out.

    It gains KL(q || that) at least: the q that is optimal beside q's marginals maximises a bound that touches q's and
    falls off as KL does. For what is left out see ``StochasticProblem.left_out``.
    """

    bound: float
    naturals: tuple[NaturalParameters, ...]
    gain: float
    left_out: np.ndarray


def arrive(
    whole: StochasticProblem, model: Model, outcome: Outcome, source: Source, settings: Settings, progress: bool | None
) -> Outcome:
    """Steps on all rows from where stochastic ones ended, until one gains next to nothing or no passes are left.

    Means are carried on from the last few steps, as in ``pgmodels.numerics.anderson``, while the bound rises by
    it; else the step itself counts, and those before are forgotten. The bounds of all rows follow on the trace. Warns
    where q did not come to the optimum, or ``model`` has too few inducing inputs.
    """
    best = now = outcome.naturals
    safe, memory, trace, gain, converged = None, _forgotten(now), list[float](), None, False
    left_out = np.zeros(2)
    left = settings.passes_left(len(outcome.trace)) // len(whole.objective.blocks)
    with progress_bar("svi, all rows", left, progress) as bar:
        for _ in range(left):
            image = _look(whole, now, outcome.vector, source, settings)
            bar.advance(1, f"bound {image.bound:.4f}")
            if trace and not image.bound >= trace[-1]:
                if safe is None:
                    break
                now, safe, memory = safe, None, _forgotten(now)
                continue
            best, gain = image.naturals, image.gain
            trace.append(image.bound)
            converged = gain <= settings.enough(source.num_rows, image.bound)
            left_out = image.left_out
            if converged:
                break
            memory, now, goes_further = _further(memory, now, best)
            safe = best if goes_further else None
    if not converged:
        warn_gaining(settings, gain)
    nats, share = left_out.tolist()
    warn_costly(model, nats, share)
    return Outcome(best, outcome.vector, np.append(outcome.trace, trace), converged)


def warn_gaining(settings: Settings, gain: float | None) -> None:
    """Warn that q is not at the optimum, by what a step on all rows gains: None where no passes were left for one."""
    gains = "none is left to say what a step on all rows gains"
    if gain is not None:
        gains = f"a step on all rows still gains {gain:.2g} nats"
    warn(
        f"svi did not converge: after {settings.passes} passes {gains}. Raise max_epochs or tolerance.",
        ConvergenceWarning,
    )


def _forgotten(naturals: tuple[NaturalParameters, ...]) -> History:
    return empty_history([each.potential for each in naturals])


@compiled
def _further(
    memory: History, now: tuple[NaturalParameters, ...], image: tuple[NaturalParameters, ...]
) -> tuple[History, tuple[NaturalParameters, ...], Array]:
    """The past with one more step, q with its mean carried on, and whether the past says how far.

    The precision is that of the step: the mean is what moves slowly, and it is small beside it.
    """
    is_known, before = memory.started, [solved(each)[1] for each in now]
    memory = memory.after(before, [solved(each)[1] for each in image])
    parts = jnp.split(memory.combined(), np.cumsum([len(each.potential) for each in image])[:-1])
    pairs = zip(image, parts, strict=True)
    return (
        memory,
        tuple(NaturalParameters(each.precision, part + each.precision @ part) for each, part in pairs),
        is_known,
    )


def _look(
    whole: StochasticProblem, naturals: tuple[NaturalParameters, ...], vector: Array, source: Source, settings: Settings
) -> _Image:
    """A pass over all rows for each block of the objective, which are updated in turn."""
    begun, first = naturals, _pass(whole, naturals, vector, source, settings)
    for index in range(len(whole.objective.blocks)):
        seen = first if index == 0 else _pass(whole, naturals, vector, source, settings)
        moving = places(whole, index)
        naturals = tuple(seen.targets[k] if k in moving else each for k, each in enumerate(naturals))
    return _Image(float(first.bound), naturals, float(_divergence(begun, naturals)), np.asarray(first.left_out))


class _Seen(NamedTuple):
    """What a pass finds of q: its bound, the optimal q beside its marginals, and what it leaves out."""

    bound: Array
    targets: tuple[NaturalParameters, ...]
    left_out: Float[Array, "2"]


def _pass(
    whole: StochasticProblem, naturals: tuple[NaturalParameters, ...], vector: Array, source: Source, settings: Settings
) -> _Seen:
    """A pass over all rows."""
    total = None
    for batches, count, size in _chunks(source, settings):
        here = whole if size == settings.batch_size else replace(whole, split=split_rows(size))
        seen = here.split.at_hand(_means(here, (naturals, vector), *here.split.place(batches), count))
        seen = jax.tree.map(lambda leaf, share=count * size / source.num_rows: share * leaf, seen)
        total = seen if total is None else jax.tree.map(jnp.add, total, seen)
    if total is None:
        raise ValueError("a pass over the data has no rows: give the same rows in every pass.")
    return total


def _chunks(source: Source, settings: Settings) -> Iterator[tuple[Block, int, int]]:
    """All rows in batches, those of a window at a time, of equal size: with their number and size.

    Where they are fewer, the last one fills up, so that the same program takes them.
    """
    several: list[Block] = []

    def stacked(most: int) -> tuple[Block, int, int]:
        count = len(several)
        padded = several + [several[-1]] * (most - count)
        X, y = (np.stack(parts) for parts in zip(*padded, strict=True))
        return (X, y), count, X.shape[1]

    most = min(settings.window, settings.batches)
    for batch in in_order(source.rows, source.scaling, source.num_rows, settings.batch_size):
        is_rest = len(batch[1]) < settings.batch_size
        if len(several) == most or (several and is_rest):
            yield stacked(most)
            several = []
        several.append(batch)
    yield stacked(most if len(several[0][1]) == settings.batch_size else 1)


@compiled
@where_rows_are
def _means(
    whole: StochasticProblem,
    at: tuple[tuple[NaturalParameters, ...], Array],
    X: Float[Array, "most b d"],
    y: Array,
    count: Array,
) -> _Seen:
    """What is seen of q, averaged over so many batches."""
    naturals, vector = at

    def add(index: Array, total: _Seen) -> _Seen:
        bound, (batch, moments) = penalised_bound(whole, naturals, vector, X[index], y[index])
        targets = whole.targets(batch, moments.mean, moments.variance)
        seen = _Seen(whole.split.total(bound), targets, whole.left_out(batch, moments))
        return jax.tree.map(jnp.add, total, seen)

    nothing = _Seen(jnp.zeros(()), jax.tree.map(jnp.zeros_like, naturals), jnp.zeros(2))
    return jax.tree.map(lambda leaf: leaf / count, jax.lax.fori_loop(0, count, add, nothing))


@compiled
def _divergence(one: Sequence[NaturalParameters], other: Sequence[NaturalParameters]) -> Float[Array, ""]:
    return sum((divergence_between(*pair) for pair in zip(one, other, strict=True)), jnp.zeros(()))
