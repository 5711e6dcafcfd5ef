"""The grammar of regression formulas: a response, linear terms, and terms that are GPs."""

import ast
import re
from typing import Any, NamedTuple

import pandas as pd

from pgmodels.regression.expressions import (
    REMEDIES,
    TOKEN,
    Computed,
    FormulaExpression,
    expression,
    quoted,
    shortened,
    tree,
)

# Calls that are terms by themselves; everything else is a linear term.
SPECIAL = ("gp", "s", "te", "ti", "ar1", "rw1", "rw2", "car", "icar", "bym2", "offset")
# Those of which products are processes too.
PROCESSES = ("gp", "ar1", "rw1", "rw2", "car", "icar", "bym2")
# Names before a parenthesis that are a response of several columns, not functions, with the numbers of columns.
_RESPONSES = {"p": (2, 2), "Surv": (1, 3), "c": (1, 99)}
_WRITTEN = {
    "cbind": "cbind(successes, failures) is written p(successes, trials).",
    "p": "write p(successes, trials).",
    "c": "write c(y, a), with further columns of y.",
    "Surv": "write Surv(time, event), Surv(entry, exit, event), Surv(lower, upper, type='interval2') or "
    "Surv(time, time2, code, type='interval').",
}


class TermCall(NamedTuple):
    """A term such as ``gp(lon, lat, cov="matern32")``: its name, arguments, options and text."""

    name: str
    arguments: tuple[FormulaExpression, ...]
    options: dict[str, Any]
    text: str


class By(NamedTuple):
    """The column of ``by``, and whether it is written as C(g), of levels, or as num(g), of numbers."""

    column: FormulaExpression
    marker: str | None = None


class Group(NamedTuple):
    """A term (effects | factor) of products of factors, () for the intercept, which may be correlated.

    The factor is of the combinations of the levels of ``columns``, or of the members that they all are: gr(g, cov=A)
    and mm(g1, g2). ``covariance`` is the name of the levels' covariance, and effects of a ``by`` have its levels.
    """

    columns: tuple[str, ...]
    effects: tuple[tuple[FormulaExpression, ...], ...]
    text: str
    is_correlated: bool = False
    covariance: str | None = None
    of_members: bool = False
    by: str | None = None


class Observed(NamedTuple):
    """A response: the name of its call or "column", its arguments, the level that is modelled, options and text.

    ``weights`` is the column of its weights, where the formula has them.
    """

    kind: str
    arguments: tuple[FormulaExpression, ...]
    level: Any
    options: dict[str, Any]
    text: str
    weights: str | None = None

    @property
    def names(self) -> list[str]:
        """The columns that it reads, among other names."""
        return [name for one in self.arguments for name in one.names]


class Parsed(NamedTuple):
    """The right-hand side of a formula; ``linear`` are products of factors, () for the intercept."""

    linear: tuple[tuple[FormulaExpression, ...], ...] = ((),)
    calls: tuple[TermCall, ...] = ()
    groups: tuple[Group, ...] = ()

    @property
    def names(self) -> list[str]:
        """The columns that it reads, among other names."""
        expressions = [factor for product in self.linear for factor in product]
        expressions += [argument for call in self.calls for argument in call.arguments]
        expressions += [factor for group in self.groups for product in group.effects for factor in product]
        names = [name for one in expressions for name in one.names]
        names += [call.options["by"].column for call in self.calls if "by" in call.options]
        return [*names, *(name for group in self.groups for name in group.columns)]


def parse_all(formulas: object) -> tuple[Observed, dict[int | str, Parsed]]:
    """Return the response, and the terms of each formula by its latent's number or its parameter's name."""
    texts = [formulas] if not isinstance(formulas, list | tuple) else list(formulas)
    if not texts:
        raise ValueError(f"formula must be text such as 'y ~ x + gp(t) + (1|group)'; got {formulas!r}.")
    response, first = parse(texts[0])
    by_predictor: dict[int | str, Parsed] = {0: first}
    for text in texts[1:]:
        target, second = _sides(text)
        name = re.fullmatch(r"f\[(\d{1,4})\]|([A-Za-z]\w*)", target)
        key = None if name is None else name[2] or int(name[1])
        if key is None or key in by_predictor:
            raise ValueError(
                "formula: after the first, formulas are of parameters or further latents of the family, each once, as "
                f"in 'sigma ~ x' or 'f[1] ~ x'; got {text!r}."
            )
        by_predictor[key] = _Terms(second).read()
    return response, by_predictor


