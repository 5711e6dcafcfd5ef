"""The target density of the sampler, and the state of one chain."""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.inference.mcmc.gibbs.ellipse import Ellipse
from pgmodels.inference.mcmc.gibbs.surrogate_fit import fitting_problem, surrogate_of
from pgmodels.inference.mcmc.gibbs.surrogate_path import SurrogatePath
from pgmodels.inference.problem_family import ProblemFamily
from pgmodels.objectives.formula import FormulaObjective
from pgmodels.parameters.vector import ParameterVector
from pgmodels.priors.block_posterior import BlockPosterior
from pgmodels.priors.collection import PriorCollection
from pgmodels.priors.lapack_loops import vmap_as_loop
from pgmodels.priors.padding import masked
from pgmodels.runtime.pickling import Module


class Reference(NamedTuple):
    """The Gaussian over the latents that moves use: the surrogate, which contains the prior, or the prior alone."""

    prior_alone: PriorCollection | None = None
    surrogate: BlockPosterior | None = None

    @property
    def prior(self) -> PriorCollection:
        """The prior of the latents."""
        prior = self.prior_alone if self.surrogate is None else self.surrogate.prior
        assert prior is not None
        return prior

    def draw(self, key: Any) -> tuple[Any, Any]:
        """A draw of the latents at the data and its coordinates, flat."""
        if self.surrogate is None:
            latents, whitened = self.prior.draw(key)
            return latents, self.prior.flatten(whitened)
        centre = self.surrogate.centre
        coordinates = centre + self.surrogate.deviation(jax.random.normal(key, centre.shape))
        return self.prior.latents(self.prior.unflatten(coordinates)), coordinates


class Chain(NamedTuple):
    """One chain: the key of the next draws, unconstrained hyperparameters, latents and their coordinates, flat."""

    key: Any
    unknowns: Any
    latents: Any
    coordinates: Any


class Target(Module):
    """The posterior density that is sampled, of the problems of a ``family``: their model, data and hyperparameters.

    ``fixed_reference`` is the prior or surrogate if no hyperparameter is sampled; otherwise it is recomputed from the
    hyperparameters. ``fitted`` is the Gaussian at whose marginals the surrogate's factors are computed, with its
    standard coordinates, or for priors without one the ellipse of the hyperparameters alone; None if unused.
    """

    family: ProblemFamily
    fitted: SurrogatePath | Ellipse | None = None
    fixed_reference: Reference | None = None

    @property
    def objective(self) -> FormulaObjective:
        """The formula, with the conditionals that the moves draw from."""
        return cast(FormulaObjective, self.family.objective)

    @property
    def augmentation(self) -> Augmentation:
        """The augmentation of the formula, for moves of schemes that require one."""
        return cast(Augmentation, self.family.objective)

    @property
    def unknowns(self) -> ParameterVector:
        """The sampled hyperparameters."""
        return self.family.parameters

    @property
    def path(self) -> SurrogatePath:
        """The fitted Gaussian as a function of the unknowns. Raises ValueError if none was fitted."""
        if not isinstance(self.fitted, SurrogatePath):
            raise ValueError("no Gaussian was fitted: a move that needs one must list GAUSSIAN in its requirements.")
        return self.fitted

    @property
    def ellipse(self) -> Ellipse:
        """Middle and scale of the unknowns. Raises ValueError if there are none."""
        if self.fitted is None:
            raise ValueError("no hyperparameter is sampled: a move that needs one must list HYPERPARAMETERS.")
        return Ellipse(self.fitted.middle, self.fitted.scale)

    def parameters(self, vector: Any) -> Any:
        """The likelihood's parameters at given hyperparameters."""
        return self.drawn(vector).parameters

    def drawn(self, vector: Any) -> Any:
        """The model at given hyperparameters."""
        return self.family.model_at(vector)

    def log_likelihood(self, latents: Any, vector: Any) -> Any:
        """log p(y | f) of all data."""
        return self.log_density(latents, self.parameters(vector))

    def log_density(self, latents: Any, parameters: Any) -> Any:
        """log p(y | f) of all data at given parameters of the likelihood."""
        return jnp.sum(self.masked(self.objective.log_density(self.family.y, latents, parameters)))

    def masked(self, terms: Any) -> Any:
        """Terms of each row, zero for padding."""
        return masked(self.family.row_weights, terms)

    def prior(self, vector: Any) -> PriorCollection:
        """The latents' prior at given hyperparameters."""
        if self.fixed_reference is not None:
            return self.fixed_reference.prior
        return self.family.prior_at(vector).for_sampling()

    def latents(self, vector: Any, coordinates: Any) -> Any:
        """The latents from coordinates at given hyperparameters."""
        prior = self.prior(vector)
        return prior.latents(prior.unflatten(coordinates))

    def log_joint(self, vector: Any, whitened: Any) -> Any:
        """The log posterior density of unconstrained unknowns and whitened coordinates, up to a constant."""
        prior = self.unknowns.log_prior_unconstrained(vector) - 0.5 * whitened @ whitened
        return prior + self.log_likelihood(self.latents(vector, whitened), vector)

    def log_posterior(self, standard: Any) -> Any:
        """The log posterior density of the standard coordinates of ``path``, up to a constant."""
        return self.log_joint(*self.path.place(standard)) + self.path.log_jacobian(standard)

    def surrogate(self, vector: Any) -> BlockPosterior:
        """The surrogate at given hyperparameters: their prior, with factors at the marginals of ``path``."""
        if self.fixed_reference is not None and self.fixed_reference.surrogate is not None:
            return self.fixed_reference.surrogate
        problem = fitting_problem(self.drawn(vector), self.prior(vector), self.family.y, self.family.row_weights)
        return surrogate_of(problem, self.path.at(vector))

    def reference(self, vector: Any) -> Reference:
        """The prior or surrogate that moves use at given hyperparameters."""
        if self.fixed_reference is not None:
            return self.fixed_reference
        if not isinstance(self.fitted, SurrogatePath):
            return Reference(self.prior(vector))
        return Reference(surrogate=self.surrogate(vector))


# Over chains these loop: see pgmodels.priors.lapack_loops.
surrogate_at = vmap_as_loop(lambda target, vector: target.surrogate(vector))
prior_at = vmap_as_loop(lambda target, vector: target.prior(vector))
latents_at = vmap_as_loop(lambda target, vector, coordinates: target.latents(vector, coordinates))
