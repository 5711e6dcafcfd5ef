"""A lower bound that is separable over the latents: the log of a sum over latents is replaced by its tangent."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.averages import VARIANCE, Thinning
from pgmodels.augmentation.rules.gamma import GammaRule
from pgmodels.augmentation.rules.rule import ZERO
from pgmodels.likelihoods.algebra import add
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.operations import Comparison, Reduction
from pgmodels.likelihoods.symbols import POSITIONS, Positions
from pgmodels.objectives.base import sites_of


class TangentBound:
    """The bound of S^-p, S = constant + Σ_c S_c(m_c, v_c), by -log S >= 1 - S / S0 - log S0, equal where S = S0 > 0.

    Given S0 of each datum, its ``scale``, the bound is ``rest`` + Σ_c ``terms``: a step on a subset of the latents
    needs only their terms. With a random scale its expectation is still a lower bound, below the augmentation's by
    p E[S / S0 - 1 - log(S / S0)]. Tangents of equal augmentations are equal.
    Source: Galy-Fajou et al. 2019, section 4.2 (class subsampling).
    """

    def __init__(self, augmentation: Augmentation):
        self.augmentation = augmentation
        rules = [rule for rule in augmentation.rules if rule.parent is None]
        sum_rules = [
            rule for rule in rules if isinstance(rule, GammaRule) and all(reduced for _, _, reduced in rule.terms)
        ]
        others = [rule for rule in rules if rule not in sum_rules and rule.share().key != ZERO.key]
        shares = [rule.share() for rule in others]
        separable = [share.argument for share in shares if isinstance(share, Reduction)]
        weights = [weight for rule in sum_rules for weight, _, _ in rule.terms]
        every = tuple(range(augmentation.size))
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
        """Indices of the latents selected by the data, as y in f[y], (n, indices); and a mask, 0 at repetitions."""
        env = Environment(y, jnp.zeros((len(y), 1)), parameters)
        columns = [jnp.broadcast_to(index.evaluate(env), (len(y), 1)) for index in self.indices]
        chosen = jnp.concatenate(columns or [jnp.zeros((len(y), 0))], axis=1).astype(int)
        before = jnp.tril(jnp.ones((len(columns), len(columns)), dtype=bool), -1)
        again = jnp.any((chosen[:, :, None] == chosen[:, None, :]) & before, axis=2)
        return chosen, jnp.where(again, 0.0, 1.0)

    def constant(self, y: Any, parameters: Mapping[str, Any]) -> Any:
        """The constant term of S, (n,)."""
        return self._coefficient(self.rule.constant, y, parameters)

    def sums(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any], latents: Any) -> Any:
        """S_c of a subset of latents at their marginals, (n, latents) each; ``latents`` may differ between data."""
        env = Environment(y, m, {**parameters, VARIANCE: v, POSITIONS: latents})
        summands = (weight.evaluate(env) * link.evaluate(env) for weight, link in self.summands)
        return sum(summands, jnp.zeros_like(m))

    def terms(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any], latents: Any, scale: Any) -> Any:
        """The terms of the bound of a subset of latents, (n, latents)."""
        env = Environment(y, m, {**parameters, VARIANCE: v, POSITIONS: latents})
        p = self._coefficient(self.rule.exponent, y, parameters)
        separable = jnp.broadcast_to(self.separable.evaluate(env), m.shape)
        return separable - (p / scale)[:, None] * self.sums(m, v, y, parameters, latents)

    def sites(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any], latents: Any, scale: Any) -> tuple[Any, Any]:
        """The sites of a subset of latents, (n, latents) each; see ``Objective.local_sites``."""
        return sites_of(lambda m, v: self.terms(m, v, y, parameters, latents, scale), m, v)

    def rest(self, y: Any, parameters: Mapping[str, Any], scale: Any) -> Any:
        """The term of the bound that is free of the latents, (n,)."""
        p = self._coefficient(self.rule.exponent, y, parameters)
        coefficient = self._coefficient(self.augmentation.log_base, y, parameters)
        return coefficient - p * (self.constant(y, parameters) / scale + jnp.log(scale) - 1.0)

    def _coefficient(self, expression: Expression, y: Any, parameters: Mapping[str, Any]) -> Any:
        env = Environment(y, jnp.zeros((len(y), self.augmentation.size)), parameters)
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
