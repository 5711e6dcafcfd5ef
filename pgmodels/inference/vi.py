"""Variational inference: `vi`, `cavi` and `gaussian_vi`."""

import math
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.data.arrays import MissingChoice, check_between, check_whole_number
from pgmodels.inference.cavi import is_clipped, start_at
from pgmodels.inference.loop import (
    MANY,
    Ascent,
    Callback,
    ConvergenceWarning,
    VariationalState,
    check_callback,
    maximise,
)
from pgmodels.inference.objectives import Choice, check_objective, custom_objective, objective_of, objective_of_result
from pgmodels.inference.prepare import (
    NEAR,
    accurate_prior,
    couples,
    engine_of,
    is_affordable,
    resolved,
    start_state,
    state_from,
    variational_problem,
    warn_inaccurate,
    warn_left_out,
    with_selected_inputs,
)
from pgmodels.inference.problem import Problem, conditioned, largest_precision, neglect, precisions, problem_of
from pgmodels.model import Data, Model, require_model
from pgmodels.objectives.base import Objective
from pgmodels.priors.base import Sites, pad_rows, pad_sites, pad_zeros, weighted
from pgmodels.priors.collection import MAX_BLOCK, Posterior, PriorCollection
from pgmodels.results.approximation import Approximation, CorrectedApproximation, GaussianResult
from pgmodels.results.gaussian import CorrectionWarning
from pgmodels.runtime.jit import compiled, one_thread_if_small
from pgmodels.runtime.messages import PgmodelsWarning, shorten, warn
from pgmodels.runtime.precision import as_array, double_precision
from pgmodels.runtime.seeds import Seed, as_seed


@double_precision
def variance_ratio(approximation: Approximation) -> np.ndarray:
    """Return the ratios of q's variances of the latents at the data to estimates of the posterior's, (n, latents).

    At the optimum of a bound with auxiliary variables, the sites' precisions are the means W of these variables. Their
    dependence on f lowers the curvature of the bound in f's mean, -B_mm at q's variances, below W. Conditioning on this
    curvature instead of W is linear response without the terms of the variances (math: section 5b). On most of 20
    models the ratios were within 2 % of the ratios of ``correct``. Predictors of a datum are treated separately: with
    several, the ratios are too large, up to five times if all rows share three latents. 1 without auxiliary variables.
    """
    model, n = approximation.model, len(approximation.y)
    ratio = np.ones_like(approximation.variance)
    objective = objective_of_result(approximation)
    if not objective.has_auxiliaries or objective.is_exact:
        return ratio
    problem = problem_of(model, approximation.data, approximation.posterior.prior)
    # All data of up to 512 rows run one program.
    size, many = problem.prior.num_rows, max(problem.prior.num_rows, 512)
    y, row_weights = approximation.data.padded(many)
    m, v = (as_array(pad_rows(part, many)) for part in approximation.predictor_moments())
    curvature_sites = _sites_by_curvature(model.augmentation, y, row_weights, m, v, model.parameters)
    sites = Sites(*(as_array(pad_zeros(part, size)) for part in curvature_sites))
    wider = np.asarray(conditioned(problem, sites)[2])[:n]
    # A ratio of 1 for latents with a prior variance of 0.
    np.divide(approximation.variance, wider, out=ratio, where=wider > 0)
    return ratio


@partial(compiled, static_argnames="augmentation", optimise=False)
def _sites_by_curvature(
    augmentation: Augmentation,
    y: Array,
    row_weights: Float[Array, " n"] | None,
    m: Float[Array, "n p"],
    v: Float[Array, "n p"],
    parameters: dict[str, Any],
) -> tuple[Array, Array]:
    """The potential at the marginals, and -B_mm clipped to [0, W], for each predictor separately."""

    def slope(m: Array) -> tuple[Array, tuple[Array, Array]]:
        h, w = augmentation.local_sites(m, v, y, parameters)
        return h - w * m, (h, w)

    def towards(unit: Array) -> tuple[Array, tuple[Array, Array]]:
        _, moved, sites = jax.jvp(slope, (m,), (jnp.broadcast_to(unit, m.shape),), has_aux=True)
        return moved @ unit, sites

    # At most eight predictors: each costs a pass over all, and softmax predictors are similar.
    size = m.shape[1]
    places = np.unique(np.linspace(0, size - 1, 8).astype(int))
    rises, (h, W) = jax.vmap(towards, out_axes=(0, None))(jnp.eye(size)[places])
    # The variance of the auxiliary variables lowers the curvature below the precision, below zero at outliers.
    return weighted(row_weights, h), weighted(row_weights, W.at[:, places].set(jnp.clip(-rises.T, 0.0, W[:, places])))


