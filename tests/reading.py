"""Evaluate formulas that are printed as text."""

import math
import re

import numpy as np
from scipy.special import expit
from scipy.stats import norm, poisson

from pgmodels import polya_gamma
from pgmodels.likelihoods.printing import to_text

TOKEN = re.compile(r" *(\d+(?:\.\d+)?(?:e[+-]?\d+)?|[ΣΠ]_|σ\u0303[₊₋]|[^\W\d_]\w*|.)")


def pg(x, b, z):
    """PG(x; b, z); 1 at b = 0, where the auxiliary is switched off, like Lévy(x; 0, 0)."""
    return math.exp(polya_gamma.log_density(x, b, z)) if b > 0 else 1.0


def levy(x, start, scale):
    x = x - start
    return math.sqrt(scale / (2 * math.pi)) * x**-1.5 * math.exp(-scale / (2 * x)) if scale > 0 else 1.0


def largest(f, y, noise=1.0):
    """P(f[y] is the largest of latents with Gaussian noise of this variance), by the trapezoid rule."""
    x = np.linspace(-12.0, 12.0, 2401)
    others = np.delete((f[int(y)] - f) / math.sqrt(noise), int(y))
    return np.sum(norm.pdf(x) * np.prod(norm.cdf(x + others[:, None]), axis=0)) * 0.01


FUNCTIONS = {
    "largest": largest, "exp": math.exp, "log": math.log, "sqrt": math.sqrt, "abs": abs, "tanh": math.tanh,
    "σ": expit, "Φ": norm.cdf, "φ": norm.pdf, "Γ": math.gamma,
    "N": lambda x, mean, variance: norm.pdf(x, mean, math.sqrt(variance)), "Poisson": poisson.pmf, "PG": pg,
    "Lévy": levy,
}  # fmt: skip
RELATIONS = {"=": np.equal, "≠": np.not_equal, "<": np.less, "≤": np.less_equal, ">": np.greater}


def value(tree, values, size):
    """The value of a formula by its text; ``values`` are numbers or, over the latents or columns of y, sequences."""
    return Reader(to_text(tree), values, size).evaluate()


class Reader:
    """Recursive-descent parser of infix notation: a name before a bracket is a function, a space is a product."""

    def __init__(self, text, values, size):
        self.text, self.values, self.size = text, {"π": math.pi, **values}, size
        matches = list(TOKEN.finditer(text.rstrip()))
        self.tokens = [match[1] for match in matches] + [""]
        self.apart = [match[0].startswith(" ") for match in matches] + [True]
        self.at = 0

    def evaluate(self):
        result = self.sum()
        while self.token == "·" and self.take():
            result *= self.sum()
        assert self.token == "", f"{self.text!r} goes on with {self.tokens[self.at :]}"
        return float(result)

    @property
    def token(self):
        return self.tokens[self.at]

    def take(self, expected=None):
        token = self.token
        assert expected in (None, token), f"{self.text!r} has {token!r} where {expected!r} is expected"
        self.at += 1
        return token

    def sum(self):
        total = self.product() if self.token != "-" else 0.0
        while self.token in ("+", "-"):
            total += (-1.0 if self.take() == "-" else 1.0) * self.product()
        return total

    def product(self):
        total = self.power()
        while self.token == "/" or self.starts_factor():
            total *= 1.0 / self.power() if self.token == "/" and self.take() else self.power()
        return total

    def starts_factor(self):
        bars = self.token == "|" and self.apart[self.at]
        is_name = self.token != "where" and bool(re.match(r"\w", self.token))
        return bars or self.token in ("(", "[", "∂") or is_name

    def power(self):
        base = self.atom()
        if self.token == "^" and self.take():
            sign = -1.0 if self.token == "-" and self.take() else 1.0
            return base ** (sign * self.power())
        return base

    def atom(self):
        token = self.take()
        if token in ("(", "|"):
            inside = self.sum()
            self.take(")" if token == "(" else "|")
            return abs(inside) if token == "|" else inside
        if token == "[":
            holds = self.case()
            while self.token == ";" and self.take():
                holds |= self.case()
            self.take("]")
            return float(holds)
        if token in ("Σ_", "Π_"):
            return self.over(token)
        if token == "∂":
            return self.slope()
        if token[0].isdecimal():
            return float(token)
        return self.named(token)

    def case(self):
        """A comparison, and the one under which it counts."""
        holds = self.comparison()
        if self.token == "where" and self.take():
            holds &= self.comparison()
        return holds

    def comparison(self):
        """Comparisons in a row, such as a < u < b."""
        previous, holds = self.sum(), True
        while self.token != "" and self.token in RELATIONS:
            relation, right = RELATIONS[self.take()], self.sum()
            previous, holds = right, holds & bool(relation(previous, right))
        return holds

    def over(self, token):
        """A sum or a product over the latents, of all following factors."""
        index, start = self.take(), self.at
        terms = []
        for position in range(self.size):
            self.at, self.values[index] = start, position
            terms.append(self.product())
        del self.values[index]
        return np.sum(terms) if token == "Σ_" else np.prod(terms)

    def named(self, name):
        close = not self.apart[self.at]
        if name in ("σ̃₊", "σ̃₋"):
            return self.tilde(1 if name == "σ̃₊" else -1)
        if name == "E" and close and self.token == "[":
            self.take("[")
            inside = self.values[f"E[{self.take()}]"]
            if self.token == "[":
                inside = inside[self.index()]
            self.take("]")
            return inside
        if name == "q" and close and self.token == "(":
            tokens = [self.take() for _ in range(5)]
            return self.values[f"E[{tokens[1]} = {tokens[3]}]"]
        if name in FUNCTIONS and close and self.token == "(":
            self.take("(")
            arguments = [self.sum()]
            while self.token in (",", ";") and self.take():
                arguments.append(self.sum())
            self.take(")")
            return FUNCTIONS[name](*arguments)
        if name == "log":
            return math.log(self.atom())
        if close and self.token == "[":
            return self.values[name][self.index()]
        if name not in self.values:
            base, position = re.fullmatch(r"(\D+)(\d+)", name).groups()
            return self.values[base][int(position)]
        return self.values[name]

    def index(self):
        self.take("[")
        index = self.sum()
        self.take("]")
        return int(index)

    def tilde(self, side):
        """σ̃ of an affine function z of f: exp(± E z / 2) / (2 cosh(sqrt(E z^2) / 2)) where f has mean m, variance v."""
        mean, moved = self.shifted("f", np.asarray(self.values["m"]), (0.0, 1.0))
        variance = (moved - mean) ** 2 * np.max(self.values["v"])
        return math.exp(side * mean / 2) / (2 * math.cosh(math.sqrt(mean**2 + variance) / 2))

    def slope(self):
        """∂of/∂name[index], by a central difference."""
        by = self.tokens.index("∂", self.at)
        name, index = self.tokens[by + 1], self.values[self.tokens[by + 3]]
        here, step = self.values[name], 1e-5 * (np.arange(self.size) == index)
        below, above = self.shifted(name, here, (-step, step))
        self.at, self.values[name] = by + 5, here
        return (above - below) / 2e-5

    def shifted(self, name, here, steps):
        """The values of what comes next, where a symbol is each of the steps from here."""
        start, values = self.at, []
        for step in steps:
            self.at, self.values[name] = start, here + step
            values.append(self.atom())
        return values
