"""Learning from many rows in stages: from some of them first, whose optimum is near that of all."""

import numpy as np

from pgmodels.inference.empirical_bayes.initial_values import Start, initial_models
from pgmodels.inference.empirical_bayes.search import Limits, Maximum, are_within, box_of, multistart, near, within
from pgmodels.model import Data, Model
from pgmodels.objectives.base import Objective
from pgmodels.parameters.vector import trainable, with_values
from pgmodels.priors.inducing.representation import Inducing
from pgmodels.priors.representation import Auto, Dense
from pgmodels.runtime.progress import ProgressBar
from pgmodels.runtime.x64 import as_array

# A stage has so many times the rows of the one before. With the rows of the least, or with inducing inputs and few
# rows, a program compiles longer than it runs.
_GROWTH, _LEAST, _FEW = 4, 512, 5_000
# From values farther out of the range of the starts than by this factor no step may lead back where the bound is flat:
# where its curvature gives one of them this standard deviation, in factors of e.
_FAR_OUT, _FLAT = 1e3, 2.0
# Steps of the differences that give a Hessian; curvatures below the least are taken for that.
_STEP, _LEAST_CURVATURE = 0.05, 0.1
# A curvature that half grows with the rows.
_SATURATED = 20.0
_SEED = 0


def learn(model: Model, data: Data, terms: Objective, limits: Limits, bar: ProgressBar) -> Maximum:
    """The values at which the bound is largest, from the best start, or from the optimum of a stage with fewer rows."""
    begun = initial_models(model, data, terms, limits.num_starts)
    box = box_of(begun)
    count = _fewer(model, len(data.y))
    if count is None or not trainable(model).leaf_indices:
        return multistart(begun, box, data, terms, limits, bar)
    rows = np.sort(np.random.default_rng(_SEED).permutation(len(data.y))[:count])
    before = learn(model, Data(data.X[rows], data.y[rows], data.columns), terms, limits, bar)
    spread = ridges(before, _LEAST_CURVATURE) if before.spread is None else before.spread
    stage, vector = f"{count} rows", before.bound.vector
    if spread is None or _is_lost(vector, spread, box):
        return multistart(begun, box, data, terms, limits, bar)

    def moved(vector: np.ndarray) -> Model:
        values = before.bound.learnable.constrain(as_array(np.clip(vector, *box)))
        return with_values(model, trainable(model).leaf_indices, values)

    if are_within(vector, box):
        spread = _narrowed(spread, len(data.y) / count)
        found = near(stage, moved(vector), spread, box, data, terms, limits, bar)
        if found is None or _is_lost(found.bound.vector, found.spread, box):
            return multistart(begun, box, data, terms, limits, bar)
        if found.converged or found.num_steps >= limits.max_iterations:
            return found
        vector = found.bound.vector
    # At their limits values are held there.
    return multistart(begun | {stage: Start(moved(vector), "level")}, box, data, terms, limits, bar)


def _is_lost(vector: np.ndarray, spread: np.ndarray | None, box: np.ndarray) -> bool:
    """Whether some value is far out where the bound is flat: what few rows do not determine more of them may."""
    low, high = within(box, _FAR_OUT)
    far_out = (vector < low) | (vector > high)
    return bool(np.any(far_out)) and (spread is None or bool(np.any(np.diag(spread)[far_out] > _FLAT**2)))


def _fewer(model: Model, num_rows: int) -> int | None:
    """The rows of the stage before one with so many; None where a first one has them."""
    forms = [gp.form for gp in model.gps]
    least = _LEAST if any(isinstance(form, (Dense, Auto)) for form in forms) else _FEW
    known = all(isinstance(form, (Dense, Auto, Inducing)) for form in forms)
    return max(least, num_rows // _GROWTH) if known and num_rows >= 2 * least else None


def _narrowed(spread: np.ndarray, growth: float) -> np.ndarray:
    """The inverse Hessian with so many times the rows: a curvature grows as they do where it is far above the least.

    Of 2,000 rows beside 512 of six data sets that of the scale of distances was 2.3 to 3.5 times as large, and that of
    a variance and a lengthscale growing together, 1 or 2 a factor of e, 0.5 to 2 times; of a seventh 2.5 and 57 times.
    """
    values, vectors = np.linalg.eigh(spread)
    found = (vectors * (values / (1.0 + (growth - 1.0) / (1.0 + _SATURATED * values)))) @ vectors.T
    return 0.5 * (found + found.T)


def ridges(found: Maximum, least: float) -> np.ndarray | None:
    """An inverse Hessian by differences of gradients, curvatures no less than ``least``; None where not finite."""
    bound, vector = found.bound, found.bound.vector
    at = bound(vector)[1]
    slopes = np.array([bound(vector + step)[1] - at for step in _STEP * np.eye(len(vector))])
    if not np.isfinite(slopes).all():
        return None
    values, vectors = np.linalg.eigh(0.5 * (slopes + slopes.T) / _STEP)
    spread = (vectors / np.maximum(values, least)) @ vectors.T
    return 0.5 * (spread + spread.T)
