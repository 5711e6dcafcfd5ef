"""Schemes of the sampler: which moves it makes, what they draw from, and what they require of the model."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from pgmodels.augmentation.errors import NoAugmentationError
from pgmodels.augmentation.one_versus_rest import OneVersusRest, one_versus_rest
from pgmodels.inference.mcmc.gibbs.moves.data_augmentation import PlainSweep
from pgmodels.inference.mcmc.gibbs.moves.four_block import FourBlock
from pgmodels.inference.mcmc.gibbs.moves.move import Move
from pgmodels.inference.mcmc.gibbs.moves.one_versus_rest import ClassByClass
from pgmodels.inference.mcmc.gibbs.schedule import MOVES
from pgmodels.likelihoods.expression import Environment
from pgmodels.model import Data, Model, with_powers
from pgmodels.objectives.formula import FormulaObjective
from pgmodels.parameters.vector import with_priors

SchemeName = Literal["auto", "sweep", "four_block", "one_vs_rest"]


class Scheme:
    """A scheme: the ``moves`` of a run, which omits those whose requirements it does not meet, and their conditionals.

    Every scheme starts at draws of the Gaussian fitted to the posterior, or else of the prior.
    """

    name: ClassVar[str]
    moves: tuple[Move, ...]

    def objective(self, model: Model) -> FormulaObjective:
        """The formula of a model with the conditionals that the moves draw from."""
        return model.augmentation

    def check(self, model: Model, data: Data) -> None:
        """Raise ValueError, before any work, if the scheme does not apply to the model or the weights."""
        if data.weights is not None:
            _check_powers(*with_powers(model, data))


@dataclass(frozen=True)
class Adaptive(Scheme):
    """The package's moves, or others; how often each is made is chosen in warm-up."""

    name: ClassVar[str] = "auto"
    moves: tuple[Move, ...] = MOVES


class Published(Scheme):
    """A published scheme: a single move, of the latents alone."""

    def check(self, model: Model, data: Data) -> None:
        """See Scheme: no hyperparameter has a prior."""
        sampled = with_priors(model).names
        if sampled:
            raise ValueError(
                f"scheme={self.name!r} updates the latents alone, and the model has a prior on {', '.join(sampled)}: "
                'fix the hyperparameters, as in pgm.gibbs(model.fixed(), ...), or choose scheme="auto".'
            )
        super().check(model, data)


class Sweep(Published):
    """Auxiliary variables given the latents, latents given auxiliary variables (Polson, Scott and Windle 2013)."""

    name = "sweep"
    moves = (PlainSweep(),)

    def check(self, model: Model, data: Data) -> None:
        """See Scheme: the likelihood has an augmentation."""
        self.objective(model)
        super().check(model, data)


class FourBlocks(Published):
    """Complete conditionals of rates, counts, Pólya-Gamma variables and latents (Galy-Fajou et al. 2019)."""

    name = "four_block"
    moves = (FourBlock(),)

    def check(self, model: Model, data: Data) -> None:
        """See Scheme: the formula has a factor with a Gamma rule, and none within a mixture."""
        augmentation = model.augmentation
        outer = {
            rule.auxiliary.name for rule in augmentation.rules if rule.auxiliary is not None and rule.parent is None
        }
        laws = set(augmentation.complete_laws)
        if not laws or not laws <= outer:
            fault = "has one within a mixture" if laws else "has none"
            raise ValueError(
                f"scheme={self.name!r} needs a sum of sigmoids to a negative power as a factor of the likelihood, and "
                f'{model.likelihood.name} {fault}: choose scheme="sweep" or scheme="auto".'
            )
        super().check(model, data)


class OneVersusRestScheme(Published):
    """The classes of a softmax one after another, each given the others (Polson, Scott and Windle 2013)."""

    name = "one_vs_rest"
    moves = (ClassByClass(),)

    def objective(self, model: Model) -> OneVersusRest:
        """See Scheme: the likelihood needs no augmentation."""
        objective = one_versus_rest(model.likelihood.formula(model.num_latents), model.num_latents)
        if objective is None:
            raise ValueError(
                f"scheme={self.name!r} needs the likelihood exp(f[y]) / sum(exp(f)) with a latent for each class; got "
                f'{model.likelihood.name} with {model.num_latents} latents. Choose another scheme, such as "auto".'
            )
        return objective

    def check(self, model: Model, data: Data) -> None:
        """See Scheme; weights may have any value."""
        self.objective(model)
        super().check(model, data._replace(weights=None))


AUTO = Adaptive()
SCHEMES: dict[str, Scheme] = {scheme.name: scheme for scheme in (AUTO, Sweep(), FourBlocks(), OneVersusRestScheme())}


def scheme_of(name: str) -> Scheme:
    """The scheme of a name. Raises ValueError for an unknown one."""
    if not isinstance(name, str) or name not in SCHEMES:
        raise ValueError(f"scheme must be one of {', '.join(map(repr, SCHEMES))}; got {name!r}.")
    return SCHEMES[name]


def _check_powers(model: Model, data: Data) -> None:
    """Raise NoAugmentationError if a weight is a power whose auxiliary variables cannot be drawn."""
    env = Environment(data.y, jnp.zeros((len(data.y), model.num_latents)), model.parameters)
    for requirement in model.augmentation.requirements:
        if requirement.kind == "indicator" and not np.all(requirement.holds(requirement.expression.evaluate(env))):
            raise NoAugmentationError(
                f"gibbs supports only weights 0 and 1 for {model.likelihood.name}: a weight is a power of the "
                f"likelihood, and {requirement.reason} is then {requirement.expression.text()} (the weight is the last "
                "column of y). For integer weights, repeat the rows; cavi and fit take any weights."
            )
