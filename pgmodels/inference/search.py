"""Searches for the maximum of the bound, on subsets first, with moving inducing inputs."""

import time
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pgmodels.inference.bound import TIGHT, MarginalBound
from pgmodels.inference.inducing_selection import Inputs
from pgmodels.inference.loop import Callback, IterationInfo
from pgmodels.inference.starts import Start, initial_models, input_steps, steps
from pgmodels.model import Data, Model
from pgmodels.numerics.iteration import BoxSearch, hessian
from pgmodels.objectives.base import Objective
from pgmodels.parameters.parameter import IDENTITY, Parameter
from pgmodels.parameters.vector import ParameterVector, free_shape, trainable, with_values
from pgmodels.runtime.messages import ProgressBar
from pgmodels.runtime.precision import as_array

# Maximisation of a bound over hyperparameters: from several starts by L-BFGS, or from a warm start by BFGS.

# Inner tolerance at the starts, which are only ranked.
_START_TOLERANCE = 1e-4
# Inner tolerance near an optimum: this share of the last step's gain, and at most _LOOSE.
_SHARE, _LOOSE = 1e-4, 1e-5
# With an inner tolerance at least this tight, convergence needs no further check.
_SURE = 1e-9
# Relative gain of the ELBO by newly chosen inducing inputs above which the search continues.
CHOICE_GAIN = 1e-5
# Number of steps after which starts of different kinds are compared.
_FIRST_STEPS = 20
# Gain in nats that moves values by less than .005 of their posterior deviations. With six classes and 200 rows, half of
# all evaluations came after it.
_NEGLIGIBLE = 1e-5
# SciPy's status of a search stopped by its callback.
_STOPPED = 99
# Smallest eigenvalue of an inverse Hessian, as a share of the largest.
_LEAST_SHARE = 1e-12
# Smallest curvature assumed along a ridge of the bound.
LEAST_CURVATURE = 1e-4
# Values without a prior stay within a factor of _REACH of their starts; scaling by units rounds the limits by less than
# _SLACK.
_REACH, _SLACK = 1e6, 1e-9
# Relative gain per step at which the first round of a search ends. The second round is scaled by the curvature and runs
# until the gain is within rounding, which may be a thousandth of a nat with inducing inputs and long lengthscales.
_FIRST_ROUND = 1e-7


class Limits(NamedTuple):
    """Stopping rule: the maximum number of steps, and the relative change of the bound that counts as converged.

    ``num_starts`` is the number of starts for the first steps; None takes the best of each kind. ``seed`` draws
    subsets of the rows and random starts.
    """

    max_iterations: int
    tolerance: float
    num_starts: int | None = None
    seed: int = 0

    def resolution(self, bound: MarginalBound) -> float:
        """The smallest gain of a step that counts: the tolerance, or the rounding error of the bound."""
        return max(self.tolerance * max(1.0, abs(bound.best)), bound.rounding)

    def enough(self, bound: MarginalBound) -> float:
        """The largest predicted gain that counts as convergence: ``resolution``, or _NEGLIGIBLE."""
        return max(self.resolution(bound), _NEGLIGIBLE)


class Maximum(NamedTuple):
    """Result of a search: the bound, which keeps the best vector, and how the search ended.

    ``box`` (2, size) has the limits of the values; ``inverse_hessian`` (size, size) is for the negative bound, None if
    not known. ``num_tried`` counts the starts from which steps were made.
    """

    bound: MarginalBound
    box: np.ndarray
    start: str
    start_elbos: dict[str, float]
    num_steps: int
    converged: bool
    message: str
    inverse_hessian: np.ndarray | None = None
    num_tried: int = 1


class SearchBar:
    """Shows the steps of a search, and calls a callback after those on all ``num_rows`` rows."""

    def __init__(self, bar: ProgressBar, num_rows: int = 0, callback: Callback | None = None):
        self.bar, self.num_rows, self.callback = bar, num_rows, callback
        self.number, self.start_time = 0, time.perf_counter()

    def step(self, bound: MarginalBound) -> None:
        """Advance the bar by one step, and call the callback with the best values of ``bound`` so far."""
        self.report(bound, bound.vector, -bound.best, bound.state)

    def report(self, bound: MarginalBound, vector: np.ndarray, elbo: float, state: Any) -> None:
        """Advance the bar by one step, and call the callback with a vector, its ELBO and a state."""
        self.bar.advance(1, f"ELBO {elbo:.4f}")
        if self.callback is None or len(bound.X) != self.num_rows:
            return
        self.number += 1
        learnable, seconds = bound.learnable, time.perf_counter() - self.start_time
        values = dict(zip(learnable.names, map(np.asarray, learnable.constrain(vector)), strict=True))
        self.callback(state, IterationInfo("fit", self.number, elbo, seconds, values))


