"""The bound of a factorised law of the auxiliary variables: the Gamma variable independent of its Poisson counts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln

from pgmodels.augmentation.augmentation import Augmentation
from pgmodels.augmentation.averages import VARIANCE
from pgmodels.augmentation.rules.gamma import GammaRule
from pgmodels.likelihoods.algebra import add
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.objectives.base import Objective

# From this shape on, differences of nearly equal functions of it are replaced by their series, to 1e-14.
_LARGE = 16.0
# Newton steps for the shape; quadratic, and monotone from below (see ``gamma_shape``): 7 are needed at p = 0.01.
_STEPS = 8


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
                f"objective='factorised' expects a likelihood with a factor like pgm.sum(pgm.sigmoid(f)) ** -1, whose "
                f"augmentation has a Gamma variable with Poisson counts; {augmentation.formula.text()} has none. Use "
                "objective='augmented'."
            )
        self.augmentation, self.rules = augmentation, rules
        self.size, self.predictors = augmentation.size, augmentation.predictors

    def __hash__(self) -> int:
        return hash((type(self), self.augmentation))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Factorised) and self.augmentation == other.augmentation

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """See Objective."""
        return self.augmentation.blocks

    @cached_property
    def _others(self) -> Expression:
        """The terms of all other factors."""
        rules = (rule for rule in self.augmentation.rules if rule.parent is None and rule not in self.rules)
        return add(*(rule.share() for rule in rules), self.augmentation.log_base)

    def local_bound(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """See Objective."""
        env = Environment(y, m, {**parameters, VARIANCE: v})
        total = jnp.broadcast_to(self._others.evaluate(env)[..., 0], m.shape[:-1])
        for rule in self.rules:
            p, log_total = rule.exponent.evaluate(env), jnp.log(rule.total_rate(env))
            log_remaining = rule.mean_base.log_evaluate(env) - log_total
            share = factorised_share(*jnp.broadcast_arrays(p, log_remaining)) - p * log_total
            total = total + (jnp.sum(share, axis=-1) if rule.auxiliary.is_vector else share[..., 0])
        return total


@jax.custom_jvp
def factorised_share(p: Any, log_r: Any) -> Any:
    """G(p, t) = (α - p) (1 - ψ(α)) + log Γ(α) - log Γ(p) at α = ``gamma_shape``; t = 1 - r. Zero for p = 0.

    G is at most -p log r, its value for the joint law of the auxiliary variables.
    """
    positive = jnp.where(p > 0, p, 1.0)
    alpha = gamma_shape(positive, log_r)
    small = jnp.minimum(alpha, _LARGE)
    direct = (small - positive) * (1.0 - digamma(small)) + gammaln(small)
    # log α - ψ(α), and log Γ(α) less Stirling's formula, by their asymptotic series.
    x = 1.0 / jnp.maximum(alpha, _LARGE)
    excess = x * (1 / 2 + x * (1 / 12 + x**2 * (-1 / 120 + x**2 * (1 / 252 - x**2 / 240))))
    remainder = x * (1 / 12 + x**2 * (-1 / 360 + x**2 * (1 / 1260 - x**2 / 1680)))
    logarithm = -jnp.log(x)
    series = (positive - 0.5) * logarithm - positive + (1.0 / x - positive) * excess + 0.5 * np.log(2 * np.pi)
    value = jnp.where(alpha < _LARGE, direct, series + remainder) - gammaln(positive)
    return jnp.where(p > 0, value, 0.0)


@factorised_share.defjvp
def _(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    # G is a maximum over α: only its explicit dependence counts.
    (p, log_r), (dp, dlog_r) = primals, tangents
    positive = jnp.where(p > 0, p, 1.0)
    alpha = gamma_shape(positive, log_r)
    by_p = digamma(alpha) - digamma(positive)
    by_log_r = -jnp.exp(log_r) * _exp_digamma(alpha)
    return factorised_share(p, log_r), jnp.where(p > 0, by_p * dp + by_log_r * dlog_r, 0.0)


@jax.custom_jvp
def gamma_shape(p: Any, log_r: Any) -> Any:
    """The shape α of q(λ): the root of α = p + t exp ψ(α), t = 1 - r, for p > 0.

    α - p - t exp ψ(α) increases and is concave, so that Newton's method from below the root stays below it; and
    exp ψ(α) > α - 1/2, so that the root is at least (p - t / 2) / r.
    """
    r = jnp.exp(log_r)
    alpha = jnp.maximum(p, (p + 0.5 * jnp.expm1(log_r)) / r)

    def step(_: int, alpha: Any) -> Any:
        below, slope = _below(alpha)
        return alpha - (below + r * (alpha - below) - p) / (slope + r * (1.0 - slope))

    return jax.lax.fori_loop(0, _STEPS, step, alpha)


@gamma_shape.defjvp
def _(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    (p, log_r), (dp, dlog_r) = primals, tangents
    r, alpha = jnp.exp(log_r), gamma_shape(p, log_r)
    slope = _below(alpha)[1]
    return alpha, (dp - r * _exp_digamma(alpha) * dlog_r) / (slope + r * (1.0 - slope))


def _below(alpha: Any) -> tuple[Any, Any]:
    """α - exp ψ(α) and its derivative; tends to 1/2 and 0."""
    return jax.jvp(_difference, (alpha,), (jnp.ones_like(alpha),))


def _exp_digamma(alpha: Any) -> Any:
    return jnp.where(alpha < _LARGE, jnp.exp(digamma(jnp.minimum(alpha, _LARGE))), alpha - _difference(alpha))


def _difference(alpha: Any) -> Any:
    small = jnp.minimum(alpha, _LARGE)
    u = jnp.maximum(alpha, _LARGE) - 0.5
    x = 1.0 / u**2
    # ψ(u + 1/2) - log u.
    series = x * (1 / 24 + x * (-7 / 960 + x * (31 / 8064 - x * 127 / 30720)))
    return jnp.where(alpha < _LARGE, small - jnp.exp(digamma(small)), 0.5 - u * jnp.expm1(series))
