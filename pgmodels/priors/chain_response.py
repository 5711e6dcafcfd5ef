"""Linear response in O(n) for latents that are Markov chains of one column, and linear effects beside them.

Corrected covariances are those of the chain of states x of each block and their products y given factors of the
predictors and their products: see pgmodels.priors.chain_blocks and pgmodels.priors.markov.response.
"""

from collections.abc import Mapping
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pgmodels.priors.base import Sites
from pgmodels.priors.chain_blocks import Layout
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.linear_predictor import condition_jointly
from pgmodels.priors.markov.chain import Chain, negative_directions
from pgmodels.priors.markov.information import one_step_back, roots_of, steps_given
from pgmodels.priors.markov.joint import Chains, Joint, LineSites, condition
from pgmodels.priors.markov.response import Given, given_sites, joint_steps
from pgmodels.priors.posterior import Marginals, Posterior
from pgmodels.priors.row_chains import (
    chains_of_rows,
    effect_groups,
    factors_of_effects,
    gaps_of_rows,
    times_of_rows,
)
from pgmodels.runtime.pickling import Module


class Factors(NamedTuple):
    """What responds at each row: the factor of predictors z = Phi f and their products u has the precision (n, S, S).

    That is minus the Hessian of the objective in the moments of (z, u); u are the squares of the predictors or, where
    S is larger than twice their number, the products of all pairs in the order of an upper triangle. ``slope`` is the
    gradient in the mean of the one predictor that shifts the mean; None if means do not move. ``Phi`` is None if
    predictors are latents.
    """

    precision: Float[Array, "n S S"]
    slope: Float[Array, " n"] | None
    Phi: Float[Array, "n P L"] | None


class ChainResponse(Module):
    """The corrected moments of the latents, at the data and at new inputs.

    ``rows`` has the rows that respond: those of the data, or their distinct ones if no site couples latents. ``order``
    sorts them. ``shifted`` has the mean's shift as its mean.
    """

    posterior: Posterior
    order: Int[Array, " m"]
    conditioned: Given
    joint: Joint
    shifted: Posterior | None
    layout: Layout = eqx.field(static=True)

    @property
    def rows(self) -> PriorCollection:
        """The prior at the rows that respond."""
        return _responding(self.posterior)

    def moments(self) -> Marginals:
        """The shift of the mean, and the covariance of each datum's latents."""
        count = len(self.layout.observed)
        sorted_rows = self.joint.marginals()[1][:, :count, :count]
        V = self._of_latents(jnp.zeros_like(sorted_rows).at[self.order].set(sorted_rows), factors_of_effects(self.rows))
        V = V if self.posterior.is_coupled else self.posterior.prior.spread(V)
        residual = self.posterior.prior.residual_variances()
        V = V if residual is None else V + jax.vmap(jnp.diag)(residual)
        return jnp.zeros(V.shape[:2]) if self.shifted is None else self.shifted.moments()[0], V

    def predict(self, X_new: Float[Array, "m d"]) -> Marginals:
        """The same at new inputs."""
        gaps, states = gaps_of_rows(self.rows, self.order, X_new), self.conditioned.covariance
        nowhere, last = jnp.zeros(len(X_new), dtype=bool), len(states) - 1
        before, after = jnp.maximum(gaps.before, 0), jnp.minimum(gaps.after, last)
        through = self.layout.steps(gaps.transition, gaps.noise, gaps.before < 0)
        onward = self.layout.steps(gaps.onward, gaps.onward_noise, nowhere)
        of_onward = roots_of(onward.noise)
        ahead = jnp.where((gaps.after <= last)[:, None, None, None], self.conditioned.informed[after], 0.0)
        informed = one_step_back(onward.transition, of_onward, ahead)
        F, Q = joint_steps(through, steps_given(through, roots_of(through.noise), informed), states[before])
        # The covariance before matters to the noise of a step alone, which is not read.
        onward = joint_steps(onward, steps_given(onward, of_onward, ahead), states[before])
        chains, forward = self.joint.chains, self.joint.forward
        P = chains.forward(F, forward.covariance[before])
        P = chains.forward(F, jnp.swapaxes(P, 1, 2)) + chains.block_diagonal(Q)
        V = self.joint.after(forward.mean[before], P, onward.transition, gaps.after)[1]
        effects = {index: group.factor_at(X_new) for index, group in effect_groups(self.rows).items()}
        count = len(self.layout.observed)
        V = self._of_latents(V[:, :count, :count], {index: A for index, (A, _) in effects.items()})
        for latent, member in enumerate(self.layout.members):
            if member.kind is None:
                A, residual = effects[member.group]
                # Coefficients that the data do not depend on have their prior variance, 1.
                unknown = np.setdiff1d(np.arange(len(A)), member.coefficients)
                V = V.at[:, latent, latent].add(residual + jnp.sum(A[unknown] ** 2, axis=0))
        return jnp.zeros(V.shape[:2]) if self.shifted is None else self.shifted.marginals_at(X_new)[0], V

    def negative(self) -> Int[Array, " m"]:
        """Row by row that responds, what sums to the number of negative eigenvalues of the precision of all (x, y)."""
        directions = negative_directions(self.joint.forward.gained, self.joint.sites.precision)
        counts = jnp.sum(directions, axis=1).astype(int)
        return jnp.zeros_like(counts).at[self.order].set(counts)

    def _of_latents(self, V: Float[Array, "n H H"], factors: Mapping[int, Array]) -> Float[Array, "n L L"]:
        if not factors:
            return V
        observation = self.layout.observation(factors, len(V))
        return observation @ V @ jnp.swapaxes(observation, 1, 2)


