"""Stochastic variational inference: natural-gradient steps of CAVI's bound on a few rows at a time."""

import math
import time
import warnings
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.inference import cavi as cavi_engine
from pgmodels.inference.cavi import CaviState, ConvergenceWarning, conclude
from pgmodels.inference.drive import Ascent
from pgmodels.inference.gibbs.sampler import as_key
from pgmodels.inference.inducing import choose_inputs, with_inputs
from pgmodels.inference.problem import Problem, problem_of
from pgmodels.integration import at_a_time, equal_chunks
from pgmodels.latent.factored import FactoredPrior
from pgmodels.latent.joint import JointPrior
from pgmodels.latent.mixing import pull_sites, push_moments
from pgmodels.latent.protocol import Sites
from pgmodels.latent.rows import resize_rows
from pgmodels.latent.sequential import ASCENT_OPTIONS
from pgmodels.model import Data, Model, require_model
from pgmodels.options import check_between, check_whole_number
from pgmodels.portable import Module
from pgmodels.precision import as_array, double_precision
from pgmodels.progress import progress_bar
from pgmodels.results.approximation import Approximation
from pgmodels.threads import one_thread_if_small

# Batches over which the adaptive rate takes its first averages, before any step.
_FIRST = 10
# The rate named "robbins-monro": (t + delay)^-power.
_DELAY, _POWER = 1.0, 0.7


class Naturals(NamedTuple):
    """q of the whitened coordinates v of a block of latents: P - I and P E v, with P the precision."""

    precision: Float[Array, "D D"]
    potential: Float[Array, " D"]


class Averages(NamedTuple):
    """Running averages of a natural gradient and of its square, and how many steps they remember.

    Source: Ranganath, Wang, Blei and Xing 2013.
    """

    gradient: Any
    square: Float[Array, ""]
    memory: Float[Array, ""]


class SviState(NamedTuple):
    """q, by block of latents; what the adaptive rate knows, by block of the objective; how many steps there were.

    ``rate`` is the length of the last one, the shortest of its blocks'.
    """

    naturals: tuple[Naturals, ...]
    averages: tuple[Averages, ...]
    taken: Float[Array, ""]
    rate: Float[Array, ""]


class Sparse(Module):
    """All rows, and the prior, of which every group has a factor, whose coordinates q is of."""

    objective: Augmentation = eqx.field(static=True)
    prior: JointPrior
    X: Array
    y: Array
    parameters: dict[str, Any]
    adaptive: bool = eqx.field(static=True)

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """The latents that q couples."""
        predictors = self.objective.predictors
        own = tuple((latent,) for latent in range(self.objective.num_latents))
        return own if predictors is None else predictors.latent_blocks

    def rows(self, numbers: Any) -> "Batch":
        """Some rows, with the factor of each latent at them."""
        X, y = self.X[numbers], self.y[numbers]
        groups = [group for group in self.prior.groups if isinstance(group, FactoredPrior)]
        found = [pair for group in groups for pair in [group.factor_at(X)] * group.size]
        Phi = None if self.objective.predictors is None else self.objective.predictors.matrix(y, self.parameters)
        return Batch(self, y, [A for A, _ in found], [residual for _, residual in found], Phi)


