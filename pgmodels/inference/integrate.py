"""Hyperparameters integrated out without sampling: nested approximation by the variational Gaussian, corrected."""

import math
import time
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pgmodels import generic
from pgmodels.compiled import compiled
from pgmodels.inference import gaussian_vi as engine
from pgmodels.inference.accuracy import warn_inaccurate
from pgmodels.inference.cavi import ConvergenceWarning
from pgmodels.inference.correction import check_against_prior, corrected_moments
from pgmodels.inference.design import SPACINGS, Design, composite, composite_support, grid, grid_support, refined
from pgmodels.inference.drive import stretch
from pgmodels.inference.evidence import EvidenceWarning
from pgmodels.inference.inducing import settled, warn_left_out
from pgmodels.inference.linear_response import linear_response
from pgmodels.inference.penalised_bound import Pivots, collapsed_bound, pivots_at
from pgmodels.inference.problem import Problem, precisions
from pgmodels.inference.smoothing import smoothed
from pgmodels.interop.numpyro_model import checked_unknowns
from pgmodels.language.expression import Environment
from pgmodels.latent.coupled import CoupledPosterior
from pgmodels.latent.inputs import DistinctInputs
from pgmodels.latent.joint import JointPrior
from pgmodels.latent.low_rank import low_rank_at
from pgmodels.latent.moved import move
from pgmodels.latent.protocol import Sites
from pgmodels.latent.rows import filled_size, of_data, resize_rows, resize_zeros
from pgmodels.model import Data, Model, require_model
from pgmodels.objectives.protocol import Objective
from pgmodels.options import check_whole_number
from pgmodels.portable import Module
from pgmodels.precision import as_array, double_precision
from pgmodels.progress import ProgressBar, progress_bar
from pgmodels.results.correction import added_moments, joint_covariance
from pgmodels.results.integrated import IntegratedApproximation
from pgmodels.seeds import as_seed
from pgmodels.threads import one_thread_if_small
from pgmodels.unknowns import Unknowns, with_values
from pgmodels.warning import warn

# Of the ELBO. At a point the evidence is weighed, whatever q is; for the mode's gradient q is nearer to its optimum.
_TOLERANCE, _MODE_TOLERANCE = 1e-6, 1e-7
_ITERATIONS, _MODE_STEPS = 500, 100
# Of the gradient where a search ends that could not go on: the points are about the mode all the same.
_NEAR = 0.1
# Steps of the unconstrained hyperparameters between which the gradient at the mode is taken.
_STEP = 0.05
# The least curvature that is believed: a deviation of at most three in logarithms.
_LEAST_CURVATURE = 0.1
# Draws that weigh the evidence of a point, and how many are placed at a time.
_DRAWS, _AT_A_TIME = 512, 256
# They are made a little wider than the corrected Gaussian, whose tails are too light where the data say little.
_SHARE = 0.9
# Nats by which the interpolated density may be off where it matters, with a warning.
_MOST_ERROR = 0.5
# Of points whose weights are not to be trusted, this share of the mass is borne in silence.
_BORNE = 0.05


class _Given(Module):
    """What a point depends on besides its hyperparameters: the model without priors, what moves in it, and the data."""

    objective: Objective = eqx.field(static=True)
    unknowns: Unknowns = eqx.field(static=True)
    joint: bool = eqx.field(static=True)
    model: Model
    inputs: DistinctInputs
    y: Array
    live: Array | None

    def problem(self, vector: Array, pivots: tuple[Pivots, ...]) -> Problem:
        """The problem at unconstrained hyperparameters, through pivots near them where groups have some."""
        model, inputs = self.at(vector), self.inputs
        if None in pivots:
            prior = model.traced_prior(inputs)
        else:
            parts = zip(model.gps, inputs.X, pivots, strict=True)
            groups = (low_rank_at(gp.kernel, as_array(gp.mean.value), X, own, gp.size) for gp, X, own in parts if own)
            prior = JointPrior(tuple(groups), inputs.copies)
        return Problem(self.objective, prior, self.y, model.parameters, self.joint, self.live)

    def at(self, vector: Array) -> Model:
        """The model at unconstrained hyperparameters."""
        return with_values(self.model, self.unknowns.places, self.unknowns.constrain(vector))

    def pivots(self, vector: Any) -> tuple[Pivots, ...]:
        """The pivots of a low-rank form at unconstrained hyperparameters, where that pays."""
        model = self.at(as_array(vector))
        return pivots_at(self.objective, model, self.inputs.of_data(), (None,) * len(model.gps))


