"""Searches for the maximum of the bound, on subsets first, with moving inducing inputs."""

import time
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pgmodels.inference.bound import TIGHT, MarginalBound, Point, Selection, choose_again
from pgmodels.inference.loop import Callback, IterationInfo
from pgmodels.inference.prepare import Inputs
from pgmodels.inference.starts import Start, initial_models, input_steps, steps
from pgmodels.model import Data, Model
from pgmodels.numerics.iteration import Search, hessian
from pgmodels.objectives.base import Objective
from pgmodels.parameters.parameter import IDENTITY, Parameter
from pgmodels.parameters.vector import ParameterVector, free_shape, trainable
from pgmodels.priors.base import Sites
from pgmodels.runtime.messages import ProgressBar
from pgmodels.runtime.precision import as_array

# Maximisation of a bound over hyperparameters: from several starts by L-BFGS, or from a warm start by BFGS.


class Settings(NamedTuple):
    """What steers the searches, apart from the options of ``fit``. Inner tolerances are of q(f)."""

    # Inner tolerance at the starts, which are only ranked.
    start_tolerance: float = 1e-4
    # Inner tolerance near an optimum: a share of the last step's gain, and at most the loosest. With one at least as
    # tight as the last of these, convergence needs no further check.
    share_of_gain: float = 1e-4
    loosest: float = 1e-5
    sure: float = 1e-9
    # Number of steps after which starts of different kinds are compared.
    first_steps: int = 20
    # Relative gain per step, and slope in units, at which the first round of a search ends. The second round is scaled
    # by the curvature and runs until the gain is within rounding, which may be a thousandth of a nat with inducing
    # inputs and long lengthscales.
    first_round: float = 1e-7
    least_slope: float = 1e-5
    # Gain in nats that moves values by less than .005 of their posterior deviations. With six classes and 200 rows,
    # half of all evaluations came after it.
    negligible: float = 1e-5
    # Smallest curvature assumed along a ridge of the bound, and at the optimum of a subset.
    least_curvature: float = 1e-4
    least_curvature_of_subset: float = 0.1
    # Values without a prior stay within this factor of their starts.
    reach: float = 1e6
    # Each subset has 1 / growth of the rows: each stage compiles, and a million rows of a Markov process take 92 s by
    # stages of a sixteenth and 160 s by stages of a quarter, with as many steps of the last one. With several
    # predictors by quadrature the least number of rows is lower, since hundreds of sweeps take several times as long
    # as for one predictor.
    growth: int = 16
    least_rows: int = 128
    # Least rows of a subset of a mixed model: with fewer, compiling a stage costs more than the search itself.
    least_of_exact: int = 100_000
    # With fewer rows evaluations are cheap, and L-BFGS-B ends nearer to the optimum.
    least_rows_of_levels: int = 1000
    # A subset's optimum is not used if some value is more than a factor of far_out from the starts and the curvature of
    # the bound gives it a standard deviation above flat, in factors of e: steps from a flat region may not lead back.
    far_out: float = 1e3
    flat: float = 2.0


SETTINGS = Settings()


class Limits(NamedTuple):
    """Stopping rule: the maximum number of steps, and the relative change of the bound that counts as converged.

    ``num_starts`` is the number of starts for the first steps; None means the best of each kind. ``seed`` draws
    subsets of the rows and random starts.
    """

    max_iterations: int
    tolerance: float
    num_starts: int | None = None
    seed: int = 0

    def resolution(self, point: Point) -> float:
        """Return the smallest gain of a step that counts: the tolerance, or the rounding error of the bound."""
        return max(self.tolerance * max(1.0, abs(point.value)), point.rounding)

    def enough(self, point: Point) -> float:
        """Return the largest predicted gain that counts as convergence: ``resolution``, or a negligible gain."""
        return max(self.resolution(point), SETTINGS.negligible)


class Maximum(NamedTuple):
    """Result of a search: the bound, its best point, and how the search ended.

    ``box`` (2, size) has the limits of the values; ``inverse_hessian`` (size, size) is for the negative bound, None if
    not known. ``num_tried`` counts the starts from which steps were made, ``num_evaluations`` evaluations of the bound.
    """

    bound: MarginalBound
    best: Point
    box: np.ndarray
    start: str
    start_elbos: dict[str, float]
    num_steps: int
    converged: bool
    message: str
    num_evaluations: int
    inverse_hessian: np.ndarray | None = None
    num_tried: int = 1


