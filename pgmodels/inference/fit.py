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
from pgmodels.inference.maximum import Limits, names_of, within
from pgmodels.inference.penalised_bound import PenalisedBound, engine_of, objective_of
from pgmodels.inference.stages import learn
from pgmodels.language.normalisation import is_normalised
from pgmodels.model import Model, require_model
from pgmodels.options import check_between, check_whole_number
from pgmodels.parameters import is_parameter
from pgmodels.precision import double_precision
from pgmodels.progress import progress_bar
from pgmodels.results.approximation import Approximation, FitReport
from pgmodels.threads import one_thread_if_small
from pgmodels.unknowns import learned
from pgmodels.warning import warn

OBJECTIVES = ("cavi", "gaussian_vi")
# Of q(f) at the values learned.
_INNER_TOLERANCE = 1e-9
# Beyond this factor a value is suspect: it is reported where the bound does not feel a further factor of ten.
_SUSPECT, _FURTHER, _FELT = 30.0, 10.0, 0.1
# Tolerances at which it is looked at, until what an ascent may still gain, so many of them, makes no difference.
_LOOKS, _STILL_TO_GAIN = (1e-5, 1e-7, _INNER_TOLERANCE), 1e3


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
    L-BFGS and, near the optimum, BFGS, with q(f) at its optimum throughout. Starts from the values given, or from
    values in the units of the data (see ``pgmodels.inference.starts``), whichever have the largest ELBO. Likelihood
    parameters are learned only where the formula is normalised in y, since what it leaves out may depend on them;
    otherwise they are held, with a FitWarning. A positive value without a prior stays within a factor of 1e6 of its
    starts, and a FitWarning names those far out that the data do not determine. From 1,024 rows on, or 10,000 with
    inducing inputs, the start is the optimum of a sample of the rows, where these determine the values, and steps on
    all begin with the Hessian there. The learned model is ``.model`` of the result and ``.fit`` tells how it was found.
    X (n, d), y (n,) or (n, columns), ``weights`` (n,) as in ``cavi``. Warns with ConvergenceWarning where the optimiser
    stops early; raises as ``cavi`` does.
    """
    begin = time.perf_counter()
    model, data = require_model(model).given(X, y, weights)
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(map(repr, OBJECTIVES))}; got {objective!r}.")
    check_whole_number(max_iterations, "max_iterations", 1)
    check_between(tolerance, "tolerance", 0.0, math.inf)
    model = hold_unnormalised(model.resolve(data.X), "fit")
    model.check_memory(data.X)
    terms = objective_of(model, objective)
    if not learned(model).places:
        model = settled(model, data, engine_of(terms).nearly_converged)
    with progress_bar("fit", max_iterations, progress) as bar:
        found = learn(model, data, terms, Limits(max_iterations, tolerance), bar)
    bound, learnable = found.bound, found.bound.learnable
    values = learnable.constrain(bound.vector)
    final = with_inputs(learnable.with_values([np.asarray(value) for value in values]), bound.inputs)
    # From q(f) at the optimum: a start of its own could end in another one.
    inner = min(tolerance, _INNER_TOLERANCE)
    result = engine_of(terms).finish(final, data, bound.optimum(inner), inner)
    if learnable.places:
        _report_undetermined(bound, found.box)
    if not found.converged:
        warn(
            f"fit did not converge: {found.message} after {found.num_steps} steps, ELBO {result.elbo:.6g}. Raise "
            "max_iterations, or fix or give priors to hyperparameters that the data do not determine.",
            ConvergenceWarning,
        )
    report = FitReport(
        start=found.start,
        start_elbos=found.start_elbos,
        values={name: np.asarray(value) for name, value in zip(learnable.names, values, strict=True)},
        num_steps=found.num_steps,
        num_evaluations=bound.evaluations,
        converged=found.converged,
        message=found.message,
    )
    return replace(
        result,
        method="fit",
        fit=report,
        converged=result.converged and found.converged,
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


def _report_undetermined(objective: PenalisedBound, box: np.ndarray) -> None:
    """Warn of values far from every start that might as well be ten times as far."""
    vector, best, names = objective.vector, objective.best, names_of(objective.learnable)
    found = []
    low, high = within(box, _SUSPECT)
    for i in np.flatnonzero((vector < low) | (vector > high)):
        further = vector.copy()
        further[i] += np.log(_FURTHER) * np.sign(vector[i] - low[i])
        if not _is_felt(objective, further, best):
            found.append(f"{names[i]} = {np.exp(vector[i]):.3g}")
    if found:
        warn(
            f"fit: the data do not determine {', '.join(found)}: a further factor of {_FURTHER:g} changes the ELBO by "
            f"less than {_FELT:g}. Hold such values with pgm.Fixed, or give them priors.",
            FitWarning,
        )


def _is_felt(objective: PenalisedBound, vector: np.ndarray, best: float) -> bool:
    """Whether the bound at a vector is below the best by as much as is felt."""
    for tolerance in _LOOKS:
        # An ascent only raises the bound.
        loss = objective(vector, tolerance)[0] - best
        if loss < _FELT or loss > _FELT + _STILL_TO_GAIN * tolerance * (1.0 + abs(best)):
            break
    return loss >= _FELT
