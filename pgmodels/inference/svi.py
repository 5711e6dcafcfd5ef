"""Stochastic variational inference: `svi`."""

import math
import time
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from pgmodels.data.arrays import MissingChoice, check_between, check_whole_number
from pgmodels.data.sources import Rows
from pgmodels.inference import svi_convergence as convergence
from pgmodels.inference.cavi import CAVI, CaviState, start_at
from pgmodels.inference.checkpoint_folder import EngineCheckpoint, leaves_of
from pgmodels.inference.fit import fit, hold_unnormalised
from pgmodels.inference.latent_subsampling import LatentSample, latent_sample_of
from pgmodels.inference.loop import Callback, ConvergenceWarning, check_callback, maximise
from pgmodels.inference.objectives import Choice, check_objective, custom_objective, objective_of, require_maximised
from pgmodels.inference.prepare import (
    Inputs,
    choose_inputs,
    couples,
    is_affordable,
    is_automatic,
    nearly_converged,
    select_inducing_inputs,
    with_inputs,
    without_inputs,
)
from pgmodels.inference.problem import Problem, Spread, problem_of
from pgmodels.inference.starts import input_steps, steps
from pgmodels.inference.svi_convergence import (
    Ascent,
    Outcome,
    Settings,
    Source,
    make_settings,
    paired,
    run_final_passes,
    shuffled,
    source_of,
    warn_gaining,
)
from pgmodels.inference.svi_step import (
    DataBatch,
    NaturalParameters,
    StochasticProblem,
    explain_lost_process,
    posterior,
    require_same_inputs,
)
from pgmodels.inference.vi import conclude, warn_narrow
from pgmodels.model import GP, Data, Model, check_memory, require_factored_forms, require_model, with_powers
from pgmodels.numerics.quadrature import chunk_length
from pgmodels.objectives.base import Objective
from pgmodels.parameters.vector import ParameterVector, trainable
from pgmodels.priors.base import RandomKey, pad_rows
from pgmodels.priors.collection import MAX_BLOCK, PriorCollection, require_factors
from pgmodels.results.approximation import Approximation, FitReport
from pgmodels.results.nested import SparseApproximation
from pgmodels.runtime.io import digest
from pgmodels.runtime.jit import compiled, one_thread_if_small
from pgmodels.runtime.messages import PgmodelsWarning, shorten, suppress_warnings, warn
from pgmodels.runtime.precision import as_array, double_precision
from pgmodels.runtime.seeds import Seed, as_key, as_seed

# The states of a file: after the last full window, from which any number of steps continues, and after the last step of
# a run that ended within a window.
_FULL, _END = "full", "end"


class SviCheckpoint(EngineCheckpoint):
    """A folder with the state of the steps in one file, which is replaced atomically."""

    engine, format = "svi", 10
    full: Ascent | None = None

    def restore(
        self, fingerprint: dict[str, str], like: Ascent, num_steps: int
    ) -> tuple[Ascent, dict[str, float]] | None:
        """Return the saved state of a run of ``num_steps`` steps and the bounds of its starts; None to start again.

        ``like`` has the shapes of a state's arrays. Raises ValueError if the saved state belongs to other steps.
        """
        if not self.continues(fingerprint):
            return None
        match self.index:
            case {"starts": dict(starts), "states": dict(states), "num_steps": int() | None as saved_steps} if (
                states and states.keys() <= {_FULL, _END}
            ):
                ascents = {name: self._ascent(state, like) for name, state in states.items()}
            case _:
                self.refuse(f"{self.file} is damaged: the number of steps is missing")
        self.full = ascents.get(_FULL)
        ascent = ascents.get(_END) if saved_steps == num_steps else self.full
        return None if ascent is None else (ascent, starts)

    def save(self, ascent: Ascent, starts: dict[str, float], num_steps: int | None, final: bool) -> None:
        """Save the state, unless the last save is recent; ``num_steps`` is the total if the last fill no window."""
        if num_steps is None:
            self.full = ascent
        if not self.is_due(final):
            return
        states = {_FULL: self.full, _END: None if num_steps is None else ascent}
        saved = {
            name: {"has_before": state.before is not None, "leaves": leaves_of(state)}
            for name, state in states.items()
            if state is not None
        }
        self.write_index({"starts": starts, "num_steps": num_steps, "states": saved})

    def _ascent(self, saved: object, like: Ascent) -> Ascent:
        match saved:
            case {"has_before": bool(has_before), "leaves": leaves}:
                ascent = self.tree(self.file, leaves, like if has_before else like._replace(before=None))
            case _:
                self.refuse(f"{self.file} is damaged: a state of the steps is missing")
        return ascent._replace(
            trace=np.array(ascent.trace),
            learning=float(ascent.learning),
            windows_at_rate=int(ascent.windows_at_rate),
            pooled=int(ascent.pooled),
            converged=bool(ascent.converged),
        )


