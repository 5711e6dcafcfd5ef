"""The evidence of latents that are Markov processes by particles, which move by the Gaussian posterior given sites.

The estimate of p(y) is unbiased, and the variance of its logarithm grows with the number of rows, where that of weights
of whole draws grows exponentially. Source: Del Moral 2004; Guarniero, Johansen and Lee 2017 (twisted proposals).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.likelihoods.expression import Environment
from pgmodels.model import Model
from pgmodels.priors.chain_blocks import Layout, moves_along
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.markov.chain import apply
from pgmodels.priors.posterior import Posterior
from pgmodels.runtime.jit import compiled

# Independent runs, whose spread gives the standard error.
NUM_RUNS = 8
# Coefficients of effects up to which particles take seconds: products of 64 entries for each of them and row.
_MOST_COEFFICIENTS = 64


class ParticleEstimate(NamedTuple):
    """log p(y), and its standard error from independent runs."""

    value: float
    standard_error: float


def require_line(prior: PriorCollection, is_coupled: bool, call: str) -> Layout:
    """``layout_along``. Raises ValueError if there is none."""
    layout = layout_along(prior, is_coupled)
    if layout is None:
        raise ValueError(
            f"{call} with a GP of form=pgm.Markov() needs the other GPs of that form too, along the same column of X, "
            f"or with at most {_MOST_COEFFICIENTS} coefficients in all, such as groups and linear terms; the model has "
            "others: choose pgm.Dense() or pgm.Inducing(300) for all."
        )
    return layout


def layout_along(prior: PriorCollection, is_coupled: bool) -> Layout | None:
    """The blocks of latents along the chains' one column; None if there are several, or many effects beside them."""
    if not prior.chained or prior.residual_variances() is not None:
        return None
    try:
        layout = Layout.of(prior, is_coupled)
    except ValueError:
        return None
    coefficients = sum(len(member.coefficients) for member in layout.members)
    return layout if coefficients <= _MOST_COEFFICIENTS else None


def estimate(log_evidences: np.ndarray) -> ParticleEstimate:
    """The estimate from those of independent runs, (runs,)."""
    largest = log_evidences.max()
    evidences = np.exp(log_evidences - largest)
    error = evidences.std(ddof=1) / evidences.mean() / np.sqrt(len(evidences))
    return ParticleEstimate(float(largest + np.log(evidences.mean())), float(error))


@partial(compiled, static_argnames=("num_particles", "layout"), on_one_thread=True)
def particle_runs(
    model: Model,
    posterior: Posterior,
    share: Float[Array, ""],
    y: Array,
    row_weights: Array | None,
    keys: Array,
    num_particles: int,
    layout: Layout,
) -> Float[Array, " runs"]:
    """log p(y) under a model without priors, for each key; the posterior is given sites on each row's latents.

    Particles move by the posterior given ``share`` times the sites' precisions.
    """
    return traced_particle_runs(model, posterior.tempered(share), y, row_weights, keys, num_particles, layout)


def traced_particle_runs(
    model: Model,
    posterior: Posterior,
    y: Array,
    row_weights: Array | None,
    keys: Array,
    num_particles: int,
    layout: Layout,
) -> Float[Array, " runs"]:
    """``particle_runs`` within a compiled program."""
    formula, parameters = model.likelihood.formula(model.num_latents), model.parameters
    weights = jnp.ones(len(y)) if row_weights is None else row_weights
    order, moves = moves_along(posterior, weights, layout)
    mean, (h, w) = posterior.moments()[0], posterior.sites
    rows = (moves, *(part[order] for part in (mean, h, w, y, weights)), jnp.arange(len(y)))

    def run(key: Array) -> Array:
        def step(before: tuple[Any, Array, Array], row: tuple[Any, ...]) -> tuple[tuple[Any, Array, Array], None]:
            states, log_weights, total = before
            move, mean, h, w, y, weight, number = row
            noise_key, place_key = jax.random.split(jax.random.fold_in(key, number))
            states, log_weights, gained = _resampled(place_key, states, log_weights)
            noise = jax.random.normal(noise_key, states.shape)
            states = apply(move.transition, states) + apply(move.root, noise)
            f = mean + layout.latents(states, move.observation)
            terms = formula.log_evaluate(Environment(y[None], f[:, None], parameters))[:, 0, 0]
            terms = jnp.where(weight > 0, weight * terms, 0.0)
            log_weights = log_weights + terms - log_site(h, w, f)
            return (states, log_weights, total + gained), None

        start = jnp.zeros((num_particles, *moves.root.shape[1:3]))
        nothing = jnp.zeros(num_particles), jnp.zeros(())
        (_, log_weights, total), _ = jax.lax.scan(step, (start, *nothing), rows)
        return total + _log_mean(log_weights)

    return posterior.log_normalizer() + jax.lax.map(run, keys)


def log_site(h: Float[Array, "*batch L"], w: Array, f: Float[Array, "*batch L"]) -> Float[Array, "*batch"]:
    """Logs of sites at latents, with precisions w (..., L) or (..., L, L)."""
    pull = w * f if w.ndim <= h.ndim else jnp.sum(w * f[..., None, :], axis=-1)
    return jnp.sum((h - 0.5 * pull) * f, axis=-1)


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