class Near(NamedTuple):
    """Where a search starts near the optimum: its name, and values, the number of rows that they were learned from.

    The inverse Hessian there is computed if it is None; ``sites`` are sites of the first rows, None for the engine's
    start.
    """

    name: str
    vector: np.ndarray
    num_rows: int
    inverse_hessian: np.ndarray | None = None
    sites: Sites | None = None


class SearchBar:
    """Shows the steps of a search, and calls a callback after those on all ``num_rows`` rows."""

    def __init__(self, bar: ProgressBar, num_rows: int = 0, callback: Callback | None = None):
        self.bar, self.num_rows, self.callback = bar, num_rows, callback
        self.number, self.start_time = 0, time.perf_counter()

    def step(self, bound: MarginalBound, point: Point) -> None:
        """Advance the bar by one step, and call the callback with the values, the ELBO and q(f) of a point."""
        self.bar.advance(1, f"ELBO {-point.value:.4f}")
        if self.callback is None or len(bound.data.y) != self.num_rows:
            return
        self.number += 1
        learnable, seconds = bound.learnable, time.perf_counter() - self.start_time
        values = dict(zip(learnable.names, map(np.asarray, learnable.constrain(point.vector)), strict=True))
        self.callback(point.state, IterationInfo("fit", self.number, -point.value, seconds, values))


class BoundSearch(Search[Point]):
    """A search on a bound, with q(f) optimised only as exactly as the recent gains require."""

    def __init__(
        self, bound: MarginalBound, box: np.ndarray, limits: Limits, bar: SearchBar, units: np.ndarray, start: Point
    ):
        self.bound, self.limits, self.bar = bound, limits, bar
        self.tolerance, self.selection = SETTINGS.loosest, Selection()
        super().__init__(self._evaluate, start.vector, units, box, partial(bar.step, bound), start)

    def _evaluate(self, vector: np.ndarray, best: Point | None) -> Point | None:
        point = self.bound.at(vector, best, self.tolerance)
        if point is None or best is None or not point.is_resolved(best.value):
            return None
        if point.value < best.value:
            self.tolerance = min(self.tolerance, _required_tolerance(best, point))
        return point

    @property
    def steps_left(self) -> int:
        """The number of further steps."""
        return self.limits.max_iterations - self.num_iterations

    def choose_again(self) -> bool:
        """Choose the inducing inputs at the best values; return whether to continue the search with other ones."""
        before = self.point
        self.best, self.selection, has_changed = choose_again(self.bound, before, self.selection)
        if has_changed:
            self.tolerance = _required_tolerance(before, self.best)
        return has_changed

    def is_stationary(self, inverse_hessian: np.ndarray) -> bool:
        """Return whether one more Newton step would gain too little to count, values at their limits kept there."""
        vector, slope, (low, high) = self.x, self.point.slope, self.box
        slope = np.where(((vector <= low) & (slope > 0)) | ((vector >= high) & (slope < 0)), 0.0, slope)
        return 0.5 * float(slope @ (inverse_hessian @ slope)) <= self.limits.enough(self.point)

    def tighten(self, tolerance: float, sufficient: float = TIGHT) -> bool:
        """Optimise q(f) at the best vector to a tolerance unless ``sufficient``; return whether it did."""
        if self.tolerance <= sufficient:
            return False
        # A line search may fail, or end too soon, because of an inexact bound.
        self.tolerance = tolerance
        self.num_evaluations += 1
        self.best = self.bound.at(self.x, self.point, tolerance) or self.point
        return True

    def refine(self, inverse_hessian: np.ndarray) -> tuple[np.ndarray, bool, str]:
        """BFGS from an initial inverse Hessian, with a new choice of inducing inputs between rounds.

        Stops when a step gains, or is predicted to gain, less than the tolerance. Returns the last inverse Hessian,
        whether it converged, not if the cause is a limit or rounding, and a message.
        """
        before, again = self.point.value, True

        def report(point: Point) -> None:
            nonlocal before
            self.bar.step(self.bound, point)
            gain, before = before - point.value, point.value
            if gain <= self.limits.resolution(point) or self.is_stationary(inverse_hessian):
                raise StopIteration

        self.report = report
        while again:
            inverse_hessian, before = definite(inverse_hessian), self.point.value
            solution = self.bfgs(inverse_hessian, self.steps_left)
            inverse_hessian = solution.hess_inv if np.isfinite(solution.hess_inv).all() else inverse_hessian
            # Before inducing inputs are reselected: other inputs that gain little may have another gradient.
            # SciPy's status of a search that ``report`` stopped.
            is_stopped = solution.status == 99 and not self.left_box
            stationary = is_stopped or self.is_stationary(inverse_hessian)
            again = self.steps_left > 0 and self.choose_again()
            if self.steps_left > 0 and not again and self.tighten(TIGHT, SETTINGS.sure if stationary else TIGHT):
                stationary = self.is_stationary(inverse_hessian)
                again = not stationary
        message = f"one more step would gain less than the tolerance, or than {SETTINGS.negligible:g} nats"
        return inverse_hessian, stationary, message if stationary else str(solution.message)


