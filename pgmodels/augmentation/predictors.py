"""Formulas whose factors combine latents, written over predictors z = Φ f: what a factor sees is one predictor each."""

from collections.abc import Hashable, Mapping
from functools import cached_property
from itertools import combinations
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from pgmodels.augmentation.errors import NoAugmentationError
from pgmodels.augmentation.symbols import rebuild
from pgmodels.likelihoods.algebra import add, multiply, split_number
from pgmodels.likelihoods.expression import Environment, Expression
from pgmodels.likelihoods.notation import Tree, indexed, line
from pgmodels.likelihoods.operations import Product, Reduction, Sum
from pgmodels.likelihoods.symbols import Constant, Latent, Latents, Observation

# The coefficient of each latent in a linear combination.
Combination = dict[int, Expression]
ZERO, ONE = Constant(0.0), Constant(1.0)


class PredictorSymbol(Latent):
    """A predictor in the place of a latent, with the combination of latents that it stands for."""

    def __init__(self, position: int, size: int, expression: Expression):
        super().__init__(position, size)
        self.expression = expression

    def _label(self) -> Hashable:
        return (self.position, self.size, self.expression.key)

    def notation(self, precedence: int = 0) -> Tree:
        return indexed("z", self.index)


class Predictors:
    """The predictors z = Φ f of a formula, a linear combination of the latents of a datum each."""

    def __init__(self, rows: tuple[Combination, ...], num_latents: int):
        self.rows, self.num_latents = rows, num_latents

    @property
    def latent_blocks(self) -> tuple[tuple[int, ...], ...]:
        """The latents that predictors couple, directly or through others."""
        blocks: list[set[int]] = [{latent} for latent in range(self.num_latents)]
        for row in self.rows:
            touched = [block for block in blocks if block & set(row)]
            blocks = [block for block in blocks if not block & set(row)] + [set().union(*touched)]
        return tuple(tuple(sorted(block)) for block in sorted(blocks, key=min))

    @cached_property
    def columns_read(self) -> frozenset[int]:
        """The columns of y that Φ depends on."""
        entries = [coefficient for row in self.rows for coefficient in row.values()]
        return frozenset(column for entry in entries for column in _columns(entry))

    def check(self, blocks: tuple[tuple[int, ...], ...]) -> None:
        """Raise NoAugmentationError where predictors that multiply share a latent: it is in two blocks then."""
        for first, second in combinations(blocks, 2):
            shared = set(self.latents_of(first)) & set(self.latents_of(second))
            if shared:
                raise NoAugmentationError(
                    f"two predictors that multiply, {self.text(first[0])} and {self.text(second[0])}, share "
                    f"f[{min(shared)}]: given its auxiliaries the likelihood is no Gaussian in it. Give each predictor "
                    "latents of its own."
                )

    def definitions(self) -> list[Tree]:
        """Each predictor as a formula, as in z = f[0] + f[1]."""
        return [line(self.symbol(p), "=", self.expression(p)) for p in range(len(self.rows))]

    def symbol(self, predictor: int) -> PredictorSymbol:
        """What stands for a predictor in formulas."""
        return PredictorSymbol(predictor, len(self.rows), self.expression(predictor))

    def expression(self, predictor: int) -> Expression:
        """A predictor as a combination of latents."""
        row = self.rows[predictor].items()
        return add(*(multiply(coefficient, Latent(latent, self.num_latents)) for latent, coefficient in row))

    def text(self, predictor: int) -> str:
        """A predictor in infix notation."""
        return self.expression(predictor).text()

    def latents_of(self, predictors: tuple[int, ...]) -> tuple[int, ...]:
        """The latents that some predictors read."""
        return tuple(sorted({latent for predictor in predictors for latent in self.rows[predictor]}))

    def matrix(self, y: Any, parameters: Mapping[str, Any]) -> Float[Array, "n P L"]:
        """Φ of each datum; coefficients may read y and parameters."""
        num_rows = jnp.shape(y)[0]
        zeros = jnp.zeros((num_rows, self.num_latents))
        env = Environment(y, zeros, parameters)
        entries = [[row.get(latent, ZERO) for latent in range(self.num_latents)] for row in self.rows]
        columns = [[jnp.broadcast_to(entry.evaluate(env)[..., 0], (num_rows,)) for entry in row] for row in entries]
        return jnp.stack([jnp.stack(row, axis=-1) for row in columns], axis=-2)


