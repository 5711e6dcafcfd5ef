"""What an engine works on: an objective, its data, and the latents' prior at them."""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.augmentation.predictors import Predictors
from pgmodels.model import Data, Model
from pgmodels.objectives.base import Objective
from pgmodels.priors.base import Moments, Sites
from pgmodels.priors.block_posterior import BlockPosterior, condition_blocks
from pgmodels.priors.blocks import choose_blocks
from pgmodels.priors.collection import IndependentPosterior, PriorCollection
from pgmodels.priors.linear_predictor import condition_predictors, push_covariance, push_moments, push_values
from pgmodels.priors.padding import masked, pad_rows, row_mask_of
from pgmodels.runtime.pickling import Module
from pgmodels.runtime.x64 import as_array

# Variances of predictors, or covariances of those of each datum.
Spread = Float[Array, "n p"] | Float[Array, "n p p"]
# With so many rows or fewer, a program of an ascent takes longer to compile than it ever runs.
_FEW_ROWS = 512
# What the terms of an ELBO are taken to be off by, relative to their sizes: the last digit a few times.
_DIGIT = 4.0 * np.finfo(np.float64).eps


class Bound(NamedTuple):
    """An evidence lower bound, and what rounding may have done to it."""

    value: Float[Array, ""]
    rounding: Float[Array, ""]


class Problem(Module):
    """An objective, observations (n, ...), the values of the likelihood's parameters and the prior.

    Where it is ``joint`` the sites couple the predictors of a datum, whose covariances (n, p, p) take the place of
    variances (n, p) throughout. ``row_mask`` is 1 for data and 0 for rows that fill them up, which have no term and
    whose sites say nothing; None where all are data. A share ``floor`` of each prior variance stays whatever sites say,
    as what inducing inputs leave does: the ELBO is below that without it.
    """

    objective: Objective = eqx.field(static=True)
    prior: PriorCollection
    y: Array
    parameters: dict[str, Any]
    joint: bool = eqx.field(static=True, default=False)
    row_mask: Float[Array, " n"] | None = None
    floor: float = eqx.field(static=True, default=0.0)

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
        return Sites(*(masked(self.row_mask, part) for part in sites))

    def _safe(self, variance: Spread) -> Spread:
        """The variances, 1 in rows that are no data: what is dropped later has to be finite, and its derivative too."""
        if self.row_mask is None:
            return variance
        row_mask = self.row_mask.reshape(-1, *[1] * (variance.ndim - 1)) > 0
        return jnp.where(row_mask, variance, jnp.eye(variance.shape[-1]) if self.joint else 1.0)

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

    def moments(self, sites: Sites) -> Moments:
        """Those of the predictors given sites."""
        found = self._moments(sites)
        if not self.floor:
            return found
        variance, log_normalizer = found.variance + self.kept(), found.log_normalizer - self.floor_loss(sites)
        return found._replace(variance=variance, log_normalizer=log_normalizer)

    def kept(self) -> Spread | float:
        """The variance that no sites take off the predictors."""
        return self.floor * self.marginals()[1] if self.floor else 0.0

    def floor_loss(self, sites: Sites) -> Float[Array, ""]:
        """What the log normaliser loses by the variance that is kept."""
        return 0.5 * jnp.sum(sites.precision * self.kept())

    def _moments(self, sites: Sites) -> Moments:
        predictors = self.objective.predictors
        if predictors is None and not self.joint:
            return self.prior.moments(sites)
        posterior = couple(predictors, self.prior, sites, self.y, self.parameters)
        mean, covariance = posterior.marginals()
        logs = posterior.log_normalizer(), posterior.divergence(covariance)
        if predictors is not None:
            mean, covariance = self._push(predictors.matrix(self.y, self.parameters), mean, covariance)
        return Moments(mean, covariance, *logs)

    def _push(self, Phi: Array, mean: Array, covariance: Array) -> tuple[Float[Array, "n p"], Spread]:
        if self.joint:
            return push_values(Phi, mean), push_covariance(Phi, covariance)
        return push_moments(Phi, mean, covariance)

    def condition(self, sites: Sites) -> IndependentPosterior | BlockPosterior:
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

    def elbo(self, mean: Array, variance: Spread, divergence: Array, sites: Sites) -> Bound:
        """Σ B - KL(q || prior): the evidence lower bound of the q(f) that sites imply, from its ``moments``."""
        return self._elbo(self._terms(mean, variance), mean, variance, divergence, sites)

    def local_bound(self, mean: Array, variance: Spread) -> Float[Array, ""]:
        """The sum of the objective's terms."""
        return jnp.sum(self._terms(mean, variance))

    def elbo_and_sites(self, mean: Array, variance: Spread, divergence: Array, sites: Sites) -> tuple[Bound, Sites]:
        """``elbo``, and the optimal sites at these marginals, for little more than one of them."""
        terms, *optimal = self.objective.local_bound_and_sites(mean, self._safe(variance), self.y, self.parameters)
        elbo = self._elbo(masked(self.row_mask, terms), mean, variance, divergence, sites)
        return elbo, Sites(*(masked(self.row_mask, part) for part in optimal))

    def _terms(self, mean: Array, variance: Spread) -> Float[Array, " n"]:
        terms = self.objective.local_bound(mean, self._safe(variance), self.y, self.parameters)
        return masked(self.row_mask, terms)

    def _elbo(self, terms: Float[Array, " n"], mean: Array, variance: Spread, divergence: Array, sites: Sites) -> Bound:
        precision = sites.precision.diagonal(axis1=1, axis2=2) if self.joint else sites.precision
        pull, digits = abs(_pull(sites, mean)), _DIGIT * abs(mean)
        of_means = jnp.sum(pull * digits + 0.5 * abs(precision) * digits**2)
        of_prior = self._off_by(_DIGIT * self.prior.marginals()[1], mean, variance, sites)
        sizes = jnp.sum(abs(terms)) + abs(divergence)
        return Bound(jnp.sum(terms) - divergence, _DIGIT * sizes + of_means + of_prior)

    def neglect(self, mean: Array, variance: Spread, sites: Sites) -> float:
        """How far the ELBO may be off for what the prior's form adds to variances, or leaves out."""
        added = float(self.prior.approximation_error)
        return float(self._off_by(added, *jax.tree.map(np.asarray, (mean, variance, sites))))

    def _off_by(self, added: Any, mean: Any, variance: Any, sites: Sites) -> Any:
        """How far variances added to the latents' prior ones, or taken off them, move the ELBO, to first order.

        By the derivative of the log normaliser in the prior covariance: the squares of what the sites of a latent pull
        it by from its mean, those of all rows that share it together, and their precisions less what q's covariance
        takes off these, which is at most as much as the rows' own. Of arrays of NumPy as well.
        """
        w, pull, predictors = sites.precision, _pull(sites, mean), self.objective.predictors
        taken = abs((w - w @ variance @ w).diagonal(axis1=1, axis2=2) if sites.coupled else w - w**2 * variance)
        if predictors is not None:
            Phi = predictors.matrix(self.y, self.parameters)
            pull, taken = ((factor * part[..., None]).sum(axis=1) for factor, part in ((Phi, pull), (Phi**2, taken)))
        return 0.5 * (added * (pull * self.prior.shared_total(pull) + taken)).sum()


