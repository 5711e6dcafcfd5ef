"""The language a likelihood is written in.

A likelihood is a Python function of the observation ``y`` and the latent values ``f`` of one datum. It is called once,
with symbols, and what it returns is an expression tree that can be evaluated, printed and taken apart.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp

Operand: TypeAlias = "Expression | int | float"


@dataclass(frozen=True)
class Environment:
    """Values for the symbols: ``y`` (n,) or (n, columns), ``f`` (..., n, latents) and the parameters by name.

    A parameter is one number, or an array that broadcasts against ``f``.
    """

    y: Any
    f: Any
    parameters: Mapping[str, Any]


class Expression(ABC):
    """A node of a formula.

    ``evaluate`` returns (..., n, 1) for one value a datum and (..., n, latents) for a vector over the latents.
    """

    children: tuple[Expression, ...] = ()

    @cached_property
    def key(self) -> tuple:
        """The structure as nested tuples: equal keys mean equal formulas."""
        return (type(self).__name__, self._label(), *(child.key for child in self.children))

    def _label(self) -> Any:
        return ""

    @cached_property
    def latent_free(self) -> bool:
        """Whether the expression is a coefficient: a function of y and parameters alone."""
        return all(child.latent_free for child in self.children)

    @cached_property
    def is_vector(self) -> bool:
        """Whether the expression has one value for each latent."""
        return any(child.is_vector for child in self.children)

    @cached_property
    def sign(self) -> int | None:
        """1 or -1 where the expression cannot have the other sign, else None. Observations are presumed >= 0."""
        return None

    @cached_property
    def nonnegative(self) -> bool:
        """Whether the expression is >= 0 whatever the data are."""
        return False

    @abstractmethod
    def evaluate(self, env: Environment) -> Any:
        """The value at ``env``."""

    def log_evaluate(self, env: Environment) -> Any:
        """The logarithm of the value, computed without overflow or cancellation where the structure allows it."""
        return jnp.log(self.evaluate(env))

    @abstractmethod
    def text(self, precedence: int = 0) -> str:
        """The expression in infix notation."""

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    def __hash__(self) -> int:
        return hash(self.key)

    def __bool__(self) -> bool:
        raise TypeError(
            f"the formula branches on {self.text()!r}, which has no value while the formula is read: write it with "
            "powers of indicators, such as sigmoid(f) ** (y == 1), instead of if, and, or, min, max."
        )

    __iter__ = None

    def __add__(self, other: Operand) -> Expression:
        return add(self, other)

    def __radd__(self, other: Operand) -> Expression:
        return add(other, self)

    def __sub__(self, other: Operand) -> Expression:
        return add(self, multiply(-1.0, other))

    def __rsub__(self, other: Operand) -> Expression:
        return add(other, multiply(-1.0, self))

    def __neg__(self) -> Expression:
        return multiply(-1.0, self)

    def __pos__(self) -> Expression:
        return self

    def __mul__(self, other: Operand) -> Expression:
        return multiply(self, other)

    def __rmul__(self, other: Operand) -> Expression:
        return multiply(other, self)

    def __truediv__(self, other: Operand) -> Expression:
        return multiply(self, power(other, -1.0))

    def __rtruediv__(self, other: Operand) -> Expression:
        return multiply(other, power(self, -1.0))

    def __pow__(self, other: Operand) -> Expression:
        return power(self, other)

    def __rpow__(self, other: Operand) -> Expression:
        return power(other, self)

    def __abs__(self) -> Expression:
        return absolute(self)

    def __eq__(self, other: Operand) -> Expression:  # type: ignore[override]
        return Comparison("==", self, as_expression(other))

    def __ne__(self, other: Operand) -> Expression:  # type: ignore[override]
        return Comparison("!=", self, as_expression(other))

    def __lt__(self, other: Operand) -> Expression:
        return Comparison("<", self, as_expression(other))

    def __le__(self, other: Operand) -> Expression:
        return Comparison("<=", self, as_expression(other))

    def __gt__(self, other: Operand) -> Expression:
        return Comparison("<", as_expression(other), self)

    def __ge__(self, other: Operand) -> Expression:
        return Comparison("<=", as_expression(other), self)


class Constant(Expression):
    """A number."""

    def __init__(self, value: float):
        self.value = float(value)
        if not math.isfinite(self.value):
            raise ValueError(f"a formula contains the number {value!r}; every number in it must be finite.")

    def _label(self) -> Any:
        return self.value

    @cached_property
    def sign(self) -> int | None:
        return 1 if self.value >= 0 else -1

    @cached_property
    def nonnegative(self) -> bool:
        return self.value >= 0

    def evaluate(self, env: Environment) -> Any:
        return jnp.full((1, 1), self.value)

    def text(self, precedence: int = 0) -> str:
        text = _number(self.value)
        bracketed = (self.value < 0 and precedence > 0) or ("/" in text and precedence > 1)
        return f"({text})" if bracketed else text


class Observation(Expression):
    """The observation ``y``, or its column ``y[j]``."""

    def __init__(self, column: int | None = None):
        self.column = column

    def __getitem__(self, column: int) -> Observation:
        if self.column is not None:
            raise ValueError(f"{self.text()} is one number a datum and cannot be indexed again.")
        if not isinstance(column, int) or column < 0:
            raise ValueError(f"a column of y is a whole number >= 0; got y[{column!r}].")
        return Observation(column)

    def _label(self) -> Any:
        return self.column

    @cached_property
    def sign(self) -> int | None:
        return 1

    def evaluate(self, env: Environment) -> Any:
        y = env.y if self.column is None else env.y[..., self.column]
        return jnp.asarray(y)[..., None]

    def text(self, precedence: int = 0) -> str:
        return "y" if self.column is None else f"y[{self.column}]"


class ParameterSymbol(Expression):
    """A parameter of the likelihood."""

    def __init__(self, name: str, positive: bool):
        self.name = name
        self.positive = positive

    def _label(self) -> Any:
        return (self.name, self.positive)

    @cached_property
    def sign(self) -> int | None:
        return 1 if self.positive else None

    @cached_property
    def nonnegative(self) -> bool:
        return self.positive

    def evaluate(self, env: Environment) -> Any:
        value = jnp.asarray(env.parameters[self.name])
        return value if value.ndim > 1 else value.reshape(1, -1)

    def text(self, precedence: int = 0) -> str:
        return self.name


class Positions(Expression):
    """The vector 0, 1, ..., L - 1 over the latents."""

    def __init__(self, size: int):
        self.size = size

    is_vector = True  # type: ignore[assignment]

    def _label(self) -> Any:
        return self.size

    @cached_property
    def sign(self) -> int | None:
        return 1

    @cached_property
    def nonnegative(self) -> bool:
        return True

    def evaluate(self, env: Environment) -> Any:
        return jnp.arange(float(self.size))[None, :]

    def text(self, precedence: int = 0) -> str:
        return "c"


class Latent(Expression):
    """One latent value: ``f`` of a model with one latent, ``f[j]`` otherwise."""

    latent_free = False  # type: ignore[assignment]

    def __init__(self, position: int, size: int):
        self.position = position
        self.size = size

    def __getitem__(self, position: Any) -> Expression:
        if self.size > 1:
            raise ValueError(f"{self.text()} is one latent value and cannot be indexed again.")
        return _index(position, 1)

    def __len__(self) -> int:
        return self.size

    def _label(self) -> Any:
        return (self.position, self.size)

    def evaluate(self, env: Environment) -> Any:
        return env.f[..., self.position : self.position + 1]

    def text(self, precedence: int = 0) -> str:
        return "f" if self.size == 1 else f"f[{self.position}]"


class Latents(Expression):
    """The vector of all latent values ``f``."""

    latent_free = False  # type: ignore[assignment]
    is_vector = True  # type: ignore[assignment]

    def __init__(self, size: int):
        self.size = size

    def __getitem__(self, position: Any) -> Expression:
        return _index(position, self.size)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Expression]:  # type: ignore[assignment, override]
        return (self[position] for position in range(self.size))

    def _label(self) -> Any:
        return self.size

    def evaluate(self, env: Environment) -> Any:
        return env.f

    def text(self, precedence: int = 0) -> str:
        return "f[c]"


class Selected(Expression):
    """The latent that the data select: ``f[y]``."""

    latent_free = False  # type: ignore[assignment]

    def __init__(self, index: Expression, size: int):
        self.index = index
        self.size = size
        self.children = (index,)

    def _label(self) -> Any:
        return self.size

    def evaluate(self, env: Environment) -> Any:
        chosen = self.index.evaluate(env) == jnp.arange(self.size)
        return jnp.sum(jnp.where(chosen, env.f, 0.0), axis=-1, keepdims=True)

    def text(self, precedence: int = 0) -> str:
        return f"f[{self.index.text()}]"


class Sum(Expression):
    """A sum of terms."""

    def __init__(self, children: tuple[Expression, ...]):
        self.children = children

    @cached_property
    def sign(self) -> int | None:
        signs = {child.sign for child in self.children}
        return signs.pop() if len(signs) == 1 else None

    @cached_property
    def nonnegative(self) -> bool:
        return all(child.nonnegative for child in self.children)

    def evaluate(self, env: Environment) -> Any:
        return sum((child.evaluate(env) for child in self.children[1:]), self.children[0].evaluate(env))

    def log_evaluate(self, env: Environment) -> Any:
        if not self.nonnegative:
            return jnp.log(self.evaluate(env))
        logs = [child.log_evaluate(env) for child in self.children]
        return jax.nn.logsumexp(jnp.stack(jnp.broadcast_arrays(*logs)), axis=0)

    def text(self, precedence: int = 0) -> str:
        number, rest = _common_number(self)
        if number != 1.0:
            return _product_text(number, [rest], [], precedence)
        # A positive term leads: y - f, not -f + y.
        lead = next((i for i, child in enumerate(self.children) if split_number(child)[0] > 0), 0)
        text = self.children[lead].text(0)
        for child in self.children[:lead] + self.children[lead + 1 :]:
            coefficient, part = split_number(child)
            text += f" - {multiply(-coefficient, part).text(1)}" if coefficient < 0 else f" + {child.text(1)}"
        return f"({text})" if precedence > 0 else text


class Product(Expression):
    """A product of factors."""

    def __init__(self, children: tuple[Expression, ...]):
        self.children = children

    @cached_property
    def sign(self) -> int | None:
        sign = 1
        for child in self.children:
            if child.sign is None:
                return None
            sign *= child.sign
        return sign

    @cached_property
    def nonnegative(self) -> bool:
        return all(child.nonnegative for child in self.children)

    def evaluate(self, env: Environment) -> Any:
        return math.prod((child.evaluate(env) for child in self.children[1:]), start=self.children[0].evaluate(env))

    def log_evaluate(self, env: Environment) -> Any:
        if not self.nonnegative and any(not child.nonnegative and not child.latent_free for child in self.children):
            return jnp.log(self.evaluate(env))
        return sum((child.log_evaluate(env) for child in self.children[1:]), self.children[0].log_evaluate(env))

    def text(self, precedence: int = 0) -> str:
        number, above, below = 1.0, [], []
        for child in self.children:
            if isinstance(child, Power) and isinstance(child.exponent, Constant) and child.exponent.value < 0:
                below.append(power(child.base, -child.exponent.value))
            elif isinstance(child, Constant):
                number *= child.value
            else:
                common, rest = _common_number(child)
                number *= common
                above.append(rest)
        return _product_text(number, above, below, precedence)


class Power(Expression):
    """A base to an exponent."""

    def __init__(self, base: Expression, exponent: Expression):
        self.base = base
        self.exponent = exponent
        self.children = (base, exponent)

    @cached_property
    def sign(self) -> int | None:
        return 1 if self.base.sign == 1 or self._even else None

    @cached_property
    def nonnegative(self) -> bool:
        return self.base.nonnegative or self._even

    @cached_property
    def _even(self) -> bool:
        return isinstance(self.exponent, Constant) and self.exponent.value % 2 == 0

    def evaluate(self, env: Environment) -> Any:
        base = self.base.evaluate(env)
        if isinstance(self.exponent, Constant):
            value = self.exponent.value
            return base ** int(value) if value == int(value) else base**value
        return base ** self.exponent.evaluate(env)

    def log_evaluate(self, env: Environment) -> Any:
        if self._even and not self.base.nonnegative:
            return self.exponent.evaluate(env) * jnp.log(jnp.abs(self.base.evaluate(env)))
        exponent = self.exponent.evaluate(env)
        log_base = self.base.log_evaluate(env)
        # 0 ** 0 is 1: an exponent of zero switches the factor off even where its base is zero.
        return jnp.where(exponent == 0, 0.0, exponent * jnp.where(exponent == 0, 0.0, log_base))

    def text(self, precedence: int = 0) -> str:
        if isinstance(self.exponent, Constant) and self.exponent.value < 0:
            text = f"1 / {power(self.base, -self.exponent.value).text(3)}"
            return f"({text})" if precedence > 1 else text
        if isinstance(self.exponent, Constant) and self.exponent.value == 0.5:
            return f"sqrt({self.base.text()})"
        text = f"{self.base.text(4)}^{self.exponent.text(3)}"
        return f"({text})" if precedence > 3 else text


class Call(Expression):
    """A named function of one argument."""

    def __init__(self, name: str, argument: Expression):
        self.name = name
        self.argument = argument
        self.children = (argument,)

    def _label(self) -> Any:
        return self.name

    @cached_property
    def sign(self) -> int | None:
        return 1 if self.nonnegative else None

    @cached_property
    def nonnegative(self) -> bool:
        return self.name in ("sigmoid", "exp", "normal_cdf", "abs", "gamma")

    def evaluate(self, env: Environment) -> Any:
        return _VALUES[self.name](self.argument.evaluate(env))

    def log_evaluate(self, env: Environment) -> Any:
        argument = self.argument.evaluate(env)
        if self.name in _LOGARITHMS:
            return _LOGARITHMS[self.name](argument)
        return jnp.log(_VALUES[self.name](argument))

    def text(self, precedence: int = 0) -> str:
        if self.name == "abs":
            return f"|{self.argument.text()}|"
        if self.name == "log" and isinstance(self.argument, Call) and precedence < 3:
            return f"log {self.argument.text()}"
        return f"{_SYMBOLS.get(self.name, self.name)}({self.argument.text()})"


class Comparison(Expression):
    """An indicator: 1 where the comparison of two coefficients holds, else 0."""

    def __init__(self, operator: str, left: Expression, right: Expression):
        if not (left.latent_free and right.latent_free):
            raise ValueError(
                f"a formula compares latent values ({left.text()} {operator} {right.text()}): comparisons are "
                "indicators of the data, and must be free of f."
            )
        self.operator = operator
        self.left = left
        self.right = right
        self.children = (left, right)

    def _label(self) -> Any:
        return self.operator

    @cached_property
    def sign(self) -> int | None:
        return 1

    @cached_property
    def nonnegative(self) -> bool:
        return True

    def evaluate(self, env: Environment) -> Any:
        left, right = self.left.evaluate(env), self.right.evaluate(env)
        return _COMPARISONS[self.operator](left, right).astype(jnp.result_type(float))

    def text(self, precedence: int = 0) -> str:
        sign = {"==": "=", "!=": "≠", "<": "<", "<=": "≤"}[self.operator]
        return f"[{self.left.text()} {sign} {self.right.text()}]"


class Reduction(Expression):
    """The sum or the product over the latents."""

    is_vector = False  # type: ignore[assignment]

    def __init__(self, operator: str, argument: Expression):
        self.operator = operator
        self.argument = argument
        self.children = (argument,)

    def _label(self) -> Any:
        return self.operator

    @cached_property
    def sign(self) -> int | None:
        return self.argument.sign if self.operator == "sum" else (1 if self.argument.sign == 1 else None)

    @cached_property
    def nonnegative(self) -> bool:
        return self.argument.nonnegative

    def evaluate(self, env: Environment) -> Any:
        reduce = jnp.sum if self.operator == "sum" else jnp.prod
        return reduce(self.argument.evaluate(env), axis=-1, keepdims=True)

    def log_evaluate(self, env: Environment) -> Any:
        if not self.argument.nonnegative:
            return jnp.log(self.evaluate(env))
        logs = self.argument.log_evaluate(env)
        if self.operator == "sum":
            return jax.nn.logsumexp(logs, axis=-1, keepdims=True)
        return jnp.sum(logs, axis=-1, keepdims=True)

    def text(self, precedence: int = 0) -> str:
        symbol = "Σ_c" if self.operator == "sum" else "Π_c"
        text = f"{symbol} {self.argument.text(2)}"
        return f"({text})" if precedence > 1 else text


_COMPARISONS: dict[str, Any] = {"==": jnp.equal, "!=": jnp.not_equal, "<": jnp.less, "<=": jnp.less_equal}
_VALUES = {
    "sigmoid": jax.nn.sigmoid,
    "exp": jnp.exp,
    "log": jnp.log,
    "abs": jnp.abs,
    "normal_cdf": jsp.ndtr,
    "gamma": lambda x: jnp.exp(jsp.gammaln(x)),
}
_LOGARITHMS: dict[str, Any] = {
    "sigmoid": jax.nn.log_sigmoid,
    "exp": lambda x: x,
    "normal_cdf": jsp.log_ndtr,
    "gamma": jsp.gammaln,
}
_SYMBOLS = {"sigmoid": "σ", "normal_cdf": "Φ", "gamma": "Γ"}


_ROOTS = {"sqrt(2 π)": math.sqrt(2.0 * math.pi), "sqrt(π)": math.sqrt(math.pi)}


def _number(value: float) -> str:
    return _product_text(value, [], [], 0)


def _plain(value: float) -> tuple[str, str] | None:
    """A number as numerator and denominator, where it is short that way."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value)), ""
    for denominator in (2, 3, 4, 6, 8):
        numerator = value * denominator
        if abs(numerator) < 16 and math.isclose(numerator, round(numerator), rel_tol=1e-15):
            return str(round(numerator)), str(denominator)
    return (text, "") if float(text := f"{value:.6g}") == value else None


