"""The normal distribution function: truncated Gaussian."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jax.scipy.stats import norm

from pgmodels.augmentation.averages import mean_of, variance_of
from pgmodels.augmentation.laws import TruncatedNormal, where
from pgmodels.augmentation.normal_form import Factor
from pgmodels.augmentation.notation import words
from pgmodels.augmentation.predictor import Predictor
from pgmodels.augmentation.rules.rule import ONE, Rule
from pgmodels.augmentation.symbols import Auxiliary, Logarithm, SiteTerm, over_latents
from pgmodels.language.algebra import add, multiply, power
from pgmodels.language.expression import Environment, Expression
from pgmodels.language.functions import normal_cdf
from pgmodels.language.operations import Call
from pgmodels.language.symbols import Constant

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
        predictor = deriver.predictor(base.argument, factor.text())
        if isinstance(exponent, Constant) and exponent.value != 1.0:
            raise deriver.no_rule(factor.text(), "Φ(z) to the power 0 or 1")
        deriver.require(exponent, "indicator", f"{words('the exponent of')} {base.text()}")
        deriver.rules.append(cls(deriver.name("u"), predictor, exponent, factor.parent))
        return ()

    def share(self) -> Expression:
        # log Φ(E z) - Var(z) / 2
        spread = multiply(-0.5, variance_of(self.predictor))
        return over_latents(multiply(self.exponent, add(Logarithm(normal_cdf(mean_of(self.predictor))), spread)))

    def log_joint(self, env: Environment) -> Any:
        z = self.predictor.expression.evaluate(env)
        return self.exponent.evaluate(env) * norm.logpdf(self.auxiliary.evaluate(env), z)

    def identity(self) -> str:
        name, z = self.auxiliary.text(), self.predictor.text()
        return f"Φ({z}) = ∫_0^∞ N({name}; {z}, 1) d{name}" + where(self.exponent)

    def augmented(self) -> str:
        name = self.auxiliary.text()
        density = f"N({name}; {self.predictor.text()}, 1) [{name} > 0]"
        return density if self.exponent.key == ONE.key else f"({density})^{self.exponent.text(3)}"

    def prior(self) -> tuple[Expression, ...]:
        return (self.predictor.expression,)

    def sites(self) -> tuple[SiteTerm, ...]:
        return (SiteTerm(self.predictor, multiply(self.exponent, self.auxiliary), self.exponent),)

    def averaged(self) -> TruncatedNormal:
        return TruncatedNormal(mean_of(self.predictor), self.exponent)
