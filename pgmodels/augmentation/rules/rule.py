"""What a rule is: one identity that introduces an auxiliary variable, in a file of its own.

A rule stands for one factor of the likelihood. It knows how the factor looks (``match``), the law of its auxiliary
given the latents, its share of the local bound, and the site that is left of the factor once the auxiliary is known.
All are formulas, evaluated by the engines and printed by derivations. Auxiliaries that were drawn earlier in the chain
are coefficients like any other, read from ``env.parameters`` by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp

from pgmodels.augmentation.averages import Expected
from pgmodels.augmentation.laws import Law
from pgmodels.augmentation.normal_form import Factor
from pgmodels.augmentation.quadratic import Quadratic
from pgmodels.augmentation.symbols import Auxiliary, SiteTerm, auxiliaries_of
from pgmodels.likelihoods.algebra import multiply, power
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.notation import Chain, Part, Tree, line, listed
from pgmodels.likelihoods.symbols import Constant

if TYPE_CHECKING:
    from pgmodels.augmentation.derive import Deriver

ZERO, ONE = Constant(0.0), Constant(1.0)

Site = tuple[Any, Any]


class Rule(ABC):
    """One identity of the derivation. ``auxiliary`` and ``law`` are None where the factor needs none.

    ``parent`` is the auxiliary of the rule that left the factor, None where the likelihood has it: a part of the
    parent's factor has no share of the bound of its own. ``coupled`` are latents, besides those of its sites, that
    the factor reads: they are updated in another block.
    """

    title: ClassVar[str]
    # Rules are applied in the order of their ranks: an auxiliary is drawn after those that its law reads.
    rank: ClassVar[int]

    auxiliary: Auxiliary | None = None
    law: Law | None = None
    parent: Auxiliary | None = None
    factor: Expression
    positions: tuple[int, ...]
    coupled: tuple[int, ...] = ()
    # What the factor leaves to later rules, as a function of the auxiliary.
    left: Expression = ONE
    # Whether y depends on the latents of the factor through the auxiliary alone.
    separates: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        """Take a factor that depends on latents: add a rule to the deriver and return the factors that are left.

        None where the factor is not of this rule's kind; raises NoAugmentationError where it is, but lacks what the
        rule needs. Factors exp(...) arrive as one, and what a rule leaves of its exponent goes on to the next.
        """

    def finish(self, deriver: Deriver) -> None:  # noqa: B027
        """Complete the rule once all factors are taken."""

    @abstractmethod
    def share(self) -> Expression:
        """The factor's share of the local bound, a number a datum."""

    @abstractmethod
    def log_joint(self, env: Environment) -> Any:
        """log of the augmented factor, less the factors that later rules augment."""

    def log_factor(self, env: Environment, known: Container[str] = ()) -> Any:
        """log of the factor, its auxiliary integrated out; parents by the names ``known`` are held at their values."""
        return self.factor.log_evaluate(env)

    @abstractmethod
    def identity(self) -> Tree:
        """The identity as a formula, such as ``line(self.factor, "=", integral(self.augmented(), self.auxiliary))``."""

    @abstractmethod
    def augmented(self) -> Part:
        """The factor with its auxiliary, less what later rules augment, as a formula.

        An expression, or what ``language.notation`` puts together where it is to stand as it is, not simplified.
        """

    def conditional(self) -> Chain | None:
        """The complete conditional of the auxiliary, as a formula; None where there is none."""
        if self.auxiliary is None or self.law is None:
            return None
        given = listed(*auxiliaries_of(self.factor), "f", "y")
        return line(self.auxiliary, "|", given, "~", self.law.notation(self.auxiliary))

    def prior(self) -> tuple[Expression, ...]:
        """What the law of the auxiliary before any observation reads."""
        return ()

    def sites(self) -> tuple[SiteTerm, ...]:
        """The sites that the factor leaves, as formulas."""
        return ()

    def coupled_sites(self, averaged: bool = False) -> tuple[SiteTerm, ...]:
        """The sites of coupled latents, the auxiliary integrated out; ``averaged`` for those of CAVI."""
        return ()

    def averaged(self) -> Law | None:
        """The auxiliary's law under the optimal q, as a function of q's moments and of auxiliaries before it."""
        return None

    def expectations(self) -> tuple[tuple[Expected, Expression], ...]:
        """Expectations under the optimal q that sites read, as functions of those of auxiliaries before this."""
        law = self.averaged()
        return () if self.auxiliary is None or law is None else ((Expected(self.auxiliary), law.mean()),)

    def has_no_mean(self, env: Environment) -> bool:
        """Whether the posterior has no mean of the auxiliary, its conditional mean growing too fast in the latents."""
        return False


def evaluate_sites(terms: tuple[SiteTerm, ...], env: Environment) -> Site:
    """The sites of formulas at latent values and auxiliaries, (..., n, latents) each, added up."""
    potential, precision = jnp.zeros_like(env.f), jnp.zeros_like(env.f)
    for term in terms:
        h, w = term.predictor.site(term.potential.evaluate(env), term.precision.evaluate(env), env)
        potential, precision = potential + h, precision + w
    return potential, precision


def quadratic_sites(quadratic: Quadratic, multiplier: Expression) -> tuple[SiteTerm, ...]:
    """The sites of exp(-multiplier * quadratic)."""
    return tuple(SiteTerm(s.predictor, ZERO, multiply(2.0, multiplier, s.weight)) for s in quadratic.squares)


class Rewriting(Rule):
    """An identity that introduces no auxiliary: the factors that it leaves are all that there is."""

    rank = 0

    def __init__(self, factor: Factor, written: Expression):
        self.factor, self.written, self.parent = power(factor.base, factor.exponent), written, factor.parent
        self.positions = ()

    def share(self) -> Expression:
        return ZERO

    def log_joint(self, env: Environment) -> Any:
        return jnp.zeros((1, 1))

    def log_factor(self, env: Environment, known: Container[str] = ()) -> Any:
        return jnp.zeros((1, 1))

    def identity(self) -> Tree:
        return line(self.factor, "=", self.written)

    def augmented(self) -> Expression:
        return ONE
