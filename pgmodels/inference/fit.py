"""Learning kernel hyperparameters, means and likelihood parameters on the collapsed bound."""

import math
import time
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from pgmodels.inference import cavi as cavi_engine
from pgmodels.inference import gaussian_vi as gaussian_engine
from pgmodels.inference.cavi import CaviState, ConvergenceWarning
from pgmodels.inference.drive import stretch
from pgmodels.inference.inducing import (
    ENOUGH,
    SHARPER,
    Inputs,
    choose_inputs,
    count_inputs,
    is_automatic,
    same_inputs,
    settled,
    warn_limited,
    with_inputs,
)
from pgmodels.inference.problem import Problem
from pgmodels.inference.starts import candidates, is_free, steps
from pgmodels.language.normalisation import is_normalised
from pgmodels.latent.coupled import JOINT_LIMIT
from pgmodels.latent.inducing import Inducing, inducing_at, marked_inputs
from pgmodels.latent.joint import JointPrior
from pgmodels.latent.low_rank import LowRankPrior, low_rank_at
from pgmodels.latent.protocol import LatentPrior
from pgmodels.latent.rows import resize_rows
from pgmodels.latent.sequential import ASCENT_OPTIONS, compiled_lightly
from pgmodels.model import GP, Data, Model, require_model
from pgmodels.objectives.protocol import Objective
from pgmodels.objectives.quadrature import Quadrature
from pgmodels.options import check_between, check_whole_number
from pgmodels.parameters import Parameter, is_parameter
from pgmodels.portable import Module
from pgmodels.precision import as_array, double_precision
from pgmodels.progress import progress_bar
from pgmodels.results.approximation import Approximation, FitReport
from pgmodels.threads import one_thread_if_small
from pgmodels.unknowns import Unknowns, learned, with_values
from pgmodels.warning import warn

# The inner ascent must be much closer to its optimum than the outer steps resolve, for the envelope theorem gives the
# gradient at the optimum only.
_INNER_TOLERANCE = 1e-11
_INNER_ITERATIONS = 2000
_OBJECTIVES = ("cavi", "gaussian_vi")
# Of a state whose bound is not known.
_NO_BOUND = np.float64(-np.inf)
# With so many rows a program for each rank is compiled sooner than a dense matrix is factorised hundreds of times.
_MANY_ROWS = 600
# Starts are only ranked.
_START_TOLERANCE = 1e-4

# What another choice of inducing inputs must gain of the ELBO, relative to its size, for another ascent.
_CHOICE_GAIN = 1e-5

# Values that only the data hold back stay within this factor of their starts.
_REACH = 1e6
# Beyond this factor a value is suspect: it is reported where the bound does not feel a further factor of ten.
_SUSPECT, _FURTHER, _FELT = 30.0, 10.0, 0.1


class FitWarning(UserWarning):
    """A parameter is not what the data say, although the model asks to learn it."""


# q(f) of either engine.
State = CaviState | gaussian_engine.GaussianState


def objective_of(model: Model, name: str) -> Objective:
    """What is a sum over the data, by the name of the engine that maximises it."""
    return model.augmentation if name == "cavi" else gaussian_engine.quadrature_of(model)


def _engine(objective: Objective) -> Any:
    return gaussian_engine if isinstance(objective, Quadrature) else cavi_engine


def collapsed_bound(problem: Problem, state: State) -> Any:
    """log Z(θ; h, w) + Σ (B - h m + w s / 2) with q(f)'s marginals and sites held: the ELBO as a function of θ.

    Source: math, section 4; Titsias 2009; Passerello 2021, PGPR. At the optimal sites its gradient is the full one.
    """
    m, v, sites = jax.lax.stop_gradient(state[:3])
    return problem.elbo(m, v, sites, problem.moments(sites)[2])


# The inputs and marks of a group's pivots; None for a group in its traced form.
Pivots = tuple[Array, Array] | None


def _pivots(model: Model, X: np.ndarray, inputs: Inputs) -> tuple[Pivots, ...]:
    """The inducing inputs of groups that have some, else the pivots of the groups where all have a low-rank form.

    The latter are taken here and now, where there are rows enough for it to pay.
    """
    none = (None,) * len(model.gps)
    if any(Z is not None for Z in inputs):
        pairs = zip(model.gps, inputs, strict=True)
        return tuple(None if Z is None else marked_inputs(gp.kernel, Z) for gp, Z in pairs)
    if len(X) < _MANY_ROWS:
        return none
    found: list[Pivots] = []
    for group in model.prior(X).groups:
        if not isinstance(group, LowRankPrior):
            return none
        # Ranks change from step to step: few of them, so that few programs are compiled.
        missing = (1 << (group.rank - 1).bit_length()) - group.rank
        Z = np.pad(np.asarray(group.Z), ((0, missing), (0, 0)), mode="edge")
        found.append((as_array(Z), as_array(np.pad(np.asarray(group.active), (0, missing)))))
    return tuple(found)