def parse(formula: object) -> tuple[Observed, Parsed]:
    """Return the response and the terms of ``response ~ term + term``; ValueError for what is not a formula."""
    response, terms = _sides(formula)
    return read_response(response), _Terms(terms).read()


class _Token(NamedTuple):
    kind: str
    text: str
    start: int = 0
    end: int = 0


_END = _Token("end", "the end")


def _tokens(text: str) -> list[_Token]:
    matches = [match for match in TOKEN.finditer(text) if match.lastgroup != "space"]
    return [_Token(str(match.lastgroup), match[0], match.start(), match.end()) for match in matches]


def _sides(formula: object) -> tuple[str, str]:
    """The text on either side of ~; ValueError for a formula without two, or with brackets that do not match."""
    if isinstance(formula, str):
        expected, places = [], []
        for token in _tokens(formula):
            if token.text in ("(", "[", "{"):
                expected.append({"(": ")", "[": "]", "{": "}"}[token.text])
            elif token.text in (")", "]", "}"):
                if not expected or expected.pop() != token.text:
                    expected = [""]
                    break
            elif token.text in ("'", '"', "`"):
                expected = [""]
                break
            elif token.text == "~" and not expected:
                places.append(token.start)
        if expected:
            raise ValueError(f"formula: parentheses or quotes do not match in {shortened(formula)!r}.")
        if len(places) == 1:
            sides = formula[: places[0]].strip(), formula[places[0] + 1 :].strip()
            if all(sides):
                return sides
    raise ValueError(f"formula must be text such as 'y ~ x + gp(t) + (1|group)'; got {shortened(repr(formula))}.")


# Products of factors by their names.
Products = dict[frozenset[str], tuple[FormulaExpression, ...]]
_ONE: Products = {frozenset(): ()}


class _Sum(NamedTuple):
    """Products of factors, terms that are GPs, and the number, of terms that are one."""

    products: Products
    gps: list[Any]
    number: str | None = None


