"""Predictors of a formula: the combinations in which latents enter it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from pgmodels.likelihoods import operations as algebra
from pgmodels.likelihoods.expression import (
    Constant,
    Environment,
    Expression,
    Latent,
    Latents,
    Observation,
    ParameterSymbol,
    Selected,
)
from pgmodels.likelihoods.operations import (
    Call,
    Comparison,
    Product,
    Reduction,
    Sum,
    add,
    compare,
    factors_of,
    multiply,
    split_number,
)
from pgmodels.likelihoods.printing import Part, Tree, bracketed, indexed, line

ZERO, ONE = Constant(0.0), Constant(1.0)


class NoAugmentationError(ValueError):
    """Error if no rule makes a factor conditionally Gaussian. The message names engines that need no rule."""

    def __init__(self, message: str):
        super().__init__(f"{message}\npgm.gaussian_vi, pgm.nuts and pgm.to_numpyro accept any formula.")


class VerificationError(AssertionError):
    """Error if a numerical check of a derivation failed."""


class SharedPredictorError(NoAugmentationError):
    """Error for an affine expression that combines several latents."""

    def __init__(self, expression: Expression):
        super().__init__(f"{expression.text()} combines several latents.")


class Predictor:
    """The predictor z = scale * latent + shift, with coefficients scale and shift and one latent or all latents.

    With all latents, z is a vector with one value per latent, and a factor of z is the product over latents.
    """

    def __init__(self, latent: Latent | Latents, scale: Expression, shift: Expression):
        self.latent = latent
        self.scale = scale
        self.shift = shift
        self.expression = add(multiply(scale, latent), shift)
        self.key = self.expression.key

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the latents on which the predictor depends."""
        return (self.latent.position,) if isinstance(self.latent, Latent) else tuple(range(self.latent.size))

    @property
    def is_vector(self) -> bool:
        """Whether z has one value per latent."""
        return self.expression.is_vector

    def negated(self) -> "Predictor":
        """Return the predictor -z."""
        return Predictor(self.latent, multiply(-1.0, self.scale), multiply(-1.0, self.shift))

    def site(self, h: Array, w: Array, env: Environment) -> tuple[Array, Array]:
        """Return the site of f that is exp(h z - w z^2 / 2) as a function of f, shapes (..., n, latents)."""
        scale, shift = self.scale.evaluate(env), self.shift.evaluate(env)
        return self._scatter(scale * (h - w * shift)), self._scatter(scale**2 * w)

    def _scatter(self, values: Array) -> Array:
        size = self.latent.size
        if isinstance(self.latent, Latents):
            return jnp.broadcast_to(values, (*values.shape[:-1], size))
        total = jnp.sum(values, axis=-1)
        return jnp.zeros((*total.shape, size)).at[..., self.latent.position].set(total)


