"""The bound as a function of the unconstrained parameters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pgmodels.inference.loop import MANY, Ascent, LoopState, VariationalState, run_block, without_bound
from pgmodels.inference.prepare import (
    SHARPER,
    SHARPEST,
    TURNS,
    Inputs,
    choose_inputs,
    count_inputs,
    couples,
    engine_of,
    is_automatic,
    is_signed_apart,
    nearly_converged,
    same_inputs,
    selecting,
    state_from,
    takes_every_choice,
    warn_limited,
    with_inputs,
    without_inputs,
)
from pgmodels.inference.problem import Problem, are_few_rows, precisions, separate_blocks
from pgmodels.model import Data, Groups, Model, Points, coefficient_groups, padded_data
from pgmodels.objectives.base import Objective
from pgmodels.parameters.vector import ParameterVector
from pgmodels.priors.base import Sites, masked, pad_sites
from pgmodels.priors.collection import MAX_BLOCK, PriorCollection, have_factors
from pgmodels.priors.dense import InducingPoints
from pgmodels.priors.inducing import ENOUGH, inducing_points_at
from pgmodels.priors.linalg import RANK_MULTIPLE, TOLERANCE
from pgmodels.priors.rows import DistinctInputs
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.precision import Module, as_array

# From this many rows on (times latents, if coupled), compiling one program per rank is cheaper than hundreds of dense
# factorisations.
MANY_ROWS = 600


class ProblemFamily(Module):
    """The problem at each value of an unconstrained vector of hyperparameters.

    ``model`` is the model without priors, ``inputs``, ``y`` and ``row_weights`` are the padded data. ``fixed_groups``
    has the priors of groups with fixed kernels, whose means may vary, None for the others. ``coupled`` is whether sites
    couple the predictors of a datum, None to couple them if that is affordable. Priors have factors if
    ``needs_factors`` or if sites or predictors couple the latents; otherwise they give moments only. ``floor`` is the
    ``floor`` of the problems.
    """

    objective: Objective = eqx.field(static=True)
    parameters: ParameterVector
    model: Model
    inputs: DistinctInputs
    y: Array
    row_weights: Array | None
    fixed_groups: Groups = ()
    coupled: bool | None = eqx.field(static=True, default=None)
    needs_factors: bool = eqx.field(static=True, default=False)
    floor: float = eqx.field(static=True, default=0.0)

    def model_at(self, vector: Array | np.ndarray) -> Model:
        """Return the model without priors at the values of a vector."""
        return self.parameters.apply(self.model, vector)

    def prior_at(self, vector: Array, points: Points = ()) -> PriorCollection:
        """Return the prior at the values of a vector, given the inducing points of groups that have them."""
        needed = self.needs_factors or combines_latents(self.objective) or is_signed_apart(self.objective)
        model = self.model_at(vector)
        return model.prior(self.inputs, traced=True, known=self.fixed_groups, points=points, for_moments=not needed)

    def problem(self, vector: Array, points: Points) -> Problem:
        """Return the problem at the values of a vector."""
        model, prior, coupled = self.model_at(vector), self.prior_at(vector, points), self.coupled
        if coupled is None:
            # By the number of rows, not the current rank: the shapes of q(f) must stay the same from call to call.
            ranks = [
                len(at.Z) if at and gp.form.num_inputs else len(X)
                for gp, at, X in zip(model.gps, points, self.inputs.X, strict=True)
                for _ in range(gp.size)
            ]
            blocks = [range(len(ranks))] if couples(self.objective) else separate_blocks(self.objective)
            wanted = couples(self.objective) or is_signed_apart(self.objective)
            total = max(sum(ranks[latent] for latent in block) for block in blocks)
            coupled = wanted and have_factors(prior) and total <= MAX_BLOCK
        return Problem(self.objective, prior, self.y, model.parameters, coupled, self.row_weights, self.floor)


def combines_latents(objective: Objective) -> bool:
    """Return whether predictors or sites couple the latents, whose priors then need factors."""
    return objective.predictors is not None or couples(objective)


def points_at(
    objective: Objective, model: Model, distinct: Sequence[np.ndarray], inputs: Sequence[np.ndarray | None]
) -> Points:
    """Return the inducing points of groups with inducing ``inputs``, else the pivots of groups of low-rank form.

    Pivots are chosen at the model's hyperparameters, and only if there are enough rows for a low-rank form to be
    faster.
    """
    none = (None,) * len(model.gps)
    if any(Z is not None for Z in inputs):
        pairs = zip(model.gps, inputs, strict=True)
        return tuple(None if Z is None else inducing_points_at(gp.kernel, Z) for gp, Z in pairs)
    counts = list(map(len, distinct))
    many = max(counts)
    if combines_latents(objective):
        many = sum(n * gp.size for n, gp in zip(counts, model.gps, strict=True))
    if many < MANY_ROWS:
        return none
    points: list[InducingPoints | None] = []
    for gp, X in zip(model.gps, distinct, strict=True):
        pivots = None if gp.form.is_exact(gp.kernel, X) else gp.form.pivots(gp.kernel, X)
        if pivots is None:
            points.append(None)
            continue
        # The rank is padded to a multiple of 128 where a program, a second or two, takes longer than the padding: of
        # 4,000 rows a hundred sweeps with 64 more coordinates take half a second. The rank of a line, or of a few
        # groups, is the same at all hyperparameters.
        steps = len(pivots.Z) > RANK_MULTIPLE and len(X) <= 4000
        more = -len(pivots.Z) % 128 if steps else 0
        Z, active = np.pad(pivots.Z, ((0, more), (0, 0)), mode="edge"), np.pad(pivots.active, (0, more))
        points.append(InducingPoints(*map(as_array, (Z, active, 0.0))))
    return tuple(points)


# The inner loop must be much closer to its optimum than the outer steps resolve, since the envelope theorem gives the
# gradient only at the optimum.
TIGHT = 1e-11
# A change of the bound that matters, in nats.
FELT = 0.1


def collapsed_bound(problem: Problem, state: VariationalState) -> Any:
    """Return log Z(θ; h, w) + Σ B, a function of θ with q(f)'s marginals and sites held fixed.

    At the θ of q it is the ELBO plus Σ (h m - w s / 2) with s = v + m². At optimal sites its gradient is the ELBO's.
    Source: math, section 4; Titsias 2009; Passerello 2021, PGPR.
    """
    m, v, sites = jax.lax.stop_gradient((state.mean, state.variance, state.sites))
    if problem.objective.predictors is None and not problem.coupled:
        return problem.moments(sites).log_normalizer + problem.local_bound(m, v)
    # Without the moments, whose program would be as large again.
    return problem.condition(sites).log_normalizer() - problem.floor_loss(sites) + problem.local_bound(m, v)


def takes_slopes(problem: Problem) -> bool:
    """Return whether ``sloped_bound`` holds: for dense priors within 0.8 GB, at the rows if sites couple them."""
    groups, places = problem.prior.groups, problem.prior.copies.places
    if problem.objective.predictors is not None or not all(group.is_dense for group in groups):
        return False
    size = sum(group.size * len(group.X) ** 2 for group in groups)
    return all(place is None for place in places) if problem.coupled else size <= 10**8


def sloped_bound(problem: Problem, state: VariationalState) -> Callable[[Problem], Any]:
    """Return a function with the gradient of ``collapsed_bound`` at the hyperparameters of a problem.

    It uses derivatives of the log normaliser in the prior covariances and means. Derivatives through the roots of
    covariances cost four times as much. They lose digits if potentials are much larger than the sites' gradients.
    """
    posterior: Any = problem.condition(state.sites)
    slopes = jax.lax.stop_gradient(posterior.log_normalizer_slopes())
    m, v, sites = jax.lax.stop_gradient((state.mean, state.variance, state.sites))

    def bound(problem: Problem) -> Any:
        groups: Any = problem.prior.groups
        pairs = zip(groups, slopes, strict=True)
        terms = [jnp.sum(by_covariance * group.K) + by_mean * group.mean for group, (by_covariance, by_mean) in pairs]
        return sum(terms, problem.local_bound(m, v) - problem.floor_loss(sites))

    return bound


def many_rows(family: ProblemFamily, *_: Any) -> bool:
    """Return whether to optimise a compiled function of a family."""
    return not are_few_rows(len(family.y), couples(family.objective), family.objective.num_nodes)


@partial(compiled, static_argnames="moves", optimise=many_rows)
def _ascend(
    family: ProblemFamily, vector: Array, points: Points, start: VariationalState, tolerance: Array | float, moves: bool
) -> tuple[LoopState, Array, tuple[Array, Points], Array]:
    """Optimise q(f): final loop state, bound plus log prior, its gradients, and the floor's loss (``floor_loss``)."""
    problem = family.problem(vector, points)
    ascent = run_block(engine_of(family.objective).step, problem, start, tolerance, MANY, MANY)
    bound: Callable[[Problem], Any] = partial(collapsed_bound, state=ascent.state)
    if takes_slopes(problem):
        bound = sloped_bound(problem, ascent.state)
    log_prior = family.parameters.log_prior_unconstrained

    def penalised(vector: Array, points: Points) -> Array:
        return bound(family.problem(vector, points)) + log_prior(vector)

    floor_loss, none = problem.floor_loss(ascent.state.sites), (None,) * len(points)
    slopes = jax.grad(penalised, (0, 1))(vector, points) if moves else (jax.grad(penalised)(vector, points), none)
    return ascent, ascent.state.elbo + log_prior(vector), slopes, floor_loss


