"""The moves of the Gibbs engine on one chain. Each leaves the posterior unchanged by itself."""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.inference.gaussian_vi import gaussian_factors
from pgmodels.inference.problem import condition
from pgmodels.latent.coupled import CoupledPosterior, choose_blocks, condition_coupled
from pgmodels.latent.joint import JointPrior
from pgmodels.latent.protocol import Sites
from pgmodels.latent.sequential import one_by_one, one_by_one_if_batched
from pgmodels.portable import Module
from pgmodels.unknowns import Unknowns, with_values

# Degrees of freedom of the t distribution whose ellipses a slice step on the hyperparameters takes.
_FREEDOM = 8.0
# The bracket of one along a line, in standard deviations of the direction taken.
_WIDTH = 4.0
# An angle or a step has shrunk by 2^-100 by then: what is left is rounding, and the chain stays where it is.
_MAX_SHRINKS = 100


class Chain(NamedTuple):
    """One chain: the key of what follows, hyperparameters (unconstrained), latents and their whitened coordinates.

    ``surrogate`` is the Gaussian at these hyperparameters, with the prior in it; after ``renew_prior`` its prior alone.
    """

    key: Any
    unknowns: Any
    latents: Any
    whitened: Any
    surrogate: CoupledPosterior


class Target(Module):
    """What is sampled from: the model without priors, the data, and which of its values are unknown."""

    model: Any
    X: Any
    y: Any
    augmentation: Augmentation = eqx.field(static=True)
    unknowns: Unknowns = eqx.field(static=True)
    # A Response where something is unknown: marginals at which the surrogate's factors are made, standard coordinates.
    response: Any = None

    def parameters(self, vector: Any) -> Any:
        """The likelihood's parameters at given unknowns."""
        return self.drawn(vector).parameters

    def drawn(self, vector: Any) -> Any:
        """The model at given unknowns."""
        return with_values(self.model, self.unknowns.places, self.unknowns.constrain(vector))

    def log_likelihood(self, latents: Any, vector: Any) -> Any:
        """log p(y | f) of all data."""
        return jnp.sum(self.augmentation.log_density(self.y, latents, self.parameters(vector)))

    def prior(self, vector: Any) -> JointPrior:
        """The latents' prior at given unknowns."""
        return self.drawn(vector).traced_prior(self.X)

    def latents(self, vector: Any, whitened: Any) -> Any:
        """The latents of whitened coordinates at given unknowns."""
        prior = self.prior(vector)
        return prior.latents(prior.unflatten(whitened))

    def log_joint(self, vector: Any, whitened: Any) -> Any:
        """The log posterior density of unconstrained unknowns and whitened coordinates, up to a constant."""
        prior = self.unknowns.log_prior_unconstrained(vector) - 0.5 * whitened @ whitened
        return prior + self.log_likelihood(self.latents(vector, whitened), vector)

    def log_posterior(self, standard: Any) -> Any:
        """The log posterior density of the standard coordinates of ``response``, up to a constant."""
        return self.log_joint(*self.response.place(standard)) + self.response.log_jacobian(standard)

    def surrogate(self, vector: Any) -> CoupledPosterior:
        """The surrogate at given unknowns: its prior's, with factors made where ``response`` expects the latents."""
        prior = self.prior(vector)
        blocks = choose_blocks(prior)
        h, W = gaussian_factors(self.augmentation, self.y, self.parameters(vector), self.response.at(vector), blocks)
        return condition_coupled(prior, h, W, blocks)


# Over chains these loop: see pgmodels.latent.sequential.
_mean_and_deviation = one_by_one(
    lambda target, prior, key, sites, parameters: condition(
        target.augmentation.predictors, prior, sites, target.y, parameters
    ).mean_and_deviation(key)
)
_surrogate = one_by_one(lambda target, vector: target.surrogate(vector))
_prior = one_by_one(lambda target, vector: target.prior(vector))
_latents = one_by_one(lambda target, vector, whitened: target.latents(vector, whitened))
_density_and_gradient = one_by_one(lambda target, standard: jax.value_and_grad(target.log_posterior)(standard))
_deviation = one_by_one_if_batched(lambda surrogate, u: surrogate.deviation(u))


