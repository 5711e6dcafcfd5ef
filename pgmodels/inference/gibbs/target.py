"""What the sampler draws from, and one chain of it."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.inference.gibbs.fitting import fitting_problem, surrogate_of
from pgmodels.inference.gibbs.response import Response
from pgmodels.latent.coupled import CoupledPosterior
from pgmodels.latent.inputs import DistinctInputs
from pgmodels.latent.joint import JointPrior
from pgmodels.latent.rows import of_data
from pgmodels.latent.sequential import one_by_one
from pgmodels.model import Groups
from pgmodels.portable import Module
from pgmodels.unknowns import Unknowns, with_values

# What moves stand on at a chain's hyperparameters: the latents' prior, or the surrogate, which has the prior in it.
About = JointPrior | CoupledPosterior


class Chain(NamedTuple):
    """One chain: the key of what follows, hyperparameters (unconstrained), latents and their coordinates, flat."""

    key: Any
    unknowns: Any
    latents: Any
    coordinates: Any


class Target(Module):
    """What is sampled from: the model without priors, the data, and which of its values are unknown.

    ``held`` is what moves stand on where nothing is unknown. Otherwise it follows from the unknowns, but for the
    ``groups`` of latents whose kernels have none of them, and what stands there for others is None; ``fitted`` are the
    marginals at which the surrogate's factors are made, and standard coordinates, None where no move needs them.
    ``live`` is 0 at rows that fill up the data, see pgmodels.latent.rows; None where all are data.
    """

    model: Any
    inputs: DistinctInputs
    y: Any
    augmentation: Augmentation = eqx.field(static=True)
    unknowns: Unknowns = eqx.field(static=True)
    groups: Groups = ()
    fitted: Response | None = None
    held: About | None = None
    live: Any = None

    @property
    def response(self) -> Response:
        """The fitted Gaussian, as it follows the unknowns; ValueError where none was fitted."""
        if self.fitted is None:
            raise ValueError("no Gaussian was fitted: a move that needs one must say so in its needs.")
        return self.fitted

    def parameters(self, vector: Any) -> Any:
        """The likelihood's parameters at given unknowns."""
        return self.drawn(vector).parameters

    def drawn(self, vector: Any) -> Any:
        """The model at given unknowns."""
        return with_values(self.model, self.unknowns.places, self.unknowns.constrain(vector))

    def log_likelihood(self, latents: Any, vector: Any) -> Any:
        """log p(y | f) of all data."""
        return self.log_density(latents, self.parameters(vector))

    def log_density(self, latents: Any, parameters: Any) -> Any:
        """log p(y | f) of all data at given parameters of the likelihood."""
        return jnp.sum(self.of_data(self.augmentation.log_density(self.y, latents, parameters)))

    def of_data(self, terms: Any) -> Any:
        """Terms of each row, zero where it is no datum."""
        return of_data(self.live, terms)

    def prior(self, vector: Any) -> JointPrior:
        """The latents' prior at given unknowns."""
        if self.held is not None:
            return prior_of(self.held)
        return self.drawn(vector).traced_prior(self.inputs, self.groups).generative()

    def latents(self, vector: Any, coordinates: Any) -> Any:
        """The latents of coordinates at given unknowns."""
        prior = self.prior(vector)
        return prior.latents(prior.unflatten(coordinates))

    def log_joint(self, vector: Any, whitened: Any) -> Any:
        """The log posterior density of unconstrained unknowns and whitened coordinates, up to a constant."""
        prior = self.unknowns.log_prior_unconstrained(vector) - 0.5 * whitened @ whitened
        return prior + self.log_likelihood(self.latents(vector, whitened), vector)

    def log_posterior(self, standard: Any) -> Any:
        """The log posterior density of the standard coordinates of ``response``, up to a constant."""
        return self.log_joint(*self.response.place(standard)) + self.response.log_jacobian(standard)

    def surrogate(self, vector: Any) -> CoupledPosterior:
        """The surrogate at given unknowns: its prior's, with factors made where ``response`` expects the latents."""
        if isinstance(self.held, CoupledPosterior):
            return self.held
        problem = fitting_problem(self.drawn(vector), self.prior(vector), self.y, self.live)
        return surrogate_of(problem, self.response.at(vector))

    def about(self, vector: Any) -> About:
        """What moves stand on at given unknowns."""
        if self.held is not None:
            return self.held
        return self.prior(vector) if self.fitted is None else self.surrogate(vector)


def prior_of(about: About) -> JointPrior:
    """The prior in what moves stand on."""
    return about.prior if isinstance(about, CoupledPosterior) else about


# Over chains these loop: see pgmodels.latent.sequential.
surrogate_at = one_by_one(lambda target, vector: target.surrogate(vector))
prior_at = one_by_one(lambda target, vector: target.prior(vector))
latents_at = one_by_one(lambda target, vector, coordinates: target.latents(vector, coordinates))
