r"""Formulas as LaTeX math, for papers, notebooks and web pages.

The output requires only the package amsmath; MathJax and KaTeX render it too.
"""

import re
from collections.abc import Sequence

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
    contains,
    is_word,
    split_name,
    without_brackets,
)
from pgmodels.likelihoods.printers.text import is_close

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
    """A formula as LaTeX in math mode."""
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
            return _indexed(base, index)
        case Powered(base, exponent):
            return f"{to_latex(base)}^{{{to_latex(without_brackets(exponent))}}}"
        case Fraction(above, below):
            return rf"\frac{{{to_latex(without_brackets(above))}}}{{{to_latex(without_brackets(below))}}}"
        case Bracketed(opening, body, closing):
            tall = opening == "|" or contains(body, (Fraction, Big))
            inside = to_latex(body)
            return rf"\left{opening} {inside} \right{closing}" if tall else f"{opening}{inside}{closing}"
        case Applied(function, argument):
            return _applied(function, argument)
        case Differential(variable):
            return rf"\mathrm{{d}} {to_latex(variable)}"
        case Derivative(of, by):
            return rf"\frac{{\partial {to_latex(of)}}}{{\partial {to_latex(by)}}}"
        case Factors(items) | Chain(items):
            return _joined(items)
    raise NotImplementedError(f"{type(tree).__name__} has no LaTeX form.")


def escaped(text: str) -> str:
    """Words with LaTeX's special characters escaped."""
    return _SPECIAL.sub(lambda match: f"\\{match[0]}", text)


def _letters(text: str) -> str:
    return "".join(rf"\{_GREEK[letter]} " if letter in _GREEK else escaped(letter) for letter in text).rstrip()


def _name(text: str) -> str:
    """A symbol with its accent and subscript, if any."""
    base, subscript = split_name(text)
    accented = base.endswith("\u0303")
    letters = _letters(base.rstrip("\u0303"))
    symbol = letters if _is_letter(base) else rf"\mathrm{{{letters}}}"
    symbol = rf"\tilde{{{symbol}}}" if accented else symbol
    return f"{symbol}_{{{subscript.replace('−', '-')}}}" if subscript else symbol


def _is_letter(base: str) -> bool:
    """Whether a name is a single letter, with or without an accent."""
    return len(base.rstrip("\u0303")) == 1


def _indexed(base: Tree, index: Tree) -> str:
    """A base and its index; the number in a name such as ω2 joins the index."""
    name, number = split_name(base.text) if isinstance(base, Name) else ("", "")
    if number:
        return f"{_name(name)}_{{{number},{to_latex(index)}}}"
    return f"{to_latex(base)}_{{{to_latex(index)}}}"


def _applied(function: Tree, argument: Tree) -> str:
    if function == Name("sqrt") and isinstance(argument, Bracketed):
        return rf"\sqrt{{{to_latex(argument.body)}}}"
    between = "" if isinstance(argument, Bracketed) and argument.opening != "|" else " "
    return f"{_function(function)}{between}{to_latex(argument)}"


def _function(function: Tree) -> str:
    if not isinstance(function, Name) or (function.text not in UPRIGHT and _is_letter(split_name(function.text)[0])):
        return to_latex(function)
    if function.text in _COMMANDS:
        return rf"\{function.text}"
    letters = _letters(function.text)
    upright = letters.startswith("\\") and function.text in UPRIGHT  # Γ and Φ are upright by default
    return letters if upright else rf"\operatorname{{{letters}}}"


def _joined(items: Sequence[Tree]) -> str:
    """A sequence of factors, operators and words."""
    return "".join((_between(items[i - 1], item) if i else "") + to_latex(item) for i, item in enumerate(items))


def _between(before: Tree, after: Tree) -> str:
    """The space between two neighbours: none, a word space, a thin space, or TeX's default."""
    if is_close(before, after):
        return ""
    if isinstance(before, Words) or isinstance(after, Words):
        return " \\ "
    if isinstance(before, (Operator, Apart, Big)) or isinstance(after, (Operator, Apart)):
        return " "
    condition = isinstance(after, Bracketed) and after.opening == "["
    thin = condition or isinstance(after, Differential) or is_word(before) or is_word(after)
    return r" \, " if thin else " "
