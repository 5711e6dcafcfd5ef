"""Steps of stochastic variational inference with a subset of the latents."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from pgmodels.inference.svi_step import (
    Batch,
    DataBatch,
    NaturalParameters,
    Rates,
    StochasticProblem,
    SviState,
    WindowAverage,
    divergence_of,
    to_moments,
)
from pgmodels.model import Model
from pgmodels.numerics.iteration import adam_step, initial_adam
from pgmodels.objectives.base import Objective, Tangent
from pgmodels.priors.base import weighted
from pgmodels.priors.inducing import AUTOMATIC
from pgmodels.priors.linalg import over_states, solve_columns
from pgmodels.runtime.messages import shorten
from pgmodels.runtime.precision import Module


class LatentSample(Module):
    """Latent subsampling: ``count`` latents per step, drawn with a key, and the tangent of the sum over all."""

    bound: Tangent = eqx.field(static=True)
    count: int = eqx.field(static=True)
    key: Array

    @property
    def share(self) -> float:
        """The share of the latents in a step."""
        return self.count / self.bound.size


class LogSum(NamedTuple):
    """log S0(x) = ``weights`` · (A(x), 1), with A the prior's factor; ``curvature`` averages the squared features.

    The loss of the tangent, E[S / S0 + log S0], is least where S0 is the best fit of S(x) by these features.
    """

    weights: Float[Array, " F"]
    curvature: Float[Array, "F F"]


def features(A: Float[Array, "M b"]) -> Float[Array, "b F"]:
    """Return the features of rows, in which log S0 is linear."""
    return jnp.concatenate([A.T, jnp.ones((A.shape[1], 1))], axis=1)


def fit_log_sum(A: Float[Array, "M b"], log_sums: Float[Array, " b"], num_rows: Array) -> LogSum:
    """Ridge regression on known log sums; weights have the prior N(0, 1)."""
    phi, size = features(A), len(log_sums)
    curvature = phi.T @ phi / size
    return LogSum(_solve(curvature, phi.T @ log_sums / size, num_rows), curvature)


def newton_update(
    now: LogSum, A: Float[Array, "M b"], log_ratios: Float[Array, " b"], num_rows: Array, rate: Array
) -> LogSum:
    """Make a Newton step of limited length on the loss, from the logs of unbiased estimates of S / S0 at some rows."""
    phi, size = features(A), len(log_ratios)
    # The slope of -S / S0 - log S0 is S / S0 - 1, and its curvature 1 where S0 = S. No row moves its log S0 by more
    # than 1, which estimates from a share of the latents never do where S0 = S and the rate is at most that share.
    excess = jnp.minimum(jnp.expm1(log_ratios), 1.0 / rate)
    curvature = now.curvature + rate * (phi.T @ phi / size - now.curvature)
    return LogSum(
        now.weights + rate * _solve(curvature, phi.T @ excess / size - now.weights / num_rows, num_rows), curvature
    )


def _solve(curvature: Array, slope: Array, num_rows: Array) -> Array:
    return cho_solve((jnp.linalg.cholesky(curvature + jnp.eye(len(slope)) / num_rows), True), slope)


def latent_sample_of(model: Model, objective: Objective, count: int, key: Array) -> LatentSample:
    """Return the latent subsampling of a model. Raises ValueError if the model or its objective does not allow it."""
    size, bound = model.num_latents, objective.tangent()
    if count > size:
        raise ValueError(f"class_batch_size must be at most {size}, the number of latents of the model; got {count}.")
    form = model.gps[0].form
    if len(model.gps) > 1 or not form.num_inputs or form.select == AUTOMATIC:
        raise ValueError(
            f"class_batch_size needs one GP of size={size} with inducing inputs, so that all latents share a "
            f"kernel; got {shorten(model.gps)}. Use pgm.GP(kernel, size={size}, form=pgm.Inducing(100))."
        )
    return LatentSample(bound, count, jax.random.fold_in(key, size))


class Marginals(NamedTuple):
    """Means and variances of some latents at the rows of a batch, their E v, and KL(q || prior) of each."""

    mean: Float[Array, "b k"]
    variance: Float[Array, "b k"]
    centres: Float[Array, "k M"]
    divergences: Float[Array, " k"]


def draw_latents(sample: LatentSample, num_steps: Float[Array, ""]) -> Int[Array, " k"]:
    """Return the latents of a step, drawn without replacement."""
    key = jax.random.fold_in(sample.key, num_steps.astype(int))
    return jax.random.choice(key, sample.bound.size, (sample.count,), replace=False)


def marginals(batch: Batch, naturals: NaturalParameters) -> Marginals:
    """Return the marginals, at all rows, of latents with these natural parameters."""
    A, residual, level = batch.factors[0], batch.residuals[0], batch.means[0]

    def one(q: NaturalParameters) -> tuple[Array, ...]:
        root, centre = to_moments(q)
        variance = residual + jnp.sum(solve_columns(root, A) ** 2, axis=0)
        return level + centre @ A, variance, centre, divergence_of(root, centre)

    mean, variance, centres, divergences = over_states(one, naturals)
    return Marginals(mean.T, variance.T, centres, divergences)


def marginals_of(
    batch: Batch, naturals: NaturalParameters, chosen: Int[Array, "b i"]
) -> tuple[Float[Array, "b i"], Float[Array, "b i"]]:
    """Return means and variances of the latents that each row selects."""
    level = batch.means[0]

    def one(row: tuple[NaturalParameters, Array, Array]) -> tuple[Array, Array]:
        q, a, residual = row
        root, centre = to_moments(q)
        return level + centre @ a, residual + jnp.sum(solve_triangular(root, a, lower=True) ** 2)

    latents, count = chosen.ravel(), chosen.shape[1]
    A, residual = jnp.repeat(batch.factors[0].T, count, axis=0), jnp.repeat(batch.residuals[0], count)
    # Gathered beforehand: a loop that reads q would copy all of it, since steps write in place.
    mean, variance = jax.lax.map(one, (jax.tree.map(lambda leaf: leaf[latents], naturals), A, residual))
    return mean.reshape(chosen.shape), variance.reshape(chosen.shape)


def inclusion_weights(latents: Int[Array, " k"], chosen: Int[Array, "b i"], share: float) -> Float[Array, "b k"]:
    """Horvitz-Thompson weights: 0 for latents that a row selects, which are always included, else 1 / share."""
    return jnp.where(jnp.any(latents[:, None] == chosen[:, None, :], axis=2), 0.0, 1.0 / share)


def targets(
    sample: LatentSample,
    batch: Batch,
    both: tuple[Float[Array, "b k"], Float[Array, "b k"]],
    latents: Int[Array, " k"],
    log_scale: Float[Array, " b"],
) -> NaturalParameters:
    """Return the optimal q of some latents given their marginals, with the rows weighted to represent all."""
    h, w = sample.bound.sites(*both, batch.problem.y, batch.problem.parameters, latents, log_scale)
    h, w = (weighted(batch.problem.row_weights, part) for part in (h - w * batch.means[0], w))
    A = batch.factors[0]
    precision = jax.lax.map(lambda weights: (A * weights) @ A.T, w.T)
    return NaturalParameters(batch.scale * precision, batch.scale * h.T @ A.T)


def log_total(
    bound: Tangent, batch: Batch, *terms: tuple[Float[Array, "b k"], Float[Array, "b k"]]
) -> Float[Array, " b"]:
    """Return the log of the constant term of S plus other terms of it, given by their logarithms and weights."""
    constant = bound.constant(batch.problem.y, batch.problem.parameters)[:, None]
    logs, weights = zip((jnp.zeros_like(constant), constant), *terms, strict=True)
    return logsumexp(jnp.concatenate(logs, axis=1), b=jnp.concatenate(weights, axis=1), axis=1)


def first_state(problem: StochasticProblem, sample: LatentSample, vector: Array, rows: DataBatch) -> SviState:
    """Return the initial state of all latents, from the first batch; see ``svi_step.first_state``."""
    batch, size = problem.batch(vector, rows.number(0)), sample.bound.size
    prior = jnp.sum(batch.factors[0] ** 2, axis=0) + batch.residuals[0]
    mean = jnp.full((len(batch.problem.y), size), batch.means[0])
    both = (mean, jnp.broadcast_to(jnp.minimum(prior, 1.0)[:, None], mean.shape))
    every = jnp.arange(size)
    log_sums = sample.bound.log_sums(*both, batch.problem.y, batch.problem.parameters, every)
    log_scale = log_total(sample.bound, batch, (log_sums, jnp.ones_like(log_sums)))
    naturals = targets(sample, batch, both, every, log_scale)
    log_sum = fit_log_sum(batch.factors[0], log_scale, problem.num_rows)
    return SviState((naturals,), (), initial_adam(vector), jnp.zeros(size), jnp.ones(()), log_sum)


class Sampled(NamedTuple):
    """The input of a step: the marginals of its latents and of those that the rows select, and log S0 of each row.

    ``first`` is 1 where a row selects a latent for the first time.
    """

    marginals: Marginals
    chosen: Int[Array, "b i"]
    first: Float[Array, "b i"]
    at_chosen: tuple[Float[Array, "b i"], Float[Array, "b i"]]
    log_scale: Float[Array, " b"]


def estimated_log_sum(
    sample: LatentSample, batch: Batch, sampled: Sampled, latents: Int[Array, " k"], share: float
) -> Float[Array, " b"]:
    """Return the log of the selected latents' part of S plus the other latents' part in a step over ``share``.

    S is estimated without bias at the share of the latents in a step; at 1 this is the part of it in the step.
    """
    bound, data = sample.bound, (batch.problem.y, batch.problem.parameters)
    log_sums = bound.log_sums(sampled.marginals.mean, sampled.marginals.variance, *data, latents)
    others = (log_sums, inclusion_weights(latents, sampled.chosen, share))
    return log_total(bound, batch, (bound.log_sums(*sampled.at_chosen, *data, sampled.chosen), sampled.first), others)


def sampled_marginals(
    sample: LatentSample,
    batch: Batch,
    naturals: NaturalParameters,
    before: NaturalParameters,
    log_sum: LogSum,
    latents: Int[Array, " k"],
) -> Sampled:
    """Return the marginals of latents, and S0 from before the latents were drawn; S itself if the step has all latents.

    S0 is at least the part of S that a row selects, which is known.
    """
    bound, data = sample.bound, (batch.problem.y, batch.problem.parameters)
    chosen, first = bound.selected(*data)
    at_chosen = marginals_of(batch, naturals, chosen)
    known = log_total(bound, batch, (bound.log_sums(*at_chosen, *data, chosen), first))
    log_scale = jnp.maximum(features(batch.factors[0]) @ log_sum.weights, known)
    sampled = Sampled(marginals(batch, before), chosen, first, at_chosen, log_scale)
    if sample.share == 1.0:
        sampled = sampled._replace(log_scale=estimated_log_sum(sample, batch, sampled, latents, 1.0))
    return sampled._replace(log_scale=jax.lax.stop_gradient(sampled.log_scale))


def estimated_bound(
    sample: LatentSample, batch: Batch, sampled: Sampled, latents: Int[Array, " k"]
) -> Float[Array, ""]:
    """Return an unbiased estimate of Σ of the tangents - KL(q || prior) from some rows and latents."""
    bound, share, data = sample.bound, sample.share, (batch.problem.y, batch.problem.parameters)
    terms = bound.terms(sampled.marginals.mean, sampled.marginals.variance, *data, latents, sampled.log_scale)
    at_chosen = bound.terms(*sampled.at_chosen, *data, sampled.chosen, sampled.log_scale)
    total = jnp.sum(inclusion_weights(latents, sampled.chosen, share) * terms, axis=1)
    total = total + jnp.sum(sampled.first * at_chosen, axis=1) + bound.rest(*data, sampled.log_scale)
    likely = batch.scale * jnp.sum(weighted(batch.problem.row_weights, total))
    return likely - jnp.sum(sampled.marginals.divergences) / share


class LatentStepInfo(NamedTuple):
    """Diagnostics of a step: the bound and E v at its start, its latents, their new q, and step sizes."""

    bound: Float[Array, ""]
    latents: Int[Array, " k"]
    centres: Float[Array, "k M"]
    naturals: NaturalParameters
    rates: Float[Array, " k"]


def step(
    problem: StochasticProblem, sample: LatentSample, state: SviState, rows: DataBatch, rates: Rates
) -> tuple[SviState, LatentStepInfo]:
    """Make a natural-gradient step of some latents on some rows, and a step of Adam.

    The step size of a latent depends on the number of its own steps. In expectation over the latents, the step is the
    natural gradient of all at the same S0, times the share of latents in a step. Sites are limited if S0 is far below
    the part of S in the step, as in a first step with latents of large variance.
    """
    latents = draw_latents(sample, state.values.num_steps)
    naturals = state.naturals[0]
    before = jax.tree.map(lambda leaf: leaf[latents], naturals)
    if state.log_sum is None:
        raise TypeError("a step with latent subsampling needs a state of such steps.")
    log_sum = state.log_sum

    def bound(vector: Array) -> tuple[Array, tuple[Batch, Sampled]]:
        batch = problem.batch(vector, rows)
        sampled = sampled_marginals(sample, batch, naturals, before, log_sum, latents)
        return estimated_bound(sample, batch, sampled, latents) + problem.log_prior_at(vector), (batch, sampled)

    (value, (batch, sampled)), slope = jax.value_and_grad(bound, has_aux=True)(state.values.vector)
    moments = (sampled.marginals.mean, sampled.marginals.variance)
    # Sites are of a log S0 at most 1 below the log of the part of S in the step. Without this limit they may be so
    # strong, where S0 is wrong, that later steps hardly move q. At 0 they would often be those of a larger S0 than the
    # bound's, by which hyperparameters are learned: kernel variances were found too small.
    at_least = estimated_log_sum(sample, batch, sampled, latents, 1.0) - 1.0
    toward = targets(sample, batch, moments, latents, jnp.maximum(sampled.log_scale, at_least))
    rate = rates.length(state.num_steps[latents])
    moved = NaturalParameters(
        before.precision + rate[:, None, None] * (toward.precision - before.precision),
        before.potential + rate[:, None] * (toward.potential - before.potential),
    )
    length = sample.share * rates.length(sample.share * state.values.num_steps)
    ratios = estimated_log_sum(sample, batch, sampled, latents, sample.share) - sampled.log_scale
    following = newton_update(log_sum, batch.factors[0], ratios, problem.num_rows, length)
    values = adam_step(state.values, slope, rates.learning, problem.units)
    every = jax.tree.map(lambda old, new: old.at[latents].set(new), naturals, moved)
    after = SviState((every,), (), values, state.num_steps.at[latents].add(1.0), jnp.min(rate), following)
    return after, LatentStepInfo(value, latents, sampled.marginals.centres, moved, rate)


def advance(
    problem: StochasticProblem,
    sample: LatentSample,
    state: SviState,
    rows: DataBatch,
    rates: Rates,
    first: Array | int,
    last: Array | int,
) -> tuple[SviState, WindowAverage]:
    """Steps ``first`` to ``last`` - 1, cycling through the batches; averages of a latent are over its own steps."""
    zeros = lambda tree: jax.tree.map(jnp.zeros_like, tree)  # noqa: E731
    start, values = state, jnp.zeros_like(state.values.vector)
    q = state.naturals[0]
    sums = (zeros(q), values, values, jnp.zeros_like(q.potential), jnp.zeros(()), jnp.ones_like(state.num_steps))

    def body(index: Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        state, (naturals, vectors, squares, centres, bounds, remaining) = carry
        state, info = step(problem, sample, state, rows.number(index), rates)
        latents, vector = info.latents, state.values.vector
        naturals = jax.tree.map(lambda total, now: total.at[latents].add(now), naturals, info.naturals)
        centres, remaining = centres.at[latents].add(info.centres), remaining.at[latents].multiply(1.0 - info.rates)
        return state, (naturals, vectors + vector, squares + vector**2, centres, bounds + info.bound, remaining)

    result = jax.lax.fori_loop(first, last, body, (state, sums))
    state, (naturals, vectors, squares, centres, bounds, remaining) = result
    visits, count = state.num_steps - start.num_steps, last - first

    def averaged(total: Array, now: Array) -> Array:
        counts = visits.reshape(-1, *[1] * (total.ndim - 1))
        return jnp.where(counts > 0.0, total / jnp.maximum(counts, 1.0), now)

    now = over_states(lambda each: to_moments(each)[1], state.naturals[0])
    window = WindowAverage(
        (jax.tree.map(averaged, naturals, state.naturals[0]),),
        vectors / count,
        squares / count,
        averaged(centres, now).ravel(),
        bounds / count,
        1.0 - jnp.mean(remaining),
    )
    return state, window
