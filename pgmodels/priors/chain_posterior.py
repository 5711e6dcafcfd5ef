"""Posteriors of latents that the sites couple, some of them Markov chains of one column: linear in the rows.

The others have factors A, f = mean + A^T v, and are linear effects v beside the chains.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pgmodels.priors.base import Key, Sites, no_factor
from pgmodels.priors.block_posterior import residual_trace
from pgmodels.priors.chunking import chunks
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.linalg import root_by_rank
from pgmodels.priors.markov.chain import roots
from pgmodels.priors.markov.joint import Joint, LineSites, condition, log_normalizer
from pgmodels.priors.markov.prior import MarkovPrior
from pgmodels.priors.posterior import DependentPosterior, Marginals
from pgmodels.priors.row_chains import (
    chain_column,
    chain_groups,
    chained_latents,
    chains_at,
    chains_of_rows,
    check_columns,
    effect_groups,
    factors_of_effects,
    gaps_of_rows,
    places_of,
    times_of_rows,
)

# Eigenvalues of a row's precisions below this share of the largest are rounding of zero.
_ROUNDING = 1e-14
# Draws that share one scan, and residual variances below this share of a kernel's that are rounding: see drawing.
_TOGETHER, _LEAST = 16, 1e-12


class ChainPosterior(DependentPosterior):
    """N(f; mean, K) times sites that couple chains with each other and with linear effects, normalised.

    ``order`` (n,) sorts the rows by the chains' column, and ``joint`` has the sorted rows. ``sites`` are pulled to the
    latents, h (n, L) and W (n, L, L).
    """

    prior: PriorCollection
    sites: Sites
    order: Int[Array, " n"]
    joint: Joint
    log_evidence: Float[Array, ""]

    def marginals(self) -> Marginals:
        """See Posterior."""
        mean, covariance = self.joint.marginals()
        mean, covariance = (jnp.zeros_like(part).at[self.order].set(part) for part in (mean, covariance))
        mean, V = _combined(self.prior, mean, covariance, factors_of_effects(self.prior), self.joint.columns)
        residual = self.prior.residual_variances()
        return mean, V if residual is None else V + jax.vmap(jnp.diag)(residual)

    def log_normalizer(self) -> Float[Array, ""]:
        """See Posterior."""
        return self.log_evidence

    def divergence(self, covariance: Float[Array, "n L L"]) -> Float[Array, ""]:
        """See DependentPosterior."""
        W = self.sites.precision
        return self.joint.divergence() - 0.5 * (jnp.sum(W * covariance) - residual_trace(self.prior, W))

    def log_factor(self, f: Float[Array, "*batch n L"]) -> Float[Array, "*batch"]:
        """See Posterior."""
        h, W = self.sites
        quadratic = jnp.einsum("...il,ilk,...ik->...", f, W, f) + residual_trace(self.prior, W)
        return jnp.sum(h * f, axis=(-2, -1)) - 0.5 * quadratic

    def tempered(self, share: Float[Array, ""] | float) -> "ChainPosterior":
        """See Posterior."""
        h, W = self.sites
        pull = jnp.einsum("ilk,ik->il", W, self.moments()[0])
        return condition_chains(self.prior, *decoupled(Sites(h - (1.0 - share) * pull, share * W)))

    def marginals_at(self, X_new: Float[Array, "m d"]) -> tuple[Float[Array, "m L"], Float[Array, "m L L"]]:
        """See Posterior."""
        chains, forward = self.joint.chains, self.joint.forward
        gaps = gaps_of_rows(self.prior, self.order, X_new)
        F, Q = gaps.transition, gaps.noise
        before = jnp.maximum(gaps.before, 0)
        mean, P = chains.forward(F, forward.mean[before]), chains.forward(F, forward.covariance[before])
        P = chains.forward(F, jnp.swapaxes(P, 1, 2)) + chains.block_diagonal(Q)
        mean, covariance = self.joint.after(mean, P, gaps.onward, gaps.after)
        pairs = {index: group.factor_at(X_new) for index, group in effect_groups(self.prior).items()}
        factors = {index: A for index, (A, _) in pairs.items()}
        mean, V = _combined(self.prior, mean, covariance, factors, self.joint.columns)
        for index, (_, residual) in pairs.items():
            latents = np.arange(len(self.prior.means()))[self.prior.slices()[index]]
            V = V.at[:, latents, latents].add(residual[:, None])
        return mean, V

    def mean_and_deviation(self, key: Key) -> tuple[Any, Any]:
        """See Posterior."""
        centre, states = self.joint.centre, self.joint.states
        v, deviation = _draw(self.joint, key, self._may_be_signed)
        # The chains' mean given v moves with v.
        deviation = deviation + states(v) - states(centre)
        return self._coordinates(centre, states(centre)), self._coordinates(v - centre, deviation)

    @property
    def extends(self) -> bool:
        """See Posterior."""
        return True

    def drawn_at(self, X_new: Float[Array, "m d"], keys: Key) -> Float[Array, "draws m L"]:
        """Joint draws at new inputs, one for each key: by the chains through the data and the new inputs."""
        n, t = len(self.order), X_new[:, chain_column(self.prior)]
        times = jnp.concatenate([times_of_rows(self.prior), t])
        order = jnp.argsort(times)
        chains = chains_at(self.prior, times[order])
        nothing = LineSites(*(jnp.zeros((len(t), *part.shape[1:])) for part in self.joint.sites))
        # In the order of the data, with the new inputs after it.
        sites = jax.tree.map(
            lambda part, more: jnp.concatenate([jnp.zeros_like(part).at[self.order].set(part), more])[order],
            self.joint.sites,
            nothing,
        )
        joint, places = condition(chains, sites), jnp.argsort(order)[n:]
        effects = effect_groups(self.prior)
        factors = {index: group.factor_at(X_new)[0] for index, group in effects.items()}
        residuals = {}
        for index, group in effects.items():
            least = _LEAST * jnp.max(group.kernel.diagonal(X_new))
            residuals[index] = root_by_rank(group.residual_covariance(X_new), least)

        def one(key: Key) -> Array:
            of_joint, of_residual = jax.random.split(key)
            v, deviation = _draw(joint, of_joint, self._may_be_signed)
            states = chains.read((joint.states(v) + deviation)[places][..., None])[..., 0]
            f = _latents(self.prior, states, factors, v)
            noise = jax.random.normal(of_residual, f.shape)
            for index, root in residuals.items():
                part = self.prior.slices()[index]
                f = f.at[:, part].add(root @ noise[:, part])
            return f

        return jax.lax.map(one, keys, batch_size=_TOGETHER)

    def covariance(self) -> Float[Array, "L n L n"]:
        """See Posterior. Raises ValueError."""
        raise no_factor(chain_groups(self.prior)[0])

    def cross_covariance(self, X_new: Float[Array, "m d"]) -> Float[Array, "L m L n"]:
        """See Posterior. Raises ValueError."""
        raise no_factor(chain_groups(self.prior)[0])

    def covariance_at(self, X_new: Float[Array, "m d"]) -> Float[Array, "L m L m"]:
        """See Posterior. Raises ValueError."""
        raise no_factor(chain_groups(self.prior)[0])

    def coupled_latents(self) -> list[list[int]]:
        """See Posterior."""
        return [list(range(self.sites.potential.shape[1]))]

    def roots_and_centres(self) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """See Posterior. Raises ValueError."""
        raise no_factor(chain_groups(self.prior)[0])

    @property
    def _may_be_signed(self) -> bool:
        return any(group.may_be_signed for group in chain_groups(self.prior))

    def _coordinates(self, v: Float[Array, " r"], states: Float[Array, "n ld"]) -> tuple[Array, ...]:
        """The coordinates by group of effects v and sorted states."""
        states = states.reshape(len(states), -1, self.joint.chains.dimension)
        coordinates, effects, chain = [], 0, 0
        for index, group in enumerate(self.prior.groups):
            if isinstance(group, MarkovPrior):
                of_group = states[:, chain : chain + group.size, : group.dimension]
                places = places_of(self.prior, index)[self.order]
                at_inputs = jnp.zeros((len(group.X), *of_group.shape[1:])).at[places].set(of_group)
                coordinates.append(jnp.swapaxes(at_inputs, 1, 2).reshape(group.rank, group.size))
                chain += group.size
            else:
                count = group.rank * group.size
                coordinates.append(v[effects : effects + count].reshape(group.size, group.rank).T)
                effects += count
        return tuple(coordinates)


def condition_chains(prior: PriorCollection, Phi: Float[Array, "n K L"], sites: Sites) -> ChainPosterior:
    """The posterior given independent sites (n, K) on predictors Phi f.

    Raises ValueError if a group is neither a chain nor has a factor, or chains read different columns.
    """
    prior.require_coupling()
    check_columns(prior)
    (h, w), means = sites, prior.means()
    order = jnp.argsort(times_of_rows(prior))
    chained, factors = chained_latents(prior), factors_of_effects(prior)
    slopes, latents = [jnp.zeros((*h.shape, 0))], np.arange(len(means))
    for index, A in factors.items():
        slopes += [Phi[:, :, latent, None] * A.T[:, None] for latent in latents[prior.slices()[index]]]
    shift = Phi @ means
    lines = LineSites(Phi[:, :, chained], jnp.concatenate(slopes, axis=2), h - w * shift, w)
    lines = LineSites(*(part[order] for part in lines))
    chains = chains_of_rows(prior, order)
    joint = condition(chains, lines)
    pulled = Sites(jnp.einsum("ipl,ip->il", Phi, h), jnp.einsum("ipl,ip,ipk->ilk", Phi, w, Phi))
    log_evidence = log_normalizer(chains, lines, jax.lax.stop_gradient(joint))
    log_evidence += jnp.sum(h * shift - 0.5 * w * shift**2) - 0.5 * residual_trace(prior, pulled.precision)
    return ChainPosterior(prior, pulled, order, joint, log_evidence)


def decoupled(sites: Sites) -> tuple[Float[Array, "n L L"], Sites]:
    """Predictors Phi f, and independent sites on them, that make up sites with precisions (n, L, L) of any sign."""
    h, W = sites.as_coupled()
    w, axes = jnp.linalg.eigh(W)
    w = jnp.where(jnp.abs(w) > _ROUNDING * jnp.max(jnp.abs(w), axis=1, keepdims=True), w, 0.0)
    return jnp.swapaxes(axes, 1, 2), Sites(jnp.einsum("nlp,nl->np", axes, h), w)


def _draw(joint: Joint, key: Key, may_be_signed: bool) -> tuple[Float[Array, " r"], Float[Array, "n ld"]]:
    """A draw of v, and of the states' deviation from their mean given v."""
    of_effects, of_path, of_sites = jax.random.split(key, 3)
    u = jax.random.normal(of_effects, joint.centre.shape)
    v = joint.centre + joint.columns[1:, 1:] @ u
    noise = jax.random.normal(of_path, joint.forward.mean.shape[:2])
    of_sites = jax.random.normal(of_sites, joint.sites.potential.shape)
    Q = joint.chains.noise
    of_steps = roots(Q.reshape(-1, *Q.shape[2:])).reshape(Q.shape)
    if not may_be_signed:
        return v, joint.deviations(of_steps, noise, of_sites)
    deviation = jax.lax.cond(
        jnp.any(joint.sites.precision < 0.0),
        lambda: joint.signed_deviations(of_steps, noise),
        lambda: joint.deviations(of_steps, noise, of_sites),
    )
    return v, deviation