def _required_tolerance(before: Point, after: Point) -> float:
    """The inner tolerance that resolves steps like that between two points."""
    gain = abs(before.value - after.value)
    return float(np.clip(SETTINGS.share_of_gain * gain / (1.0 + abs(before.value)), TIGHT, SETTINGS.loosest))


def multistart(
    initial: dict[str, Start], box: np.ndarray, data: Data, terms: Objective, limits: Limits, bar: SearchBar
) -> Maximum:
    """L-BFGS-B from the start with the largest bound, and BFGS once it is near the optimum.

    Inducing inputs are reselected between rounds. With several kinds of starts, a few steps are made from the best of
    each kind and the search continues from the largest bound.
    """
    bounds = {name: MarginalBound.of(trainable(start.model), data, terms) for name, start in initial.items()}
    tolerance = SETTINGS.start_tolerance if len(bounds) > 1 else SETTINGS.loosest
    points = {name: bound.at(bound.learnable.start(), tolerance=tolerance) for name, bound in bounds.items()}
    elbos = {name: -np.inf if point is None else -point.value for name, point in points.items()}
    # Lower ends of the bounds' rounding intervals.
    least = {name: -np.inf if point is None else -point.value - point.rounding for name, point in points.items()}
    # Steps are made from the starts with the largest bounds: the best of each kind, then the best others.
    ranked = sorted(least, key=lambda name: least[name] if np.isfinite(least[name]) else -np.inf, reverse=True)
    leaders = [name for i, name in enumerate(ranked) if all(initial[n].kind != initial[name].kind for n in ranked[:i])]
    count = len(leaders) if limits.num_starts is None else limits.num_starts
    first, *others = (leaders + [name for name in ranked if name not in leaders])[:count]
    tried = [first, *(name for name in others if np.isfinite(least[name]))]
    check_start(elbos[tried[0]])
    searches = {
        name: BoundSearch(bounds[name], box, limits, bar, steps(bounds[name].learnable, data.X), point)
        for name, point in points.items()
        if name in tried and point is not None
    }
    if not bounds[tried[0]].learnable.leaf_indices:
        search = searches[tried[0]]
        return Maximum(search.bound, search.point, box, tried[0], elbos, 0, True, "nothing to learn", 1)
    for search in searches.values():
        if len(bounds) > 1:
            search.tighten(SETTINGS.loosest)
        if len(tried) > 1:
            search.lbfgs(min(SETTINGS.first_steps, limits.max_iterations), SETTINGS.first_round, SETTINGS.least_slope)
    chosen = min(tried, key=lambda name: searches[name].point.value + searches[name].point.rounding)
    search = searches[chosen]
    converged, message = _from_start(search)
    return Maximum(
        search.bound, search.point, box, chosen, elbos, search.num_iterations, converged, message,
        search.num_evaluations, num_tried=len(tried),
    )  # fmt: skip


