"""Predictors: affine functions of one latent, the arguments of the likelihood's factors."""

from typing import Any

import jax.numpy as jnp

from pgmodels.augmentation.errors import NoAugmentationError
from pgmodels.likelihoods.algebra import add, multiply
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.operations import Product, Reduction, Sum
from pgmodels.likelihoods.symbols import Constant, Latent, Latents, Selected


class SharedPredictorError(NoAugmentationError):
    """An affine expression that combines several latents."""

    def __init__(self, expression: Expression):
        super().__init__(f"{expression.text()} combines several latents.")


class Predictor:
    """z = scale * latent + shift, where scale and shift are coefficients and latent is one latent or all of them.

    With all latents z is a vector with one value per latent, and a factor of z means the product over latents.
    """

    def __init__(self, latent: Latent | Latents, scale: Expression, shift: Expression):
        self.latent = latent
        self.scale = scale
        self.shift = shift
        self.expression = add(multiply(scale, latent), shift)
        self.key = self.expression.key

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the latents that the predictor depends on."""
        return (self.latent.position,) if isinstance(self.latent, Latent) else tuple(range(self.latent.size))

    @property
    def is_vector(self) -> bool:
        """Whether z has one value per latent."""
        return self.expression.is_vector

    def negated(self) -> "Predictor":
        """The predictor -z."""
        return Predictor(self.latent, multiply(-1.0, self.scale), multiply(-1.0, self.shift))

    def site(self, h: Any, w: Any, env: Environment) -> tuple[Any, Any]:
        """The site of f that is exp(h z - w z^2 / 2) as a function of f, shapes (..., n, latents)."""
        scale, shift = self.scale.evaluate(env), self.shift.evaluate(env)
        return self._scatter(scale * (h - w * shift)), self._scatter(scale**2 * w)

    def _scatter(self, values: Any) -> Any:
        size = self.latent.size
        if isinstance(self.latent, Latents):
            return jnp.broadcast_to(values, (*values.shape[:-1], size))
        total = jnp.sum(values, axis=-1)
        return jnp.zeros((*total.shape, size)).at[..., self.latent.position].set(total)


def latents_of(expression: Expression) -> dict[tuple, Expression]:
    """The latent symbols that an expression contains, by key."""
    if isinstance(expression, (Latent, Latents, Selected)):
        return {expression.key: expression}
    latents: dict[tuple, Expression] = {}
    for child in expression.children:
        latents |= latents_of(child)
    return latents


def affine(expression: Expression) -> Predictor | None:
    """An expression as a predictor, None if it is not affine. Raises SharedPredictorError if it mixes latents."""
    coefficients = _affine_coefficients(expression)
    if coefficients is None:
        return None
    latent, scale, shift = coefficients
    if not isinstance(latent, (Latent, Latents)):
        return None
    return Predictor(latent, scale, shift)


def _affine_coefficients(expression: Expression) -> tuple[Expression | None, Expression, Expression] | None:
    if expression.latent_free:
        return None, Constant(0.0), expression
    if isinstance(expression, (Latent, Latents, Selected)):
        return expression, Constant(1.0), Constant(0.0)
    if isinstance(expression, Product):
        moving = [child for child in expression.children if not child.latent_free]
        if len(moving) != 1:
            return None
        inner = _affine_coefficients(moving[0])
        if inner is None:
            return None
        factor = multiply(*(child for child in expression.children if child.latent_free))
        return inner[0], multiply(factor, inner[1]), multiply(factor, inner[2])
    if isinstance(expression, Sum):
        latent: Expression | None = None
        scale: Expression = Constant(0.0)
        shift: Expression = Constant(0.0)
        for child in expression.children:
            inner = _affine_coefficients(child)
            if inner is None:
                return None
            if inner[0] is not None:
                if latent is not None and latent.key != inner[0].key:
                    raise SharedPredictorError(expression)
                latent = inner[0]
            scale, shift = add(scale, inner[1]), add(shift, inner[2])
        return latent, scale, shift
    reduced = isinstance(expression, Reduction) and expression.operator == "sum"
    if reduced and _affine_coefficients(expression.argument) is not None:  # type: ignore[attr-defined]
        raise SharedPredictorError(expression)
    return None
