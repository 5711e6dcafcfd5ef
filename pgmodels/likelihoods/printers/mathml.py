"""Formulas as presentation MathML, which browsers render without scripts."""

from collections.abc import Iterator, Sequence
from html import escape
from xml.etree.ElementTree import Element, SubElement, tostring

from pgmodels.likelihoods.notation import (
    UPRIGHT,
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
    is_word,
    split_name,
    without_brackets,
)
from pgmodels.likelihoods.printers.text import to_text

# Lines longer than this may also break before the terms of a sum and before functions.
_LONG = 45
_RELATIONS = {"=", "~", "≥", "≤", "·"}
_SIGNS = {"~": "∼", "-": "−", "...": "…", "|": "∣"}
_SUMS = {"Σ": "∑", "Π": "∏", "∫": "∫"}
_APPLY, _TIMES = "\u2061", "\u2062"


def to_mathml(line: Tree) -> str:
    """A line as HTML: words as text, formulas as <math> elements between which the line may break.

    The result is well-formed XML inside an element.
    """
    pieces = []
    for part in _runs(line.items if isinstance(line, Chain) else (line,)):
        if isinstance(part, Words):
            pieces.append(escape(part.text))
        else:
            chunks = _chunks(part, breaks=len(to_text(line)) > _LONG)
            pieces.append("<wbr/>".join(_math(chunk, first=chunk is chunks[0]) for chunk in chunks))
    return _spaced(pieces)


def _runs(items: Sequence[Tree]) -> Iterator[Words | list[Tree]]:
    """Words, and the runs of symbols between them."""
    run: list[Tree] = []
    for item in items:
        if not isinstance(item, Words):
            run.append(item)
            continue
        if run:
            yield run
        yield item
        run = []
    if run:
        yield run


def _chunks(items: Sequence[Tree], breaks: bool) -> list[list[Tree]]:
    """Chunks of a formula between which a line may break."""
    chunks: list[list[Tree]] = [[]]
    related = False
    for item in items:
        if isinstance(item, Apart):
            chunks[-1].append(item)
            continue
        if isinstance(item, Operator):
            if _breaks_before(item, chunks[-1], breaks):
                chunks.append([])
            related |= item.text in _RELATIONS
            chunks[-1].append(item)
            continue
        if related and chunks[-1] and _is_comma(chunks[-1][-1]):
            chunks.append([])
        for factor in item.items if breaks and isinstance(item, Factors) else (item,):
            if chunks[-1] and not isinstance(chunks[-1][-1], (Operator, Apart, Big)) and _is_long(factor):
                chunks.append([])
            chunks[-1].append(factor)
    return [chunk for chunk in chunks if chunk]


def _breaks_before(operator: Operator, chunk: Sequence[Tree], breaks: bool) -> bool:
    if operator.text in _RELATIONS:
        return len(chunk) > 1 or isinstance(chunk[0], (Applied, Factors, Fraction))
    return breaks and operator.text in "+-" and not operator.prefix


def _is_comma(tree: Tree) -> bool:
    return isinstance(tree, Apart) or (isinstance(tree, Operator) and tree.text == ",")


def _is_long(factor: Tree) -> bool:
    if isinstance(factor, Applied) and isinstance(factor.function, Name):
        return len(factor.function.text) > 1 and factor.function.text != "log"
    return isinstance(factor, Big)


def _spaced(pieces: Sequence[str]) -> str:
    """Words and formulas separated by spaces, except before punctuation."""
    text = ""
    for piece in pieces:
        text += piece if not text or text.endswith("(") or piece[0] in ",.;:)" else f" {piece}"
    return text


def _math(items: Sequence[Tree], first: bool) -> str:
    element = Element("math", displaystyle="true")
    if not (first or isinstance(items[0], (Operator, Apart))):
        SubElement(element, "mspace", width="0.17em")
    _fill(element, items)
    return tostring(element, encoding="unicode")


def _fill(parent: Element, items: Sequence[Tree]) -> None:
    """Append operators and products in order."""
    for i, item in enumerate(items):
        if i and not isinstance(item, (Operator, Apart)) and not isinstance(items[i - 1], (Operator, Apart, Words)):
            _times(parent, items[i - 1], item)
        _write(parent, item)


def _operator(parent: Element, operator: Operator) -> None:
    form = "prefix" if operator.prefix and operator.text in "+-" else "infix"
    attributes = {"form": form}
    if operator.text in ("|", "‖", "·"):
        attributes |= {"lspace": "0.22em", "rspace": "0.22em", "stretchy": "false"}
    SubElement(parent, "mo", attributes).text = _SIGNS.get(operator.text, operator.text)


