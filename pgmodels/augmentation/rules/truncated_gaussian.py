"""The normal distribution function: truncated Gaussian."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jax.scipy.stats import norm

from pgmodels.augmentation.averages import mean_of, variance_of
from pgmodels.augmentation.laws import TruncatedNormal, where
from pgmodels.augmentation.normal_form import Factor
from pgmodels.augmentation.predictor import Predictor
from pgmodels.augmentation.rules.rule import ONE, Rule
from pgmodels.augmentation.symbols import Auxiliary, Logarithm, SiteTerm, over_latents
from pgmodels.likelihoods.algebra import add, multiply, power
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.functions import normal_cdf
from pgmodels.likelihoods.notation import Tree, bracketed, density, factors, integral, line, raised, words
from pgmodels.likelihoods.operations import Call
from pgmodels.likelihoods.symbols import Constant

if TYPE_CHECKING:
    from pgmodels.augmentation.derive import Deriver


class TruncatedGaussianRule(Rule):
    """Φ(z)^a, a in {0, 1}, with u ~ N(z, 1) truncated to u > 0 (Albert and Chib 1993)."""

    title = "Truncated Gaussian"
    rank = 3
    separates = True
    auxiliary: Auxiliary
    law: TruncatedNormal

    def __init__(self, name: str, predictor: Predictor, exponent: Expression, parent: Auxiliary | None):
        self.predictor, self.exponent, self.parent = predictor, exponent, parent
        self.positions = predictor.positions
        self.factor = power(normal_cdf(predictor.expression), exponent)
        self.auxiliary = Auxiliary(name, predictor.is_vector or exponent.is_vector)
        self.law = TruncatedNormal(predictor.expression, exponent)

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        base, exponent = factor.base, factor.exponent
        if not (isinstance(base, Call) and base.name == "normal_cdf"):
            return None
        predictor = deriver.predictor(base.argument, factor.expression)
        if isinstance(exponent, Constant) and exponent.value != 1.0:
            raise deriver.no_rule(factor.expression, "Φ(z) to the power 0 or 1")
        deriver.require(exponent, "indicator", words("the exponent of"), base)
        deriver.rules.append(cls(deriver.name("u"), predictor, exponent, factor.parent))
        return ()

    def share(self) -> Expression:
        # log Φ(E z) - Var(z) / 2
        spread = multiply(-0.5, variance_of(self.predictor))
        return over_latents(multiply(self.exponent, add(Logarithm(normal_cdf(mean_of(self.predictor))), spread)))

    def log_joint(self, env: Environment) -> Any:
        z = self.predictor.expression.evaluate(env)
        return self.exponent.evaluate(env) * norm.logpdf(self.auxiliary.evaluate(env), z)

    def identity(self) -> Tree:
        mass = integral(self._density(), self.auxiliary, 0, "∞")
        return line(normal_cdf(self.predictor.expression), "=", mass, *where(self.exponent))

    def _density(self) -> Tree:
        return density("N", self.auxiliary, self.predictor.expression, 1)

    def augmented(self) -> Tree:
        truncated = factors(self._density(), bracketed(line(self.auxiliary, ">", 0), "[]"))
        return truncated if self.exponent.key == ONE.key else raised(truncated, self.exponent)

    def prior(self) -> tuple[Expression, ...]:
        return (self.predictor.expression,)

    def sites(self) -> tuple[SiteTerm, ...]:
        return (SiteTerm(self.predictor, multiply(self.exponent, self.auxiliary), self.exponent),)

    def averaged(self) -> TruncatedNormal:
        return TruncatedNormal(mean_of(self.predictor), self.exponent)
