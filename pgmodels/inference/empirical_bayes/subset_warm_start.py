"""Learning from many rows with a warm start: the optimum of a subset of the rows, recursively."""

import numpy as np

from pgmodels.inference.empirical_bayes.initial_values import Start, initial_models
from pgmodels.inference.empirical_bayes.search import (
    Limits,
    Maximum,
    SearchBar,
    are_within,
    box_of,
    inverse_hessian_at,
    multistart,
    warm_start,
    within,
)
from pgmodels.model import Data, Model
from pgmodels.objectives.base import Objective
from pgmodels.parameters.vector import ParameterVector, trainable, with_values

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
