"""The tangent of an augmentation's bound in the log of a sum over the latents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from pgmodels.augmentation.averages import VARIANCE, Thinning
from pgmodels.augmentation.rules.gamma import GammaRule
from pgmodels.augmentation.rules.rule import ZERO
from pgmodels.likelihoods.algebra import add
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.operations import Comparison, Reduction
from pgmodels.likelihoods.symbols import POSITIONS, Positions
from pgmodels.objectives.tangent import Tangent

if TYPE_CHECKING:
    from pgmodels.augmentation.augmentation import Augmentation


class TangentBound(Tangent):
    """The tangent of an augmentation with one factor S^-p over all latents and factors of single latents.

    Tangents of equal augmentations are equal.
    Source: Galy-Fajou et al. 2019, section 4.2 (class subsampling).
    """

    def __init__(self, augmentation: Augmentation):
        self.augmentation, self.size = augmentation, augmentation.size
        rules = [rule for rule in augmentation.rules if rule.parent is None]
        sum_rules = [
            rule for rule in rules if isinstance(rule, GammaRule) and all(reduced for _, _, reduced in rule.terms)
        ]
        others = [rule for rule in rules if rule not in sum_rules and rule.share().key != ZERO.key]
        shares = [rule.share() for rule in others]
        separable = [share.argument for share in shares if isinstance(share, Reduction)]
        weights = [weight for rule in sum_rules for weight, _, _ in rule.terms]
        every = tuple(range(self.size))
        separate = (
            len(sum_rules) == 1 and all(rule.positions == every for rule in others) and len(separable) == len(shares)
        )
        coupled = len(augmentation.blocks) > 1 or augmentation.predictors is not None
        if not separate or coupled or any(map(_reduces, [*separable, *weights])):
            raise ValueError(
                f"the likelihood {augmentation.formula.text()} is not one sum over its latents to a negative power, "
                "such as pgm.sum(pgm.sigmoid(f)) ** -1, times factors of single latents: no tangent "
                "separates its latents."
            )
        self.rule, self.separable = sum_rules[0], add(0.0, *separable)
        self.summands = [(weight, Thinning(predictor)) for weight, predictor, _ in self.rule.terms]
        self.indices = list({index.key: index for index in _indices(self.separable)}.values())

    def __hash__(self) -> int:
        return hash(self.augmentation)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TangentBound) and self.augmentation == other.augmentation

    def selected(self, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any]:
        env = Environment(y, jnp.zeros((len(y), 1)), parameters)
        columns = [jnp.broadcast_to(index.evaluate(env), (len(y), 1)) for index in self.indices]
        chosen = jnp.concatenate(columns or [jnp.zeros((len(y), 0))], axis=1).astype(int)
        before = jnp.tril(jnp.ones((len(columns), len(columns)), dtype=bool), -1)
        again = jnp.any((chosen[:, :, None] == chosen[:, None, :]) & before, axis=2)
        return chosen, jnp.where(again, 0.0, 1.0)

    def constant(self, y: Any, parameters: Mapping[str, Any]) -> Any:
        return self._coefficient(self.rule.constant, y, parameters)

    def log_sums(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any], latents: Any) -> Any:
        return jnp.log(self._sums(Environment(y, m, {**parameters, VARIANCE: v, POSITIONS: latents}), m))

    def terms(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any], latents: Any, log_scale: Any) -> Any:
        env = Environment(y, m, {**parameters, VARIANCE: v, POSITIONS: latents})
        factor = self._coefficient(self.rule.exponent, y, parameters) * jnp.exp(-log_scale)
        return jnp.broadcast_to(self.separable.evaluate(env), m.shape) - factor[:, None] * self._sums(env, m)

    def rest(self, y: Any, parameters: Mapping[str, Any], log_scale: Any) -> Any:
        p = self._coefficient(self.rule.exponent, y, parameters)
        coefficient = self._coefficient(self.augmentation.log_base, y, parameters)
        return coefficient - p * (self.constant(y, parameters) * jnp.exp(-log_scale) + log_scale - 1.0)

    def _sums(self, env: Environment, m: Any) -> Any:
        """S_c of the latents of an environment with means ``m``."""
        return sum((weight.evaluate(env) * link.evaluate(env) for weight, link in self.summands), jnp.zeros_like(m))

    def _coefficient(self, expression: Expression, y: Any, parameters: Mapping[str, Any]) -> Any:
        env = Environment(y, jnp.zeros((len(y), self.size)), parameters)
        return jnp.broadcast_to(expression.evaluate(env), (len(y), 1))[:, 0]


def _reduces(expression: Expression) -> bool:
    """Whether an expression contains a sum or product over all latents."""
    return isinstance(expression, Reduction) or any(map(_reduces, expression.children))


def _indices(expression: Expression) -> Iterator[Expression]:
    """Expressions that latent indices are compared with: the y of f[y], which appears as the indicator [c = y]."""
    if isinstance(expression, Comparison) and expression.operator == "==":
        sides = (expression.lhs, expression.rhs)
        for one, other in (sides, sides[::-1]):
            if isinstance(one, Positions) and not other.is_vector:
                yield other
    for child in expression.children:
        yield from _indices(child)