def _from_start(search: BoundSearch) -> tuple[bool, str]:
    """L-BFGS-B in rounds from the best point, and BFGS once it is near; whether it converged, and a message."""
    limits, units, height = search.limits, search.units, search.height
    if search.steps_left <= 0:
        return False, "the first steps from the starts used all iterations"
    search.tolerance = SETTINGS.loosest
    if (expected := _expected_curvatures(search.bound)) is not None:
        inverse_hessian, *_ = search.refine(np.diag(1.0 / expected))
        _, converged, message = search.refine(inverse_hessian)
        if converged or search.steps_left <= 0:
            return converged, message
        search.report = partial(search.bar.step, search.bound)
    again, tolerance = True, max(SETTINGS.first_round, limits.tolerance)
    while again:
        solution = search.lbfgs(search.steps_left, tolerance, SETTINGS.least_slope, height)
        # Of the divided bound, in units.
        inverse = solution.hess_inv.todense()
        inverse_hessian = np.outer(units, units) / height * inverse
        again = search.steps_left > 0 and search.choose_again()
        if search.steps_left > 0 and not again and (search.tighten(TIGHT) or tolerance > limits.tolerance):
            again = not search.is_stationary(inverse_hessian)
        if again and are_within(search.x, search.box) and tolerance > limits.tolerance:
            _, converged, message = search.refine(inverse_hessian)
            if converged or search.steps_left <= 0:
                return converged, message
            search.report = partial(search.bar.step, search.bound)
        # With a divisor by the curvature along the gradient, the next first step is a Newton step in its direction.
        slope = search.point.slope * units
        if slope.any():
            height *= float(slope @ np.linalg.solve(inverse, slope) / (slope @ slope))
        tolerance = limits.tolerance
    stationary = bool(solution.success) or search.is_stationary(inverse_hessian)
    if not stationary and search.steps_left > 0:
        # Rounding errors, as of noise-free data, end line searches early and spoil the Hessian from steps.
        exact = inverse_hessian_at(search.bound, search.point, SETTINGS.least_curvature)
        stationary = exact is not None and search.is_stationary(exact)
    return stationary, str(solution.message)


def _expected_curvatures(bound: MarginalBound) -> np.ndarray | None:
    """The Fisher information of mixed models' values, at most; None for other models and few rows."""
    # With three variances of 14 to 2,972 levels a search needs 19 evaluations of the bound, and 27 without this.
    learnable, inputs = bound.learnable, bound.family.inputs
    is_free = any(gp.mean.is_free for gp in learnable.model.gps)
    if is_free or len(bound.data.y) < SETTINGS.least_rows_of_levels or not is_mixed(learnable.model, bound.data.X):
        return None
    counts = [1 if levels is None else len(levels.keys) for levels in inputs.levels]
    return np.array([2.0 * len(bound.data.y) if at < 0 else max(1.0, 0.5 * counts[at]) for at in learnable.gps])


def is_mixed(model: Model, X: np.ndarray) -> bool:
    """Return whether all latents are coefficients or levels."""
    return all(gp.form.is_exact(gp.kernel, X) for gp in model.gps)


def warm_start(
    near: Near, start: Model, box: np.ndarray, data: Data, terms: Objective, limits: Limits, bar: SearchBar
) -> Maximum | None:
    """BFGS from a start near the optimum; None if not finite there, not converged if it still rises at the limits."""
    bound = MarginalBound.of(trainable(start), data, terms)
    first = bound.at(bound.learnable.start(), tolerance=SETTINGS.loosest, sites=near.sites)
    if first is None:
        return None
    search = BoundSearch(bound, box, limits, bar, np.ones(len(first.vector)), first)
    growth, inverse_hessian = len(data.y) / near.num_rows, near.inverse_hessian
    if inverse_hessian is None:
        inverse_hessian = inverse_hessian_at(bound, first, SETTINGS.least_curvature_of_subset)
    else:
        inverse_hessian = _of_more_rows(inverse_hessian, bound.learnable, growth)
    if inverse_hessian is None:
        return None
    inverse_hessian, converged, message = search.refine(inverse_hessian)
    return Maximum(
        bound, search.point, box, near.name, {near.name: -first.value}, search.num_iterations, converged, message,
        search.num_evaluations, inverse_hessian,
    )  # fmt: skip