class _Terms:
    # Products of factors beyond which a formula is a mistake.
    max_products = 2000

    def __init__(self, text: str):
        self.text, self.tokens, self.place, self.depth = text, _tokens(text), 0, 0

    def read(self) -> Parsed:
        total = self._sum()
        if self._next.text in ("|", "||"):
            raise ValueError(
                f"formula: in {shortened(self.text)}, effects of groups must be in parentheses, as in (1|g)."
            )
        if self._next is not _END:
            raise self._unexpected()
        calls = tuple(gp for gp in total.gps if isinstance(gp, TermCall))
        return Parsed(tuple(total.products.values()), calls, tuple(gp for gp in total.gps if isinstance(gp, Group)))

    @property
    def _next(self) -> _Token:
        return self.tokens[self.place] if self.place < len(self.tokens) else _END

    def _take(self) -> _Token:
        token = self._next
        self.place += 1
        return token

    def _since(self, start: int) -> str:
        return self.text[start : self.tokens[min(self.place, len(self.tokens)) - 1].end]

    def _unexpected(self) -> ValueError:
        token = self._next
        where = f"formula: {token.text} is not expected in {shortened(self.text)}"
        if token.text == ".":
            return ValueError(
                "formula: . for all other columns is not available. Write their names: 'y ~ ' + ' + '.join(columns)."
            )
        if token.text == "[":
            return ValueError(f"{where}: subscripts are not allowed. Compute a column of data.")
        if token.kind == "string":
            return ValueError(f"{where}: a column whose name is not one of Python is written in backticks.")
        if token.text in ("%", "<", ">", "=", "!", "&", "@", "//"):
            return ValueError(f"{where}: write arithmetic and comparisons in I(), as in I(x > 2).")
        return ValueError(f"{where}.")

    def _sum(self) -> _Sum:
        total = _Sum(dict(_ONE), [])
        is_first = True
        while is_first or self._next.text in ("+", "-"):
            start = self._next.start
            is_minus = False
            while self._next.text in ("+", "-"):
                is_minus ^= self._take().text == "-"
            term = self._product()
            text = self._since(start)
            if term.number is not None and float(term.number) not in (0.0, 1.0):
                shift = text if text[0] in "+-" else f"+ {text}"
                raise ValueError(f"formula: {text} is no term. Write a sum of numbers in I(), as in I(x {shift}).")
            products = _ONE if term.number is not None else term.products
            if is_minus and term.gps:
                raise ValueError(f"formula: the term {text.lstrip('-+ ')} cannot be subtracted; leave it out.")
            # 0 is the same as -1.
            if is_minus != (term.number is not None and float(term.number) == 0.0):
                if [product for key, product in products.items() if key and key not in total.products]:
                    raise ValueError(
                        f"formula: {text} leaves out a term that is not there. Write a difference of columns in I(), "
                        "as in I(x - z)."
                    )
                for key in products:
                    total.products.pop(key, None)
            else:
                total.products.update((key, product) for key, product in products.items() if key not in total.products)
                total.gps.extend(term.gps)
            if len(total.products) > self.max_products:
                raise self._too_many()
            is_first = False
        return total

    def _too_many(self) -> ValueError:
        return ValueError(f"formula: {shortened(self.text)} has more than {self.max_products} linear terms.")

    def _product(self) -> _Sum:
        start = self._next.start
        first = self._interaction()
        while self._next.text in ("*", "/"):
            sign = self._take().text
            second = self._interaction()
            self._check_factors(first, second, self._since(start))
            # a / b is a + a:b, with the product of all terms of a.
            outer = first.products if sign == "*" else _joined(list(first.products.values()))
            others = second.products if sign == "*" else {}
            first = _Sum(first.products | others | self._crossed(outer, second.products), [])
        return first

    def _interaction(self) -> _Sum:
        start = self._next.start
        first = self._power()
        while self._next.text in (":", "%in%"):
            self._take()
            second = self._power()
            if len(first.gps) == len(second.gps) == 1 and not (first.products or second.products):
                # The product of two processes of columns, such as areas and times.
                parts, text = (first.gps[0], second.gps[0]), self._since(start)
                for part in parts:
                    if not isinstance(part, TermCall) or part.name not in (*PROCESSES, ":") or "by" in part.options:
                        raise ValueError(
                            f"formula: in {text}, a product is of two of {', '.join(PROCESSES)}, without by."
                        )
                first = _Sum({}, [TermCall(":", (*parts[0].arguments, *parts[1].arguments), {"parts": parts}, text)])
                continue
            self._check_factors(first, second, self._since(start))
            first = _Sum(self._crossed(first.products, second.products), [])
        return first

    def _power(self) -> _Sum:
        start = self._next.start
        base = self._primary()
        while self._next.text in ("**", "^"):
            self._take()
            times = self._take()
            text = self._since(start)
            if (len(base.products) == 1 and not base.gps) or times.kind != "number" or not times.text.isdecimal():
                raise ValueError(
                    f"formula: {text}: a power of a sum of terms has their interactions, as in (a + b)**2. Write the "
                    f"power of a column in I(), as in I(x**2)."
                )
            self._check_factors(base, base, text)
            power = base.products
            for _ in range(1, min(int(times.text[:4]), len(base.products))):
                power = power | self._crossed(power, base.products)
            base = _Sum(power, [])
        return base

    def _check_factors(self, first: _Sum, second: _Sum, text: str) -> None:
        if first.gps or second.gps:
            raise ValueError(f"formula: in {text}, {REMEDIES['gp']}")
        if first.number is not None or second.number is not None:
            raise ValueError(f"formula: write arithmetic in I(): I({text}).")

    def _crossed(self, first: Products, second: Products) -> Products:
        if len(first) * len(second) > 100 * self.max_products:
            raise self._too_many()
        crossed: Products = {}
        for one in first.values():
            for other in second.values():
                crossed |= _joined([one, other])
                if len(crossed) > self.max_products:
                    raise self._too_many()
        return crossed

    def _primary(self) -> _Sum:
        token = self._next
        self.depth += 1
        if self.depth > 20:
            raise ValueError(f"formula: {shortened(self.text)} has too many parentheses in one another.")
        if token.text == "(":
            made = self._parenthesis()
        elif token.text == "{":
            made = _single(expression(tree(self._bracket(self.place)[1:-1])))
        elif token.kind == "number":
            made = _Sum({}, [], self._take().text)
        elif token.kind in ("name", "quoted"):
            following = self.tokens[self.place + 1].text if self.place + 1 < len(self.tokens) else ""
            if token.kind == "name" and following == "(":
                text = f"{token.text}{self._bracket(self.place + 1)}"
                made = self._call(token.text, self.text[token.start : self.tokens[self.place - 1].end], text)
            else:
                self._take()
                made = _single(expression(ast.Name(token.text, ast.Load())))
        else:
            raise self._unexpected()
        if self._next.kind in ("name", "quoted", "string", "number") or self._next.text in ("(", "[", "{"):
            raise self._unexpected()
        self.depth -= 1
        return made

    def _bracket(self, place: int) -> str:
        """The text of the brackets that open at a place, which is moved behind them."""
        start, depth = place, 0
        while depth or place == start:
            depth += (self.tokens[place].text in ("(", "[", "{")) - (self.tokens[place].text in (")", "]", "}"))
            place += 1
        self.place = place
        return self.text[self.tokens[start].start : self.tokens[place - 1].end]

    def _call(self, name: str, source: str, text: str) -> _Sum:
        node = tree(text)
        if name not in SPECIAL:
            return _single(expression(node))
        assert isinstance(node, ast.Call)
        arguments = tuple(expression(argument) for argument in node.args)
        options = {
            keyword.arg: _by(keyword.value, source) if keyword.arg == "by" else _option(keyword.value, source)
            for keyword in node.keywords
            if keyword.arg
        }
        if not arguments or len(options) < len(node.keywords):
            raise ValueError(f"formula: {source} needs a column, as in {name}(x), and options by name.")
        return _Sum({}, [TermCall(name, arguments, options, source)])

    def _parenthesis(self) -> _Sum:
        """Terms in parentheses, or the effects of groups of ``(effects | factor)`` and ``(effects || factor)``."""
        start = self._take().start
        effects = _Sum({}, []) if self._next.text in ("|", "||") else self._sum()
        if self._next.text == ")":
            self._take()
            # The intercept is that of the whole formula.
            return effects._replace(products={key: product for key, product in effects.products.items() if key})
        bar = self._take().text
        if bar not in ("|", "||"):
            self.place -= 1
            raise self._unexpected()
        if (not effects.products and not effects.gps) or self._next.text == ")":
            raise ValueError(
                f"formula: {shortened(self.text[start:])} must have effects and a factor, as in (1|group)."
            )
        factor_start = self._next.start
        factor = self._product()
        if self._next.text != ")":
            raise ValueError(
                f"formula: in {shortened(self.text[start:])}, the factor must be a column, a:b, a*b or a/b; write the "
                "sum of two factors as (1|a) + (1|b)."
            )
        factor_text = self._since(factor_start)
        self._take()
        return _Sum({}, _groups(effects, factor, bar == "||", self._since(start), factor_text))


