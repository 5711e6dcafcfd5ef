"""What an engine works on: an objective, its data, and the latents' prior at them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.augmentation.predictors import Predictors
from pgmodels.latent.coupled import CoupledPosterior
from pgmodels.latent.joint import JointPosterior, JointPrior
from pgmodels.latent.mixing import condition_predictors, push_moments
from pgmodels.latent.protocol import Sites
from pgmodels.model import Data, Model
from pgmodels.objectives.protocol import Objective
from pgmodels.portable import Module


class Problem(Module):
    """An objective, observations (n, ...), the values of the likelihood's parameters and the prior."""

    objective: Objective = eqx.field(static=True)
    prior: JointPrior
    y: Array
    parameters: dict[str, Any]

    def sites(self, mean: Float[Array, "n p"], variance: Float[Array, "n p"]) -> Sites:
        """The optimal sites where the predictors have these marginals."""
        return Sites(*self.objective.local_sites(mean, variance, self.y, self.parameters))

    def marginals(self) -> tuple[Float[Array, "n p"], Float[Array, "n p"]]:
        """Mean and variance of the predictors before any data."""
        mean, variance = self.prior.marginals()
        predictors = self.objective.predictors
        if predictors is None:
            return mean, variance
        return push_moments(predictors.matrix(self.y, self.parameters), mean, jax.vmap(jnp.diag)(variance))

    def moments(self, sites: Sites) -> tuple[Float[Array, "n p"], Float[Array, "n p"], Float[Array, ""]]:
        """Mean and variance of the predictors given sites, and the log normaliser."""
        predictors = self.objective.predictors
        if predictors is None:
            return self.prior.moments(sites)
        Phi = predictors.matrix(self.y, self.parameters)
        posterior = condition_predictors(self.prior, Phi, sites, predictors.latent_blocks)
        mean, variance = push_moments(Phi, *posterior.marginals())
        return mean, variance, posterior.log_normalizer()

    def condition(self, sites: Sites) -> JointPosterior | CoupledPosterior:
        """The posterior of the latents given sites on the predictors."""
        return condition(self.objective.predictors, self.prior, sites, self.y, self.parameters)

    def largest_precision(self, sites: Sites) -> float:
        """The largest precision of sites on a latent."""
        predictors, w = self.objective.predictors, np.asarray(sites.precision)
        if predictors is not None:
            w = w * np.max(np.asarray(predictors.matrix(self.y, self.parameters)) ** 2, axis=-1)
        return float(np.max(w, initial=0.0))

    def elbo(self, mean: Array, variance: Array, sites: Sites, log_normalizer: Array) -> Float[Array, ""]:
        """log Z(h, w) + Σ (B - h m + w s / 2): the evidence lower bound of the q(f) that sites imply.

        Source: math, section 4.
        """
        bound = jnp.sum(self.objective.local_bound(mean, variance, self.y, self.parameters))
        h, w = sites
        return log_normalizer + bound - jnp.sum(h * mean - 0.5 * w * (variance + mean**2))


def problem_of(model: Model, data: Data, prior: JointPrior | None = None) -> Problem:
    """The problem of a resolved model and checked data, with its prior at them or another one."""
    prior = model.prior(data.X) if prior is None else prior
    return Problem(model.augmentation, prior, jnp.asarray(data.y), model.parameters)


def condition(
    predictors: Predictors | None, prior: JointPrior, sites: Sites, y: Any, parameters: dict[str, Any]
) -> JointPosterior | CoupledPosterior:
    """The posterior of the latents given sites on predictors, or on the latents themselves where there are none."""
    if predictors is None:
        return prior.condition(sites)
    return condition_predictors(prior, predictors.matrix(y, parameters), sites, predictors.latent_blocks)
