"""Errors to plant into the Gibbs engine, one at a time: a test that passes with one of them tests nothing.

Each takes ``planting``, a ``monkeypatch``. ``ERRORS`` names with each the case and the kernel (``Geweke.kernels``)
that it breaks, and whether hyperparameters must be sampled.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pgmodels import model, polya_gamma
from pgmodels.augmentation import laws
from pgmodels.augmentation.derive import OneVersusRest
from pgmodels.augmentation.laws import Categorical, Poisson, interval_normal
from pgmodels.augmentation.predictors import Predictors
from pgmodels.augmentation.rules.mixtures import GammaRule, PoissonRule
from pgmodels.augmentation.rules.rule import DifferenceRule
from pgmodels.inference import problem, surrogates
from pgmodels.inference.gibbs_schedule import Schedule
from pgmodels.inference.moves import Target
from pgmodels.inference.slice_moves import EllipticalT, SliceLatents
from pgmodels.inference.surrogates import Preconditioner, SurrogatePath
from pgmodels.parameters.vector import ParameterVector
from pgmodels.priors import block_posterior as coupled
from pgmodels.priors.block_posterior import BlockPosterior, FICPosterior
from pgmodels.priors.collection import IndependentPosterior
from tests.statistical.geweke import RELAXATION


def poisson_at_the_wrong_sign(patch: Any) -> None:
    """σ(f) for σ(-f) in the Poisson auxiliary."""

    original = PoissonRule.__init__

    def init(self: Any, *args: Any) -> None:
        original(self, *args)
        self.law = Poisson(self.rate.expression * self.up)

    patch.setattr(PoissonRule, "__init__", init)
    # Derivations are kept: this one is made anew.
    patch.setattr(model, "_derive", model._derive.__wrapped__)


def scaled_noise(patch: Any, factor: float) -> None:
    original = IndependentPosterior.mean_and_deviation

    def changed(self: Any, *args: Any) -> Any:
        means, deviations = original(self, *args)
        return means, tuple(factor * deviation for deviation in deviations)

    patch.setattr(IndependentPosterior, "mean_and_deviation", changed)


def overrelaxation_with_the_plain_deviation(patch: Any) -> None:
    """v' = E v + a (v - E v) + deviation."""
    scaled_noise(patch, (1.0 - RELAXATION**2) ** -0.5)


def overrelaxation_without_noise(patch: Any) -> None:
    """v' = E v + a (v - E v)."""
    scaled_noise(patch, 0.0)


def no_jacobian(patch: Any) -> None:
    """The prior density of hyperparameters at their natural scale, sampled unconstrained."""
    patch.setattr(
        ParameterVector, "log_prior_unconstrained", lambda self, vector: self.log_prior(self.constrain(vector))
    )


def no_normalizer(patch: Any) -> None:
    """Hyperparameters drawn as if the surrogate's normaliser did not depend on them."""
    original = surrogates._coupled
    patch.setattr(surrogates, "_coupled", lambda *args: replace(original(*args), log_evidence=jnp.zeros(())))


def no_determinant(patch: Any) -> None:
    """The surrogate of the sparse model without the determinants of what its residuals' coordinates are given."""
    original = coupled._condition_sparse

    def changed(*args: Any) -> Any:
        posterior = original(*args)
        half = jnp.log(jnp.diagonal(posterior.residual_roots, axis1=1, axis2=2))
        return replace(posterior, log_evidence=posterior.log_evidence + jnp.sum(half))

    patch.setattr(coupled, "_condition_sparse", changed)


def residuals_by_themselves(patch: Any) -> None:
    """Residuals' coordinates drawn as if they were independent of the others."""
    patch.setattr(FICPosterior, "_pull", lambda self, h, g: jnp.zeros_like(g))


def stretched_coordinates(patch: Any) -> None:
    """Standard coordinates of latents that are wider at larger hyperparameters, without their Jacobian."""
    place, standardise = SurrogatePath.place, SurrogatePath.standardise

    def run_block(self: Any, standard: Any, sign: float) -> Any:
        z, u = jnp.split(standard, [len(self.ellipse.middle)])
        return jnp.concatenate([z, jnp.exp(0.3 * sign * z[0]) * u])

    patch.setattr(SurrogatePath, "place", lambda self, standard: place(self, run_block(self, standard, 1.0)))
    patch.setattr(SurrogatePath, "standardise", lambda self, *chain: run_block(self, standardise(self, *chain), -1.0))


