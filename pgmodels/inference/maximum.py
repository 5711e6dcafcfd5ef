"""The hyperparameters at which a bound is largest, from the best of several starts or from near by."""

from typing import Any, NamedTuple

import numpy as np

from pgmodels.inference.penalised_bound import PenalisedBound
from pgmodels.inference.starts import is_free, steps
from pgmodels.model import Data, Model
from pgmodels.objectives.protocol import Objective
from pgmodels.parameters import Parameter
from pgmodels.progress import ProgressBar
from pgmodels.unknowns import Unknowns, learned

# Starts are only ranked.
_START_TOLERANCE = 1e-4
# What another choice of inducing inputs must gain of the ELBO, relative to its size, for another ascent.
_CHOICE_GAIN = 1e-5
# Values that only the data hold back stay within this factor of their starts.
REACH = 1e6


class Limits(NamedTuple):
    """When to stop: after so many steps, or where one changes the bound by less, relative to its size."""

    max_iterations: int
    tolerance: float


class Maximum(NamedTuple):
    """Where a search ended: the bound, which keeps the best vector, and how it came there.

    ``box`` (2, size) holds the values' limits, and ``spread`` (size, size) is an inverse Hessian of the negative bound,
    None where none is known.
    """

    bound: PenalisedBound
    box: np.ndarray
    start: str
    start_elbos: dict[str, float]
    num_steps: int
    converged: bool
    message: str
    spread: np.ndarray | None = None

    @property
    def model(self) -> Model:
        """The model at the best values."""
        return self.bound.at(self.bound.vector)


def best_of(begun: dict[str, Model], data: Data, terms: Objective, limits: Limits, bar: ProgressBar) -> Maximum:
    """By L-BFGS within a box, from the start with the largest bound; inducing inputs are chosen again in between."""
    from scipy.optimize import minimize

    bounds = {name: PenalisedBound(learned(start), data, terms) for name, start in begun.items()}
    first = {name: bound(bound.vector, _START_TOLERANCE) for name, bound in bounds.items()}
    starts = {name: -value for name, (value, _) in first.items()}
    chosen = max(starts, key=lambda name: starts[name])
    bound = bounds[chosen]
    _check_start(starts[chosen])
    box = box_of(begun)
    if not bound.learnable.places:
        return Maximum(bound, box, chosen, starts, 0, True, "nothing to learn")
    units = steps(bound.learnable, data.X)
    # The first step is as long as the gradient: of one unit, or it ends where no optimum is soon found.
    height = max(1.0, float(np.linalg.norm(first[chosen][1] * units)))
    size = max(1.0, abs(starts[chosen]))
    options = {"ftol": limits.tolerance * min(1.0, size / height), "gtol": 1e-5 / height, "maxls": 40}
    num_steps, again = 0, True
    while again:
        solution = minimize(
            lambda scaled: bound.in_units(scaled, units, height),
            bound.vector / units,
            jac=True,
            method="L-BFGS-B",
            bounds=(box / units).T,
            callback=lambda intermediate_result: bar.advance(1, f"ELBO {-height * intermediate_result.fun:.4f}"),
            options=options | {"maxiter": limits.max_iterations - num_steps},
        )
        num_steps += int(solution.nit)
        again = num_steps < limits.max_iterations and bound.choose_again(_CHOICE_GAIN)
    return Maximum(bound, box, chosen, starts, num_steps, bool(solution.success), str(solution.message))


def near(
    name: str, start: Model, spread: np.ndarray, box: np.ndarray, data: Data, terms: Objective, limits: Limits,
    bar: ProgressBar,
) -> Maximum:  # fmt: skip
    """By BFGS from a start that is not far, with the inverse Hessian to begin with; the box is for the report."""
    from scipy.optimize import minimize

    bound = PenalisedBound(learned(start), data, terms)
    value = bound(bound.vector, _START_TOLERANCE)[0]
    _check_start(-value)
    num_steps, again = 0, True

    def stop_where_still(intermediate_result: Any) -> None:
        nonlocal value
        gain, value = value - intermediate_result.fun, intermediate_result.fun
        bar.advance(1, f"ELBO {-value:.4f}")
        if gain <= limits.tolerance * max(1.0, abs(value)):
            raise StopIteration

    while again:
        solution = minimize(
            lambda vector: bound.in_units(vector, np.ones_like(vector), 1.0),
            bound.vector,
            jac=True,
            method="BFGS",
            callback=stop_where_still,
            options={"hess_inv0": spread, "gtol": 1e-5, "maxiter": limits.max_iterations - num_steps},
        )
        num_steps, spread = num_steps + int(solution.nit), np.asarray(solution.hess_inv)
        again = num_steps < limits.max_iterations and bound.choose_again(_CHOICE_GAIN)
    converged = num_steps < limits.max_iterations
    return Maximum(bound, box, name, {name: -value}, num_steps, converged, str(solution.message), spread)


def _check_start(elbo: float) -> None:
    if not np.isfinite(elbo):
        raise ValueError("fit: the ELBO is not finite at the start values. Give start values nearer to the data.")


def box_of(begun: dict[str, Model]) -> np.ndarray:
    """Bounds (2, size) of the unconstrained vector: a factor about the starts, where neither prior nor sign bounds."""
    unknowns = [learned(start) for start in begun.values()]
    shapes = zip(unknowns[0].parameters, unknowns[0].free_shapes, strict=True)
    bounded = [np.full(int(np.prod(shape)), _is_scale(p)) for p, shape in shapes]
    reach = np.where(np.concatenate([np.zeros(0, bool), *bounded]), np.log(REACH), np.inf)
    starts = [each.start() for each in unknowns]
    return np.stack([np.min(starts, axis=0) - reach, np.max(starts, axis=0) + reach])


def _is_scale(parameter: Parameter) -> bool:
    """Whether a value is learned as a logarithm, from data alone."""
    return parameter.positive and parameter.constraint is None and is_free(parameter)


def far_out(vector: np.ndarray, box: np.ndarray, factor: float) -> np.ndarray:
    """The places of values beyond a factor of every start."""
    low, high = box + np.log(REACH / factor) * np.array([[1.0], [-1.0]])
    return np.flatnonzero((vector < low) | (vector > high))


def names_of(learnable: Unknowns) -> list[str]:
    """A name for each entry of the unconstrained vector."""
    return [
        name if not shape else f"{name}[{i}]"
        for name, shape in zip(learnable.names, learnable.free_shapes, strict=True)
        for i in range(int(np.prod(shape)))
    ]
