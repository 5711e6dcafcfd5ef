"""The lines of a derivation: formulas with words among them, and the tree that a line is read into."""

from dataclasses import dataclass
from typing import TypeAlias

# ASCII's control characters for the start and the end of text: no formula and no name contains them.
START, END = "\x02", "\x03"


def words(text: str) -> str:
    """Mark words of a line, to tell them from symbols."""
    return f"{START}{text}{END}"


def plain(line: str) -> str:
    """A line as it is printed."""
    return line.replace(START, "").replace(END, "")


@dataclass(frozen=True)
class Words:
    """Words among symbols."""

    text: str


@dataclass(frozen=True)
class Name:
    """A variable, a parameter or the name of a function."""

    text: str


@dataclass(frozen=True)
class Number:
    """A number."""

    text: str


@dataclass(frozen=True)
class Operator:
    """An operator, a relation or a separator; ``prefix`` where nothing is to the left of it."""

    text: str
    prefix: bool


@dataclass(frozen=True)
class Big:
    """Σ, Π or ∫ with what stands below it, and above it; what it ranges over follows in the product."""

    symbol: str
    below: "Tree | None"
    above: "Tree | None" = None


@dataclass(frozen=True)
class Indexed:
    """A name with an index."""

    base: "Tree"
    index: "Tree"


@dataclass(frozen=True)
class Powered:
    """A base with an exponent."""

    base: "Tree"
    exponent: "Tree"


@dataclass(frozen=True)
class Fraction:
    """A numerator over a denominator."""

    above: "Tree"
    below: "Tree"


@dataclass(frozen=True)
class Bracketed:
    """A formula in brackets, or between the bars of an absolute value."""

    opening: str
    body: "Tree"
    closing: str


@dataclass(frozen=True)
class Applied:
    """A function and its argument, with brackets or, as in log Φ(z), without."""

    function: "Tree"
    argument: "Tree"


@dataclass(frozen=True)
class Differential:
    """The dω that ends an integral over ω."""

    variable: "Tree"


@dataclass(frozen=True)
class Product:
    """Factors side by side."""

    factors: tuple["Tree", ...]


@dataclass(frozen=True)
class Chain:
    """Products with operators and words between them."""

    items: tuple["Tree", ...]


Tree: TypeAlias = (
    Words | Name | Number | Operator | Big | Indexed | Powered | Fraction | Bracketed | Applied | Differential | Product
    | Chain
)  # fmt: skip