def no_lengths(patch: Any) -> None:
    """A Hamiltonian step that forgets that the coordinates' lengths depend on hyperparameters."""
    patch.setattr(Preconditioner, "log_jacobian", lambda self, z: jnp.zeros(()))


def one_width(patch: Any) -> None:
    """Ellipses whose width is not drawn, but depends on where the chain is."""

    original = EllipticalT.draw_width

    def width(self: Any, vector: Any, noise: Any) -> Any:
        # The mean of the squared normals is their number.
        return original(self, vector, jnp.ones_like(noise))

    patch.setattr(EllipticalT, "draw_width", width)


def no_factors(patch: Any) -> None:
    """A slice step with the likelihood where its ratio to the surrogate's factors belongs."""
    patch.setattr(BlockPosterior, "log_factor", lambda self, f: jnp.zeros(()))


def one_unit_more(patch: Any) -> None:
    """PG(b + 1, z) for PG(b, z)."""
    original = polya_gamma.draw
    patch.setattr(polya_gamma, "draw", lambda key, b, z: original(key, b + 1.0, z))


def no_tilt(patch: Any) -> None:
    """PG(b, 0) for PG(b, z)."""
    original = polya_gamma.draw
    patch.setattr(polya_gamma, "draw", lambda key, b, z: original(key, b, jnp.zeros_like(z)))


def latents_without_their_coordinates(patch: Any) -> None:
    """A slice step that moves the latents and leaves their whitened coordinates behind."""
    original = SliceLatents.steps

    def changed(self: Any, of: Any, settings: Any, chain: Any, *rest: Any) -> Any:
        moved = original(self, of, settings, chain, *rest)
        return moved._replace(chain=moved.chain._replace(coordinates=chain.coordinates))

    patch.setattr(SliceLatents, "steps", changed)


def prior_left_behind(patch: Any) -> None:
    """Sweeps with the prior of hyperparameters that the chain has left."""
    patch.setattr(Schedule, "renewals", property(lambda self: set()))


def surrogate_left_behind(patch: Any) -> None:
    """Slice steps about the Gaussian of hyperparameters that the chain has left."""
    patch.setattr(Schedule, "needs_surrogate", property(lambda self: jnp.asarray(False)))


def allocation_of_the_likeliest(patch: Any) -> None:
    """The allocation of largest probability, not a draw."""
    original = Categorical.log_weights
    patch.setattr(Categorical, "log_weights", lambda self, env: 30.0 * original(self, env))


def allocation_without_its_prior(patch: Any) -> None:
    """An allocation with even chances for the components that can have been."""
    original = Categorical.log_weights

    def even(self: Any, env: Any) -> Any:
        weights = original(self, env)
        return jnp.where(jnp.isfinite(weights), 0.0, weights)

    patch.setattr(Categorical, "log_weights", even)


def interval_of_one_end(patch: Any) -> None:
    """A Gaussian truncated from below alone."""
    original = laws.interval_normal
    patch.setattr(laws, "interval_normal", lambda key, low, high: original(key, low, jnp.inf + high))


def largest_after_the_others(patch: Any) -> None:
    """The others drawn without regard to the largest, and it truncated to above them."""

    def normals(key: Any, mean: Any, chosen: Any) -> Any:
        others_key, largest_key = jax.random.split(key)
        others = mean + jax.random.normal(others_key, mean.shape)
        highest = jnp.max(jnp.where(chosen, -jnp.inf, others), axis=-1, keepdims=True)
        largest = mean + interval_normal(largest_key, highest - mean, jnp.full_like(mean, jnp.inf))
        return jnp.where(chosen, largest, others)

    patch.setattr(laws, "normals_of_largest", normals)


def difference_of_one_end(patch: Any) -> None:
    """σ(a) (1 - e^(b - a)) for σ(a) σ(-b) (1 - e^(b - a))."""
    original = DifferenceRule.match.__func__

    def shorter(cls: Any, *args: Any) -> Any:
        factors = original(cls, *args)
        return None if factors is None else factors[:-1]

    patch.setattr(DifferenceRule, "match", classmethod(shorter))
    patch.setattr(model, "_derive", model._derive.__wrapped__)


def transposed_predictors(patch: Any) -> None:
    """Sites of predictors pulled back to latents by Φ for its transpose."""
    original = problem.condition_predictors
    patch.setattr(problem, "condition_predictors", lambda prior, Phi, *rest: original(prior, Phi.swapaxes(1, 2), *rest))


def predictors_of_another_datum(patch: Any) -> None:
    """Sites pulled back by the Φ of the next datum."""
    original = problem.condition_predictors
    patch.setattr(
        problem, "condition_predictors", lambda prior, Phi, *rest: original(prior, jnp.roll(Phi, 1, axis=0), *rest)
    )


