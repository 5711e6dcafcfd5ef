"""Hyperparameters learned by empirical Bayes: `fit`."""

import math
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import numpy as np
import scipy
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from pgmodels.data.arrays import MissingChoice, check_between, check_whole_number
from pgmodels.inference.bound import FELT, MarginalBound, Point, ProblemFamily
from pgmodels.inference.correct import correct_if_reliable
from pgmodels.inference.fit_schemes import AUTO_SCHEME, SchemeName, check_objective_of, check_scheme, learn_by
from pgmodels.inference.loop import MANY, Callback, ConvergenceWarning, check_callback, without_bound
from pgmodels.inference.objectives import AUTO, AutoChoice, check_objective, objective_of, require_maximised
from pgmodels.inference.prepare import (
    InducingWarning,
    count_inputs,
    resolved,
    selecting,
    with_inputs,
    with_selected_inputs,
)
from pgmodels.inference.problem import gradient_of
from pgmodels.inference.search import (
    SETTINGS,
    Limits,
    Maximum,
    Near,
    SearchBar,
    inverse_hessian_at,
    learn,
    move_inputs,
    names_of,
    within,
)
from pgmodels.inference.starts import steps
from pgmodels.inference.vi import converge, finish, start_sites, warn_narrow
from pgmodels.likelihoods.sampling import is_normalised
from pgmodels.model import Model, Points, require_model
from pgmodels.parameters.parameter import is_parameter
from pgmodels.parameters.vector import trainable
from pgmodels.priors.base import Coordinates, Sites
from pgmodels.priors.collection import columns
from pgmodels.priors.representation import Auto
from pgmodels.results.approximation import Approximation, CorrectedApproximation, FitReport
from pgmodels.results.gaussian import ParameterUncertainty, shifts_at
from pgmodels.runtime.jit import compiled, one_thread_if_small
from pgmodels.runtime.messages import PgmodelsWarning, progress_bar, warn
from pgmodels.runtime.precision import as_array, double_precision
from pgmodels.runtime.seeds import Seed, as_seed


def uncertainty_of(
    maximum: Maximum, result: Approximation, most: int = 30, largest: float = 3.0
) -> ParameterUncertainty | str:
    """Return the uncertainty of the parameters at a maximum of the bound, or the reason why there is none.

    Parameters that the data do not determine individually have no interval: they stay at their values. The curvature
    is computed for at most ``most`` parameters, by two gradients for each. There is no uncertainty if a deviation
    exceeds ``largest``, a factor of 20 in the logarithm: no normal density describes such a parameter.
    """
    bound, best = maximum.bound, maximum.best
    count = len(best.vector)
    if count > most:
        return f"none: there are {count} parameters, and their curvature is computed for at most {most}"
    if not maximum.converged:
        return "none: the search did not converge"
    learned, n = bound.learnable, len(bound.data.y)
    scale = steps(learned, bound.data.X)
    curvature = np.zeros((count, count))
    pulls = np.zeros((count, n, result.model.num_latents))
    moved = np.zeros((count, *_coefficients_of(bound, best).shape))
    # Central differences by this step, in units of the parameters, are off by 2e-5 of the curvature of a variance's
    # logarithm, and rounding and the tolerance of q(f) change it less. Twice the step moves means at the data by 2 %.
    step = 0.01
    for k, unit in enumerate(np.diag(scale)):
        for share in (0.5 / step, -0.5 / step):
            point = bound.at(best.vector + np.sign(share) * step * unit, best)
            if point is None:
                return f"none: the bound is not finite near the value of {names_of(learned)[k]}"
            curvature[k] += share * point.slope * scale
            pulls[k] += share * pull_of_latents(bound, point)
            moved[k] += share * _coefficients_of(bound, point)
    curvature = 0.5 * (curvature + curvature.T)
    # The likelihood's parameters come first: directions of others do not move them.
    order = np.argsort(learned.gps >= 0, kind="stable")
    low, high = maximum.box
    inside = (best.vector > low) & (best.vector < high)
    at_floor = (learned.gps < 0) & (best.floor_loss > FELT)
    free = order[((np.diag(curvature) > largest**-2) & inside & ~at_floor)[order]]
    if not free.size:
        return "none: the data determine no parameter"
    try:
        # From the last parameter to the first: H = U U^T with U upper triangular, and U^-T is a lower root of H^-1.
        upper = np.linalg.cholesky(curvature[np.ix_(free[::-1], free[::-1])])[::-1, ::-1]
    except np.linalg.LinAlgError:
        return "none: the bound has no maximum in all directions; integrate averages over the parameters"
    half = scipy.linalg.solve_triangular(upper.T, np.eye(len(free)), lower=True)
    deviations = np.linalg.norm(half, axis=1)
    if deviations.max() > largest:
        name = names_of(learned)[free[deviations.argmax()]]
        return (
            f"none: the data hardly determine {name}, whose deviation is {deviations.max():.1f} in its logarithm or "
            "unit; integrate averages over the parameters"
        )
    root = np.zeros((count, len(free)))
    root[free] = scale[free, None] * half
    along, moved = (np.tensordot(half.T, slopes[free], axes=1) for slopes in (pulls, moved))
    pull, coefficients = pull_of_latents(bound, best), moved if moved.size else None
    uncertainty = ParameterUncertainty(best.vector, root, pull, along, along, coefficients)
    # As at new inputs: the means of the runs are more exact than a covariance times pulls, but not the same.
    shifts = shifts_at(uncertainty, result.model, result.X, result.posterior.prior, as_array(result.X))
    return replace(uncertainty, shifts=shifts)


