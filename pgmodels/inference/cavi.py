"""Steps of variational inference: coordinate ascent and natural gradients."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pgmodels.inference.loop import Ascent, ConvergenceWarning, Engine, backtrack
from pgmodels.inference.problem import Problem, Spread, gradient_of
from pgmodels.numerics.iteration import History, conjugate_gradients, empty_history
from pgmodels.priors.base import Sites
from pgmodels.priors.chain_posterior import push_values
from pgmodels.priors.collection import MAX_BLOCK
from pgmodels.priors.linalg import HELD
from pgmodels.runtime.messages import warn

# Maximisation of the bound over the mean of q(f) with fixed covariance: Newton-CG with products with the factor.
# The sites' precisions are far above the bound's curvature for confident classes: sweeps alone need thousands of steps.


class _Place(NamedTuple):
    """Concatenated whitened coordinates of the latents' mean, negative bound there, and squared gradient norms."""

    x: Float[Array, " D"]
    value: Float[Array, ""]
    first: Float[Array, ""]
    square: Float[Array, ""]
    num_steps: Int[Array, ""]


class _Trial(NamedTuple):
    share: Float[Array, ""]
    value: Float[Array, ""]


def can_ascend(problem: Problem) -> bool:
    """Return whether products with all factors are much cheaper than sweeps, and curvatures fit into memory."""
    rows, size = problem.prior.num_rows, problem.objective.size
    thin = all(group.has_cheap_products for group in problem.prior.groups)
    return thin and not problem.coupled and rows * size**2 <= HELD


def at_best_mean(
    problem: Problem,
    mean: Float[Array, "n p"],
    variance: Float[Array, "n p"],
    sites: Sites,
    max_steps: int = 3,
    tolerance: float = 0.1,
) -> tuple[Float[Array, "n p"], Sites]:
    """Return the predictors' mean that maximises the bound at fixed variances, and its sites, precisions unchanged.

    ``mean`` is the mean implied by ``sites``. The bound never falls. It makes at most ``max_steps`` Newton steps,
    until the gradient's norm has fallen by the factor ``tolerance``. The optimum need not be exact, since the variances
    change in the next sweep.
    """
    Phi = problem.mixing()

    def at(x: Float[Array, " D"]) -> Float[Array, "n p"]:
        f = problem.prior.latents(problem.prior.unflatten(x))
        return f if Phi is None else push_values(Phi, f)

    def bound(m: Float[Array, "n p"]) -> Float[Array, ""]:
        return problem.local_bound(m, variance)

    def value(x: Float[Array, " D"]) -> Float[Array, ""]:
        return 0.5 * x @ x - bound(at(x))

    coordinates = jnp.zeros(sum(problem.prior.ranks), mean.dtype)
    _, across = jax.linearize(at, coordinates)
    back = jax.linear_transpose(across, coordinates)
    # The mean that sites imply has coordinates A (h - w m).
    (x,) = back(sites.potential - sites.precision * mean)

    def unfinished(now: _Place) -> Bool[Array, ""]:
        return (now.num_steps < max_steps) & (now.square > tolerance**2 * now.first)

    def step(now: _Place) -> _Place:
        slope, bend = jax.linearize(jax.grad(bound), at(now.x))
        curved = jax.vmap(bend)(jnp.broadcast_to(jnp.eye(mean.shape[1])[:, None], (mean.shape[1], *mean.shape)))
        gradient = now.x - back(slope)[0]
        square = gradient @ gradient

        def product(z: Float[Array, " D"], raw: Float[Array, " D"]) -> Float[Array, " D"]:
            return z - back(jnp.einsum("cip,ic->ip", curved, across(z)))[0]

        solution = conjugate_gradients(product, -gradient, lambda residual: residual, 0.05, 100)
        # Steepest descent if the first direction has no positive curvature.
        way = jnp.where((solution.num_products == 1) & ~solution.positive, -gradient, solution.x)

        def trial(share: Array) -> _Trial:
            return _Trial(share, value(now.x + share * way))

        accepted = jax.lax.while_loop(
            lambda tried: ~(tried.value <= now.value) & (tried.share > 0.5**20),
            lambda tried: trial(0.5 * tried.share),
            trial(jnp.ones((), mean.dtype)),
        )
        rises = accepted.value <= now.value
        return _Place(
            jnp.where(rises, now.x + accepted.share * way, now.x),
            jnp.where(rises, accepted.value, now.value),
            jnp.where(now.num_steps == 0, square, now.first),
            jnp.where(rises, square, 0.0),
            now.num_steps + 1,
        )

    infinite = jnp.full((), jnp.inf, mean.dtype)
    best = jax.lax.while_loop(
        unfinished, step, _Place(x, value(x), jnp.ones_like(infinite), infinite, jnp.zeros((), int))
    )
    moved = at(best.x)
    return moved, Sites(jax.grad(bound)(moved) + sites.precision * moved, sites.precision)


