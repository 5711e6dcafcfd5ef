"""Formulas as text and LaTeX."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, dataclass_transform

# Notation trees of formulas: symbols and words, printed as plain text or LaTeX. The functions build trees from
# operands: expressions, numbers, trees or strings (a sign such as ``=``, else a name). Operands that bind less tightly
# than their context are put in brackets.

# One-letter names that are upright as functions: expectations, normal laws, Γ and the normal distribution function.
_UPRIGHT = {"E", "N", "Γ", "Φ"}
SIGNS = {"+", "-", "=", "~", "≥", "≤", "≠", "<", ">", "·", ",", ";", "|", "‖", "..."}


@dataclass_transform(frozen_default=True)
class Tree:
    """A node of a notation tree; its classes are frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class Words(Tree):
    """Words between symbols."""

    text: str


class Name(Tree):
    """A variable, a parameter or the name of a function."""

    text: str


class ParameterName(Name):
    """The name of a parameter of the likelihood, chosen by the user."""


class Number(Tree):
    """A number."""

    text: str


class Operator(Tree):
    """An operator, a relation or a separator; ``prefix`` means that it has no left operand."""

    text: str
    prefix: bool


class Apart(Tree):
    """A separator between formulas in one line."""


class Big(Tree):
    """The sign Σ, Π or ∫ with lower and upper limits; its operand follows among the factors."""

    symbol: str
    below: Tree | None = None
    above: Tree | None = None


class Indexed(Tree):
    """A name with an index."""

    base: Tree
    index: Tree


class Powered(Tree):
    """A base with an exponent."""

    base: Tree
    exponent: Tree


class Fraction(Tree):
    """A numerator over a denominator."""

    above: Tree
    below: Tree


class Bracketed(Tree):
    """A formula in brackets, or between the bars of an absolute value."""

    opening: str
    body: Tree
    closing: str


class Applied(Tree):
    """A function and its argument, with brackets, or without them as in log Φ(z)."""

    function: Tree
    argument: Tree


class Differential(Tree):
    """The dω at the end of an integral over ω."""

    variable: Tree


class Derivative(Tree):
    """The partial derivative ∂B/∂m."""

    of: Tree
    by: Tree


class Factors(Tree):
    """Factors side by side."""

    items: tuple[Tree, ...]


class Chain(Tree):
    """Formulas with operators and words between them."""

    items: tuple[Tree, ...]


class Notated(Protocol):
    """An object that has a notation tree."""

    def notation(self, precedence: int = 0) -> Tree: ...


Part: TypeAlias = Tree | Notated | str | int
APART = Apart()
# The highest precedence of a context in which a tree needs no brackets.
_BINDS: dict[type[Tree], int] = {Chain: 0, Fraction: 1, Factors: 2, Powered: 3}


def words(text: str) -> Words:
    """Return the words of a line."""
    return Words(text)


def tree(part: Part, precedence: int = 0) -> Tree:
    """Return the tree of an operand, in brackets if the context binds as tightly as ``precedence``."""
    if isinstance(part, str):
        return Name(part)
    if isinstance(part, int):
        return Number(str(part))
    if not isinstance(part, Tree):
        return part.notation(precedence)
    binds = 1 if _is_open(part) else _BINDS.get(type(part), precedence)
    return bracketed(part) if precedence > binds else part


def _is_open(part: Part) -> bool:
    """Return whether following factors would look like part of a sum or product."""
    return isinstance(part, Factors) and any(isinstance(item, Big) and item.symbol != "∫" for item in part.items)


def line(*operands: Part) -> Chain:
    """Return a sequence of signs, formulas and words."""
    items: list[Tree] = []
    for i, part in enumerate(operands):
        if isinstance(part, str) and part in SIGNS:
            items.append(Operator(part, prefix=not items or isinstance(items[-1], (Operator, Words))))
            continue
        is_term = _is_sign(operands[i - 1 : i], "+-·") or _is_sign(operands[i + 1 : i + 2], "·")
        operand = tree(part, 1 if is_term else 0)
        items += operand.items if isinstance(operand, Chain) else (operand,)
    return Chain(tuple(items))


def _is_sign(operands: Sequence[Part], signs: str) -> bool:
    return any(isinstance(part, str) and part in signs for part in operands)


def listed(*operands: Part, sign: str = ",") -> Chain:
    """Return operands with a sign between them."""
    return line(*[piece for part in operands for piece in (sign, part)][1:])


def bracketed(part: Part, brackets: str = "()") -> Bracketed:
    """Return an operand in brackets."""
    return Bracketed(brackets[0], tree(part), brackets[1])


def factors(*operands: Part) -> Tree:
    """Return a product, not simplified."""
    items = _flat(*(tree(part, 1 if part is operands[-1] and _is_open(part) else 2) for part in operands))
    return items[0] if len(items) == 1 else Factors(items)


def fraction(above: Part, below: Part) -> Fraction:
    """Return above / below."""
    return Fraction(tree(above, 2), tree(below, 3))


def raised(base: Part, exponent: Part) -> Powered:
    """Return base^exponent."""
    return Powered(tree(base, 4), tree(exponent, 3))


