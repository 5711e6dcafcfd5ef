"""Problems: a model bound to data and an objective."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pgmodels.model import Data, Model, forms_can_pad
from pgmodels.objectives.base import Objective
from pgmodels.priors.base import Moments, Sites, weighted
from pgmodels.priors.chain_posterior import (
    condition_jointly,
    condition_predictors,
    push_covariance,
    push_moments,
    push_values,
)
from pgmodels.priors.collection import (
    DependentPosterior,
    NewLeaves,
    Posterior,
    PriorCollection,
    approximation_error,
    choose_blocks,
    neglected_variances,
    padded_prior,
    rounded_variances,
    shared_total,
    supports_signed,
)
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.precision import Module

# Variances of predictors, or covariances of the predictors of each datum.
Spread = Float[Array, "n p"] | Float[Array, "n p p"]
# Arrays of a traced or of a plain function.
Values = Array | np.ndarray
# Up to this many rows and values of log densities, an engine's loop takes longer to compile than to run: of 400 binary
# rows, unoptimised sweeps of the augmented bound take the same time, and those of the expected log density four times.
_FEW_ROWS, _FEW_VALUES = 512, 40_000
# Assumed relative rounding error of the terms of an ELBO.
_DIGIT = 4.0 * np.finfo(np.float64).eps


class Bound(NamedTuple):
    """An evidence lower bound and its estimated rounding error."""

    value: Float[Array, ""]
    rounding: Float[Array, ""]


class Problem(Module):
    """An objective, observations (n, ...), the values of the likelihood's parameters and the prior.

    If ``coupled``, sites couple the predictors of a datum, and covariances (n, p, p) replace variances (n, p).
    ``row_weights`` multiply each datum's term of the bound, and so its sites; 0 for padding, None if all are 1.
    A share ``floor`` of each prior variance, except of exact priors, is added to the posterior's. Sites do not reduce
    it, like the residual variance of inducing inputs: it lowers the ELBO.
    """

    objective: Objective = eqx.field(static=True)
    prior: PriorCollection
    y: Array
    parameters: dict[str, Any]
    coupled: bool = eqx.field(static=True, default=False)
    row_weights: Float[Array, " n"] | None = None
    floor: float = eqx.field(static=True, default=0.0)

    @property
    def has_few_rows(self) -> bool:
        return are_few_rows(len(self.y), self.coupled, self.objective.num_nodes)

    @property
    def takes_signed(self) -> bool:
        """Whether precisions of sites may have any sign for which the posterior is proper."""
        return self.coupled or supports_signed(self.prior, self.objective.predictors is not None)

    def with_coupled_sites(self) -> "Problem":
        """Return the same problem with sites that couple the predictors of a datum."""
        return replace(self, coupled=True)

    def sites(self, mean: Float[Array, "n p"], variance: Spread) -> Sites:
        """Return the optimal sites given the predictors' marginals."""
        return self._sites(*self.objective.local_sites(mean, self._spread(variance), self.y, self.parameters))

    def _spread(self, variance: Spread) -> Spread:
        """The variances or covariances passed to the objective: 1 in padding rows, so that terms there are finite."""
        if self.row_weights is not None:
            is_datum = self.row_weights.reshape(-1, *[1] * (variance.ndim - 1)) > 0
            variance = jnp.where(is_datum, variance, jnp.eye(variance.shape[-1]) if self.coupled else 1.0)
        return jnp.diagonal(variance, axis1=1, axis2=2) if self._has_single_sites else variance

    def _sites(self, potential: Array, precision: Array) -> Sites:
        if self._has_single_sites:
            precision = jax.vmap(jnp.diag)(precision)
        return Sites(weighted(self.row_weights, potential), weighted(self.row_weights, precision))

    @property
    def _has_single_sites(self) -> bool:
        """Whether the objective's sites are independent although the problem has joint covariances of predictors."""
        return self.coupled and not self.objective.takes_covariances

    def mixing(self) -> Float[Array, "n p l"] | None:
        """Φ at the data, None if predictors are latents."""
        predictors = self.objective.predictors
        return None if predictors is None else predictors.matrix(self.y, self.parameters)

    def marginals(self) -> tuple[Float[Array, "n p"], Spread]:
        """Return prior mean and variance of the predictors."""
        mean, variance = self.prior.marginals()
        return self.of_latents(mean, jax.vmap(jnp.diag)(variance))

    def of_latents(self, mean: Float[Array, "n l"], covariance: Float[Array, "n l l"]) -> tuple[Array, Spread]:
        """Return mean and variance of the predictors given the latents' marginals."""
        Phi = self.mixing()
        if Phi is None:
            return mean, covariance if self.coupled else jnp.diagonal(covariance, axis1=1, axis2=2)
        if self.coupled:
            return push_values(Phi, mean), push_covariance(Phi, covariance)
        return push_moments(Phi, mean, covariance)

    def moments(self, sites: Sites) -> Moments:
        """Return posterior moments of the predictors given sites."""
        predictors = self.objective.predictors
        if predictors is None and not self.coupled:
            moments = self.prior.moments(sites)
        else:
            posterior = self.couple(sites, self.blocks)
            mean, covariance = posterior.marginals()
            logs = posterior.log_normalizer(), posterior.divergence(covariance)
            if predictors is not None:
                mean, covariance = self.of_latents(mean, covariance)
            moments = Moments(mean, covariance, *logs)
        if not self.floor:
            return moments
        variance, log_normalizer = moments.variance + self.kept(), moments.log_normalizer - self.floor_loss(sites)
        return moments._replace(variance=variance, log_normalizer=log_normalizer)

    def kept(self) -> Spread | float:
        """Return the predictors' variance that sites do not reduce: ``floor`` times the prior's."""
        if not self.floor:
            return 0.0
        mean, variance = self.prior.marginals()[0], rounded_variances(self.prior)
        return self.floor * self.of_latents(mean, jax.vmap(jnp.diag)(variance))[1]

    def floor_loss(self, sites: Sites) -> Float[Array, ""]:
        """Decrease of the log normaliser due to the variance that sites do not reduce."""
        return 0.5 * jnp.sum(sites.precision * self.kept())

    def condition(self, sites: Sites) -> Posterior:
        """Return the posterior of the latents given sites on the predictors."""
        if self.objective.predictors is None and not sites.coupled:
            return self.prior.condition(sites)
        return self.couple(sites, self.blocks)

    def couple(self, sites: Sites, blocks: tuple[tuple[int, ...], ...] | None = None) -> DependentPosterior:
        """Return the posterior of latents coupled by sites or predictors, in ``blocks``, by default chosen by size."""
        predictors, blocks = self.objective.predictors, blocks or choose_blocks(self.prior)
        if predictors is None:
            return condition_jointly(self.prior, sites.as_coupled(), blocks)
        blocks = blocks if sites.coupled else predictors.latent_blocks
        return condition_predictors(self.prior, predictors.matrix(self.y, self.parameters), sites, blocks)

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...] | None:
        """The blocks of latents that sites (n, p, p) of one predictor couple; None to choose by size."""
        return separate_blocks(self.objective) if self._has_single_sites else None

    def elbo(self, mean: Array, variance: Spread, divergence: Array, sites: Sites) -> Bound:
        """Σ B - KL(q || prior): the evidence lower bound of the q(f) given by sites, from its ``moments``."""
        return self._elbo(self._terms(mean, variance), mean, variance, divergence, sites)

    def local_bound(self, mean: Array, variance: Spread) -> Float[Array, ""]:
        """Return the weighted sum of the objective's terms."""
        return jnp.sum(self._terms(mean, variance))

    def elbo_and_sites(
        self, mean: Array, variance: Spread, divergence: Array, sites: Sites
    ) -> tuple[Bound, Sites, Float[Array, "n p p"] | None]:
        """``elbo``, the optimal sites at these marginals, and the coupling that independent sites leave out.

        At little more than the cost of one of them. The coupling, of ``Objective.local_bound_sites_and_coupling``, is
        None if the latents have no factors for Newton steps of all predictors together.
        """
        terms, h, w, coupling = self.objective.local_bound_sites_and_coupling(
            mean, self._spread(variance), self.y, self.parameters
        )
        elbo = self._elbo(weighted(self.row_weights, terms), mean, variance, divergence, sites)
        coupling = weighted(self.row_weights, coupling) if self._has_single_sites and coupling is not None else None
        return elbo, self._sites(h, w), coupling

    def log_posterior(self, mean: Array, sites: Sites) -> Float[Array, ""]:
        """Return log p(y, f) at the mean f of the posterior given sites, without the normaliser of the prior."""
        terms = weighted(self.row_weights, self.objective.predictor_log_density(self.y, mean, self.parameters))
        # The distance of f from the prior mean in the prior's metric, since K^-1 (f - m) = h - w f.
        distances = (mean - self.marginals()[0]) * gradient_of(sites, mean)
        return jnp.sum(terms) - 0.5 * jnp.sum(distances)

    def _terms(self, mean: Array, variance: Spread) -> Float[Array, " n"]:
        terms = self.objective.local_bound(mean, self._spread(variance), self.y, self.parameters)
        return weighted(self.row_weights, terms)

    def _elbo(self, terms: Float[Array, " n"], mean: Array, variance: Spread, divergence: Array, sites: Sites) -> Bound:
        precision = sites.precision.diagonal(axis1=1, axis2=2) if self.coupled else sites.precision
        pull, digits = jnp.abs(gradient_of(sites, mean)), _DIGIT * abs(mean)
        of_means = jnp.sum(pull * digits + 0.5 * abs(precision) * digits**2)
        of_prior = change_of_elbo(self, _DIGIT * rounded_variances(self.prior), mean, variance, sites)
        sizes = jnp.sum(abs(terms)) + abs(divergence)
        return Bound(jnp.sum(terms) - divergence, _DIGIT * sizes + of_means + of_prior)


