"""The probability of the largest of several Gaussians: Gaussians of which a given one is the largest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax.scipy.stats import norm

from pgmodels.augmentation.argmax_law import ArgmaxNormal, LargestMean
from pgmodels.augmentation.averages import mean_of, variance_of
from pgmodels.augmentation.normal_form import Factor
from pgmodels.augmentation.predictor import Predictor
from pgmodels.augmentation.rules.rule import ONE, ZERO, Rule
from pgmodels.augmentation.symbols import Auxiliary, Logarithm, SiteTerm, over_latents
from pgmodels.likelihoods.algebra import add, multiply, power
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.indicators import Largest
from pgmodels.likelihoods.notation import Tree, bracketed, density, factors, integral, line, over, raised, words
from pgmodels.likelihoods.symbols import Constant

if TYPE_CHECKING:
    from pgmodels.augmentation.derive import Deriver


class ArgmaxRule(Rule):
    """largest(f, y, a)^b, a > 0, b in {0, 1}, with g_c ~ N(f_c / √a, 1), g_y the largest (Albert and Chib 1993)."""

    title = "Argmax of Gaussians"
    rank = 3
    separates = True
    auxiliary: Auxiliary
    law: ArgmaxNormal

    def __init__(self, name: str, node: Largest, exponent: Expression, parent: Auxiliary | None):
        self.node, self.exponent, self.parent = node, exponent, parent
        self.predictor = Predictor(node.latents, power(node.noise, -0.5), ZERO)
        self.positions = self.predictor.positions
        self.factor = power(node, exponent)
        self.auxiliary = Auxiliary(name, is_vector=True)
        self.law = ArgmaxNormal(self.predictor.expression, node, exponent)

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        node, exponent = factor.base, factor.exponent
        if not isinstance(node, Largest):
            return None
        if node.is_indicator:
            raise deriver.no_rule(factor.expression, "largest(f, y, noise) with noise > 0")
        if isinstance(exponent, Constant) and exponent.value != 1.0:
            raise deriver.no_rule(factor.expression, "largest(f, y, noise) to the power 0 or 1")
        deriver.require(exponent, "indicator", words("the exponent of"), node)
        deriver.require(node.noise, "positive", words("the noise of"), node)
        deriver.rules.append(cls(deriver.name("g"), node, exponent, factor.parent))
        return ()

    def share(self) -> Expression:
        # log P(g_y is the largest) at the means of q, minus Σ_c Var(z_c) / 2
        spread = multiply(-0.5, over_latents(variance_of(self.predictor)))
        return multiply(self.exponent, add(Logarithm(LargestMean(self.node)), spread))

    def log_joint(self, env: Environment) -> Any:
        each = norm.logpdf(self.auxiliary.evaluate(env), self.predictor.expression.evaluate(env))
        return self.exponent.evaluate(env) * jnp.sum(each, axis=-1, keepdims=True)

    def identity(self) -> Tree:
        return line(self.node, "=", integral(over("Π", "c", self._density()), "g"))

    def _density(self) -> Tree:
        inside = bracketed(line(self.auxiliary, "≤", self.auxiliary.element(self.node.index)), "[]")
        return factors(density("N", self.auxiliary, self.predictor.expression, 1), inside)

    def augmented(self) -> Tree:
        return self._density() if self.exponent.key == ONE.key else raised(self._density(), self.exponent)

    def prior(self) -> tuple[Expression, ...]:
        return (self.predictor.expression,)

    def sites(self) -> tuple[SiteTerm, ...]:
        return (SiteTerm(self.predictor, multiply(self.exponent, self.auxiliary), self.exponent),)

    def averaged(self) -> ArgmaxNormal:
        return ArgmaxNormal(mean_of(self.predictor), LargestMean(self.node), self.exponent)
