"""Expressions of columns in a formula, and hints for formulas of other packages."""

import ast
import keyword
import operator
import re
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd

from pgmodels.data.arrays import days_in, floats_in

# Names of R, brms, mgcv, lme4, INLA, rstanarm and bambi that formulas do not have, and what to write for them.

_BASIS = "write s(x), a Matern52 process beside a line, or a basis bs(x, df=5), cr(x, df=5) or cc(x, df=5)."
_FACTOR = "write C(g) among linear terms, and the name of the column alone in (1|g) and by=."
_SURFACE = "write te(x, z), or s(x) + s(z) + ti(x, z) with main effects of their own."
_GROUPS = "is not available; write an effect of each group, (1|g)."
_ORDINAL = "write the column as numbers in s(x), or as ordered categories in gp(x)."
_SERIES = "write ar1(t) for an autoregression in the predictor, or gp(t, cov='matern32')."
_SPACE = "write icar(area, W), bym2(area, W) or car(area, W) of neighbours, or gp(x, z) of coordinates."
_ERRORS = "is not available: columns have no errors and no missing values."
_DATA = "compute it as a column of data."
_WEIGHTS = "is the argument weights of pgm.formula, as in weights='w'."
_CENSORED = (
    "write Surv(time, event) for right-censored times, Surv(entry, exit, event) for late entries and "
    "Surv(lower, upper, type='interval2') for intervals."
)
_TERM = (
    "gp, s, te, ti, ar1, rw1, rw2, car, icar, bym2, offset and (1|g) must be terms by themselves. For a function of "
    "each level use by=, as in gp(x, by=g)."
)
_RESPONSE = "is for the response, on the left of ~."

