"""Hyperparameters integrated out: `integrate`."""

import math
import time
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from pgmodels.data.arrays import MissingChoice, check_whole_number
from pgmodels.inference.bound import ProblemFamily, collapsed_bound, many_rows, points_at
from pgmodels.inference.cavi import NATURAL_GRADIENT
from pgmodels.inference.correct import check_against_prior
from pgmodels.inference.evidence import NUM_RUNS, EvidenceWarning, estimate, layout_along, particle_runs
from pgmodels.inference.linear_response import corrected_moments, factors_of, linear_response
from pgmodels.inference.loop import ConvergenceWarning, VariationalState, run_block
from pgmodels.inference.objectives import expected_objective
from pgmodels.inference.prepare import (
    resolved,
    start_state,
    variational_problem,
    warn_inaccurate,
    warn_left_out,
    with_selected_inputs,
)
from pgmodels.inference.problem import Problem, largest_precision, precisions
from pgmodels.inference.vi import optimise
from pgmodels.likelihoods.expression import Environment
from pgmodels.likelihoods.sampling import checked_unknowns
from pgmodels.model import Data, Model, Points, coefficient_groups, has_factors, padded_data, require_model
from pgmodels.numerics.elementary import smoothed
from pgmodels.numerics.iteration import Search, hessian
from pgmodels.numerics.quadrature import SPACINGS, Design, composite, composite_support, grid, grid_support, refined
from pgmodels.objectives.base import Objective
from pgmodels.parameters.vector import ParameterVector
from pgmodels.priors.base import Sites, pad_rows, pad_zeros, padded_size, weighted
from pgmodels.priors.block_posterior import move
from pgmodels.priors.chain_posterior import ChainResponse, Layout, respond
from pgmodels.priors.collection import Posterior, factors_at
from pgmodels.results.gaussian import added_moments, joint_covariance
from pgmodels.results.integrated import IntegratedApproximation
from pgmodels.runtime.jit import compiled, one_thread_if_small
from pgmodels.runtime.messages import ProgressBar, progress_bar, warn
from pgmodels.runtime.precision import as_array, double_precision
from pgmodels.runtime.seeds import Seed, as_seed

# Points of ``integrate`` for GPs that are Markov processes: corrected variances by scans, evidence by particles.


def _response(problem: Problem, posterior: Posterior) -> tuple[ChainResponse, Any]:
    """The response of Markov processes, and whether it is a covariance."""
    factors = factors_of(problem, posterior)._replace(slope=None)
    response = respond(posterior, factors, Layout.of(posterior.prior, posterior.is_coupled))
    return response, (jnp.sum(response.negative()) == 0) & jnp.all(jnp.isfinite(response.moments()[1]))


# Tolerances of the ELBO. At a point importance weights give the evidence for any q; the mode's gradient needs a more
# exact q.
_TOLERANCE, _MODE_TOLERANCE = 1e-6, 1e-7
# Importance draws per batch.
_AT_A_TIME = 256
# Maximum error, in nats, of the interpolated density where its mass is; smaller errors give a warning.
_MOST_ERROR = 0.5


class _PointFit(NamedTuple):
    """The corrected Gaussian at a point: its sites, moments of the latents, and importance weights of its draws.

    ``mean`` (n, L), ``covariance`` (n, L, L) of each datum's latents; ``log_ratios`` of p(y, f) to its density, or
    without factors log p(y) of independent runs of particles, or log p(y) itself, with the log prior of the
    hyperparameters.
    """

    sites: Sites
    mean: Array
    covariance: Array
    elbo: Array
    log_ratios: Array


@compiled
def _ascend(
    family: ProblemFamily, vector: Array, points: Points, start: Sites, tolerance: Array | float
) -> tuple[Sites, Array, Array]:
    """The optimal sites, the bound with the log prior of the vector, and the gradient of that."""
    state = _optimum(family.problem(vector, points), start, tolerance)

    def penalised(vector: Array) -> Array:
        return collapsed_bound(family.problem(vector, points), state) + family.parameters.log_prior_unconstrained(
            vector
        )

    return state.sites, state.elbo + family.parameters.log_prior_unconstrained(vector), jax.grad(penalised)(vector)