def respond(posterior: Posterior, factors: Factors, layout: Layout) -> ChainResponse:
    """The linear response of a posterior to factors at the rows of its data."""
    rows, precision, weights = _responding(posterior), factors.precision, posterior.sites.precision
    if not posterior.is_coupled:
        # Rows with equal inputs respond together, by the sum of their factors.
        precision, weights = posterior.prior.total(precision), jax.vmap(jnp.diag)(posterior.prior.total(weights))
    order = jnp.argsort(times_of_rows(rows))
    chains = chains_of_rows(rows, order)
    steps = layout.steps(chains.transition, chains.noise, jnp.arange(len(order)) == 0)
    observation = layout.observation(factors_of_effects(rows), len(order))
    conditioned = given_sites(
        steps, roots_of(steps.noise), layout.on_states(jnp.swapaxes(observation, 1, 2) @ weights @ observation)[order]
    )
    before = jnp.concatenate([jnp.zeros_like(conditioned.covariance[:1]), conditioned.covariance[:-1]])
    both = joint_steps(steps, Chain(*conditioned[:2]), before)
    of_blocks = Chains(both.transition, both.noise, tuple(range(len(layout.blocks))), layout.jointly_observed)
    A = observation if factors.Phi is None else factors.Phi @ observation
    w, axes = jnp.linalg.eigh(precision)
    # Negative precisions last: no covariance on the way fails unless the last one does.
    w, axes = w[:, ::-1], jnp.swapaxes(axes, 1, 2)[:, ::-1]
    directions = axes @ layout.directions(A, precision.shape[1] > 2 * A.shape[1])
    nothing = jnp.zeros_like(w)
    sites = LineSites(directions, jnp.zeros((*w.shape, 0)), nothing, w)
    joint = condition(of_blocks, jax.tree.map(lambda part: part[order], sites))
    return ChainResponse(posterior, order, conditioned, joint, _shifted(posterior, factors), layout)


def response_entries(posterior: Posterior) -> int:
    """The entries of a matrix of linear response at all rows. Raises ValueError as ``Layout.of``."""
    layout = Layout.of(posterior.prior, posterior.is_coupled)
    return _responding(posterior).num_rows * (len(layout.blocks) * layout.joint_size) ** 2


def _responding(posterior: Posterior) -> PriorCollection:
    return posterior.prior if posterior.is_coupled else posterior.prior.distinct


def _shifted(posterior: Posterior, factors: Factors) -> Posterior | None:
    """The posterior of deviations from the mean, with the slope as the potential of the one predictor."""
    if factors.slope is None:
        return None
    prior = posterior.prior
    groups = tuple(group.with_mean(jnp.zeros_like(group.mean)) for group in prior.groups)
    centred, slope = PriorCollection(groups, prior.copies), factors.slope[:, None]
    if not posterior.is_coupled:
        return centred.condition(Sites(slope, posterior.sites.precision))
    potential = jnp.einsum("ipl,ip->il", factors.Phi, slope)
    return condition_jointly(centred, Sites(potential, posterior.sites.precision), ())
