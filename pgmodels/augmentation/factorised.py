"""The bound of a factorised law of the auxiliary variables: the Gamma variable independent of its Poisson counts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax.numpy as jnp

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.averages import VARIANCE
from pgmodels.augmentation.rules.gamma import GammaRule
from pgmodels.likelihoods.algebra import add
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.numerics.gamma_shape import factorised_share
from pgmodels.objectives.base import Objective


class Factorised(Objective):
    """The bound with q(λ) q(n, ω) for each factor S^-p, in place of the joint law of λ, n and ω given the latents.

    Of the factor, with S = c + Σ_j w_j σ(z_j), total rate β = c + Σ_j w_j and t = Σ_j w_j σ̃(-z_j) / β, it has
    -p log β + G(p, t) in place of -p log(β (1 - t)), which is larger; see ``factorised_share``. All other factors have
    the terms of the augmentation.

    Source: Galy-Fajou et al. 2019, section 4.1, whose equations 12-16 follow for LogisticSoftmax.
    """

    name = "factorised"
    title = "the factorised bound"
    method = "Variational inference with factorised auxiliary variables"
    is_monotone = True

    def __init__(self, augmentation: Augmentation):
        rules = [rule for rule in augmentation.rules if isinstance(rule, GammaRule)]
        if not rules or any(rule.parent is not None for rule in rules):
            raise ValueError(
                "objective='factorised' expects a likelihood with a factor like pgm.sum(pgm.sigmoid(f)) ** -1, outside "
                f"mixtures; {augmentation.formula.text()} has none. Use objective='augmented'."
            )
        self.augmentation, self.rules = augmentation, rules
        self.size, self.predictors = augmentation.size, augmentation.predictors

    def __hash__(self) -> int:
        return hash((type(self), self.augmentation))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Factorised) and self.augmentation == other.augmentation

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        return self.augmentation.blocks

    @cached_property
    def _others(self) -> Expression:
        """The terms of all other factors."""
        rules = (rule for rule in self.augmentation.rules if rule.parent is None and rule not in self.rules)
        return add(*(rule.share() for rule in rules), self.augmentation.log_base)

    def local_bound(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        env = Environment(y, m, {**parameters, VARIANCE: v})
        total = jnp.broadcast_to(self._others.evaluate(env)[..., 0], m.shape[:-1])
        for rule in self.rules:
            p, log_total = rule.exponent.evaluate(env), rule.total_rate.log_evaluate(env)
            log_remaining = rule.mean_base.log_evaluate(env) - log_total
            share = factorised_share(*jnp.broadcast_arrays(p, log_remaining)) - p * log_total
            total = total + (jnp.sum(share, axis=-1) if rule.auxiliary.is_vector else share[..., 0])
        return total