def pull_of_latents(bound: MarginalBound, point: Point) -> Float[np.ndarray, "n l"]:
    """Return K^-1 (m - mean) of the latents at the data: the gradient of the sites' log density at q's mean."""
    n, predictors = len(bound.data.y), bound.family.objective.predictors
    # By NumPy, without compilation.
    sites, mean = jax.tree.map(np.asarray, (point.state.sites, point.state.mean))
    of_predictors = np.asarray(gradient_of(sites, mean))[:n]
    if predictors is None:
        return of_predictors
    Phi = np.asarray(predictors.matrix(bound.family.y, bound.model_at(point.vector).parameters))[:n]
    return np.einsum("ip,ipl->il", of_predictors, Phi)


def _coefficients_of(bound: MarginalBound, point: Point) -> Float[np.ndarray, "c l"]:
    """The means of the coefficients of each latent, which rounding loses in the pull at a wide prior."""
    groups, sizes = bound.family.fixed_groups, [gp.size for gp in bound.learnable.model.gps]
    known: list[Any] = [(place, group) for place, group in enumerate(groups) if group is not None]
    means = np.zeros((max((group.rank for _, group in known), default=0), sum(sizes)))
    if known:
        coordinates = _coordinates(bound.family, as_array(point.vector), point.points, point.state.sites)
        for place, group in known:
            means[: group.rank, columns(sizes)[place]] = group.coefficients(coordinates[place])
    return means


@partial(compiled, optimise=False)
def _coordinates(family: ProblemFamily, vector: Array, points: Points, sites: Sites) -> Coordinates:
    return family.problem(vector, points).condition(sites).mean_and_deviation(jax.random.key(0))[0]


# Tolerance of q(f) at the learned values.
_INNER_TOLERANCE = 1e-9
# A value more than a factor of 30 from every start is reported if a further factor of _FURTHER changes the ELBO by less
# than FELT nats.
_FURTHER = 10.0


class FitWarning(PgmodelsWarning):
    """A parameter that should be learned is not determined by the data, or is kept fixed."""


