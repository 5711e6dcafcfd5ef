"""Markov processes that go on from the state of a filter, and posteriors of a series with such an end."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.priors.base import Sites
from pgmodels.priors.markov.chain import Chain, Smoothed, apply, paths, times
from pgmodels.priors.markov.prior import MarkovPosterior, MarkovPrior
from pgmodels.priors.padding import pad_zeros
from pgmodels.priors.posterior import IndependentPosterior, Posterior
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.x64 import as_array


class ContinuedPrior(MarkovPrior):
    """One latent of a Markov prior given what came before its rows.

    ``path`` has the means of the sorted states, less the prior's mean; the chain is of the deviations from them.
    """

    path: Float[Array, "n d"]

    @property
    def centre(self) -> Float[Array, "n 1"]:
        """See MarkovPrior."""
        return self.mean + self.unsorted(self.path[:, :1])

    def about_mean(self, smoothed: Smoothed) -> Smoothed:
        """See MarkovPrior."""
        forward = smoothed.forward._replace(mean=smoothed.forward.mean + self.path[:, None])
        potential = smoothed.potential + smoothed.precision * self.path[:, :1]
        return smoothed._replace(potential=potential, forward=forward)

    def marginals(self) -> tuple[Float[Array, "n l"], Float[Array, "n l"]]:
        """See LatentPrior; the variance is that before anything was observed."""
        return self.centre, super().marginals()[1]


def processes(posterior: Posterior) -> tuple[MarkovPosterior, ...]:
    """The groups that are Markov processes, of a posterior whose latents are independent."""
    groups = posterior.groups if isinstance(posterior, IndependentPosterior) else ()
    return tuple(group for group in groups if isinstance(group, MarkovPosterior))


def go_on(prior: MarkovPrior, posterior: MarkovPosterior, row: int, latent: int) -> ContinuedPrior:
    """The prior of a latent at later inputs, given a posterior's sites up to and with its sorted row ``row``."""
    mean, covariance = (part[row, latent] for part in posterior.smoothed.forward[:2])
    chain, path = _steps(prior, posterior.prior.sorted_inputs[row], mean, covariance)
    values = {name: getattr(prior, name) for name in ("kernel", "mean", "X", "order", "column", "noise_roots")}
    return ContinuedPrior(**values, size=1, chain=chain, path=path)


@partial(compiled, optimise=False)
def _steps(prior: MarkovPrior, time: Any, mean: Array, covariance: Array) -> tuple[Chain, Array]:
    state, (F, Q) = prior.kernel.to_state_space(), prior.chain
    gap = prior.sorted_inputs[:1] - time
    first = state.transition(gap)[0]
    noise = Q.at[0].set(times(times(first, covariance), first.T) + state.noise(gap)[0])
    starts = jnp.zeros((len(F), len(mean))).at[0].set(apply(first, mean))
    return Chain(F, noise), paths(F, starts)


def joined(
    prior: MarkovPrior, before: MarkovPosterior, kept: int, ends: list[MarkovPosterior], count: int, sites: Sites
) -> MarkovPosterior:
    """The posterior of a series: the first ``kept`` sorted rows of a posterior, then the first ``count`` of ``ends``.

    ``ends`` are those of each latent given what came before, under a ContinuedPrior. ``sites`` are at the rows of the
    series' prior. What the later rows tell about the kept ones is as before.
    """
    later, end = [end.prior.about_mean(end.smoothed) for end in ends], kept + count

    def join(old: Array, *new: Array) -> np.ndarray:
        last = np.concatenate([np.asarray(part)[:count] for part in new], axis=1)
        return pad_zeros(np.concatenate([np.asarray(old)[:kept], last]), len(prior.X))

    smoothed = jax.tree.map(join, before.smoothed, *later)
    for states in smoothed.forward[:2]:
        # Rows of padding repeat the last state.
        states[end:] = states[end - 1]
    h, w, mean = *map(np.asarray, sites), float(prior.mean)
    constant = as_array(np.sum(h * mean - 0.5 * w * mean**2))
    return replace(before, prior=prior, smoothed=jax.tree.map(as_array, smoothed), constant=constant)
