"""The bound as a function of the unconstrained parameters."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pgmodels.inference.cavi import ascend_expanded, can_expand, expanded_bound, expansions_at, is_simple
from pgmodels.inference.inducing_selection import (
    SHARPER,
    SHARPEST,
    TURNS,
    Inputs,
    choose_inputs,
    count_inputs,
    is_automatic,
    same_inputs,
    takes_every_choice,
    warn_limited,
    with_inputs,
    without_inputs,
)
from pgmodels.inference.loop import MANY, Ascent, LoopState, VariationalState, run_block, without_bound
from pgmodels.inference.problem import Problem, are_few_rows, precisions, separate_blocks
from pgmodels.inference.vi import couples, engine_of, is_signed_apart, nearly_converged, selecting
from pgmodels.model import Data, Groups, Model, Points
from pgmodels.numerics.elementary import barrier
from pgmodels.objectives.base import Objective
from pgmodels.parameters.vector import ParameterVector
from pgmodels.priors.base import masked
from pgmodels.priors.collection import MAX_BLOCK, PriorCollection
from pgmodels.priors.dense import InducingPoints
from pgmodels.priors.inducing import ENOUGH, inducing_points_at
from pgmodels.priors.linalg import RANK_MULTIPLE, TOLERANCE
from pgmodels.priors.rows import DistinctInputs
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.precision import Module, as_array

# From this many rows on (times latents, if coupled), compiling one program per rank is cheaper than hundreds of dense
# factorisations.
MANY_ROWS = 600
# Above this share of the rows, a dozen low-rank factorisations take longer than a few dense ones, unless the rank is at
# most _SMALL_RANK.
_SHARE_OF_ROWS, _SMALL_RANK = 0.25, 64
# Ranks are padded to multiples of _RANK_STEP up to _SHORT_SWEEPS rows: a program takes a second or two, a hundred
# sweeps with 64 more coordinates half a second.
_RANK_STEP, _SHORT_SWEEPS = 128, 4000


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

    @property
    def has_few_rows(self) -> bool:
        return are_few_rows(len(self.y), couples(self.objective), self.objective.num_nodes)

    def model_at(self, vector: Any) -> Model:
        """The model without priors at the values of a vector."""
        return self.parameters.apply(self.model, vector)

    def prior_at(self, vector: Array, points: Points = ()) -> PriorCollection:
        """The prior at the values of a vector, given the inducing points of groups that have them."""
        needed = self.needs_factors or combines_latents(self.objective) or is_signed_apart(self.objective)
        model = self.model_at(vector)
        return model.traced_prior(self.inputs, self.fixed_groups, points=points, for_moments=not needed)

    def problem(self, vector: Array, points: Points) -> Problem:
        """The problem at the values of a vector."""
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
            coupled = wanted and prior.factored and total <= MAX_BLOCK
        return Problem(self.objective, prior, self.y, model.parameters, coupled, self.row_weights, self.floor)


def combines_latents(objective: Objective) -> bool:
    """Whether predictors or sites couple the latents, whose priors then need factors."""
    return objective.predictors is not None or couples(objective)


def points_at(
    objective: Objective, model: Model, distinct: Sequence[np.ndarray], inputs: Sequence[np.ndarray | None]
) -> Points:
    """The inducing points of groups with inducing ``inputs``, else the pivots of groups that have a low-rank form.

    Pivots are chosen at the model's hyperparameters, and only if there are enough rows for a low-rank form to be
    faster. Where dense groups have sweeps with fewer factorisations, all groups have pivots or none has.
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
    expands = objective.is_monotone and is_simple(objective)
    for gp, X in zip(model.gps, distinct, strict=True):
        if gp.form.has_coefficients(gp.kernel, X):
            points.append(None)
            continue
        most = max(_SMALL_RANK, _SHARE_OF_ROWS * len(X)) if expands else np.inf
        group = gp.form.low_rank(gp.kernel, gp.mean.value, X, gp.size)
        is_low = group is not None and group.rank <= most
        if expands and not is_low:
            return none
        if group is None or not is_low:
            points.append(None)
            continue
        # The rank is padded where a program takes longer than the padding. The rank of a line, or of a few groups, is
        # the same at all hyperparameters.
        steps = group.rank > RANK_MULTIPLE and len(group.X) <= _SHORT_SWEEPS
        more = -group.rank % _RANK_STEP if steps else 0
        Z, active = np.pad(group.Z, ((0, more), (0, 0)), mode="edge"), np.pad(group.active, (0, more))
        points.append(InducingPoints(*map(as_array, (Z, active, 0.0))))
    return tuple(points)


