"""The objective of hyperparameter learning: the bound with q(f) at its optimum, as a function of their vector."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.inference.inducing_selection import (
    ENOUGH,
    SHARPER,
    SHARPEST,
    TURNS,
    Inputs,
    choose_inputs,
    count_inputs,
    is_automatic,
    same_inputs,
    warn_limited,
    without_inputs,
)
from pgmodels.inference.loop import Ascent, LoopState, run_block
from pgmodels.inference.problem import Problem, are_few_rows, precisions
from pgmodels.inference.variational import cavi as cavi_engine
from pgmodels.inference.variational import gaussian_vi as gaussian_engine
from pgmodels.inference.variational.cavi import MANY, CaviState
from pgmodels.inference.variational.second_order_sweeps import (
    ascend_expanded,
    can_expand,
    expanded_bound,
    expansions_at,
    is_simple,
)
from pgmodels.model import GP, Data, Model
from pgmodels.objectives.base import Objective
from pgmodels.objectives.expected import Quadrature
from pgmodels.parameters.vector import ParameterVector, with_values
from pgmodels.priors.base import LatentPrior
from pgmodels.priors.blocks import MAX_BLOCK
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.distinct_inputs import DistinctInputs
from pgmodels.priors.inducing.representation import Inducing, inducing_at, inducing_points_at
from pgmodels.priors.low_rank import InducingPoints, low_rank_at
from pgmodels.priors.padding import masked, pad_rows
from pgmodels.priors.representation import TOLERANCE, Auto
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.pickling import Module
from pgmodels.runtime.x64 import as_array

# The inner loop must be much closer to its optimum than the outer steps resolve, since the envelope theorem gives the
# gradient only at the optimum.
TIGHT = 1e-11
# Below this tolerance, discard the Anderson history: steps recorded at other hyperparameters stop the inner loop too
# early.
_CAREFUL = 1e-8
# ELBO of a state whose bound is not known.
_NO_BOUND = np.float64(-np.inf)
# Within this distance of a vector where some group has no low-rank form, none is tried.
_FAR = 0.5
# From this many rows on (times latents, if coupled), compiling one program per rank is cheaper than hundreds of dense
# factorisations.
_MANY_ROWS = 600
# Ranks below this cost the same, and compiling a program for each would take longer.
_LEAST_RANK = 32
# Above this share of the rows, a dozen low-rank factorisations take longer than a few dense ones, unless the rank is at
# most _SMALL_RANK.
_SHARE_OF_ROWS, _SMALL_RANK = 0.25, 64


# Lower limit on a latent's posterior variance, as a share of its prior variance, while likelihood parameters are
# learned: for noise-free data they would become too small to be distinguished from rounding, 2e-16 of that variance. At
# the optimum the noise variance is a few times this. With many rows it is the low-rank forms' tolerance.
_FLOOR = 1e-14


def _floor(learnable: ParameterVector, distinct: Sequence[np.ndarray]) -> float:
    if not learnable.of_likelihood:
        return 0.0
    return _FLOOR if max(map(len, distinct)) < _MANY_ROWS else TOLERANCE


# Rounding below this, in nats, is no reason to refuse a value.
_NATS = 0.1

# q(f) of either engine.
State = CaviState | gaussian_engine.GaussianState


def objective_of(model: Model, name: str) -> Objective:
    """The objective (sum over the data) by the name of the engine that maximises it.

    ``"auto"`` is the expected log density if each row has one predictor (quadrature in one dimension) or there is no
    augmentation; the derived bound if rows have several, or if it equals the expected log density in closed form.
    """
    if name == "augmented" or (name == "auto" and model.is_augmentable and _takes_derived(model.augmentation)):
        return model.augmentation
    return gaussian_engine.quadrature_of(model)


def _takes_derived(augmentation: Augmentation) -> bool:
    return augmentation.size > 1 or augmentation.is_exact


def engine_of(objective: Objective) -> Any:
    """The module of the engine that maximises an objective."""
    return gaussian_engine if isinstance(objective, Quadrature) else cavi_engine


def collapsed_bound(problem: Problem, state: State) -> Any:
    """log Z(θ; h, w) + Σ B with q(f)'s marginals and sites fixed: the ELBO as a function of θ plus Σ (h m - w s / 2).

    Source: math, section 4; Titsias 2009; Passerello 2021, PGPR. At the optimal sites its gradient is the full one.
    """
    m, v, sites = jax.lax.stop_gradient(state[:3])
    return problem.moments(sites).log_normalizer + problem.local_bound(m, v)


# The inducing points that represent a group; None for a group in its traced form.
Pivots = InducingPoints | None


def _coupled(objective: Objective) -> bool:
    """Whether predictors or sites couple the latents, whose priors then need factors."""
    return objective.predictors is not None or (isinstance(objective, Quadrature) and objective.size > 1)


def pivots_at(objective: Objective, model: Model, distinct: Sequence[np.ndarray], inputs: Inputs) -> tuple[Pivots, ...]:
    """The inducing inputs of groups that have some, else the pivots of the groups if all have a low-rank form.

    Pivots are chosen at the given hyperparameters, and only if there are enough rows for a low-rank form to be faster.
    """
    none = (None,) * len(model.gps)
    if any(Z is not None for Z in inputs):
        pairs = zip(model.gps, inputs, strict=True)
        return tuple(None if Z is None else inducing_points_at(gp.kernel, Z) for gp, Z in pairs)
    counts = list(map(len, distinct))
    many = sum(n * gp.size for n, gp in zip(counts, model.gps, strict=True)) if _coupled(objective) else max(counts)
    if many < _MANY_ROWS:
        return none
    expands = engine_of(objective) is cavi_engine and is_simple(objective)
    pivots: list[Pivots] = []
    for gp, X in zip(model.gps, distinct, strict=True):
        most = max(_SMALL_RANK, _SHARE_OF_ROWS * len(X)) if expands else np.inf
        group = gp.form.low_rank(gp.kernel, gp.mean.value, X, gp.size) if isinstance(gp.form, Auto) else None
        if group is None:
            return none
        # Round ranks up to powers of two: they change from step to step, and each compiles a program.
        rank = max(_LEAST_RANK, 1 << (group.rank - 1).bit_length())
        if rank > most:
            return none
        missing = rank - group.rank
        Z = np.pad(np.asarray(group.Z), ((0, missing), (0, 0)), mode="edge")
        active = np.pad(np.asarray(group.active), (0, missing))
        pivots.append(InducingPoints(*map(as_array, (Z, active, 0.0))))
    return tuple(pivots)


def _problem(
    objective: Objective,
    model: Model,
    inputs: DistinctInputs,
    y: Any,
    row_mask: Any,
    pivots: tuple[Pivots, ...],
    floor: float,
) -> Problem:
    coupled = _coupled(objective)

    def group(gp: GP, points: Pivots, X: Array, row_mask: Any) -> LatentPrior:
        mean = as_array(gp.mean.value)
        if points is not None:
            at = inducing_at if isinstance(gp.form, Inducing) else low_rank_at
            return at(gp.kernel, mean, X, points, gp.size)
        rows = {} if row_mask is None else {"row_mask": row_mask}
        return (gp.form.bind_traced if coupled else gp.form.bind_traced_for_moments)(
            gp.kernel, mean, X, gp.size, **rows
        )

    group_inputs = list(zip(model.gps, pivots, inputs.X, inputs.row_mask, strict=True))
    prior = PriorCollection(tuple(group(*part) for part in group_inputs), inputs.copies)
    # By the number of rows, not the current rank: the shapes of q(f) must stay the same from call to call.
    widths = [
        gp.size * (len(points.Z) if points and isinstance(gp.form, Inducing) else len(X))
        for gp, points, X, _ in group_inputs
    ]
    joint = isinstance(objective, Quadrature) and objective.size > 1 and prior.factored
    return Problem(objective, prior, y, model.parameters, joint and sum(widths) <= MAX_BLOCK, row_mask, floor)


class _ProblemFamily(Module):
    """The problem as a function of the unconstrained vector: the model without priors, its trainable values, data."""

    objective: Objective = eqx.field(static=True)
    learnable: ParameterVector = eqx.field(static=True)
    model: Model
    inputs: DistinctInputs
    y: Array
    row_mask: Array | None
    floor: float = eqx.field(static=True)

    def problem(self, vector: Array, pivots: tuple[Pivots, ...]) -> Problem:
        """The problem at the values of an unconstrained vector."""
        model = with_values(self.model, self.learnable.leaf_indices, self.learnable.constrain(vector))
        return _problem(self.objective, model, self.inputs, self.y, self.row_mask, pivots, self.floor)


def _many_rows(family: _ProblemFamily, *_: Any) -> bool:
    return not are_few_rows(len(family.y), isinstance(family.objective, Quadrature) and family.objective.size > 1)


@partial(compiled, optimise=_many_rows)
def _ascend(
    family: _ProblemFamily, vector: Array, pivots: tuple[Pivots, ...], start: State, tolerance: Any
) -> tuple[LoopState, Array, Array, Array]:
    """Optimise q(f): final loop state, bound plus log prior, its gradient, and the floor's loss (``floor_loss``)."""
    problem = family.problem(vector, pivots)
    if isinstance(start, CaviState) and can_expand(problem):
        ascent, expanded = ascend_expanded(problem, start, tolerance, MANY)
        bound = partial(expanded_bound, state=expanded.state, expansions=expanded.expansions)
    else:
        ascent = run_block(engine_of(family.objective).step, problem, start, tolerance, MANY, MANY)
        bound = partial(collapsed_bound, state=ascent.state)
        if can_expand(problem):
            bound = partial(expanded_bound, state=ascent.state, expansions=expansions_at(problem, ascent.state.sites))

    def log_prior(vector: Array) -> Array:
        return family.learnable.log_prior(family.learnable.constrain(vector))

    def penalised(vector: Array) -> Array:
        return bound(family.problem(vector, pivots)) + log_prior(vector)

    lost = problem.floor_loss(ascent.state.sites)
    return ascent, ascent.state.elbo + log_prior(vector), jax.grad(penalised)(vector), lost


