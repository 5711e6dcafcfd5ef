"""Learning kernel hyperparameters, means and likelihood parameters on the collapsed bound."""

import math
import time
from dataclasses import replace
from typing import Any

import equinox as eqx
import numpy as np

from pgmodels.inference.cavi import ConvergenceWarning
from pgmodels.inference.inducing import (
    settled,
    with_inputs,
)
from pgmodels.inference.penalised_bound import INNER_ITERATIONS, PenalisedBound, engine_of, objective_of
from pgmodels.inference.starts import candidates, is_free, steps
from pgmodels.language.normalisation import is_normalised
from pgmodels.model import Model, require_model
from pgmodels.options import check_between, check_whole_number
from pgmodels.parameters import Parameter, is_parameter
from pgmodels.precision import as_array, double_precision
from pgmodels.progress import progress_bar
from pgmodels.results.approximation import Approximation, FitReport
from pgmodels.threads import one_thread_if_small
from pgmodels.unknowns import Unknowns, learned
from pgmodels.warning import warn

_OBJECTIVES = ("cavi", "gaussian_vi")
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
        model = settled(model, data, engine_of(terms).nearly_converged)
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
    result = engine_of(terms).converge(final, data, bound.state, INNER_ITERATIONS, min(tolerance, 1e-9), progress)
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