class Batch(NamedTuple):
    """Rows of a problem: the factor A (rank, b) and residual variance (b,) of each latent there, and Φ."""

    whole: Sparse
    y: Array
    factors: list[Array]
    residuals: list[Array]
    Phi: Array | None

    def moments(self, naturals: tuple[Naturals, ...]) -> tuple[Float[Array, "b p"], Float[Array, "b p"]]:
        """Mean and variance of the predictors under q."""
        size = len(self.factors)
        mean = jnp.broadcast_to(self.whole.prior.means(), (len(self.y), size))
        V = jnp.zeros((len(self.y), size, size))
        for block, own in zip(self.whole.blocks, naturals, strict=True):
            root, centre = solved(own)
            parts = jnp.split(centre, np.cumsum([len(self.factors[latent]) for latent in block])[:-1])
            # The covariance of a block's latents is U^T U.
            U = [solve_triangular(root, self._placed(block, latent), lower=True) for latent in block]
            for ours, part, left in zip(block, parts, U, strict=True):
                mean = mean.at[:, ours].add(self.factors[ours].T @ part)
                V = V.at[:, ours, ours].add(self.residuals[ours])
                for theirs, right in zip(block, U, strict=True):
                    V = V.at[:, ours, theirs].add(jnp.sum(left * right, axis=0))
        if self.Phi is None:
            return mean, jnp.diagonal(V, axis1=1, axis2=2)
        return push_moments(self.Phi, mean, V)

    def targets(self, mean: Array, variance: Array) -> tuple[Naturals, ...]:
        """The optimal q where the predictors of these rows have such marginals, and stand for all rows."""
        sites = Sites(*self.whole.objective.local_sites(mean, variance, self.y, self.whole.parameters))
        if self.Phi is None:
            h, w = sites.potential, jax.vmap(jnp.diag)(sites.precision)
        else:
            h, w = pull_sites(self.Phi, sites)
        h = h - w @ self.whole.prior.means()
        share = len(self.whole.y) / len(self.y)
        found = []
        for block in self.whole.blocks:
            parts = [[(self.factors[a] * w[:, a, b]) @ self.factors[b].T for b in block] for a in block]
            potential = jnp.concatenate([self.factors[a] @ h[:, a] for a in block])
            found.append(Naturals(share * jnp.block(parts), share * potential))
        return tuple(found)

    def _placed(self, block: tuple[int, ...], latent: int) -> Array:
        """The factor of a latent in the rows of its coordinates among those of its block."""
        own = [self.factors[other] if other == latent else 0.0 * self.factors[other] for other in block]
        return jnp.concatenate(own)


def solved(naturals: Naturals) -> tuple[Float[Array, "D D"], Float[Array, " D"]]:
    """The root of P, and E v."""
    root = jnp.linalg.cholesky(jnp.eye(len(naturals.potential)) + naturals.precision)
    return root, cho_solve((root, True), naturals.potential)


def first_state(whole: Sparse, batches: Array) -> SviState:
    """The start of CAVI, by the first of some batches (count, b); averages over all of them.

    See ``pgmodels.inference.cavi.first_state``.
    """
    batch = whole.rows(batches[0])
    size = whole.objective.num_latents
    mean = jnp.broadcast_to(whole.prior.means(), (batch.y.shape[0], size))
    prior = jnp.stack([jnp.sum(A**2, axis=0) + r for A, r in zip(batch.factors, batch.residuals, strict=True)], axis=1)
    if batch.Phi is not None:
        mean, prior = push_moments(batch.Phi, mean, jax.vmap(jnp.diag)(prior))
    naturals = batch.targets(mean, jnp.minimum(prior, 1.0))

    def gradients(numbers: Array) -> Any:
        one = whole.rows(numbers)
        return difference(one.targets(*one.moments(naturals)), naturals)

    every = jax.lax.map(gradients, batches)
    averages = []
    for index in range(len(whole.objective.blocks)):
        own = [jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), every[place]) for place in places(whole, index)]
        squares = sum(jnp.sum(leaf**2) for place in places(whole, index) for leaf in every[place]) / len(batches)
        averages.append(Averages(own, as_array(squares), as_array(float(len(batches)))))
    return SviState(naturals, tuple(averages), jnp.zeros(()), jnp.ones(()))


def places(whole: Sparse, index: int) -> list[int]:
    """The places of the blocks of latents that a block of the objective updates."""
    latents = whole.objective.latents_of(whole.objective.blocks[index])
    return [place for place, block in enumerate(whole.blocks) if set(block) <= set(latents)]


def difference(one: Any, other: Any) -> Any:
    """One tree less another."""
    return jax.tree.map(lambda a, b: a - b, one, other)


def step(whole: Sparse, state: SviState, numbers: Array, decay: Array) -> SviState:
    """For each block of the objective a step of its natural parameters towards the optimum for some rows.

    Of length 1 on all rows it is a step of CAVI. ``decay`` holds delay and power of the rate (t + delay)^-power.
    """
    batch, naturals, averages = whole.rows(numbers), list(state.naturals), list(state.averages)
    shortest = jnp.ones(())
    for index in range(len(averages)):
        target = batch.targets(*batch.moments(tuple(naturals)))
        own = places(whole, index)
        gradient = [difference(target[place], naturals[place]) for place in own]
        rate = (state.taken + decay[0]) ** -decay[1]
        if whole.adaptive:
            rate, averages[index] = adapt(averages[index], gradient)
        shortest = jnp.minimum(shortest, rate)
        for place, toward in zip(own, gradient, strict=True):
            naturals[place] = Naturals(*(now + rate * part for now, part in zip(naturals[place], toward, strict=True)))
    return SviState(tuple(naturals), tuple(averages), state.taken + 1.0, shortest)


