"""Learning kernel hyperparameters, means and likelihood parameters on the collapsed bound."""

import math
import time
from dataclasses import replace
from typing import Any

import equinox as eqx
import numpy as np

from pgmodels.inference.cavi import MANY, ConvergenceWarning
from pgmodels.inference.correction import corrected_if
from pgmodels.inference.inducing import (
    settled,
    with_inputs,
)
from pgmodels.inference.maximum import Limits, Maximum, names_of, within
from pgmodels.inference.penalised_bound import PenalisedBound, engine_of, objective_of
from pgmodels.inference.stages import learn, ridges
from pgmodels.inference.starts import is_free
from pgmodels.inference.variance_ratio import warn_narrow
from pgmodels.language.normalisation import is_normalised
from pgmodels.model import Data, Model, require_model
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
# Of the bound along a ridge; and so many starts more are tried where one ends on it.
_LEAST_CURVATURE, _MORE_STARTS = 1e-4, 3
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
    objective: str = "auto",
    max_iterations: int = 200,
    tolerance: float = 1e-9,
    num_starts: int | None = None,
    correct: bool | str = "auto",
    progress: bool | None = None,
) -> Approximation:
    """Learn the hyperparameters and likelihood parameters that are not Fixed, and return the converged result at them.

    ``objective`` is the bound, and ``.objective`` of the result says which it was: of ``"cavi"``, or the tighter one of
    ``"gaussian_vi"``, the expected log density, which takes any formula and does not favour long lengthscales and small
    variances as the former does. ``"auto"`` is the latter where each row has one predictor, or no augmentation; and
    that of ``cavi`` where rows have several, for time, or where nothing is augmented and the two are equal.

    Maximises the ELBO (plus log priors, where hyperparameters have them) over the unconstrained hyperparameters by
    L-BFGS and, near the optimum, BFGS, with q(f) at its optimum throughout. With priors that is the mode of the values
    themselves: log densities are of a variance or a lengthscale as it is, without the Jacobian that the mode of its
    logarithm has, which is larger; neither is the posterior's mean or median, for which see ``integrate``. Starts from
    the values given, or from values in the units of the data (see ``pgmodels.inference.starts``), whichever have the
    largest ELBO. Of y without noise the likelihood's scale ends at a floor, some 1e-7 of a latent's prior deviation
    (with many rows 1e-5), that a FitWarning names. Likelihood parameters are learned only where the formula is
    normalised in y, since what it leaves out may depend on them; otherwise they are held, with a FitWarning.

    ``num_starts`` is from how many starts the first steps are made; the best of them goes on. Left out, it is
    one of each kind: several where kernels are added or GPs stand side by side, where a noise varies and where a period
    is learned, and more where the data do not determine the optimum. Starts beyond the named ones are random.

    The result is corrected by linear response, as by ``pgm.correct``, since variances of q may be several times too
    small; ``.uncorrected`` is q, and ``print`` and ``.fit.correction`` say which it is, and why. With
    ``correct="auto"`` it is not where q is exact, where the latents have more than 2,000 whitened coordinates or these
    times the rows are more than 4 million (up to there it takes about as long as one run of ``cavi``), and where what
    comes out is no covariance or not to be trusted. ``True`` corrects all the same, warning and raising as
    ``pgm.correct`` does; ``False`` does not.

    A positive value without a prior stays within a factor of 1e6 of its starts, and a FitWarning names those far out
    that the data do not determine. From 1,024 rows on, or 10,000 with inducing inputs, the start is the optimum of a
    sample of the rows, where these determine the values, and steps on all begin with the Hessian there. The learned
    model is ``.model`` of the result and ``.fit`` tells how it was found. X (n, d), y (n,) or (n, columns), ``weights``
    (n,) as in ``cavi``. Warns with ConvergenceWarning where the optimiser stops early, and with CorrectionWarning and
    errors as ``cavi`` does.
    """
    begin = time.perf_counter()
    model, data = require_model(model).given(X, y, weights)
    if objective not in (names := ("auto", *OBJECTIVES)):
        raise ValueError(f"objective must be one of {', '.join(map(repr, names))}; got {objective!r}.")
    check_whole_number(max_iterations, "max_iterations", 1)
    check_between(tolerance, "tolerance", 0.0, math.inf)
    if not isinstance(correct, bool) and correct != "auto":
        raise ValueError(f"correct must be 'auto', True or False; got {correct!r}.")
    if num_starts is not None:
        check_whole_number(num_starts, "num_starts", 1)
    model = hold_unnormalised(model.resolve(data.X), "fit")
    model.check_memory(data.X)
    terms = objective_of(model, objective)
    if not learned(model).places:
        model = settled(model, data, engine_of(terms).nearly_converged)
    with progress_bar("fit", max_iterations, progress) as bar:
        found = learn(model, data, terms, Limits(max_iterations, tolerance, num_starts), bar)
        undetermined = _undetermined(found)
        if undetermined and num_starts is None:
            # Where a latent has lost its variance the bound is flat, and it may not be for the data's sake.
            other = learn(model, data, terms, Limits(max_iterations, tolerance, found.num_tried + _MORE_STARTS), bar)
            if other.bound.best < found.bound.best - _FELT:
                found, undetermined = other, _undetermined(other)
            found = found._replace(num_tried=other.num_tried)
    bound, learnable = found.bound, found.bound.learnable
    values = learnable.constrain(bound.vector)
    final = with_inputs(learnable.with_values([np.asarray(value) for value in values]), bound.inputs)
    # From q(f) at the optimum: a start of its own could end in another one.
    inner = min(tolerance, _INNER_TOLERANCE)
    result = _result(final, data, bound, inner)
    warn_narrow("fit", result)
    _report_floor(bound, values)
    if undetermined:
        _report(undetermined, found.num_tried)
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
    result = replace(
        result,
        method="fit",
        fit=report,
        converged=result.converged and found.converged,
        seconds=time.perf_counter() - begin,
    )
    return corrected_if(result, correct)