# What to write for a function.
REMEDIES: dict[str, str] = {
    **dict.fromkeys(("gp", "s", "te", "ti", "ar1", "rw1", "rw2", "car", "icar", "bym2", "offset"), _TERM),
    **dict.fromkeys(("p", "Surv", "se", "trials"), _RESPONSE),
    **dict.fromkeys(("factor", "as.factor", "as_factor", "category", "ordered", "as.ordered", "relevel"), _FACTOR),
    **dict.fromkeys(("as.numeric", "as.integer", "as.character", "cut", "interaction", "hashed", "lag"), _DATA),
    **dict.fromkeys(("round", "rank", "ntile", "cumsum", "diff", "mean", "sd", "min", "max", "sum", "len"), _DATA),
    **dict.fromkeys(("pd.cut", "np.digitize", "np.round", "np.mean", "np.std", "np.log10p"), _DATA),
    **dict.fromkeys(("ns", "rcs", "rcspline", "ps", "lo", "loess", "lspline", "pspline", "spline"), _BASIS),
    "t2": _SURFACE,
    "hsgp": "write gp(x, k=20), with k inducing inputs.",
    "f": "write rw2(t) or s(x), ar1(t), bym2(area, W), gp(x, z) for spde, gp(t, period=12) for seasonal, and "
    "(1|g) for iid. A function f of your own is passed by context={'f': f}.",
    "fs": "write s(x, g, bs='fs').",
    **dict.fromkeys(("mm", "gr"), "is the factor of effects of groups, as in (1|gr(g, cov=A)) and (1|mm(g1, g2))."),
    **dict.fromkeys(("re", "us", "diag", "cs_group", "fcor"), _GROUPS),
    **dict.fromkeys(("sar", "mrf", "besag", "bym", "mat", "exp_cov"), _SPACE),
    **dict.fromkeys(("ar", "ma", "arma", "ou", "AR1", "corAR1"), _SERIES),
    "cosy": "write (1|g): equal correlations in each group.",
    "unstr": "write (0 + C(t)|g): a covariance of up to 8 times.",
    **dict.fromkeys(("mo",), _ORDINAL),
    **dict.fromkeys(("me", "mi", "subset"), _ERRORS),
    **dict.fromkeys(("weights", "weighted"), _WEIGHTS),
    **dict.fromkeys(("cens", "censored", "truncated", "trunc"), _CENSORED),
    "constrained": "is not available.",
    "rate": "write offset(log(exposure)) among the terms.",
    "cbind": "cbind(successes, failures) is written p(successes, trials).",
    **dict.fromkeys(("prop", "proportion"), "write p(successes, trials)."),
    **dict.fromkeys(("ifelse", "case_when"), "write np.where(x > 2, 1, 0)."),
    "pmin": "write np.minimum(a, b).",
    "pmax": "write np.maximum(a, b).",
    "ln": "write log(x).",
    "np.max": "write np.maximum(a, b) of two columns.",
    "np.min": "write np.minimum(a, b) of two columns.",
    "num": "num(x) is for by=, as in gp(t, by=num(x)).",
    "logit": "write log(x / (1 - x)).",
    **dict.fromkeys(("plogis", "expit"), "write 1 / (1 + exp(-x))."),
    "bf": "write a list of formulas, as in ['y ~ x', 'f[1] ~ z'].",
    "mvbind": "is not available: a formula has one response.",
}
# What to write for an option of gp, s and ar1.
OPTIONS: dict[str, str] = {
    **dict.fromkeys(("m", "c", "df", "num_basis"), "Write k=20 for inducing inputs, which have no basis."),
    **dict.fromkeys(("kernel", "covfn", "cov_function"), "Write gp(x, cov='rbf')."),
    "model": "Write ar1(t), rw1(t), rw2(t), bym2(area, W), gp(x, z) for spde, and (1|g) for iid.",
    "gr": "Equal rows share the value of a process already.",
    "scale": "Lengthscales are in the units of the columns.",
    **dict.fromkeys(("replicate", "group"), "Write by=g."),
    **dict.fromkeys(("p", "q", "time", "t"), "Write ar1(t), of first order, and by=g for a series of each group."),
    **dict.fromkeys(("fx", "sp", "id", "xt", "pc", "knots", "hyper", "prior"), "Priors are the argument priors."),
}
# A covariance of brms and others.
COVARIANCES: dict[str, str] = {
    **dict.fromkeys(("exp_quad", "se", "squared_exponential", "sqexp", "expquad", "gaussian", "RBF"), "rbf"),
    **dict.fromkeys(("exponential", "exp", "matern1/2", "matern0.5", "ou", "Matern12"), "matern12"),
    **dict.fromkeys(("matern", "matern15", "matern3/2", "matern1.5", "Matern32"), "matern32"),
    **dict.fromkeys(("matern25", "matern5/2", "matern2.5", "Matern52"), "matern52"),
    **dict.fromkeys(("cosine", "per", "Periodic"), "periodic"),
}
# A family, in lower case.
FAMILIES: dict[str, str] = {
    **dict.fromkeys(("normal", "norm"), "gaussian"),
    **dict.fromkeys(("t", "student_t", "studentt", "scat"), "student"),
    **dict.fromkeys(("double_exponential", "doubleexponential"), "laplace"),
    **dict.fromkeys(("log_normal", "lognorm"), "lognormal"),
    **dict.fromkeys(("logistic", "binary", "logit", "bernoulli_logit"), "bernoulli"),
    **dict.fromkeys(("betabinomial", "beta-binomial", "quasibinomial"), "beta_binomial"),
    "betar": "beta",
    **dict.fromkeys(("nb", "negative_binomial", "negativebinomial", "neg_binomial", "neg_binomial_2"), "negbinomial"),
    **dict.fromkeys(("nbinom", "nbinom2", "quasipoisson", "negative.binomial", "geometric"), "negbinomial"),
    **dict.fromkeys(("zip", "zeroinflatedpoisson", "zero_inflated"), "zero_inflated_poisson"),
    **dict.fromkeys(
        ("zinb", "zero_inflated_nb", "zero_inflated_negative_binomial", "zeroinflatednegativebinomial"),
        "zero_inflated_negbinomial",
    ),
    **dict.fromkeys(("hurdle",), "hurdle_poisson"),
    **dict.fromkeys(("hurdle_negative_binomial", "hurdle_nb"), "hurdle_negbinomial"),
    **dict.fromkeys(("multinomial", "multinom", "softmax", "multinomial_logit"), "categorical"),
    **dict.fromkeys(("ordinal", "ordered", "ocat", "polr", "cumulative_logit", "ordered_logistic"), "cumulative"),
    **dict.fromkeys(("log_logistic", "log-logistic"), "loglogistic"),
    **dict.fromkeys(("exponential", "survival"), "weibull"),
    **dict.fromkeys(("coxph", "cox.ph"), "cox"),
}