@partial(compiled, optimise=False)
def _start(family: ProblemFamily, vector: Array, points: Points, sites: Sites | None) -> VariationalState:
    problem = family.problem(vector, points)
    return engine_of(family.objective).init(problem) if sites is None else state_from(problem, sites)


@partial(compiled, optimise=many_rows)
def _left_out(family: ProblemFamily, vector: Array, points: Points, weights: Array) -> Array:
    """The gradient of the residual-variance penalty of inducing inputs, in nats, at site precisions (n, latents)."""

    def nats(vector: Array) -> Array:
        residual = family.problem(vector, points).prior.residual_variances()
        if residual is None:
            return jnp.zeros(())
        return 0.5 * jnp.sum(masked(family.row_weights, jnp.maximum(weights, 0.0) * residual))

    return jax.grad(nats)(vector)


class Point(NamedTuple):
    """A vector of hyperparameters with inducing inputs, q(f) there, and the negative bound with its gradients.

    ``points`` are the inducing points of the inputs, or pivots; ``ascent`` led to q(f) at a ``tolerance``. ``value`` is
    the negative bound minus the log prior, ``slope`` its gradient in the vector, ``of_inputs`` that in the inducing
    inputs (M, d) of each group, None where they do not move; ``floor_loss`` is the part of the value that is due to the
    lower limit on variances. A point without a value is one to start from.
    """

    vector: np.ndarray
    inputs: Inputs
    points: Points
    ascent: Ascent
    tolerance: float = np.inf
    value: float = np.inf
    slope: np.ndarray = np.zeros(0)
    of_inputs: Inputs = ()
    floor_loss: float = 0.0

    @property
    def state(self) -> VariationalState:
        """q(f)."""
        return self.ascent.state

    @property
    def rounding(self) -> float:
        """Estimated rounding error of the value."""
        return float(self.state.rounding)

    def is_resolved(self, best: float) -> bool:
        """Return whether the gain over a best value is larger than a rounding error of more than a tenth of a nat."""
        return self.rounding <= max(0.1, best - self.value)