def warn_narrow(engine: str, approximation: GaussianResult) -> None:
    """Warn, for an engine, if variances of a converged result are below half of the correct ones in the median row."""
    if not (approximation.converged and isinstance(approximation, Approximation)):
        return
    ratio = variance_ratio(approximation)
    typical = np.median(ratio, axis=0)
    latent = int(np.argmin(typical))
    # With half of the correct variance a 90 % interval has a coverage of 75 %.
    if typical[latent] >= 0.5:
        return
    row = int(np.argmin(ratio[:, latent]))
    which = f" of latent {latent}" if len(typical) > 1 else ""
    most = "at most " if approximation.model.augmentation.size > 1 else ""
    warn(
        f"{engine}: the variances{which} are estimated to be {most}{typical[latent]:.2g} times the correct ones in the "
        f"median row, and {ratio[row, latent]:.2g} times in row {row}: q treats the auxiliary variables as "
        "independent of the latents. Use pgm.correct(result), or the variational Gaussian, pgm.gaussian_vi.",
        CorrectionWarning,
    )


class MeanFieldWarning(PgmodelsWarning):
    """Latents of a datum are independent under q, because their joint covariance is too large to factorise."""


@double_precision
@one_thread_if_small
def vi(
    model: Model,
    X: ArrayLike,
    y: ArrayLike,
    *,
    objective: Choice = "augmented",
    weights: ArrayLike | None = None,
    missing: MissingChoice = "raise",
    max_iterations: int = 1000,
    tolerance: float = 1e-9,
    start: Approximation | CorrectedApproximation | None = None,
    seed: Seed = 0,
    callback: Callback | None = None,
    progress: bool | None = None,
) -> Approximation:
    """Return the Gaussian q(f) that maximises an objective, with hyperparameters fixed at their values.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs. Priors of hyperparameters are ignored: they stay at their values.
    X : array_like, shape (n, d)
        Inputs, one row per datum; an array or a data frame.
    y : array_like, shape (n,) or (n, columns)
        Observations, in the units of the likelihood.
    objective : {"augmented", "expected", "mean_field", "factorised", "additive_noise", "gumbel", "taylor"} or Objective
        ``"augmented"`` is the bound of ``cavi``, ``"expected"`` the expected log density of ``gaussian_vi``. With
        ``"mean_field"``, much faster with several classes, the latents of a datum are also independent under q. An
        instance of a subclass of ``pgm.Objective`` is a user-defined objective. Published objectives are

        - ``"factorised"``, looser than ``"augmented"``: Gamma and Poisson variables are independent under q, for
          likelihoods such as LogisticSoftmax (Galy-Fajou et al. 2019, section 4.1);
        - ``"additive_noise"``, the expected log density given the latents plus noise, in closed form or by one
          integral. It needs a formula that is affine in one ``pgm.step(z)``, ``pgm.normal_cdf(z)`` or
          ``pgm.largest(f, y, noise)``; latents are independent under q (Liu et al. 2019, equations 5 to 19);
        - ``"gumbel"``, a bound of a softmax whose ELBO is concave; latents are independent under q (Liu et al. 2019,
          equations 20 to 26);
        - ``"taylor"``, the second-order expansion of a log density without kinks about q's mean (Izmailov and Kropotov
          2017, section 4.2). Its Gaussian is at the posterior mode, with the curvature there. Laplace's evidence, no
          bound, replaces the ELBO. ``fit`` needs ``scheme="alternating"`` for it; ``svi`` and ``correct`` refuse it.
    weights : array_like, shape (n,), optional
        Powers of the rows' likelihoods: weight 2 duplicates a row, weight 0 leaves it out.
    missing : {"raise", "drop", "predict"}
        What becomes of rows without y, as in ``cavi``.
    max_iterations : int
        Maximum number of iterations.
    tolerance : float
        Relative change of the ELBO in one iteration below which it has converged.
    start : Approximation or CorrectedApproximation, optional
        A result to start from, as in ``cavi``.
    seed : int or jax.Array
        An int or a JAX key; draws inducing inputs, as in ``cavi``.
    callback : callable, optional
        ``callback(state, info)`` is called after each iteration, with the state of q (``mean``, ``variance`` and
        ``sites`` of the predictors, with rows of padding) and a ``pgm.IterationInfo``.
    progress : bool, optional
        Whether to show a progress bar, as in ``cavi``.

    Returns
    -------
    Approximation
        The Gaussian, its moments at the data, and the trace of the ELBO; ``.objective`` names the objective.

    Raises
    ------
    ValueError
        For invalid data or options, or an ELBO that is not finite. For an objective for another number of latents or
        another form of the formula.
    NoAugmentationError
        For ``"augmented"`` or ``"factorised"`` with a likelihood without an augmentation.

    Warns
    -----
    ConvergenceWarning, CorrectionWarning, InducingWarning, MeanFieldWarning, PrecisionWarning
        As in ``cavi`` and ``gaussian_vi``.

    Notes
    -----
    Coordinate ascent maximises objectives whose full steps never lower the ELBO (``is_monotone``). Natural-gradient
    steps of backtracked length maximise all other objectives.

    References
    ----------
    For ``"additive_noise"`` and ``"gumbel"``, Liu et al. 2019.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.random.default_rng(0).random(30) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(X[:, 0])))
    >>> model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0)))
    >>> vi = pgm.vi(model, X, y, objective="expected")
    >>> bool(np.isclose(vi.elbo, pgm.gaussian_vi(model, X, y).elbo, atol=0.001))
    True
    """
    return _vi(
        "vi", model, X, y, objective, weights, missing, max_iterations, tolerance, start, seed, callback, progress
    )


