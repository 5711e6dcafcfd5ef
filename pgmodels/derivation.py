"""The derivation of a model: the result of ``pgm.derive``."""

from numpy.typing import ArrayLike

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.explain import AugmentedGraph, build_graph, explain, explain_latex
from pgmodels.augmentation.verify import Verification, verify_augmentation
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.model import GP, Model, require_model
from pgmodels.runtime.precision import DoublePrecision
from pgmodels.runtime.seeds import Seed


class Derivation(DoublePrecision):
    """The augmentation of a model, step by step: print it, verify it, draw its graph."""

    def __init__(self, model: Model):
        self.model = model
        self.augmentation: Augmentation = model.augmentation

    @property
    def graph(self) -> AugmentedGraph:
        """The augmented graphical model: ``str()``, ``.to_mermaid()``, ``.to_graphviz()``."""
        return build_graph(self.augmentation, self.model.likelihood.name, tuple(gp.size for gp in self.model.gps))

    def verify(self, seed: Seed = 0, y: ArrayLike | None = None) -> Verification:
        """Check the derivation numerically against the formula.

        Parameters
        ----------
        seed : int or jax.Array
            An int or a JAX key, for the points and the draws.
        y : array_like, shape (m,) or (m, columns), optional
            Observations for the checks; needed if the likelihood declares no support to sample examples from.

        Returns
        -------
        Verification
            The checks and their discrepancies.

        Raises
        ------
        VerificationError
            Names the first failed check and its discrepancy.
        ValueError
            If no valid observations are available.
        """
        support = self.model.likelihood.support(self.model.num_latents)
        return verify_augmentation(self.augmentation, self.model.likelihood.values, support, seed=seed, y=y)

    def __str__(self) -> str:
        return explain(self.augmentation, self.model.likelihood.name)

    def __repr__(self) -> str:
        return f"<derivation of {self.model.likelihood!r}: {len(self.augmentation.rules)} rules; print it to read it>"

    def to_latex(self) -> str:
        """Return the derivation as an ``align*`` environment of LaTeX, which needs only amsmath; lines do not break."""
        return explain_latex(self.augmentation, self.model.likelihood.name)

    def _repr_latex_(self) -> str:
        return self.to_latex()


def derive(model: Model | Likelihood) -> Derivation:
    """Derive the augmentation of a model's likelihood.

    Parameters
    ----------
    model : Model or Likelihood
        A model, or a likelihood that fixes its number of latents.

    Returns
    -------
    Derivation
        The derivation: print it step by step, verify it, or draw its graph.

    Raises
    ------
    NoAugmentationError
        If no rule matches a factor. The message names the factor, the supported forms and the rules.

    Examples
    --------
    >>> import pgmodels as pgm
    >>> derivation = pgm.derive(pgm.Bernoulli())
    >>> [rule.title for rule in derivation.augmentation.rules]
    ['Pólya-Gamma']
    """
    if isinstance(model, Likelihood):
        model = Model(model, GP(RBF(), size=model.num_latents or 1))
    return Derivation(require_model(model))