def _latents(prior: PriorCollection, chained: Array, factors: dict[int, Array], v: Array) -> Float[Array, "m L"]:
    """The latents from those of chains, less their mean, and the effects v; ``factors`` are those of each group."""
    values, effects, chain = [], 0, 0
    for index, group in enumerate(prior.groups):
        if index in factors:
            count = group.rank * group.size
            values.append(factors[index].T @ v[effects : effects + count].reshape(group.size, group.rank).T)
            effects += count
        else:
            values.append(chained[:, chain : chain + group.size])
            chain += group.size
    return prior.means() + jnp.concatenate(values, axis=1)


def _combined(
    prior: PriorCollection, mean: Array, covariance: Array, factors: dict[int, Array], columns: Array
) -> Marginals:
    """Mean and covariance of all latents from those of the chains (m, l, c), (m, l, l): see ``Joint.marginals``."""
    chained, size = chained_latents(prior), len(prior.means())

    def of_rows(mean: Array, covariance: Array, *by_row: Array) -> Marginals:
        # The latents as columns times (1, u) with u standard normal.
        every, effects, chain, others = [], 1, 0, iter(by_row)
        for index, group in enumerate(prior.groups):
            if index in factors:
                A = next(others)
                for _ in range(group.size):
                    every.append((A @ columns[effects : effects + group.rank])[:, None])
                    effects += group.rank
            else:
                every.append(mean[:, chain : chain + group.size])
                chain += group.size
        f = jnp.concatenate(every, axis=1)
        V = jnp.einsum("mlc,mkc->mlk", f[:, :, 1:], f[:, :, 1:])
        return f[:, :, 0], V.at[:, chained[:, None], chained].add(covariance)

    rows = mean, covariance, *(A.T for A in factors.values())
    mapped = jax.lax.map(lambda chunk: of_rows(*chunk), chunks(size * len(columns), *rows))
    centre, V = (part.reshape(-1, *part.shape[2:])[: len(mean)] for part in mapped)
    return prior.means() + centre, V