def _problem(objective: Objective, model: Model, X: Any, y: Any, live: Any, pivots: tuple[Pivots, ...]) -> Problem:
    # Latents that predictors or sites couple need their priors' factors.
    coupling = objective.predictors is not None or (isinstance(objective, Quadrature) and objective.size > 1)

    def group(gp: GP, own: Pivots) -> LatentPrior:
        mean = as_array(gp.mean.value)
        if own is not None:
            at = inducing_at if isinstance(gp.form, Inducing) else low_rank_at
            return at(gp.kernel, mean, X, *own, gp.size)
        rows = {} if live is None else {"live": live}
        return (gp.form.traced if coupling else gp.form.traced_for_moments)(gp.kernel, mean, X, gp.size, **rows)

    pairs = list(zip(model.gps, pivots, strict=True))
    prior = JointPrior(tuple(group(*pair) for pair in pairs))
    # By the number of rows, whatever the rank here and now: q(f) goes from call to call.
    widths = [gp.size * (len(own[0]) if own and isinstance(gp.form, Inducing) else len(X)) for gp, own in pairs]
    joint = isinstance(objective, Quadrature) and objective.size > 1 and prior.factored
    return Problem(objective, prior, y, model.parameters, joint and sum(widths) <= JOINT_LIMIT, live)


class _Given(Module):
    """What the bound depends on besides the vector: the model without priors, what moves in it, and the data."""

    objective: Objective = eqx.field(static=True)
    learnable: Unknowns = eqx.field(static=True)
    model: Model
    X: Array
    y: Array
    live: Array | None

    def problem(self, vector: Array, pivots: tuple[Pivots, ...]) -> Problem:
        """The problem at the values of an unconstrained vector."""
        model = with_values(self.model, self.learnable.places, self.learnable.constrain(vector))
        return _problem(self.objective, model, self.X, self.y, self.live, pivots)


@partial(jax.jit, compiler_options=ASCENT_OPTIONS)
def _ascend(
    given: _Given, vector: Array, pivots: tuple[Pivots, ...], start: State, tolerance: Any
) -> tuple[State, Array, Array]:
    """The engine to its optimum; the state, the bound with the log prior of the values, and the gradient of that."""
    problem = given.problem(vector, pivots)
    step, limit = _engine(given.objective).step, _INNER_ITERATIONS
    state = stretch(step, problem, start, tolerance, limit, limit).state

    def log_prior(vector: Array) -> Array:
        return given.learnable.log_prior(given.learnable.constrain(vector))

    def penalised(vector: Array) -> Array:
        return collapsed_bound(given.problem(vector, pivots), state) + log_prior(vector)

    return state, state.elbo + log_prior(vector), jax.grad(penalised)(vector)


@compiled_lightly
def _start(given: _Given, vector: Array, pivots: tuple[Pivots, ...]) -> State:
    return _engine(given.objective).first_state(given.problem(vector, pivots))


