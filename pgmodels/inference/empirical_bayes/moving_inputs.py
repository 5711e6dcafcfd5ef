"""Learning inducing inputs by gradient, together with the hyperparameters."""

import numpy as np

from pgmodels.inference.adaptive_selection import Inputs
from pgmodels.inference.empirical_bayes.initial_values import input_steps, steps
from pgmodels.inference.empirical_bayes.search import Limits, Maximum, SearchBar
from pgmodels.model import Model
from pgmodels.numerics.box_search import BoxSearch


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
    """The inducing inputs of each group from their entries in one vector."""
    sizes = [0 if Z is None else Z.size for Z in inputs]
    pairs = zip(np.split(entries, np.cumsum(sizes)[:-1]), inputs, strict=True)
    return tuple(None if Z is None else part.reshape(Z.shape) for part, Z in pairs)
