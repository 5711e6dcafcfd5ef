"""Published schemes of learning hyperparameters."""

from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.inference.bound import MarginalBound, Point, ProblemFamily, Selection, choose_again, many_rows
from pgmodels.inference.cavi import positive
from pgmodels.inference.loop import Ascent, VariationalState, without_bound
from pgmodels.inference.prepare import Inputs, engine_of
from pgmodels.inference.problem import Problem
from pgmodels.inference.search import Limits, Maximum, SearchBar, box_of, check_start
from pgmodels.inference.starts import Start, steps
from pgmodels.model import Data, Model, Points
from pgmodels.numerics.iteration import Search
from pgmodels.objectives.base import Objective
from pgmodels.parameters.vector import trainable
from pgmodels.results.gaussian import diagonals
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.precision import as_array


class LocalParameters(NamedTuple):
    """A mean and a log variance of each predictor, (n, predictors) each, not constrained."""

    mean: Array | np.ndarray
    log_variance: Array | np.ndarray

    @classmethod
    def of(cls, state: VariationalState) -> "LocalParameters":
        """Return the moments of q(f), without covariances of the predictors of a datum."""
        variance = diagonals(np.asarray(state.variance))
        # Rows of padding may have no variance.
        return cls(np.asarray(state.mean), np.log(np.maximum(variance, np.finfo(np.float64).tiny)))


def tangent_bound(problem: Problem, local: LocalParameters) -> Float[Array, ""]:
    """Return log Z(θ; h, w) + Σ (B - h m + w s / 2), with B and the sites h, w at local parameters m, s = m^2 + v.

    It equals the ELBO at q's moments. Bounds by auxiliary variables are convex in (m, s): it is a lower bound of the
    ELBO at its optimum. With the logistic likelihood it is Jaakkola and Jordan's bound, a function of s alone (Izmailov
    and Kropotov 2017, section 4.1). For Taylor expansions of log p(y | f) it is log Z + Σ (log p(y | m) - g m -
    w m^2 / 2) with the gradient g at m. Variances cancel, and it is no bound (section 4.2, equation 18).
    """
    m, v = jnp.asarray(local.mean), jnp.exp(local.log_variance)
    squares = m**2
    if problem.coupled:
        v, squares = jax.vmap(jnp.diag)(v), m[:, :, None] * m[:, None, :]
    sites = problem.sites(m, v)
    if problem.objective.signed and not problem.takes_signed:
        # Precisions as the engine clips them.
        sites = positive(sites, m)
    rest = 0.5 * jnp.sum(sites.precision * (v + squares)) - jnp.sum(sites.potential * m)
    return problem.moments(sites).log_normalizer + problem.local_bound(m, v) + rest


@partial(compiled, optimise=many_rows)
def value_and_slopes(
    family: ProblemFamily, vector: Array, points: Points, local: LocalParameters
) -> tuple[Array, tuple[Array, LocalParameters]]:
    """``tangent_bound`` plus the log prior of the hyperparameters, with its gradients in both arguments."""

    def penalised(vector: Array, local: LocalParameters) -> Array:
        return tangent_bound(family.problem(vector, points), local) + family.parameters.log_prior_unconstrained(vector)

    return jax.value_and_grad(penalised, argnums=(0, 1))(vector, local)


@partial(compiled, optimise=many_rows)
def sweep(
    family: ProblemFamily, vector: Array, points: Points, state: VariationalState, count: Array | int
) -> tuple[VariationalState, Array]:
    """Return the state after ``count`` plain steps of the objective's engine, and its ELBO plus the log prior."""
    problem, step = family.problem(vector, points), engine_of(family.objective).plain_step
    state = jax.lax.fori_loop(0, count, lambda _, state: step(problem, state), state)
    return state, state.elbo + family.parameters.log_prior_unconstrained(vector)


@partial(compiled, optimise=many_rows)
def state_at(family: ProblemFamily, vector: Array, points: Points, local: LocalParameters) -> Any:
    """Return the q(f) of the sites at local parameters."""
    problem = family.problem(vector, points)
    return engine_of(family.objective).state_of(
        problem, problem.sites(jnp.asarray(local.mean), jnp.exp(local.log_variance))
    )


@partial(compiled, optimise=False)
def prior_deviations(family: ProblemFamily, vector: Array, points: Points) -> Float[Array, "n p"]:
    """Prior standard deviations of the predictors, the units of local means; 1 where they are zero, as in padding."""
    variance = family.problem(vector, points).marginals()[1]
    return jnp.where(variance > 0.0, jnp.sqrt(variance), 1.0)


# Schemes of learning by Izmailov and Kropotov 2017, for any augmentation and for Taylor expansions.

# Sweeps before hyperparameters change, and evaluations of the bound in one change of them: the published numbers.
NUM_SWEEPS, NUM_EVALUATIONS = 3, 5


class _Slopes(NamedTuple):
    """A value of the negative tangent bound, with its gradient; ``local`` is its part in the local parameters."""

    value: float
    slope: np.ndarray
    local: LocalParameters