def _pull(sites: Sites, mean: Any) -> Any:
    """What sites pull predictors by from a mean: h - W m, which at q's is the gradient of KL(q || prior)."""
    h, w = sites
    return h - ((w @ mean[..., None])[..., 0] if sites.coupled else w * mean)


def are_few_rows(count: int, joint: bool) -> bool:
    """Whether an ascent over so many rows compiles longer than it runs: joint sites have many nodes a row."""
    return count <= _FEW_ROWS and not joint


def problem_of(
    model: Model, data: Data, prior: PriorCollection | None = None, objective: Objective | None = None
) -> Problem:
    """The problem of a resolved model and checked data: with its prior at them and its augmentation, or with others.

    Rows are filled up to few sizes, where the prior can be.
    """
    prior, row_mask = model.prior(data.X) if prior is None else prior, None
    if model.can_pad:
        prior = prior.padded()
        row_mask = as_array(row_mask_of(len(data.y), prior.num_rows))
    y = as_array(pad_rows(data.y, prior.num_rows))
    return Problem(objective or model.augmentation, prior, y, model.parameters, row_mask=row_mask)


def precisions(predictors: Predictors | None, sites: Sites, y: Any, parameters: dict[str, Any]) -> np.ndarray:
    """The precisions of sites on each latent by itself, (n, latents)."""
    w = np.asarray(sites.precision)
    if predictors is None:
        return np.diagonal(w, axis1=1, axis2=2) if sites.coupled else w
    Phi = np.asarray(predictors.matrix(y, parameters))
    return np.einsum("ipl,ipq,iql->il", Phi, w, Phi) if sites.coupled else np.einsum("ipl,ip->il", Phi**2, w)


def condition(
    predictors: Predictors | None, prior: PriorCollection, sites: Sites, y: Any, parameters: dict[str, Any]
) -> IndependentPosterior | BlockPosterior:
    """The posterior of the latents given sites on predictors, or on the latents themselves where there are none."""
    if predictors is None and not sites.coupled:
        return prior.condition(sites)
    return couple(predictors, prior, sites, y, parameters)


def couple(
    predictors: Predictors | None, prior: PriorCollection, sites: Sites, y: Any, parameters: dict[str, Any]
) -> BlockPosterior:
    """The posterior of latents that sites couple: themselves, or by predictors that combine them."""
    if predictors is None:
        return condition_blocks(prior, sites.potential, sites.precision, choose_blocks(prior))
    blocks = choose_blocks(prior) if sites.coupled else predictors.latent_blocks
    return condition_predictors(prior, predictors.matrix(y, parameters), sites, blocks)