class _Point(NamedTuple):
    """The corrected Gaussian at a point: its sites, moments of the latents, and what its draws weigh.

    ``mean`` (n, L), ``covariance`` (n, L, L) of each datum's latents; ``log_ratios`` of p(y, f) to its density, with
    the log prior of the hyperparameters; ``is_positive`` says whether linear response is a covariance.
    """

    sites: Sites
    mean: Array
    covariance: Array
    elbo: Array
    log_ratios: Array
    is_positive: Array


@compiled
def _ascend(
    given: _Given, vector: Array, pivots: tuple[Pivots, ...], start: Sites, tolerance: Any
) -> tuple[Sites, Array, Array]:
    """The optimal sites, the bound with the log prior of the vector, and the gradient of that."""
    problem = given.problem(vector, pivots)
    state = _optimum(problem, start, tolerance)

    def penalised(vector: Array) -> Array:
        return collapsed_bound(given.problem(vector, pivots), state) + given.unknowns.log_prior_unconstrained(vector)

    value = state.elbo + given.unknowns.log_prior_unconstrained(vector)
    return state.sites, value, jax.grad(penalised)(vector)


def _optimum(problem: Problem, start: Sites, tolerance: Any) -> engine.GaussianState:
    first = engine.state_of(problem, start)
    return stretch(engine.step, problem, first, tolerance, _ITERATIONS, _ITERATIONS).state


@compiled
def _evaluate(given: _Given, vector: Array, pivots: tuple[Pivots, ...], start: Sites, keys: Array) -> _Point:
    """The corrected Gaussian at a point, and the weights of its draws, one a key."""
    problem = given.problem(vector, pivots)
    state = _optimum(problem, start, _TOLERANCE)
    posterior, response, is_positive = _corrected(problem, state.sites)
    still = jnp.zeros(len(response))
    proposal = move(posterior, still, response, _SHARE)
    likelihood = given.model.likelihood
    formula = likelihood.formula(given.model.num_latents)

    def weigh(keys: Array) -> Array:
        noise = jax.vmap(lambda key: jax.random.normal(key, proposal.centre.shape))(keys)
        f, log_ratio = proposal.place(keys, noise)
        terms = formula.log_evaluate(Environment(given.y, f, problem.parameters))[..., 0]
        return log_ratio + jnp.sum(of_data(given.live, terms.T), axis=0)

    log_ratios = jax.lax.map(weigh, keys.reshape(-1, _AT_A_TIME)).ravel()
    mean, covariance = corrected_moments(posterior, still, response)
    log_prior = given.unknowns.log_prior_unconstrained(vector)
    return _Point(state.sites, mean, covariance, state.elbo, log_ratios + log_prior, is_positive)


def _corrected(problem: Problem, sites: Sites) -> tuple[Any, Array, Array]:
    """The posterior that sites imply, what linear response adds, zero where it is no covariance; whether it is one."""
    posterior, predictors = problem.condition(sites), problem.objective.predictors
    Phi = None if predictors is None else predictors.matrix(problem.y, problem.parameters)
    found = linear_response(
        problem.objective, problem.joint, posterior, Phi, problem.y, problem.live, problem.parameters
    )
    is_positive = jnp.all(jnp.isfinite(jnp.linalg.cholesky(found.kept))) & jnp.isfinite(found.residual)
    return posterior, jnp.where(is_positive, found.covariance, 0.0), is_positive


@compiled
def _marginals(
    given: _Given, vector: Array, pivots: tuple[Pivots, ...], mean: Array, covariance: Array
) -> tuple[Array, Array | None, tuple[Array, Array]]:
    """Variances (n, L) of the latents before any data, and of these what inducing inputs leave, None without any.

    And moments (n, P) of predictors where latents have the means and covariances given.
    """
    problem = given.problem(vector, pivots).apart()
    return problem.prior.marginals()[1], problem.prior.residual_variances(), problem.of_latents(mean, covariance)


@compiled
def _predict(
    given: _Given, vector: Array, pivots: tuple[Pivots, ...], sites: Sites, X_new: Array
) -> tuple[Array, Array, Array]:
    """Means (m, L) and covariances (m, L, L) of the latents at new inputs, with the correction and without it."""
    posterior, response, _ = _corrected(given.problem(vector, pivots), sites)
    _, added = added_moments(posterior.prior.factors_at(X_new), jnp.zeros(len(response)), response)
    if isinstance(posterior, CoupledPosterior):
        mean, covariance = posterior.marginals_at(X_new)
    else:
        mean, variance = posterior.predict(X_new)
        covariance = jax.vmap(jnp.diag)(variance)
    return mean, covariance + added, covariance