class CaviState(NamedTuple):
    """The state of CAVI; moments and sites (n, predictors), which are not consistent at a start."""

    mean: Float[Array, "n p"]
    variance: Float[Array, "n p"]
    sites: Sites
    elbo: Float[Array, ""]
    rounding: Float[Array, ""]
    memory: History


class CoordinateAscent(Engine):
    """CAVI, for monotone objectives: full steps to the sites at the marginals, block by block of predictors."""

    def init(self, problem: Problem) -> CaviState:
        """Start at the prior mean and a variance of at most 1: flatter first sites may lead to a poor optimum."""
        m, v = problem.marginals()
        return start_at(problem, m, jnp.minimum(v, 1.0))

    def state_of(self, problem: Problem, sites: Sites, memory: History | None = None) -> CaviState:
        m, v, _, divergence = problem.moments(sites)
        memory = empty_history(sites) if memory is None else memory
        return CaviState(m, v, sites, *problem.elbo(m, v, divergence, sites), memory)

    def step(self, problem: Problem, state: CaviState) -> CaviState:
        """Make a sweep, preceded by an optimisation of the mean if that is cheap."""
        if problem.objective.has_fixed_sites:
            return self.plain_step(problem, state)
        mean, sites = state.mean, state.sites
        if can_ascend(problem):
            # At a start, the moments do not follow from the sites.
            mean, sites = jax.lax.cond(
                jnp.isfinite(state.elbo),
                partial(at_best_mean, problem),
                lambda mean, _, sites: (mean, sites),
                state.mean,
                state.variance,
                sites,
            )
        return self.sweep(problem, state, mean, sites)

    def sweep(self, problem: Problem, before: CaviState, mean: Float[Array, "n p"], sites: Sites) -> CaviState:
        """One sweep over the blocks of predictors with Anderson acceleration.

        Starts at a mean and the sites that imply it, which may be better than the state ``before``. If the accelerated
        step lowers the ELBO, the plain sweep is used and the history discarded.
        """
        sites = self._swept(problem, before._replace(mean=mean), sites)
        known = jnp.isfinite(before.elbo)
        memory = before.memory.after(before.sites, sites)
        further = memory.extrapolated(sites)

        def attempt(number: Int[Array, ""]) -> CaviState:
            goes_on = number == 0
            # A history from the same problem at other hyperparameters is used from the second sweep on.
            past = jax.tree.map(partial(jnp.where, known), memory.masked(goes_on), before.memory.without_iterate())
            return self.state_of(problem, jax.tree.map(partial(jnp.where, goes_on), further, sites), past)

        # A start has no sweep before it to extrapolate from.
        return backtrack(attempt, before, jnp.where(known, 0, 1), 1)[0]

    def plain_step(self, problem: Problem, state: CaviState) -> CaviState:
        """Make one sweep over the blocks of predictors."""
        return self.state_of(problem, self._swept(problem, state, state.sites))

    def _swept(self, problem: Problem, state: CaviState, sites: Sites) -> Sites:
        """The optimal sites, block by block, each at the moments that the sites before it imply."""
        for number, block in enumerate(problem.objective.blocks):
            state = state if number == 0 else self.state_of(problem, sites)
            columns = np.isin(np.arange(problem.objective.size), block)
            sites = jax.tree.map(partial(jnp.where, columns), problem.sites(state.mean, state.variance), sites)
        return sites


