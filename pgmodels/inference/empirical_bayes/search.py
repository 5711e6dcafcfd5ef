"""Maximisation of a bound over hyperparameters: from several starts by L-BFGS, or from a warm start by BFGS."""

import time
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pgmodels.inference.empirical_bayes.bound import TIGHT, MarginalBound
from pgmodels.inference.empirical_bayes.initial_values import Start, steps
from pgmodels.inference.loop import Callback, IterationInfo
from pgmodels.model import Data, Model
from pgmodels.numerics.finite_differences import hessian
from pgmodels.objectives.base import Objective
from pgmodels.parameters.parameter import Parameter
from pgmodels.parameters.transforms import IDENTITY
from pgmodels.parameters.vector import ParameterVector, free_shape, trainable
from pgmodels.runtime.progress import ProgressBar
from pgmodels.runtime.x64 import as_array

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
        self.number, self.begin = 0, time.perf_counter()

    def step(self, bound: MarginalBound) -> None:
        """Advance the bar by one step, and call the callback with the best values of ``bound`` so far."""
        self.report(bound, bound.vector, -bound.best, bound.state)

    def report(self, bound: MarginalBound, vector: np.ndarray, elbo: float, state: Any) -> None:
        """Advance the bar by one step, and call the callback with a vector, its ELBO and a state."""
        self.bar.advance(1, f"ELBO {elbo:.4f}")
        if self.callback is None or len(bound.X) != self.num_rows:
            return
        self.number += 1
        learnable, seconds = bound.learnable, time.perf_counter() - self.begin
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
    from scipy.optimize import minimize

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
        first_steps[name] = _first_steps(bounds[name], box, scales[name], min(_FIRST_STEPS, limits.max_iterations), bar)
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
        solution = minimize(
            scaled,
            bound.vector / units,
            jac=True,
            method="L-BFGS-B",
            bounds=(box / units).T,
            callback=lambda _: bar.step(bound),
            options={
                "ftol": ftol * min(1.0, size / scaled.height),
                "gtol": 1e-5 / scaled.height,
                "maxls": 40,
                "maxiter": limits.max_iterations - num_steps,
            },
        )
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


def _first_steps(bound: MarginalBound, box: np.ndarray, units: np.ndarray, count: int, bar: SearchBar) -> int:
    """At most ``count`` steps of L-BFGS-B; returns their number."""
    from scipy.optimize import minimize

    scaled = _Scaled.at_best(bound, box, units)
    options = {"ftol": _FIRST_ROUND, "gtol": 1e-5 / scaled.height, "maxls": 40, "maxiter": count}
    begin, limits = bound.vector / units, (box / units).T
    return int(
        minimize(
            scaled,
            begin,
            jac=True,
            method="L-BFGS-B",
            bounds=limits,
            callback=lambda _: bar.step(bound),
            options=options,
        ).nit
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
    """Result of ``_refine_bfgs``."""

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
    begin = np.ravel(parameter.transform.inv(np.asarray(parameter.value)))
    if not parameter.is_free or parameter.transform is IDENTITY:
        return np.zeros(len(begin), bool)
    if parameter.constraint is None:
        return np.ones(len(begin), bool)

    def moved(step: np.ndarray) -> np.ndarray:
        return np.asarray(parameter.transform(as_array((begin + step).reshape(free_shape(parameter)))))

    now = moved(np.zeros(len(begin)))
    return np.array([not np.allclose(moved(2.0 * e) - now, 2.0 * (moved(e) - now)) for e in np.eye(len(begin))])


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