class _Run(NamedTuple):
    """Data, settings and options of a call, and when it started.

    ``sample`` has all rows that are in memory, or some of the others. ``latents`` selects those of a step, None if
    steps have all.
    """

    sample: Data
    source: Source
    settings: Settings
    train_hyperparameters: bool
    train_inducing: bool
    adaptive: bool
    objective: Choice
    key: RandomKey
    checkpoint: SviCheckpoint | None
    start_time: float
    callback: Callback | None
    progress: bool | None
    latents: LatentSample | None


def inputs_for_steps(model: Model, run: _Run) -> Inputs:
    """Return the inducing inputs of a resolved model.

    They are chosen with a posterior on up to 20,000 rows, before the first step. The sufficient number depends on the
    hyperparameters: if these are trained, they are first learned from up to 2,000 rows.
    """
    sample, objective, seed = run.sample, run.objective, as_seed(run.key)
    if not is_automatic(model):
        return choose_inputs(model, sample.X)
    order = np.random.default_rng(seed).permutation(len(sample.X))
    if run.train_hyperparameters:
        few = sample.at(np.sort(order[:2_000]))
        # The steps, which learn from all rows, give their own warnings.
        with suppress_warnings(PgmodelsWarning):
            fitted = fit(
                model, few.X, few.y, weights=few.weights, objective=objective, correct=False, seed=seed, progress=False
            ).model
        pairs = zip(model.gps, fitted.gps, strict=True)
        model = Model(fitted.likelihood, [GP(learned.kernel, learned.mean, gp.size, gp.form) for gp, learned in pairs])
    rows = np.sort(order[:20_000])
    check_memory(model, sample.X[rows])

    def optimum(model: Model, data: Data) -> tuple[float, np.ndarray]:
        elbo, precisions = nearly_converged(model, data, objective_of(model, objective))
        return elbo, run.source.num_rows / len(rows) * precisions

    return choose_inputs(select_inducing_inputs(model, sample.at(rows), optimum), sample.X)


def _many_rows(problem: Problem, *_: object) -> bool:
    """Whether compiling moments with all optimisations takes less time than they save."""
    return problem.prior.num_rows > 20_000


@partial(compiled, optimise=_many_rows)
def _start(
    problem: Problem,
    stochastic: StochasticProblem,
    naturals: tuple[NaturalParameters, ...],
    vector: Array,
    chunks: tuple[Array, Array],
) -> CaviState:
    """CAVI's start from the marginals of q, whose rows X and y are in chunks that fit into memory."""

    def marginals(chunk: tuple[Array, Array]) -> tuple[Array, Spread]:
        moments = stochastic.moments(stochastic.batch(vector, DataBatch(*chunk)), naturals)
        return moments.mean, moments.variance

    def joined(values: Array) -> Array:
        return values.reshape(-1, *values.shape[2:])[: problem.prior.num_rows]

    return start_at(problem, *map(joined, jax.lax.map(marginals, chunks)))