def definite(inverse_hessian: np.ndarray) -> np.ndarray:
    """Return an inverse Hessian made symmetric and positive definite, as SciPy requires, despite rounding."""
    values, vectors = np.linalg.eigh(0.5 * (inverse_hessian + inverse_hessian.T))
    definite = (vectors * np.maximum(values, 1e-12 * values[-1])) @ vectors.T
    return 0.5 * (definite + definite.T)


def inverse_hessian_at(bound: MarginalBound, point: Point, least: float) -> np.ndarray | None:
    """Return an inverse Hessian by differences of gradients, curvatures at least ``least``; None if not finite."""

    def gradient(vector: np.ndarray) -> np.ndarray:
        moved = bound.at(vector, point)
        return np.full_like(vector, np.nan) if moved is None else moved.slope

    H = hessian(gradient, point.vector, central=False)
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
    reach = np.where(np.concatenate([np.zeros(0, bool), *bounded]), np.log(SETTINGS.reach), np.inf)
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
    """Return whether all values are strictly inside the bounds (2, size)."""
    return bool(np.all((vector > box[0]) & (vector < box[1])))


def within(box: np.ndarray, factor: float) -> np.ndarray:
    """Return the bounds (2, size) for a factor about the starts that is smaller than the box's."""
    return box + np.log(SETTINGS.reach / factor) * np.array([[1.0], [-1.0]])


def names_of(learnable: ParameterVector) -> list[str]:
    """Return a name for each entry of the unconstrained vector."""
    return [
        name if not shape else f"{name}[{i}]"
        for name, shape in zip(learnable.names, learnable.free_shapes, strict=True)
        for i in range(int(np.prod(shape)))
    ]


# Learning inducing inputs by gradient, together with the hyperparameters.


def move_inputs(maximum: Maximum, limits: Limits, bar: SearchBar) -> Maximum:
    """Continue a search over values and inducing inputs jointly, by L-BFGS-B (Titsias 2009; Passerello 2021)."""
    bound, first, size = maximum.bound, maximum.best, len(maximum.best.vector)
    units = input_steps(first.inputs, bound.data.X)
    entries = _joined((), first.inputs)
    # Inputs keep their value in constant columns of X.
    reach = np.where(units > 0.0, np.inf, 0.0)
    box = np.stack([entries - reach, entries + reach])

    def evaluate(x: np.ndarray, best: _Moving | None) -> _Moving | None:
        start = first if best is None else best.point
        parts = iter(np.split(x[size:], np.cumsum([Z.size for Z in first.inputs if Z is not None])))
        inputs = tuple(None if Z is None else next(parts).reshape(Z.shape) for Z in first.inputs)
        point = bound.at(x[:size], start, inputs=inputs, moves=True)
        if point is None or not point.is_resolved(start.value):
            return None
        return _Moving(point.value, _joined(point.slope, point.of_inputs), point)

    search = Search(
        evaluate,
        _joined(first.vector, first.inputs),
        np.concatenate([steps(bound.learnable, bound.data.X), np.where(units > 0.0, units, 1.0)]),
        np.concatenate([maximum.box, box], axis=1),
        lambda best: bar.step(bound, best.point),
    )
    if search.best is None:
        raise ValueError(
            "train_inducing=True: the gradient of the ELBO in the inducing inputs is not finite. Use kernels that are "
            "differentiable in their inputs, or leave train_inducing out."
        )
    converged = search.converge(limits.max_iterations - maximum.num_steps, limits.tolerance)
    message = "a new search gained less than the tolerance" if converged else "the inducing inputs used all iterations"
    return maximum._replace(
        best=search.point.point,
        num_steps=maximum.num_steps + search.num_iterations,
        num_evaluations=maximum.num_evaluations + search.num_evaluations,
        converged=converged,
        message=message,
        inverse_hessian=None,
    )


class _Moving(NamedTuple):
    """A point with its value and the joint gradient in the hyperparameters and the inducing inputs."""

    value: float
    slope: np.ndarray
    point: Point


def _joined(vector: ArrayLike, inputs: Inputs) -> np.ndarray:
    return np.concatenate([vector, *(np.ravel(Z) for Z in inputs if Z is not None)])