# Eager operations would be compiled one by one.
@partial(compiled, optimise=False)
def change_of_elbo(problem: Problem, added: Values | float, mean: Values, variance: Values, sites: Sites) -> Values:
    """First-order change of the ELBO if ``added`` is added to the latents' prior variances.

    It is from the derivative of the log normaliser in the prior covariance. Its parts are squares of the sites'
    gradients in the mean, summed over rows that share a latent, and the diagonal of W - W V W for each row.
    """
    w, pull, Phi = sites.precision, gradient_of(sites, mean), problem.mixing()
    curvature = abs((w - w @ variance @ w).diagonal(axis1=1, axis2=2) if sites.coupled else w - w**2 * variance)
    if Phi is not None:
        pull, curvature = ((B * part[..., None]).sum(axis=1) for B, part in ((Phi, pull), (Phi**2, curvature)))
    return 0.5 * (added * (pull * shared_total(problem.prior, pull) + curvature)).sum()


def neglect(problem: Problem, mean: Values, variance: Values, sites: Sites) -> float:
    """First-order error of the ELBO due to the variance that the prior's representation adds or neglects."""
    at, error = jax.tree.map(np.asarray, (mean, variance, sites)), approximation_error(problem.prior)
    # Exact priors have none.
    most = float(change_of_elbo(problem, error, *at)) if error > 0.0 else 0.0
    # Below a hundredth of a nat the largest neglected variance need not be told from those of the rows.
    if most <= 0.01:
        return most
    return min(most, float(change_of_elbo(problem, np.asarray(neglected_variances(problem.prior)), *at)))