def _joined(products: list[tuple[FormulaExpression, ...]]) -> Products:
    factors = tuple(dict.fromkeys(factor for product in products for factor in product))
    return {frozenset(factors): factors}


def _single(factor: FormulaExpression) -> _Sum:
    return _Sum({frozenset([factor]): (factor,)}, [])


def _option(node: ast.expr, text: str) -> Any:
    """A literal, a computed number, or the text of a name; ValueError for others."""
    one = expression(node)
    if one.is_name and one not in ("TRUE", "FALSE", "T", "F"):
        return str(one)
    try:
        return Computed(one, {}).values(pd.DataFrame())
    except ValueError as error:
        raise ValueError(
            f"formula: {shortened(one)} in {shortened(text)} is not an option: these are numbers, text and names."
        ) from error


def _by(node: ast.expr, text: str) -> By:
    marker = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("C", "num"):
        marker = node.func.id
        node = node.args[0] if len(node.args) == 1 and not node.keywords else node
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.Name(quoted(node.value), ast.Load())
    if not isinstance(node, ast.Name):
        raise ValueError(
            f"formula: in {shortened(text)}, by must be a column, C(column) for its levels or num(column) for its "
            f"numbers; got {shortened(ast.unparse(node))}. Compute another one as a column of data."
        )
    return By(expression(node), marker)


def _groups(effects: _Sum, factor: _Sum, is_uncorrelated: bool, text: str, factor_text: str) -> list[Group]:
    if effects.gps or factor.gps:
        raise ValueError(f"formula: in {text}, {REMEDIES['gp']}")
    calls = [one.node for product in factor.products.values() for one in product if isinstance(one.node, ast.Call)]
    if len(calls) == 1 and isinstance(calls[0].func, ast.Name) and calls[0].func.id in ("gr", "mm"):
        return _special_groups(effects, calls[0], is_uncorrelated)
    not_columns = [one for product in factor.products.values() for one in product if not one.is_name]
    if not_columns or factor.number is not None:
        raise ValueError(
            f"formula: in {text}, the factor must be a column; got {factor_text}. Its values are levels already, "
            "numbers too; compute another factor as a column of data."
        )
    names = {":".join(quoted(column) for column in product): tuple(product) for product in factor.products.values()}
    return [
        Group(columns, some, f"({_effect(some)}|{name})", not is_uncorrelated)
        for name, columns in names.items()
        for some in _parts(effects, is_uncorrelated)
    ]


