"""Infix notation of expressions: signs, order of terms and factors, and brackets."""

import math
from collections.abc import Sequence

from pgmodels.likelihoods.expression import Constant, Expression, ParameterSymbol
from pgmodels.likelihoods.operations import (
    Call,
    Comparison,
    Power,
    Product,
    Reduction,
    Sum,
    multiply,
    power,
    split_number,
)
from pgmodels.likelihoods.printing import (
    Applied,
    Chain,
    Fraction,
    Name,
    Number,
    Operator,
    Tree,
    bracketed,
    call,
    factors,
    fraction,
    line,
    over,
    raised,
    tree,
)

_FUNCTIONS = {"sigmoid": "σ", "normal_cdf": "Φ", "cauchy_cdf": "Cauchy", "gamma": "Γ"}
_SIGNS = {"==": "=", "!=": "≠", "<": "<", "<=": "≤"}
_ROOTS = ((math.sqrt(2.0 * math.pi), call("sqrt", factors(2, "π"))), (math.sqrt(math.pi), call("sqrt", "π")))


def write(expression: Expression, precedence: int = 0) -> Tree:
    """Return the notation tree of a number or an operation; symbols have a method ``notation``."""
    match expression:
        case Constant():
            numerator, under = _fraction(abs(expression.value))
            return tree(_signed(expression.value, _over([numerator], under)), precedence)
        case Sum():
            return _sum(expression, precedence)
        case Product():
            return _product(expression, precedence)
        case Power(base=base, exponent=Constant(value=value)) if value < 0:
            return tree(fraction(1, power(base, -value)), precedence)
        case Power(base=base, exponent=Constant(value=0.5)):
            return call("sqrt", base)
        case Power(base=base, exponent=exponent):
            return tree(raised(base, exponent), precedence)
        case Call(name="abs", argument=argument):
            return bracketed(argument, "||")
        case Call(name="log", argument=Call() as inner) if precedence < 3:
            return Applied(Name("log"), inner.notation())
        case Call(name=name, argument=argument):
            return call(_FUNCTIONS.get(name, name), argument)
        case Comparison():
            return bracketed(line(expression.lhs, _SIGNS[expression.operator], expression.rhs), "[]")
        case Reduction():
            written = over("Σ" if expression.operator == "sum" else "Π", "c", expression.argument.notation(2))
            return tree(written, precedence)
    raise NotImplementedError(f"{type(expression).__name__} is a symbol: its class must define the method notation.")


def _sum(expression: Sum, precedence: int) -> Tree:
    number, rest = _common_number(expression)
    if number != 1.0:
        return _ratio(number, [rest], [], precedence)
    # A positive term comes first: y - f, not -f + y.
    lead = next((i for i, child in enumerate(expression.children) if split_number(child)[0] > 0), 0)
    terms: list[Expression | str] = [expression.children[lead]]
    for child in expression.children[:lead] + expression.children[lead + 1 :]:
        coefficient, rest = split_number(child)
        terms += ["-", multiply(-coefficient, rest)] if coefficient < 0 else ["+", child]
    return tree(line(*terms), precedence)


def _product(product: Product, precedence: int) -> Tree:
    number, above, below = 1.0, [], []
    for child in product.children:
        if isinstance(child, Power) and isinstance(child.exponent, Constant) and child.exponent.value < 0:
            below.append(power(child.base, -child.exponent.value))
        elif isinstance(child, Constant):
            number *= child.value
        else:
            common, rest = _common_number(child)
            number *= common
            above.append(rest)
    return _ratio(number, above, below, precedence)


def _ratio(number: float, above: list[Expression], below: list[Expression], precedence: int) -> Tree:
    """Return number * above / below, with a sum over the latents last."""
    numerator, under = _fraction(abs(number))
    above = sorted(above, key=lambda factor: (isinstance(factor, Reduction), not isinstance(factor, ParameterSymbol)))
    divided = bool(under or below)
    top: list[Tree] = [numerator] if numerator != Number("1") or not above else []
    # After a sum over the latents, a factor would look like part of the summand.
    open_ended = [isinstance(f, Reduction) and f is above[-1] and not divided for f in above]
    top += [factor.notation(1 if last else 2) for factor, last in zip(above, open_ended, strict=True)]
    single = len(under) + len(below) == 1
    under += [factor.notation((1 if isinstance(factor, Reduction) else 3) if single else 2) for factor in below]
    return tree(_signed(number, _over(top, under)), precedence)


def _signed(number: float, size: Tree) -> Tree:
    return Chain((Operator("-", True), size)) if number < 0 else size


def _over(above: Sequence[Tree], below: Sequence[Tree]) -> Tree:
    if not below:
        return factors(*above)
    return Fraction(factors(*above), below[0] if len(below) == 1 else bracketed(factors(*below)))


def _plain(value: float) -> tuple[str, str] | None:
    """Return a number as numerator and denominator, or None if these are not short."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value)), ""
    for denominator in (2, 3, 4, 6, 8):
        numerator = value * denominator
        if abs(numerator) < 16 and math.isclose(numerator, round(numerator), rel_tol=1e-15):
            return str(round(numerator)), str(denominator)
    return (text, "") if float(text := f"{value:.6g}") == value else None


def _fraction(value: float) -> tuple[Number, list[Tree]]:
    """Return a number >= 0 as a numerator and the factors of a denominator."""
    plain, root = _plain(value), []
    for root_value, written in _ROOTS:
        eighths = 8.0 * value * root_value
        rounded = round(eighths)
        if plain is None and rounded and math.isclose(eighths, rounded, rel_tol=1e-14):
            plain = _plain(rounded / 8.0)
            root = [] if plain is None else [written]
    numerator, denominator = (f"{value:.6g}", "") if plain is None else plain
    return Number(numerator), [*([Number(denominator)] if denominator else []), *root]


def _common_number(expression: Expression) -> tuple[float, Expression]:
    """Write a sum as a number times a sum, if all coefficients have this absolute value."""
    if not isinstance(expression, Sum):
        return 1.0, expression
    coefficients = [split_number(child)[0] for child in expression.children]
    number = abs(coefficients[0]) * (1.0 if max(coefficients) > 0 else -1.0)
    if number == 1.0 or {abs(coefficient) for coefficient in coefficients} != {abs(number)}:
        return 1.0, expression
    return number, Sum(tuple(multiply(1.0 / number, child) for child in expression.children))
