"""The grammar of regression formulas: a response, linear terms, and terms that are GPs."""

import ast
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

# Calls that are terms by themselves; everything else is a linear term.
SPECIAL = ("gp", "s", "ar1", "offset")


class Call(NamedTuple):
    """A term such as ``gp(lon, lat, cov="matern32")``: its name, arguments as text, options and text."""

    name: str
    arguments: tuple[str, ...]
    options: dict[str, Any]
    text: str


class Group(NamedTuple):
    """A term (1 | factor), (0 + slope | factor), or (1 + slope | factor) with both, correlated."""

    factor: str
    slope: str | None
    text: str
    is_correlated: bool = False


class Parsed(NamedTuple):
    """The parts of a formula; ``linear`` is the right-hand side of the linear terms."""

    response: str
    linear: str
    calls: tuple[Call, ...]
    groups: tuple[Group, ...]


def parse_all(formulas: Any) -> dict[int, Parsed]:
    """The parts of a formula, and of further ones for other predictors, as in ``"f[1] ~ x"``, by predictor."""
    texts = [formulas] if isinstance(formulas, str) else list(formulas) if isinstance(formulas, list | tuple) else []
    parsed = [parse(text) for text in texts or [formulas]]
    by_predictor = {0: parsed[0]}
    for text, other in zip(texts[1:], parsed[1:], strict=True):
        name = re.fullmatch(r"f\[(\d+)\]", other.response)
        if name is None or int(name[1]) in by_predictor:
            raise ValueError(
                f"formula: after the first, formulas are of further latents of the family, each once, as in "
                f"'f[1] ~ x'; got {text!r}."
            )
        by_predictor[int(name[1])] = other
    return by_predictor


def parse(formula: str) -> Parsed:
    """The parts of a formula ``response ~ term + term``; ValueError for what is not one."""
    if not isinstance(formula, str) or len(sides := _split(formula, "~")) != 2 or not all(map(str.strip, sides)):
        raise ValueError(f"formula must be text such as 'y ~ x + gp(t) + (1|group)'; got {formula!r}.")
    response, right = (side.strip() for side in sides)
    linear, calls, groups = "1", [], []
    for sign, chunk in _chunks(right):
        name = _special(chunk)
        is_group = chunk.startswith("(") and chunk.endswith(")") and "|" in chunk
        if (name or is_group) and sign == "-":
            raise ValueError(f"formula: the term {chunk} cannot be subtracted; leave it out.")
        if name:
            call = _call(chunk, name)
            calls.append(call)
            # A smooth is a GP beside a line.
            linear += f" + {call.arguments[0]}" if name == "s" else ""
        elif is_group:
            groups += _groups(chunk)
        else:
            if re.search(r"\b(gp|s|ar1|offset)\s*\(", chunk) or _split(chunk, "|")[1:]:
                raise ValueError(
                    f"formula: in {chunk}, gp, s, ar1, offset and (1|g) must be terms by themselves. For a function of "
                    "each level use by=, as in gp(x, by=g)."
                )
            linear += f" {sign} {chunk}"
    return Parsed(response, linear, tuple(calls), tuple(groups))


def _split(text: str, separator: str) -> list[str]:
    """Text split at a character outside parentheses and quotes."""
    pieces, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"`":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        if character == separator and depth == 0 and not quote:
            pieces.append("")
        else:
            pieces[-1] += character
    if depth or quote:
        raise ValueError(f"formula: parentheses or quotes do not match in {text!r}.")
    return pieces


def _chunks(text: str) -> Iterator[tuple[str, str]]:
    """The terms with their signs."""
    for part in _split(text, "+"):
        for number, chunk in enumerate(_split(part, "-")):
            if chunk.strip():
                yield "+" if number == 0 else "-", chunk.strip()


def _special(chunk: str) -> str | None:
    """The name of a call that is the whole term."""
    match = re.match(r"(\w+)\s*\(", chunk)
    if match is None or match[1] not in SPECIAL or not chunk.endswith(")"):
        return None
    inside = chunk[match.end() - 1 :]
    return match[1] if _closes_at_end(inside) else None


def _closes_at_end(text: str) -> bool:
    depth = 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return place == len(text) - 1
    return False


def _call(chunk: str, name: str) -> Call:
    try:
        node = ast.parse(chunk, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"formula: {chunk} cannot be read ({error.msg}).") from error
    assert isinstance(node, ast.Call)
    arguments = tuple(ast.unparse(argument) for argument in node.args)
    options = {keyword.arg: _value(keyword.value) for keyword in node.keywords if keyword.arg}
    if not arguments:
        raise ValueError(f"formula: {chunk} needs a column, as in {name}(x).")
    return Call(name, arguments, options, chunk)


def _value(node: ast.expr) -> Any:
    """A literal, or the text of a name."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _groups(chunk: str) -> list[Group]:
    """The terms of ``(effects | factor)`` or ``(effects || factor)``."""
    inner = chunk[1:-1]
    uncorrelated = "||" in inner
    effects, _, factor = (part.strip() for part in inner.partition("||" if uncorrelated else "|"))
    names = [part.strip() for part in effects.split("+")]
    slopes = [name for name in names if name not in ("0", "1")]
    has_intercept = "0" not in names
    if not factor or not effects:
        raise ValueError(f"formula: {chunk} must have effects and a factor, as in (1|group).")
    is_correlated = bool(slopes) and has_intercept and not uncorrelated
    if is_correlated and len(slopes) > 1:
        raise ValueError(
            f"formula: {chunk} has correlations between several slopes, which are not available. Use "
            f"({effects} || {factor}) for independent ones."
        )
    factors = [factor]
    if "/" in factor:
        outer, *others = (part.strip() for part in factor.split("/"))
        factors = [outer]
        for other in others:
            factors.append(f"{factors[-1]}:{other}")
    if is_correlated:
        return [Group(one, slopes[0], f"(1 + {slopes[0]}|{one})", True) for one in factors]
    return [
        Group(one, slope, f"(1|{one})" if slope is None else f"(0 + {slope}|{one})")
        for one in factors
        for slope in ([None] if has_intercept else []) + slopes
    ]