@double_precision
@one_thread_if_small
def cavi(
    model: Model,
    X: ArrayLike,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    missing: MissingChoice = "raise",
    max_iterations: int = 1000,
    tolerance: float = 1e-9,
    start: Approximation | CorrectedApproximation | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
) -> Approximation:
    """Return the Gaussian q(f) that maximises the augmented ELBO, with hyperparameters fixed at their values.

    It uses coordinate ascent over the sites, with Anderson acceleration; the ELBO never falls. With inducing inputs
    each sweep first optimises the mean given the variances (see ``pgmodels.inference.cavi``).

    Parameters
    ----------
    model : Model
        The likelihood and its GPs. Priors of hyperparameters are ignored: they stay at their values.
    X : array_like, shape (n, d)
        Inputs, one row per datum; an array or a data frame.
    y : array_like, shape (n,) or (n, columns)
        Observations, in the units of the likelihood.
    weights : array_like, shape (n,), optional
        Powers of the rows' likelihoods: weight 2 duplicates a row, weight 0 leaves it out.
    missing : {"raise", "drop", "predict"}
        What becomes of rows without y, NaN or None. "raise" is an error; "drop" leaves them out, with a DataWarning.
        "predict" keeps them in ``.missing`` of the result; ``predict_missing`` has their predictive distribution.
    max_iterations : int
        Maximum number of sweeps.
    tolerance : float
        Relative change of the ELBO in one sweep below which the iteration has converged.
    start : Approximation or CorrectedApproximation, optional
        A result of ``vi``, ``cavi``, ``gaussian_vi``, ``fit`` or ``svi`` to start from. It may have other
        hyperparameters, other y, or only the first rows of X. The optimum is the same; a close result saves iterations.
    seed : int or jax.Array
        An int or a JAX key; draws inducing inputs if ``pgm.Inducing`` chooses them at random or by k-means.
    progress : bool, optional
        Whether to show a progress bar; by default in a terminal or a notebook.

    Returns
    -------
    Approximation
        The Gaussian, its moments at the data, and the trace of the ELBO.

    Raises
    ------
    ValueError
        For invalid data or options, or an ELBO that is not finite.
    NoAugmentationError
        For a likelihood without an augmentation; ``gaussian_vi`` needs none.

    Warns
    -----
    ConvergenceWarning
        If ``max_iterations`` sweeps do not reach the tolerance.
    CorrectionWarning
        If variances are estimated to be less than half of the posterior's.
    InducingWarning
        If there are too few inducing inputs.
    PrecisionWarning
        If double precision is not enough for the prior and the data.

    References
    ----------
    Wenzel et al. 2019; Galy-Fajou et al. 2019; for the acceleration, Walker and Ni 2011.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.random.default_rng(0).random(30) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(X[:, 0])))
    >>> model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0)))
    >>> vi = pgm.cavi(model, X, y)
    >>> vi.predict([[1.5], [4.5]]).probabilities[:, 1].round(2)
    array([0.89, 0.17])
    """
    return _vi(
        "cavi", model, X, y, "augmented", weights, missing, max_iterations, tolerance, start, seed, None, progress
    )