@compiled
def _predict_jointly(
    given: _Given, vector: Array, pivots: tuple[Pivots, ...], sites: Sites, X_new: Array
) -> tuple[Array, Array]:
    """Means (m, L) and the joint covariance (L, m, L, m) of the latents at new inputs."""
    posterior, response, _ = _corrected(given.problem(vector, pivots), sites)
    return posterior.predict(X_new)[0], joint_covariance(posterior, X_new, response)


class _Search:
    """The bound with the log prior, negative, with its gradient; q of the best point so far starts the next."""

    def __init__(self, given: _Given, start: Sites):
        self.given, self.sites = given, start
        self.best, self.vector = math.inf, given.unknowns.start()
        self.slope = np.full(len(self.vector), math.inf)

    def __call__(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        sites, bound, slope = _ascend(self.given, vector, self.given.pivots(vector), self.sites, _MODE_TOLERANCE)
        value, gradient = -float(bound), -np.asarray(slope)
        if not (math.isfinite(value) and np.isfinite(gradient).all()):
            # A bowl about the best point sends a line search back.
            away, height = vector - self.vector, 1.0 + abs(self.best)
            return (self.best + height, 2.0 * height * away / (away @ away)) if away.any() else (math.inf, away)
        if value <= self.best:
            self.best, self.vector, self.slope, self.sites = value, np.array(vector), gradient, sites
        return value, gradient


@double_precision
@one_thread_if_small
def integrate(
    model: Model,
    X: Any,
    y: Any,
    *,
    weights: Any = None,
    num_draws: int = _DRAWS,
    seed: int = 0,
    progress: bool | None = None,
) -> IntegratedApproximation:
    """The posterior with the hyperparameters that have priors integrated out, without sampling; any formula.

    X (n, d), y (n,) or (n, columns), ``weights`` (n,) as in ``cavi``. At points about the mode of the hyperparameters,
    a grid for up to three numbers and a central composite design for more, the latents' posterior is that of
    ``gaussian_vi`` with linear response, and the evidence is weighed with ``num_draws`` draws of it, made from
    ``seed``, the same at all points. What has no prior is held. Warns with EvidenceWarning where the points do not hold
    the mass, or weights are not reliable. A grid has further points until the density that is interpolated between them
    agrees with it at fresh ones. Raises ValueError where it cannot, for bad data, where nothing has a prior, and for
    priors on parameters of a formula that may leave out a factor that depends on them.
    Source: Rue, Martino and Chopin 2009.
    """
    begin = time.perf_counter()
    model, data = require_model(model).given(X, y, weights)
    check_whole_number(num_draws, "num_draws", _AT_A_TIME)
    seed = as_seed(seed)
    model = settled(model.resolve(data.X), data, engine.nearly_converged)
    unknowns = checked_unknowns(model)
    if not unknowns.places:
        raise ValueError(
            "integrate: nothing in the model has a prior, so there is nothing to integrate out. Give hyperparameters "
            "NumPyro distributions, as in pgm.RBF(variance=numpyro.distributions.LogNormal(0.0, 1.0)), or take "
            "pgm.correct(pgm.gaussian_vi(model, X, y))."
        )
    return _Integration(model, data, unknowns, num_draws, seed).run(begin, progress)


class _Integration:
    """One call of ``integrate``: the points seen so far, and what is made of them."""

    def __init__(self, model: Model, data: Data, unknowns: Unknowns, num_draws: int, seed: int):
        self.model, self.data, self.unknowns = model, data, unknowns
        problem = engine.gaussian_problem(model, data, model.compiled_prior(data.X))
        problem, found = engine.optimise(problem, engine.start_state(model, data, problem), 1e-6, 200)
        if not np.isfinite(float(found.state.elbo)):
            raise ValueError("integrate: the ELBO is not finite at the start values. Give others, nearer to the data.")
        self.given = given_of(model, data.X, data.y, unknowns, problem.joint)
        self.first = found.state.sites
        count = -(-num_draws // _AT_A_TIME) * _AT_A_TIME
        self.keys = jax.random.split(jax.random.key(seed), count)
        self.mode, self.axes = unknowns.start(), np.eye(len(unknowns.start()))
        self.points: list[_Point] = []
        self.usable: list[bool] = []
        self.k_hats: list[float] = []

    def run(self, begin: float, progress: bool | None) -> IntegratedApproximation:
        """Mode, points, and the result."""
        size = len(self.mode)
        with progress_bar("integrate", 100, progress) as bar:
            converged = self._find_mode(bar)
            density, spread = partial(self._density, bar), grid_support if size in SPACINGS else composite_support
            design = refined(density, grid(density, size)) if size in SPACINGS else composite(density, size)
        kept = np.isfinite(design.log_densities)
        if not kept[0]:
            raise ValueError("integrate: no finite evidence at the mode. Give priors that are nearer to the data.")
        support = spread(design)
        points = [point for point, own in zip(self.points, kept, strict=True) if own]
        k_hats, limit = np.array(self.k_hats)[kept], min(1.0 - 1.0 / np.log10(len(self.keys)), 0.7)
        unreliable = float(support.weights[k_hats > limit].sum())
        self._warn(design, converged, unreliable)
        heaviest = int(np.argmax(support.weights))
        self._check(self._vectors(design.points[kept][heaviest]), points[heaviest])
        middle = [np.asarray(value) for value in self.unknowns.constrain(self.mode)]
        model = self.unknowns.with_values(middle)
        self._warn_inaccurate(model)
        n = len(self.data.y)
        means, covariances, potentials, precisions = (
            np.stack([np.asarray(part)[:n] for part in parts])
            for parts in zip(*((point.mean, point.covariance, *point.sites) for point in points), strict=True)
        )
        return IntegratedApproximation(
            model=model,
            X=self.data.X,
            y=self.data.y,
            columns=self.data.columns,
            seconds=time.perf_counter() - begin,
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
            holds_mass=design.is_whole,
            num_failed=int(np.sum(~kept)),
            unreliable=unreliable,
        )

    def _find_mode(self, bar: ProgressBar) -> bool:
        """Set the mode and the axes of standardised coordinates; whether the search converged."""
        from scipy.optimize import minimize

        search = _Search(self.given, self.first)
        options = {"maxiter": _MODE_STEPS, "ftol": 1e-6, "gtol": 1e-2}
        found = minimize(search, self.mode, jac=True, method="L-BFGS-B", options=options,
                         callback=lambda x: bar.advance(1, "mode"))  # fmt: skip
        if not math.isfinite(search.best):
            raise ValueError("integrate: the ELBO has no finite gradient at the start values. Give others.")
        converged = bool(found.success) or float(np.max(np.abs(search.slope))) < _NEAR
        self.mode, self.first = search.vector, search.sites
        steps = _STEP * np.eye(len(self.mode))
        differences = [search(self.mode + step)[1] - search(self.mode - step)[1] for step in steps]
        H = np.array(differences) / (2.0 * _STEP)
        values, vectors = np.linalg.eigh(0.5 * (H + H.T))
        self.axes = vectors / np.sqrt(np.maximum(values, _LEAST_CURVATURE))
        return converged

    def _vectors(self, points: np.ndarray) -> np.ndarray:
        """The unconstrained hyperparameters of standardised coordinates."""
        return self.mode + points @ self.axes.T

    def _density(self, bar: ProgressBar, point: np.ndarray, near: int | None) -> float:
        """The log posterior of the hyperparameters at standardised coordinates, up to the log evidence."""
        start = self.first if near is None or not self.usable[near] else self.points[near].sites
        vector = as_array(self._vectors(point))
        found = _evaluate(self.given, vector, self.given.pivots(vector), start, self.keys)
        ratios = np.asarray(found.log_ratios)
        usable = bool(np.isfinite(ratios).all())
        weights = smoothed(ratios) if usable else None
        self.points.append(found)
        self.usable.append(usable)
        self.k_hats.append(math.inf if weights is None else weights.k)
        bar.advance(1, f"point {len(self.points)}")
        return -math.inf if weights is None else weights.log_mean

    def _check(self, vector: np.ndarray, point: _Point) -> None:
        """Raise ValueError where a variance at a point is none that a posterior has; warn of few inducing inputs."""
        prior, residual, (m, v) = _marginals(
            self.given, as_array(vector), self.given.pivots(vector), point.mean, point.covariance
        )
        variance = jnp.diagonal(point.covariance, axis1=1, axis2=2)
        model = self.unknowns.with_values([np.asarray(value) for value in self.unknowns.constrain(as_array(vector))])
        n = len(self.data.y)
        check_against_prior(
            "integrate", model, self.data.y, np.asarray(prior)[:n], np.asarray(variance)[:n], lambda: (m[:n], v[:n])
        )
        if residual is not None:
            told = precisions(self.given.objective.predictors, point.sites, self.given.y, model.parameters)
            warn_left_out(model, self.data.X, np.asarray(residual)[:n], told[:n], np.asarray(variance)[:n])

    def _warn_inaccurate(self, model: Model) -> None:
        """Say where the prior is not held to the digits that the data ask for, at the mode, where the model is."""
        dense = None in self.given.pivots(self.mode)
        prior = model.compiled_prior(self.data.X) if dense else model.prior(self.data.X)
        problem = engine.gaussian_problem(model, self.data, prior)
        warn_inaccurate(problem.prior, problem.largest_precision(self.points[0].sites))

    def _warn(self, design: Design, converged: bool, unreliable: float) -> None:
        """Say what is not as it should be."""
        if not converged:
            warn(
                "integrate: the search for the mode of the hyperparameters stopped early; the points are about where "
                "it stopped. Give priors to what the data do not determine, or start values nearer to it.",
                ConvergenceWarning,
            )
        if not design.is_whole:
            warn(
                "integrate: the points do not hold the mass of the hyperparameters: it goes on beyond them. Give "
                "narrower priors, or draw with gibbs.",
                EvidenceWarning,
            )
        if design.error > _MOST_ERROR:
            raise ValueError(
                "integrate: the density of the hyperparameters falls off too sharply to be interpolated: between the "
                f"{len(design.points)} points it is off by {design.error:.2g} nats where its mass is. Give narrower "
                "priors, or draw with gibbs."
            )
        if design.error:
            warn(
                "integrate: between the points the density of the hyperparameters is interpolated roughly: the log "
                f"evidence may be off by {design.error:.2g} nats. Give narrower priors, or draw with gibbs.",
                EvidenceWarning,
            )
        failed = len(self.usable) - sum(self.usable)
        if failed:
            warn(
                f"integrate: {failed} of {len(self.usable)} points gave no finite evidence and are left out: nothing "
                "is known of the posterior there.",
                EvidenceWarning,
            )
        if unreliable > _BORNE:
            warn(
                "integrate: Pareto k-hat of the evidence's weights is above its limit at points with "
                f"{unreliable:.0%} of the mass: the corrected Gaussian misses too much of the posterior there. Compare "
                "with draws of gibbs.",
                EvidenceWarning,
            )


def given_of(model: Model, X: np.ndarray, y: np.ndarray, unknowns: Unknowns, joint: bool) -> _Given:
    """What the points of a resolved model and checked data share."""
    objective = engine.quadrature_of(model)
    inputs, live = model.filled(X)
    observed = as_array(y if live is None else resize_rows(y, len(live)))
    return _Given(objective, unknowns, joint, model.bare(), inputs, observed, live)


@generic.moments_at.register(IntegratedApproximation)
@double_precision
def moments_at(result: IntegratedApproximation, X_new: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means (K, m, L) and covariances (K, m, L, L) of the latents at new inputs, corrected and not, at each point."""
    given, inputs = _given_again(result), as_array(resize_rows(X_new, filled_size(len(X_new))))
    parts = [_predict(given, *_place(result, given, k), inputs) for k in range(len(result.shares))]
    means, covariances, plain = (
        np.stack([np.asarray(part)[: len(X_new)] for part in found]) for found in zip(*parts, strict=True)
    )
    return means, covariances, plain


@generic.joint_moments_at.register(IntegratedApproximation)
@double_precision
def joint_moments_at(result: IntegratedApproximation, X_new: np.ndarray, point: int) -> tuple[np.ndarray, np.ndarray]:
    """Means (m, L) and the joint covariance (L, m, L, m) of the latents at new inputs, at one point."""
    given = _given_again(result)
    found = _predict_jointly(given, *_place(result, given, point), as_array(X_new))
    return np.asarray(found[0]), np.asarray(found[1])


def _given_again(result: IntegratedApproximation) -> _Given:
    """What the points of a result share."""
    return given_of(result.model, result.X, result.y, checked_unknowns(result.model), result.precision.ndim == 4)


def _place(result: IntegratedApproximation, given: _Given, point: int) -> tuple[Array, tuple[Pivots, ...], Sites]:
    """The hyperparameters, the pivots and the sites of a point, at the rows of what is given."""
    parts = (resize_zeros(part[point], len(given.y)) for part in (result.potential, result.precision))
    vector = as_array(result.vectors[point])
    return vector, given.pivots(vector), Sites(*map(as_array, parts))