# Functions of numpy, with the number of their arguments; more would be arrays to write to.
_NUMPY = {
    **dict.fromkeys(("log", "log1p", "log2", "log10", "exp", "expm1", "exp2", "sqrt", "cbrt", "square"), 1),
    **dict.fromkeys(("abs", "sign", "floor", "ceil", "sin", "cos", "tan", "arcsin", "arccos", "arctan"), 1),
    **dict.fromkeys(("sinh", "cosh", "tanh"), 1),
    **dict.fromkeys(("minimum", "maximum", "hypot", "arctan2", "power"), 2),
    **dict.fromkeys(("where", "clip"), 3),
}
# Functions of formulaic, with the names of their arguments after the column.
_SPLINE = ("df", "knots", "lower_bound", "upper_bound", "constraints", "extrapolation")
_TRANSFORMS: dict[str, tuple[str, ...]] = {
    "I": (), "C": ("contrasts", "levels", "spans_intercept"), "center": (), "scale": ("center", "scale", "ddof"),
    "standardize": ("center", "rescale", "ddof"), "poly": ("degree", "raw"),
    "bs": ("df", "knots", "degree", "include_intercept", "lower_bound", "upper_bound", "extrapolation"),
    "cr": _SPLINE, "cs": _SPLINE, "cc": _SPLINE,
}  # fmt: skip
# Contrasts of C, with the names of their arguments.
_CONTRASTS: dict[str, tuple[str, ...]] = {
    "contr.treatment": ("base",), "contr.SAS": ("base",), "contr.sum": (), "contr.helmert": ("reverse", "scale"),
    "contr.diff": ("backward",), "contr.poly": ("scores",), "Treatment": ("reference",), "Sum": (),
    "Helmert": ("reverse", "scale"), "Diff": ("backward",), "Poly": ("scores",),
}  # fmt: skip
_CONSTANTS = {"pi": np.pi, "np.pi": np.pi, "np.e": np.e, "TRUE": True, "FALSE": False, "T": True, "F": False}
# Numbers of columns beyond which a basis is a mistake.
_MOST = {"degree": 20, "df": 1000}
_ARITHMETIC: dict[type, Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_LOGIC: dict[type, Any] = {ast.BitAnd: operator.and_, ast.BitOr: operator.or_}
_COMPARISONS: dict[type, Any] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_SIGNS: dict[type, Any] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
_NODES = (
    ast.Name, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.List, ast.Tuple, ast.keyword, ast.Load, ast.Invert,
    *_ARITHMETIC, *_LOGIC, *_COMPARISONS, *_SIGNS,
)  # fmt: skip
# Words of expressions; all other keywords of Python are names, as in as.factor(x).
_KEYWORDS = ("True", "False", "None", "and", "or", "not", "in", "is", "if", "else", "for", "lambda")
# Names, numbers and strings, and single characters of everything else.
TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<name>\.?[^\W\d][\w.]*)|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<quoted>`[^`]+`)"
    r"|(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<operator>%in%|\*\*|\|\||.)",
    re.DOTALL,
)


class FormulaExpression(str):
    """The text of an expression, for a column its name, with its tree.

    Names in the tree that are none of Python are in backticks.
    """

    node: ast.expr

    def __new__(cls, text: str, node: ast.expr | None = None) -> "FormulaExpression":
        """An expression; ``node`` is None only while it is unpickled."""
        made = super().__new__(cls, text)
        if node is not None:
            made.node = node
        return made

    @property
    def is_name(self) -> bool:
        """Whether it is a column, or a value of the context."""
        return isinstance(self.node, ast.Name)

    @property
    def names(self) -> list[str]:
        """The names of columns, and of values of the context; not of functions."""
        functions = {id(node.func) for node in ast.walk(self.node) if isinstance(node, ast.Call)}
        names = [node for node in ast.walk(self.node) if isinstance(node, ast.Name) and id(node) not in functions]
        return list(dict.fromkeys(_unquoted(node.id) for node in names))


def expression(node: ast.expr) -> FormulaExpression:
    """Return the expression of a tree; ValueError for what expressions do not have."""
    for part in ast.walk(node):
        is_value = isinstance(part, ast.Constant) and isinstance(part.value, int | float | str | None)
        is_call = not isinstance(part, ast.Call) or isinstance(part.func, ast.Name)
        is_keyword = not isinstance(part, ast.keyword) or part.arg is not None
        if not (is_value or isinstance(part, _NODES)) or not is_call or not is_keyword:
            raise _refused(part, node)
    return FormulaExpression(_unquoted(node.id) if isinstance(node, ast.Name) else ast.unparse(node), node)


def tree(text: str) -> ast.expr:
    """Return the tree of Python's grammar, with dotted names and names in backticks as names; ValueError for others."""
    tokens = [match for match in TOKEN.finditer(text) if match.lastgroup != "space"]
    brackets = [(token[0] in "([{") - (token[0] in ")]}") for token in tokens if token.lastgroup == "operator"]
    if len(tokens) > 200 or np.cumsum([0, *brackets]).max() > 30:
        raise ValueError(
            f"formula: {shortened(text)} has more than 200 names, numbers and operators, or 30 brackets in one "
            "another. Compute it as a column of data."
        )
    quoted: dict[str, str] = {}

    def plain(match: re.Match[str]) -> str:
        is_keyword = match[0] not in _KEYWORDS and any(map(keyword.iskeyword, match[0].split(".")))
        if match.lastgroup == "quoted" or (match.lastgroup == "name" and is_keyword):
            return quoted.setdefault(match[0], f"_quoted_{len(quoted)}_")
        return match[0]

    try:
        parsed = ast.parse(f"({TOKEN.sub(plain, text)})", mode="eval").body
        return _Names({name: written for written, name in quoted.items()}).visit(parsed)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(
            f"formula: {shortened(text)} cannot be read ({reason}). A name of a column that is not one of Python is "
            "written in backticks."
        ) from error


def shortened(text: str) -> str:
    """Return a shortened text for a message."""
    return text if len(text) <= 200 else f"{text[:100]} ... {text[-50:]}"


class _Names(ast.NodeTransformer):
    """Attributes of names as dotted names, Q("a name") as a name, and names that stood in backticks in these."""

    def __init__(self, quoted: dict[str, str]):
        self.quoted = quoted

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.quoted.get(node.id, node.id), ast.Load())

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        inner = self.visit(node.value)
        if isinstance(inner, ast.Name) and not inner.id.startswith("`"):
            return ast.Name(f"{inner.id}.{node.attr}", ast.Load())
        return ast.Attribute(inner, node.attr, ast.Load())

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "Q" and len(node.args) == 1:
            name = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
            if isinstance(name, str) and "`" not in name:
                return ast.Name(f"`{name}`", ast.Load())
        return node


