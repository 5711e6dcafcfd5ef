"""Quadratics to a negative power: a scale mixture with a Gamma mixing law."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import jax.scipy.special as jsp

from pgmodels.augmentation.averages import mean_quadratic
from pgmodels.augmentation.laws import Gamma
from pgmodels.augmentation.normal_form import Factor, expand
from pgmodels.augmentation.quadratic import Quadratic, read_completed
from pgmodels.augmentation.rules.gamma import gamma_mixed
from pgmodels.augmentation.rules.rule import Rule, quadratic_sites
from pgmodels.augmentation.symbols import Auxiliary, SiteTerm, over_latents
from pgmodels.likelihoods.algebra import multiply, power
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.functions import log
from pgmodels.likelihoods.notation import Tree, integral, line, words
from pgmodels.likelihoods.operations import Power, Reduction, Sum
from pgmodels.likelihoods.symbols import Constant

if TYPE_CHECKING:
    from pgmodels.augmentation.derive import Deriver


class GammaMixtureRule(Rule):
    """Q^-p with ω ~ Gamma(p, rate Q): Student-t."""

    title = "Scale mixture (Gamma mixing)"
    rank = 3
    auxiliary: Auxiliary
    law: Gamma

    def __init__(self, name: str, base: Quadratic, exponent: Expression, parent: Auxiliary | None):
        self.base, self.exponent, self.parent = base, exponent, parent
        self.positions = base.positions
        self.factor = power(base.expression, multiply(-1.0, exponent))
        self.auxiliary = Auxiliary(name, base.expression.is_vector or exponent.is_vector)
        self.law = Gamma(exponent, base.expression)

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        base, exponent, formula = factor.base, factor.exponent, factor.expression
        if not isinstance(base, (Sum, Reduction, Power)) or exponent.sign != -1:
            return None
        quadratic = read_completed(expand(base, deriver.size))
        if quadratic is None:
            raise deriver.no_rule(formula, "a sum of w σ(z), w >= 0, or a non-negative quadratic, to a negative power")
        deriver.require_quadratic(quadratic, formula)
        p = multiply(-1.0, exponent)
        deriver.require(p, "nonnegative", words("minus the exponent in"), formula)
        # Q^-p diverges at Q = 0: without a positive constant it is not a likelihood.
        deriver.require(quadratic.constant, "positive", words("the constant in"), formula)
        if isinstance(quadratic.constant, Constant) and quadratic.constant.value <= 0:
            raise deriver.no_rule(formula, "a quadratic with a positive constant, to a negative power")
        deriver.check_plates(base, exponent, any(square.reduced for square in quadratic.squares), formula)
        deriver.rules.append(cls(deriver.name("ω"), quadratic, p, factor.parent))
        return ()

    def share(self) -> Expression:
        return over_latents(multiply(-1.0, self.exponent, log(mean_quadratic(self.base))))

    def log_joint(self, env: Environment) -> Any:
        p, value = self.exponent.evaluate(env), self.auxiliary.evaluate(env)
        log_density = jsp.xlogy(p - 1, value) - jsp.gammaln(p) - value * self.base.expression.evaluate(env)
        return jnp.where(p > 0, log_density, 0.0)

    def identity(self) -> Tree:
        return line(self.factor, "=", integral(self.augmented(), self.auxiliary))

    def augmented(self) -> Expression:
        return gamma_mixed(self.auxiliary, self.exponent, self.base.expression)

    def prior(self) -> tuple[Expression, ...]:
        return (self.exponent,)

    def sites(self) -> tuple[SiteTerm, ...]:
        return quadratic_sites(self.base, self.auxiliary)

    def averaged(self) -> Gamma:
        return Gamma(self.exponent, mean_quadratic(self.base))