def _result(final: Model, data: Data, bound: PenalisedBound, tolerance: float) -> Approximation:
    """The result at the values learned, without a floor of the variances."""
    engine, optimum = engine_of(bound.given.objective), bound.optimum(tolerance)
    if bound.lost <= tolerance * max(1.0, abs(bound.best)):
        return engine.finish(final, data, optimum, tolerance)
    start = optimum.state._replace(elbo=np.float64(-np.inf))
    return engine.converge(final, data, start, MANY, tolerance, False)


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


def _at_floor(bound: PenalisedBound) -> set[str]:
    """The likelihood parameters that are what they are for the floor of the variances."""
    return set(bound.learnable.of_likelihood.values()) if bound.lost > _FELT else set()


def _report_floor(bound: PenalisedBound, values: list[Any]) -> None:
    """Warn of likelihood parameters at the floor of the variances."""
    pairs, names = zip(bound.learnable.names, values, strict=True), _at_floor(bound)
    held = [f"{name} = " + ", ".join(f"{x:.3g}" for x in np.ravel(v)) for name, v in pairs if name in names]
    if held:
        warn(
            f"fit: y has next to no noise, and {', '.join(held)} is at the floor that rounding sets: with less of it "
            f"latents would be known to {bound.given.floor:.0e} of their prior variance. Hold it with pgm.Fixed at "
            "what y is known to have, or give it a prior.",
            FitWarning,
        )


def _undetermined(found: Maximum) -> dict[str, str]:
    """Values far from every start that might as well be ten times as far, by name, as they are written.

    By themselves, or together with others that make up for it: along the ridge that an inverse Hessian says. Once one
    is far, others that its ridge leaves as free are named too.
    """
    bound, (low, high) = found.bound, within(found.box, _SUSPECT)
    vector, learnable = bound.vector, bound.learnable
    owners = np.repeat(np.arange(len(learnable.names)), [int(np.prod(shape)) for shape in learnable.free_shapes])
    # Locations in a constraint, such as the first of several cut-points, run away by numbers and not by factors.
    constrained = np.array([p.constraint is not None and is_free(p) for p in learnable.parameters], bool)[owners]
    runs = constrained & ~np.isfinite(low) & (np.abs(vector - learnable.start()) > _SUSPECT)
    held = np.array([name in _at_floor(bound) for name in learnable.names], bool)[owners]
    far = np.flatnonzero(((vector < low) | (vector > high) | runs) & ~held)
    if not far.size:
        return {}
    known = bound.best, bound.vector, bound.slope, bound.state, bound.ascent, bound.lost
    spread = ridges(found, _LEAST_CURVATURE)
    loose = np.zeros(len(vector), bool) if spread is None else 0.5 * np.log(_FURTHER) ** 2 / np.diag(spread) < _FELT
    flat, best = [], bound.best - bound.lost
    for i in far:
        further = vector.copy()
        further[i] += np.log(_FURTHER) * np.sign(vector[i] - low[i])
        if loose[i] or not _is_felt(bound, further, best):
            flat.append(i)
    if flat:
        flat = sorted({*flat, *np.flatnonzero(loose & np.isfinite(low))})
    # What was looked at is no better, and may be as good.
    bound.best, bound.vector, bound.slope, bound.state, bound.ascent, bound.lost = known
    values, names = learnable.constrain(vector), names_of(learnable)
    written = {}
    for i in flat:
        own, parameter = owners[i], learnable.parameters[owners[i]]
        name, value = names[i], f"{np.exp(vector[i]):.3g}"
        if parameter.constraint is not None:
            name, value = learnable.names[own], str([float(f"{v:.3g}") for v in np.ravel(values[own])])
        written[name] = value
    return written


def _report(undetermined: dict[str, str], num_tried: int) -> None:
    """Warn of values that the data do not determine, or of an optimum that may be a poor one."""
    listed = ", ".join(f"{name} = {value}" for name, value in undetermined.items())
    flat = f"a further factor of {_FURTHER:g} changes the ELBO by less than {_FELT:g}"
    if num_tried == 1:
        warn(
            f"fit: {listed} at what may be a poor optimum: {flat}, and no other start was tried. Raise num_starts; if "
            "that changes nothing, the data do not determine such values: hold them with pgm.Fixed, or give them "
            "priors.",
            FitWarning,
        )
        return
    warn(
        f"fit: the data do not determine {listed}: {flat}, and the best of {num_tried} starts ends there. Hold such "
        "values with pgm.Fixed, or give them priors.",
        FitWarning,
    )


def _is_felt(objective: PenalisedBound, vector: np.ndarray, best: float) -> bool:
    """Whether the bound at a vector is below the best by as much as is felt."""
    for tolerance in _LOOKS:
        # An ascent only raises the bound.
        loss = objective.without_floor(vector, tolerance) - best
        if loss < _FELT or loss > _FELT + _STILL_TO_GAIN * tolerance * (1.0 + abs(best)):
            break
    return loss >= _FELT