def start_at(problem: Problem, mean: Float[Array, "n p"], variance: Float[Array, "n p"]) -> CaviState:
    """Start from the sites at these marginals."""
    sites = problem.sites(mean, variance)
    none = jnp.zeros((), mean.dtype)
    return CaviState(mean, variance, sites, none - jnp.inf, none, empty_history(sites))


CAVI = CoordinateAscent()


# Natural-gradient ascent: steps of backtracked length towards the optimal sites, for any objective.

# Maximum halvings of a step that lowers the ELBO; after _OF_ALL of them precisions are fixed and only the mean moves.
_HALVINGS, _OF_ALL = 60, 30


class GaussianState(NamedTuple):
    """q(f): moments of the predictors, the sites that produced them, target sites, ELBO, and Anderson history.

    ``slope`` has the optimal sites at the moments, ``target`` the same with ``with_responses``. ``rounding`` is
    the ELBO's rounding error, ``length`` the length of the last step, 0 if none raised the ELBO. Steps must not
    lower the sum of the ELBO and ``excess``: 0, or the difference to the log posterior density at the mean (see
    ``Objective.is_maximised``). ``missed`` is the first-order change of the ELBO along the last step at its end, in
    nats. It is large if the step passed the optimum.
    """

    mean: Float[Array, "n p"]
    variance: Spread
    sites: Sites
    slope: Sites
    target: Sites
    elbo: Float[Array, ""]
    rounding: Float[Array, ""]
    length: Float[Array, ""]
    memory: History
    excess: Float[Array, ""]
    missed: Float[Array, ""]