def over_predictors(formula: Expression, num_latents: int) -> tuple[Expression, Predictors]:
    """The formula with a symbol for every predictor in it, and the predictors.

    Raises NoAugmentationError where it reads all latents as a vector beside combinations of some.
    """
    found = _Found(num_latents)
    found.collect(formula)
    predictors = Predictors(tuple(found.rows), num_latents)
    return found.replace(formula, predictors), predictors


def fewest(formula: Expression, num_latents: int) -> tuple[Expression, Predictors | None]:
    """A formula over its predictors where they are fewer than the latents, else as it stands, without predictors."""
    try:
        over, predictors = over_predictors(formula, num_latents)
    except NoAugmentationError:
        return formula, None
    return (over, predictors) if len(predictors.rows) < num_latents else (formula, None)


class _Found:
    """The predictors of a formula, in the order in which they are met."""

    def __init__(self, num_latents: int):
        self.num_latents = num_latents
        self.rows: list[Combination] = []

    def collect(self, expression: Expression) -> None:
        """Note every predictor of an expression."""
        if expression.latent_free:
            return
        parts = linear_parts(expression, self.num_latents)
        if parts is not None:
            self._place(parts[0])
            return
        if isinstance(expression, Latents) or not expression.children:
            raise NoAugmentationError(
                "the formula reads all latents as a vector, f or f[y], and combines some of them elsewhere: write each "
                "factor with latents by their number, f[0], f[1], ..."
            )
        for child in expression.children:
            self.collect(child)

    def replace(self, expression: Expression, predictors: Predictors) -> Expression:
        """The expression over the symbols of the predictors."""
        if expression.latent_free:
            return expression
        parts = linear_parts(expression, self.num_latents)
        if parts is None:
            return rebuild(expression, [self.replace(child, predictors) for child in expression.children])
        combination, shift = parts
        place, scale = self._place(combination)
        return add(multiply(scale, predictors.symbol(place)), shift)

    def _place(self, combination: Combination) -> tuple[int, float]:
        """The number of the predictor that a combination is a multiple of, and the multiple."""
        scale = split_number(next(iter(combination.values())))[0]
        row = {latent: multiply(1.0 / scale, coefficient) for latent, coefficient in combination.items()}
        keys = [{latent: coefficient.key for latent, coefficient in held.items()} for held in self.rows]
        own = {latent: coefficient.key for latent, coefficient in row.items()}
        if own not in keys:
            self.rows.append(row)
            return len(self.rows) - 1, scale
        return keys.index(own), scale


def linear_parts(expression: Expression, num_latents: int) -> tuple[Combination, Expression] | None:
    """An expression as a linear combination of single latents and a shift free of them; None where it is none."""
    if expression.latent_free:
        return None if expression.is_vector else ({}, expression)
    if isinstance(expression, Latent):
        return {expression.position: ONE}, ZERO
    if isinstance(expression, Product):
        moving = [child for child in expression.children if not child.latent_free]
        others = [child for child in expression.children if child.latent_free]
        if len(moving) != 1 or any(child.is_vector for child in others):
            return None
        inner = linear_parts(moving[0], num_latents)
        if inner is None:
            return None
        combination = {latent: multiply(*others, coefficient) for latent, coefficient in inner[0].items()}
        return combination, multiply(*others, inner[1])
    if isinstance(expression, Sum):
        total: Combination = {}
        shift: Expression = ZERO
        for child in expression.children:
            inner = linear_parts(child, num_latents)
            if inner is None:
                return None
            for latent, coefficient in inner[0].items():
                total[latent] = add(total.get(latent, ZERO), coefficient)
            shift = add(shift, inner[1])
        return {latent: total[latent] for latent in sorted(total)}, shift
    if isinstance(expression, Reduction) and expression.operator == "sum":
        return _reduced_parts(expression.children[0], num_latents)
    return None


def _reduced_parts(argument: Expression, num_latents: int) -> tuple[Combination, Expression] | None:
    """The sum over the latents of scale times the latents."""
    scale: Expression = ONE
    if isinstance(argument, Product):
        others = [child for child in argument.children if child.latent_free]
        moving = [child for child in argument.children if not child.latent_free]
        if len(moving) != 1 or any(child.is_vector for child in others):
            return None
        scale, argument = multiply(*others), moving[0]
    if not isinstance(argument, Latents):
        return None
    return dict.fromkeys(range(num_latents), scale), ZERO


def _columns(expression: Expression) -> set[int]:
    if isinstance(expression, Observation):
        return {expression.column or 0}
    return {column for child in expression.children for column in _columns(child)}
