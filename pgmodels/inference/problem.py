"""What an engine works on: an objective, its data, and the latents' prior at them."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.augmentation.predictors import Predictors
from pgmodels.latent.blocks import choose_blocks
from pgmodels.latent.coupled import CoupledPosterior, condition_coupled
from pgmodels.latent.joint import JointPosterior, JointPrior
from pgmodels.latent.mixing import condition_predictors, push_covariance, push_moments, push_values
from pgmodels.latent.protocol import Sites
from pgmodels.latent.rows import live_rows, of_data, resize_rows
from pgmodels.model import Data, Model
from pgmodels.objectives.protocol import Objective
from pgmodels.portable import Module
from pgmodels.precision import as_array

# Variances of predictors, or covariances of those of each datum.
Spread = Float[Array, "n p"] | Float[Array, "n p p"]
# With so many rows or fewer, a program of an ascent takes longer to compile than it ever runs.
_FEW_ROWS = 512


class Problem(Module):
    """An objective, observations (n, ...), the values of the likelihood's parameters and the prior.

    Where it is ``joint`` the sites couple the predictors of a datum, whose covariances (n, p, p) take the place of
    variances (n, p) throughout. ``live`` is 1 for data and 0 for rows that fill them up, which have no term and whose
    sites say nothing; None where all are data.
    """

    objective: Objective = eqx.field(static=True)
    prior: JointPrior
    y: Array
    parameters: dict[str, Any]
    joint: bool = eqx.field(static=True, default=False)
    live: Float[Array, " n"] | None = None

    @property
    def has_few_rows(self) -> bool:
        """See ``are_few_rows``."""
        return are_few_rows(len(self.y), self.joint)

    def jointly(self) -> "Problem":
        """The same with sites that couple the predictors of a datum."""
        return replace(self, joint=True)

    def apart(self) -> "Problem":
        """The same with sites on each predictor of a datum by itself."""
        return replace(self, joint=False)

    def sites(self, mean: Float[Array, "n p"], variance: Spread) -> Sites:
        """The optimal sites where the predictors have these marginals."""
        sites = self.objective.local_sites(mean, self._safe(variance), self.y, self.parameters)
        return Sites(*(of_data(self.live, part) for part in sites))

    def _safe(self, variance: Spread) -> Spread:
        """The variances, 1 in rows that are no data: what is dropped later has to be finite, and its derivative too."""
        if self.live is None:
            return variance
        live = self.live.reshape(-1, *[1] * (variance.ndim - 1)) > 0
        return jnp.where(live, variance, jnp.eye(variance.shape[-1]) if self.joint else 1.0)

    def marginals(self) -> tuple[Float[Array, "n p"], Spread]:
        """Mean and variance of the predictors before any data."""
        mean, variance = self.prior.marginals()
        return self.of_latents(mean, jax.vmap(jnp.diag)(variance))

    def of_latents(self, mean: Float[Array, "n l"], covariance: Float[Array, "n l l"]) -> tuple[Array, Spread]:
        """Mean and variance of the predictors where the latents have these marginals."""
        predictors = self.objective.predictors
        if predictors is None:
            return mean, covariance if self.joint else jnp.diagonal(covariance, axis1=1, axis2=2)
        return self._push(predictors.matrix(self.y, self.parameters), mean, covariance)

    def moments(self, sites: Sites) -> tuple[Float[Array, "n p"], Spread, Float[Array, ""]]:
        """Mean and variance of the predictors given sites, and the log normaliser."""
        predictors = self.objective.predictors
        if predictors is None and not self.joint:
            return self.prior.moments(sites)
        posterior = couple(predictors, self.prior, sites, self.y, self.parameters)
        mean, covariance = posterior.marginals()
        if predictors is not None:
            mean, covariance = self._push(predictors.matrix(self.y, self.parameters), mean, covariance)
        return mean, covariance, posterior.log_normalizer()

    def _push(self, Phi: Array, mean: Array, covariance: Array) -> tuple[Float[Array, "n p"], Spread]:
        if self.joint:
            return push_values(Phi, mean), push_covariance(Phi, covariance)
        return push_moments(Phi, mean, covariance)

    def condition(self, sites: Sites) -> JointPosterior | CoupledPosterior:
        """The posterior of the latents given sites on the predictors."""
        return condition(self.objective.predictors, self.prior, sites, self.y, self.parameters)

    def largest_precision(self, sites: Sites) -> float:
        """The largest precision of sites on a latent at an input, of all of its copies together."""
        predictors, w = self.objective.predictors, np.asarray(sites.precision)
        w = np.linalg.norm(w, ord=2, axis=(1, 2))[:, None] if sites.coupled else w
        if predictors is not None:
            squares = np.asarray(predictors.matrix(self.y, self.parameters)) ** 2
            w = w * (np.max(squares, axis=(1, 2))[:, None] if sites.coupled else np.max(squares, axis=-1))
        return float(np.max(np.asarray(self.prior.total(as_array(w))), initial=0.0))

    def precisions(self, sites: Sites) -> np.ndarray:
        """The precisions of sites on each latent by itself, (n, latents)."""
        return precisions(self.objective.predictors, sites, self.y, self.parameters)

    def elbo(self, mean: Array, variance: Spread, sites: Sites, log_normalizer: Array) -> Float[Array, ""]:
        """log Z(h, w) + Σ (B - h m + w s / 2): the evidence lower bound of the q(f) that sites imply.

        Source: math, section 4.
        """
        return self._elbo(self.local_bound(mean, variance), mean, variance, sites, log_normalizer)

    def local_bound(self, mean: Array, variance: Spread) -> Float[Array, ""]:
        """The sum of the objective's terms."""
        terms = self.objective.local_bound(mean, self._safe(variance), self.y, self.parameters)
        return jnp.sum(of_data(self.live, terms))

    def elbo_and_sites(
        self, mean: Array, variance: Spread, sites: Sites, log_normalizer: Array
    ) -> tuple[Float[Array, ""], Sites]:
        """``elbo``, and the optimal sites at these marginals, for little more than one of them."""
        terms, *optimal = self.objective.local_bound_and_sites(mean, self._safe(variance), self.y, self.parameters)
        bound = jnp.sum(of_data(self.live, terms))
        elbo = self._elbo(bound, mean, variance, sites, log_normalizer)
        return elbo, Sites(*(of_data(self.live, part) for part in optimal))

    def _elbo(
        self, bound: Array, mean: Array, variance: Spread, sites: Sites, log_normalizer: Array
    ) -> Float[Array, ""]:
        h, w = sites
        second = variance + (mean[:, :, None] * mean[:, None, :] if self.joint else mean**2)
        return log_normalizer + bound - jnp.sum(h * mean) + 0.5 * jnp.sum(w * second)