@double_precision
@one_thread_if_small
def fit(
    model: Model,
    X: ArrayLike,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    missing: MissingChoice = "raise",
    objective: AutoChoice = "auto",
    train_inducing: bool = False,
    scheme: SchemeName = "auto",
    max_iterations: int = 200,
    tolerance: float = 1e-9,
    num_starts: int | None = None,
    start: Approximation | CorrectedApproximation | None = None,
    correct: bool | Literal["auto"] = "auto",
    seed: Seed = 0,
    callback: Callback | None = None,
    progress: bool | None = None,
) -> Approximation | CorrectedApproximation:
    """Learn all hyperparameters and likelihood parameters that are not Fixed; return the converged result.

    The search maximises the ELBO, plus the log prior density, if any. It uses L-BFGS and, near the optimum, BFGS on
    the unconstrained hyperparameters; q(f) is at its optimum throughout. Linear response corrects the result, as in
    ``pgm.correct``, since variances of q may be several times too small. The delta method adds the uncertainty of the
    learned values.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs. Numbers are start values, NumPyro distributions are priors, and ``pgm.Fixed`` values
        are not learned. Likelihood parameters are learned only if the formula is normalised in y, since a missing
        factor may depend on them.
    X : array_like, shape (n, d)
        Inputs, one row per datum; an array or a data frame.
    y : array_like, shape (n,) or (n, columns)
        Observations, in the units of the likelihood.
    weights : array_like, shape (n,), optional
        Powers of the rows' likelihoods, as in ``cavi``.
    missing : {"raise", "drop", "predict"}
        What becomes of rows without y, as in ``cavi``.
    objective : str
        An objective of ``vi``; ``.objective`` of the result records it. ``"augmented"`` is the bound of ``cavi``.
        ``"expected"``, the expected log density of ``gaussian_vi``, is tighter and accepts any formula. The bound of
        ``cavi`` favours long lengthscales and small variances; ``"expected"`` does not.
        ``"auto"`` is ``"expected"`` if each row has one predictor, or two that are sums of latents and at most 4,000
        predictors in all rows. With several, such as classes, it is ``"mean_field"`` up to 4,000 predictors and
        ``"augmented"`` beyond. If the two bounds are equal or factors combine more latents, it is ``"augmented"``;
        without an augmentation, ``"expected"`` or ``"mean_field"``.
        ``"taylor"`` is Laplace's evidence, which is no bound, and needs ``scheme="alternating"``.
    train_inducing : bool
        Whether to learn the inducing inputs too, as in ``svi``. After the search, L-BFGS moves hyperparameters and
        inputs jointly from its optimum, which raises the ELBO.
    scheme : {"auto", "alternating", "hybrid", "joint"}
        How hyperparameters are learned together with local parameters, which are moments of the latents at each datum.
        ``"auto"`` is described above. The other schemes are the published vi-JJ, vi-JJ-hybrid and vi-JJ-full. They
        maximise the augmented bound with the local parameters of any augmentation, from the model's values:

        - ``"alternating"``: three sweeps of ``cavi`` without acceleration and at most five evaluations of L-BFGS-B, in
          turns. L-BFGS-B moves the hyperparameters at fixed local parameters. ``objective="taylor"`` is the published
          vi-Taylor, with three steps of ``vi`` instead of the sweeps (see Notes).
        - ``"hybrid"``: three such sweeps, then L-BFGS-B over hyperparameters and local parameters jointly.
        - ``"joint"``: this L-BFGS-B from the local parameters of the prior, without sweeps.
    max_iterations : int
        Maximum number of steps of the search; of turns with ``scheme="alternating"``. Schemes ``"hybrid"`` and
        ``"joint"`` and ``train_inducing`` move hundreds of values, and may need several hundred steps.
    tolerance : float
        Relative change of the ELBO in one step below which the search has converged. It has also converged if the
        predicted gain of a further step is below 1e-5 nats, which moves no value by 0.005 posterior deviations.
    num_starts : int, optional
        The number of start points for the first steps; the search continues from the best one. The default is one of
        each kind, and more if the data do not determine the optimum. Sums of kernels, several GPs, varying noise and
        learned periods have several kinds. Start points beyond the built-in ones are random.
    start : Approximation or CorrectedApproximation, optional
        A result with the same parameters to start from, as in ``cavi``, instead of start points. The search, by BFGS,
        starts from its values; their uncertainty determines the first steps.
    correct : bool or "auto"
        ``"auto"`` corrects by linear response, unless q is exact, the objective is ``"taylor"``, or the correction is
        not reliable. It does not correct above 2,000 whitened coordinates of the latents either, or 4 million
        coordinates times rows. Up to that size it costs about one run of ``cavi``. ``.fit.correction`` reports a few
        variances just above the prior's. ``True`` always corrects by linear response, with the warnings and errors of
        ``pgm.correct``; ``False`` never corrects.
        Unless it is ``False``, the learned values have a normal density on their unconstrained scale. It is from the
        curvature of the bound, by two gradients for each of at most 30 values. Intervals in ``summary``, draws and
        predictions include it; ``.conditional`` is the result without it. ``.fit.intervals`` explains its absence.
    seed : int or jax.Array
        An int or a JAX key; draws subsets of the rows, random starts, and inducing inputs as in ``cavi``.
    progress : bool, optional
        Whether to show a progress bar, as in ``cavi``.

    Returns
    -------
    Approximation
        ``.model`` is the learned model and ``.fit`` describes the search. ``.uncorrected`` is q; ``print`` and
        ``.fit.correction`` report whether the result is corrected, and why. ``.uncertainty`` is of the learned values.

    Raises
    ------
    ValueError
        For invalid data or options, an ELBO that is not finite at the start values, or ``train_inducing`` without
        inducing inputs. For a scheme other than ``"auto"`` with ``num_starts``, an objective other than ``"augmented"``
        (or ``"taylor"``, if ``"alternating"``), or a likelihood that multiplies latents (unless ``"alternating"``).
        For the objective ``"taylor"`` with another scheme, ``train_inducing=True`` or ``correct=True``.
    NoAugmentationError
        For the objective ``"augmented"`` with a likelihood without an augmentation.

    Warns
    -----
    ConvergenceWarning
        If the search stops early.
    FitWarning
        If the data do not determine a value, if likelihood parameters are kept fixed, or if y is noise-free. The
        likelihood's scale then ends at a lower limit, about 1e-7 of a latent's prior standard deviation (1e-5 with
        many rows).
    CorrectionWarning, InducingWarning, PrecisionWarning
        As in ``cavi``.

    Notes
    -----
    With priors the result is the mode of the density of the unconstrained parameters, such as the logarithm of a
    variance. This density includes the Jacobian: the mode is the same if a standard deviation has the prior. It is
    nearer to the posterior median than the mode of the variance itself. Parameters without a prior have no Jacobian:
    their values maximise the marginal likelihood. For posterior means and medians see ``integrate``.

    vi-Taylor changes hyperparameters by the gradient of Laplace's evidence at a fixed mode, without the part that moves
    the mode. It ends where this gradient is zero, which is not a maximum of the evidence.

    The search starts from the user's values or from values in the units of the data (see
    ``pgmodels.inference.starts``), whichever have the largest ELBO. With at least 1,024 rows it starts at the optimum
    of a subset, with the Hessian there, if the subset determines the values. The number is 10,000 with
    inducing inputs and 40,000 with ``pgm.Markov()``; quadrature over L latents per datum divides it by L, down to 256.
    A positive value without a prior stays within a factor of 1e6 of its starts.

    References
    ----------
    Titsias 2009; for the schemes, Izmailov and Kropotov 2017; for the delta method, Kass and Steffey 1989.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(X[:, 0])))
    >>> model = pgm.Model(pgm.Poisson(), pgm.GP(pgm.RBF(), mean=0.0))
    >>> result = pgm.fit(model, X, y)
    >>> result.predict([[1.5], [4.5]]).mean.round()
    array([7., 1.])
    >>> bool(0.5 < result.model.gps[0].kernel.lengthscale.value < 5.0)
    True
    """
    start_time = time.perf_counter()
    model, data = require_model(model).prepare(X, y, weights, missing)
    check_objective(objective, auto=True)
    check_scheme(scheme, num_starts)
    if train_inducing and not any(gp.form.num_inputs for gp in model.gps):
        raise ValueError(
            "train_inducing=True needs inducing inputs; no GP of the model has any. Give a form, as in pgm.GP(kernel, "
            "form=pgm.Inducing(100)), or leave train_inducing out."
        )
    check_whole_number(max_iterations, "max_iterations", 1)
    check_between(tolerance, "tolerance", 0.0, math.inf)
    check_callback(callback)
    if not isinstance(correct, bool) and correct != "auto":
        raise ValueError(f"correct must be 'auto', True or False; got {correct!r}.")
    if num_starts is not None:
        check_whole_number(num_starts, "num_starts", 1)
        if start is not None:
            raise ValueError(f"start replaces the start points; got num_starts={num_starts} too. Omit one of both.")
    seed = as_seed(seed)
    form = model.gps[0].form
    model = hold_unnormalised(resolved(model, data, seed, may_be_chain=True), "fit")
    # A chain that the user did not ask for is corrected where the default form would be.
    by_scans = form != Auto() or model.gps[0].form == Auto()
    published = scheme != AUTO_SCHEME
    terms = objective_of(model, "augmented" if published and objective == AUTO else objective, len(data.y))
    check_objective_of(scheme, terms)
    if train_inducing or correct is True:
        require_maximised(f"fit with {'train_inducing' if train_inducing else 'correct'}=True", terms)
    # Raises NoAugmentationError if inducing inputs are selected by a bound that does not exist.
    selecting(model, terms)
    learns = bool(trainable(model).leaf_indices)
    if not learns:
        model = with_selected_inputs(model, data, terms)
    near = None if start is None else _near(start, model, start_sites(start, model, data, terms))
    if near is not None:
        model = trainable(model).with_values(trainable(model).constrain(near.vector))
    limits = Limits(max_iterations, tolerance, num_starts, seed)
    with progress_bar("fit", max_iterations, progress) as shown:
        bar = SearchBar(shown, len(data.y), callback)
        if published and learns:
            maximum = learn_by(scheme, model, data, terms, limits, bar)
        else:
            maximum = learn(model, data, terms, limits, bar, near)
        undetermined = undetermined_values(maximum)
        if undetermined.flat and num_starts is None and not published:
            # The bound is flat once a latent's variance has collapsed, which may be a poor local optimum.
            other = learn(model, data, terms, limits._replace(num_starts=maximum.num_tried + 3), bar)
            if other.best.value < maximum.best.value - FELT:
                maximum, undetermined = other, undetermined_values(other)
            maximum = maximum._replace(num_tried=other.num_tried)
        if train_inducing:
            maximum = move_inputs(maximum, limits, bar)
            undetermined = undetermined_values(maximum)
    learnable = maximum.bound.learnable
    values = learnable.constrain(maximum.best.vector)
    final = with_inputs(learnable.with_values([np.asarray(value) for value in values]), maximum.best.inputs)
    result = _result(final, maximum, min(tolerance, _INNER_TOLERANCE))
    _warn_of_values(maximum, values, undetermined, published)
    if not maximum.converged:
        warn(
            f"fit did not converge: {maximum.message} after {maximum.num_steps} steps, ELBO {result.elbo:.6g}. Raise "
            "max_iterations, or fix or give priors to hyperparameters that the data do not determine.",
            ConvergenceWarning,
        )
    if not learnable.leaf_indices:
        uncertainty: ParameterUncertainty | str = "none: no parameter was learned"
    elif correct is False:
        uncertainty = "none, with correct=False"
    elif published:
        uncertainty = "none: a published scheme ends at another point than a maximum of the bound"
    else:
        uncertainty = uncertainty_of(maximum, result)
    has_prior = any(parameter.prior is not None for parameter in learnable.parameters)
    report = FitReport(
        start=maximum.start,
        start_elbos=maximum.start_elbos,
        values={name: np.asarray(value) for name, value in zip(learnable.names, values, strict=True)},
        num_steps=maximum.num_steps,
        num_evaluations=maximum.num_evaluations,
        converged=maximum.converged,
        message=maximum.message,
        density="posterior density of the unconstrained parameters" if has_prior else "marginal likelihood",
        intervals=uncertainty if isinstance(uncertainty, str) else "by the delta method",
    )
    seconds, converged = time.perf_counter() - start_time, result.converged and maximum.converged
    result = replace(result, fit=report, converged=converged, seconds=seconds)
    corrected = correct_if_reliable(result, correct, progress, by_scans)
    warn_narrow("fit", corrected)
    return corrected if isinstance(uncertainty, str) else corrected.with_uncertainty(uncertainty)