def _optimum(problem: Problem, start: Sites, tolerance: Array | float) -> VariationalState:
    if problem.objective.signed and problem.takes_signed and not problem.coupled:
        # The precisions of other hyperparameters may be improper at these.
        is_proper = jnp.isfinite(problem.moments(start).divergence)
        start = start._replace(precision=jnp.where(is_proper, start.precision, jnp.maximum(start.precision, 0.0)))
    first = NATURAL_GRADIENT.state_of(problem, start)
    return run_block(NATURAL_GRADIENT.step, problem, first, tolerance, 500, 500).state


@compiled
def _evaluate(family: ProblemFamily, vector: Array, points: Points, start: Sites, keys: Array) -> _PointFit:
    """The corrected Gaussian at a point and the log weights of its draws, one per key."""
    problem = family.problem(vector, points)
    state = _optimum(problem, start, _TOLERANCE)
    log_prior = family.parameters.log_prior_unconstrained(vector)
    if not has_factors(family.model):
        posterior = problem.condition(state.sites)
        layout, count = Layout.of(posterior.prior, posterior.is_coupled), -(-len(keys) // NUM_RUNS)
        arguments = family.model_at(vector), posterior, problem.y, problem.row_weights, keys[:NUM_RUNS]
        runs = particle_runs(*arguments, count, layout) + log_prior
        mean, plain = posterior.marginals()
        chains, is_positive = _response(problem, posterior)
        variance = jnp.where(is_positive, chains.moments()[1], plain)
        return _PointFit(state.sites, mean, variance, state.elbo, runs)
    posterior, response = _corrected(problem, state.sites)
    still = jnp.zeros(len(response))
    # With nine tenths of the data's precisions: the tails of the corrected Gaussian are too light for weak data.
    proposal = move(posterior, still, response, 0.9)
    formula = family.model.likelihood.formula(family.model.num_latents)

    def weigh(keys: Array) -> Array:
        noise = jax.vmap(lambda key: jax.random.normal(key, proposal.centre.shape))(keys)
        f, log_ratio = proposal.place(keys, noise)
        terms = formula.log_evaluate(Environment(family.y, f, problem.parameters))[..., 0]
        return log_ratio + jnp.sum(weighted(family.row_weights, terms.T), axis=0)

    log_ratios = jax.lax.map(weigh, keys.reshape(-1, _AT_A_TIME)).ravel()
    mean, covariance = corrected_moments(posterior, still, response)
    return _PointFit(state.sites, mean, covariance, state.elbo, log_ratios + log_prior)


@partial(compiled, optimise=many_rows)
def _evaluate_exactly(family: ProblemFamily, vector: Array, points: Points) -> tuple[_PointFit, Array]:
    """The posterior at a point for a likelihood that is Gaussian in the latents, and the slope of the log density."""

    def log_density(vector: Array) -> tuple[Array, _PointFit]:
        problem = family.problem(vector, points)
        sites = jax.lax.stop_gradient(problem.sites(*problem.marginals()))
        moments = problem.moments(sites)
        m, v = jax.lax.stop_gradient(moments[:2])
        elbo = problem.elbo(m, v, moments.divergence, sites).value
        log_prior = family.parameters.log_prior_unconstrained(vector)
        point = _PointFit(sites, *problem.condition(sites).marginals(), elbo, elbo + log_prior)
        return moments.log_normalizer + problem.local_bound(m, v) + log_prior, point

    slope, point = jax.grad(log_density, has_aux=True)(vector)
    return point, slope


def _corrected(problem: Problem, sites: Sites) -> tuple[Any, Array]:
    """The posterior of sites, and the covariance added by linear response: zero if that is not positive definite."""
    posterior = problem.condition(sites)
    if problem.objective.is_monotone:
        # The posterior of a likelihood that is Gaussian in the latents.
        return posterior, jnp.zeros((sum(posterior.prior.ranks),) * 2)
    response = linear_response(problem, posterior)
    is_positive = jnp.all(jnp.isfinite(jnp.linalg.cholesky(response.kept))) & jnp.isfinite(response.residual)
    return posterior, jnp.where(is_positive, response.covariance, 0.0)


@compiled
def _marginals(
    family: ProblemFamily, vector: Array, points: Points, mean: Array, covariance: Array
) -> tuple[Array, Array | None, tuple[Array, Array]]:
    """Prior variances (n, L), their inducing residuals or None, and moments (n, P) of the predictors."""
    problem = replace(family.problem(vector, points), coupled=False)
    return problem.prior.marginals()[1], problem.prior.residual_variances(), problem.of_latents(mean, covariance)


@compiled
def _predict(
    family: ProblemFamily, vector: Array, points: Points, sites: Sites, X_new: Array
) -> tuple[Array, Array, Array]:
    """Means (m, L) and covariances (m, L, L) of the latents at new inputs, with the correction and without it."""
    problem = family.problem(vector, points)
    if problem.objective.is_monotone:
        mean, covariance = problem.condition(sites).marginals_at(X_new)
        return mean, covariance, covariance
    if not has_factors(family.model):
        posterior = problem.condition(sites)
        mean, plain = posterior.marginals_at(X_new)
        chains, is_positive = _response(problem, posterior)
        return mean, jnp.where(is_positive, chains.predict(X_new)[1], plain), plain
    posterior, response = _corrected(problem, sites)
    _, added = added_moments(factors_at(posterior.prior, X_new), jnp.zeros(len(response)), response)
    mean, covariance = posterior.marginals_at(X_new)
    return mean, covariance + added, covariance


@compiled
def _predict_jointly(
    family: ProblemFamily, vector: Array, points: Points, sites: Sites, X_new: Array
) -> tuple[Array, Array]:
    """Means (m, L) and the joint covariance (L, m, L, m) of the latents at new inputs."""
    posterior, response = _corrected(family.problem(vector, points), sites)
    return posterior.predict(X_new)[0], joint_covariance(posterior, X_new, response)


class _Mode(NamedTuple):
    """The negative bound with log prior at a vector, its gradient, and the sites of q."""

    value: float
    slope: np.ndarray
    sites: Sites


@double_precision
@one_thread_if_small
def integrate(
    model: Model,
    X: ArrayLike,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    missing: MissingChoice = "raise",
    num_draws: int = 512,
    seed: Seed = 0,
    progress: bool | None = None,
) -> IntegratedApproximation:
    """Integrate the hyperparameters with priors out of the posterior, without sampling; any formula.

    The hyperparameters are evaluated at points about their mode: a grid for up to three numbers, a central composite
    design for more. At each point ``gaussian_vi``, corrected by linear response, computes the latents' posterior, and
    importance sampling estimates the evidence. Both are exact for a likelihood that is Gaussian in the latents, without
    inducing inputs.

    Parameters
    ----------
    model : Model
        The likelihood and its GPs. Hyperparameters given as NumPyro distributions are integrated out; all other
        parameters are fixed at their values.
    X : array_like, shape (n, d)
        Inputs, one row per datum; an array or a data frame.
    y : array_like, shape (n,) or (n, columns)
        Observations, in the units of the likelihood.
    weights : array_like, shape (n,), optional
        Powers of the rows' likelihoods, as in ``cavi``.
    missing : {"raise", "drop", "predict"}
        What becomes of rows without y, as in ``cavi``.
    num_draws : int
        Importance draws at each point, at least 256, rounded up to a multiple of 256; all points use the same noise.
        With ``pgm.Markov()``, the total number of particles in 8 runs; long series need more.
    seed : int or jax.Array
        An int or a JAX key, for the importance draws, and inducing inputs as in ``cavi``.
    progress : bool, optional
        Whether to show a progress bar, as in ``cavi``.

    Returns
    -------
    IntegratedApproximation
        The mixture over the points, the marginals of the hyperparameters and the log evidence.

    Raises
    ------
    ValueError
        For invalid data or options, if nothing has a prior, or if a grid cannot be refined. For priors on parameters
        of a formula that may omit a factor that depends on them.

    Warns
    -----
    EvidenceWarning
        If the points do not cover the mass, or importance weights are not reliable.
    ConvergenceWarning
        If the search for the mode stops early.
    InducingWarning, PrecisionWarning
        As in ``cavi``.

    Notes
    -----
    A grid is refined until the interpolated log density agrees with the log density at new points to half a nat. With
    ``pgm.Markov()`` particles estimate the evidence at a point, as in ``log_evidence``. Variances are then corrected
    if there is one latent, and otherwise the variances of ``gaussian_vi``.

    References
    ----------
    Rue, Martino and Chopin 2009.

    Examples
    --------
    >>> import numpyro.distributions as dist
    >>> import numpy as np
    >>> import pgmodels as pgm
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(X[:, 0])))
    >>> model = pgm.Model(pgm.Poisson(), pgm.GP(pgm.RBF(1.0, dist.LogNormal(0.0, 0.5)), mean=1.0))
    >>> result = pgm.integrate(model, X, y)
    >>> result.predict([[1.5], [4.5]]).mean.round()
    array([7., 1.])
    """
    start_time = time.perf_counter()
    model, data = require_model(model).prepare(X, y, weights, missing)
    check_whole_number(num_draws, "num_draws", _AT_A_TIME)
    seed = as_seed(seed)
    model = resolved(model, data, seed)
    model = with_selected_inputs(model, data, _objective(model))
    unknowns = checked_unknowns(model)
    if not unknowns.leaf_indices:
        raise ValueError(
            "integrate: nothing in the model has a prior, so there is nothing to integrate out. Give hyperparameters "
            "NumPyro distributions, as in pgm.RBF(variance=numpyro.distributions.LogNormal(0.0, 1.0)), or use "
            "pgm.correct(pgm.gaussian_vi(model, X, y))."
        )
    return _Integration(model, data, unknowns, num_draws, seed).run(start_time, progress)


class _Integration:
    """State of one call of ``integrate``: the points evaluated so far, the mode and its axes."""

    def __init__(self, model: Model, data: Data, unknowns: ParameterVector, num_draws: int, seed: int):
        self.model, self.data, self.unknowns = model, data, unknowns
        objective = _objective(model)
        self.is_gaussian = objective.is_monotone
        # An exact point has neither a start nor draws.
        coupled = False
        self.first: Any = None
        self.keys: Any = None
        if not self.is_gaussian:
            coupled, self.first = self._start(objective)
            count = -(-num_draws // _AT_A_TIME) * _AT_A_TIME
            self.keys = jax.random.split(jax.random.key(seed), count)
        self.family = problem_family(model, data, unknowns, coupled)
        self.mode, self.axes = unknowns.start(), np.eye(len(unknowns.start()))
        self.points: list[_PointFit] = []
        self.usable: list[bool] = []
        self.k_hats: list[float] = []
        self.reliable: list[bool] = []

    def _start(self, objective: Objective) -> tuple[bool, Sites]:
        """Whether sites couple the predictors of a datum, and the sites at the start values."""
        model, data = self.model, self.data
        problem = variational_problem(model, data, objective, model.prior(data.X, traced=True))
        if not has_factors(model):
            layout = layout_along(problem.prior, problem.coupled or problem.objective.predictors is not None)
            if layout is None or any(member.kind is None for member in layout.members):
                raise ValueError(
                    "integrate with a GP of form=pgm.Markov() needs all GPs of that form, along the same column of X; "
                    "the model has other GPs: choose pgm.Dense() or pgm.Inducing(300) for all."
                )
        problem, ascent = optimise(problem, start_state(model, data, problem), 1e-6, 200)
        if not np.isfinite(float(ascent.state.elbo)):
            raise ValueError(
                "integrate: the ELBO is not finite at the initial values. Give hyperparameters on "
                "the scale of the data."
            )
        return problem.coupled, ascent.state.sites

    def run(self, start_time: float, progress: bool | None) -> IntegratedApproximation:
        """Mode, points, and the result."""
        size = len(self.mode)
        with progress_bar("integrate", 100, progress) as bar:
            converged = self._find_mode(bar)
            density, spread = partial(self._density, bar), grid_support if size in SPACINGS else composite_support
            design = refined(density, grid(density, size)) if size in SPACINGS else composite(density, size)
        kept = np.isfinite(design.log_densities)
        if not kept[0]:
            raise ValueError(
                "integrate: the evidence is not finite at the mode. Give hyperpriors on the scale of the data."
            )
        support = spread(design)
        points = [point for point, is_finite in zip(self.points, kept, strict=True) if is_finite]
        k_hats = np.array(self.k_hats)[kept]
        unreliable = float(support.weights[~np.array(self.reliable)[kept]].sum())
        self._warn(design, converged, unreliable)
        if not self.is_gaussian:
            heaviest = int(np.argmax(support.weights))
            self._check(self._vectors(design.points[kept][heaviest]), points[heaviest])
        model = self.unknowns.with_values([np.asarray(value) for value in self.unknowns.constrain(self.mode)])
        dense = None in _points_at(self.family, self.mode)
        prior = model.prior(self.data.X, traced=True) if dense else model.prior(self.data.X)
        problem = variational_problem(model, self.data, self.family.objective, prior)
        warn_inaccurate(problem.prior, largest_precision(problem, self.points[0].sites))
        means, covariances, potentials, precisions = (
            np.stack([np.asarray(part)[: len(self.data.y)] for part in arrays])
            for arrays in zip(*((point.mean, point.covariance, *point.sites) for point in points), strict=True)
        )
        return IntegratedApproximation(
            model=model,
            **self.data._asdict(),
            seconds=time.perf_counter() - start_time,
            method="integrate",
            vectors=self._vectors(design.points[kept]),
            shares=support.weights,
            log_densities=design.log_densities[kept],
            elbos=np.array([float(point.elbo) for point in points]),
            k_hats=k_hats,
            means=means,
            covariances=covariances,
            potential=potentials,
            precision=precisions,
            support=self._vectors(support.points),
            mass=support.mass,
            owners=support.owners,
            log_evidence=support.log_total + float(np.linalg.slogdet(self.axes)[1]),
            converged=converged,
            holds_mass=design.is_complete,
            num_failed=int(np.sum(~kept)),
            unreliable=unreliable,
        )

    def _find_mode(self, bar: ProgressBar) -> bool:
        """Set the mode and the axes of standardised coordinates; whether the search converged."""
        first, size = self.first, len(self.mode)

        def evaluate(vector: np.ndarray, best: _Mode | None) -> _Mode | None:
            point, points = as_array(vector), _points_at(self.family, vector)
            if self.is_gaussian:
                exact, slope = _evaluate_exactly(self.family, point, points)
                sites, bound = exact.sites, exact.log_ratios
            else:
                start = first if best is None else best.sites
                sites, bound, slope = _ascend(self.family, point, points, start, _MODE_TOLERANCE)
            value, gradient = -float(bound), -np.asarray(slope)
            return _Mode(value, gradient, sites) if math.isfinite(value) and np.isfinite(gradient).all() else None

        box = np.stack([np.full(size, -np.inf), np.full(size, np.inf)])
        search = Search(evaluate, self.mode, np.ones(size), box, lambda best: bar.advance(1, "mode"))
        if search.best is None:
            raise ValueError("integrate: the ELBO has no finite gradient at the start values. Give other values.")
        solution = search.lbfgs(100, 1e-6, 1e-2, height=1.0)
        # Where SciPy stops early, a small slope is close enough to centre the points.
        converged = bool(solution.success) or float(np.max(np.abs(search.point.slope))) < 0.1
        self.mode, self.first = search.x, search.point.sites
        values, vectors = np.linalg.eigh(hessian(lambda vector: search(vector)[1], self.mode, central=True))
        # A standard deviation of at most about three in logarithms.
        self.axes = vectors / np.sqrt(np.maximum(values, 0.1))
        return converged

    def _vectors(self, points: np.ndarray) -> np.ndarray:
        return self.mode + points @ self.axes.T

    def _density(self, bar: ProgressBar, point: np.ndarray, near: int | None) -> float:
        """The log posterior of the hyperparameters at standardised coordinates, up to the log evidence."""
        start = self.first if near is None or not self.usable[near] else self.points[near].sites
        vector = as_array(self._vectors(point))
        points = _points_at(self.family, vector)
        if self.is_gaussian:
            evaluation = _evaluate_exactly(self.family, vector, points)[0]
        else:
            evaluation = _evaluate(self.family, vector, points, start, self.keys)
        ratios = np.asarray(evaluation.log_ratios)
        usable = bool(np.isfinite(ratios).all())
        self.points.append(evaluation)
        self.usable.append(usable)
        value, k_hat, reliable = -math.inf, math.inf, False
        if usable and self.is_gaussian:
            value, k_hat, reliable = float(ratios), math.nan, True
        elif usable and has_factors(self.model):
            weights = smoothed(ratios)
            value, k_hat, reliable = weights.log_mean, weights.k, weights.k <= weights.limit
        elif usable:
            value, error = estimate(ratios)
            k_hat, reliable = math.nan, error <= _MOST_ERROR
        self.k_hats.append(k_hat)
        self.reliable.append(reliable)
        bar.advance(1, f"point {len(self.points)}")
        return value

    def _check(self, vector: np.ndarray, point: _PointFit) -> None:
        """Raise ValueError if a variance at a point is not possible for a posterior; warn of few inducing inputs."""
        prior, residual, (m, v) = _marginals(
            self.family, as_array(vector), _points_at(self.family, vector), point.mean, point.covariance
        )
        model = self.unknowns.with_values([np.asarray(value) for value in self.unknowns.constrain(vector)])
        n, variance = len(self.data.y), np.diagonal(np.asarray(point.covariance), axis1=1, axis2=2)
        before, variance, mean, spread = (np.asarray(part)[:n] for part in (prior, variance, m, v))
        check_against_prior("integrate", model, self.data.y, before, variance, lambda: (mean, spread))
        if residual is not None:
            site_precisions = precisions(self.family.objective, point.sites, self.family.y, model.parameters)
            warn_left_out(model, self.data.X, np.asarray(residual)[:n], site_precisions[:n], variance)

    def _warn(self, design: Design, converged: bool, unreliable: float) -> None:
        if not converged:
            warn(
                "integrate: the search for the mode of the hyperparameters stopped early, and the points are about its "
                "end. Give priors to values that the data do not determine, or start values nearer to the mode.",
                ConvergenceWarning,
            )
        if not design.is_complete:
            warn(
                "integrate: the posterior of the hyperparameters extends beyond the points. Give narrower priors, or "
                "draw with gibbs.",
                EvidenceWarning,
            )
        if design.error > _MOST_ERROR:
            raise ValueError(
                "integrate: the density of the hyperparameters is too peaked to interpolate: between the "
                f"{len(design.points)} points the error is {design.error:.2g} nats near its mass. Give narrower "
                "priors, or draw with gibbs."
            )
        if design.error:
            warn(
                f"integrate: the log evidence may be off by {design.error:.2g} nats, since the density between the "
                "points is interpolated roughly. Give narrower priors, or draw with gibbs.",
                EvidenceWarning,
            )
        failed = len(self.usable) - sum(self.usable)
        if failed:
            warn(
                f"integrate: {failed} of {len(self.usable)} points have no finite evidence and are left out: the "
                "posterior there is unknown. Give narrower priors, or draw with gibbs.",
                EvidenceWarning,
            )
        if unreliable > 0.05:
            warn(
                "integrate: Pareto k-hat of the evidence's weights is above its limit at points with "
                f"{unreliable:.0%} of the mass: the corrected Gaussian misses too much of the posterior. Compare with "
                "draws of gibbs."
                if has_factors(self.model)
                else f"integrate: at points with {unreliable:.0%} of the mass the evidence by particles has a standard "
                f"error above {_MOST_ERROR} nats. Raise num_draws, or draw with gibbs.",
                EvidenceWarning,
            )


def _objective(model: Model) -> Objective:
    """The expected log density, in closed form (and ``is_monotone``) where the posterior is Gaussian."""
    is_gaussian = model.is_augmentable and model.augmentation.has_fixed_sites
    has_inputs = any(gp.form.num_inputs for gp in model.gps)
    return model.augmentation if is_gaussian and not has_inputs else expected_objective(model)


def problem_family(model: Model, data: Data, unknowns: ParameterVector, coupled: bool) -> ProblemFamily:
    """Return the problem family of a resolved model and checked data."""
    objective, padded = _objective(model), padded_data(model, data)
    known = coefficient_groups(model, data.X)
    return ProblemFamily(objective, unknowns, model.bare(), *padded, known, coupled=coupled, needs_factors=True)


def _points_at(family: ProblemFamily, vector: Array | np.ndarray) -> Points:
    """The pivots of a low-rank form at unconstrained hyperparameters, if that is faster."""
    model = family.model_at(as_array(vector))
    if not has_factors(model):
        return (None,) * len(model.gps)
    return points_at(family.objective, model, family.inputs.masked(), (None,) * len(model.gps))


@double_precision
def moments_at(result: IntegratedApproximation, X_new: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means (K, m, L) and covariances (K, m, L, L), corrected and not, of latents at new inputs, by point."""
    family, inputs = _family_of_result(result), as_array(pad_rows(X_new, padded_size(len(X_new))))
    predictions = [_predict(family, *_place(result, family, k), inputs) for k in range(len(result.shares))]
    means, covariances, plain = (
        np.stack([np.asarray(part)[: len(X_new)] for part in arrays]) for arrays in zip(*predictions, strict=True)
    )
    return means, covariances, plain


@double_precision
def joint_moments_at(result: IntegratedApproximation, X_new: np.ndarray, point: int) -> tuple[np.ndarray, np.ndarray]:
    """Return means (m, L) and the joint covariance (L, m, L, m) of the latents at new inputs, at one point."""
    if not has_factors(result.model):
        raise ValueError(
            "draw_latents of integrate needs GPs with a factor matrix, for a joint covariance. Draw from a result of "
            "cavi, gaussian_vi or gibbs, or choose another form than pgm.Markov(), such as pgm.Dense()."
        )
    family = _family_of_result(result)
    moments = _predict_jointly(family, *_place(result, family, point), as_array(X_new))
    return np.asarray(moments[0]), np.asarray(moments[1])


def _family_of_result(result: IntegratedApproximation) -> ProblemFamily:
    return problem_family(result.model, result.data, checked_unknowns(result.model), result.precision.ndim == 4)


def _place(result: IntegratedApproximation, family: ProblemFamily, point: int) -> tuple[Array, Points, Sites]:
    """The hyperparameters, pivots and sites of a point, sites padded to the family's rows."""
    padded = (pad_zeros(part[point], len(family.y)) for part in (result.potential, result.precision))
    vector = as_array(result.vectors[point])
    return vector, _points_at(family, vector), Sites(*map(as_array, padded))