def draw_auxiliaries_then_latents(target: Target, chain: Chain, relaxation: Any) -> tuple[Chain, Any, Any]:
    """One Gibbs sweep: for each block, its auxiliaries given all latents, then its latents given the auxiliaries.

    The latents' draw is overrelaxed, v' = E v + a (v - E v) + sqrt(1 - a^2) deviation with a = ``relaxation`` in
    (-1, 0] (Adler 1981; math: section 4). Also returns E[f | auxiliaries] and whether all sites were finite.
    """
    prior, key, augmentation = chain.surrogate.prior, chain.key, target.augmentation
    latents, whitened = chain.latents, prior.unflatten(chain.whitened)
    parameters = target.parameters(chain.unknowns)
    expected, finite = latents, jnp.array(True)
    for index, block in enumerate(augmentation.blocks):
        key, auxiliary_key, latent_key = jax.random.split(key, 3)
        z = augmentation.predictor_values(latents, target.y, parameters)
        h, w = augmentation.draw_auxiliaries(auxiliary_key, z, target.y, parameters, index)
        finite = finite & jnp.all(jnp.isfinite(h)) & jnp.all(jnp.isfinite(w))
        means, deviations = _mean_and_deviation(target, prior, latent_key, Sites(h, w), parameters)
        spread = jnp.sqrt(1.0 - relaxation**2)
        drawn = tuple(
            m + relaxation * (v - m) + spread * d for m, v, d in zip(means, whitened, deviations, strict=True)
        )
        columns = np.isin(np.arange(augmentation.num_latents), augmentation.latents_of(block))
        expected = jnp.where(columns, prior.latents(means), expected)
        whitened = tuple(
            jnp.where(columns[part], new, old) for new, old, part in zip(drawn, whitened, prior.slices(), strict=True)
        )
        latents = jnp.where(columns, prior.latents(drawn), latents)
    moved = chain._replace(key=key, latents=latents, whitened=prior.flatten(whitened))
    return moved, expected, finite


def slice_latents(target: Target, chain: Chain) -> tuple[Chain, Any]:
    """An elliptical slice step on all latents about the surrogate; also returns how often the angle shrank.

    The posterior is the surrogate times the ratio p(y | f) / factors(f), nearly constant where the surrogate is good:
    then the step is nearly an independent draw. Source: Murray, Adams and MacKay 2010; Nishihara, Murray and Adams
    2014.
    """
    surrogate, prior = chain.surrogate, chain.surrogate.prior
    key, noise_key, height_key, angle_key, shrink_key = jax.random.split(chain.key, 5)
    centre = prior.latents(prior.unflatten(surrogate.centre))
    own, own_latents = chain.whitened - surrogate.centre, chain.latents - centre
    other = _deviation(surrogate, jax.random.normal(noise_key, own.shape, own.dtype))
    other_latents = prior.latents(prior.unflatten(other)) - prior.means()
    parameters = target.parameters(chain.unknowns)

    def log_ratio(f: Any) -> Any:
        return jnp.sum(target.augmentation.log_density(target.y, f, parameters)) - surrogate.log_factor(f)

    def at(angle: Any) -> Any:
        return centre + own_latents * jnp.cos(angle) + other_latents * jnp.sin(angle)

    height = log_ratio(chain.latents) - jax.random.exponential(height_key)
    first = jax.random.uniform(angle_key, maxval=2.0 * jnp.pi)

    def rejected(carry: Any) -> Any:
        return ~(log_ratio(at(carry[0])) >= height) & (carry[4] < _MAX_SHRINKS)

    def shrink(carry: Any) -> Any:
        angle, low, high, key, count = carry
        low, high = jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle)
        key, draw = jax.random.split(key)
        return jax.random.uniform(draw, minval=low, maxval=high), low, high, key, count + 1

    angle, *_, count = jax.lax.while_loop(rejected, shrink, (first, first - 2.0 * jnp.pi, first, shrink_key, 0))
    angle = jnp.where(count < _MAX_SHRINKS, angle, 0.0)
    whitened = surrogate.centre + own * jnp.cos(angle) + other * jnp.sin(angle)
    return chain._replace(key=key, latents=at(angle), whitened=whitened), count


