"""Sums, products, powers and comparisons of formulas, simplified only by identities."""

from typing import Any

from pgmodels.likelihoods.expression import Expression, Operand
from pgmodels.likelihoods.operations import Call, Comparison, Power, Product, Reduction, Sum
from pgmodels.likelihoods.symbols import Constant, ParameterVector


def as_expression(value: Any) -> Expression:
    """A number as a Constant, an expression unchanged; TypeError or ValueError for anything else."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, ParameterVector):
        raise ValueError(
            f"the formula uses {value.name} as one number, but it has {value.length} entries: give it one number, "
            f"read an entry as {value.name}[0], or put values that differ between data into columns of y."
        )
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
            return as_expression(value.item())
        raise TypeError(
            f"a formula contains {value!r} of type {type(value).__name__}: use numbers, y, f, parameters and the "
            "functions pgm.sigmoid, pgm.exp, pgm.log, pgm.sqrt, pgm.sum, pgm.prod, pgm.normal_pdf, pgm.normal_cdf, "
            "pgm.step, pgm.largest, pgm.gamma and pgm.positions."
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
            previous = collected.get(base.key)
            collected[base.key] = (base, exponent if previous is None else add(previous[1], exponent))
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
    """A power; nested powers are merged only if that is an identity."""
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
    is_integer = isinstance(exponent, Constant) and exponent.value == int(exponent.value)
    if isinstance(base, Power) and (is_integer or base.base.nonnegative):
        return power(base.base, multiply(base.exponent, exponent))
    if isinstance(base, Power) and base.is_even and isinstance(exponent, Constant):
        # The root of a square is |z|, whose kink other modules recognise.
        return power(absolute(base.base), multiply(base.exponent, exponent))
    if isinstance(base, Product) and (is_integer or base.nonnegative):
        return multiply(*(power(factor, exponent) for factor in base.children))
    if isinstance(base, Call) and base.name == "exp" and not is_integer and exponent.latent_free:
        return Call("exp", multiply(exponent, base.argument))
    return Power(base, exponent)


def absolute(x: Operand) -> Expression:
    """The absolute value, also written ``abs(x)``."""
    return Call("abs", as_expression(x))


def compare(operator: str, lhs: Operand, rhs: Operand) -> Expression:
    """The indicator that is 1 where a comparison of two coefficients holds, else 0."""
    return Comparison(operator, as_expression(lhs), as_expression(rhs))


def rebuild(expression: Expression, children: list[Expression]) -> Expression:
    """The expression with its children replaced; one without children unchanged."""
    match expression:
        case Sum():
            return add(*children)
        case Product():
            return multiply(*children)
        case Power():
            return power(*children)
        case Call():
            return Call(expression.name, *children)
        case Comparison():
            return Comparison(expression.operator, *children)
        case Reduction():
            return Reduction(expression.operator, *children)
    return expression
