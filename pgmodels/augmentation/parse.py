"""The grammar of the lines of a derivation.

Lines are written by ``explain`` and the rules in infix notation: juxtaposition is a product, ``/`` divides the product
before it by the one factor after it, ``f[c]`` is an index where no space precedes the bracket, and ``[y = c]`` by
itself is 1 where the condition holds and 0 elsewhere.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pgmodels.augmentation.notation import (
    END,
    START,
    Applied,
    Big,
    Bracketed,
    Chain,
    Differential,
    Fraction,
    Indexed,
    Name,
    Number,
    Operator,
    Powered,
    Product,
    Tree,
    Words,
    plain,
)

_OPERATORS = {"+", "-", "=", "~", "≥", "≤", "≠", "<", ">", "·", ",", ";", ":", "|", "‖", "...", ",  "}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_TOKEN = re.compile(
    rf"""(?P<space>[ ]+) | (?P<words>{START}[^{END}]*){END}
    | (?P<number>\d+(\.\d+)?(e[+-]?\d+)?) | (?P<big>[ΣΠ]_|∫(_0\^∞)?)
    | (?P<sign>\.\.\.|,[ ]{{2}}|[-+=~≥≤≠<>·,;:|‖^/()\[\]{{}}∂])
    | (?P<name>[^-\s+=~≥≤≠<>·,;:|‖^/()\[\]{{}}∂∫.{START}]+)""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    after_space: bool
    before_space: bool


def parse(line: str) -> Chain:
    """Read a line; ValueError where it is no formula with marked words."""
    parser = _Parser(_tokens(line.replace(END + START, "")))
    chain = parser.chain()
    if parser.token.kind != "end":
        raise ValueError(f"unexpected {parser.token.text!r} in the formula {plain(line)!r}.")
    return chain


def _tokens(line: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(line):
        match = _TOKEN.match(line, at)
        if match is None:
            raise ValueError(f"unexpected {line[at]!r} in the formula {plain(line)!r}.")
        at, kind = match.end(), str(match.lastgroup)
        if kind != "space":
            before = at >= len(line) or line[at] == " "
            found.append(_Token(kind, match[kind], match.start() == 0 or line[match.start() - 1] == " ", before))
    return [*found, _Token("end", "", True, True)]


class _Parser:
    """Recursive descent: a chain of products of powers of atoms."""

    def __init__(self, tokens: list[_Token]):
        self.tokens, self.at = tokens, 0
        # Where the differential that ends the integral being read stands, and where bars were opened.
        self.differential = -1
        self.opened: set[int] = set()

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def take(self, text: str | None = None) -> _Token:
        token = self.token
        if text is not None and token.text != text:
            raise ValueError(f"a formula has {token.text or 'its end'!r} where {text!r} is expected.")
        self.at += 1
        return token

    def chain(self) -> Chain:
        items: list[Tree] = []
        while not self._closes():
            if self.token.kind == "words":
                items.append(Words(self.take().text[1:]))
            elif self.token.text in _OPERATORS and not self._opens_bars():
                prefix = not items or isinstance(items[-1], (Operator, Words))
                items.append(Operator(self.take().text, prefix))
            else:
                items.append(self.product())
        return Chain(tuple(items))

    def product(self) -> Tree:
        factors: list[Tree] = []
        while self._starts_factor():
            factors.append(self.power())
            while self.token.text == "/" and self.token.before_space:
                self.take()
                start = next((i + 1 for i in range(len(factors) - 1, -1, -1) if _is_integral(factors[i])), 0)
                below = self.product() if self.token.kind == "big" else self.power()
                factors[start:] = [Fraction(_product(factors[start:]), below)]
        if not factors:
            raise ValueError(f"a formula has {self.token.text or 'its end'!r} where a factor is expected.")
        return _product(factors)

    def power(self) -> Tree:
        if self.token.kind == "big":
            return self.big()
        base = self.postfix()
        if self.token.text == "^":
            self.take()
            negative = self.token.text == "-" and self.take()
            exponent = self.power()
            return Powered(base, Chain((Operator("-", True), exponent)) if negative else exponent)
        if self.token.text == "/" and not self.token.before_space:
            self.take()
            return Fraction(base, self.postfix())
        return base

    def postfix(self) -> Tree:
        if self.at == self.differential:
            self.differential = -1
            self.tokens[self.at] = replace(self.token, text=self.token.text[1:])
            return Differential(self.postfix())
        tree = self.atom()
        while self.token.text in ("(", "[") and not self.token.after_space and isinstance(tree, (Name, Indexed)):
            if self.token.text == "(" or tree == Name("E"):
                tree = Applied(tree, self.bracket())
            else:
                tree = Indexed(tree, self.bracket().body)
        if tree == Name("log") and self.token.kind == "name" and self.token.after_space:
            return Applied(tree, self.postfix())
        return tree

    def atom(self) -> Tree:
        if self._opens_bars():
            self.opened.add(self.at)
            self.take()
            return Bracketed("|", self.chain(), self.take("|").text)
        if self.token.text in _CLOSING:
            return self.bracket()
        if self.token.text == "∂":
            return Product((Name(self.take().text), self.postfix()))
        if self.token.kind == "number":
            return Number(self.take().text)
        if self.token.kind == "name":
            return Name(self.take().text)
        raise ValueError(f"a formula has {self.token.text or 'its end'!r} where a number or a name is expected.")

    def bracket(self) -> Bracketed:
        opening = self.take().text
        return Bracketed(opening, self.chain(), self.take(_CLOSING[opening]).text)

    def big(self) -> Big:
        text = self.take().text
        if text.startswith("∫"):
            self.differential = self._find_differential()
            return Big("∫", Number("0"), Name("∞")) if len(text) > 1 else Big("∫", None)
        index = self.bracket().body if self.token.text == "{" else self.atom()
        return Big(text[0], index)

    def _find_differential(self) -> int:
        """The last name outside of brackets before the formula ends."""
        depth, found = 0, -1
        for at in range(self.at, len(self.tokens)):
            token = self.tokens[at]
            if token.kind == "words" or (depth == 0 and token.text in (")", "]", ",", ",  ")):
                break
            depth += (token.text in _CLOSING) - (token.text in _CLOSING.values())
            if depth == 0 and token.kind == "name" and token.text.startswith("d") and token.text != "d":
                found = at
        if found < 0:
            raise ValueError("a formula has an integral without the variable that it is over.")
        return found

    def _closes(self) -> bool:
        token = self.token
        return token.kind == "end" or token.text in _CLOSING.values() or self._closes_bars()

    def _closes_bars(self) -> bool:
        return self.token.text == "|" and not self.token.after_space and not self._opens_bars()

    def _opens_bars(self) -> bool:
        """A bar after a space, a sign or what opens, and before a symbol; with spaces on both sides it conditions."""
        if self.token.text != "|" or self.token.before_space:
            return False
        before = self.tokens[self.at - 1].text if self.at else "("
        return self.token.after_space or before in ("(", "[", "-") or self.at - 1 in self.opened

    def _starts_factor(self) -> bool:
        token = self.token
        return token.kind in ("number", "name", "big") or token.text in (*_CLOSING, "∂") or self._opens_bars()


def _is_integral(tree: Tree) -> bool:
    return isinstance(tree, Big) and tree.symbol == "∫"


def _product(factors: Sequence[Tree]) -> Tree:
    return factors[0] if len(factors) == 1 else Product(tuple(factors))