def adapt(averages: Averages, gradient: Any) -> tuple[Array, Averages]:
    """The rate that minimises the expected distance to the optimum, and the averages after a gradient.

    Source: Ranganath, Wang, Blei and Xing 2013, algorithm 1.
    """
    share = 1.0 / averages.memory
    mean = jax.tree.map(lambda old, new: (1.0 - share) * old + share * new, averages.gradient, gradient)
    square = (1.0 - share) * averages.square + share * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient))
    of_mean = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(mean))
    rate = jnp.where(square > 0.0, of_mean / jnp.where(square > 0.0, square, 1.0), 1.0)
    return rate, Averages(mean, square, averages.memory * (1.0 - rate) + 1.0)


_first = jax.jit(first_state, compiler_options=ASCENT_OPTIONS)


@partial(jax.jit, compiler_options=ASCENT_OPTIONS)
def _pass(whole: Sparse, state: SviState, batches: Array, decay: Array) -> tuple[SviState, Array, Array]:
    """Steps on batches (count, b), one after the other.

    Also the average of E v over them, and the share of the way to where they lead that they go together.
    """

    def body(state: SviState, numbers: Array) -> tuple[SviState, tuple[Array, Array]]:
        state = step(whole, state, numbers, decay)
        return state, (jnp.concatenate([solved(own)[1] for own in state.naturals]), state.rate)

    state, (centres, rates) = jax.lax.scan(body, state, batches)
    return state, jnp.mean(centres, axis=0), 1.0 - jnp.prod(1.0 - rates)


@partial(jax.jit, compiler_options=ASCENT_OPTIONS)
def _moments(whole: Sparse, naturals: tuple[Naturals, ...], numbers: Array) -> tuple[Array, Array]:
    return whole.rows(numbers).moments(naturals)


@double_precision
@one_thread_if_small
def svi(
    model: Model,
    X: Any,
    y: Any,
    *,
    weights: Any = None,
    batch_size: int = 1000,
    rate: Any = "robbins-monro",
    max_passes: int = 100,
    tolerance: float = 0.1,
    seed: Any = 0,
    progress: bool | None = None,
) -> Approximation:
    """The Gaussian q(f) of ``cavi``, found by natural-gradient steps on batches of rows, hyperparameters held.

    X (n, d), y (n,) or (n, columns); ``weights`` (n,) as in ``cavi``. Rows are shuffled before every pass, and left out
    of it where they fill no batch; ``seed`` is an int or a JAX key. ``rate`` is the length of the steps:
    ``"robbins-monro"`` for (t + 1)^-0.7, delay and power of (t + delay)^-power, or ``"adaptive"``, which by measurement
    shrinks too soon. On all rows at once steps have length 1, and are those of CAVI.

    Stops where the averages of the whitened latents over two passes differ by less than ``tolerance``, relative to
    their size and to how far the steps of a pass go, and warns with ConvergenceWarning where that takes more than
    ``max_passes``; 0.1 left the ELBO one or two hundredths of a nat below its optimum (20,000 rows, 100 inducing
    inputs). A step of CAVI on all rows ends it, so that the ELBO is exact. Raises ValueError as ``cavi`` does, and for
    a GP whose form has no factor.
    Source: Hoffman, Blei, Wang and Paisley 2013; Wenzel et al. 2019.
    """
    model, data = require_model(model).given(X, y, weights)
    check_whole_number(batch_size, "batch_size", 1)
    check_whole_number(max_passes, "max_passes", 1)
    check_between(tolerance, "tolerance", 0.0, math.inf)
    decay, key = _decay(rate), as_key(seed)
    model = model.resolve(data.X)
    model = with_inputs(model, choose_inputs(model, data.X))
    return converge(model, data, key, batch_size, decay, max_passes, tolerance, progress)


