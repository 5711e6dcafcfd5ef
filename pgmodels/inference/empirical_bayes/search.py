"""The hyperparameters at which a bound is largest, from the best of several starts or from near by."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpyro.distributions.constraints import real

from pgmodels.inference.empirical_bayes.bound import TIGHT, MarginalBound
from pgmodels.inference.empirical_bayes.initial_values import Start, is_free, steps
from pgmodels.model import Data, Model
from pgmodels.objectives.base import Objective
from pgmodels.parameters.parameter import Parameter
from pgmodels.parameters.vector import ParameterVector, free_shape, trainable
from pgmodels.runtime.progress import ProgressBar
from pgmodels.runtime.x64 import as_array

# Starts are only ranked.
_START_TOLERANCE = 1e-4
# Near an optimum, q(f) is to be at its own to a share of what the last step gained, and no worse than this.
_SHARE, _LOOSE = 1e-4, 1e-5
# As exact as this, the end of the steps needs no second look.
_SURE = 1e-9
# What another choice of inducing inputs must gain of the ELBO, relative to its size, for another ascent.
_CHOICE_GAIN = 1e-5
# Starts of several kinds are compared after so many steps.
_FIRST_STEPS = 20
# SciPy's status of a search that its callback stopped.
_STOPPED = 99
# Of an inverse Hessian's largest eigenvalue the others have at least this share.
_LEAST_SHARE = 1e-12
# Values that only the data hold back stay within this factor of their starts; units round limits by less than a slack.
_REACH, _SLACK = 1e6, 1e-9
# Of the bound's size a step gains less where the first round of a search ends. The second knows its curvature, and ends
# where rounding is all that is left: of inducing inputs and long lengthscales it may be a thousandth of a nat.
_FIRST_ROUND = 1e-7


class Limits(NamedTuple):
    """When to stop: after so many steps, or where one changes the bound by less, relative to its size.

    ``num_starts`` is from how many starts the first steps are made; None for the best of each kind.
    """

    max_iterations: int
    tolerance: float
    num_starts: int | None = None

    def enough(self, bound: MarginalBound) -> float:
        """A gain that counts as none, be it for rounding."""
        return max(self.tolerance * max(1.0, abs(bound.best)), bound.rounding)


class Maximum(NamedTuple):
    """Where a search ended: the bound, which keeps the best vector, and how it came there.

    ``box`` (2, size) holds the values' limits, and ``spread`` (size, size) is an inverse Hessian of the negative bound,
    None where none is known. ``num_tried`` counts the starts from which steps were made.
    """

    bound: MarginalBound
    box: np.ndarray
    start: str
    start_elbos: dict[str, float]
    num_steps: int
    converged: bool
    message: str
    spread: np.ndarray | None = None
    num_tried: int = 1


class _InexactObjective:
    """A bound within a box, with its q(f) only as near to its optimum as the steps so far ask for.

    ``left`` is whether a value outside the box was asked for: a bowl stands in there, as where the bound is not finite.
    """

    def __init__(self, bound: MarginalBound, box: np.ndarray):
        self.bound, self.box, self.tolerance, self.left = bound, box, _LOOSE, False

    def __call__(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """The value and its gradient."""
        if np.any((vector < self.box[0] - _SLACK) | (vector > self.box[1] + _SLACK)):
            self.left = True
            return self.bound.barrier(vector)
        before, moved = self.bound.best, np.any(vector != self.bound.vector)
        found = self.bound(vector, self.tolerance)
        if moved and found[0] < before:
            self.tolerance = min(self.tolerance, self._asked(before))
        return found

    def choose_again(self) -> bool:
        """Choose the inducing inputs for the best values; whether the bound rises by it."""
        before = self.bound.best
        found = self.bound.choose_again(_CHOICE_GAIN)
        if found:
            self.tolerance = self._asked(before)
        return found

    def _asked(self, before: float) -> float:
        """How exact q(f) is to be after a gain."""
        return float(np.clip(_SHARE * (before - self.bound.best) / (1.0 + abs(before)), TIGHT, _LOOSE))

    def predicted_decrease(self, spread: Any) -> float:
        """What one more step would gain by an inverse Hessian; of values at their limits, nothing."""
        vector, slope, (low, high) = self.bound.vector, self.bound.slope, self.box
        slope = np.where(((vector <= low) & (slope > 0)) | ((vector >= high) & (slope < 0)), 0.0, slope)
        return 0.5 * float(slope @ (spread @ slope))

    def tighten(self, least: float) -> bool:
        """Take q(f) at the best vector as near as it gets, unless it is as near as ``least``; whether that was done."""
        if self.tolerance <= least:
            return False
        # A line search may fail, or end too soon, for want of digits.
        self.tolerance = TIGHT
        self.bound(self.bound.vector, TIGHT)
        return True


class _Scaled:
    """A bound divided by a height, as a function of the vector divided by units."""

    def __init__(self, eased: _InexactObjective, units: np.ndarray, height: float):
        self.eased, self.units, self.height = eased, units, height

    @classmethod
    def at_best(cls, bound: MarginalBound, box: np.ndarray, units: np.ndarray) -> "_Scaled":
        """To begin at the best vector: the first step is as long as the gradient.

        It is of one unit, or it ends where no optimum is soon found.
        """
        return cls(_InexactObjective(bound, box), units, max(1.0, float(np.linalg.norm(bound.slope * units))))

    def __call__(self, scaled: np.ndarray) -> tuple[float, np.ndarray]:
        """The value and its gradient."""
        value, slope = self.eased(scaled * self.units)
        return value / self.height, slope * self.units / self.height

    def rescale(self, spread: np.ndarray) -> None:
        """By the curvature along the gradient, given an inverse Hessian: so far goes the first step from here."""
        slope = self.eased.bound.slope * self.units
        if slope.any():
            self.height *= float(slope @ np.linalg.solve(spread, slope) / (slope @ slope))


def multistart(
    begun: dict[str, Start], box: np.ndarray, data: Data, terms: Objective, limits: Limits, bar: ProgressBar
) -> Maximum:
    """By L-BFGS within a box, from the start with the largest bound; inducing inputs are chosen again in between.

    Of several kinds of starts, from the one at which the bound is largest after the first steps from the best of each
    kind. The bound is as exact as the steps so far ask for.
    """
    from scipy.optimize import minimize

    bounds = {name: MarginalBound(trainable(start.model), data, terms) for name, start in begun.items()}
    for bound in bounds.values():
        bound(bound.vector, _START_TOLERANCE)
    starts = {name: -bound.best for name, bound in bounds.items()}
    # At the least that rounding leaves of it.
    least = {name: elbo - bounds[name].rounding for name, elbo in starts.items()}
    tried = _leading(begun, least, limits.num_starts)
    _check_start(starts[tried[0]])
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
    eased, units = scaled.eased, scaled.units
    again, ftol = num_steps < limits.max_iterations, max(_FIRST_ROUND, limits.tolerance)
    ended = partial(Maximum, bound, box, chosen, starts, num_tried=len(tried))
    if not again:
        return ended(num_steps, False, "the first steps took them all")
    while again:
        solution = minimize(
            scaled,
            bound.vector / units,
            jac=True,
            method="L-BFGS-B",
            bounds=(box / units).T,
            callback=lambda intermediate_result: bar.advance(1, f"ELBO {-scaled.height * intermediate_result.fun:.4f}"),
            options={
                "ftol": ftol * min(1.0, size / scaled.height),
                "gtol": 1e-5 / scaled.height,
                "maxls": 40,
                "maxiter": limits.max_iterations - num_steps,
            },
        )
        num_steps += int(solution.nit)
        left = num_steps < limits.max_iterations
        inverse = solution.hess_inv.todense()
        spread = np.outer(units, units) / scaled.height * inverse
        again = left and eased.choose_again()
        if left and not again and (eased.tighten(TIGHT) or ftol > limits.tolerance):
            again = eased.predicted_decrease(spread) > limits.enough(bound)
        if again and are_within(bound.vector, box) and ftol > limits.tolerance:
            further = _settle(eased, spread, limits._replace(max_iterations=limits.max_iterations - num_steps), bar)
            num_steps += further.num_steps
            if further.converged or num_steps >= limits.max_iterations:
                return ended(num_steps, further.converged, further.message)
        scaled.rescale(inverse)
        ftol = limits.tolerance
    still = bool(solution.success) or eased.predicted_decrease(spread) <= limits.enough(bound)
    return ended(num_steps, still, str(solution.message))


def _leading(begun: dict[str, Start], elbos: dict[str, float], count: int | None) -> list[str]:
    """The starts to make steps from, that with the largest bound first: the best of each kind, then the best others."""
    ranked = sorted(elbos, key=lambda name: elbos[name] if np.isfinite(elbos[name]) else -np.inf, reverse=True)
    leaders = [name for i, name in enumerate(ranked) if all(begun[n].kind != begun[name].kind for n in ranked[:i])]
    chosen = (leaders + [name for name in ranked if name not in leaders])[: len(leaders) if count is None else count]
    return [chosen[0], *(name for name in chosen[1:] if np.isfinite(elbos[name]))]


def _first_steps(bound: MarginalBound, box: np.ndarray, units: np.ndarray, count: int, bar: ProgressBar) -> int:
    """So many steps of L-BFGS, at most; how many there were."""
    from scipy.optimize import minimize

    scaled = _Scaled.at_best(bound, box, units)
    options = {"ftol": _FIRST_ROUND, "gtol": 1e-5 / scaled.height, "maxls": 40, "maxiter": count}
    look = lambda intermediate_result: bar.advance(1, f"ELBO {-scaled.height * intermediate_result.fun:.4f}")  # noqa: E731
    begin, limits = bound.vector / units, (box / units).T
    return int(minimize(scaled, begin, jac=True, method="L-BFGS-B", bounds=limits, callback=look, options=options).nit)


def near(
    name: str, start: Model, spread: np.ndarray, box: np.ndarray, data: Data, terms: Objective, limits: Limits,
    bar: ProgressBar,
) -> Maximum | None:  # fmt: skip
    """From a start that is not far, with the inverse Hessian to begin with; None where the bound is not finite there.

    It does not converge where the bound still rises at the limits.
    """
    bound = MarginalBound(trainable(start), data, terms)
    eased = _InexactObjective(bound, box)
    first = eased(bound.vector)[0]
    if not np.isfinite(first):
        return None
    found = _settle(eased, spread, limits, bar)
    return Maximum(bound, box, name, {name: -first}, *found)


class _Settled(NamedTuple):
    """How a search from near by ended."""

    num_steps: int
    converged: bool
    message: str
    spread: np.ndarray


def _settle(eased: _InexactObjective, spread: np.ndarray, limits: Limits, bar: ProgressBar) -> _Settled:
    """By BFGS from the best vector and an inverse Hessian; inducing inputs are chosen again in between.

    Stops where a step gains less than the tolerance, or would, and does not converge where that is for the limits' sake
    or for rounding. The bound is as exact as the steps so far ask for.
    """
    from scipy.optimize import minimize

    bound, before = eased.bound, np.inf
    num_steps, again = 0, True

    def value_and_slope(vector: np.ndarray) -> tuple[float, np.ndarray]:
        # Of the start, which is known.
        return eased(vector) if np.any(vector != bound.vector) else (bound.best, bound.slope)

    def is_still() -> bool:
        return eased.predicted_decrease(spread) <= limits.enough(bound)

    def look(intermediate_result: Any) -> None:
        nonlocal before
        bar.advance(1, f"ELBO {-intermediate_result.fun:.4f}")
        gain, before = before - bound.best, bound.best
        if gain <= limits.enough(bound) or is_still():
            raise StopIteration

    while again:
        spread, before, eased.left = _definite(spread), bound.best, False
        options = {"hess_inv0": spread, "gtol": 0.0, "maxiter": limits.max_iterations - num_steps}
        solution = minimize(value_and_slope, bound.vector, jac=True, method="BFGS", callback=look, options=options)
        num_steps += int(solution.nit)
        spread = solution.hess_inv if np.isfinite(solution.hess_inv).all() else spread
        # Of the inducing inputs that the steps were taken with: others, that gain little, may have another slope.
        still = is_still() or (solution.status == _STOPPED and not eased.left)
        left = num_steps < limits.max_iterations
        again = left and eased.choose_again()
        if left and not again and eased.tighten(_SURE if still else TIGHT):
            still = is_still()
            again = not still
    message = "one more step would gain less than the tolerance" if still else str(solution.message)
    return _Settled(num_steps, still, message, spread)


def _definite(spread: np.ndarray) -> np.ndarray:
    """An inverse Hessian as SciPy takes it: symmetric and positive definite, whatever rounding did to it."""
    values, vectors = np.linalg.eigh(0.5 * (spread + spread.T))
    found = (vectors * np.maximum(values, _LEAST_SHARE * values[-1])) @ vectors.T
    return 0.5 * (found + found.T)


def _check_start(elbo: float) -> None:
    if not np.isfinite(elbo):
        raise ValueError("fit: the ELBO is not finite at the start values. Give start values nearer to the data.")


def box_of(begun: dict[str, Start]) -> np.ndarray:
    """Bounds (2, size) of the unconstrained vector: a factor about the starts, where neither prior nor sign bounds."""
    unknowns = [trainable(start.model) for start in begun.values()]
    shapes = zip(unknowns[0].parameters, unknowns[0].free_shapes, strict=True)
    bounded = [_are_scales(p) if int(np.prod(shape)) else np.zeros(0, bool) for p, shape in shapes]
    reach = np.where(np.concatenate([np.zeros(0, bool), *bounded]), np.log(_REACH), np.inf)
    starts = [each.start() for each in unknowns]
    return np.stack([np.min(starts, axis=0) - reach, np.max(starts, axis=0) + reach])


def _are_scales(parameter: Parameter) -> np.ndarray:
    """Which unconstrained entries are logarithms or the like, from data alone: no locations."""
    begin = np.ravel(parameter.transform.inv(as_array(parameter.value)))
    if not is_free(parameter) or parameter.support is real:
        return np.zeros(len(begin), bool)
    if parameter.constraint is None:
        return np.ones(len(begin), bool)

    def moved(step: np.ndarray) -> np.ndarray:
        return np.asarray(parameter.transform(as_array((begin + step).reshape(free_shape(parameter)))))

    now = moved(np.zeros(len(begin)))
    return np.array([not np.allclose(moved(2.0 * e) - now, 2.0 * (moved(e) - now)) for e in np.eye(len(begin))])


def are_within(vector: np.ndarray, box: np.ndarray) -> bool:
    """Whether all values are within the bounds (2, size), and none at them."""
    return bool(np.all((vector > box[0]) & (vector < box[1])))


def within(box: np.ndarray, factor: float) -> np.ndarray:
    """The bounds (2, size) of values within a smaller factor of the starts than the box."""
    return box + np.log(_REACH / factor) * np.array([[1.0], [-1.0]])


def names_of(learnable: ParameterVector) -> list[str]:
    """A name for each entry of the unconstrained vector."""
    return [
        name if not shape else f"{name}[{i}]"
        for name, shape in zip(learnable.names, learnable.free_shapes, strict=True)
        for i in range(int(np.prod(shape)))
    ]