class NaturalGradient(Engine):
    """Steps along the natural gradient, for objectives whose full steps may lower the ELBO."""

    def init(self, problem: Problem) -> GaussianState:
        """Return the precisions at the prior mean and a variance of at most 1, without gradient and bound.

        The first step computes the bound. The second goes along the gradient, halved where the full one makes a rate
        overflow, as for large counts.
        """
        mean, variance = problem.marginals()
        largest = jnp.max(variance) if not problem.coupled else jnp.max(jnp.trace(variance, axis1=1, axis2=2))
        precision = positive_part(problem.sites(mean, variance / jnp.maximum(1.0, largest)).precision)
        sites, none = Sites(pull(precision, mean), precision), jnp.zeros((), mean.dtype)
        # No bound yet, and a first step of full length, to the sites themselves.
        return GaussianState(
            mean, variance, sites, slope=sites, target=sites, elbo=none - jnp.inf, rounding=none, length=none + 1.0,
            memory=empty_history(sites), excess=none, missed=none,
        )  # fmt: skip

    def state_of(
        self, problem: Problem, sites: Sites, length: Array | float = 1.0, memory: History | None = None
    ) -> GaussianState:
        mean, variance, _, divergence = problem.moments(sites)
        elbo, slope, coupling = problem.elbo_and_sites(mean, variance, divergence, sites)
        excess = jnp.zeros_like(elbo.value)
        if not problem.objective.is_maximised:
            excess = problem.log_posterior(mean, sites) - elbo.value
        memory = empty_history(sites) if memory is None else memory
        target = with_responses(problem, slope, sites, mean, coupling)
        length, missed = jnp.asarray(length, mean.dtype), jnp.zeros_like(elbo.value)
        return GaussianState(mean, variance, sites, slope, target, *elbo, length, memory, excess, missed)

    def step(self, problem: Problem, state: GaussianState) -> GaussianState:
        """Make a natural-gradient step towards the sites at the marginals, halved until the ELBO does not fall.

        Source: Khan and Lin 2017; the full step is the fixed point of Opper and Archambeau 2009. Unless the problem
        ``takes_signed`` precisions, they are clipped at zero. This changes the direction for log densities that are
        not concave. If no step along it raises the ELBO, only the mean moves, with precisions fixed, which always
        raises it. Signed precisions may have any values for which the posterior is proper. The precisions of a state
        without a bound, of other hyperparameters, may be improper: then the second attempt clips them.
        """
        target = state.target if problem.takes_signed else positive(state.slope, state.mean)
        fixed_precision = with_precision(state.slope, state.mean, state.sites.precision)
        memory = state.memory.after(state.sites, target)
        further = memory.extrapolated(target)
        longest = jnp.minimum(1.0, 2.0 * state.length)
        # Extrapolate only after full steps; a history whose extrapolation fails is discarded. A state without a bound,
        # with its moments and history, belongs to another problem.
        known = jnp.isfinite(state.elbo)
        first = jnp.where(known & (state.length >= 1.0) & state.memory.started, -1, 0)
        may_clip = problem.objective.signed and problem.takes_signed and not problem.coupled
        clipped = positive(state.slope, state.mean) if may_clip else target

        def attempt(count: Int[Array, ""]) -> GaussianState:
            halvings = jnp.where(count < _OF_ALL, count, count - _OF_ALL)
            clips = may_clip & ~known & (count == 1)
            length = jnp.where((count < 0) | clips, 1.0, longest * 0.5**halvings)
            aim = jax.tree.map(
                lambda *choices: jnp.select([count < 0, clips, count < _OF_ALL], choices[:3], choices[3]),
                further,
                clipped,
                target,
                fixed_precision,
            )
            sites = jax.tree.map(lambda now, then: now + length * (then - now), state.sites, aim)
            return self.state_of(problem, sites, length, memory.masked(known & (count == first) & (length >= 1.0)))

        moved, rises = backtrack(attempt, state, first, _HALVINGS - 1, lambda state: state.elbo + state.excess)
        moved = moved._replace(missed=_missed(problem, state, moved))
        stays = state._replace(length=jnp.zeros_like(state.length), missed=jnp.zeros_like(state.missed))
        return jax.tree.map(lambda new, old: jnp.where(rises, new, old), moved, stays)

    def plain_step(self, problem: Problem, state: GaussianState) -> GaussianState:
        """Make a step of full length, halved until the ELBO does not fall."""
        return self.step(problem, state._replace(length=jnp.ones_like(state.length), memory=empty_history(state.sites)))

    def finish(self, name: str, problem: Problem, ascent: Ascent) -> Ascent:
        """Mark the ascent as not converged if it stopped because no step raises the ELBO."""
        if not ascent.converged or not _is_stalled(problem, ascent.state):
            return ascent
        remedy = (
            "Check for extreme values in y, a likelihood scale close to zero, and kinks of the formula: quadrature is "
            "exact for a kink in one latent that is written with abs, as in abs(y - f)."
        )
        if not problem.takes_signed:
            remedy += (
                " Negative precisions are clipped at zero unless all latents are factorised jointly, which needs at "
                f"most {MAX_BLOCK} coordinates in all, as with pgm.GP(kernel, form=pgm.Inducing(...))."
            )
        warn(
            f"{name} did not converge: after {len(ascent.trace) - 1} iterations no step raises the ELBO, and it is "
            f"not at its optimum. {remedy}",
            ConvergenceWarning,
        )
        return ascent._replace(converged=False)