@double_precision
@one_thread_if_small
def gaussian_vi(
    model: Model,
    X: ArrayLike,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    missing: MissingChoice = "raise",
    max_iterations: int = 1000,
    tolerance: float = 1e-9,
    start: Approximation | CorrectedApproximation | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
) -> Approximation:
    """Return the Gaussian closest to the posterior in KL(q ‖ p), with hyperparameters fixed; any formula.

    It makes natural-gradient steps on the expected log density, computed by quadrature (math: section 6). The ELBO
    never falls. At the optimum it is above the ELBO of ``cavi``, the start if the formula has an augmentation.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs. Priors of hyperparameters are ignored: they stay at their values.
    X : array_like, shape (n, d)
        Inputs, one row per datum; an array or a data frame.
    y : array_like, shape (n,) or (n, columns)
        Observations, in the units of the likelihood.
    weights : array_like, shape (n,), optional
        Powers of the rows' likelihoods, as in ``cavi``.
    missing : {"raise", "drop", "predict"}
        What becomes of rows without y, as in ``cavi``.
    max_iterations : int
        Maximum number of steps.
    tolerance : float
        Relative change of the ELBO in one step below which the iteration has converged.
    start : Approximation or CorrectedApproximation, optional
        A result to start from, as in ``cavi``.
    seed : int or jax.Array
        An int or a JAX key; draws inducing inputs, as in ``cavi``.
    progress : bool, optional
        Whether to show a progress bar, as in ``cavi``.

    Returns
    -------
    Approximation
        The Gaussian, its moments at the data, and the trace of the ELBO.

    Raises
    ------
    ValueError
        For bad data or options, or an ELBO that is not finite.

    Warns
    -----
    ConvergenceWarning
        If ``max_iterations`` steps do not reach the tolerance, or no step raises the ELBO although the sites are not
        optimal. The reason is that precisions of independent latents that are no Markov processes are clipped at zero.
    MeanFieldWarning
        If the latents of a datum are independent under q because they have more than 3,200 coordinates in total. Up to
        that size they are correlated.
    InducingWarning, PrecisionWarning
        As in ``cavi``.

    References
    ----------
    Opper and Archambeau 2009; Khan and Lin 2017.

    Examples
    --------
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.random.default_rng(0).random(30) < 1.0 / (1.0 + np.exp(-3.0 * np.sin(X[:, 0])))
    >>> model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(2.0, 1.0)))
    >>> vi = pgm.gaussian_vi(model, X, y)
    >>> bool(vi.elbo > pgm.cavi(model, X, y).elbo)
    True
    """
    return _vi(
        "gaussian_vi", model, X, y, "expected", weights, missing, max_iterations, tolerance, start, seed, None, progress
    )


def _vi(
    name: str, model: Model, X: ArrayLike, y: ArrayLike, objective: Choice, weights: ArrayLike | None,
    missing: MissingChoice, max_iterations: int, tolerance: float, start: Approximation | CorrectedApproximation | None,
    seed: Seed, callback: Callback | None, progress: bool | None,
) -> Approximation:  # fmt: skip
    start_time = time.perf_counter()
    model, data = require_model(model).prepare(X, y, weights, missing)
    check_whole_number(max_iterations, "max_iterations", 1)
    check_between(tolerance, "tolerance", 0.0, math.inf)
    check_callback(callback)
    check_objective(objective)
    model = resolved(model, data, as_seed(seed), may_be_chain=True)
    terms = objective_of(model, objective)
    model = with_selected_inputs(model, data, terms)
    sites = None if start is None else start_sites(start, model, data, terms)
    result = converge(name, model, data, terms, sites, max_iterations, tolerance, progress, callback, start_time)
    warn_narrow(name, result)
    return result