def _unquoted(name: str) -> str:
    return name.strip("`")


def quoted(name: str) -> str:
    """Return a column's name as it is written in a formula."""
    return name if re.fullmatch(r"\.?[^\W\d][\w.]*", name) else f"`{name}`"


def _refused(part: ast.AST, node: ast.expr) -> ValueError:
    text = shortened(ast.unparse(node))
    if isinstance(part, ast.BitXor):
        power = next(one for one in ast.walk(node) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.BitXor))
        return ValueError(
            f"formula: in {text}, ^ is no power: write {ast.unparse(power.left)} ** {ast.unparse(power.right)}."
        )
    if isinstance(part, ast.And | ast.Or | ast.Not | ast.BoolOp):
        return ValueError(f"formula: in {text}, write & and | between comparisons in parentheses, and ~ for not.")
    return _not_allowed("**" if isinstance(part, ast.keyword) else shortened(ast.unparse(part)) or text, text)


def _not_allowed(what: str, text: str) -> ValueError:
    where = "" if what == text else f" in {text}"
    return ValueError(
        f"formula: {what}{where} is not allowed: a formula has columns, numbers, operators and listed functions. "
        "Compute a column of data, or pass a function, as in context={'f': f} with f(x) in the formula."
    )


class Computed:
    """The values of an expression for data frames, with what its transforms learned from the first."""

    def __init__(self, text: FormulaExpression, context: Mapping[str, Any]):
        self.text, self.context = text, context
        self.states: dict[str, dict[str, Any]] = {}

    def values(self, frame: pd.DataFrame) -> Any:
        """Return a number, a column, or several; ValueError if it cannot be evaluated."""
        # What is not finite is refused by those that read the values.
        with np.errstate(all="ignore"):
            return self._value(self.text.node, frame)

    def column(self, frame: pd.DataFrame) -> np.ndarray:
        """One column of numbers (n,); ValueError for others."""
        values = _numbers(self.values(frame), self.text.node)
        if np.shape(values) not in ((), (len(frame),)):
            raise ValueError(f"formula: {self.text} must be one column of numbers; got shape {np.shape(values)}.")
        return np.broadcast_to(np.asarray(values), len(frame)).copy()

    def _value(self, node: ast.expr, frame: pd.DataFrame) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._name(_unquoted(node.id), frame)
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(one, frame) for one in node.elts]
        if isinstance(node, ast.Call):
            return self._call(node, frame)
        if isinstance(node, ast.UnaryOp):
            value = self._value(node.operand, frame)
            if isinstance(node.op, ast.Invert):
                return ~_truth(value, node.operand)
            return _SIGNS[type(node.op)](_numbers(value, node.operand))
        if isinstance(node, ast.Compare):
            values = [self._value(side, frame) for side in (node.left, *node.comparators)]
            each = [_compared(_COMPARISONS[type(op)], values[i : i + 2], node) for i, op in enumerate(node.ops)]
            return reduce(operator.and_, each)
        assert isinstance(node, ast.BinOp)
        first, second = self._value(node.left, frame), self._value(node.right, frame)
        if type(node.op) in _LOGIC:
            return _LOGIC[type(node.op)](_truth(first, node.left), _truth(second, node.right))
        return _ARITHMETIC[type(node.op)](_numbers(first, node.left), _numbers(second, node.right))

    def _name(self, name: str, frame: pd.DataFrame) -> Any:
        if name in frame.columns:
            return frame[name]
        if name in self.context:
            return self.context[name]
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name in _CONTRASTS:
            return _transform(name)
        if name.partition(".")[0] in frame.columns:
            raise _not_allowed(name, shortened(self.text))
        reader = "the formula" if name == self.text else shortened(self.text)
        raise ValueError(
            f"formula: data has no column {name!r}, which {reader} reads; it has {list(frame.columns)}. A value "
            "that is no column is passed by context."
        )

    def _call(self, node: ast.Call, frame: pd.DataFrame) -> Any:
        assert isinstance(node.func, ast.Name)
        name, text = _unquoted(node.func.id), ast.unparse(node)
        plain = name.removeprefix("np.")
        if not (name in self.context or plain in _NUMPY or name in _TRANSFORMS or name in _CONTRASTS):
            raise _unknown_function(name, text)
        values = [self._value(one, frame) for one in node.args]
        options = {str(one.arg): self._value(one.value, frame) for one in node.keywords}
        if name in self.context:
            function = self.context[name]
            if not callable(function):
                raise ValueError(f"formula: {text} calls {name}, which is no function in context; got {function!r}.")
        elif plain in _NUMPY:
            if len(values) != _NUMPY[plain] or options:
                raise ValueError(f"formula: {shortened(text)} must have {_NUMPY[plain]} arguments, without names.")
            function = getattr(np, plain)
            values = [_numbers(value, one) for value, one in zip(values, node.args, strict=True)]
        else:
            function = _transform(name)
            values, options = _arguments(name, values, options, text)
        if getattr(function, "__is_stateful_transform__", False):
            options["_state"] = self.states.setdefault(text, {})
        try:
            return function(*values, **options)
        # Of functions of users, and of formulaic for columns that these cannot have.
        except Exception as error:
            raise ValueError(
                f"formula: {shortened(text)} cannot be evaluated: {type(error).__name__}: {error}"
            ) from error