@dataclass(frozen=True, eq=False)
class MarginalBound:
    """The negative log posterior bound as a function of an unconstrained vector, with q(f) at its optimum."""

    learnable: ParameterVector
    data: Data
    family: ProblemFamily
    # The inducing inputs that the forms choose without y.
    inputs: Inputs

    @classmethod
    def of(cls, learnable: ParameterVector, data: Data, objective: Objective | None = None) -> "MarginalBound":
        """Return the bound of a model and data, with the model's augmentation as objective by default."""
        model = learnable.model
        distinct, y, row_weights = padded_data(model, data)
        few = max(map(len, distinct.masked())) < MANY_ROWS
        # Lower limit on a latent's posterior variance, as a share of its prior variance, while likelihood parameters
        # are learned: for noise-free data they would become too small to be distinguished from rounding, 2e-16 of that
        # variance. At the optimum the noise variance is a few times this. With many rows it is the low-rank forms'
        # tolerance.
        floor = (1e-14 if few else TOLERANCE) if learnable.of_likelihood else 0.0
        # Spanning inputs are used only for draws.
        distinct = replace(distinct, spanning=(None,) * len(model.gps))
        bare, coefficients = without_inputs(model).bare(), coefficient_groups(model, data.X)
        terms = objective or model.augmentation
        family = ProblemFamily(terms, learnable, bare, distinct, y, row_weights, coefficients, floor=floor)
        return cls(learnable, data, family, choose_inputs(model, data.X))

    def at(
        self,
        vector: np.ndarray,
        start: Point | None = None,
        tolerance: float = TIGHT,
        inputs: Inputs | None = None,
        moves: bool = False,
        sites: Sites | None = None,
    ) -> Point | None:
        """Return the bound at a vector; None if it, a gradient or the kernel matrix is not finite.

        Optimises q(f) to a tolerance, from q(f) at the point ``start``, from ``sites`` of the first rows, or from the
        engine's initial state. ``inputs`` are the inducing inputs, by default the same as at ``start``; their gradient
        is computed if they move.
        """
        if inputs is None:
            inputs = self.inputs if start is None else start.inputs
        try:
            points = self.points(vector, inputs, start)
        except ValueError:
            # The kernel matrix is not finite or not positive at these hyperparameters.
            return None
        # The bound of ``start`` belongs to other hyperparameters.
        state = self.initial(vector, points, sites) if start is None else without_bound(start.state)
        if tolerance <= 1e-8:
            # Steps recorded at other hyperparameters stop the inner loop too early.
            state = state._replace(memory=jax.tree.map(np.zeros_like, state.memory))
        loop, bound, slopes, floor_loss = _ascend(self.family, as_array(vector), points, state, tolerance, moves)
        pairs = zip(slopes[1], inputs, strict=True)
        of_inputs = tuple(None if at is None or Z is None else -np.asarray(at.Z)[: len(Z)] for at, Z in pairs)
        value, slope = -float(bound), -np.asarray(slopes[0])
        if not all(np.isfinite(part).all() for part in (value, slope, *of_inputs) if part is not None):
            return None
        ascent = Ascent(loop.state, np.asarray(loop.trace)[: int(loop.num_steps)], bool(loop.converged))
        return Point(np.array(vector), inputs, points, ascent, tolerance, value, slope, of_inputs, float(floor_loss))

    def points(self, vector: np.ndarray, inputs: Inputs, near: Point | None = None) -> Points:
        """Return the inducing points at a vector; ValueError if the kernel matrix is not finite or positive there."""
        # Low-rank forms are not tried near a vector at which no group has one.
        is_dense = near is not None and all(at is None for at in (*near.points, *inputs))
        if near is not None and is_dense and np.max(np.abs(vector - near.vector), initial=0.0) < 0.5:
            return near.points
        return points_at(self.family.objective, self.family.model_at(vector), self.family.inputs.masked(), inputs)

    def initial(self, vector: np.ndarray, points: Points, sites: Sites | None = None) -> VariationalState:
        """Return the state of ``sites`` of the first rows if its bound is finite, else the engine's start."""
        if sites is not None:
            state = _start(self.family, as_array(vector), points, pad_sites(sites, len(self.family.y)))
            if np.isfinite(float(state.elbo)):
                return state
        return _start(self.family, as_array(vector), points, None)

    def model_at(self, vector: np.ndarray) -> Model:
        """Return the model at the values of an unconstrained vector."""
        return self.learnable.with_values(self.learnable.constrain(vector))

    def left_out_slope(self, point: Point) -> np.ndarray:
        """Return the gradient of the residual-variance penalty at a point, in nats; 0 without inducing inputs."""
        if all(Z is None for Z in point.inputs):
            return np.zeros_like(point.vector)
        parameters = self.model_at(point.vector).parameters
        weights = precisions(self.family.objective, point.state.sites, self.family.y, parameters)
        return np.asarray(_left_out(self.family, as_array(point.vector), point.points, as_array(weights)))


