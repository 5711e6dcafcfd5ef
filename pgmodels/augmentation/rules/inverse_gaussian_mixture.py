"""Exponentials of minus the root of a quadratic: a scale mixture with an inverse Gaussian mixing law."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from pgmodels.augmentation.averages import mean_quadratic
from pgmodels.augmentation.laws import InverseGaussian
from pgmodels.augmentation.normal_form import Factor, Term, expand, exponent_of
from pgmodels.augmentation.quadratic import Quadratic, read_completed
from pgmodels.augmentation.rules.rule import ONE, Rule, quadratic_sites
from pgmodels.augmentation.symbols import Auxiliary, SiteTerm, over_latents
from pgmodels.likelihoods.algebra import add, multiply, power
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.functions import exp
from pgmodels.likelihoods.notation import Tree, density, factors, integral, line, words
from pgmodels.likelihoods.operations import Call, Power
from pgmodels.likelihoods.symbols import Constant

if TYPE_CHECKING:
    from pgmodels.augmentation.derive import Deriver


class InverseGaussianMixtureRule(Rule):
    """exp(-κ √Q) with ω ~ InverseGaussian(mean κ / (2 √Q), shape κ^2 / 2): Laplace (Andrews and Mallows 1974)."""

    title = "Scale mixture (inverse Gaussian mixing)"
    rank = 3
    auxiliary: Auxiliary
    law: InverseGaussian

    def __init__(self, name: str, base: Quadratic, root: Expression, steepness: Expression, parent: Auxiliary | None):
        self.base, self.root, self.steepness, self.parent = base, root, steepness, parent
        self.positions = base.positions
        self.factor = exp(multiply(-1.0, steepness, root))
        self.auxiliary = Auxiliary(name, root.is_vector or steepness.is_vector)
        self.law = InverseGaussian(steepness, root)

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        terms = exponent_of(factor, deriver.size) or []
        rooted = [term for term in terms if len(term.atoms) == 1 and _is_root(term.atoms[0])]
        if not rooted:
            return None
        for term in rooted:
            deriver.rules.append(cls._of_term(term, factor.parent, deriver))
        rest = add(*(term.expression for term in terms if not any(term is taken for taken in rooted)))
        return (Factor(exp(rest), ONE, factor.parent),)

    @classmethod
    def _of_term(cls, term: Term, parent: Auxiliary | None, deriver: Deriver) -> InverseGaussianMixtureRule:
        formula, atom = exp(multiply(term.coefficient, *term.atoms)), term.atoms[0]
        steepness = multiply(-1.0, term.coefficient)
        if steepness.sign == -1:
            raise deriver.no_rule(formula, "exp(-κ |z|) or exp(-κ sqrt(Q)) with κ >= 0")
        inside = power(atom.argument, 2.0) if isinstance(atom, Call) else atom.base  # type: ignore[attr-defined]
        quadratic = read_completed(expand(inside, deriver.size))
        if quadratic is None:
            raise deriver.no_rule(formula, "the root of a non-negative quadratic")
        deriver.require_quadratic(quadratic, formula)
        deriver.require(steepness, "nonnegative", words("the steepness in"), formula)
        deriver.check_plates(atom, steepness, any(square.reduced for square in quadratic.squares), formula)
        return cls(deriver.name("ω"), quadratic, atom, steepness, parent)

    def share(self) -> Expression:
        return over_latents(multiply(-1.0, self.steepness, power(mean_quadratic(self.base), 0.5)))

    def log_joint(self, env: Environment) -> Any:
        # Lévy mixing law with scale κ^2 / 2, whose Laplace transform at Q is exp(-κ √Q).
        c, value = self.law.shape.evaluate(env), self.auxiliary.evaluate(env)
        levy = 0.5 * jnp.log(c / (2 * jnp.pi)) - 1.5 * jnp.log(value) - c / (2 * value)
        return jnp.where(c > 0, levy - value * self.base.expression.evaluate(env), 0.0)

    def identity(self) -> Tree:
        return line(self.factor, "=", integral(self.augmented(), self.auxiliary))

    def augmented(self) -> Tree:
        mixed = exp(multiply(-1.0, self.auxiliary, self.base.expression))
        return factors(mixed, density("Lévy", self.auxiliary, 0, self.law.shape))

    def prior(self) -> tuple[Expression, ...]:
        return (self.steepness,)

    def sites(self) -> tuple[SiteTerm, ...]:
        return quadratic_sites(self.base, self.auxiliary)

    def averaged(self) -> InverseGaussian:
        return InverseGaussian(self.steepness, power(mean_quadratic(self.base), 0.5))

    def has_no_mean(self, env: Environment) -> bool:
        # κ / (2 √Q) is not integrable over f if Q is the square of a single predictor.
        several = len(self.base.squares) > 1 or (self.base.squares[0].reduced and env.f.shape[-1] > 1)
        return not several and not np.any(self.base.constant.evaluate(env))


def _is_root(atom: Expression) -> bool:
    if isinstance(atom, Call):
        return atom.name == "abs"
    return isinstance(atom, Power) and isinstance(atom.exponent, Constant) and atom.exponent.value == 0.5