def _unknown_function(name: str, text: str) -> ValueError:
    if name in REMEDIES:
        return ValueError(f"formula: {shortened(text)}: {REMEDIES[name]}")
    listed = ", ".join([*_NUMPY, *_TRANSFORMS])
    return ValueError(
        f"formula: {shortened(text)} calls {name}, which is not one of {listed}. Pass a function of your own as in "
        f"context={{{name.rpartition('.')[2]!r}: ...}}."
    )


def _transform(name: str) -> Any:
    from formulaic.transforms import TRANSFORMS, ContrastsRegistry

    return getattr(ContrastsRegistry, name.removeprefix("contr.")) if name.startswith("contr.") else TRANSFORMS[name]


def _arguments(name: str, values: list[Any], options: dict[str, Any], text: str) -> tuple[list[Any], dict[str, Any]]:
    known, count = (_TRANSFORMS[name], 1) if name in _TRANSFORMS else (_CONTRASTS[name], 0)
    if len(values) < count or len(values) > count + len(known) or set(options) - set(known):
        raise ValueError(
            f"formula: {text}: the arguments of {name} are {', '.join(['a column'] * count + list(known))}."
        )
    chosen = dict(zip(known, values[count:], strict=False))
    if set(chosen) & set(options):
        raise ValueError(f"formula: {text} has {next(iter(set(chosen) & set(options)))} twice.")
    chosen |= options
    for one, most in _MOST.items():
        if isinstance(chosen.get(one), int | float) and not 0 <= chosen[one] <= most:
            raise ValueError(
                f"formula: {text}: {one} must be a number up to {most}; got {shortened(str(chosen[one]))}."
            )
    if isinstance(chosen.get("contrasts"), str):
        raise ValueError(f"formula: {text}: contrasts must be a name such as contr.sum or Treatment('a'), not text.")
    if name not in ("C", "I") and values[:count]:
        values = [_numbers(values[0], ast.Name(text, ast.Load()))]
    return values[:count], chosen


