"""The local bound where a sum over the latents is replaced by its tangent: a sum over latents, each by itself."""

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

    Given S0 of each datum, its ``scale``, it is ``rest`` + Σ_c ``terms``: a step on a few latents reads these alone.
    Whatever a scale that is drawn, its expectation is a lower bound; below the augmentation's by E[S / S0 - 1 -
    log(S / S0)], times p. Tangents of equal augmentations are equal.
    Source: Galy-Fajou et al. 2019, section 4.2 (classes that are subsampled).
    """

    def __init__(self, augmentation: Augmentation):
        self.augmentation = augmentation
        rules = [rule for rule in augmentation.rules if rule.parent is None]
        found = [rule for rule in rules if isinstance(rule, GammaRule) and all(reduced for _, _, reduced in rule.terms)]
        others = [rule for rule in rules if rule not in found and rule.share().key != ZERO.key]
        shares = [rule.share() for rule in others]
        parts = [share.argument for share in shares if isinstance(share, Reduction)]
        weights = [weight for rule in found for weight, _, _ in rule.terms]
        every = tuple(range(augmentation.size))
        separate = len(found) == 1 and all(rule.positions == every for rule in others) and len(parts) == len(shares)
        coupled = len(augmentation.blocks) > 1 or augmentation.predictors is not None
        if not separate or coupled or any(map(_reduces, [*parts, *weights])):
            raise ValueError(
                f"the likelihood {augmentation.formula.text()} is not one sum over its latents to a negative power, "
                "such as pgm.sum(pgm.sigmoid(f)) ** -1, times factors of single latents: there is no tangent that "
                "takes it apart."
            )
        self.rule, self.own = found[0], add(0.0, *parts)
        self.summands = [(weight, Thinning(predictor)) for weight, predictor, _ in self.rule.terms]
        self.indices = list({index.key: index for index in _indices(self.own)}.values())

    def __hash__(self) -> int:
        return hash(self.augmentation)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TangentBound) and self.augmentation == other.augmentation

    def selected(self, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any]:
        """The latents that the data select, such as f[y], (n, indices), and 1 where each is told for the first time."""
        env = Environment(y, jnp.zeros((len(y), 1)), parameters)
        columns = [jnp.broadcast_to(index.evaluate(env), (len(y), 1)) for index in self.indices]
        chosen = jnp.concatenate(columns or [jnp.zeros((len(y), 0))], axis=1).astype(int)
        before = jnp.tril(jnp.ones((len(columns), len(columns)), dtype=bool), -1)
        again = jnp.any((chosen[:, :, None] == chosen[:, None, :]) & before, axis=2)
        return chosen, jnp.where(again, 0.0, 1.0)

    def constant(self, y: Any, parameters: Mapping[str, Any]) -> Any:
        """What S has beside the latents', (n,)."""
        return self._coefficient(self.rule.constant, y, parameters)

    def sums(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any], latents: Any) -> Any:
        """S_c of some latents by their marginals, (n, latents) each; ``latents`` may differ from datum to datum."""
        env = Environment(y, m, {**parameters, VARIANCE: v, POSITIONS: latents})
        found = (weight.evaluate(env) * link.evaluate(env) for weight, link in self.summands)
        return sum(found, jnp.zeros_like(m))

    def terms(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any], latents: Any, scale: Any) -> Any:
        """The parts of the bound that are some latents', (n, latents)."""
        env = Environment(y, m, {**parameters, VARIANCE: v, POSITIONS: latents})
        p = self._coefficient(self.rule.exponent, y, parameters)
        own = jnp.broadcast_to(self.own.evaluate(env), m.shape)
        return own - (p / scale)[:, None] * self.sums(m, v, y, parameters, latents)

    def sites(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any], latents: Any, scale: Any) -> tuple[Any, Any]:
        """The sites of some latents, (n, latents) each; see ``Objective.local_sites``."""
        return sites_of(lambda m, v: self.terms(m, v, y, parameters, latents, scale), m, v)

    def rest(self, y: Any, parameters: Mapping[str, Any], scale: Any) -> Any:
        """The part of the bound that is no latent's, (n,)."""
        p = self._coefficient(self.rule.exponent, y, parameters)
        coefficient = self._coefficient(self.augmentation.log_base, y, parameters)
        return coefficient - p * (self.constant(y, parameters) / scale + jnp.log(scale) - 1.0)

    def _coefficient(self, expression: Expression, y: Any, parameters: Mapping[str, Any]) -> Any:
        env = Environment(y, jnp.zeros((len(y), self.augmentation.size)), parameters)
        return jnp.broadcast_to(expression.evaluate(env), (len(y), 1))[:, 0]


def _reduces(expression: Expression) -> bool:
    """Whether an expression has a sum or product over the latents in it, which some of them do not give."""
    return isinstance(expression, Reduction) or any(map(_reduces, expression.children))


def _indices(expression: Expression) -> Iterator[Expression]:
    """What latents are compared with: the y of f[y], which is there as the indicator of c = y."""
    if isinstance(expression, Comparison) and expression.operator == "==":
        sides = (expression.lhs, expression.rhs)
        for one, other in (sides, sides[::-1]):
            if isinstance(one, Positions) and not other.is_vector:
                yield other
    for child in expression.children:
        yield from _indices(child)