def start_sites(start: Approximation | CorrectedApproximation, model: Model, data: Data, objective: Objective) -> Sites:
    """Return the sites of a result's rows to start from; ValueError for a result of other rows or another formula."""
    if not isinstance(start, GaussianResult):
        raise ValueError(
            f"start must be a result of vi, cavi, gaussian_vi, fit or svi at its data; got {shorten(start)}. Give such "
            "a result, or leave start out."
        )
    size = model.num_latents
    if start.model.likelihood.formula(start.model.num_latents).key != model.likelihood.formula(size).key:
        raise ValueError(
            f"start must be a result for {model.likelihood.name} of {size} latent(s); got one for "
            f"{start.model.likelihood.name} of {start.model.num_latents}. Give one of this likelihood, or leave start "
            "out."
        )
    if not np.array_equal(start.X, data.X[: len(start.X)]):
        raise ValueError(
            f"start must be a result whose rows are the first rows of X; got a result of {len(start.X)} rows, which "
            f"are not the first of the {len(data.X)} rows of X. Put its rows first, or leave start out."
        )
    sites = sites_of(start.uncorrected, objective)
    if sites.coupled and start.objective != objective.name:
        return Sites(sites.potential, jnp.diagonal(sites.precision, axis1=1, axis2=2))
    return sites


def sites_of(q: Approximation, objective: Objective) -> Sites:
    """Return the sites of a result's rows: on predictors those at q's marginals, since q has theirs on the latents."""
    if objective.predictors is None:
        return q.sites
    problem = variational_problem(q.model, q.data, objective, q.posterior.prior)
    return pad_sites(_sites_at(problem, q.posterior), len(q.y))


@partial(compiled, optimise=False)
def _sites_at(problem: Problem, posterior: Posterior) -> Sites:
    return problem.sites(*problem.of_latents(*posterior.marginals()))


_restart = compiled(start_at)


def converge(
    name: str,
    model: Model,
    data: Data,
    objective: Objective,
    start: VariationalState | Sites | None,
    max_iterations: int,
    tolerance: float,
    progress: bool | None,
    callback: Callback | None = None,
    start_time: float | None = None,
) -> Approximation:
    """Iterate to the tolerance from a state, from sites of the first rows, or from the engine's start."""
    start_time = time.perf_counter() if start_time is None else start_time
    problem = _problem_for(start, model, data, objective, model.prior(data.X))
    warn_independent(name, problem)
    state = _first_state(model, data, problem, start)
    finer = accurate_prior(model, data, problem.prior, largest_precision(problem, state.sites))
    if finer is not problem.prior:
        problem = _problem_for(start, model, data, objective, finer)
        goes_on = start is None and not objective.is_monotone
        state = _first_state(model, data, problem, state if goes_on else start)
    problem, ascent = optimise(problem, state, tolerance, max_iterations, name, progress, callback)
    return conclude(name, model, data, problem, ascent, tolerance, start_time)


def _problem_for(
    start: VariationalState | Sites | None, model: Model, data: Data, objective: Objective, prior: PriorCollection
) -> Problem:
    """The problem; coupled as given sites are, which may have precisions of any sign."""
    problem = variational_problem(model, data, objective, prior)
    return problem.with_coupled_sites() if isinstance(start, Sites) and start.coupled else problem


def _first_state(model: Model, data: Data, problem: Problem, start: VariationalState | Sites | None) -> Any:
    """A state to continue from; where the engine starts without one, or if it is improper at this prior."""
    state = None if start is None else continued(problem, start)
    is_proper = state is not None and not np.isnan([float(state.elbo), *np.ravel(state.mean)]).any()
    return state if is_proper else start_state(model, data, problem)


def continued(problem: Problem, state: VariationalState | Sites) -> Any:
    """Return a state to continue from: a state of full steps unchanged, a state of backtracked steps by its sites."""
    if isinstance(state, Sites):
        extended = state_from(problem, pad_sites(state, len(problem.y)))
        return _restart(problem, extended.mean, extended.variance) if problem.objective.is_monotone else extended
    return state if problem.objective.is_monotone else state_from(problem, state.sites)


def finish(
    name: str, model: Model, data: Data, objective: Objective, ascent: Ascent, tolerance: float
) -> Approximation:
    """Return the result of a loop with the prior's traced form; continue if another form or coupled sites improve."""
    start_time = time.perf_counter()
    problem = variational_problem(model, data, objective, model.prior(data.X))
    sites = ascent.state.sites
    goes_on = (
        problem.coupled != sites.coupled
        or accurate_prior(model, data, problem.prior, largest_precision(problem, sites)) is not problem.prior
        or (_may_couple(problem) and is_clipped(ascent.state))
    )
    if goes_on:
        return converge(name, model, data, objective, ascent.state, MANY, tolerance, False, start_time=start_time)
    warn_independent(name, problem)
    return conclude(name, model, data, problem, ascent, tolerance, start_time)