def slice_unknowns(target: Target, chain: Chain) -> Chain:
    """A slice step on the hyperparameters, the latents moving with the surrogate.

    Held are the surrogate's standard coordinates u, with f = m(θ) + S(θ) u. Given u the posterior density of the
    unconstrained θ is p(θ) Z(θ) p(y | f) / factors(f), with Z the surrogate's normaliser: the Gaussian part of f is
    integrated out. Source: Murray and Adams 2010, with Gaussian factors in the place of surrogate data.
    """
    u = chain.surrogate.standardise(chain.whitened)

    def log_density(vector: Any, latents: Any, surrogate: CoupledPosterior) -> Any:
        ratio = target.log_likelihood(latents, vector) - surrogate.log_factor(latents)
        return target.unknowns.log_prior_unconstrained(vector) + surrogate.log_normalizer() + ratio

    def at(vector: Any) -> tuple[Any, Any]:
        surrogate = _surrogate(target, vector)
        whitened = surrogate.centre + _deviation(surrogate, u)
        latents = surrogate.prior.latents(surrogate.prior.unflatten(whitened))
        return (latents, whitened, surrogate), log_density(vector, latents, surrogate)

    key, own = jax.random.split(chain.key)
    held = chain.latents, chain.whitened, chain.surrogate
    density = log_density(chain.unknowns, chain.latents, chain.surrogate)
    vector, moved = _slice(own, target.response, chain.unknowns, held, density, at, True)
    return Chain(key, vector, *moved)


def slice_unknowns_whitened(target: Target, chain: Chain, ellipse: Any) -> Chain:
    """A slice step on the hyperparameters, the latents moving with the prior: their whitened coordinates are held.

    It needs the prior's roots alone, and mixes where the data say little of the latents, or no Gaussian says it well.
    The surrogate is left behind: see ``renew``. Source: Murray and Adams 2010.
    """

    def log_density(vector: Any, latents: Any) -> Any:
        return target.unknowns.log_prior_unconstrained(vector) + target.log_likelihood(latents, vector)

    def at(vector: Any) -> tuple[Any, Any]:
        latents = _latents(target, vector, chain.whitened)
        return latents, log_density(vector, latents)

    key, own = jax.random.split(chain.key)
    density = log_density(chain.unknowns, chain.latents)
    vector, latents = _slice(own, target.response, chain.unknowns, chain.latents, density, at, ellipse)
    return Chain(key, vector, latents, chain.whitened, chain.surrogate)