@double_precision
@one_thread_if_small
def svi(
    model: Model,
    X: ArrayLike | Rows | tuple[ArrayLike, ArrayLike],
    y: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
    missing: MissingChoice = "raise",
    batch_size: int = 1000,
    class_batch_size: int | None = None,
    train_hyperparameters: bool = False,
    train_inducing: bool = False,
    objective: Choice = "augmented",
    rate: Literal["robbins-monro", "adaptive"] | tuple[float, float] = "robbins-monro",
    max_epochs: int | None = None,
    tolerance: float = 0.1,
    seed: Seed = 0,
    checkpoint: str | PathLike[str] | None = None,
    callback: Callback | None = None,
    progress: bool | None = None,
) -> Approximation | SparseApproximation:
    """Find the Gaussian q(f) of ``cavi`` or ``gaussian_vi`` by natural-gradient steps on batches of rows.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs. Hyperparameters stay at their values unless ``train_hyperparameters``.
    X : array_like, shape (n, d), or Rows, or tuple
        Inputs, one row per datum; the pair (X, y); or ``pgm.ArrayRows``, ``pgm.ParquetRows`` or ``pgm.IterableRows``,
        rows with their y that need not fit into memory.
    y : array_like, shape (n,) or (n, columns), optional
        Observations, in the units of the likelihood.
    weights : array_like, shape (n,), optional
        Powers of the rows' likelihoods, as in ``cavi``.
    missing : {"raise", "drop", "predict"}
        What becomes of rows without y, as in ``cavi``; for arrays. A SparseApproximation predicts at its ``missing.X``.
    batch_size : int
        Rows per step. Rows are shuffled before every epoch, and an incomplete last batch is dropped.
    class_batch_size : int, optional
        Latents per step, drawn at random: the time and memory of a step do not depend on their total number. It needs
        one GP of all latents with inducing inputs, and one sum over its latents to a negative power in the likelihood.
        Examples are LogisticSoftmax, and Softmax with the objective ``"gumbel"``. The bound is looser, see Notes.
    train_hyperparameters : bool
        Learn all hyperparameters that are not Fixed, as in ``fit``: by a step of Adam on the bound of each batch. They
        start at the given values or at values in the units of the data. The GPs must have ``pgm.Inducing`` as form.
    train_inducing : bool
        Learn the inducing inputs along with the hyperparameters.
    objective : str
        The bound, as in ``fit``. ``"expected"`` accepts any formula and is tighter. With ``train_hyperparameters`` it
        learns values that predict better if latents are large. The expected log density is computed with few
        quadrature nodes. Their random shifts for each row and step make the mean of the error zero. The latents of a
        datum are independent under q unless a factor of the formula combines them.
        ``"additive_noise"`` is for labels with an error rate, as in ``vi``.
    rate : "robbins-monro", "adaptive" or (float, float)
        Step sizes. ``"robbins-monro"`` is (t + 1)^-0.7, or (t + 10)^-0.7 unless the objective is ``"augmented"``. A
        pair is the delay and power of (t + delay)^-power. ``"adaptive"`` was measured to decrease too soon. Steps on
        all rows at once have size 1, as in CAVI, with the objective ``"augmented"``.
    max_epochs : int, optional
        Maximum passes over the rows; by default 100, or the epochs of 10,000 steps if these are more. A few trial steps
        from each start value are not counted.
    tolerance : float
        Largest change of the averages of the whitened latents from one window of steps to the next, relative to their
        norm, at convergence.
    seed : int or jax.Array
        An int or a JAX key; draws the batches, latents, quadrature shifts, and inducing inputs as in ``cavi``.
    checkpoint : str or path, optional
        A folder in which the steps are saved regularly. After an interruption the same call resumes them, and returns
        the result of an uninterrupted run bit for bit. With a larger ``max_epochs`` it continues.
    progress : bool, optional
        Whether to show a progress bar, as in ``cavi``.

    Returns
    -------
    Approximation or SparseApproximation
        An Approximation for arrays with the objective ``"augmented"`` or ``"factorised"``. A SparseApproximation, which
        stores none of the rows, for ``Rows``, for ``class_batch_size`` and for other objectives. Their full steps may
        lower the bound. For few enough rows ``pgm.gaussian_vi(result.model, X, y)`` returns the marginals and the exact
        ELBO of ``"expected"``.

    Raises
    ------
    ValueError
        For invalid data or options, and for a GP whose form has no factor.
    NoAugmentationError
        For the objective ``"augmented"`` with a likelihood without an augmentation.
    RuntimeError
        If another process of a distributed run has ended.

    Warns
    -----
    ConvergenceWarning
        If ``max_epochs`` do not reach the tolerance. The result is then q's average over the last window, or over the
        later half of fewer steps. For arrays one step on all rows follows, which makes the ELBO exact.
    FitWarning
        If likelihood parameters are kept fixed, as in ``fit``.
    CorrectionWarning
        For arrays, as in ``cavi``.

    Notes
    -----
    Averages of the whitened latents are over windows of at least 200 steps, whole epochs if these are short. Steps on
    batches converge when averages change by less than ``tolerance``. It is relative to their norm and to the share of
    the distance that the steps cover. They also converge when windows have fewer rows than the data
    and their bound gains less than its noise. Before, Adam's learning rate is halved whenever the averages of the
    hyperparameters change by no more than noise. Training ends when they change by less than 0.1 ``tolerance``,
    relatively if positive. Then follow steps on all rows, from the last average of q: sweeps of ``cavi`` for arrays,
    and for ``Rows`` passes whose means are extrapolated. They end when one gains at most 1e-6 of ``tolerance`` in nats
    per row: only these show that q is at the optimum. There are none with ``class_batch_size``, or with an objective
    whose full steps may lower the bound, such as ``"expected"``.

    With ``class_batch_size``, the tangent of log S at S0(x) replaces log S of the sum S over the latents. The model of
    log S0 is learned too, and affine in the prior's factor at x. S0(x) is at least a row's own class's part of S. In
    expectation over the latents, each row lowers the objective's bound by S / S0 - 1 - log(S / S0), times the power.
    The step size of a latent depends on the number of its own steps. Windows and the default of ``max_epochs`` are
    longer by the number of steps that update each latent once on average.

    ``Inducing("auto")`` chooses the number of inducing inputs before the first step, by ``cavi`` on up to 20,000 rows.
    ``fit`` learns the hyperparameters for it from up to 2,000 rows.

    If JAX has several devices (``jax.devices()``), they share the rows of each batch; results do not depend on their
    number, up to rounding. After ``jax.distributed.initialize`` they are the devices of all processes. Each process
    makes the same call, reads all rows and has the result.

    References
    ----------
    Hoffman, Blei, Wang and Paisley 2013; Wenzel et al. 2019; Kingma and Ba 2015; with ``class_batch_size``, Galy-Fajou
    et al. 2019, section 4.2, and Liu et al. 2019, equation 24.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.random.default_rng(0).random(30) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(X[:, 0])))
    >>> model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0), form=pgm.Inducing(10)))
    >>> vi = pgm.svi(model, X, y, batch_size=10)
    >>> vi.predict([[1.5], [4.5]]).probabilities[:, 1] > 0.5
    array([ True, False])
    """
    start_time = time.perf_counter()
    check_whole_number(batch_size, "batch_size", 1)
    if max_epochs is not None:
        check_whole_number(max_epochs, "max_epochs", 1)
    check_between(tolerance, "tolerance", 0.0, math.inf)
    if train_inducing and not train_hyperparameters:
        raise ValueError(
            "train_inducing=True needs train_hyperparameters=True: inducing inputs are learned along with the values."
        )
    check_callback(callback)
    check_objective(objective)
    model = require_model(model)
    require_factored_forms(model, "svi")
    terms, key = objective_of(model, objective), as_key(seed)
    require_maximised("svi", terms)
    decay = _decay(rate, terms)
    X, y = paired(X, y)
    latents = None
    if class_batch_size is not None:
        check_whole_number(class_batch_size, "class_batch_size", 1)
        options = {"weights": weights is not None, "rate='adaptive'": decay is None}
        conflicting = [name for name, is_given in options.items() if is_given]
        if conflicting:
            raise ValueError(f"class_batch_size cannot be combined with {conflicting[0]}: remove one of them.")
        latents = latent_sample_of(model, terms, class_batch_size, key)
    with SviCheckpoint.opened(checkpoint) as saved:
        model, data, source = source_of(model, X, y, weights, missing, train_hyperparameters, terms, as_seed(seed))
        model = model.resolve(data.X, as_seed(seed))
        if train_hyperparameters:
            model = hold_unnormalised(model, "svi")
        count, width = source.num_rows, data.X.shape[1] + data.y[:1].size + (data.weights is not None)
        sweep = 1 if class_batch_size is None else -(-model.num_latents // class_batch_size)
        settings = make_settings(
            count, width, batch_size, decay, max_epochs, tolerance, train_hyperparameters, sweep, terms.is_monotone
        )
        run = _Run(
            data,
            source,
            settings,
            train_hyperparameters,
            train_inducing,
            decay is None,
            objective,
            key,
            saved,
            start_time,
            callback,
            progress,
            latents,
        )
        # Full steps on all rows from q lead to the optimum only where they never lower the bound.
        ends_with_all = terms.is_monotone and latents is None and not isinstance(X, Rows)
        return _in_memory(model, run) if ends_with_all else _streamed(model, run)


class _Fitted(NamedTuple):
    """Result of the stochastic steps: the problem, q and parameter vector, and the model with learned values."""

    stochastic: StochasticProblem
    outcome: Outcome
    model: Model
    report: FitReport | None


def _in_memory(model: Model, run: _Run) -> Approximation:
    """Stochastic steps for a resolved model, followed by steps of CAVI on all rows."""
    data, settings, inputs = run.sample, run.settings, inputs_for_steps(model, run)
    fixed = with_inputs(model, inputs)
    problem = None
    if not run.train_hyperparameters:
        problem = problem_of(fixed, data, objective=objective_of(fixed, run.objective))
    prior = fixed.prior(data.X[:1]) if problem is None else problem.prior
    require_factors(prior)
    fitted = _learned(model, prior, inputs, run)
    if problem is None:
        problem = problem_of(fitted.model, data, objective=objective_of(fitted.model, run.objective))
    stochastic, q, rows = fitted.stochastic, fitted.outcome, problem.prior.num_rows
    length = min(rows, chunk_length(sum(group.rank * group.size for group in stochastic.prior.groups)))
    padded = (pad_rows(part, -(-rows // length) * length) for part in (data.X, data.y))
    X, y = (as_array(part.reshape(-1, length, *part.shape[1:])) for part in padded)
    start = _start(problem, stochastic, q.naturals, q.vector, (X, y))
    # The first bound converts the absolute limit to a relative tolerance.
    first = maximise(CAVI.step, problem, start, 0.0, 0)
    size = max(1.0, abs(float(first.state.elbo)))
    limit = settings.max_gain(run.source.num_rows, size) / size
    count = settings.remaining_epochs(len(fitted.outcome.trace))
    ascent = maximise(CAVI.step, problem, first.state, limit, count, title="svi", progress=run.progress)
    # Suppress the warning of CAVI: svi gives its own below.
    result = conclude(
        "svi", fitted.model, data, problem, ascent._replace(converged=True), settings.tolerance, run.start_time
    )
    if fitted.outcome.converged and not ascent.converged:
        warn_gaining(settings, float(ascent.trace[-1] - ascent.trace[-2]) if count else None)
    result = replace(result, converged=fitted.outcome.converged and ascent.converged, fit=fitted.report)
    warn_narrow("svi", result)
    return result


def _streamed(model: Model, run: _Run) -> SparseApproximation:
    """Stochastic steps for a resolved model; the result keeps q at the inducing inputs only."""
    sample, source, inputs = run.sample, run.source, inputs_for_steps(model, run)
    fitted = _learned(model, with_inputs(model, inputs).prior(sample.X[:1]), inputs, run)
    outcome, objective = fitted.outcome, objective_of(fitted.model, run.objective)
    if outcome.converged and objective.is_monotone and run.latents is None:
        outcome = run_final_passes(fitted.stochastic, fitted.model, outcome, source, run.settings, run.progress)
    return SparseApproximation(
        model=fitted.model,
        posterior=posterior(fitted.stochastic, outcome.naturals, outcome.vector, as_array(sample.X[:1])),
        scaling=source.scaling,
        num_rows=source.num_rows,
        columns=source.columns,
        labels=sample.labels,
        missing=sample.missing,
        elbo_trace=outcome.trace,
        converged=outcome.converged,
        tolerance=run.settings.tolerance,
        seconds=time.perf_counter() - run.start_time,
        fit=fitted.report,
        objective=objective.name,
        custom_objective=custom_objective(fitted.model, objective),
    )


def _learned(model: Model, prior: PriorCollection, inputs: Inputs, run: _Run) -> _Fitted:
    settings, saved = run.settings, run.checkpoint
    unknowns = trainable(model) if run.train_hyperparameters else ParameterVector(model, lambda parameter: False)
    terms, coupled = _terms(model, prior, run.objective)
    units = steps(unknowns, run.sample.X) if unknowns.leaf_indices else np.zeros(0)
    scales = as_array(np.concatenate([units, input_steps(inputs if run.train_inducing else (), run.sample.X)]))
    learned = tuple(as_array(Z) for Z in inputs) if run.train_hyperparameters else ()
    bare, count = without_inputs(model).bare(), as_array(np.float64(run.source.num_rows))
    problem = StochasticProblem(
        terms, unknowns, bare, prior, learned, scales, count, run.adaptive, run.latents, run.train_inducing, coupled
    )
    stream = shuffled(run.source, settings, run.key)
    fingerprint = partial(_fingerprint, model, inputs, run)
    restored = None
    if saved is not None:
        restored = saved.restore(fingerprint(), convergence.structure(problem, stream, settings), settings.steps)
    with explain_lost_process():
        if jax.process_count() > 1:
            require_same_inputs(f"{fingerprint()} {settings.steps} {restored and restored[0].trace.tolist()}")
        ascent, starts = restored or convergence.initial_ascent(problem, run.sample, stream, settings)

        def save(ascent: convergence.Ascent, is_full: bool, final: bool) -> None:
            if saved is not None and jax.process_index() == 0:
                saved.save(ascent, starts, None if is_full else settings.steps, final)

        outcome = convergence.maximise(problem, ascent, stream, settings, save, run.progress, run.callback)
    if not outcome.converged:
        warn(
            f"svi did not converge: after {settings.passes} passes the whitened latents still move by more than "
            f"{settings.tolerance:g} of their norm, or values still change. Raise max_epochs, batch_size or tolerance.",
            ConvergenceWarning,
        )
    values = [np.asarray(value) for value in problem.values_at(outcome.vector)]
    report = None
    if run.train_hyperparameters:
        num_steps = settings.num_steps(len(outcome.trace))
        report = FitReport(
            start=max(starts, key=lambda name: starts[name], default="values given"),
            start_elbos=starts,
            values=dict(zip(unknowns.names, values, strict=True)),
            num_steps=num_steps,
            num_evaluations=num_steps,
            converged=outcome.converged,
            message="q, hyperparameters and bound have converged" if outcome.converged else "max_epochs reached",
        )
    if run.train_inducing:
        inputs = tuple(np.asarray(Z) for Z in problem.inputs_at(outcome.vector))
    return _Fitted(problem, outcome, with_inputs(unknowns.with_values(values), inputs), report)


def _fingerprint(model: Model, inputs: Inputs, run: _Run) -> dict[str, str]:
    """Digests of everything that determines the steps, the same in every process."""
    (model, sample), settings, source = with_powers(model, run.sample), run.settings, run.source
    sizes = (settings.batch_size, settings.batches, settings.window, settings.tolerance, settings.rates)
    count = None if run.latents is None else run.latents.count
    learned = (run.train_hyperparameters, run.train_inducing, run.adaptive, run.objective)
    return {
        "model": digest((model.signature, inputs)),
        "data": digest((type(source.rows).__name__, tuple(source.scaling), sample.X, sample.y, source.digest)),
        "seed": digest(run.key),
        "options": digest((sizes, count, learned)),
    }


def _terms(model: Model, prior: PriorCollection, objective: Choice) -> tuple[Objective, bool]:
    """The objective as a sum over the data, and whether q couples the latents of its predictors."""
    terms = objective_of(model, objective).stochastic()
    coupled = terms.predictors is not None and couples(terms)
    if coupled and not is_affordable(terms, prior):
        raise ValueError(
            f"objective={terms.name!r} in svi, if a factor combines several latents, allows at most {MAX_BLOCK} "
            f"inducing inputs in total; got {sum(prior.ranks)}. Choose fewer, or objective='augmented'."
        )
    return terms, coupled


def _decay(rate: object, objective: Objective) -> tuple[float, float] | None:
    """Delay and power of a rate, None for the adaptive one."""
    if isinstance(rate, str) and rate == "adaptive":
        if not objective.is_monotone:
            raise ValueError(f"rate='adaptive' needs objective='augmented'; got objective={objective.name!r}.")
        return None
    if isinstance(rate, str) and rate == "robbins-monro":
        # Where full steps may lower the bound, the first steps are short.
        return 1.0 if objective.is_monotone else 10.0, 0.7
    if not isinstance(rate, tuple | list) or len(rate) != 2:
        raise ValueError(
            f"rate must be 'adaptive', 'robbins-monro' or delay and power of (t + delay)^-power; got {shorten(rate)}."
        )
    check_between(rate[0], "the delay of rate", 0.0, math.inf)
    if float(rate[0]) < 1.0:
        raise ValueError(
            f"the delay of rate must be at least 1, or the first steps are longer than 1; got {rate[0]!r}."
        )
    # The sum of all steps must be infinite and that of their squares finite.
    check_between(rate[1], "the power of rate", 0.5, 1.0 + 1e-12)
    return float(rate[0]), float(rate[1])
