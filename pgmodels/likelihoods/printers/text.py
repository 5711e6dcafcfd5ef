"""Formulas as plain text in infix notation."""

from collections.abc import Sequence

from pgmodels.likelihoods.notation import (
    Apart,
    Applied,
    Big,
    Bracketed,
    Chain,
    Derivative,
    Differential,
    Factors,
    Fraction,
    Indexed,
    Name,
    Number,
    Operator,
    Powered,
    Tree,
    Words,
)


def to_text(tree: Tree) -> str:
    """A formula in one line."""
    match tree:
        case Words(text) | Name(text) | Number(text) | Operator(text):
            return text
        case Apart():
            return ", "
        case Big(symbol, below, above):
            return symbol + _limits(below, above)
        case Indexed(base, index):
            return f"{to_text(base)}[{to_text(index)}]"
        case Powered(base, exponent):
            return f"{to_text(base)}^{to_text(exponent)}"
        case Fraction(above, below):
            # 1/2 is one number, and has no spaces.
            slash = "/" if isinstance(above, Number) and isinstance(below, Number) else " / "
            return to_text(above) + slash + to_text(below)
        case Bracketed(opening, body, closing):
            return opening + to_text(body) + closing
        case Applied(function, argument):
            close = isinstance(argument, Bracketed) and argument.opening != "|"
            return f"{to_text(function)}{'' if close else ' '}{to_text(argument)}"
        case Differential(variable):
            return f"d{to_text(variable)}"
        case Derivative(of, by):
            return f"∂{to_text(of)}/∂{to_text(by)}"
        case Factors(items):
            return " ".join(map(to_text, items))
        case Chain(items):
            return _chain(items)
    raise NotImplementedError(f"{type(tree).__name__} has no text form.")


def _limits(below: Tree | None, above: Tree | None) -> str:
    if below is None:
        return ""
    lower = to_text(below) if isinstance(below, (Name, Number)) else f"{{{to_text(below)}}}"
    return f"_{lower}" if above is None else f"_{lower}^{to_text(above)}"


def _chain(items: Sequence[Tree]) -> str:
    text = ""
    for i, item in enumerate(items):
        close = i == 0 or is_close(items[i - 1], item)
        text += to_text(item) if close else f" {to_text(item)}"
    return text


def is_close(before: Tree, after: Tree) -> bool:
    """Whether two neighbours have no space in between: a sign and its term, or anything and punctuation."""
    if isinstance(before, Operator) and before.prefix and before.text in "+-":
        return True
    if isinstance(before, Words) and before.text.endswith("("):
        return True
    if isinstance(after, Words):
        return after.text[0] in ",.;:)"
    return isinstance(after, Apart) or (isinstance(after, Operator) and after.text in ",;")