def _near(start: Approximation | CorrectedApproximation, model: Model, sites: Sites) -> Near:
    """The values of a result, those that its data do not determine as in the model, and their covariance if known."""
    learned, uncertainty = trainable(model), start.uncertainty
    vector, covariance = trainable(learned.with_values(learned.values_in(start.model))).start(), None
    if uncertainty is not None and trainable(start.model).names == learned.names:
        is_known = uncertainty.root.any(axis=1)
        vector = np.where(is_known, vector, learned.start())
        # Of the others: a factor of e.
        covariance = uncertainty.root @ uncertainty.root.T + np.diag(1.0 - is_known)
    return Near("result", vector, len(start.y), covariance, sites)


def _result(final: Model, maximum: Maximum, tolerance: float) -> Approximation:
    """The result from q(f) at the optimum, without the lower limit on variances."""
    bound, best = maximum.bound, maximum.best
    if not best.ascent.converged or best.tolerance > tolerance:
        best = bound.at(best.vector, best, tolerance) or best
    objective = bound.family.objective
    if best.floor_loss <= tolerance * max(1.0, abs(best.value)):
        return finish("fit", final, bound.data, objective, best.ascent, tolerance)
    return converge("fit", final, bound.data, objective, without_bound(best.state), MANY, tolerance, False)