class PenalisedBound:
    """The negative log posterior bound of an unconstrained vector, with its gradient; keeps q(f) between calls.

    ``best`` is the smallest value so far, at ``vector``; where the bound or its gradient is not finite, a bowl about
    that vector stands in, which sends a line search back to it.
    """

    def __init__(self, learnable: Unknowns, data: Data, objective: Objective | None = None):
        self.learnable, self.X = learnable, data.X
        model = learnable.model
        self.inputs = choose_inputs(model, data.X)
        self.automatic, self.sharpness = is_automatic(model), 1.0
        terms = objective or model.augmentation
        X, live = model.filled(data.X)
        arrays = (X, resize_rows(data.y, len(X)), live)
        self.given = _Given(terms, learnable, model.bare(), *jax.tree.map(as_array, arrays))
        self.state: State | None = None
        self.best = np.inf
        self.vector = learnable.start()
        self.evaluations = 0

    def __call__(self, vector: np.ndarray, tolerance: float = _INNER_TOLERANCE) -> tuple[float, np.ndarray]:
        self.evaluations += 1
        try:
            pivots = _pivots(self.at(vector).bare(), self.X, self.inputs)
        except ValueError:
            # Hyperparameters at which the kernel's matrix is none.
            return self._bowl(vector)
        if self.state is None:
            self.state = _start(self.given, as_array(vector), pivots)
        state, bound, gradient = _ascend(self.given, vector, pivots, self.state, tolerance)
        value, slope = -float(bound), -np.asarray(gradient)
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            return self._bowl(vector)
        if value <= self.best:
            # Only the best point's q(f) starts the next ascent: that of a wild trial step may lead to a poor optimum.
            # Its bound is one of other values.
            self.best, self.vector, self.state = value, np.array(vector), state._replace(elbo=_NO_BOUND)
        return value, slope

    def at(self, vector: np.ndarray) -> Model:
        """The model at the values of an unconstrained vector."""
        return self.learnable.with_values(self.learnable.constrain(as_array(vector)))

    def choose_again(self, tolerance: float) -> bool:
        """Inducing inputs for the best values and what is known of the latents there, kept where the bound rises."""
        if self.state is None or all(Z is None for Z in self.inputs):
            return False
        before = self.best
        limit = tolerance * (1.0 + abs(before))
        limit = min(limit, ENOUGH) if self.automatic else limit
        model = self.at(self.vector)
        problem = self.given.problem(as_array(self.vector), _pivots(model.bare(), self.X, self.inputs))
        precisions = problem.precisions(self.state.sites)
        gain, done = 0.0, False
        while not gain > limit and not done:
            held = self.inputs
            chosen = choose_inputs(model, self.X, self.sharpness * precisions)
            if same_inputs(chosen, held):
                warn_limited(self.learnable.model, chosen, self.X, self.sharpness * precisions)
                break
            self.inputs = chosen
            gain = before - self(self.vector)[0]
            # As in ``settled``: fewer that gain nothing do not say that more would not.
            more = self.automatic and count_inputs(chosen) > count_inputs(held)
            if not gain > (limit if more else 0.0):
                self.inputs = held
            done = more or not self.automatic
            self.sharpness *= SHARPER
        return gain > limit

    def in_units(self, scaled: np.ndarray, units: np.ndarray, height: float) -> tuple[float, np.ndarray]:
        """The same divided by ``height``, as a function of the vector divided by ``units``."""
        value, slope = self(scaled * units)
        return value / height, slope * units / height

    def _bowl(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        away = vector - self.vector
        if not np.isfinite(self.best) or not away.any():
            return np.inf, np.zeros_like(vector)
        height = 1.0 + abs(self.best)
        return self.best + height, 2.0 * height * away / (away @ away)


@double_precision
@one_thread_if_small
def fit(
    model: Model,
    X: Any,
    y: Any,
    *,
    weights: Any = None,
    objective: str = "cavi",
    max_iterations: int = 200,
    tolerance: float = 1e-9,
    progress: bool | None = None,
) -> Approximation:
    """Learn the hyperparameters and likelihood parameters that are not Fixed, and return the converged result at them.

    ``objective`` is the bound: of ``"cavi"``, or the tighter one of ``"gaussian_vi"``, which takes any formula, several
    times as long, and does not favour long lengthscales and small variances as the former does.

    Maximises the ELBO (plus log priors, where hyperparameters have them) over the unconstrained hyperparameters by
    L-BFGS, with q(f) at its optimum throughout. Starts from the values given, or from values in the units of the data
    (see ``pgmodels.inference.starts``), whichever have the largest ELBO. Likelihood parameters are learned only where
    the formula is normalised in y, since what it leaves out may depend on them; otherwise they are held, with a
    FitWarning. A positive value without a prior stays within a factor of 1e6 of its starts, and a FitWarning names
    those far out that the data do not determine.
    The learned model is ``.model`` of the result and ``.fit`` tells how it was found. X (n, d), y (n,) or (n, columns),
    ``weights`` (n,) as in ``cavi``. Warns with ConvergenceWarning where the optimiser stops early; raises as ``cavi``
    does.
    """
    from scipy.optimize import minimize

    begin = time.perf_counter()
    model, data = require_model(model).given(X, y, weights)
    if objective not in _OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(map(repr, _OBJECTIVES))}; got {objective!r}.")
    check_whole_number(max_iterations, "max_iterations", 1)
    check_between(tolerance, "tolerance", 0.0, math.inf)
    model = hold_unnormalised(model.resolve(data.X), "fit")
    terms = objective_of(model, objective)
    if not learned(model).places:
        model = settled(model, data, _engine(terms).nearly_converged)
    begun = candidates(model, data, terms)
    bounds = {name: PenalisedBound(learned(start), data, terms) for name, start in begun.items()}
    first = {name: bound(bound.vector, _START_TOLERANCE) for name, bound in bounds.items()}
    starts = {name: -value for name, (value, _) in first.items()}
    chosen = max(starts, key=lambda name: starts[name])
    bound = bounds[chosen]
    learnable = bound.learnable
    if not np.isfinite(starts[chosen]):
        raise ValueError("fit: the ELBO is not finite at the start values. Give start values nearer to the data.")
    message, converged, num_steps = "nothing to learn", True, 0
    if learnable.places:
        box = _box(learnable, [other.learnable.start() for other in bounds.values()])
        with progress_bar("fit", max_iterations, progress) as bar:
            units = steps(learnable, data.X)
            # The first step is as long as the gradient: of one unit, or it ends where no optimum is soon found.
            height = max(1.0, float(np.linalg.norm(first[chosen][1] * units)))
            size = max(1.0, abs(starts[chosen]))
            options = {"ftol": tolerance * min(1.0, size / height), "gtol": 1e-5 / height, "maxls": 40}
            again = True
            while again:
                solution = minimize(
                    lambda scaled: bound.in_units(scaled, units, height),
                    bound.vector / units,
                    jac=True,
                    method="L-BFGS-B",
                    bounds=(box / units).T,
                    callback=lambda intermediate_result: bar.advance(
                        1, f"ELBO {-height * intermediate_result.fun:.4f}"
                    ),
                    options=options | {"maxiter": max_iterations - num_steps},
                )
                num_steps += int(solution.nit)
                again = num_steps < max_iterations and bound.choose_again(_CHOICE_GAIN)
        message, converged = str(solution.message), bool(solution.success)
    values = learnable.constrain(as_array(bound.vector))
    final = with_inputs(learnable.with_values([np.asarray(value) for value in values]), bound.inputs)
    # From q(f) at the optimum: a start of its own could end in another one.
    result = _engine(terms).converge(final, data, bound.state, _INNER_ITERATIONS, min(tolerance, 1e-9), progress)
    if learnable.places:
        _report_undetermined(bound, box)
    if not converged:
        warn(
            f"fit did not converge: {message} after {num_steps} steps, ELBO {result.elbo:.6g}. Raise max_iterations, "
            "or fix or give priors to hyperparameters that the data do not determine.",
            ConvergenceWarning,
        )
    report = FitReport(
        start=chosen,
        start_elbos=starts,
        values={name: np.asarray(value) for name, value in zip(learnable.names, values, strict=True)},
        num_steps=num_steps,
        num_evaluations=bound.evaluations,
        converged=converged,
        message=message,
    )
    return replace(
        result,
        method="fit",
        fit=report,
        converged=result.converged and converged,
        seconds=time.perf_counter() - begin,
    )