class _InexactObjective:
    """A bound within a box, with q(f) optimised only as exactly as the recent gains require.

    ``left_box`` records whether a point outside the box was evaluated; the barrier is returned there, as for a bound
    that is not finite.
    """

    def __init__(self, bound: MarginalBound, box: np.ndarray):
        self.bound, self.box, self.tolerance, self.left_box = bound, box, _LOOSE, False

    def __call__(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """The value and its gradient."""
        if np.any((vector < self.box[0] - _SLACK) | (vector > self.box[1] + _SLACK)):
            self.left_box = True
            return self.bound.barrier(vector)
        # A vector that was scaled and scaled back is the same one.
        before, moved = self.bound.best, not np.allclose(vector, self.bound.vector, rtol=0.0, atol=_SLACK)
        evaluation = self.bound(vector, self.tolerance)
        if moved and evaluation[0] < before:
            self.tolerance = min(self.tolerance, self._required_tolerance(before))
        return evaluation

    def choose_again(self) -> bool:
        """Choose the inducing inputs at the best values; return whether to continue the search with other ones."""
        before = self.bound.best
        has_changed = self.bound.choose_again(CHOICE_GAIN)
        if has_changed:
            self.tolerance = self._required_tolerance(before)
        return has_changed

    def _required_tolerance(self, before: float) -> float:
        """The inner tolerance that resolves steps like the last one."""
        return float(np.clip(_SHARE * abs(before - self.bound.best) / (1.0 + abs(before)), TIGHT, _LOOSE))

    def predicted_decrease(self, inverse_hessian: Any) -> float:
        """The gain of one more Newton step with an inverse Hessian, values at their limits kept there."""
        vector, slope, (low, high) = self.bound.vector, self.bound.slope, self.box
        slope = np.where(((vector <= low) & (slope > 0)) | ((vector >= high) & (slope < 0)), 0.0, slope)
        return 0.5 * float(slope @ (inverse_hessian @ slope))

    def tighten(self, sufficient: float) -> bool:
        """Optimise q(f) at the best vector to the tightest tolerance unless ``sufficient``; return whether it did."""
        if self.tolerance <= sufficient:
            return False
        # A line search may fail, or end too soon, because of an inexact bound.
        self.tolerance = TIGHT
        self.bound(self.bound.vector, TIGHT)
        return True


class _Scaled:
    """The bound divided by ``height``, as a function of the vector divided by ``units``."""

    def __init__(self, inexact: _InexactObjective, units: np.ndarray, height: float):
        self.inexact, self.units, self.height = inexact, units, height

    @classmethod
    def at_best(cls, bound: MarginalBound, box: np.ndarray, units: np.ndarray) -> "_Scaled":
        """Scaled so that the first step from the best vector has a length of at most one unit.

        The first step is as long as the gradient, and a longer one may end far from any optimum.
        """
        return cls(_InexactObjective(bound, box), units, max(1.0, float(np.linalg.norm(bound.slope * units))))

    def __call__(self, scaled: np.ndarray) -> tuple[float, np.ndarray]:
        """The value and its gradient."""
        value, slope = self.inexact(scaled * self.units)
        return value / self.height, slope * self.units / self.height

    def rescale(self, inverse_hessian: np.ndarray) -> None:
        """Scale by the curvature along the gradient, so that the next first step is a Newton step in its direction."""
        slope = self.inexact.bound.slope * self.units
        if slope.any():
            self.height *= float(slope @ np.linalg.solve(inverse_hessian, slope) / (slope @ slope))


def multistart(
    initial: dict[str, Start], box: np.ndarray, data: Data, terms: Objective, limits: Limits, bar: SearchBar
) -> Maximum:
    """L-BFGS-B from the start with the largest bound, reselecting inducing inputs between rounds.

    With several kinds of starts, a few steps are made from the best of each kind and the search continues from the
    largest bound. The bound is evaluated inexactly, see ``_InexactObjective``.
    """
    bounds = {name: MarginalBound(trainable(start.model), data, terms) for name, start in initial.items()}
    for bound in bounds.values():
        bound(bound.vector, _START_TOLERANCE)
    starts = {name: -bound.best for name, bound in bounds.items()}
    # Lower ends of the bounds' rounding intervals.
    least = {name: elbo - bounds[name].rounding for name, elbo in starts.items()}
    tried = _leading(initial, least, limits.num_starts)
    check_start(starts[tried[0]])
    if not bounds[tried[0]].learnable.leaf_indices:
        return Maximum(bounds[tried[0]], box, tried[0], starts, 0, True, "nothing to learn")
    scales = {name: steps(bounds[name].learnable, data.X) for name in tried}
    first_steps = dict.fromkeys(tried, 0)
    for name in tried if len(tried) > 1 else []:
        count = min(_FIRST_STEPS, limits.max_iterations)
        first_steps[name] = _lbfgs(_Scaled.at_best(bounds[name], box, scales[name]), _FIRST_ROUND, count, bar).nit
    chosen = min(tried, key=lambda name: bounds[name].best + bounds[name].rounding)
    bound, num_steps = bounds[chosen], first_steps[chosen]
    size = max(1.0, abs(bound.best))
    scaled = _Scaled.at_best(bound, box, scales[chosen])
    inexact, units = scaled.inexact, scaled.units
    again, ftol = num_steps < limits.max_iterations, max(_FIRST_ROUND, limits.tolerance)
    ended = partial(Maximum, bound, box, chosen, starts, num_tried=len(tried))
    if not again:
        return ended(num_steps, False, "the first steps from the starts used all iterations")
    while again:
        ftol_scaled = ftol * min(1.0, size / scaled.height)
        solution = _lbfgs(scaled, ftol_scaled, limits.max_iterations - num_steps, bar)
        num_steps += int(solution.nit)
        steps_remain = num_steps < limits.max_iterations
        inverse = solution.hess_inv.todense()
        inverse_hessian = np.outer(units, units) / scaled.height * inverse
        again = steps_remain and inexact.choose_again()
        if steps_remain and not again and (inexact.tighten(TIGHT) or ftol > limits.tolerance):
            again = inexact.predicted_decrease(inverse_hessian) > limits.enough(bound)
        if again and are_within(bound.vector, box) and ftol > limits.tolerance:
            further = _refine_bfgs(
                inexact, inverse_hessian, limits._replace(max_iterations=limits.max_iterations - num_steps), bar
            )
            num_steps += further.num_steps
            if further.converged or num_steps >= limits.max_iterations:
                return ended(num_steps, further.converged, further.message)
        scaled.rescale(inverse)
        ftol = limits.tolerance
    stationary = bool(solution.success) or inexact.predicted_decrease(inverse_hessian) <= limits.enough(bound)
    if not stationary and num_steps < limits.max_iterations:
        # Rounding errors, as of noise-free data, end line searches early and spoil the Hessian from steps.
        exact = inverse_hessian_at(bound, LEAST_CURVATURE)
        stationary = exact is not None and inexact.predicted_decrease(exact) <= limits.enough(bound)
    return ended(num_steps, stationary, str(solution.message))


def _leading(initial: dict[str, Start], elbos: dict[str, float], count: int | None) -> list[str]:
    """The starts to make steps from, largest bound first: the best of each kind, then the best others."""
    ranked = sorted(elbos, key=lambda name: elbos[name] if np.isfinite(elbos[name]) else -np.inf, reverse=True)
    leaders = [name for i, name in enumerate(ranked) if all(initial[n].kind != initial[name].kind for n in ranked[:i])]
    chosen = (leaders + [name for name in ranked if name not in leaders])[: len(leaders) if count is None else count]
    return [chosen[0], *(name for name in chosen[1:] if np.isfinite(elbos[name]))]


def _lbfgs(scaled: _Scaled, ftol: float, max_iterations: int, bar: SearchBar) -> Any:
    """L-BFGS-B from the best vector of a bound, until a step gains less than ``ftol``, relatively."""
    from scipy.optimize import minimize

    bound, options = scaled.inexact.bound, {"ftol": ftol, "gtol": 1e-5 / scaled.height, "maxls": 40}
    return minimize(
        scaled,
        bound.vector / scaled.units,
        jac=True,
        method="L-BFGS-B",
        bounds=(scaled.inexact.box / scaled.units).T,
        callback=lambda _: bar.step(bound),
        options=options | {"maxiter": max_iterations},
    )


def warm_start(
    name: str, start: Model, inverse_hessian: np.ndarray, box: np.ndarray, data: Data, terms: Objective, limits: Limits,
    bar: SearchBar,
) -> Maximum | None:  # fmt: skip
    """BFGS from a start near the optimum, with an initial inverse Hessian; None if the bound is not finite there.

    Not converged if the bound still rises at the limits.
    """
    bound = MarginalBound(trainable(start), data, terms)
    inexact = _InexactObjective(bound, box)
    first = inexact(bound.vector)[0]
    if not np.isfinite(first):
        return None
    refinement = _refine_bfgs(inexact, inverse_hessian, limits, bar)
    return Maximum(bound, box, name, {name: -first}, *refinement)


class _Refinement(NamedTuple):
    num_steps: int
    converged: bool
    message: str
    inverse_hessian: np.ndarray


def _refine_bfgs(
    inexact: _InexactObjective, inverse_hessian: np.ndarray, limits: Limits, bar: SearchBar
) -> _Refinement:
    """BFGS from the best vector with an initial inverse Hessian, reselecting inducing inputs between rounds.

    Stops when a step gains, or is predicted to gain, less than the tolerance; not converged if the cause is a limit or
    rounding. The bound is evaluated inexactly, see ``_InexactObjective``.
    """
    from scipy.optimize import minimize

    bound, before = inexact.bound, np.inf
    num_steps, again = 0, True

    def value_and_slope(vector: np.ndarray) -> tuple[float, np.ndarray]:
        # The value at the start is known.
        return inexact(vector) if np.any(vector != bound.vector) else (bound.best, bound.slope)

    def is_stationary() -> bool:
        return inexact.predicted_decrease(inverse_hessian) <= limits.enough(bound)

    def report_step(_: Any) -> None:
        nonlocal before
        bar.step(bound)
        gain, before = before - bound.best, bound.best
        if gain <= limits.resolution(bound) or is_stationary():
            raise StopIteration

    while again:
        inverse_hessian, before, inexact.left_box = _definite(inverse_hessian), bound.best, False
        options = {"hess_inv0": inverse_hessian, "gtol": 0.0, "maxiter": limits.max_iterations - num_steps}
        solution = minimize(
            value_and_slope, bound.vector, jac=True, method="BFGS", callback=report_step, options=options
        )
        num_steps += int(solution.nit)
        inverse_hessian = solution.hess_inv if np.isfinite(solution.hess_inv).all() else inverse_hessian
        # Before inducing inputs are reselected: other inputs that gain little may have another gradient.
        stationary = is_stationary() or (solution.status == _STOPPED and not inexact.left_box)
        steps_remain = num_steps < limits.max_iterations
        again = steps_remain and inexact.choose_again()
        if steps_remain and not again and inexact.tighten(_SURE if stationary else TIGHT):
            stationary = is_stationary()
            again = not stationary
    message = f"one more step would gain less than the tolerance, or than {_NEGLIGIBLE:g} nats"
    message = message if stationary else str(solution.message)
    return _Refinement(num_steps, stationary, message, inverse_hessian)


def _definite(inverse_hessian: np.ndarray) -> np.ndarray:
    """An inverse Hessian made symmetric and positive definite, as SciPy requires, despite rounding."""
    values, vectors = np.linalg.eigh(0.5 * (inverse_hessian + inverse_hessian.T))
    definite = (vectors * np.maximum(values, _LEAST_SHARE * values[-1])) @ vectors.T
    return 0.5 * (definite + definite.T)


def inverse_hessian_at(bound: MarginalBound, least: float) -> np.ndarray | None:
    """An inverse Hessian by finite differences of gradients, curvatures at least ``least``; None if not finite."""
    H = hessian(lambda vector: bound(vector)[1], bound.vector, central=False)
    if not np.isfinite(H).all():
        return None
    values, vectors = np.linalg.eigh(H)
    inverse_hessian = (vectors / np.maximum(values, least)) @ vectors.T
    return 0.5 * (inverse_hessian + inverse_hessian.T)


def check_start(elbo: float) -> None:
    """Raise ValueError if the ELBO at the initial values is not finite."""
    if not np.isfinite(elbo):
        raise ValueError(
            "fit: the ELBO is not finite at the initial values. Give hyperparameters on the scale of the data."
        )


def box_of(initial: dict[str, Start]) -> np.ndarray:
    """Bounds (2, size) of the unconstrained vector: a factor about the starts for scale parameters without a prior."""
    unknowns = [trainable(start.model) for start in initial.values()]
    shapes = zip(unknowns[0].parameters, unknowns[0].free_shapes, strict=True)
    bounded = [_are_scales(p) if int(np.prod(shape)) else np.zeros(0, bool) for p, shape in shapes]
    reach = np.where(np.concatenate([np.zeros(0, bool), *bounded]), np.log(_REACH), np.inf)
    starts = [each.start() for each in unknowns]
    return np.stack([np.min(starts, axis=0) - reach, np.max(starts, axis=0) + reach])


def _are_scales(parameter: Parameter) -> np.ndarray:
    """Which unconstrained entries are scales (such as logarithms), not locations, and have no prior."""
    start = np.ravel(parameter.transform.inv(np.asarray(parameter.value)))
    if not parameter.is_free or parameter.transform is IDENTITY:
        return np.zeros(len(start), bool)
    if parameter.constraint is None:
        return np.ones(len(start), bool)

    def moved(step: np.ndarray) -> np.ndarray:
        return np.asarray(parameter.transform(as_array((start + step).reshape(free_shape(parameter)))))

    now = moved(np.zeros(len(start)))
    return np.array([not np.allclose(moved(2.0 * e) - now, 2.0 * (moved(e) - now)) for e in np.eye(len(start))])


def are_within(vector: np.ndarray, box: np.ndarray) -> bool:
    """Whether all values are strictly inside the bounds (2, size)."""
    return bool(np.all((vector > box[0]) & (vector < box[1])))


def within(box: np.ndarray, factor: float) -> np.ndarray:
    """The bounds (2, size) for a factor about the starts that is smaller than the box's."""
    return box + np.log(_REACH / factor) * np.array([[1.0], [-1.0]])


def names_of(learnable: ParameterVector) -> list[str]:
    """A name for each entry of the unconstrained vector."""
    return [
        name if not shape else f"{name}[{i}]"
        for name, shape in zip(learnable.names, learnable.free_shapes, strict=True)
        for i in range(int(np.prod(shape)))
    ]


# Learning inducing inputs by gradient, together with the hyperparameters.


def check_moving(model: Model) -> None:
    """Raise ValueError if a model has no inducing inputs to learn."""
    if not any(gp.form.num_inputs for gp in model.gps):
        raise ValueError(
            "train_inducing=True needs inducing inputs; no GP of the model has any. Give a form, as in pgm.GP(kernel, "
            "form=pgm.Inducing(100)), or leave train_inducing out."
        )


def move_inputs(maximum: Maximum, limits: Limits, bar: SearchBar) -> Maximum:
    """Continue a search over hyperparameters and inducing inputs jointly, by L-BFGS-B from its optimum.

    Source: Titsias 2009; Passerello 2021, PGPR GO and HGV GO.
    """
    bound, size = maximum.bound, len(maximum.bound.vector)
    first, units = _joined(bound.vector, bound.inputs), input_steps(bound.inputs, bound.X)
    # Inputs keep their value in constant columns of X.
    reach = np.where(units > 0.0, np.inf, 0.0)
    box = np.stack([first[size:] - reach, first[size:] + reach])

    def value_and_slope(x: np.ndarray) -> tuple[float, np.ndarray] | None:
        evaluated = bound.at_inputs(x[:size], _split(x[size:], bound.inputs))
        return None if evaluated is None else (evaluated[0], _joined(*evaluated[1:]))

    search = BoxSearch(
        value_and_slope,
        first,
        np.concatenate([steps(bound.learnable, bound.X), np.where(units > 0.0, units, 1.0)]),
        np.concatenate([maximum.box, box], axis=1),
        lambda _: bar.step(bound),
    )
    if not np.isfinite(search.value):
        raise ValueError(
            "train_inducing=True: the gradient of the ELBO in the inducing inputs is not finite. Use kernels that are "
            "differentiable in their inputs, or leave train_inducing out."
        )
    converged = search.converge(limits.max_iterations - maximum.num_steps, limits.tolerance)
    message = "a new search gained less than the tolerance" if converged else "the inducing inputs used all iterations"
    return maximum._replace(
        num_steps=maximum.num_steps + search.num_iterations,
        converged=converged,
        message=message,
        inverse_hessian=None,
    )


def _joined(vector: np.ndarray, inputs: Inputs) -> np.ndarray:
    return np.concatenate([vector, *(np.ravel(Z) for Z in inputs if Z is not None)])


def _split(entries: np.ndarray, inputs: Inputs) -> Inputs:
    sizes = [0 if Z is None else Z.size for Z in inputs]
    pairs = zip(np.split(entries, np.cumsum(sizes)[:-1]), inputs, strict=True)
    return tuple(None if Z is None else part.reshape(Z.shape) for part, Z in pairs)


# Learning from many rows with a warm start: the optimum of a subset of the rows, recursively.

# Rows of a subset at least where rows have several predictors by quadrature: hundreds of sweeps take several times as
# long as for one predictor.
_LEAST_ROWS = 128
# Each subset has 1 / _GROWTH of the rows: each stage compiles, and a million rows of a Markov process take 92 s by
# stages of a sixteenth and 160 s by stages of a quarter, with as many steps of the last one.
_GROWTH = 16
# A subset's optimum is not used if some value is more than a factor of _FAR_OUT from the starts and the curvature of
# the bound gives it a standard deviation above _FLAT, in factors of e: steps from a flat region may not lead back.
_FAR_OUT, _FLAT = 1e3, 2.0
# Smallest curvature.
_LEAST_CURVATURE = 0.1


def learn(model: Model, data: Data, terms: Objective, limits: Limits, bar: SearchBar) -> Maximum:
    """Maximise the bound, from the best start or from the optimum of a subset of the rows."""
    initial = initial_models(model, data, terms, limits.num_starts, limits.seed)
    box = box_of(initial)
    count = _num_subset_rows(model, len(data.y), terms)
    if count is None or not trainable(model).leaf_indices:
        return multistart(initial, box, data, terms, limits, bar)
    rows = model.gps[0].form.subset(model.gps[0].kernel, data.X, count, limits.seed)
    before = learn(model, data.at(rows), terms, limits, bar)
    inverse_hessian = (
        inverse_hessian_at(before.bound, _LEAST_CURVATURE) if before.inverse_hessian is None else before.inverse_hessian
    )
    stage, vector = f"{count} rows", before.bound.vector
    if inverse_hessian is None or _is_undetermined(vector, inverse_hessian, box):
        return multistart(initial, box, data, terms, limits, bar)

    def moved(vector: np.ndarray) -> Model:
        values = before.bound.learnable.constrain(np.clip(vector, *box))
        return with_values(model, trainable(model).leaf_indices, values)

    if are_within(vector, box):
        start = _of_more_rows(inverse_hessian, before.bound.learnable, len(data.y) / count)
        maximum = warm_start(stage, moved(vector), start, box, data, terms, limits, bar)
        if maximum is None or _is_undetermined(maximum.bound.vector, maximum.inverse_hessian, box):
            return multistart(initial, box, data, terms, limits, bar)
        if maximum.converged or maximum.num_steps >= limits.max_iterations:
            return maximum
        vector = maximum.bound.vector
    # Values at their limits: L-BFGS-B keeps them there.
    return multistart(initial | {stage: Start(moved(vector), "level")}, box, data, terms, limits, bar)


def _of_more_rows(inverse_hessian: np.ndarray, learnable: ParameterVector, growth: float) -> np.ndarray:
    """The inverse Hessian of ``growth`` times as many rows.

    Curvatures in the likelihood's parameters grow with the rows, and those in a GP's if its subset is a stretch of its
    inputs. With 100,000 rows of a Markov process learning takes three or four evaluations on all rows, and nine to
    eleven without this; scaling those of other GPs too doubles their number (100,000 rows of a Hilbert basis).
    """
    gps = learnable.model.gps
    grows = np.array([index < 0 or gps[index].form.subset_is_stretch for index in learnable.gps])
    scale = np.where(grows, growth**-0.5, 1.0)
    return scale[:, None] * inverse_hessian * scale


def _is_undetermined(vector: np.ndarray, inverse_hessian: np.ndarray | None, box: np.ndarray) -> bool:
    """Whether a value is extreme and undetermined by the subset: all rows may determine it."""
    low, high = within(box, _FAR_OUT)
    far_out = (vector < low) | (vector > high)
    return bool(np.any(far_out)) and (
        inverse_hessian is None or bool(np.any(np.diag(inverse_hessian)[far_out] > _FLAT**2))
    )


def _num_subset_rows(model: Model, num_rows: int, terms: Objective) -> int | None:
    """The number of rows of the subset to start from; None if no subset is used."""
    sizes = [gp.form.least_subset for gp in model.gps if gp.form.least_subset is not None]
    if len(sizes) < len(model.gps):
        return None
    least = min(sizes)
    if terms.size > 1 and terms.num_nodes > 1:
        least = max(_LEAST_ROWS, least // terms.size)
    return max(least, num_rows // _GROWTH) if num_rows >= 2 * least else None