def move_all(target: Target, chain: Chain, step: Any, leapfrogs: Any) -> tuple[Chain, Any]:
    """A Hamiltonian step on hyperparameters and latents at once; also returns how probable it was to be accepted.

    In the standard coordinates x of the target's response, with a unit mass. Between kicks by the gradient of what the
    density has besides N(x; 0, I), position and momentum turn exactly, as N(x; 0, I) alone has them do. The number of
    steps is drawn between half of ``leapfrogs`` and all of them, and their length within 20 % of ``step``, so that
    neither means nor squares come back to where they were. The surrogate is left behind: see ``renew``. Source: Neal
    2011; Shahbaba, Lan, Johnson and Neal 2014.
    """
    key, number_key, length_key, momentum_key, accept_key = jax.random.split(chain.key, 5)
    leapfrogs = jax.random.randint(number_key, (), (leapfrogs + 1) // 2, leapfrogs + 1)
    start = target.response.standardise(chain.unknowns, chain.whitened)
    momentum = jax.random.normal(momentum_key, start.shape, start.dtype)
    step = step * jax.random.uniform(length_key, minval=0.8, maxval=1.2)

    def kick_and_turn(i: Any, state: Any) -> Any:
        x, p, first, _ = state
        density, gradient = _density_and_gradient(target, x)
        at_end = (i == 0) | (i == leapfrogs)
        p = p + jnp.where(at_end, 0.5, 1.0) * step * (gradient + x)
        angle = jnp.where(i < leapfrogs, step, 0.0)
        x, p = x * jnp.cos(angle) + p * jnp.sin(angle), p * jnp.cos(angle) - x * jnp.sin(angle)
        return x, p, jnp.where(i == 0, density, first), density

    state = jax.lax.fori_loop(0, leapfrogs + 1, kick_and_turn, (start, momentum, jnp.zeros(()), jnp.zeros(())))
    standard, turned, before, after = state
    gain = after - before - 0.5 * (turned @ turned - momentum @ momentum)
    # What is not finite at the end is not gone to.
    probability = jnp.where(jnp.isfinite(gain), jnp.exp(jnp.minimum(gain, 0.0)), 0.0)
    accepted = jax.random.uniform(accept_key) < probability
    vector, whitened = target.response.place(standard)
    moved = chain._replace(unknowns=vector, latents=_latents(target, vector, whitened), whitened=whitened, key=key)
    stayed = chain._replace(key=key)
    return jax.lax.cond(accepted, lambda: moved, lambda: stayed), probability


def renew(target: Target, chain: Chain) -> Chain:
    """The chain with the surrogate of its hyperparameters."""
    return chain._replace(surrogate=_surrogate(target, chain.unknowns))


def renew_prior(target: Target, chain: Chain) -> Chain:
    """The chain with the prior of its hyperparameters, which is all that a Gibbs sweep needs of the surrogate."""
    return chain._replace(surrogate=replace(chain.surrogate, prior=_prior(target, chain.unknowns)))


def _slice(key: Any, response: Any, vector: Any, state: Any, density: Any, at: Any, ellipse: Any) -> tuple[Any, Any]:
    """A slice step from a vector with some state and log density; ``at(vector)`` gives those of another.

    It goes along an ellipse, which turns over all entries at once, of the t distribution with the response's middle and
    scale, or, where ``ellipse`` is False, along a line in a random direction. Source: Neal 2003; Nishihara, Murray and
    Adams 2014.
    """
    middle, scale = response.middle, response.scale
    height_key, direction_key, width_key, place_key, shrink_key = jax.random.split(key, 5)
    noise = jax.random.normal(direction_key, vector.shape, vector.dtype)
    relative = _draw_width(width_key, response.standard(vector - middle))
    width = jnp.where(ellipse, 2.0 * jnp.pi, _WIDTH)

    def path(step: Any) -> Any:
        turned = middle + (vector - middle) * jnp.cos(step) + relative * scale @ noise * jnp.sin(step)
        return jnp.where(ellipse, turned, vector + step * (scale @ (noise / jnp.linalg.norm(noise))))

    def without_ellipse(vector: Any) -> Any:
        standard = response.standard(vector - middle)
        return jnp.where(ellipse, 0.5 * (_FREEDOM + len(vector)) * jnp.log1p(standard @ standard / _FREEDOM), 0.0)

    height = density + without_ellipse(vector) - jax.random.exponential(height_key)
    high = width * jax.random.uniform(place_key)

    def unfinished(carry: Any) -> Any:
        *_, accepted, count = carry
        return ~accepted & (count < _MAX_SHRINKS)

    def propose(carry: Any) -> Any:
        low, high, key, held, _, count = carry
        key, draw = jax.random.split(key)
        step = jax.random.uniform(draw, minval=low, maxval=high)
        proposed = path(step)
        moved, density = at(proposed)
        accepted = density + without_ellipse(proposed) >= height
        held = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), (proposed, moved), held)
        return jnp.where(step < 0, step, low), jnp.where(step < 0, high, step), key, held, accepted, count + 1

    start = (high - width, high, shrink_key, (vector, state), jnp.array(False), 0)
    return jax.lax.while_loop(unfinished, propose, start)[3]


def _draw_width(key: Any, standard: Any) -> Any:
    """The width of the normal distribution that a t distribution is where its standardised vector is this."""
    chi_square = 2.0 * jax.random.gamma(key, (_FREEDOM + len(standard)) / 2.0)
    return jnp.sqrt((_FREEDOM + standard @ standard) / chi_square)