def _fraction(value: float) -> tuple[str, list[str]]:
    """A number >= 0 as a numerator and the factors of a denominator."""
    plain = _plain(value)
    if plain is not None:
        return plain[0], [plain[1]] if plain[1] else []
    for root, root_value in _ROOTS.items():
        eighths = 8.0 * value * root_value
        whole = round(eighths)
        plain = _plain(whole / 8.0) if whole and math.isclose(eighths, whole, rel_tol=1e-14) else None
        if plain is not None:
            return plain[0], [part for part in (plain[1], root) if part]
    return f"{value:.6g}", []


def _common_number(expression: Expression) -> tuple[float, Expression]:
    """Write a sum whose terms share the size of their coefficients as that number times a sum."""
    if not isinstance(expression, Sum):
        return 1.0, expression
    coefficients = [split_number(child)[0] for child in expression.children]
    number = abs(coefficients[0]) * (1.0 if max(coefficients) > 0 else -1.0)
    if number == 1.0 or {abs(coefficient) for coefficient in coefficients} != {abs(number)}:
        return 1.0, expression
    return number, Sum(tuple(multiply(1.0 / number, child) for child in expression.children))


def _product_text(number: float, above: list[Expression], below: list[Expression], precedence: int) -> str:
    """The text of number * above / below, a sum over the latents last."""
    numerator, under = _fraction(abs(number))
    above = sorted(above, key=lambda factor: (isinstance(factor, Reduction), not isinstance(factor, ParameterSymbol)))
    divided = bool(under or below)
    over = [numerator] if numerator != "1" or not above else []
    # What follows a sum over the latents would be read as summed too.
    open_ended = [isinstance(f, Reduction) and f is above[-1] and not divided for f in above]
    over += [factor.text(1 if last else 2) for factor, last in zip(above, open_ended, strict=True)]
    text = " ".join(over)
    if not above and not below and len(under) == 1 and not under[0].startswith("sqrt"):
        text += f"/{under[0]}"
    elif divided:
        single = len(under) + len(below) == 1
        under += [factor.text((1 if isinstance(factor, Reduction) else 3) if single else 2) for factor in below]
        text += f" / {under[0]}" if single else f" / ({' '.join(under)})"
    text = f"-{text}" if number < 0 else text
    several = divided or len(over) > 1 or any(open_ended)
    bracketed = (
        (precedence > 0 and number < 0)
        or (precedence > 1 and (divided or any(open_ended)))
        or (precedence > 2 and several)
    )
    return f"({text})" if bracketed else text