class Selection(NamedTuple):
    """Progress of the choice of inducing inputs: a factor of the precisions, the number of choices, the last value."""

    sharpness: float = 1.0
    num_choices: int = 0
    before: float = np.inf


def choose_again(
    bound: MarginalBound, best: Point, selection: Selection, tolerance: float = 1e-5
) -> tuple[Point, Selection, bool]:
    """Reselect inducing inputs at the hyperparameters and site precisions of a point.

    Returns the better point, the progress, and whether the search continues: if the bound rises by more than a relative
    tolerance. Forms that replace their inputs at every selection keep the new ones whatever the bound.
    """
    if all(Z is None for Z in best.inputs):
        return best, selection, False
    model, X = bound.model_at(best.vector), bound.data.X
    is_auto, first = is_automatic(bound.learnable.model), best.value
    limit = tolerance * (1.0 + abs(first))
    limit = min(limit, ENOUGH) if is_auto else limit
    objective, by = bound.family.objective, selecting(model, bound.family.objective)
    if by == objective:
        site_precisions = precisions(by, best.state.sites, bound.family.y, model.parameters)
    else:
        site_precisions = nearly_converged(with_inputs(model, best.inputs), bound.data, by)[1]
    if takes_every_choice(model):
        return _take_choice(bound, best, selection, choose_inputs(model, X, site_precisions), limit)
    tried, sharpness = best.inputs, selection.sharpness
    for _ in range(TURNS):
        chosen = choose_inputs(model, X, sharpness * site_precisions)
        if same_inputs(chosen, best.inputs):
            warn_limited(bound.learnable.model, chosen, X, sharpness * site_precisions)
            break
        sharpness = min(sharpness * SHARPER, SHARPEST)
        if same_inputs(chosen, tried):
            continue
        tried = chosen
        candidate = bound.at(best.vector, best, inputs=chosen)
        if candidate is not None and not candidate.is_resolved(best.value):
            candidate = None
        gain = -np.inf if candidate is None else best.value - candidate.value
        # As in ``select_inducing_inputs``: no gain from fewer inputs does not imply none from more.
        more = is_auto and count_inputs(chosen) > count_inputs(best.inputs)
        if candidate is not None and gain > (limit if more else 0.0):
            best = candidate
        if gain > limit or more or not is_auto:
            break
    return best, selection._replace(sharpness=sharpness), first - best.value > limit


def _take_choice(
    bound: MarginalBound, best: Point, selection: Selection, chosen: Inputs, limit: float
) -> tuple[Point, Selection, bool]:
    """Replace the inducing inputs at most TURNS times, until they settle (Passerello 2021, section 3.3.2)."""
    settled = abs(best.value - selection.before) <= limit
    if settled or selection.num_choices == TURNS or same_inputs(chosen, best.inputs):
        return best, selection, False
    selection = selection._replace(num_choices=selection.num_choices + 1, before=best.value)
    # Any finite value replaces the best one, which belongs to other inputs.
    candidate = bound.at(best.vector, best, inputs=chosen)
    return (best, selection, False) if candidate is None else (candidate, selection, True)