class Scheme(ABC):
    """A way to learn hyperparameters and local parameters on ``tangent_bound``; ``start_elbo`` is the first ELBO."""

    # Whether all local parameters change together, which needs a bound convex in all of them.
    needs_one_block: ClassVar[bool]

    def __init__(self, bound: MarginalBound, box: np.ndarray, limits: Limits, bar: SearchBar):
        self.bound, self.box, self.limits, self.bar = bound, box, limits, bar
        self.units = steps(bound.learnable, bound.data.X)
        self.num_steps, self.num_evaluations, self.start_elbo = 0, 0, np.nan

    @abstractmethod
    def run(self, best: Point | None) -> tuple[Point, bool]:
        """Return the point reached from the best one, by default from the model's values, and whether it converged."""

    @property
    def steps_remain(self) -> bool:
        """Whether there are further steps."""
        return self.num_steps < self.limits.max_iterations

    def _begin(self, best: Point | None, num_sweeps: int) -> Point:
        if best is not None:
            return self._swept(best, num_sweeps, best.vector)
        bound = self.bound
        vector = bound.learnable.start()
        points = bound.points(vector, bound.inputs)
        first = Ascent(bound.initial(vector, points), np.zeros(0), False)
        return self._swept(Point(vector, bound.inputs, points, first), num_sweeps)

    def _swept(self, point: Point, count: int, vector: np.ndarray | None = None) -> Point:
        """The point after plain steps of the engine; at another vector the bound of its q(f) is not known."""
        state = point.state
        if vector is not None:
            state = without_bound(state)
            point = point._replace(vector=vector, points=self.bound.points(vector, point.inputs))
        state, elbo = sweep(self.bound.family, as_array(point.vector), point.points, state, count)
        return point._replace(ascent=Ascent(state, np.zeros(0), False), value=-float(elbo))

    def _check_start(self, elbo: float) -> None:
        if np.isnan(self.start_elbo):
            check_start(elbo)
            self.start_elbo = elbo

    def _evaluate(self, vector: np.ndarray, inputs: Inputs, local: LocalParameters) -> _Slopes | None:
        """The negative bound and its gradients in the vector and the local parameters; None if not finite."""
        self.num_evaluations += 1
        try:
            points = self.bound.points(vector, inputs)
        except ValueError:
            # The kernel matrix is not finite or not positive at these hyperparameters.
            return None
        value, (slope, slopes) = value_and_slopes(
            self.bound.family, as_array(vector), points, jax.tree.map(as_array, local)
        )
        negated = -float(value), -np.asarray(slope), LocalParameters(*(-np.asarray(part) for part in slopes))
        is_finite = all(np.isfinite(part).all() for part in (negated[0], negated[1], *negated[2]))
        return _Slopes(*negated) if is_finite else None


class Alternating(Scheme):
    """Three plain steps of the engine, then at most five evaluations of L-BFGS-B at fixed local parameters, in turns.

    It is vi-JJ for bounds by auxiliary variables, which both raise. It is vi-Taylor for Taylor expansions: at the mode
    the value is Laplace's evidence. Its slope at fixed expansion points is zero at the end. This is not the evidence's
    slope, since the mode moves with the hyperparameters.
    """

    needs_one_block: ClassVar[bool] = False

    def run(self, best: Point | None) -> tuple[Point, bool]:
        point = self._begin(best, NUM_SWEEPS)
        self._check_start(-point.value)
        while True:
            before = point.value
            point = self._swept(point, NUM_SWEEPS, self._moved(point))
            self.num_steps += 1
            if not np.isfinite(point.value):
                # Precisions of any sign may leave q improper at other hyperparameters.
                raise ValueError(
                    f"fit: {self.bound.family.objective.title} is not finite after {self.num_steps} steps of "
                    "scheme='alternating'. Give hyperparameters priors or start values on the scale of the data, or "
                    "use scheme='auto' with objective='expected'."
                )
            self.bar.step(self.bound, point)
            if abs(point.value - before) <= self.limits.tolerance * max(1.0, abs(point.value)):
                return point, True
            if not self.steps_remain:
                return point, False

    def _moved(self, point: Point) -> np.ndarray:
        """The best of at most NUM_EVALUATIONS vectors for the bound at the local parameters of a point."""
        local, count = LocalParameters.of(point.state), 0

        def limited(vector: np.ndarray, _: _Slopes | None) -> _Slopes | None:
            nonlocal count
            if count == NUM_EVALUATIONS:
                raise StopIteration
            count += 1
            return self._evaluate(vector, point.inputs, local)

        search = Search(limited, point.vector, self.units, self.box)
        with suppress(StopIteration):
            search.lbfgs(NUM_EVALUATIONS, 0.0)
        return search.x