# The inner loop must be much closer to its optimum than the outer steps resolve, since the envelope theorem gives the
# gradient only at the optimum.
TIGHT = 1e-11
# Below this tolerance, discard the Anderson history: steps recorded at other hyperparameters stop the inner loop too
# early.
_CAREFUL = 1e-8
# Low-rank forms are not tried within this distance of a vector at which some group has none.
_FAR = 0.5
# Lower limit on a latent's posterior variance, as a share of its prior variance, while likelihood parameters are
# learned: for noise-free data they would become too small to be distinguished from rounding, 2e-16 of that variance. At
# the optimum the noise variance is a few times this. With many rows it is the low-rank forms' tolerance.
_FLOOR = 1e-14


# Tolerated rounding error of a value, in nats.
_NATS = 0.1
# A change of the bound that matters, in nats.
FELT = 0.1


def collapsed_bound(problem: Problem, state: VariationalState) -> Any:
    """log Z(θ; h, w) + Σ B with q(f)'s marginals and sites fixed: the ELBO as a function of θ plus Σ (h m - w s / 2).

    Source: math, section 4; Titsias 2009; Passerello 2021, PGPR. At the optimal sites its gradient is the full one.
    """
    m, v, sites = jax.lax.stop_gradient((state.mean, state.variance, state.sites))
    return problem.moments(sites).log_normalizer + problem.local_bound(m, v)


def takes_slopes(problem: Problem) -> bool:
    """Whether ``sloped_bound`` holds: sites couple latents, whose priors are dense, at the rows themselves."""
    groups, places = problem.prior.groups, problem.prior.copies.places
    is_plain = all(group.is_dense for group in groups) and all(place is None for place in places)
    return problem.coupled and problem.objective.predictors is None and is_plain