def hold_unnormalised(model: Model, engine: str) -> Model:
    """Fix the likelihood's parameters where the formula leaves out a factor that may depend on them.

    The FitWarning is in the name of an engine, at a level counted from there.
    """
    names = [name for name, parameter in model.likelihood.parameters.items() if parameter.learned]
    if not names or is_normalised(model.likelihood, model.num_latents, for_all_parameters=True) is True:
        return model
    warn(
        f"{engine} holds {', '.join(names)} of {model.likelihood.name}: the formula is not known to be a normalised "
        "density of y, and the factor it leaves out may depend on them. Write the formula with its constants and "
        "declare its support, or mark the parameters with pgm.Fixed.",
        FitWarning,
    )
    held = {name: p.held() for name, p in model.likelihood.parameters.items()}
    return eqx.tree_at(lambda m: m.likelihood.parameters, model, held, is_leaf=is_parameter)


def _is_scale(parameter: Parameter) -> bool:
    """Whether a value is learned as a logarithm, from data alone."""
    return parameter.positive and parameter.constraint is None and is_free(parameter)


def _box(learnable: Unknowns, starts: list[np.ndarray]) -> np.ndarray:
    """Bounds (2, size) of the unconstrained vector: a factor about the starts, where neither prior nor sign bounds."""
    shapes = zip(learnable.parameters, learnable.free_shapes, strict=True)
    bounded = np.concatenate([np.full(int(np.prod(shape)), _is_scale(p)) for p, shape in shapes])
    reach = np.where(bounded, np.log(_REACH), np.inf)
    return np.stack([np.min(starts, axis=0) - reach, np.max(starts, axis=0) + reach])


def _report_undetermined(objective: PenalisedBound, box: np.ndarray) -> None:
    """Warn of values far from every start that might as well be ten times as far."""
    low, high = box + np.log(_REACH / _SUSPECT) * np.array([[1.0], [-1.0]])
    vector, best = objective.vector, objective.best
    names = [
        name if not shape else f"{name}[{i}]"
        for name, shape in zip(objective.learnable.names, objective.learnable.free_shapes, strict=True)
        for i in range(int(np.prod(shape)))
    ]
    found = []
    for i in np.flatnonzero((vector < low) | (vector > high)):
        further = vector.copy()
        further[i] += np.log(_FURTHER) * np.sign(vector[i] - low[i])
        if objective(further)[0] - best < _FELT:
            found.append(f"{names[i]} = {np.exp(vector[i]):.3g}")
    if found:
        warn(
            f"fit: the data do not determine {', '.join(found)}: a further factor of {_FURTHER:g} changes the ELBO by "
            f"less than {_FELT:g}. Hold such values with pgm.Fixed, or give them priors.",
            FitWarning,
        )