def _index(position: Any, size: int) -> Expression:
    if isinstance(position, Constant) and position.value == int(position.value):
        position = int(position.value)
    if isinstance(position, Expression):
        if not position.latent_free or position.is_vector:
            raise ValueError(f"f is indexed by {position.text()}: an index is a whole number or a function of y alone.")
        return Selected(position, size)
    if isinstance(position, bool) or not isinstance(position, int):
        raise ValueError(f"f is indexed by {position!r}: an index is a whole number or a function of y alone.")
    if not -size <= position < size:
        raise ValueError(
            f"the formula uses f[{position}], but the model has {size} latent GP{'s' if size > 1 else ''}: "
            f"give it a GP with size={abs(position) + (position >= 0)} or as many GPs in a list."
        )
    return Latent(position % size, size)


def as_expression(value: Any) -> Expression:
    """Turn a number into a Constant and leave an expression as it is; TypeError for anything else."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
            return Constant(value.item())
        raise TypeError(
            f"a formula contains {value!r} of type {type(value).__name__}: use numbers, y, f, parameters and the "
            "functions pgm.sigmoid, pgm.exp, pgm.log, pgm.sqrt, pgm.sum, pgm.prod, pgm.normal_pdf, pgm.normal_cdf, "
            "pgm.gamma and pgm.positions."
        )
    return Constant(value)


def split_number(expression: Expression) -> tuple[float, Expression]:
    """Write an expression as number times rest."""
    if isinstance(expression, Constant):
        return expression.value, Constant(1.0)
    if isinstance(expression, Product) and isinstance(expression.children[0], Constant):
        rest = expression.children[1:]
        return expression.children[0].value, rest[0] if len(rest) == 1 else Product(rest)
    return 1.0, expression


def add(*operands: Operand) -> Expression:
    """A sum, with like terms collected."""
    collected: dict[tuple, tuple[float, Expression]] = {}
    pending = [as_expression(operand) for operand in operands]
    while pending:
        term = pending.pop(0)
        if isinstance(term, Sum):
            pending[:0] = term.children
            continue
        coefficient, rest = split_number(term)
        previous = collected.get(rest.key, (0.0, rest))[0]
        collected[rest.key] = (previous + coefficient, rest)
    terms = tuple(multiply(c, rest) for c, rest in collected.values() if c != 0.0)
    if not terms:
        return Constant(0.0)
    return terms[0] if len(terms) == 1 else Sum(terms)


def multiply(*operands: Operand) -> Expression:
    """A product, with numbers and equal bases collected."""
    number = 1.0
    collected: dict[tuple, tuple[Expression, Expression]] = {}
    pending = [as_expression(operand) for operand in operands]
    while pending:
        factor = pending.pop(0)
        if isinstance(factor, Product):
            pending[:0] = factor.children
        elif isinstance(factor, Constant):
            number *= factor.value
        else:
            base, exponent = (factor.base, factor.exponent) if isinstance(factor, Power) else (factor, Constant(1.0))
            held = collected.get(base.key)
            collected[base.key] = (base, exponent if held is None else add(held[1], exponent))
    if number == 0.0:
        return Constant(0.0)
    factors: list[Expression] = []
    for base, exponent in collected.values():
        factor = power(base, exponent)
        if isinstance(factor, Constant):
            number *= factor.value
        else:
            factors.append(factor)
    if not factors:
        return Constant(number)
    if number != 1.0:
        if len(factors) == 1 and isinstance(factors[0], Sum):
            return add(*(multiply(number, term) for term in factors[0].children))
        factors.insert(0, Constant(number))
    return factors[0] if len(factors) == 1 else Product(tuple(factors))


def power(base: Operand, exponent: Operand) -> Expression:
    """A power; nested powers are merged only where that is an identity."""
    base, exponent = as_expression(base), as_expression(exponent)
    if isinstance(exponent, Constant):
        if exponent.value == 0.0:
            return Constant(1.0)
        if exponent.value == 1.0:
            return base
        if isinstance(base, Constant) and (base.value > 0 or exponent.value == int(exponent.value)):
            if base.value == 0.0 and exponent.value < 0:
                raise ValueError("the formula divides by zero.")
            return Constant(base.value**exponent.value)
    if isinstance(base, Constant) and base.value == 1.0:
        return base
    whole = isinstance(exponent, Constant) and exponent.value == int(exponent.value)
    if isinstance(base, Power) and (whole or base.base.nonnegative):
        return power(base.base, multiply(base.exponent, exponent))
    if isinstance(base, Product) and (whole or base.nonnegative):
        return multiply(*(power(factor, exponent) for factor in base.children))
    if isinstance(base, Call) and base.name == "exp" and not whole and exponent.latent_free:
        return exp(multiply(exponent, base.argument))
    return Power(base, exponent)


def sigmoid(z: Operand) -> Expression:
    """The logistic function 1 / (1 + exp(-z))."""
    return Call("sigmoid", as_expression(z))


def exp(x: Operand) -> Expression:
    """The exponential function."""
    return Call("exp", as_expression(x))


def log(x: Operand) -> Expression:
    """The natural logarithm."""
    return Call("log", as_expression(x))


def sqrt(x: Operand) -> Expression:
    """The square root."""
    return power(x, 0.5)


def absolute(x: Operand) -> Expression:
    """The absolute value, also written ``abs(x)``."""
    return Call("abs", as_expression(x))


def normal_cdf(z: Operand) -> Expression:
    """The standard normal distribution function Φ(z)."""
    return Call("normal_cdf", as_expression(z))


def normal_pdf(x: Operand, mean: Operand, scale: Operand) -> Expression:
    """The normal density of ``x`` with a mean and a standard deviation."""
    scale = as_expression(scale)
    deviation = add(x, multiply(-1.0, mean))
    squared = multiply(power(deviation, 2.0), power(scale, -2.0))
    return multiply(1.0 / math.sqrt(2.0 * math.pi), power(scale, -1.0), exp(multiply(-0.5, squared)))


def gamma(x: Operand) -> Expression:
    """The gamma function Γ(x) of a coefficient, for normalising constants."""
    return Call("gamma", as_expression(x))


def positions(f: Expression) -> Expression:
    """The positions 0, 1, ..., L - 1 of the latents in ``f``, as a vector of coefficients."""
    if isinstance(f, Latents):
        return Positions(f.size)
    if isinstance(f, Latent) and f.size == 1:
        return Constant(0.0)
    raise ValueError(f"positions takes the vector of latents f; got {f!r}.")


def sum_(x: Operand | Iterable[Operand]) -> Expression:
    """The sum over the latents of a vector, or of a Python sequence of expressions."""
    return _reduce("sum", x)


def prod(x: Operand | Iterable[Operand]) -> Expression:
    """The product over the latents of a vector, or of a Python sequence of expressions."""
    return _reduce("prod", x)


def _reduce(operator: str, x: Any) -> Expression:
    if isinstance(x, (list, tuple)) or (not isinstance(x, Expression) and isinstance(x, Iterable)):
        parts = [_reduce(operator, part) for part in x]
        return add(*parts) if operator == "sum" else multiply(*parts)
    expression = as_expression(x)
    return Reduction(operator, expression) if expression.is_vector else expression