def sloped_bound(problem: Problem, state: VariationalState) -> Callable[[Problem], Any]:
    """A function with the gradient of ``collapsed_bound`` at the hyperparameters of a problem.

    From the derivatives of the log normaliser in the prior covariances and means: differentiating through the roots of
    covariances takes four times as long.
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
    """Whether to optimise a compiled function of a family."""
    return not family.has_few_rows


@partial(compiled, static_argnames="moves", optimise=many_rows)
def _ascend(
    family: ProblemFamily, vector: Array, points: Points, start: VariationalState, tolerance: Any, moves: bool
) -> tuple[LoopState, Array, tuple[Array, Points], Array]:
    """Optimise q(f): final loop state, bound plus log prior, its gradients, and the floor's loss (``floor_loss``).

    The gradients are in the vector and, if inducing inputs move, in the inducing points.
    """
    problem = family.problem(vector, points)
    if family.objective.is_monotone and not family.has_few_rows and can_expand(problem):
        ascent, expanded = ascend_expanded(problem, start, tolerance, MANY)
        bound: Callable[[Problem], Any] = partial(expanded_bound, state=expanded.state, expansions=expanded.expansions)
    else:
        ascent = run_block(engine_of(family.objective).step, problem, start, tolerance, MANY, MANY)
        bound = partial(collapsed_bound, state=ascent.state)
        if takes_slopes(problem):
            bound = sloped_bound(problem, ascent.state)
        elif can_expand(problem):
            bound = partial(expanded_bound, state=ascent.state, expansions=expansions_at(problem, ascent.state.sites))

    log_prior = family.parameters.log_prior_unconstrained

    def penalised(vector: Array, points: Points) -> Array:
        return bound(family.problem(vector, points)) + log_prior(vector)

    floor_loss, none = problem.floor_loss(ascent.state.sites), (None,) * len(points)
    slopes = jax.grad(penalised, (0, 1))(vector, points) if moves else (jax.grad(penalised)(vector, points), none)
    return ascent, ascent.state.elbo + log_prior(vector), slopes, floor_loss


def _ascent_of(loop: LoopState) -> Ascent:
    return Ascent(loop.state, np.asarray(loop.trace)[: int(loop.num_steps)], bool(loop.converged))


@partial(compiled, optimise=False)
def _start(family: ProblemFamily, vector: Array, points: Points) -> VariationalState:
    return engine_of(family.objective).init(family.problem(vector, points))


@partial(compiled, optimise=many_rows)
def _left_out(family: ProblemFamily, vector: Array, points: Points, weights: Array) -> Array:
    """The gradient of the residual-variance penalty of inducing inputs, in nats, at site precisions (n, latents)."""

    def nats(vector: Array) -> Array:
        residual = family.problem(vector, points).prior.residual_variances()
        if residual is None:
            return jnp.zeros(())
        return 0.5 * jnp.sum(masked(family.row_weights, jnp.maximum(weights, 0.0) * residual))

    return jax.grad(nats)(vector)


class Evaluation(NamedTuple):
    """Final loop state of q(f), value, gradient in the vector, loss due to the variances' lower limit.

    ``of_inputs`` has the gradient in the inducing inputs (M, d) of each group, None if they do not move.
    """

    loop: LoopState
    value: float
    slope: np.ndarray
    floor_loss: float
    of_inputs: Inputs


class MarginalBound:
    """The negative log posterior bound of an unconstrained vector, with its gradient; keeps q(f) between calls.

    ``best`` is the smallest value so far, at ``vector``. If the bound or its gradient is not finite, or an improvement
    is within a rounding error of more than a tenth of a nat, ``barrier`` is returned instead, which sends a line search
    back to ``vector``. ``floor_loss`` is the loss of the best value due to the lower limit on variances.
    """

    def __init__(self, learnable: ParameterVector, data: Data, objective: Objective | None = None):
        self.learnable, self.data, self.X = learnable, data, data.X
        model = learnable.model
        self.inputs = choose_inputs(model, data.X)
        self.automatic, self.sharpness = is_automatic(model), 1.0
        terms = objective or model.augmentation
        distinct, y, row_weights = model.padded(data)
        self.distinct = distinct.masked()
        few = max(map(len, self.distinct)) < MANY_ROWS
        floor = (_FLOOR if few else TOLERANCE) if learnable.of_likelihood else 0.0
        # Spanning inputs are used only for draws.
        distinct = replace(distinct, spanning=(None,) * len(model.gps))
        bare, coefficients = without_inputs(model).bare(), model.coefficient_groups(data.X)
        self.family = ProblemFamily(terms, learnable, bare, distinct, y, row_weights, coefficients, floor=floor)
        self.state: Any = None
        self.ascent: tuple[Ascent, float] | None = None
        self.floor_loss = 0.0
        self.best, self.slope = np.inf, np.zeros(0)
        self.vector = learnable.start()
        self.evaluations = 0
        # The number of reselections that took every choice, and the best value before the last of them.
        self.num_choices, self.best_before = 0, np.inf
        self.dense: np.ndarray | None = None

    def __call__(self, vector: np.ndarray, tolerance: float = TIGHT) -> tuple[float, np.ndarray]:
        """The value and its gradient, with q(f) optimised to a tolerance."""
        evaluation = self.evaluate(vector, tolerance)
        if evaluation is None or not self._keep_if_best(vector, evaluation, tolerance):
            return self.barrier(vector)
        return evaluation.value, evaluation.slope

    def at_inputs(
        self, vector: np.ndarray, inputs: Inputs, tolerance: float = TIGHT
    ) -> tuple[float, np.ndarray, Inputs] | None:
        """The value at other inducing inputs, with its gradients in the vector and the inputs; None if not finite.

        They are kept if the value is the best.
        """
        previous, self.inputs = self.inputs, inputs
        evaluation = self.evaluate(vector, tolerance, moves=True)
        if evaluation is None or not self._keep_if_best(vector, evaluation, tolerance):
            self.inputs = previous
            return None
        if evaluation.value > self.best:
            self.inputs = previous
        return evaluation.value, evaluation.slope, evaluation.of_inputs

    def _keep_if_best(self, vector: np.ndarray, evaluation: Evaluation, tolerance: float) -> bool:
        """Keep q(f) and the vector if the value is the smallest; False if its improvement is within rounding."""
        loop, value = evaluation.loop, evaluation.value
        if float(loop.state.rounding) > max(_NATS, self.best - value) > 0.0:
            return False
        if value <= self.best:
            # Only the best point's q(f) starts the next inner loop: from an extreme trial step it may end in a poor
            # optimum. Its ELBO is reset, since it belongs to other hyperparameters.
            self.best, self.vector, self.slope = value, np.array(vector), evaluation.slope
            self.state = without_bound(loop.state)
            self.ascent, self.floor_loss = (_ascent_of(loop), tolerance), evaluation.floor_loss
        return True

    def without_floor(self, vector: np.ndarray, tolerance: float) -> float:
        """The value without the loss due to the lower limit on variances; infinite if it is not finite."""
        evaluation = self.evaluate(vector, tolerance)
        return np.inf if evaluation is None else evaluation.value - evaluation.floor_loss

    def evaluate(self, vector: np.ndarray, tolerance: float, moves: bool = False) -> Evaluation | None:
        """The bound with q(f) optimised to a tolerance; None if it or a gradient is not finite."""
        self.evaluations += 1
        try:
            points = self.points(vector)
        except ValueError:
            # The kernel matrix is not finite or not positive at these hyperparameters.
            return None
        start = self.state = self.start(vector, points)
        if tolerance <= _CAREFUL:
            start = start._replace(memory=jax.tree.map(np.zeros_like, start.memory))
        loop, bound, slopes, floor_loss = _ascend(self.family, as_array(vector), points, start, tolerance, moves)
        pairs = zip(slopes[1], self.inputs, strict=True)
        of_inputs = tuple(None if at is None or Z is None else -np.asarray(at.Z)[: len(Z)] for at, Z in pairs)
        value, slope = -float(bound), -np.asarray(slopes[0])
        if not all(np.isfinite(part).all() for part in (value, slope, *of_inputs) if part is not None):
            return None
        return Evaluation(loop, value, slope, float(floor_loss), of_inputs)

    @property
    def checkpoint(self) -> tuple[Any, ...]:
        """The best point, to ``restore`` it after trials."""
        return self.best, self.vector, self.slope, self.state, self.ascent, self.floor_loss

    def restore(self, checkpoint: tuple[Any, ...]) -> None:
        """Return to the best point of a checkpoint."""
        self.best, self.vector, self.slope, self.state, self.ascent, self.floor_loss = checkpoint

    @property
    def rounding(self) -> float:
        """Estimated rounding error of the best value."""
        return 0.0 if self.state is None else float(self.state.rounding)

    def optimum(self, tolerance: float) -> Ascent:
        """q(f) at the best vector to a tolerance, continued from the last state unless that is already as exact."""
        if self.ascent is not None and self.ascent[0].converged and self.ascent[1] <= tolerance:
            return self.ascent[0]
        vector = as_array(self.vector)
        return _ascent_of(_ascend(self.family, vector, self.points(self.vector), self.state, tolerance, False)[0])

    def left_out_slope(self) -> np.ndarray:
        """The gradient of the residual-variance penalty at the best vector, in nats; 0 without inducing inputs."""
        if self.state is None or all(Z is None for Z in self.inputs):
            return np.zeros_like(self.vector)
        parameters = self.at(self.vector).parameters
        weights = precisions(self.family.objective.predictors, self.state.sites, self.family.y, parameters)
        return np.asarray(_left_out(self.family, as_array(self.vector), self.points(self.vector), as_array(weights)))

    def start(self, vector: np.ndarray, points: Points) -> Any:
        """The state to start from: that at the best vector, or the engine's initial one."""
        return _start(self.family, as_array(vector), points) if self.state is None else self.state

    def points(self, vector: np.ndarray) -> Points:
        """The inducing points at a vector; ValueError if the kernel matrix is not finite or not positive there."""
        if self.dense is not None and np.max(np.abs(vector - self.dense), initial=0.0) < _FAR:
            return (None,) * len(self.inputs)
        points = points_at(self.family.objective, self.family.model_at(vector), self.distinct, self.inputs)
        if all(at is None for at in points):
            self.dense = np.array(vector)
        return points

    def at(self, vector: np.ndarray) -> Model:
        """The model at the values of an unconstrained vector."""
        return self.learnable.with_values(self.learnable.constrain(vector))

    def choose_again(self, tolerance: float) -> bool:
        """Reselect inducing inputs for the best values and site precisions; whether to continue the search with them.

        They are kept if the bound rises, or if their form takes every choice.
        """
        if self.state is None or all(Z is None for Z in self.inputs):
            return False
        before = self.best
        limit = tolerance * (1.0 + abs(before))
        limit = min(limit, ENOUGH) if self.automatic else limit
        model = self.at(self.vector)
        site_precisions = self._site_precisions(model)
        if takes_every_choice(model):
            return self._take_choice(choose_inputs(model, self.X, site_precisions), limit)
        best_inputs = tried = self.inputs
        for _ in range(TURNS):
            chosen = choose_inputs(model, self.X, self.sharpness * site_precisions)
            if same_inputs(chosen, best_inputs):
                warn_limited(self.learnable.model, chosen, self.X, self.sharpness * site_precisions)
                break
            self.sharpness = min(self.sharpness * SHARPER, SHARPEST)
            if same_inputs(chosen, tried):
                continue
            checkpoint = self.checkpoint
            self.inputs = tried = chosen
            gain = self.best - self(self.vector)[0]
            # As in ``select_inducing_inputs``: no gain from fewer inputs does not imply none from more.
            more = self.automatic and count_inputs(chosen) > count_inputs(best_inputs)
            if gain > (limit if more else 0.0):
                best_inputs = chosen
            else:
                self.inputs = best_inputs
                self.restore(checkpoint)
            if gain > limit or more or not self.automatic:
                break
        return before - self.best > limit

    def _site_precisions(self, model: Model) -> np.ndarray:
        by = selecting(model, self.family.objective)
        if by != self.family.objective:
            return nearly_converged(with_inputs(model, self.inputs), self.data, by)[1]
        return precisions(by.predictors, self.state.sites, self.family.y, model.parameters)

    def _take_choice(self, chosen: Inputs, limit: float) -> bool:
        """Replace the inducing inputs at most TURNS times, until they or the best value settle.

        Source: Passerello 2021, section 3.3.2.
        """
        settled = abs(self.best - self.best_before) <= limit
        if settled or self.num_choices == TURNS or same_inputs(chosen, self.inputs):
            return False
        previous = self.best, self.inputs
        self.num_choices, self.best_before = self.num_choices + 1, self.best
        # Any finite value replaces the best one, which belongs to other inputs.
        self.best, self.inputs = np.inf, chosen
        self(self.vector)
        if not np.isfinite(self.best):
            self.best, self.inputs = previous
        return self.inputs is chosen

    def barrier(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """A value above the best and its gradient, which sends a line search back to the best vector."""
        return barrier(vector, self.vector, self.best)