def _parts(effects: _Sum, is_uncorrelated: bool) -> list[tuple[tuple[FormulaExpression, ...], ...]]:
    """The effects of each term."""
    products = tuple(effects.products.values())
    return [(one,) for one in products] if is_uncorrelated else [products]


def _effect(products: tuple[tuple[FormulaExpression, ...], ...]) -> str:
    terms = [":".join(map(written, one)) for one in products if one]
    return "1" if not terms else " + ".join(["1" if () in products else "0", *terms])


def _special_groups(effects: _Sum, call: ast.Call, is_uncorrelated: bool) -> list[Group]:
    """The terms of gr(g, cov=A, by=h), of levels with covariances and of other deviations, and of mm(g1, g2)."""
    assert isinstance(call.func, ast.Name)
    columns = tuple(expression(one) for one in call.args)
    options = {str(one.arg): expression(one.value) for one in call.keywords}
    of_members, text, named = call.func.id == "mm", ast.unparse(call), [*columns, *options.values()]
    is_right = len(columns) > 1 and not options if of_members else len(columns) == 1 and set(options) <= {"cov", "by"}
    if not is_right or not all(one.is_name for one in named) or len(set(options)) < len(call.keywords):
        raise ValueError(
            f"formula: {text} must be gr(g), gr(g, cov=A), gr(g, by=h) or mm(g1, g2), of names of columns and, as cov, "
            "of a matrix in context. Members count equally."
        )
    by = options.get("by")
    groups = []
    for some in _parts(effects, is_uncorrelated):
        if by is not None and len(some) > 1:
            raise ValueError(f"formula: effects of {text} are not correlated: write ({_effect(some)}||{text}).")
        effect = _effect(some)
        inner = tuple((by, *product) for product in some) if by is not None else some
        covariance = str(options["cov"]) if "cov" in options else None
        is_correlated = not is_uncorrelated and by is None
        groups.append(Group(columns, inner, f"({effect}|{text})", is_correlated, covariance, of_members, by))
    return groups


def written(one: FormulaExpression) -> str:
    """Return an expression as it is written in a formula."""
    return quoted(one) if one.is_name else one


def read_response(text: str) -> Observed:
    """Return the response of the left-hand side of a formula."""
    node = tree(text)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        kinds = {"trials": "p", "se": "se"}
        calls = [node.right]
        while isinstance(calls[0], ast.BinOp) and isinstance(calls[0].op, ast.Add):
            calls[:1] = [calls[0].left, calls[0].right]
        observed = read_response(ast.unparse(node.left))
        for call in calls:
            name, argument, options = "", None, {}
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and len(call.args) == 1:
                name, argument = call.func.id, expression(call.args[0])
                options = {str(one.arg): _option(one.value, text) for one in call.keywords}
            known = {"sigma"} if name == "se" else set()
            if name == "weights" and not options and argument and argument.is_name and observed.weights is None:
                observed = observed._replace(weights=str(argument))
            elif name in kinds and argument and observed.kind == "column" and set(options) <= known:
                observed = observed._replace(
                    kind=kinds[name], arguments=(*observed.arguments, argument), options=options
                )
            else:
                raise ValueError(
                    f"formula: {text} has {shortened(ast.unparse(call))} after the bar; there are trials(n), se(sd), "
                    "se(sd, sigma=True) and weights(column). Rates are an offset(log()) term, and times "
                    "Surv(time, 1 - censored)."
                )
        return observed._replace(text=text)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("cbind", *_RESPONSES):
        # R's names of the arguments, in their order.
        named = {one.arg: one.value for one in node.keywords} if node.func.id == "Surv" else {}
        arguments = [*node.args, *(named[name] for name in ("time", "time2", "event") if name in named)]
        least, most = _RESPONSES.get(node.func.id, (0, 0))
        others = [
            one for one in node.keywords if one.arg not in named or one.arg not in ("time", "time2", "event", "type")
        ]
        if others or not least <= len(arguments) <= most:
            raise ValueError(f"formula: {text}: {_WRITTEN[node.func.id]}")
        options = {"type": _option(named["type"], text)} if "type" in named else {}
        return Observed(node.func.id, tuple(expression(one) for one in arguments), None, options, text)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        return Observed("column", (expression(node.value),), _option(node.slice, text), {}, text)
    return Observed("column", (expression(node),), None, {}, text)