def are_few_rows(count: int, joint: bool) -> bool:
    """Whether an ascent over so many rows compiles longer than it runs: joint sites have many nodes a row."""
    return count <= _FEW_ROWS and not joint


def problem_of(
    model: Model, data: Data, prior: JointPrior | None = None, objective: Objective | None = None
) -> Problem:
    """The problem of a resolved model and checked data: with its prior at them and its augmentation, or with others.

    Rows are filled up to few sizes, where the prior can be.
    """
    prior, live = model.prior(data.X) if prior is None else prior, None
    if model.fills:
        prior = prior.filled()
        live = as_array(live_rows(len(data.y), prior.num_rows))
    y = as_array(resize_rows(data.y, prior.num_rows))
    return Problem(objective or model.augmentation, prior, y, model.parameters, live=live)


def precisions(predictors: Predictors | None, sites: Sites, y: Any, parameters: dict[str, Any]) -> np.ndarray:
    """The precisions of sites on each latent by itself, (n, latents)."""
    w = np.asarray(sites.precision)
    if predictors is None:
        return np.diagonal(w, axis1=1, axis2=2) if sites.coupled else w
    Phi = np.asarray(predictors.matrix(y, parameters))
    return np.einsum("ipl,ipq,iql->il", Phi, w, Phi) if sites.coupled else np.einsum("ipl,ip->il", Phi**2, w)


def condition(
    predictors: Predictors | None, prior: JointPrior, sites: Sites, y: Any, parameters: dict[str, Any]
) -> JointPosterior | CoupledPosterior:
    """The posterior of the latents given sites on predictors, or on the latents themselves where there are none."""
    if predictors is None and not sites.coupled:
        return prior.condition(sites)
    return couple(predictors, prior, sites, y, parameters)


def couple(
    predictors: Predictors | None, prior: JointPrior, sites: Sites, y: Any, parameters: dict[str, Any]
) -> CoupledPosterior:
    """The posterior of latents that sites couple: themselves, or by predictors that combine them."""
    if predictors is None:
        return condition_coupled(prior, sites.potential, sites.precision, choose_blocks(prior))
    blocks = choose_blocks(prior) if sites.coupled else predictors.latent_blocks
    return condition_predictors(prior, predictors.matrix(y, parameters), sites, blocks)