def hold_unnormalised(model: Model, engine: str) -> Model:
    """Fix, with a FitWarning, the likelihood's parameters if the formula omits a factor that may depend on them."""
    names = [name for name, parameter in model.likelihood.parameters.items() if parameter.learned]
    if not names or is_normalised(model.likelihood, model.num_latents, for_all_parameters=True) is True:
        return model
    warn(
        f"{engine} holds {', '.join(names)} of {model.likelihood.name} fixed: the formula is not known to be a "
        "normalised density of y, and an omitted factor may depend on them. Write the formula with its "
        "constants and declare its support, or mark the parameters with pgm.Fixed.",
        FitWarning,
    )
    fixed = {name: p.as_fixed() for name, p in model.likelihood.parameters.items()}
    return eqx.tree_at(lambda m: m.likelihood.parameters, model, fixed, is_leaf=is_parameter)


def _at_floor(maximum: Maximum) -> set[str]:
    """The likelihood parameters determined by the lower limit on variances."""
    return set(maximum.bound.learnable.of_likelihood.values()) if maximum.best.floor_loss > FELT else set()


def _warn_of_values(maximum: Maximum, values: list[Any], undetermined: "Undetermined", published: bool) -> None:
    """Warn of values at a lower limit, shifted by inducing inputs, or not determined by the data."""
    pairs, names = zip(maximum.bound.learnable.names, values, strict=True), _at_floor(maximum)
    at_floor = [f"{name} = " + ", ".join(f"{x:.3g}" for x in np.ravel(v)) for name, v in pairs if name in names]
    if at_floor:
        warn(
            f"fit: {', '.join(at_floor)} is at the smallest value that rounding errors allow: below it posterior "
            f"variances would be less than {maximum.bound.family.floor:.0e} of the prior's. Lower the kernel's "
            "variance if it is far above the variance of y. If y has almost no noise, fix it with pgm.Fixed at the "
            "known noise, or give it a prior.",
            FitWarning,
        )
    _report_shift(maximum)
    if undetermined.rising:
        listed = ", ".join(f"{name} = {value}" for name, value in undetermined.rising.items())
        warn(
            f"fit: the ELBO still rises at the end of the search, {listed}: for a scale of noise, the latents fit y "
            "exactly. Fix it with pgm.Fixed at a known value, or give it a prior.",
            FitWarning,
        )
    if undetermined.flat:
        remedy = "Use scheme='auto'" if published else "Raise num_starts"
        remedy += "" if maximum.bound.family.objective.is_maximised else " and objective='expected'"
        warn_flat(undetermined.flat, maximum.num_tried, remedy)


