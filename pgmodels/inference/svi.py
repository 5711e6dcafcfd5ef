"""Stochastic variational inference: steps on a few rows at a time until nothing moves, and the result."""

import math
import time
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from pgmodels.batches.rows import Rows
from pgmodels.compiled import compiled
from pgmodels.identity import digest
from pgmodels.inference import cavi as cavi_engine
from pgmodels.inference import windows
from pgmodels.inference.cavi import ConvergenceWarning, conclude
from pgmodels.inference.class_steps import sample_of
from pgmodels.inference.devices import check_alike, others_named, split_rows
from pgmodels.inference.drive import ascend
from pgmodels.inference.fit import OBJECTIVES, hold_unnormalised
from pgmodels.inference.gaussian_vi import is_affordable
from pgmodels.inference.inducing import Inputs, with_inputs, without_inputs
from pgmodels.inference.natural_gradient import LatentSample, Sparse
from pgmodels.inference.naturals import Naturals
from pgmodels.inference.penalised_bound import objective_of
from pgmodels.inference.problem import Problem, problem_of
from pgmodels.inference.starts import steps
from pgmodels.inference.svi_checkpoint import SviCheckpoint
from pgmodels.inference.svi_inputs import inputs_for_steps
from pgmodels.inference.svi_passes import arrive, warn_gaining
from pgmodels.inference.svi_posterior import posterior
from pgmodels.inference.svi_rows import Source, paired, shuffled, source_of
from pgmodels.inference.variance_ratio import warn_narrow
from pgmodels.inference.windows import Outcome, Settings, settle
from pgmodels.integration import at_a_time, equal_chunks
from pgmodels.latent.blocks import JOINT_LIMIT
from pgmodels.latent.joint import JointPrior
from pgmodels.latent.rows import resize_rows
from pgmodels.model import Data, Model, require_model
from pgmodels.objectives.protocol import Objective
from pgmodels.objectives.quadrature import Quadrature
from pgmodels.objectives.shifted import ShiftedQuadrature
from pgmodels.options import check_between, check_whole_number
from pgmodels.precision import as_array, double_precision
from pgmodels.results.approximation import Approximation, FitReport
from pgmodels.results.sparse import SparseApproximation
from pgmodels.seeds import as_key
from pgmodels.threads import one_thread_if_small
from pgmodels.unknowns import Unknowns, learned
from pgmodels.warning import warn

# The rate named "robbins-monro": (t + delay)^-power. Steps towards what is not the optimum of a bound are short from
# the first on.
_DELAY, _POWER = {"cavi": 1.0, "gaussian_vi": 10.0}, 0.7
# The moments of so many rows compile longer than they are computed.
_LIGHT_ROWS = 20_000


def _are_short(whole: Sparse, naturals: Any, vector: Array, X: Array, y: Array) -> bool:
    return len(y) <= _LIGHT_ROWS


@partial(compiled, lightly=_are_short)
def _moments(whole: Sparse, naturals: tuple[Naturals, ...], vector: Array, X: Array, y: Array) -> tuple[Array, Array]:
    found = whole.moments(whole.batch(vector, X, y), naturals)
    return found.mean, found.variance


_start = compiled(cavi_engine.start_at, lightly=True)


