"""Powers of σ(z) and σ(-z): Pólya-Gamma."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from pgmodels.augmentation.averages import Root, Tilde
from pgmodels.augmentation.laws import PolyaGamma
from pgmodels.augmentation.normal_form import Factor
from pgmodels.augmentation.predictor import Predictor
from pgmodels.augmentation.rules.rule import ZERO, Rule
from pgmodels.augmentation.symbols import Auxiliary, SiteTerm, group_by_component, over_latents
from pgmodels.likelihoods.algebra import add, multiply, power
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.functions import exp, sigmoid
from pgmodels.likelihoods.notation import Tree, density, factors, integral, inverse_power, line, words
from pgmodels.likelihoods.operations import Call

if TYPE_CHECKING:
    from pgmodels.augmentation.derive import Deriver


class PolyaGammaRule(Rule):
    """σ(z)^a σ(-z)^b, with conditional ω | z ~ PG(a + b, z) (Polson, Scott and Windle 2013, theorem 1)."""

    title = "Pólya-Gamma"
    rank = 5
    auxiliary: Auxiliary
    law: PolyaGamma

    def __init__(self, predictor: Predictor):
        self.predictor = predictor
        self.positions = predictor.positions
        # (parent of the factor, exponent of σ(z), exponent of σ(-z)).
        self.exponents: list[tuple[Auxiliary | None, Expression, Expression]] = []

    @classmethod
    def match(cls, factor: Factor, deriver: Deriver) -> tuple[Factor, ...] | None:
        base, exponent = factor.base, factor.exponent
        if not (isinstance(base, Call) and base.name == "sigmoid") or exponent.sign == -1:
            return None
        predictor = deriver.predictor(base.argument, factor.expression)
        deriver.require(exponent, "nonnegative", words("the exponent of"), base)
        same = {rule.predictor.key: rule for rule in deriver.rules if isinstance(rule, cls)}
        if predictor.key in same:
            same[predictor.key].exponents.append((factor.parent, exponent, ZERO))
        elif predictor.negated().key in same:
            same[predictor.negated().key].exponents.append((factor.parent, ZERO, exponent))
        else:
            rule = cls(predictor)
            rule.exponents.append((factor.parent, exponent, ZERO))
            deriver.rules.append(rule)
        return ()

    def finish(self, deriver: Deriver) -> None:
        from_likelihood = [part for part in self.exponents if part[0] is None]
        from_rules = [part for part in self.exponents if part[0] is not None]
        self.a, self.b = add(*(a for _, a, _ in from_likelihood)), add(*(b for _, _, b in from_likelihood))
        self.up, self.down = add(self.a, *(a for _, a, _ in from_rules)), add(self.b, *(b for _, _, b in from_rules))
        self.total = group_by_component(add(self.up, self.down))
        self.difference = group_by_component(add(self.up, multiply(-1.0, self.down)))
        z = self.predictor.expression
        self.factor = multiply(power(sigmoid(z), self.up), power(sigmoid(multiply(-1.0, z)), self.down))
        self.auxiliary = Auxiliary(deriver.name("ω"), self.predictor.is_vector or self.total.is_vector)
        self.law = PolyaGamma(self.total, z)

    def share(self) -> Expression:
        # Factors returned by other rules are counted in the shares of those.
        up, down = (Tilde(self.predictor, side, logarithm=True) for side in (1, -1))
        return over_latents(add(multiply(self.a, up), multiply(self.b, down)))

    def log_factor(self, env: Environment, known: Container[str] = ()) -> Any:
        z = self.predictor.expression.evaluate(env)
        total = jnp.zeros_like(z)
        for parent, a, b in self.exponents:
            if parent is None or parent.name in known:
                total = total + a.evaluate(env) * jax.nn.log_sigmoid(z) + b.evaluate(env) * jax.nn.log_sigmoid(-z)
        return total

    def log_joint(self, env: Environment) -> Any:
        z, omega = self.predictor.expression.evaluate(env), self.auxiliary.evaluate(env)
        exponent = 0.5 * self.difference.evaluate(env) * z - 0.5 * omega * z**2
        untilted = PolyaGamma(self.total, ZERO).log_density(omega, env)
        return exponent - self.total.evaluate(env) * jnp.log(2.0) + untilted

    def identity(self) -> Tree:
        scale, tilted = self._scale_and_tilted()
        return line(self.factor, "=", factors(scale, integral(tilted, self.auxiliary)))

    def _scale_and_tilted(self) -> tuple[Tree, Tree]:
        z, omega = self.predictor.expression, self.auxiliary
        linear = multiply(multiply(0.5, self.difference), z)
        exponent = add(linear, multiply(-0.5, omega, power(z, 2.0)))
        return inverse_power(2, self.total), factors(exp(exponent), density("PG", omega, self.total, 0))

    def augmented(self) -> Tree:
        return factors(*self._scale_and_tilted())

    def prior(self) -> tuple[Expression, ...]:
        return (self.total,)

    def sites(self) -> tuple[SiteTerm, ...]:
        return (SiteTerm(self.predictor, multiply(0.5, self.difference), self.auxiliary),)

    def averaged(self) -> PolyaGamma:
        return PolyaGamma(self.total, Root(self.auxiliary.name.replace("ω", "ζ"), self.predictor))