def converge(
    model: Model,
    data: Data,
    key: Any,
    batch_size: int,
    decay: tuple[float, float] | None,
    max_passes: int,
    tolerance: float,
    progress: bool | None,
) -> Approximation:
    """Passes to the tolerance for a model whose inducing inputs are known, and a step on all rows."""
    begin = time.perf_counter()
    problem = problem_of(model, data)
    problem.prior.factors()
    whole = Sparse(
        model.augmentation, problem.prior, as_array(data.X), as_array(data.y), model.parameters, decay is None
    )
    converged, state = _ascend(whole, key, batch_size, decay, max_passes, tolerance, progress)
    if not converged:
        warnings.warn(
            f"svi did not converge: after {max_passes} passes the whitened latents still move by more than "
            f"{tolerance:g} of their size. Raise max_passes, batch_size or tolerance.",
            ConvergenceWarning,
            stacklevel=5,
        )
    last = cavi_engine.step(problem, _state_at_all(problem, whole, state))
    ascent = Ascent(last, np.asarray(last.elbo)[None], True)
    result = conclude("svi", model, data, problem, ascent, tolerance, begin)
    return replace(result, objective="cavi", converged=converged)


def _ascend(
    whole: Sparse,
    key: Any,
    batch_size: int,
    decay: tuple[float, float] | None,
    max_passes: int,
    tolerance: float,
    progress: bool | None,
) -> tuple[bool, SviState]:
    """Passes until the average of E v stands still; whether it does, and q."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    n = len(whole.y)
    size = min(batch_size, n)
    count = n // size

    def shuffled() -> Array:
        # On all rows at once sums have one order.
        order = np.arange(n) if size == n else rng.permutation(n)
        return as_array(order[: count * size].reshape(count, size))

    state = _first(whole, shuffled()[:_FIRST])
    # Without noise nothing is to be averaged out.
    given = as_array((1.0, 0.0) if decay is None or size == n else decay)
    before, converged = None, False
    with progress_bar("svi", max_passes, progress) as bar:
        for _ in range(max_passes):
            state, centre, share = _pass(whole, state, shuffled(), given)
            bar.advance()
            if not np.isfinite(np.asarray(centre)).all():
                raise ValueError(
                    "svi: the means of the latents are not finite. Look for extreme values in y, prior variances of "
                    "many orders of magnitude, or a likelihood scale close to zero."
                )
            moved = math.inf if before is None else float(jnp.linalg.norm(centre - before))
            converged = moved <= tolerance * float(share * jnp.linalg.norm(centre))
            if converged:
                break
            before = centre
    return converged, state


def _state_at_all(problem: Problem, whole: Sparse, state: SviState) -> CaviState:
    """q's moments at all rows, and the optimal sites there."""
    n, width = len(whole.y), sum(group.rank * group.size for group in whole.prior.groups)
    chunks = equal_chunks(np.arange(n), min(n, at_a_time(width)))
    parts = zip(*(_moments(whole, state.naturals, as_array(rows)) for rows in chunks), strict=True)
    size = problem.prior.num_rows
    mean, variance = (as_array(resize_rows(np.concatenate(both)[:n], size)) for both in parts)
    return CaviState(mean, variance, problem.sites(mean, variance), as_array(-jnp.inf))


def _decay(rate: Any) -> tuple[float, float] | None:
    """Delay and power of a rate, None for the adaptive one."""
    if isinstance(rate, str) and rate == "adaptive":
        return None
    if isinstance(rate, str) and rate == "robbins-monro":
        return _DELAY, _POWER
    if not isinstance(rate, tuple | list) or len(rate) != 2:
        raise ValueError(
            f"rate must be 'adaptive', 'robbins-monro' or delay and power of (t + delay)^-power; got {rate!r}."
        )
    check_between(rate[0], "the delay of rate", 0.0, math.inf)
    if float(rate[0]) < 1.0:
        raise ValueError(
            f"the delay of rate must be at least 1, or the first steps are longer than 1; got {rate[0]!r}."
        )
    # The sum of all steps must be infinite and that of their squares finite.
    check_between(rate[1], "the power of rate", 0.5, 1.0 + 1e-12)
    return float(rate[0]), float(rate[1])