@double_precision
@one_thread_if_small
def svi(
    model: Model,
    X: Any,
    y: Any = None,
    *,
    weights: Any = None,
    batch_size: int = 1000,
    class_batch_size: int | None = None,
    learn: bool = False,
    learn_inputs: bool = False,
    objective: str = "cavi",
    rate: Any = "robbins-monro",
    max_passes: int | None = None,
    tolerance: float = 0.1,
    seed: Any = 0,
    checkpoint: Any = None,
    progress: bool | None = None,
) -> Approximation | SparseApproximation:
    """The Gaussian q(f) of ``cavi`` or ``gaussian_vi``, found by natural-gradient steps on batches of rows.

    X (n, d), y (n,) or (n, columns), or the pair of them as X; ``weights`` (n,) as in ``cavi``. Or X is
    ``pgm.ArrayRows``, ``pgm.ParquetRows`` or ``pgm.IterableRows``, rows with their y that need not fit into memory: the
    result is a SparseApproximation, which holds none of them. Rows are shuffled before every pass, and left out of it
    where they fill no batch; ``seed`` is an int or a JAX key. ``rate`` is the length of the steps: ``"robbins-monro"``
    for (t + 1)^-0.7, delay and power of (t + delay)^-power, or ``"adaptive"``, which by measurement shrinks too soon.
    On all rows at once steps have length 1, and are those of CAVI.

    Hyperparameters are held at their values, or with ``learn`` learned along as in ``fit``, all that are not Fixed: a
    step of Adam on the bound of each batch, from the values given or from values in the units of the data. It takes
    GPs with ``pgm.Inducing``, whose inputs stay where they are unless ``learn_inputs`` says that they are learned along
    too; how many of them ``Inducing("auto")`` has is found out before the first step, by ``cavi`` on up to 20,000 rows
    at what ``fit`` learns from up to 2,000.

    ``objective`` is the bound, as in ``fit``. That of ``"gaussian_vi"`` is of any formula, and tighter: with ``learn``
    it finds values that predict better where latents are large. E log p(y | f) is by few nodes of quadrature, shifted
    for every row of every step so that they have no error on average. Steps have length (t + 10)^-0.7 where no
    ``rate`` is given, with all rows at once too. The latents of a datum are independent under q unless a factor of the
    formula combines them. The result is a SparseApproximation, of arrays too, of which
    ``pgm.gaussian_vi(result.model, X, y)`` has the marginals and the exact ELBO where rows are few enough for it.

    With ``class_batch_size`` a step is on so many latents, drawn at random, and its time and memory do not go by how
    many there are: for a likelihood with one sum S over its latents to a negative power, such as LogisticSoftmax, and a
    GP of that size by inducing inputs. log S is replaced by its tangent at S0(x), log S0 being affine in the factor at
    x and learned along: the bound, in expectation over the latents, is below that of ``cavi`` by S / S0 - 1 -
    log(S / S0) a row, times the power. A latent's rate goes by its own steps, windows and ``max_passes`` left out by
    how many give each latent one. The result is a SparseApproximation, of arrays too.

    Steps on batches end where the averages of the whitened latents over 200 steps or more and over those before, whole
    passes where these are short, differ by less than ``tolerance``, relative to their size and to how far the steps go;
    or where windows have fewer rows than there are, and their bound gains less than its noise. Before that, Adam's
    steps are halved whenever the averages of the values move by no more than noise, and end where they move by less
    than a tenth of ``tolerance``, of a positive value relatively. From q's average over the last window steps on all
    rows follow, carried on as those of ``cavi`` are, of arrays those of ``cavi`` itself, until one gains at most 1e-6
    of ``tolerance`` in nats a row: batches say that q is slow, and only these that it is at the optimum. There are none
    with ``class_batch_size`` or the objective of ``"gaussian_vi"``. Warns with ConvergenceWarning where all of that
    takes more than ``max_passes`` (100, or as many as 10,000 steps take, where it is left out), after which it ends,
    beside a few steps from each start, with q's average over the last window, or the later half of fewer steps, and of
    arrays one step on all rows, so that the ELBO is exact. For arrays CorrectionWarning is as in ``cavi``. Raises
    ValueError as ``cavi`` does, and for a GP whose form has no factor.

    Where JAX has several devices (``jax.devices()``), they share the rows of each batch: the first row fills it up to a
    multiple of their number, and counts once. The numbers are those of one device, but for rounding. After
    ``jax.distributed.initialize`` these are the devices of all its processes, each of which makes the same call, reads
    all rows and has the result. Raises RuntimeError in the others where one of them has ended.

    ``checkpoint`` names a folder in which the steps are saved as they go: the same call takes them up again after an
    interruption, and gives the result of an uninterrupted one bit for bit; with a larger ``max_passes`` it goes on.
    Source: Hoffman, Blei, Wang and Paisley 2013; Wenzel et al. 2019; Kingma and Ba 2015.
    """
    begin = time.perf_counter()
    check_whole_number(batch_size, "batch_size", 1)
    if max_passes is not None:
        check_whole_number(max_passes, "max_passes", 1)
    check_between(tolerance, "tolerance", 0.0, math.inf)
    if learn_inputs and not learn:
        raise ValueError("learn_inputs=True goes with learn=True: inducing inputs are learned along with the values.")
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(map(repr, OBJECTIVES))}; got {objective!r}.")
    decay, key = _decay(rate, objective), as_key(seed)
    X, y = paired(X, y)
    sample = None
    if class_batch_size is not None:
        check_whole_number(class_batch_size, "class_batch_size", 1)
        there = {"weights": weights is not None, "rate='adaptive'": decay is None}
        there |= {"objective='gaussian_vi'": objective != "cavi"}
        given = [name for name, is_there in there.items() if is_there]
        if given:
            raise ValueError(f"class_batch_size goes without {given[0]}: leave one of them out.")
        sample = sample_of(require_model(model), class_batch_size, key)
    saved = None if checkpoint is None else SviCheckpoint(checkpoint)
    model, data, source = source_of(require_model(model), X, y, weights, learn, objective)
    model = model.resolve(data.X)
    if learn:
        model = hold_unnormalised(model, "svi")
    count, width = source.num_rows, data.X.shape[1] + data.y[:1].size
    sweep = 1 if class_batch_size is None else -(-model.num_latents // class_batch_size)
    settings = settle(count, width, batch_size, decay, max_passes, tolerance, learn, sweep, objective == "cavi")
    options = _Options(learn, learn_inputs, decay is None, objective, key, saved, begin, progress, sample)
    # A step on all rows from q leads to the optimum only where that of a bound is known in closed form.
    ends_with_all = objective == "cavi" and sample is None and not isinstance(X, Rows)
    result = _in_memory if ends_with_all else _streamed
    return result(model, data, source, settings, options)


class _Options(NamedTuple):
    """Whether values and inducing inputs are learned, and rates adaptive; the key, where to save, the begin, and a bar.

    ``sample`` says how steps are on some latents at a time, None where they are on all.
    """

    learn: bool
    learn_inputs: bool
    adaptive: bool
    objective: str
    key: Any
    checkpoint: SviCheckpoint | None
    begin: float
    progress: bool | None
    sample: LatentSample | None


class _Found(NamedTuple):
    """What the steps led to: what they worked on, where they ended, and the model with its values."""

    whole: Sparse
    outcome: Outcome
    model: Model
    report: FitReport | None


def _in_memory(model: Model, data: Data, source: Source, settings: Settings, options: _Options) -> Approximation:
    """Steps for a resolved model, and those of CAVI on all rows."""
    inputs = inputs_for_steps(model, data, len(data.X), options.learn, options.objective)
    held = with_inputs(model, inputs)
    problem = None if options.learn else problem_of(held, data)
    prior = held.prior(data.X[:1]) if problem is None else problem.prior
    prior.require_factors()
    found = _learned(model, prior, inputs, data, source, settings, options)
    problem = problem or problem_of(found.model, data)
    # The bound of the start says how much a relative tolerance is.
    first = ascend(cavi_engine.step, problem, _start(problem, *_at_all(problem, found, data)), 0.0, 0)
    size = max(1.0, abs(float(first.state.elbo)))
    limit, left = settings.enough(source.num_rows, size) / size, settings.passes_left(len(found.outcome.trace))
    ascent = ascend(cavi_engine.step, problem, first.state, limit, left, title="svi", progress=options.progress)
    # What is to be said of convergence is said of svi.
    result = conclude(
        "svi", found.model, data, problem, ascent._replace(converged=True), settings.tolerance, options.begin
    )
    if found.outcome.converged and not ascent.converged:
        warn_gaining(settings, float(ascent.trace[-1] - ascent.trace[-2]) if left else None)
    converged = found.outcome.converged and ascent.converged
    result = replace(result, objective="cavi", converged=converged, fit=found.report)
    warn_narrow("svi", result)
    return result


def _streamed(model: Model, sample: Data, source: Source, settings: Settings, options: _Options) -> SparseApproximation:
    """Steps for a resolved model, of which q at the inducing inputs stays."""
    inputs = inputs_for_steps(model, sample, source.num_rows, options.learn, options.objective)
    prior = with_inputs(model, inputs).prior(sample.X[:1])
    found = _learned(model, prior, inputs, sample, source, settings, options)
    outcome = found.outcome
    if outcome.converged and options.objective == "cavi" and options.sample is None:
        outcome = arrive(found.whole, found.model, outcome, source, settings, options.progress)
    return SparseApproximation(
        model=found.model,
        posterior=posterior(found.whole, outcome.naturals, outcome.vector, as_array(sample.X[:1])),
        scaling=source.scaling,
        num_rows=source.num_rows,
        columns=source.columns,
        elbo_trace=outcome.trace,
        converged=outcome.converged,
        tolerance=settings.tolerance,
        seconds=time.perf_counter() - options.begin,
        fit=found.report,
        objective=options.objective,
    )


def _learned(
    model: Model,
    prior: JointPrior,
    inputs: Inputs,
    sample: Data,
    source: Source,
    settings: Settings,
    options: _Options,
) -> _Found:
    """Steps until nothing moves any more."""
    unknowns = learned(model) if options.learn else Unknowns(model, lambda parameter: False)
    terms, joint = _terms(model, prior, options.objective)
    whole = Sparse(
        terms,
        unknowns,
        without_inputs(model).bare(),
        prior,
        tuple(as_array(own) for own in inputs) if options.learn else (),
        as_array(_units(unknowns, inputs if options.learn_inputs else (), sample.X)),
        as_array(np.float64(source.num_rows)),
        options.adaptive,
        split_rows(settings.batch_size),
        options.sample,
        options.learn_inputs,
        joint,
    )
    stream = shuffled(source, settings, options.key)
    fingerprint = partial(_fingerprint, model, inputs, sample, source, settings, options)
    saved = options.checkpoint
    restored = None if saved is None else saved.restore(fingerprint(), windows.structure(whole, stream, settings))
    with others_named():
        if jax.process_count() > 1:
            check_alike(f"{fingerprint()} {settings.steps} {restored and restored[0].trace}")
        ascent, starts = restored or windows.begin(whole, sample, stream, settings)

        def save(ascent: windows.Ascent, final: bool) -> None:
            if saved is not None and jax.process_index() == 0:
                saved.save(ascent, starts, final)

        outcome = windows.ascend(whole, ascent, stream, settings, save, options.progress)
    if not outcome.converged:
        warn(
            f"svi did not converge: after {settings.passes} passes the whitened latents still move by more than "
            f"{settings.tolerance:g} of their size, or values are still learned. Raise max_passes, batch_size or "
            "tolerance.",
            ConvergenceWarning,
        )
    values = [np.asarray(value) for value in whole.values_at(outcome.vector)]
    report = _report(outcome, starts, unknowns, values, settings) if options.learn else None
    if options.learn_inputs:
        inputs = tuple(np.asarray(Z) for Z in whole.inputs_at(outcome.vector))
    return _Found(whole, outcome, with_inputs(unknowns.with_values(values), inputs), report)


def _units(learnable: Unknowns, inputs: Inputs, X: np.ndarray) -> np.ndarray:
    """The unit of each entry of the vector: of an inducing input about how far it is to the next."""
    values = steps(learnable, X) if learnable.places else np.zeros(0)
    spread, moving = np.std(X, axis=0), [Z for Z in inputs if Z is not None]
    return np.concatenate([values, *(np.tile(spread * len(Z) ** (-1.0 / Z.shape[1]), len(Z)) for Z in moving)])


def _fingerprint(
    model: Model, inputs: Inputs, sample: Data, source: Source, settings: Settings, options: _Options
) -> dict[str, str]:
    """What decides the steps, each in a text that is the same in every process."""
    sizes = (settings.batch_size, settings.batches, settings.window, settings.tolerance, settings.rates)
    count = None if options.sample is None else options.sample.count
    learned = (options.learn, options.learn_inputs, options.adaptive, options.objective)
    return {
        "model": digest((model.signature, inputs)),
        "data": digest((type(source.rows).__name__, tuple(source.scaling), sample.X, sample.y, source.digest)),
        "seed": digest(options.key),
        "options": digest((sizes, count, learned)),
    }


def _report(
    outcome: Outcome, starts: dict[str, float], learnable: Unknowns, values: list[np.ndarray], settings: Settings
) -> FitReport:
    num_steps = settings.taken(len(outcome.trace))
    return FitReport(
        start=max(starts, key=lambda name: starts[name], default="values given"),
        start_elbos=starts,
        values=dict(zip(learnable.names, values, strict=True)),
        num_steps=num_steps,
        num_evaluations=num_steps,
        converged=outcome.converged,
        message="nothing moves or is gained any more" if outcome.converged else "no passes left",
    )


def _terms(model: Model, prior: JointPrior, objective: str) -> tuple[Objective, bool]:
    """What is a sum over the data, and whether it is of predictors whose latents q couples."""
    exact = objective_of(model, objective)
    if not isinstance(exact, Quadrature):
        return exact, False
    terms = ShiftedQuadrature.of(exact)
    joint = terms.predictors is not None and terms.size > 1
    if joint and not is_affordable(prior):
        raise ValueError(
            "objective='gaussian_vi' in svi takes predictors that combine latents, where a datum has several, for "
            f"latents with {JOINT_LIMIT} inducing inputs in all at most; got {sum(prior.ranks)}. Choose fewer, or "
            "objective='cavi'."
        )
    return terms, joint


def _at_all(problem: Problem, found: _Found, data: Data) -> tuple[Array, Array]:
    """q's moments at all rows."""
    whole, q = found.whole, found.outcome
    n, width = len(data.y), sum(group.rank * group.size for group in whole.prior.groups)
    chunks = equal_chunks(np.arange(n), min(n, at_a_time(width)))
    X, y = data.X, data.y
    parts = (_moments(whole, q.naturals, q.vector, as_array(X[own]), as_array(y[own])) for own in chunks)
    size = problem.prior.num_rows
    mean, variance = (as_array(resize_rows(np.concatenate(both)[:n], size)) for both in zip(*parts, strict=True))
    return mean, variance


def _decay(rate: Any, objective: str) -> tuple[float, float] | None:
    """Delay and power of a rate, None for the adaptive one."""
    if isinstance(rate, str) and rate == "adaptive":
        if objective != "cavi":
            raise ValueError(f"rate='adaptive' goes with objective='cavi'; got objective={objective!r}.")
        return None
    if isinstance(rate, str) and rate == "robbins-monro":
        return _DELAY[objective], _POWER
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