def subexpressions(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all expressions in it, each before its children."""
    yield expression
    for child in expression.children:
        yield from subexpressions(child)


def latents_of(expression: Expression) -> dict[tuple, Latent | Latents | Selected]:
    """Return the latent symbols that an expression contains, by key."""
    return {node.key: node for node in subexpressions(expression) if isinstance(node, (Latent, Latents, Selected))}


def positions_of(expression: Expression) -> list[int]:
    """Return the positions of the latents on which an expression depends."""
    latents = latents_of(expression).values()
    positions = ([node.position] if isinstance(node, Latent) else range(node.size) for node in latents)
    return list(dict.fromkeys(chain.from_iterable(positions)))


def parameters_of(expression: Expression) -> dict[str, ParameterSymbol]:
    """Return the parameters that an expression contains, by name."""
    return {node.name: node for node in subexpressions(expression) if isinstance(node, ParameterSymbol)}


def affine(expression: Expression) -> Predictor | None:
    """Return an expression as a predictor, or None unless affine. Raise SharedPredictorError if it mixes latents."""
    latent, scale, shift = _affine_coefficients(expression) or (None, ZERO, ZERO)
    return Predictor(latent, scale, shift) if isinstance(latent, (Latent, Latents)) else None


def _affine_coefficients(expression: Expression) -> tuple[Expression | None, Expression, Expression] | None:
    if expression.latent_free:
        return None, ZERO, expression
    if isinstance(expression, (Latent, Latents, Selected)):
        return expression, ONE, ZERO
    if isinstance(expression, Product):
        factor, rest = split_latents(expression)
        inner = None if isinstance(rest, Product) else _affine_coefficients(rest)
        return inner and (inner[0], multiply(factor, inner[1]), multiply(factor, inner[2]))
    if isinstance(expression, Sum):
        latent: Expression | None = None
        scale: Expression = ZERO
        shift: Expression = ZERO
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


class Auxiliary(Expression):
    """The symbol of an auxiliary variable. It counts as a coefficient, free of the latents."""

    labels = ("name", "is_vector")

    def __init__(self, name: str, is_vector: bool):
        self.name = name
        self.is_vector = is_vector  # type: ignore[misc]

    sign = 1  # type: ignore[assignment]
    nonnegative = True  # type: ignore[assignment]

    def evaluate(self, env: Environment) -> Array:
        return env.parameters[self.name]  # type: ignore[return-value]

    def element(self, index: Part | None) -> Tree:
        """Return the symbol with the given index."""
        return indexed(self.name, index)

    def notation(self, precedence: int = 0) -> Tree:
        return self.element("c" if self.is_vector else None)


class Allocated(Expression):
    """The indicator that the allocation ``auxiliary`` equals ``component``."""

    labels = ("component",)
    sign = 1  # type: ignore[assignment]
    nonnegative = True  # type: ignore[assignment]

    def __init__(self, auxiliary: Auxiliary, component: int):
        self.auxiliary, self.component = auxiliary, component
        self.name = f"{auxiliary.name} = {component}"
        self.children = (auxiliary,)

    def evaluate(self, env: Environment) -> Array:
        return (self.auxiliary.evaluate(env) == self.component).astype(env.xp.result_type(float))

    @property
    def condition(self) -> Tree:
        """The condition, such as j = 1, as a formula."""
        return line(self.auxiliary, "=", self.component)

    def notation(self, precedence: int = 0) -> Tree:
        return bracketed(self.condition, "[]")


class Logarithm(Call):
    """The logarithm by ``log_evaluate`` of its argument, without overflow or cancellation."""

    def __init__(self, argument: Expression):
        super().__init__("log", argument)

    def evaluate(self, env: Environment) -> Array:
        return self.argument.log_evaluate(env)


class WeightedSum(Expression):
    """The sum constant + Σ_j weight_j value_j with weights and values >= 0; its logarithm never underflows.

    ``terms`` are (weight, value, whether the product is summed over the latents). ``written`` is the printed sum.
    """

    nonnegative = True  # type: ignore[assignment]

    def __init__(self, written: Expression, constant: Expression, terms: Iterable[tuple[Expression, Expression, bool]]):
        self.written, self.constant, self.terms = written, constant, tuple(terms)
        self.children = (written,)

    def evaluate(self, env: Environment) -> Array:
        return env.xp.exp(self.log_evaluate(env))

    def log_evaluate(self, env: Environment) -> Array:
        columns = []
        if self.constant.key != ZERO.key:
            factor, logarithm = self.constant.scaled(env)
            columns.append((logarithm, factor))
        for weight, argument, reduced in self.terms:
            factor, log_weight = weight.scaled(env)
            value, factor = env.xp.broadcast_arrays(log_weight + argument.log_evaluate(env), factor)
            if reduced:
                columns.extend((value[..., i : i + 1], factor[..., i : i + 1]) for i in range(value.shape[-1]))
            else:
                columns.append((value, factor))
        values = env.xp.stack(env.xp.broadcast_arrays(*(value for value, _ in columns)))
        factors = env.xp.stack(env.xp.broadcast_arrays(*(factor for _, factor in columns)))
        logsumexp = scipy.special.logsumexp if env.xp is np else jax.nn.logsumexp
        return logsumexp(values, axis=0, b=factors)

    def notation(self, precedence: int = 0) -> Tree:
        return self.written.notation(precedence)


@dataclass(frozen=True)
class SiteTerm:
    """The factor exp(potential z - precision z^2 / 2) of a predictor z, as formulas."""

    predictor: Predictor
    potential: Expression
    precision: Expression


def group_by_component(expression: Expression) -> Expression:
    """Return a sum with its terms grouped by the mixture component whose indicator they contain."""
    groups: dict[tuple, tuple[Expression, list[Expression]]] = {}
    for term in expression.children if isinstance(expression, Sum) else ():
        factors = factors_of(term)
        indicator: Expression = next((factor for factor in factors if isinstance(factor, Allocated)), ONE)
        rest = multiply(*(factor for factor in factors if factor is not indicator))
        groups.setdefault(indicator.key, (indicator, []))[1].append(rest)
    if all(indicator.key == ONE.key for indicator, _ in groups.values()):
        return expression
    return add(*(multiply(indicator, add(*rests)) for indicator, rests in groups.values()))


def auxiliaries_of(expression: Expression) -> list[Auxiliary]:
    """Return the distinct auxiliaries in an expression, in order of appearance."""
    return list({node.key: node for node in subexpressions(expression) if isinstance(node, Auxiliary)}.values())


def substitute(expression: Expression, table: Mapping[tuple, Expression]) -> Expression:
    """Return the expression with subexpressions replaced according to ``table``, by key."""
    if expression.key in table:
        return table[expression.key]
    return rebuild(expression, [substitute(child, table) for child in expression.children])


def rebuild(expression: Expression, children: list[Expression]) -> Expression:
    """Return the expression with other children."""
    return Logarithm(*children) if isinstance(expression, Logarithm) else algebra.rebuild(expression, children)


def over_latents(expression: Expression) -> Expression:
    """Return the sum over the latents if an expression is a vector over them, else the expression."""
    return Reduction("sum", expression) if expression.is_vector else expression


# Coefficients of a linear combination of latents, by latent.
Combination = dict[int, Expression]


class PredictorSymbol(Latent):
    """The symbol of a predictor, used as a latent; ``expression`` is its combination of latents."""

    labels = ("position", "size", "expression")

    def __init__(self, position: int, size: int, expression: Expression):
        super().__init__(position, size)
        self.expression = expression

    def notation(self, precedence: int = 0) -> Tree:
        return indexed("z", self.index)


class Predictors:
    """The linear predictors z = Φ f of a formula; ``rows`` are the rows of Φ."""

    def __init__(self, rows: tuple[Combination, ...], num_latents: int):
        self.rows, self.num_latents = rows, num_latents

    @property
    def latent_blocks(self) -> tuple[tuple[int, ...], ...]:
        """Return the connected components of the latents; a predictor connects the latents that it combines."""
        blocks: list[set[int]] = [{latent} for latent in range(self.num_latents)]
        for row in self.rows:
            touched = [block for block in blocks if block & set(row)]
            blocks = [block for block in blocks if not block & set(row)] + [set().union(*touched)]
        return tuple(tuple(sorted(block)) for block in sorted(blocks, key=min))

    @cached_property
    def columns_read(self) -> frozenset[int]:
        """The columns of y on which Φ depends."""
        nodes = (node for row in self.rows for entry in row.values() for node in subexpressions(entry))
        return frozenset(node.column or 0 for node in nodes if isinstance(node, Observation))

    def check(self, blocks: tuple[tuple[int, ...], ...]) -> None:
        """Raise NoAugmentationError if predictors that multiply share a latent, which would then be in two blocks."""
        for first, second in combinations(blocks, 2):
            shared = set(self.latents_of(first)) & set(self.latents_of(second))
            if shared:
                one, other = (self.expression(block[0]).text() for block in (first, second))
                raise NoAugmentationError(
                    f"two predictors that multiply, {one} and {other}, share f[{min(shared)}]: given the auxiliaries "
                    "the likelihood is not Gaussian in it. Give each predictor separate latents."
                )

    def definitions(self) -> list[Tree]:
        """Return the definition of each predictor, such as z = f[0] + f[1]."""
        return [line(self.symbol(p), "=", self.expression(p)) for p in range(len(self.rows))]

    def symbol(self, predictor: int) -> PredictorSymbol:
        """Return the symbol of a predictor."""
        return PredictorSymbol(predictor, len(self.rows), self.expression(predictor))

    def expression(self, predictor: int) -> Expression:
        """Return a predictor as a combination of latents."""
        row = self.rows[predictor].items()
        return add(*(multiply(coefficient, Latent(latent, self.num_latents)) for latent, coefficient in row))

    def latents_of(self, predictors: tuple[int, ...]) -> tuple[int, ...]:
        """Return the latents that the given predictors combine."""
        return tuple(sorted({latent for predictor in predictors for latent in self.rows[predictor]}))

    def matrix(self, y: ArrayLike, parameters: Mapping[str, ArrayLike]) -> Float[Array, "n P L"]:
        """Return Φ of each datum; its coefficients may depend on y and parameters."""
        num_rows = jnp.shape(y)[0]
        env = Environment(y, jnp.zeros((num_rows, self.num_latents)), parameters)
        entries = [[row.get(latent, ZERO) for latent in range(self.num_latents)] for row in self.rows]
        columns = [[jnp.broadcast_to(entry.evaluate(env)[..., 0], (num_rows,)) for entry in row] for row in entries]
        return jnp.stack([jnp.stack(row, axis=-1) for row in columns], axis=-2)


def over_predictors(formula: Expression, num_latents: int) -> tuple[Expression, Predictors]:
    """Return a formula over its predictors, and these. Raise NoAugmentationError if it has f and combinations."""
    collector = _PredictorCollector(num_latents)
    collector.collect(formula)
    predictors = Predictors(tuple(collector.rows), num_latents)
    return collector.replace(formula, predictors), predictors


def rewrite_if_fewer(formula: Expression, num_latents: int) -> tuple[Expression, Predictors | None]:
    """Return the formula over its predictors if they are fewer than the latents, else the formula and None."""
    try:
        over, predictors = _over_basis(*over_predictors(formula, num_latents))
    except NoAugmentationError:
        return formula, None
    # Predictors that are one latent each, with an index from the data, couple no latents.
    only_select = all(isinstance(entry, Comparison) for row in predictors.rows for entry in row.values())
    is_smaller = len(predictors.rows) < num_latents and not only_select
    return (over, predictors) if is_smaller else (formula, None)


def _over_basis(over: Expression, predictors: Predictors) -> tuple[Expression, Predictors]:
    """Return the formula over the first predictors that span all: two for f[0] + f[1], f[2], f[2] - f[0] - f[1]."""
    rows, size = predictors.rows, predictors.num_latents
    if not all(isinstance(entry, Constant) for row in rows for entry in row.values()):
        return over, predictors
    entries = [[split_number(row.get(latent, ZERO))[0] for latent in range(size)] for row in rows]
    matrix, basis = np.array(entries).reshape(len(rows), size), list[int]()
    for number in range(len(rows)):
        if np.linalg.matrix_rank(matrix[[*basis, number]]) > len(basis):
            basis.append(number)
    if len(basis) == len(rows):
        return over, predictors
    fewer = Predictors(tuple(rows[number] for number in basis), size)
    weights = np.linalg.lstsq(matrix[basis].T, matrix.T)[0].T
    # Whole numbers up to rounding are exact, including 0.
    weights = np.where(np.abs(weights - np.round(weights)) < 1e-12, np.round(weights), weights)
    symbols = [fewer.symbol(number) for number in range(len(basis))]
    spanned = [add(*(multiply(float(w), z) for w, z in zip(row, symbols, strict=True) if w)) for row in weights]
    return algebra.substitute(over, spanned), fewer


class _PredictorCollector:
    def __init__(self, num_latents: int):
        self.num_latents = num_latents
        self.rows: list[Combination] = []

    def collect(self, expression: Expression) -> None:
        if expression.latent_free:
            return
        linear = linear_and_shift(expression, self.num_latents)
        if linear is not None:
            self._index_and_scale(linear[0])
            return
        if isinstance(expression, Latents) or not expression.children:
            raise NoAugmentationError(
                "the formula uses all latents as a vector, f or f[y], and combines some of them elsewhere: write each "
                "factor with latents by their number, f[0], f[1], ..."
            )
        for child in expression.children:
            self.collect(child)

    def replace(self, expression: Expression, predictors: Predictors) -> Expression:
        if expression.latent_free:
            return expression
        linear = linear_and_shift(expression, self.num_latents)
        if linear is None:
            return rebuild(expression, [self.replace(child, predictors) for child in expression.children])
        combination, shift = linear
        index, scale = self._index_and_scale(combination)
        return add(multiply(scale, predictors.symbol(index)), shift)

    def _index_and_scale(self, combination: Combination) -> tuple[int, Expression]:
        """Return the index of the predictor of which a combination is a multiple (added if new), and the multiple."""
        # What all coefficients are numbers times, as in y f[0] + y f[1]; not of numbers alone and indicators.
        common, *others = (split_number(coefficient)[1] for coefficient in combination.values())
        if isinstance(common, Constant | Comparison) or any(other.key != common.key for other in others):
            common = ONE
        else:
            combination = {latent: Constant(split_number(c)[0]) for latent, c in combination.items()}
        index, multiple = self._index_and_number(combination)
        return index, multiply(multiple, common)

    def _index_and_number(self, combination: Combination) -> tuple[int, float]:
        scale = split_number(next(iter(combination.values())))[0]
        keys = [{latent: coefficient.key for latent, coefficient in existing.items()} for existing in self.rows]
        # -z is a multiple of z, even if the sign is in a sum of indicators.
        for multiple in (scale, -scale):
            row = {latent: multiply(1.0 / multiple, coefficient) for latent, coefficient in combination.items()}
            row_keys = {latent: coefficient.key for latent, coefficient in row.items()}
            if row_keys in keys:
                return keys.index(row_keys), multiple
        self.rows.append({latent: multiply(1.0 / scale, coefficient) for latent, coefficient in combination.items()})
        return len(self.rows) - 1, scale


def split_latents(expression: Expression) -> tuple[Expression, Expression]:
    """Split an expression into a latent-free coefficient and a remainder with latents."""
    if expression.latent_free:
        return expression, ONE
    if isinstance(expression, Product):
        free = multiply(*(child for child in expression.children if child.latent_free))
        return free, multiply(*(child for child in expression.children if not child.latent_free))
    return ONE, expression


def linear_and_shift(expression: Expression, num_latents: int) -> tuple[Combination, Expression] | None:
    """Split an expression into a linear combination of single latents and a shift; None if it is not affine."""
    if expression.latent_free:
        return None if expression.is_vector else ({}, expression)
    if isinstance(expression, Latent):
        return {expression.position: ONE}, ZERO
    if isinstance(expression, Selected):
        return {latent: compare("==", expression.index, float(latent)) for latent in range(num_latents)}, ZERO
    if isinstance(expression, Product):
        factor, rest = split_latents(expression)
        inner = None if isinstance(rest, Product) or factor.is_vector else linear_and_shift(rest, num_latents)
        if inner is None:
            return None
        combination = {latent: multiply(factor, coefficient) for latent, coefficient in inner[0].items()}
        return combination, multiply(factor, inner[1])
    if isinstance(expression, Sum):
        total: Combination = {}
        shift: Expression = ZERO
        for child in expression.children:
            inner = linear_and_shift(child, num_latents)
            if inner is None:
                return None
            for latent, coefficient in inner[0].items():
                total[latent] = add(total.get(latent, ZERO), coefficient)
            shift = add(shift, inner[1])
        return {latent: total[latent] for latent in sorted(total)}, shift
    if isinstance(expression, Reduction) and expression.operator == "sum":
        # The sum over the latents of a number times the latents.
        scale, rest = split_latents(expression.argument)
        is_sum = isinstance(rest, Latents) and not scale.is_vector
        return (dict.fromkeys(range(num_latents), scale), ZERO) if is_sum else None
    return None
