"""Markov processes that go on from the state of a filter, and posteriors of a series with such an end."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.priors.base import Sites
from pgmodels.priors.markov.chain import Adjoint, Chain, Forward, Smoothed, apply, paths, times
from pgmodels.priors.markov.prior import MarkovPosterior, MarkovPrior
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
    later = [_uncentred(end) for end in ends]
    padding = len(prior.X) - kept - count

    def join(old: Array, *new: Array, repeats: bool = False) -> Array:
        end = np.concatenate([np.asarray(part)[:count] for part in new], axis=1)
        # Rows of padding repeat the last state.
        fill = np.repeat(end[-1:] if repeats else np.zeros_like(end[-1:]), padding, axis=0)
        return as_array(np.concatenate([np.asarray(old)[:kept], end, fill]))

    s = before.smoothed
    smoothed = Smoothed(
        join(s.potential, *(part.potential for part in later)),
        join(s.precision, *(part.precision for part in later)),
        Forward(
            *(
                join(
                    getattr(s.forward, name), *(getattr(part.forward, name) for part in later), repeats=name in _STATES
                )
                for name in Forward._fields
            )
        ),
        Adjoint(*(join(old, *new) for old, *new in zip(s.adjoint, *(part.adjoint for part in later), strict=True))),
    )
    h, w, mean = *map(np.asarray, sites), float(prior.mean)
    constant = as_array(np.sum(h * mean - 0.5 * w * mean**2))
    return replace(before, prior=prior, smoothed=smoothed, constant=constant)


_STATES = "mean", "covariance"


def _uncentred(end: MarkovPosterior) -> Smoothed:
    """The scans of sites on deviations from the prior's mean, not from its path."""
    assert isinstance(end.prior, ContinuedPrior)
    path, s = end.prior.path, end.smoothed
    forward = s.forward._replace(mean=s.forward.mean + path[:, None])
    return s._replace(potential=s.potential + s.precision * path[:, :1], forward=forward)