def _report_shift(maximum: Maximum) -> None:
    """Warn of values that are shifted by the bound's penalty on the residual variance of the inducing inputs.

    Without this penalty the optimum would be one Newton step away; the warning has its length in posterior
    deviations. The estimate is about half of the true shift: with 62, 125 and 250 inputs for 1,000 tree rings 1.8, 0.7
    and 0.3, where lengthscales were off by 2.8, 1.5 and 0.5.
    """
    tolerated = 0.5
    bound, best = maximum.bound, maximum.best
    slope = bound.left_out_slope(best)
    # A smaller slope shifts values with a posterior deviation below 1, a factor of e, by less than that.
    if np.max(np.abs(slope), initial=0.0) < tolerated:
        return
    spread = inverse_hessian_at(bound, best, SETTINGS.least_curvature)
    if spread is None:
        return
    step, deviations = spread @ slope, np.sqrt(np.diag(spread))
    if np.sqrt(slope @ step) > tolerated:
        far = np.flatnonzero(np.abs(step) >= 0.5 * np.max(np.abs(step / deviations)) * deviations)
        names = names_of(bound.learnable)
        shifts = ", ".join(f"{names[i]} by {abs(step[i]) / deviations[i]:.1f}" for i in far)
        warn(
            f"fit: the inducing inputs, {count_inputs(best.inputs)} in all, are too few to learn the "
            "hyperparameters: the bound favours values with a small residual variance, such as long lengthscales. "
            f"Estimated shifts in posterior standard deviations, at least: {shifts}. Compare with a fit with twice as "
            "many, or let the data choose their number with Inducing('auto').",
            InducingWarning,
        )