def _numbers(value: object, node: ast.expr) -> Any:
    """Numbers of double precision: whole ones of a data frame would overflow."""
    if isinstance(value, int | float | np.number):
        try:
            return np.float64(value)
        except OverflowError as error:
            raise ValueError(f"formula: {shortened(ast.unparse(node))} is too large a number.") from error
    kind = getattr(value, "dtype", None)
    if isinstance(value, pd.Series) and pd.api.types.is_numeric_dtype(kind):
        return pd.Series(floats_in(value, f"formula: {shortened(ast.unparse(node))}"), value.index)
    if isinstance(value, pd.Series) and pd.api.types.is_timedelta64_dtype(kind):
        return pd.Series(days_in(value), value.index)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return value.astype(np.float64)
    what = type(value).__name__ if kind is None else f"{kind}"
    text = shortened(ast.unparse(node))
    raise ValueError(f"formula: {text} must be numbers; got {what}. Text is compared, as in {text} == 'a'.")


def _truth(value: object, node: ast.expr) -> pd.Series:
    if not isinstance(value, pd.Series) or not pd.api.types.is_bool_dtype(value):
        raise ValueError(f"formula: {ast.unparse(node)} must be a comparison in parentheses next to &, | and ~.")
    return value


def _compared(compare: Callable[[Any, Any], Any], values: list[Any], node: ast.Compare) -> Any:
    """A comparison; ValueError for one of text with numbers, which is never true."""
    for value, other in (values, values[::-1]):
        if isinstance(value, pd.Series) and isinstance(other, int | float | str):
            levels = value.cat.categories if hasattr(value, "cat") else value
            is_number = pd.api.types.is_numeric_dtype(levels.dtype)
            if is_number == isinstance(other, str) and not pd.api.types.is_datetime64_any_dtype(levels.dtype):
                what = "numbers with text" if is_number else "text with a number"
                raise ValueError(f"formula: {ast.unparse(node)} compares {what}.")
    try:
        return compare(*values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"formula: {ast.unparse(node)} cannot be compared: {error}") from error
