"""The evidence of latents that are Markov processes by particles, which move by the Gaussian posterior given sites.

The estimate of p(y) is unbiased, and the variance of its logarithm grows with the number of rows, where that of weights
of whole draws grows exponentially. Source: Del Moral 2004; Guarniero, Johansen and Lee 2017 (twisted proposals).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pgmodels.likelihoods.expression import Environment
from pgmodels.model import Model
from pgmodels.priors.base import Sites
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.markov.chain import apply, roots
from pgmodels.priors.markov.prior import chain_at
from pgmodels.priors.markov.response import information, steps_given
from pgmodels.priors.posterior import Posterior
from pgmodels.runtime.jit import compiled

# Independent runs, whose spread gives the standard error.
NUM_RUNS = 8


class ParticleEstimate(NamedTuple):
    """log p(y), and its standard error from independent runs."""

    value: float
    standard_error: float


class Moves(NamedTuple):
    """Of one group, at the sorted rows: F and roots of Q of its latents' deviations from their means given sites."""

    transition: Float[Array, "n l d d"]
    root: Float[Array, "n l d d"]


def require_one_line(prior: PriorCollection, is_coupled: bool, call: str) -> None:
    """Raise ValueError unless all latents are independent Markov processes of one column, for particles along it."""
    if line_of(prior, is_coupled) is None:
        raise ValueError(
            f"{call} with a GP of form=pgm.Markov() needs all GPs of that form, along the same column of X, and a "
            "formula that combines none of them; the model has others: choose pgm.Dense() or pgm.Inducing(300) for all."
        )


def line_of(prior: PriorCollection, is_coupled: bool) -> int | None:
    """The column along which all latents are Markov processes; None if there is none, or if sites couple them."""
    if is_coupled or any(group.markov_column is None for group in prior.groups):
        return None
    columns = sorted({column for group in prior.groups for column in _reads(group)})
    return None if len(columns) > 1 else (columns or [0])[0]


def _reads(group: Any) -> list[int]:
    """The columns that the kernel of a group reads; none of a constant."""
    return list(group.kernel.reads(group.X.shape[1]))


def estimate(log_evidences: np.ndarray) -> ParticleEstimate:
    """The estimate from those of independent runs, (runs,)."""
    largest = log_evidences.max()
    evidences = np.exp(log_evidences - largest)
    error = evidences.std(ddof=1) / evidences.mean() / np.sqrt(len(evidences))
    return ParticleEstimate(float(largest + np.log(evidences.mean())), float(error))


@partial(compiled, static_argnames="num_particles", on_one_thread=True)
def particle_runs(
    model: Model,
    posterior: Posterior,
    share: Float[Array, ""],
    y: Array,
    row_weights: Array | None,
    keys: Array,
    num_particles: int,
) -> Float[Array, " runs"]:
    """log p(y) under a model without priors, for each key; the posterior is given sites on each row's latents.

    Particles move by the posterior given ``share`` times the sites' precisions.
    """
    return traced_particle_runs(model, posterior.tempered(share), y, row_weights, keys, num_particles)


def traced_particle_runs(
    model: Model, posterior: Posterior, y: Array, row_weights: Array | None, keys: Array, num_particles: int
) -> Float[Array, " runs"]:
    """``particle_runs`` within a compiled program."""
    formula, parameters = model.likelihood.formula(model.num_latents), model.parameters
    weights = jnp.ones(len(y)) if row_weights is None else row_weights
    order, moves = moves_along(posterior, weights)
    mean, (h, w) = posterior.moments()[0], posterior.sites
    rows = (moves, *(part[order] for part in (mean, h, w, y, weights)), jnp.arange(len(y)))

    def run(key: Array) -> Array:
        def step(before: tuple[Any, Array, Array], row: tuple[Any, ...]) -> tuple[tuple[Any, Array, Array], None]:
            states, log_weights, total = before
            moves, mean, h, w, y, weight, number = row
            noise_key, place_key = jax.random.split(jax.random.fold_in(key, number))
            states, log_weights, gained = _resampled(place_key, states, log_weights)
            states = tuple(
                apply(move.transition, state)
                + apply(move.root, jax.random.normal(jax.random.fold_in(noise_key, i), state.shape))
                for i, (move, state) in enumerate(zip(moves, states, strict=True))
            )
            f = mean + jnp.concatenate([state[:, :, 0] for state in states], axis=1)
            terms = formula.log_evaluate(Environment(y[None], f[:, None], parameters))[:, 0, 0]
            terms = jnp.where(weight > 0, weight * terms, 0.0)
            log_weights = log_weights + terms - jnp.sum(h * f - 0.5 * w * f**2, axis=1)
            return (states, log_weights, total + gained), None

        start = tuple(jnp.zeros((num_particles, *move.root.shape[1:3])) for move in moves)
        nothing = jnp.zeros(num_particles), jnp.zeros(())
        (_, log_weights, total), _ = jax.lax.scan(step, (start, *nothing), rows)
        return total + _log_mean(log_weights)

    return posterior.log_normalizer() + jax.lax.map(run, keys)


def moves_along(posterior: Posterior, row_weights: Float[Array, " n"]) -> tuple[Int[Array, " n"], tuple[Moves, ...]]:
    """The order of the rows in time, padding last, and the moves of each group along it."""
    prior, moves = posterior.prior, []
    every_time = [prior.at_rows(group.X[:, group.markov_column], index) for index, group in enumerate(prior.groups)]
    # Padding may have the time of any row.
    every_time = [jnp.where(row_weights > 0, times, jnp.max(times)) for times in every_time]
    # A constant has one input, whatever the rows' times.
    leader = next((index for index, group in enumerate(prior.groups) if _reads(group)), 0)
    order = jnp.argsort(every_time[leader])
    for group, part, times in zip(prior.groups, prior.slices(), every_time, strict=True):
        # Rows with equal times are steps of no length.
        chain = chain_at(group.kernel.to_state_space(), times[order])  # type: ignore[attr-defined]
        L, sites = roots(chain.noise), Sites(*(values[order] for values in posterior.sites.columns(part)))

        def of_latent(precision: Array, chain: Any = chain, L: Array = L) -> Moves:
            on_states = jnp.zeros_like(L).at[:, 0, 0].set(precision)
            transition, noise = steps_given(chain, L, information(chain, L, on_states))
            return Moves(transition, roots(noise))

        moves.append(jax.vmap(of_latent, in_axes=1, out_axes=1)(sites.precision))
    return order, tuple(moves)


def _resampled(key: Array, states: Any, log_weights: Float[Array, " N"]) -> tuple[Any, Array, Array]:
    """Particles of equal weights, by systematic resampling, if their weights have an effective size below half."""
    weights = jax.nn.softmax(log_weights)
    size = len(weights)

    def resample() -> tuple[Any, Array, Array]:
        heights = (jnp.arange(size) + jax.random.uniform(key)) / size
        chosen = jnp.minimum(jnp.searchsorted(jnp.cumsum(weights), heights), size - 1)
        return jax.tree.map(lambda leaf: leaf[chosen], states), jnp.zeros(size), _log_mean(log_weights)

    few = jnp.sum(weights**2) * size > 2.0
    return jax.lax.cond(few, resample, lambda: (states, log_weights, jnp.zeros(())))


def _log_mean(log_weights: Float[Array, " N"]) -> Float[Array, ""]:
    return jax.scipy.special.logsumexp(log_weights) - np.log(len(log_weights))