class Undetermined(NamedTuple):
    """Values far from every start, names and formatted values: ``flat``, or where the bound is still ``rising``."""

    flat: dict[str, str]
    rising: dict[str, str]


def undetermined_values(maximum: Maximum) -> Undetermined:
    """Return values far from every start that the data do not determine.

    A value is flat if a further factor of ten hardly changes the bound: alone, or along a ridge of the inverse
    Hessian. Then other values compensate. Other values that are as free along the ridge are listed too.
    """
    bound, best, (low, high) = maximum.bound, maximum.best, within(maximum.box, 30.0)
    vector, learnable = best.vector, bound.learnable
    owners = np.repeat(np.arange(len(learnable.names)), [int(np.prod(shape)) for shape in learnable.free_shapes])
    # Locations within a constraint, such as the first of several cut-points, diverge additively, not by factors.
    constrained = np.array([p.constraint is not None and p.is_free for p in learnable.parameters], bool)[owners]
    runs = constrained & ~np.isfinite(low) & (np.abs(vector - learnable.start()) > 30.0)
    at_floor = np.array([name in _at_floor(maximum) for name in learnable.names], bool)[owners]
    far = np.flatnonzero(((vector < low) | (vector > high) | runs) & ~at_floor)
    if not far.size:
        return Undetermined({}, {})
    inverse_hessian = inverse_hessian_at(bound, best, SETTINGS.least_curvature)
    loose = (
        np.zeros(len(vector), bool)
        if inverse_hessian is None
        else 0.5 * np.log(_FURTHER) ** 2 / np.diag(inverse_hessian) < FELT
    )
    flat, rising = [], []
    for i in far:
        further = vector.copy()
        further[i] += np.log(_FURTHER) * np.sign(vector[i] - low[i])
        loss = loss_at(bound, further, best)
        if loss < -FELT:
            rising.append(i)
        elif loose[i] or loss < FELT:
            flat.append(i)
    if flat:
        flat = sorted({*flat, *np.flatnonzero(loose & np.isfinite(low))})
    values, names = learnable.constrain(vector), names_of(learnable)

    def written(numbers: Iterable[Any]) -> dict[str, str]:
        texts = {}
        for i in numbers:
            owner, parameter = owners[i], learnable.parameters[owners[i]]
            name, value = names[i], f"{np.exp(vector[i]):.3g}"
            if parameter.constraint is not None:
                name, value = learnable.names[owner], str([float(f"{v:.3g}") for v in np.ravel(values[owner])])
            texts[name] = value
        return texts

    return Undetermined(written(flat), written(rising))


def warn_flat(undetermined: dict[str, str], num_tried: int, remedy: str) -> None:
    """Warn of values that the data do not determine, or of a possibly poor optimum."""
    listed = ", ".join(f"{name} = {value}" for name, value in undetermined.items())
    flat = f"a further factor of {_FURTHER:g} changes the ELBO by less than {FELT:g}"
    if num_tried == 1:
        warn(
            f"fit: {listed} may be a poor local optimum: {flat}, and no other start was tried. {remedy}. If "
            "the result stays the same, the data do not determine these values: fix them with pgm.Fixed, or give them "
            "priors.",
            FitWarning,
        )
        return
    warn(
        f"fit: the data do not determine {listed}: {flat}, and the best of {num_tried} starts ends there. Fix these "
        "values with pgm.Fixed, or give them priors.",
        FitWarning,
    )


def loss_at(bound: MarginalBound, vector: np.ndarray, best: Point) -> float:
    """By how much the bound at a vector is below the best one, without the floor's loss; infinite if not finite."""
    loss = np.inf
    for tolerance in (1e-5, 1e-7, _INNER_TOLERANCE):
        point = bound.at(vector, best, tolerance)
        if point is None:
            break
        # A tighter tolerance only raises the bound, by at most a multiple of the looser one.
        loss = (point.value - point.floor_loss) - (best.value - best.floor_loss)
        if loss < FELT or loss > FELT + 1e3 * tolerance * (1.0 + abs(best.value)):
            break
    return loss