class Hybrid(Scheme):
    """vi-JJ-hybrid: three sweeps, then L-BFGS-B on the bound in hyperparameters and local parameters jointly."""

    needs_one_block: ClassVar[bool] = True
    num_sweeps: ClassVar[int] = NUM_SWEEPS

    def run(self, best: Point | None) -> tuple[Point, bool]:
        first = self._begin(best, self.num_sweeps)
        local, size = LocalParameters.of(first.state), len(first.vector)
        shape = local.mean.shape

        def split(x: np.ndarray) -> tuple[np.ndarray, LocalParameters]:
            mean, log_variance = np.split(x[size:], 2)
            return x[:size], LocalParameters(mean.reshape(shape), log_variance.reshape(shape))

        def joined(vector: np.ndarray, local: LocalParameters) -> np.ndarray:
            return np.concatenate([vector, *map(np.ravel, local)])

        def evaluate(x: np.ndarray, _: _Slopes | None) -> _Slopes | None:
            vector, local = split(x)
            evaluated = self._evaluate(vector, first.inputs, local)
            return None if evaluated is None else evaluated._replace(slope=joined(evaluated.slope, evaluated.local))

        def point_at(x: np.ndarray, value: float) -> Point:
            vector, local = split(x)
            points = self.bound.points(vector, first.inputs)
            state = state_at(self.bound.family, as_array(vector), points, jax.tree.map(as_array, local))
            return first._replace(vector=vector, points=points, ascent=Ascent(state, np.zeros(0), False), value=value)

        def report(best: _Slopes) -> None:
            self.num_steps += 1
            # q(f) of the local parameters is for a callback alone.
            is_shown = self.bar.callback is not None
            vector = search.x[:size]
            point = point_at(search.x, best.value) if is_shown else first._replace(vector=vector, value=best.value)
            self.bar.step(self.bound, point)

        deviations = np.asarray(prior_deviations(self.bound.family, as_array(first.vector), first.points))
        search = Search(
            evaluate,
            joined(first.vector, local),
            np.concatenate([self.units, np.ravel(deviations), np.ones(local.mean.size)]),
            np.concatenate([self.box, np.full((2, 2 * local.mean.size), [[-np.inf], [np.inf]])], axis=1),
            report,
        )
        self._check_start(-np.inf if search.best is None else -search.best.value)
        converged = search.converge(self.limits.max_iterations - self.num_steps, self.limits.tolerance)
        return point_at(search.x, search.point.value), converged


class Joint(Hybrid):
    """vi-JJ-full: L-BFGS-B on the bound in hyperparameters and local parameters jointly, from the prior's moments."""

    num_sweeps: ClassVar[int] = 0


SCHEMES: dict[str, type[Scheme]] = {"alternating": Alternating, "hybrid": Hybrid, "joint": Joint}
AUTO_SCHEME = "auto"
SchemeName = Literal["auto", "alternating", "hybrid", "joint"]


def check_scheme(scheme: Any, num_starts: int | None) -> None:
    """Raise ValueError for an unknown scheme, or for several starts of a published one."""
    names = (AUTO_SCHEME, *SCHEMES)
    if not isinstance(scheme, str) or scheme not in names:
        raise ValueError(f"scheme must be one of {', '.join(map(repr, names))}; got {scheme!r}.")
    if scheme != AUTO_SCHEME and num_starts is not None:
        raise ValueError(
            f"num_starts={num_starts} has no effect with scheme={scheme!r}, which starts from the model's values: "
            "leave it out, or use scheme='auto'."
        )


def check_objective_of(scheme: str, objective: Objective) -> None:
    """Raise ValueError for an objective that a scheme cannot learn hyperparameters on."""
    if not objective.is_maximised and scheme != "alternating":
        raise ValueError(
            f"objective={objective.name!r} is learned by scheme='alternating' only, since q is not the maximum of "
            f"{objective.title}; got scheme={scheme!r}."
        )
    if scheme == AUTO_SCHEME:
        return
    if objective.is_maximised and not objective.is_monotone:
        raise ValueError(
            f"scheme={scheme!r} needs an objective that is a bound by auxiliary variables; got {objective.name!r}. "
            "Use objective='augmented', or scheme='auto'."
        )
    if SCHEMES[scheme].needs_one_block and len(objective.blocks) > 1:
        raise ValueError(
            f"scheme={scheme!r} changes all local parameters together; the likelihood multiplies latents, whose bound "
            f"must be maximised in {len(objective.blocks)} blocks. Use scheme='alternating' or scheme='auto'."
        )


def learn_by(scheme: str, model: Model, data: Data, terms: Objective, limits: Limits, bar: SearchBar) -> Maximum:
    """Maximise the bound from the model's values by a published scheme, reselecting inducing inputs between runs."""
    box = box_of({scheme: Start(model, "level")})
    bound = MarginalBound.of(trainable(model), data, terms)
    search, selection = SCHEMES[scheme](bound, box, limits, bar), Selection()
    reached, converged = search.run(None)
    while True:
        # q(f) continues from the scheme's, since a fresh start could end at another optimum. Any value replaces the
        # best one, which an approximate bound need not exceed.
        best = bound.at(reached.vector, reached) or reached
        search.num_evaluations += 1
        if not search.steps_remain:
            break
        best, selection, again = choose_again(bound, best, selection)
        if not again:
            break
        reached, converged = search.run(best)
    message = f"{terms.title} changes by less than the tolerance" if converged else "the scheme used all iterations"
    starts = {scheme: search.start_elbo}
    return Maximum(bound, best, box, scheme, starts, search.num_steps, converged, message, search.num_evaluations)
