"""How formulas are written: a tree of symbols and words, from which both plain text and MathML are made.

The functions put one together from parts. A part is an expression, a number, a tree, or a string: a sign such as ``=``,
else a name. Parts that bind less tightly than what is around them are put in brackets.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

SIGNS = {"+", "-", "=", "~", "≥", "≤", "≠", "<", ">", "·", ",", ";", "|", "‖", "..."}


class Tree:
    """A node of a formula as it is written."""


@dataclass(frozen=True)
class Words(Tree):
    """Words among symbols."""

    text: str


@dataclass(frozen=True)
class Name(Tree):
    """A variable, a parameter or the name of a function."""

    text: str


@dataclass(frozen=True)
class Number(Tree):
    """A number."""

    text: str


@dataclass(frozen=True)
class Operator(Tree):
    """An operator, a relation or a separator; ``prefix`` where nothing is to the left of it."""

    text: str
    prefix: bool


@dataclass(frozen=True)
class Apart(Tree):
    """What separates formulas that share a line."""


@dataclass(frozen=True)
class Big(Tree):
    """Σ, Π or ∫ with what stands below it, and above it; what it ranges over follows among the factors."""

    symbol: str
    below: Tree | None = None
    above: Tree | None = None


@dataclass(frozen=True)
class Indexed(Tree):
    """A name with an index."""

    base: Tree
    index: Tree


@dataclass(frozen=True)
class Powered(Tree):
    """A base with an exponent."""

    base: Tree
    exponent: Tree


@dataclass(frozen=True)
class Fraction(Tree):
    """A numerator over a denominator."""

    above: Tree
    below: Tree


@dataclass(frozen=True)
class Bracketed(Tree):
    """A formula in brackets, or between the bars of an absolute value."""

    opening: str
    body: Tree
    closing: str


@dataclass(frozen=True)
class Applied(Tree):
    """A function and its argument, with brackets or, as in log Φ(z), without."""

    function: Tree
    argument: Tree


@dataclass(frozen=True)
class Differential(Tree):
    """The dω that ends an integral over ω."""

    variable: Tree


@dataclass(frozen=True)
class Derivative(Tree):
    """The partial derivative ∂B/∂m."""

    of: Tree
    by: Tree


@dataclass(frozen=True)
class Factors(Tree):
    """Factors side by side."""

    items: tuple[Tree, ...]


@dataclass(frozen=True)
class Chain(Tree):
    """Formulas with operators and words between them."""

    items: tuple[Tree, ...]


class Notated(Protocol):
    """What writes itself as a tree, in brackets where it must be."""

    def notation(self, precedence: int = 0) -> Tree: ...


Part: TypeAlias = Tree | Notated | str | int
APART = Apart()
# The loosest binding around a tree that it needs no brackets in.
_BINDS: dict[type[Tree], int] = {Chain: 0, Fraction: 1, Factors: 2, Powered: 3}


def words(text: str) -> Words:
    """Words of a line."""
    return Words(text)


def tree(part: Part, precedence: int = 0) -> Tree:
    """A part as a tree, in brackets where what is around it binds as tightly as ``precedence``."""
    if isinstance(part, str):
        return Name(part)
    if isinstance(part, int):
        return Number(str(part))
    if not isinstance(part, Tree):
        return part.notation(precedence)
    binds = 1 if _is_open(part) else _BINDS.get(type(part), precedence)
    return bracketed(part) if precedence > binds else part


def _is_open(part: Part) -> bool:
    """Whether what follows would be read as summed too."""
    return isinstance(part, Factors) and any(isinstance(item, Big) and item.symbol != "∫" for item in part.items)


def line(*parts: Part) -> Chain:
    """Signs, formulas and words one after the other."""
    items: list[Tree] = []
    for i, part in enumerate(parts):
        if isinstance(part, str) and part in SIGNS:
            items.append(Operator(part, prefix=not items or isinstance(items[-1], (Operator, Words))))
            continue
        beside = _is_sign(parts[i - 1 : i], "+-·") or _is_sign(parts[i + 1 : i + 2], "·")
        found = tree(part, 1 if beside else 0)
        items += found.items if isinstance(found, Chain) else (found,)
    return Chain(tuple(items))


def _is_sign(parts: Sequence[Part], signs: str) -> bool:
    return any(isinstance(part, str) and part in signs for part in parts)


def listed(*parts: Part, sign: str = ",") -> Chain:
    """Parts with a sign between them."""
    return line(*[piece for part in parts for piece in (sign, part)][1:])


def bracketed(part: Part, brackets: str = "()") -> Bracketed:
    """A part in brackets."""
    return Bracketed(brackets[0], tree(part), brackets[1])


def factors(*parts: Part) -> Tree:
    """A product as it stands, not simplified."""
    found = _flat(*(tree(part, 1 if part is parts[-1] and _is_open(part) else 2) for part in parts))
    return found[0] if len(found) == 1 else Factors(found)


def fraction(above: Part, below: Part) -> Fraction:
    """above / below."""
    return Fraction(tree(above, 2), tree(below, 3))


def raised(base: Part, exponent: Part) -> Powered:
    """base^exponent."""
    return Powered(tree(base, 4), tree(exponent, 3))


def inverse_power(base: Part, exponent: Part = 1) -> Powered:
    """base^-exponent."""
    return Powered(tree(base, 4), Chain((Operator("-", True), tree(exponent, 3))))


def indexed(name: str, index: Part | None) -> Tree:
    """name[index]; the name alone where there is no index."""
    return Name(name) if index is None else Indexed(Name(name), tree(index))


def call(name: str, *arguments: Part) -> Applied:
    """name(arguments)."""
    return Applied(Name(name), bracketed(listed(*arguments)))


def density(name: str, variable: Part, *parameters: Part) -> Applied:
    """The density name(variable; parameters)."""
    return Applied(Name(name), bracketed(line(variable, ";", listed(*parameters))))


def expectation(variable: Part) -> Applied:
    """E[variable]."""
    return Applied(Name("E"), bracketed(variable, "[]"))


def derivative(of: Part, by: Part) -> Derivative:
    """∂of/∂by."""
    return Derivative(tree(of), tree(by))


def over(symbol: str, index: Part, what: Part) -> Factors:
    """The sum Σ or the product Π over an index."""
    return Factors((Big(symbol, tree(index)), *_flat(tree(what, 1))))


def integral(integrand: Part, variable: Part, *limits: Part) -> Factors:
    """∫ integrand dvariable, between the limits where they are given."""
    big = Big("∫", *(tree(limit) for limit in limits))
    return Factors((big, *_flat(tree(integrand, 1)), Differential(tree(variable))))


def _flat(*trees: Tree) -> tuple[Tree, ...]:
    """The factors of products of trees."""
    return tuple(item for part in trees for item in (part.items if isinstance(part, Factors) else (part,)))


def split_name(text: str) -> tuple[str, str]:
    """A name and what stands below it: the number or the letter of ω2 or B_i, the sign of σ̃₊, or nothing."""
    if text[-1] in "₊₋":
        return text[:-1], "+" if text[-1] == "₊" else "−"
    match = re.fullmatch(r"([^\W\d_])(?:(\d+)|_([^\W\d_]))", text)
    return (match[1], match[2] or match[3]) if match else (text, "")


def names_in(part: Tree) -> set[str]:
    """The names in a tree."""
    if isinstance(part, Name):
        return {part.text}
    inside = (child for value in vars(part).values() for child in (value if isinstance(value, tuple) else (value,)))
    return set().union(*(names_in(child) for child in inside if isinstance(child, Tree)))