def inverse_power(base: Part, exponent: Part = 1) -> Powered:
    """Return base^-exponent."""
    return Powered(tree(base, 4), Chain((Operator("-", True), tree(exponent, 3))))


def indexed(name: str, index: Part | None) -> Tree:
    """Return name[index], or the name if the index is None."""
    return Name(name) if index is None else Indexed(Name(name), tree(index))


def call(name: str, *arguments: Part) -> Applied:
    """Return name(arguments)."""
    return Applied(Name(name), bracketed(listed(*arguments)))


def density(name: str, variable: Part, *parameters: Part) -> Applied:
    """Return the density name(variable; parameters)."""
    return Applied(Name(name), bracketed(line(variable, ";", listed(*parameters))))


def expectation(variable: Part) -> Applied:
    """Return E[variable]."""
    return Applied(Name("E"), bracketed(variable, "[]"))


def derivative(of: Part, by: Part) -> Derivative:
    """Return ∂of/∂by."""
    return Derivative(tree(of), tree(by))


def over(symbol: str, index: Part, what: Part) -> Factors:
    """Return the sum Σ or the product Π over an index."""
    return Factors((Big(symbol, tree(index)), *_flat(tree(what, 1))))


def integral(integrand: Part, variable: Part, *limits: Part) -> Factors:
    """Return ∫ integrand dvariable, with optional limits."""
    big = Big("∫", *(tree(limit) for limit in limits))
    return Factors((big, *_flat(tree(integrand, 1)), Differential(tree(variable))))


def _flat(*trees: Tree) -> tuple[Tree, ...]:
    return tuple(item for part in trees for item in (part.items if isinstance(part, Factors) else (part,)))


def split_name(text: str) -> tuple[str, str]:
    """Return a name and its subscript: the number or letter of ω2 or B_i, the sign of σ̃₊, or an empty string."""
    if text[-1] in "₊₋":
        return text[:-1], "+" if text[-1] == "₊" else "−"
    match = re.fullmatch(r"([^\W\d_])(?:(\d+)|_([^\W\d_]))", text)
    return (match[1], match[2] or match[3]) if match else (text, "")


def without_brackets(part: Tree) -> Tree:
    """Return a tree without the round brackets that only infix notation needs."""
    return part.body if isinstance(part, Bracketed) and part.opening == "(" else part


def is_word(part: Tree) -> bool:
    """Return whether a factor needs spaces: it begins with a name of several letters or a sign such as Σ."""
    while isinstance(part, (Applied, Powered, Indexed)):
        part = part.function if isinstance(part, Applied) else part.base
    return isinstance(part, Big) or (isinstance(part, Name) and len(split_name(part.text)[0].rstrip("\u0303")) > 1)


def names_in(part: Tree) -> set[str]:
    """Return the names in a tree."""
    return {node.text for node in nodes(part) if isinstance(node, Name)}


def renamed(part: Tree, names: Mapping[str, str]) -> Tree:
    """Return a tree with other names of parameters."""
    if isinstance(part, ParameterName):
        return ParameterName(names.get(part.text, part.text))
    changed: dict[str, Any] = {}
    for field, value in vars(part).items():
        if isinstance(value, tuple):
            changed[field] = tuple(renamed(child, names) for child in value)
        elif isinstance(value, Tree):
            changed[field] = renamed(value, names)
    return replace(part, **changed)  # type: ignore[type-var]


def nodes(part: Tree) -> Iterator[Tree]:
    """Return a tree and all trees in it."""
    yield part
    for value in vars(part).values():
        for child in value if isinstance(value, tuple) else (value,):
            if isinstance(child, Tree):
                yield from nodes(child)


def to_text(tree: Tree) -> str:
    """Return a formula in one line."""
    match tree:
        case Words(text) | Name(text) | Number(text) | Operator(text):
            return text
        case Apart():
            return ", "
        case Big(symbol, below, above):
            if below is None:
                return symbol
            lower = to_text(below) if isinstance(below, Name | Number) else f"{{{to_text(below)}}}"
            return f"{symbol}_{lower}" + ("" if above is None else f"^{to_text(above)}")
        case Indexed(base, index):
            return f"{to_text(base)}[{to_text(index)}]"
        case Powered(base, exponent):
            return f"{to_text(base)}^{to_text(exponent)}"
        case Fraction(above, below):
            # 1/2 is one number and has no spaces.
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
            return _joined(items, to_text, lambda before, after: "" if is_close(before, after) else " ")
    raise NotImplementedError(f"{type(tree).__name__} has no text form.")


def _joined(items: Sequence[Tree], write: Callable[[Tree], str], between: Callable[[Tree, Tree], str]) -> str:
    """Return the written items with the text between neighbours."""
    written = [between(before, item) + write(item) for before, item in itertools.pairwise(items)]
    return "".join([*map(write, items[:1]), *written])


def is_close(before: Tree, after: Tree) -> bool:
    """Return whether two neighbours have no space between them: a sign and its term, or punctuation."""
    if isinstance(before, Operator) and before.prefix and before.text in "+-":
        return True
    if isinstance(before, Words) and before.text.endswith("("):
        return True
    if isinstance(after, Words):
        return after.text[0] in ",.;:)"
    return isinstance(after, Apart) or (isinstance(after, Operator) and after.text in ",;")