# Learning from many rows with a warm start: the optimum of a subset of the rows, recursively.


def learn(
    model: Model, data: Data, terms: Objective, limits: Limits, bar: SearchBar, near: Near | None = None
) -> Maximum:
    """Maximise the bound, from near the optimum, from the best start or from the optimum of a subset of the rows."""
    initial = initial_models(model, data, terms, limits.num_starts, limits.seed)
    box, learnable = box_of(initial), trainable(model)
    if near is None and learnable.leaf_indices:
        near = _of_subset(model, data, terms, limits, bar, box)
    if near is None or not learnable.leaf_indices:
        return multistart(initial, box, data, terms, limits, bar)
    vector = near.vector

    def moved(vector: np.ndarray) -> Model:
        return learnable.with_values(learnable.constrain(np.clip(vector, *box)))

    if are_within(vector, box):
        maximum = warm_start(near, moved(vector), box, data, terms, limits, bar)
        if maximum is None or _is_undetermined(maximum.best.vector, maximum.inverse_hessian, box):
            return multistart(initial, box, data, terms, limits, bar)
        if maximum.converged or maximum.num_steps >= limits.max_iterations:
            return maximum
        vector = maximum.best.vector
    # Values at their limits: L-BFGS-B keeps them there.
    return multistart(initial | {near.name: Start(moved(vector), "level")}, box, data, terms, limits, bar)


def _of_subset(
    model: Model, data: Data, terms: Objective, limits: Limits, bar: SearchBar, box: np.ndarray
) -> Near | None:
    """The optimum of a subset of the rows; None if no subset is used, or it does not determine the values."""
    count = num_subset_rows(model, data.X, terms)
    if count is None:
        return None
    rows = model.gps[0].form.subset(model.gps[0].kernel, data.X, count, limits.seed)
    before = learn(model, data.at(rows), terms, limits, bar)
    inverse_hessian = (
        inverse_hessian_at(before.bound, before.best, SETTINGS.least_curvature_of_subset)
        if before.inverse_hessian is None
        else before.inverse_hessian
    )
    vector = before.best.vector
    if inverse_hessian is None or _is_undetermined(vector, inverse_hessian, box):
        return None
    return Near(f"{count} rows", vector, count, inverse_hessian)


def _of_more_rows(inverse_hessian: np.ndarray, learnable: ParameterVector, growth: float) -> np.ndarray:
    """The inverse Hessian of ``growth`` times as many rows.

    Curvatures in the likelihood's parameters grow with the rows, and those in a GP's if its subset is a stretch of its
    inputs. With 100,000 rows of a Markov process learning takes three or four evaluations on all rows, and nine to
    eleven without this; scaling those of other GPs too doubles their number (100,000 rows of a Hilbert basis).
    """
    gps = learnable.model.gps
    grows = np.array([index < 0 or not gps[index].form.has_factor for index in learnable.gps])
    scale = np.where(grows, growth**-0.5, 1.0)
    return scale[:, None] * inverse_hessian * scale


def _is_undetermined(vector: np.ndarray, inverse_hessian: np.ndarray | None, box: np.ndarray) -> bool:
    """Whether a value is extreme and undetermined by the subset: all rows may determine it."""
    low, high = within(box, SETTINGS.far_out)
    far_out = (vector < low) | (vector > high)
    return bool(np.any(far_out)) and (
        inverse_hessian is None or bool(np.any(np.diag(inverse_hessian)[far_out] > SETTINGS.flat**2))
    )


def num_subset_rows(model: Model, X: np.ndarray, terms: Objective) -> int | None:
    """Return the number of rows of the subset to start from; None if no subset is used."""
    sizes = [gp.form.least_subset for gp in model.gps if gp.form.least_subset is not None]
    if len(sizes) < len(model.gps):
        return None
    num_rows, least = len(X), SETTINGS.least_of_exact if is_mixed(model, X) else min(sizes)
    if terms.size > 1 and terms.num_nodes > 1:
        least = max(SETTINGS.least_rows, least // terms.size)
    return max(least, num_rows // SETTINGS.growth) if num_rows >= 2 * least else None