def _missed(problem: Problem, before: GaussianState, after: GaussianState) -> Array:
    """The gradient in the moments after a step, times the change of these; 0 if q is no maximum."""
    if not problem.objective.is_maximised:
        return jnp.zeros_like(after.elbo)
    target = after.slope if problem.takes_signed else positive(after.slope, after.mean)
    potential, precision = (aim - site for aim, site in zip(target, after.sites, strict=True))
    mean, spread = after.mean - before.mean, after.variance - before.variance
    outer = pull(precision, after.mean + before.mean) * mean
    return abs(jnp.sum(potential * mean) - 0.5 * (jnp.sum(outer) + jnp.sum(precision * spread)))


def with_responses(
    problem: Problem, target: Sites, sites: Sites, mean: Array, coupling: Float[Array, "n p p"] | None
) -> Sites:
    """Return target sites at the ``mean`` of sites, with the change of gradients by the other predictors' new means.

    The means then move by a Newton step for all predictors: the inverse of K^-1 + w + coupling times the gradient.
    It uses at most 20 conjugate gradients, preconditioned by the covariances given the sites.
    """
    if coupling is None:
        return target
    change = target.precision - sites.precision + coupling
    posterior: Any = problem.condition(sites)

    def product(moved: Array, raw: Array) -> Array:
        return raw + jnp.einsum("ipq,iq->ip", change, moved)

    gradient = jnp.asarray(gradient_of(target, mean) - gradient_of(sites, mean))
    moved = conjugate_gradients(product, gradient, posterior.times, 0.05, 20).x
    return target._replace(potential=target.potential - jnp.einsum("ipq,iq->ip", coupling, moved))


def with_precision(sites: Sites, mean: Array, precision: Array) -> Sites:
    """Return sites of another precision with the same gradient in the mean: h = E g + W m."""
    return Sites(sites.potential - pull(sites.precision, mean) + pull(precision, mean), precision)


def positive(sites: Sites, mean: Array) -> Sites:
    """Return the same sites with the nearest non-negative precisions."""
    return with_precision(sites, mean, positive_part(sites.precision))


def positive_part(precision: Array) -> Array:
    """Return the nearest non-negative precisions, (n, p), or positive semi-definite ones, (n, p, p)."""
    if precision.ndim == 2:
        return jnp.maximum(precision, 0.0)

    def nearest(W: Array) -> Array:
        values, vectors = jnp.linalg.eigh(0.5 * (W + W.T))
        return (vectors * jnp.maximum(values, 0.0)) @ vectors.T

    # A sequential loop: see pgmodels.priors.linalg.
    return jax.lax.map(nearest, precision)


def pull(precision: Array, mean: Array) -> Array:
    """Return W m of each datum."""
    return precision * mean if precision.ndim == 2 else jnp.einsum("ipq,iq->ip", precision, mean)


def _is_stalled(problem: Problem, state: GaussianState) -> bool:
    """Whether steps are short although sites are over 0.01 posterior deviations from the marginals' optimal ones."""
    if float(state.length) > 1e-3:
        return False
    m, sites = state.mean, state.sites
    wanted = state.slope if problem.takes_signed else positive(state.slope, m)
    by_mean = wanted.potential - pull(wanted.precision, m) - (sites.potential - pull(sites.precision, m))
    by_precision, v = np.asarray(wanted.precision - sites.precision), np.asarray(state.variance)
    v = np.diagonal(v, axis1=1, axis2=2) if problem.coupled else v
    scale = np.sqrt(np.maximum(v, 0.0))
    squares = scale[:, :, None] * scale[:, None, :] if problem.coupled else v
    largest = max(np.max(np.abs(by_mean) * scale), np.max(np.abs(by_precision * squares)))
    return not largest <= 0.01


def is_clipped(state: GaussianState) -> bool:
    """Return whether the optimal precision of a site is below zero."""
    w = np.asarray(state.slope.precision)
    return bool(np.any(w < -1e-8 * np.max(np.abs(w), initial=0.0)))


NATURAL_GRADIENT = NaturalGradient()