def another_slope(patch: Any) -> None:
    """Sites pulled back by a Φ whose parameter has another value than the chain's."""
    original = Target.problem
    patch.setattr(Target, "problem", lambda self, prior, values: original(self, prior, values | {"slope": 2.0}))


def coupled_latents_apart(patch: Any) -> None:
    """Latents that predictors couple drawn as if they were not."""
    patch.setattr(Predictors, "latent_blocks", property(lambda self: tuple((i,) for i in range(self.num_latents))))


def rate_without_counts(patch: Any) -> None:
    """The rate of the sum from its prior, whatever the counts are."""
    original = GammaRule.complete
    patch.setattr(GammaRule, "complete", lambda self, children: original(self, []))
    patch.setattr(model, "_derive", model._derive.__wrapped__)


def rest_without_its_pull(patch: Any) -> None:
    """A class drawn as if the others had no part in its predictor."""
    original = OneVersusRest.draw_site

    def alone(self: Any, key: Any, f: Any, y: Any, latent: Any) -> Any:
        h, omega = original(self, key, f, y, latent)
        return (y[:, None] == latent) - 0.5 + 0.0 * h, omega

    patch.setattr(OneVersusRest, "draw_site", alone)


class Planted(NamedTuple):
    """An error, and where it shows."""

    plant: Any
    case: str
    kernel: str
    sampled: bool


SLICE = "slice of unknowns"
HAMILTONIAN = "Hamiltonian step"
WITHOUT_SLICES = "iterations without slices"
GIVEN_SITES = "slice of unknowns given sites"
OF_LIKELIHOOD = "slice of the likelihood"

ERRORS = (
    Planted(poisson_at_the_wrong_sign, "logistic_softmax", "sweep", False),
    Planted(poisson_at_the_wrong_sign, "sigmoid_poisson", "sweep", False),
    Planted(poisson_at_the_wrong_sign, "heteroscedastic", "sweep", False),
    Planted(overrelaxation_with_the_plain_deviation, "probit", "overrelaxed sweep", False),
    Planted(overrelaxation_without_noise, "probit", "overrelaxed sweep", False),
    Planted(no_jacobian, "student_t", SLICE, True),
    Planted(no_jacobian, "student_t", HAMILTONIAN, True),
    Planted(stretched_coordinates, "logistic_softmax", HAMILTONIAN, True),
    Planted(no_lengths, "logistic_softmax", HAMILTONIAN, True),
    Planted(no_normalizer, "bernoulli", SLICE, True),
    Planted(no_normalizer, "stick_breaking", SLICE, True),
    Planted(one_width, "gaussian", SLICE, True),
    Planted(no_factors, "logistic_softmax", "slice of latents", False),
    Planted(one_unit_more, "negative_binomial", "sweep", False),
    Planted(one_unit_more, "bernoulli", "sweep", False),
    Planted(no_tilt, "binomial", "sweep", False),
    Planted(no_tilt, "bernoulli", "sweep", False),
    Planted(latents_without_their_coordinates, "bernoulli", "iterations", True),
    Planted(prior_left_behind, "logistic_softmax", WITHOUT_SLICES, True),
    Planted(surrogate_left_behind, "student_t", "iterations", True),
    Planted(allocation_of_the_likeliest, "zero_inflated", "sweep", False),
    Planted(allocation_without_its_prior, "zero_inflated", "sweep", False),
    Planted(allocation_without_its_prior, "label_noise", "sweep", False),
    Planted(interval_of_one_end, "ordered_probit", "sweep", False),
    Planted(largest_after_the_others, "multinomial_probit", "sweep", False),
    Planted(difference_of_one_end, "ordered_logit", "sweep", False),
    Planted(no_jacobian, "ordered_logit", SLICE, True),
    Planted(no_jacobian, "bernoulli", GIVEN_SITES, True),
    Planted(no_jacobian, "gaussian", OF_LIKELIHOOD, True),
    Planted(transposed_predictors, "shared", "sweep", False),
    Planted(predictors_of_another_datum, "varying", "sweep", False),
    Planted(coupled_latents_apart, "additive", "sweep", False),
    Planted(another_slope, "varying", "sweep", True),
    Planted(poisson_at_the_wrong_sign, "logistic_softmax", "four blocks", False),
    Planted(rate_without_counts, "logistic_softmax", "four blocks", False),
    Planted(rest_without_its_pull, "softmax", "one versus rest", False),
)