def _ascent_of(loop: LoopState) -> Ascent:
    return Ascent(loop.state, np.asarray(loop.trace)[: int(loop.taken)], bool(loop.converged))


@partial(compiled, optimise=False)
def _start(family: _ProblemFamily, vector: Array, pivots: tuple[Pivots, ...]) -> State:
    return engine_of(family.objective).first_state(family.problem(vector, pivots))


@partial(compiled, optimise=_many_rows)
def _left_out(family: _ProblemFamily, vector: Array, pivots: tuple[Pivots, ...], weights: Array) -> Array:
    """The slope of what inducing inputs leave out, in nats, at given precisions (n, latents) of the sites."""

    def nats(vector: Array) -> Array:
        residual = family.problem(vector, pivots).prior.residual_variances()
        if residual is None:
            return jnp.zeros(())
        return 0.5 * jnp.sum(masked(family.row_mask, jnp.maximum(weights, 0.0) * residual))

    return jax.grad(nats)(vector)


class MarginalBound:
    """The negative log posterior bound of an unconstrained vector, with its gradient; keeps q(f) between calls.

    ``best`` is the smallest value so far, at ``vector``. If the bound or its gradient is not finite, or an improvement
    is within a rounding error of more than a tenth of a nat, ``barrier`` is returned instead, which sends a line search
    back to ``vector``. ``lost`` is the loss of the best value by the lower limit on variances.
    """

    def __init__(self, learnable: ParameterVector, data: Data, objective: Objective | None = None):
        self.learnable, self.X = learnable, data.X
        model = learnable.model
        self.inputs = choose_inputs(model, data.X)
        self.automatic, self.sharpness = is_automatic(model), 1.0
        terms = objective or model.augmentation
        distinct, row_mask = model.padded(data.X)
        y = as_array(data.y if row_mask is None else pad_rows(data.y, len(row_mask)))
        self.distinct = distinct.masked()
        floor = _floor(learnable, self.distinct)
        self.family = _ProblemFamily(terms, learnable, without_inputs(model).bare(), distinct, y, row_mask, floor=floor)
        self.state: State | None = None
        self.ascent: tuple[Ascent, float] | None = None
        self.lost = 0.0
        self.best, self.slope = np.inf, np.zeros(0)
        self.vector = learnable.start()
        self.evaluations = 0
        self.dense: np.ndarray | None = None

    def __call__(self, vector: np.ndarray, tolerance: float = TIGHT) -> tuple[float, np.ndarray]:
        """The value and its gradient, with q(f) optimised to a tolerance."""
        evaluated = self._evaluate(vector, tolerance)
        if evaluated is None:
            return self.barrier(vector)
        ascent, value, slope, lost = evaluated
        if float(ascent.state.rounding) > max(_NATS, self.best - value) > 0.0:
            return self.barrier(vector)
        if value <= self.best:
            # Only the best point's q(f) starts the next inner loop: that of an extreme trial step may lead to a poor
            # optimum. Its ELBO is reset, since it belongs to other hyperparameters.
            self.best, self.vector, self.slope = value, np.array(vector), slope
            self.state = ascent.state._replace(elbo=_NO_BOUND)
            self.ascent, self.lost = (_ascent_of(ascent), tolerance), lost
        return value, slope

    def without_floor(self, vector: np.ndarray, tolerance: float) -> float:
        """The value without the loss by the lower limit on variances; infinite if it is not finite."""
        evaluated = self._evaluate(vector, tolerance)
        return np.inf if evaluated is None else evaluated[1] - evaluated[3]

    def _evaluate(self, vector: np.ndarray, tolerance: float) -> tuple[LoopState, float, np.ndarray, float] | None:
        """Final loop state of q(f), value, gradient, and loss by the lower limit on variances; None if not finite."""
        self.evaluations += 1
        try:
            pivots = self._pivots(vector)
        except ValueError:
            # The kernel matrix is not finite or not positive at these hyperparameters.
            return None
        if self.state is None:
            self.state = _start(self.family, as_array(vector), pivots)
        start = self.state
        if tolerance <= _CAREFUL:
            start = start._replace(memory=jax.tree.map(np.zeros_like, start.memory))
        ascent, bound, gradient, lost = _ascend(self.family, as_array(vector), pivots, start, tolerance)
        value, slope = -float(bound), -np.asarray(gradient)
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            return None
        return ascent, value, slope, float(lost)

    @property
    def rounding(self) -> float:
        """Estimated rounding error of the best value."""
        return 0.0 if self.state is None else float(self.state.rounding)

    def optimum(self, tolerance: float) -> Ascent:
        """q(f) at the best vector to a tolerance, continued from the last state unless that is already as exact."""
        if self.ascent is not None and self.ascent[0].converged and self.ascent[1] <= tolerance:
            return self.ascent[0]
        assert self.state is not None
        vector = as_array(self.vector)
        return _ascent_of(_ascend(self.family, vector, self._pivots(self.vector), self.state, tolerance)[0])

    def left_out_slope(self) -> np.ndarray:
        """How what the inducing inputs leave out changes with the best vector, in nats; 0 where there are none."""
        if self.state is None or all(Z is None for Z in self.inputs):
            return np.zeros_like(self.vector)
        parameters = self.at(self.vector).parameters
        weights = precisions(self.family.objective.predictors, self.state.sites, self.family.y, parameters)
        return np.asarray(_left_out(self.family, as_array(self.vector), self._pivots(self.vector), as_array(weights)))

    def _pivots(self, vector: np.ndarray) -> tuple[Pivots, ...]:
        if self.dense is not None and np.max(np.abs(vector - self.dense), initial=0.0) < _FAR:
            return (None,) * len(self.inputs)
        pivots = pivots_at(self.family.objective, self.at(vector).bare(), self.distinct, self.inputs)
        if all(points is None for points in pivots):
            self.dense = np.array(vector)
        return pivots

    def at(self, vector: np.ndarray) -> Model:
        """The model at the values of an unconstrained vector."""
        return self.learnable.with_values(self.learnable.constrain(vector))

    def choose_again(self, tolerance: float) -> bool:
        """Reselect inducing inputs for the best values and site precisions; keep them if the bound rises."""
        if self.state is None or all(Z is None for Z in self.inputs):
            return False
        before = self.best
        limit = tolerance * (1.0 + abs(before))
        limit = min(limit, ENOUGH) if self.automatic else limit
        model = self.at(self.vector)
        site_precisions = precisions(
            self.family.objective.predictors, self.state.sites, self.family.y, model.parameters
        )
        best_inputs = tried = self.inputs
        for _ in range(TURNS):
            chosen = choose_inputs(model, self.X, self.sharpness * site_precisions)
            if same_inputs(chosen, best_inputs):
                warn_limited(self.learnable.model, chosen, self.X, self.sharpness * site_precisions)
                break
            self.sharpness = min(self.sharpness * SHARPER, SHARPEST)
            if same_inputs(chosen, tried):
                continue
            known = self.best, self.vector, self.slope, self.state, self.ascent, self.lost
            self.inputs = tried = chosen
            gain = self.best - self(self.vector)[0]
            # As in ``select_inducing_inputs``: that fewer inputs gain nothing does not imply it for more.
            more = self.automatic and count_inputs(chosen) > count_inputs(best_inputs)
            if gain > (limit if more else 0.0):
                best_inputs = chosen
            else:
                self.inputs = best_inputs
                self.best, self.vector, self.slope, self.state, self.ascent, self.lost = known
            if gain > limit or more or not self.automatic:
                break
        return before - self.best > limit

    def barrier(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """A value above the best and its gradient, which sends a line search back to the best vector."""
        away = vector - self.vector
        if not np.isfinite(self.best) or not away.any():
            return np.inf, np.zeros_like(vector)
        height = 1.0 + abs(self.best)
        return self.best + height, 2.0 * height * away / (away @ away)
