"""Formulas in infix notation."""

import math

from pgmodels.language.algebra import multiply, power, split_number
from pgmodels.language.expression import Expression
from pgmodels.language.operations import Call, Comparison, Power, Product, Reduction, Sum
from pgmodels.language.symbols import Constant, ParameterSymbol

_FUNCTIONS = {"sigmoid": "σ", "normal_cdf": "Φ", "gamma": "Γ"}
_ROOTS = {"sqrt(2 π)": math.sqrt(2.0 * math.pi), "sqrt(π)": math.sqrt(math.pi)}


def write(expression: Expression, precedence: int = 0) -> str:
    """A number or an operation in infix notation; symbols write themselves."""
    match expression:
        case Constant():
            return _constant(expression, precedence)
        case Sum():
            return _sum(expression, precedence)
        case Product():
            return _product(expression, precedence)
        case Power():
            return _power(expression, precedence)
        case Call():
            return _call(expression, precedence)
        case Comparison():
            return _comparison(expression)
        case Reduction():
            return _reduction(expression, precedence)
    raise NotImplementedError(f"{type(expression).__name__} is a symbol: it needs a method text of its own.")


def _constant(constant: Constant, precedence: int) -> str:
    text = _product_text(constant.value, [], [], 0)
    bracketed = (constant.value < 0 and precedence > 0) or ("/" in text and precedence > 1)
    return f"({text})" if bracketed else text


def _sum(expression: Sum, precedence: int) -> str:
    number, rest = _common_number(expression)
    if number != 1.0:
        return _product_text(number, [rest], [], precedence)
    # A positive term leads: y - f, not -f + y.
    lead = next((i for i, child in enumerate(expression.children) if split_number(child)[0] > 0), 0)
    text = expression.children[lead].text(0)
    for child in expression.children[:lead] + expression.children[lead + 1 :]:
        coefficient, part = split_number(child)
        text += f" - {multiply(-coefficient, part).text(1)}" if coefficient < 0 else f" + {child.text(1)}"
    return f"({text})" if precedence > 0 else text


def _product(product: Product, precedence: int) -> str:
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
    return _product_text(number, above, below, precedence)


def _power(expression: Power, precedence: int) -> str:
    if isinstance(expression.exponent, Constant) and expression.exponent.value < 0:
        text = f"1 / {power(expression.base, -expression.exponent.value).text(3)}"
        return f"({text})" if precedence > 1 else text
    if isinstance(expression.exponent, Constant) and expression.exponent.value == 0.5:
        return f"sqrt({expression.base.text()})"
    text = f"{expression.base.text(4)}^{expression.exponent.text(3)}"
    return f"({text})" if precedence > 3 else text


def _call(call: Call, precedence: int) -> str:
    if call.name == "abs":
        return f"|{call.argument.text()}|"
    if call.name == "log" and isinstance(call.argument, Call) and precedence < 3:
        return f"log {call.argument.text()}"
    return f"{_FUNCTIONS.get(call.name, call.name)}({call.argument.text()})"


def _comparison(comparison: Comparison) -> str:
    sign = {"==": "=", "!=": "≠", "<": "<", "<=": "≤"}[comparison.operator]
    return f"[{comparison.left.text()} {sign} {comparison.right.text()}]"


def _reduction(reduction: Reduction, precedence: int) -> str:
    symbol = "Σ_c" if reduction.operator == "sum" else "Π_c"
    text = f"{symbol} {reduction.argument.text(2)}"
    return f"({text})" if precedence > 1 else text


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