def _write(parent: Element, tree: Tree) -> None:
    """Append one element for a tree."""
    match tree:
        case Words(text):
            SubElement(parent, "mtext").text = f"{text}\u00a0"
        case Name(text):
            _name(parent, text)
        case Number(text):
            SubElement(parent, "mn").text = text
        case Operator():
            _operator(parent, tree)
        case Apart():
            SubElement(parent, "mo", form="infix").text = ","
            SubElement(parent, "mspace", width="1em")
        case Big():
            _big(parent, tree)
        case Indexed() | Powered():
            _scripts(parent, tree)
        case Fraction(above, below):
            fraction = SubElement(parent, "mfrac")
            _row(fraction, without_brackets(above))
            _row(fraction, without_brackets(below))
        case Bracketed(opening, body, closing):
            _brackets(parent, opening, body, closing)
        case Applied():
            _applied(parent, tree)
        case Differential(variable):
            row = SubElement(parent, "mrow")
            SubElement(row, "mspace", width="0.17em")
            SubElement(row, "mi", mathvariant="normal").text = "d"
            _write(row, variable)
        case Derivative(of, by):
            fraction = SubElement(parent, "mfrac")
            for variable in (of, by):
                row = SubElement(fraction, "mrow")
                SubElement(row, "mo", form="prefix", lspace="0", rspace="0").text = "∂"
                _write(row, variable)
        case Factors(items) | Chain(items):
            _fill(SubElement(parent, "mrow"), items)


def _row(parent: Element, tree: Tree) -> None:
    """Append exactly one element, as a positional child of mfrac, msup and so on."""
    if isinstance(tree, Chain) and len(tree.items) == 1:
        tree = tree.items[0]
    _write(parent, tree)


def _name(parent: Element, text: str) -> None:
    """A symbol with its accent and subscript, if any."""
    base, subscript = split_name(text)
    holder = SubElement(parent, "msub") if subscript else parent
    if base.endswith("\u0303"):
        over = SubElement(holder, "mover", accent="true")
        SubElement(over, "mi").text = base[:-1]
        SubElement(over, "mo", stretchy="false").text = "~"
    else:
        SubElement(holder, "mi").text = base
    if subscript:
        kind = "mn" if subscript.isdecimal() else "mo" if subscript in "+−" else "mi"
        SubElement(holder, kind).text = subscript


def _big(parent: Element, big: Big) -> None:
    kind = "msubsup" if big.symbol == "∫" else "munderover"
    if big.below is None:
        SubElement(parent, "mo").text = _SUMS[big.symbol]
        return
    holder = SubElement(parent, kind if big.above is not None else "munder")
    SubElement(holder, "mo").text = _SUMS[big.symbol]
    _row(holder, big.below)
    if big.above is not None:
        _row(holder, big.above)


def _scripts(parent: Element, tree: Indexed | Powered) -> None:
    base = tree.base
    if isinstance(tree, Indexed):
        _subscript(SubElement(parent, "msub"), base, tree.index)
    elif isinstance(base, Indexed):
        holder = SubElement(parent, "msubsup")
        _subscript(holder, base.base, base.index)
        _row(holder, without_brackets(tree.exponent))
    else:
        holder = SubElement(parent, "msup")
        _row(holder, base)
        _row(holder, without_brackets(tree.exponent))


def _subscript(holder: Element, base: Tree, index: Tree) -> None:
    """A base and its index; the number in a name such as ω2 joins the index."""
    name, number = split_name(base.text) if isinstance(base, Name) else ("", "")
    if not number:
        _row(holder, base)
        _row(holder, index)
        return
    _name(holder, name)
    row = SubElement(holder, "mrow")
    SubElement(row, "mn").text = number
    SubElement(row, "mo").text = ","
    _row(row, index)


def _applied(parent: Element, applied: Applied) -> None:
    if applied.function == Name("sqrt") and isinstance(applied.argument, Bracketed):
        _row(SubElement(parent, "msqrt"), applied.argument.body)
        return
    row = SubElement(parent, "mrow")
    if isinstance(applied.function, Name) and applied.function.text in UPRIGHT:
        SubElement(row, "mi", mathvariant="normal").text = applied.function.text
    else:
        _write(row, applied.function)
    SubElement(row, "mo").text = _APPLY
    if not isinstance(applied.argument, Bracketed):
        SubElement(row, "mspace", width="0.17em")
    _write(row, applied.argument)


def _brackets(parent: Element, opening: str, body: Tree, closing: str) -> None:
    row = SubElement(parent, "mrow")
    SubElement(row, "mo", form="prefix").text = opening
    _fill(row, body.items if isinstance(body, Chain) else (body,))
    SubElement(row, "mo", form="postfix").text = closing


def _times(parent: Element, lhs: Tree, rhs: Tree) -> None:
    """An invisible product sign, with a thin space next to names of several letters and before indicators."""
    if isinstance(lhs, Big) or isinstance(rhs, Differential):
        return
    SubElement(parent, "mo").text = _TIMES
    if is_word(lhs) or is_word(rhs) or (isinstance(rhs, Bracketed) and rhs.opening == "["):
        SubElement(parent, "mspace", width="0.17em")
