"""Stochastic variational inference: steps on a few rows at a time until nothing moves, and the result."""

import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from pgmodels.batches.array import ArrayRows
from pgmodels.batches.rows import Block, Rows, Scaling
from pgmodels.batches.stream import batches, some_at_a_time
from pgmodels.inference import cavi as cavi_engine
from pgmodels.inference import windows
from pgmodels.inference.cavi import CaviState, ConvergenceWarning, conclude
from pgmodels.inference.drive import Ascent
from pgmodels.inference.fit import hold_unnormalised
from pgmodels.inference.gibbs.sampler import as_key
from pgmodels.inference.inducing import choose_inputs, with_inputs
from pgmodels.inference.natural_gradient import Naturals, Sparse
from pgmodels.inference.problem import Problem, problem_of
from pgmodels.inference.starts import steps
from pgmodels.inference.windows import Outcome, Settings, settle
from pgmodels.integration import at_a_time, equal_chunks
from pgmodels.latent.inducing import Inducing
from pgmodels.latent.rows import resize_rows
from pgmodels.latent.sequential import ASCENT_OPTIONS
from pgmodels.model import Data, Model, require_model
from pgmodels.options import check_between, check_whole_number
from pgmodels.precision import as_array, double_precision
from pgmodels.results.approximation import Approximation, FitReport
from pgmodels.threads import one_thread_if_small
from pgmodels.unknowns import Unknowns, learned

# The rate named "robbins-monro": (t + delay)^-power.
_DELAY, _POWER = 1.0, 0.7


@partial(jax.jit, compiler_options=ASCENT_OPTIONS)
def _moments(whole: Sparse, naturals: tuple[Naturals, ...], vector: Array, X: Array, y: Array) -> tuple[Array, Array]:
    found = whole.moments(whole.batch(vector, X, y), naturals)
    return found.mean, found.variance


@double_precision
@one_thread_if_small
def svi(
    model: Model,
    X: Any,
    y: Any = None,
    *,
    weights: Any = None,
    batch_size: int = 1000,
    learn: bool = False,
    rate: Any = "robbins-monro",
    max_passes: int | None = None,
    tolerance: float = 0.1,
    seed: Any = 0,
    progress: bool | None = None,
) -> Approximation:
    """The Gaussian q(f) of ``cavi``, found by natural-gradient steps on batches of rows.

    X (n, d), y (n,) or (n, columns); ``weights`` (n,) as in ``cavi``. Rows are shuffled before every pass, and left out
    of it where they fill no batch; ``seed`` is an int or a JAX key. ``rate`` is the length of the steps:
    ``"robbins-monro"`` for (t + 1)^-0.7, delay and power of (t + delay)^-power, or ``"adaptive"``, which by measurement
    shrinks too soon. On all rows at once steps have length 1, and are those of CAVI.

    Hyperparameters are held at their values, or with ``learn`` learned along as in ``fit``, all that are not Fixed: a
    step of Adam on the bound of each batch, from the values given or from values in the units of the data. It takes
    GPs with ``pgm.Inducing``, whose inputs stay where they are.

    Stops where the averages of the whitened latents over two windows of steps, a pass where it has fewer, differ by
    less than ``tolerance``, relative to their size and to how far the steps of a window go. Before that, Adam's steps
    are halved whenever the averages of the values move by no more than noise, and end where they move by less than a
    tenth of ``tolerance``, of a positive value relatively. Warns with ConvergenceWarning where that takes more
    than ``max_passes`` (100, or as many as 10,000 steps take, where it is left out). 0.1 left the ELBO one or two
    hundredths of a nat below its optimum (20,000 rows, 100 inducing inputs). The result is q's average over the last
    window, and a step of CAVI on all rows from there, so that the ELBO is exact. Raises ValueError as ``cavi`` does,
    and for a GP whose form has no factor.
    Source: Hoffman, Blei, Wang and Paisley 2013; Wenzel et al. 2019; Kingma and Ba 2015.
    """
    begin = time.perf_counter()
    model, data = require_model(model).given(X, y, weights)
    check_whole_number(batch_size, "batch_size", 1)
    if max_passes is not None:
        check_whole_number(max_passes, "max_passes", 1)
    check_between(tolerance, "tolerance", 0.0, math.inf)
    decay, key = _decay(rate), as_key(seed)
    model = model.resolve(data.X)
    if learn:
        _require_inducing(model)
        model = hold_unnormalised(model, "svi", stacklevel=4)
    settings = settle(len(data.X), data.X.shape[1] + 1, batch_size, decay, max_passes, tolerance, learn)
    return _in_memory(model, data, settings, key, learn, decay is None, begin, progress)