def largest_precision(problem: Problem, sites: Sites) -> float:
    """Return the largest site precision of any latent, after summing over rows with equal inputs."""
    w, rows = np.asarray(sites.precision), problem.prior.copies.rows
    w = np.linalg.norm(w, ord=2, axis=(1, 2))[:, None] if sites.coupled else w
    if problem.objective.predictors is not None:
        squares = np.asarray(_mixing(problem)) ** 2
        w = w * (np.max(squares, axis=(1, 2))[:, None] if sites.coupled else np.max(squares, axis=-1))
    totals = w.T if rows is None else [np.bincount(np.asarray(rows), column) for column in w.T]
    return float(np.max(totals, initial=0.0))


_mixing = compiled(Problem.mixing, optimise=False)


def gradient_of(sites: Sites, mean: Values) -> Values:
    """Return the gradient of the sites' log density at a mean, h - W m; at q's mean, the gradient of KL(q || prior)."""
    h, w = sites
    return h - ((w @ mean[..., None])[..., 0] if sites.coupled else w * mean)


def are_few_rows(count: int, joint: bool, num_nodes: int = 1) -> bool:
    """Return whether a loop over ``count`` rows compiles longer than it runs; joint sites need many nodes per row."""
    return count <= _FEW_ROWS and count * num_nodes <= _FEW_VALUES and not joint


def problem_of(
    model: Model, data: Data, prior: PriorCollection | None = None, objective: Objective | None = None
) -> Problem:
    """Return the problem of a resolved model and checked data, padded to few sizes; by default as the model's."""
    prior = model.prior(data.X) if prior is None else prior
    prior = padded_prior(prior) if forms_can_pad(model) else prior
    y, row_weights = data.padded(prior.num_rows)
    return Problem(objective or model.augmentation, prior, y, model.parameters, row_weights=row_weights)


def precisions(objective: Objective, sites: Sites, y: Values, parameters: dict[str, Any]) -> np.ndarray:
    """Return the marginal precisions of sites on each latent, (n, latents)."""
    predictors, w = objective.predictors, np.asarray(sites.precision)
    if predictors is None:
        return np.diagonal(w, axis1=1, axis2=2) if sites.coupled else w
    Phi = np.asarray(predictors.matrix(y, parameters))
    return np.einsum("ipl,ipq,iql->il", Phi, w, Phi) if sites.coupled else np.einsum("ipl,ip->il", Phi**2, w)


def separate_blocks(objective: Objective) -> tuple[tuple[int, ...], ...]:
    """Return the latents that independent sites on an objective's predictors couple: those that predictors combine."""
    if objective.predictors is not None:
        return objective.predictors.latent_blocks
    return tuple((latent,) for latent in range(objective.num_latents))


def conditioned(problem: Problem, sites: Sites) -> tuple[Posterior, Array, Array, Array | None]:
    """Return the posterior given sites, the latents' means and variances, and the prior's residual variances."""
    leaves, *moments = _condition(problem, sites)
    return leaves.completed(problem.prior), *moments


@partial(compiled, optimise=False)
def _condition(problem: Problem, sites: Sites) -> tuple[NewLeaves, Array, Array, Array | None]:
    posterior = problem.condition(sites)
    return NewLeaves.of(problem.prior, posterior), *posterior.moments(), problem.prior.residual_variances()