def _may_couple(problem: Problem) -> bool:
    """Whether precisions may be clipped at zero that would not be clipped with coupled sites, at affordable cost."""
    return problem.objective.signed and not problem.coupled and is_affordable(problem.objective, problem.prior)


def warn_independent(name: str, problem: Problem) -> None:
    """Warn if the sites of a datum with several predictors are not coupled."""
    if couples(problem.objective) and not problem.coupled:
        warn(
            f"{name} treats the latents of a datum as independent, which loses their posterior correlations: together "
            f"they have more than {MAX_BLOCK} coordinates, or a prior without a factor.",
            MeanFieldWarning,
        )


def optimise(
    problem: Problem,
    state: VariationalState,
    tolerance: float,
    max_iterations: int,
    name: str = "",
    progress: bool | None = False,
    callback: Callback | None = None,
) -> tuple[Problem, Ascent]:
    """Maximise to the tolerance; if clipped precisions hinder, continue with coupled sites, which are not clipped."""
    step, start_time = engine_of(problem.objective).step, time.perf_counter()

    def ascend(problem: Problem, state: VariationalState, tolerance: float, before: np.ndarray | None = None) -> Ascent:
        return maximise(
            step, problem, state, tolerance, max_iterations, title=name, progress=progress, callback=callback,
            before=before, start_time=start_time,
        )  # fmt: skip

    if not _may_couple(problem):
        return problem, ascend(problem, state, tolerance)
    ascent = ascend(problem, state, max(tolerance, NEAR))
    if not is_clipped(ascent.state):
        ascent = ascend(problem, ascent.state, tolerance, ascent.trace)
    if is_clipped(ascent.state):
        problem = problem.with_coupled_sites()
        ascent = ascend(problem, state_from(problem, ascent.state.sites), tolerance, ascent.trace)
    return problem, ascent


def checked(name: str, problem: Problem, ascent: Ascent) -> Ascent:
    """Return the ascent; raise ValueError if it failed, and warn if it did not converge or is not accurate."""
    if not np.isfinite(ascent.trace[-1]):
        raise ValueError(
            f"{name}: the ELBO is {float(ascent.trace[-1])} at iteration {len(ascent.trace) - 1}. Check for extreme "
            "values in y, prior variances of many orders of magnitude, a likelihood scale close to zero, or a formula "
            "without a finite expectation under a Gaussian."
        )
    if not ascent.converged:
        warn(
            f"{name} did not converge: after {len(ascent.trace) - 1} iterations the ELBO still changes by "
            f"{abs(ascent.trace[-1] - ascent.trace[-2]):.2g} per iteration. Raise max_iterations or tolerance.",
            ConvergenceWarning,
        )
    ascent = engine_of(problem.objective).finish(name, problem, ascent)
    state = ascent.state
    neglected = neglect(problem, state.mean, state.variance, state.sites)
    precision = largest_precision(problem, state.sites)
    warn_inaccurate(problem.prior, precision, float(state.elbo), float(state.rounding), neglected)
    return ascent


def conclude(
    name: str, model: Model, data: Data, problem: Problem, ascent: Ascent, tolerance: float, start_time: float
) -> Approximation:
    """Return the result of an engine's loop."""
    state, trace, converged = checked(name, problem, ascent)
    posterior, *moments, residual = conditioned(problem, state.sites)
    rows = len(data.y)
    mean, variance = (np.asarray(part)[:rows] for part in moments)
    objective = problem.objective
    if residual is not None:
        of_latents = precisions(objective, state.sites, problem.y, model.parameters)
        warn_left_out(model, data.X, np.asarray(residual)[:rows], of_latents[:rows], variance)
    return Approximation(
        model=model,
        **data._asdict(),
        posterior=posterior,
        mean=mean,
        variance=variance,
        elbo_trace=trace,
        converged=converged,
        tolerance=tolerance,
        seconds=time.perf_counter() - start_time,
        method=name,
        objective=objective.name,
        custom_objective=custom_objective(model, objective),
    )