def _in_memory(
    model: Model,
    data: Data,
    settings: Settings,
    key: Any,
    learn: bool,
    adaptive: bool,
    begin: float,
    progress: bool | None,
) -> Approximation:
    """Steps for a resolved model, and one of CAVI on all rows."""
    inputs = choose_inputs(model, data.X)
    held = with_inputs(model, inputs)
    problem = None if learn else problem_of(held, data)
    prior = held.prior(data.X[:1]) if problem is None else problem.prior
    prior.factors()
    learnable = learned(model) if learn else Unknowns(model, lambda parameter: False)
    whole = _whole(model, prior, learnable, inputs, data.X, len(data.X), adaptive)
    scaling = Scaling(np.zeros(data.X.shape[1]), np.ones(data.X.shape[1]))
    stream = _stream(ArrayRows(data.X, data.y), scaling, len(data.X), settings, key)
    ascent, starts = windows.begin(whole, data, stream, settings)
    outcome = windows.ascend(whole, ascent, stream, settings, progress)
    _warn(outcome, settings)
    values = [np.asarray(value) for value in learnable.constrain(outcome.vector)]
    final = with_inputs(learnable.with_values(values), inputs)
    problem = problem or problem_of(final, data)
    last = cavi_engine.step(problem, _state_at_all(problem, whole, outcome, data))
    result = conclude(
        "svi",
        final,
        data,
        problem,
        Ascent(last, np.asarray(last.elbo)[None], True),
        settings.tolerance,
        begin,
    )
    report = _report(outcome, starts, learnable, values, settings) if learn else None
    return replace(result, objective="cavi", converged=outcome.converged, fit=report)


def _stream(rows: Rows, scaling: Scaling, num_rows: int, settings: Settings, key: Any) -> windows.Stream:
    seed = np.asarray(jax.random.key_data(key)).ravel().tolist()

    def stream(first: int) -> Iterator[Block]:
        return some_at_a_time(batches(rows, scaling, num_rows, settings.batch_size, seed, first), settings.window)

    return stream


def _whole(
    model: Model, prior: Any, learnable: Unknowns, inputs: Any, X: np.ndarray, num_rows: int, adaptive: bool
) -> Sparse:
    units = steps(learnable, X) if learnable.places else np.zeros(0)
    Z = tuple(as_array(own) for own in inputs) if learnable.places else ()
    return Sparse(
        model.augmentation, learnable, model.bare(), prior, Z, as_array(units), as_array(np.float64(num_rows)), adaptive
    )


def _warn(outcome: Outcome, settings: Settings) -> None:
    if not outcome.converged:
        warnings.warn(
            f"svi did not converge: after {settings.passes} passes the whitened latents still move by more than "
            f"{settings.tolerance:g} of their size. Raise max_passes, batch_size or tolerance.",
            ConvergenceWarning,
            stacklevel=5,
        )


def _report(
    outcome: Outcome, starts: dict[str, float], learnable: Unknowns, values: list[np.ndarray], settings: Settings
) -> FitReport:
    num_steps = len(outcome.trace) * settings.window
    return FitReport(
        start=max(starts, key=lambda name: starts[name], default="values given"),
        start_elbos=starts,
        values=dict(zip(learnable.names, values, strict=True)),
        num_steps=num_steps,
        num_evaluations=num_steps,
        converged=outcome.converged,
        message="the averages of two windows agree" if outcome.converged else "no passes left",
    )


def _require_inducing(model: Model) -> None:
    for gp in model.gps:
        if not isinstance(gp.form, Inducing):
            raise ValueError(
                f"svi learns hyperparameters of GPs by inducing inputs; got {gp!r}. Use pgm.GP(kernel, "
                "form=pgm.Inducing(300)), or pgm.fit."
            )


def _state_at_all(problem: Problem, whole: Sparse, outcome: Outcome, data: Data) -> CaviState:
    """q's moments at all rows, and the optimal sites there."""
    n, width = len(data.y), sum(group.rank * group.size for group in whole.prior.groups)
    chunks = equal_chunks(np.arange(n), min(n, at_a_time(width)))
    X, y = data.X, data.y
    found = (_moments(whole, outcome.naturals, outcome.vector, as_array(X[own]), as_array(y[own])) for own in chunks)
    size = problem.prior.num_rows
    mean, variance = (as_array(resize_rows(np.concatenate(both)[:n], size)) for both in zip(*found, strict=True))
    return CaviState(mean, variance, problem.sites(mean, variance), as_array(-np.inf))


def _decay(rate: Any) -> tuple[float, float] | None:
    """Delay and power of a rate, None for the adaptive one."""
    if isinstance(rate, str) and rate == "adaptive":
        return None
    if isinstance(rate, str) and rate == "robbins-monro":
        return _DELAY, _POWER
    if not isinstance(rate, tuple | list) or len(rate) != 2:
        raise ValueError(
            f"rate must be 'adaptive', 'robbins-monro' or delay and power of (t + delay)^-power; got {rate!r}."
        )
    check_between(rate[0], "the delay of rate", 0.0, math.inf)
    if float(rate[0]) < 1.0:
        raise ValueError(
            f"the delay of rate must be at least 1, or the first steps are longer than 1; got {rate[0]!r}."
        )
    # The sum of all steps must be infinite and that of their squares finite.
    check_between(rate[1], "the power of rate", 0.5, 1.0 + 1e-12)
    return float(rate[0]), float(rate[1])
