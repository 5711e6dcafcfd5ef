"""The bound that hyperparameters are learned on: that of q(f) at its optimum, as a function of their vector."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.compiled import compiled
from pgmodels.inference import cavi as cavi_engine
from pgmodels.inference import gaussian_vi as gaussian_engine
from pgmodels.inference.cavi import MANY, CaviState
from pgmodels.inference.drive import Ascent, Stretch, stretch
from pgmodels.inference.expanded import ascend_expanded, can_expand, expanded_bound, expansions_at, is_simple
from pgmodels.inference.inducing import (
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
from pgmodels.inference.problem import Problem, are_few_rows, precisions
from pgmodels.latent.blocks import JOINT_LIMIT
from pgmodels.latent.form import TOLERANCE, Cheapest
from pgmodels.latent.inducing import Inducing, inducing_at, span_at
from pgmodels.latent.inputs import DistinctInputs
from pgmodels.latent.joint import JointPrior
from pgmodels.latent.low_rank import Span, low_rank_at
from pgmodels.latent.protocol import LatentPrior
from pgmodels.latent.rows import resize_rows
from pgmodels.model import GP, Data, Model
from pgmodels.objectives.protocol import Objective
from pgmodels.objectives.quadrature import Quadrature
from pgmodels.portable import Module
from pgmodels.precision import as_array
from pgmodels.unknowns import Unknowns, with_values

# The inner ascent must be much closer to its optimum than the outer steps resolve, for the envelope theorem gives the
# gradient at the optimum only.
TIGHT = 1e-11
# To a smaller tolerance an ascent makes nothing of moves at other hyperparameters, which end it a little too soon.
_CAREFUL = 1e-8
# Of a state whose bound is not known.
_NO_BOUND = np.float64(-np.inf)
# A vector so near to one where no group has a low-rank form is not asked for one.
_FAR = 0.5
# With so many rows, of latents one below the other where they are coupled, a program for each rank is compiled sooner
# than a dense matrix is factorised hundreds of times.
_MANY_ROWS = 600
# Ranks below this cost as much: a program of its own for each would take longer.
_LEAST_RANK = 32
# A dozen factorisations in a low-rank form take longer than a few dense ones beyond this share of the rows, those of a
# small rank never do.
_SHARE_OF_ROWS, _SMALL_RANK = 0.25, 64


# The share of a latent's prior variance that is left to noise where the likelihood's parameters are learned: of data
# without noise these would leave the range in which rounding, of 2e-16 of that variance, can be told from noise. At the
# optimum the noise's variance is a few times this. With many rows forms neglect as much as is said of them.
_FLOOR = 1e-14


def _floor(learnable: Unknowns, distinct: Sequence[np.ndarray]) -> float:
    if not learnable.of_likelihood:
        return 0.0
    return _FLOOR if max(map(len, distinct)) < _MANY_ROWS else TOLERANCE


# Rounding below this, in nats, is no reason to refuse a value.
_NATS = 0.1

# q(f) of either engine.
State = CaviState | gaussian_engine.GaussianState


def objective_of(model: Model, name: str) -> Objective:
    """What is a sum over the data, by the name of the engine that maximises it.

    For ``"auto"`` the expected log density of one predictor a row, whose quadrature is on a line; also where there is
    no other. The derived bound of several, and where it is the expected log density itself, in closed form.
    """
    if name == "cavi" or (name == "auto" and model.is_augmentable and _takes_derived(model.augmentation)):
        return model.augmentation
    return gaussian_engine.quadrature_of(model)


def _takes_derived(augmentation: Augmentation) -> bool:
    return augmentation.size > 1 or augmentation.is_exact


def engine_of(objective: Objective) -> Any:
    """The module of the engine that maximises an objective."""
    return gaussian_engine if isinstance(objective, Quadrature) else cavi_engine


def collapsed_bound(problem: Problem, state: State) -> Any:
    """log Z(θ; h, w) + Σ B with q(f)'s marginals and sites held: but for Σ (h m - w s / 2) the ELBO as a function of θ.

    Source: math, section 4; Titsias 2009; Passerello 2021, PGPR. At the optimal sites its gradient is the full one.
    """
    m, v, sites = jax.lax.stop_gradient(state[:3])
    return problem.moments(sites).log_normalizer + problem.local_bound(m, v)


# What a group is held through; None for a group in its traced form.
Pivots = Span | None


def _coupled(objective: Objective) -> bool:
    """Whether predictors or sites couple the latents, whose priors must have factors then."""
    return objective.predictors is not None or (isinstance(objective, Quadrature) and objective.size > 1)


def pivots_at(objective: Objective, model: Model, distinct: Sequence[np.ndarray], inputs: Inputs) -> tuple[Pivots, ...]:
    """The inducing inputs of groups that have some, else the pivots of the groups where all have a low-rank form.

    The latter are taken here and now, where there are rows enough for it to pay.
    """
    none = (None,) * len(model.gps)
    if any(Z is not None for Z in inputs):
        pairs = zip(model.gps, inputs, strict=True)
        return tuple(None if Z is None else span_at(gp.kernel, Z) for gp, Z in pairs)
    counts = list(map(len, distinct))
    many = sum(n * gp.size for n, gp in zip(counts, model.gps, strict=True)) if _coupled(objective) else max(counts)
    if many < _MANY_ROWS:
        return none
    expands = engine_of(objective) is cavi_engine and is_simple(objective)
    found: list[Pivots] = []
    for gp, X in zip(model.gps, distinct, strict=True):
        most = max(_SMALL_RANK, _SHARE_OF_ROWS * len(X)) if expands else np.inf
        group = gp.form.low_rank(gp.kernel, gp.mean.value, X, gp.size) if isinstance(gp.form, Cheapest) else None
        if group is None:
            return none
        # Ranks change from step to step: few of them, so that few programs are compiled.
        rank = max(_LEAST_RANK, 1 << (group.rank - 1).bit_length())
        if rank > most:
            return none
        missing = rank - group.rank
        Z = np.pad(np.asarray(group.Z), ((0, missing), (0, 0)), mode="edge")
        active = np.pad(np.asarray(group.active), (0, missing))
        found.append(Span(*map(as_array, (Z, active, 0.0))))
    return tuple(found)


def _problem(
    objective: Objective,
    model: Model,
    inputs: DistinctInputs,
    y: Any,
    live: Any,
    pivots: tuple[Pivots, ...],
    floor: float,
) -> Problem:
    coupled = _coupled(objective)

    def group(gp: GP, own: Pivots, X: Array, live: Any) -> LatentPrior:
        mean = as_array(gp.mean.value)
        if own is not None:
            at = inducing_at if isinstance(gp.form, Inducing) else low_rank_at
            return at(gp.kernel, mean, X, own, gp.size)
        rows = {} if live is None else {"live": live}
        return (gp.form.traced if coupled else gp.form.traced_for_moments)(gp.kernel, mean, X, gp.size, **rows)

    parts = list(zip(model.gps, pivots, inputs.X, inputs.live, strict=True))
    prior = JointPrior(tuple(group(*part) for part in parts), inputs.copies)
    # By the number of rows, whatever the rank here and now: q(f) goes from call to call.
    widths = [gp.size * (len(own.Z) if own and isinstance(gp.form, Inducing) else len(X)) for gp, own, X, _ in parts]
    joint = isinstance(objective, Quadrature) and objective.size > 1 and prior.factored
    return Problem(objective, prior, y, model.parameters, joint and sum(widths) <= JOINT_LIMIT, live, floor)


class _Given(Module):
    """What the bound depends on besides the vector: the model without priors, what moves in it, and the data."""

    objective: Objective = eqx.field(static=True)
    learnable: Unknowns = eqx.field(static=True)
    model: Model
    inputs: DistinctInputs
    y: Array
    live: Array | None
    floor: float = eqx.field(static=True)

    def problem(self, vector: Array, pivots: tuple[Pivots, ...]) -> Problem:
        """The problem at the values of an unconstrained vector."""
        model = with_values(self.model, self.learnable.places, self.learnable.constrain(vector))
        return _problem(self.objective, model, self.inputs, self.y, self.live, pivots, self.floor)


def _few_rows(given: _Given, *_: Any) -> bool:
    return are_few_rows(len(given.y), isinstance(given.objective, Quadrature) and given.objective.size > 1)


@partial(compiled, lightly=_few_rows)
def _ascend(
    given: _Given, vector: Array, pivots: tuple[Pivots, ...], start: State, tolerance: Any
) -> tuple[Stretch, Array, Array, Array]:
    """The engine to its optimum; how it came there, the bound with the values' log prior, and the gradient of that.

    With what the bound loses by the floor of the variances.
    """
    problem = given.problem(vector, pivots)
    if isinstance(start, CaviState) and can_expand(problem):
        found, expanded = ascend_expanded(problem, start, tolerance, MANY)
        bound = partial(expanded_bound, state=expanded.state, expansions=expanded.expansions)
    else:
        found = stretch(engine_of(given.objective).step, problem, start, tolerance, MANY, MANY)
        bound = partial(collapsed_bound, state=found.state)
        if can_expand(problem):
            bound = partial(expanded_bound, state=found.state, expansions=expansions_at(problem, found.state.sites))

    def log_prior(vector: Array) -> Array:
        return given.learnable.log_prior(given.learnable.constrain(vector))

    def penalised(vector: Array) -> Array:
        return bound(given.problem(vector, pivots)) + log_prior(vector)

    lost = problem.floor_loss(found.state.sites)
    return found, found.state.elbo + log_prior(vector), jax.grad(penalised)(vector), lost


def _ascent_of(found: Stretch) -> Ascent:
    return Ascent(found.state, np.asarray(found.trace)[: int(found.taken)], bool(found.converged))


@partial(compiled, lightly=True)
def _start(given: _Given, vector: Array, pivots: tuple[Pivots, ...]) -> State:
    return engine_of(given.objective).first_state(given.problem(vector, pivots))


class PenalisedBound:
    """The negative log posterior bound of an unconstrained vector, with its gradient; keeps q(f) between calls.

    ``best`` is the smallest value so far, at ``vector``; where the bound or its gradient is not finite, or the bound is
    larger by no more than rounding, of a tenth of a nat or more, a bowl about that vector stands in, which sends a line
    search back to it. What the best value loses by the floor of the variances is ``lost``.
    """

    def __init__(self, learnable: Unknowns, data: Data, objective: Objective | None = None):
        self.learnable, self.X = learnable, data.X
        model = learnable.model
        self.inputs = choose_inputs(model, data.X)
        self.automatic, self.sharpness = is_automatic(model), 1.0
        terms = objective or model.augmentation
        distinct, live = model.filled(data.X)
        y = as_array(data.y if live is None else resize_rows(data.y, len(live)))
        self.distinct = distinct.of_data()
        floor = _floor(learnable, self.distinct)
        self.given = _Given(terms, learnable, without_inputs(model).bare(), distinct, y, live, floor=floor)
        self.state: State | None = None
        self.ascent: tuple[Ascent, float] | None = None
        self.lost = 0.0
        self.best, self.slope = np.inf, np.zeros(0)
        self.vector = learnable.start()
        self.evaluations = 0
        self.dense: np.ndarray | None = None

    def __call__(self, vector: np.ndarray, tolerance: float = TIGHT) -> tuple[float, np.ndarray]:
        """The value and its gradient, q(f) ascended to a tolerance."""
        evaluated = self._evaluate(vector, tolerance)
        if evaluated is None:
            return self.bowl(vector)
        found, value, slope, lost = evaluated
        if float(found.state.rounding) > max(_NATS, self.best - value) > 0.0:
            return self.bowl(vector)
        if value <= self.best:
            # Only the best point's q(f) starts the next ascent: that of a wild trial step may lead to a poor optimum.
            # Its bound is one of other values.
            self.best, self.vector, self.slope = value, np.array(vector), slope
            self.state = found.state._replace(elbo=_NO_BOUND)
            self.ascent, self.lost = (_ascent_of(found), tolerance), lost
        return value, slope

    def without_floor(self, vector: np.ndarray, tolerance: float) -> float:
        """The value less what the bound loses by the floor of the variances; infinite where there is none."""
        evaluated = self._evaluate(vector, tolerance)
        return np.inf if evaluated is None else evaluated[1] - evaluated[3]

    def _evaluate(self, vector: np.ndarray, tolerance: float) -> tuple[Stretch, float, np.ndarray, float] | None:
        """How q(f) came to its optimum, the value, its gradient, and what is lost by the floor; None if not finite."""
        self.evaluations += 1
        try:
            pivots = self._pivots(vector)
        except ValueError:
            # Hyperparameters at which the kernel's matrix is none.
            return None
        if self.state is None:
            self.state = _start(self.given, as_array(vector), pivots)
        start = self.state
        if tolerance <= _CAREFUL:
            start = start._replace(memory=jax.tree.map(np.zeros_like, start.memory))
        found, bound, gradient, lost = _ascend(self.given, vector, pivots, start, tolerance)
        value, slope = -float(bound), -np.asarray(gradient)
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            return None
        return found, value, slope, float(lost)

    @property
    def rounding(self) -> float:
        """What rounding may have done to the best value."""
        return 0.0 if self.state is None else float(self.state.rounding)

    def optimum(self, tolerance: float) -> Ascent:
        """q(f) at the best vector to a tolerance, from where it was left, or as it is where that was as exact."""
        if self.ascent is not None and self.ascent[0].converged and self.ascent[1] <= tolerance:
            return self.ascent[0]
        return _ascent_of(_ascend(self.given, self.vector, self._pivots(self.vector), self.state, tolerance)[0])

    def _pivots(self, vector: np.ndarray) -> tuple[Pivots, ...]:
        if self.dense is not None and np.max(np.abs(vector - self.dense), initial=0.0) < _FAR:
            return (None,) * len(self.inputs)
        found = pivots_at(self.given.objective, self.at(vector).bare(), self.distinct, self.inputs)
        if all(own is None for own in found):
            self.dense = np.array(vector)
        return found

    def at(self, vector: np.ndarray) -> Model:
        """The model at the values of an unconstrained vector."""
        return self.learnable.with_values(self.learnable.constrain(vector))

    def choose_again(self, tolerance: float) -> bool:
        """Inducing inputs for the best values and what is known of the latents there, kept where the bound rises."""
        if self.state is None or all(Z is None for Z in self.inputs):
            return False
        before = self.best
        limit = tolerance * (1.0 + abs(before))
        limit = min(limit, ENOUGH) if self.automatic else limit
        model = self.at(self.vector)
        told = precisions(self.given.objective.predictors, self.state.sites, self.given.y, model.parameters)
        held = tried = self.inputs
        for _ in range(TURNS):
            chosen = choose_inputs(model, self.X, self.sharpness * told)
            if same_inputs(chosen, held):
                warn_limited(self.learnable.model, chosen, self.X, self.sharpness * told)
                break
            self.sharpness = min(self.sharpness * SHARPER, SHARPEST)
            if same_inputs(chosen, tried):
                continue
            known = self.best, self.vector, self.slope, self.state, self.ascent, self.lost
            self.inputs = tried = chosen
            gain = self.best - self(self.vector)[0]
            # As in ``settled``: fewer that gain nothing do not say that more would not.
            more = self.automatic and count_inputs(chosen) > count_inputs(held)
            if gain > (limit if more else 0.0):
                held = chosen
            else:
                self.inputs = held
                self.best, self.vector, self.slope, self.state, self.ascent, self.lost = known
            if gain > limit or more or not self.automatic:
                break
        return before - self.best > limit

    def bowl(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """A value above the best and its gradient, which sends a line search back to the best vector."""
        away = vector - self.vector
        if not np.isfinite(self.best) or not away.any():
            return np.inf, np.zeros_like(vector)
        height = 1.0 + abs(self.best)
        return self.best + height, 2.0 * height * away / (away @ away)