# Formulas as LaTeX math, for papers, notebooks and web pages.
# The output requires only the package amsmath; MathJax and KaTeX render it too.

_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
    "ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "σ": "sigma",
    "τ": "tau", "υ": "upsilon", "φ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega", "Γ": "Gamma", "Δ": "Delta",
    "Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
    "∞": "infty",
}  # fmt: skip
_SIGNS = {
    "~": r"\sim", "≥": r"\geq", "≤": r"\leq", "≠": r"\neq", "·": r"\cdot", "|": r"\mid", "‖": r"\parallel",
    "...": r"\ldots",
}  # fmt: skip
_BIG = {"Σ": r"\sum", "Π": r"\prod", "∫": r"\int"}
_COMMANDS = {"exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "max", "min"}
_SPECIAL = re.compile(r"[#$%&_{}]")


def to_latex(tree: Tree) -> str:
    """Return a formula as LaTeX in math mode."""
    match tree:
        case Words(text):
            return rf"\text{{{escaped(text)}}}"
        case Name(text):
            return _name(text)
        case Number(text):
            return rf"\mathrm{{{text}}}" if "e" in text else text
        case Operator(text):
            return _SIGNS.get(text, text)
        case Apart():
            return r",\quad"
        case Big(symbol, below, above):
            lower = "" if below is None else f"_{{{to_latex(below)}}}"
            return _BIG[symbol] + lower + ("" if above is None else f"^{{{to_latex(above)}}}")
        case Indexed(base, index):
            # The number in a name such as ω2 joins the index.
            name, number = split_name(base.text) if isinstance(base, Name) else ("", "")
            before = f"{_name(name)}_{{{number}," if number else f"{to_latex(base)}_{{"
            return f"{before}{to_latex(index)}}}"
        case Powered(base, exponent):
            return f"{to_latex(base)}^{{{to_latex(without_brackets(exponent))}}}"
        case Fraction(above, below):
            return rf"\frac{{{to_latex(without_brackets(above))}}}{{{to_latex(without_brackets(below))}}}"
        case Bracketed(opening, body, closing):
            tall = opening == "|" or any(isinstance(node, Fraction | Big) for node in nodes(body))
            inside = to_latex(body)
            return rf"\left{opening} {inside} \right{closing}" if tall else f"{opening}{inside}{closing}"
        case Applied(function, Bracketed(_, body, _)) if function == Name("sqrt"):
            return rf"\sqrt{{{to_latex(body)}}}"
        case Applied(function, argument):
            between = "" if isinstance(argument, Bracketed) and argument.opening != "|" else " "
            return f"{_function(function)}{between}{to_latex(argument)}"
        case Differential(variable):
            return rf"\mathrm{{d}} {to_latex(variable)}"
        case Derivative(of, by):
            return rf"\frac{{\partial {to_latex(of)}}}{{\partial {to_latex(by)}}}"
        case Factors(items) | Chain(items):
            return _joined(items, to_latex, _between)
    raise NotImplementedError(f"{type(tree).__name__} has no LaTeX form.")


def escaped(text: str) -> str:
    """Return words with LaTeX's special characters escaped."""
    return _SPECIAL.sub(lambda match: f"\\{match[0]}", text)


def _letters(text: str) -> str:
    return "".join(rf"\{_GREEK[letter]} " if letter in _GREEK else escaped(letter) for letter in text).rstrip()


def _name(text: str) -> str:
    base, subscript = split_name(text)
    accented = base.endswith("\u0303")
    letters = _letters(base.rstrip("\u0303"))
    symbol = letters if _is_letter(base) else rf"\mathrm{{{letters}}}"
    symbol = rf"\tilde{{{symbol}}}" if accented else symbol
    return f"{symbol}_{{{subscript.replace('−', '-')}}}" if subscript else symbol


def _is_letter(base: str) -> bool:
    return len(base.rstrip("\u0303")) == 1


def _function(function: Tree) -> str:
    if not isinstance(function, Name) or (function.text not in _UPRIGHT and _is_letter(split_name(function.text)[0])):
        return to_latex(function)
    if function.text in _COMMANDS:
        return rf"\{function.text}"
    letters = _letters(function.text)
    upright = letters.startswith("\\") and function.text in _UPRIGHT  # Γ and Φ are upright by default
    return letters if upright else rf"\operatorname{{{letters}}}"


def _between(before: Tree, after: Tree) -> str:
    """Return the space between two neighbours: none, a word space, a thin space, or TeX's default."""
    if is_close(before, after):
        return ""
    if isinstance(before, Words) or isinstance(after, Words):
        return " \\ "
    if isinstance(before, (Operator, Apart, Big)) or isinstance(after, (Operator, Apart)):
        return " "
    condition = isinstance(after, Bracketed) and after.opening == "["
    thin = condition or isinstance(after, Differential) or is_word(before) or is_word(after)
    return r" \, " if thin else " "
