"""Evaluate printed formulas: numbers from notation trees, as a reader computes them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy

from pgmodels import polya_gamma
from pgmodels.augmentation.errors import VerificationError
from pgmodels.likelihoods.notation import (
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
)
from pgmodels.likelihoods.printers.text import to_text
from pgmodels.numerics.largest import EQUAL_NODES, log_probability_of_largest
from pgmodels.runtime.jit import compiled

_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "σ": lambda z: scipy.special.expit(z),
    "Φ": lambda z: scipy.special.ndtr(z),
    "φ": lambda z: np.exp(_log_normal(z, 0.0, 1.0)),
    "Γ": lambda x: scipy.special.gamma(x),
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "cosh": np.cosh,
    "step": lambda z: np.heaviside(z, 0.5),
}
_RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": np.equal,
    "≠": np.not_equal,
    "<": np.less,
    "≤": np.less_equal,
    ">": np.greater,
    "≥": np.greater_equal,
}
_SIGNS = ("+", "-", "·")
Items = Sequence[Tree]
# A relative step of central differences: their error is the square, as large as the rounding of numbers near 1.
_STEP = 1e-5
# The relative error of noise, 1e4 times that of rounding.
NOISE = 1e-12


class UnreadableError(VerificationError):
    """A formula with words, or with functions that are not known."""


class UndefinedError(VerificationError):
    """A formula with a symbol that is not defined before."""


@dataclass(frozen=True)
class Reader:
    """Values of symbols, (..., n, entries): one entry, or one for each latent or column of y.

    ``grids`` are the values of auxiliaries, (points, n, entries), and the logarithms of their weights, over which sums
    and integrals are computed; ``functions`` are the printed definitions of functions of z, σ̃₊ and σ̃₋. With ``noise``
    each intermediate value has a random relative error, except in conditions and exponents.
    """

    size: int
    values: Mapping[str, Any]
    grids: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    functions: Mapping[str, Tree] = field(default_factory=dict)
    noise: np.random.Generator | None = None

    def including(self, **values: Any) -> "Reader":
        """The reader with more values."""
        return replace(self, values={**self.values, **values})

    @cached_property
    def exact(self) -> "Reader":
        """The reader without noise."""
        return replace(self, noise=None)

    def value(self, tree: Tree) -> Any:
        """The value of a formula. Raises UnreadableError or UndefinedError."""
        value = self._value(tree)
        return value if self.noise is None else value * (1.0 + NOISE * self.noise.uniform(-1.0, 1.0, np.shape(value)))

    def _value(self, tree: Tree) -> Any:
        match tree:
            case Number(text):
                return np.full((1, 1), float(text))
            case Name(text):
                return self._symbol(text)
            case Indexed(Name(text), index):
                return self._entry(self._symbol(text), index)
            case Powered(base, exponent):
                return self.value(base) ** self.exact.value(exponent)
            case Fraction(above, below):
                return self.value(above) / self.value(below)
            case Bracketed("[", body):
                return self.exact.holds(body).astype(float)
            case Bracketed("|", body):
                return np.abs(self.value(body))
            case Bracketed(_, body):
                return self.value(body)
            case Applied(Name(name), argument):
                return self._applied(name, argument)
            case Derivative(of, Indexed(Name(name), _)):
                return self._derivative(of, name)
            case Factors(items):
                return self._product(items)
            case Chain(items):
                return self._sum(items)
        raise UnreadableError(to_text(tree))

    def holds(self, condition: Tree) -> Any:
        """Where a relation, or one of a list of intervals with conditions, holds."""
        items = items_of(condition)
        if any(isinstance(item, Words) for item in items) or Operator(";", False) in items:
            return np.any(np.stack(np.broadcast_arrays(*map(self._inside, split(items, ";")))), axis=0)
        signs = [i for i, item in enumerate(items) if isinstance(item, Operator) and item.text in _RELATIONS]
        if not signs:
            raise UnreadableError(to_text(condition))
        ends, true = [-1, *signs, len(items)], np.ones((1, 1), bool)
        sides = [self.value(Chain(items[a + 1 : b])) for a, b in pairwise(ends)]
        for sign, first, second in zip(signs, sides[:-1], sides[1:], strict=True):
            true = true & _RELATIONS[items[sign].text](first, second)  # type: ignore[attr-defined]
        return true

    def _inside(self, items: Items) -> Any:
        """Where an interval holds, and its condition if there is one."""
        groups = split_at(items, "where")
        return np.logical_and(*np.broadcast_arrays(*(self.holds(Chain(part)) for part in (groups * 2)[:2])))

    def _symbol(self, name: str) -> Any:
        if name not in self.values:
            raise UndefinedError(name)
        return self.values[name]

    def _entry(self, array: Any, index: Tree) -> Any:
        if index == Name("c"):
            return array
        place = self.exact.value(index)
        return np.sum(np.where(place == np.arange(array.shape[-1]), array, 0.0), axis=-1, keepdims=True)

    def _applied(self, name: str, argument: Tree) -> Any:
        if name in ("E", "q"):
            value, inside = self._symbol(symbol_of(Applied(Name(name), argument))), argument.body  # type: ignore[attr-defined]
            return self._entry(value, inside.index) if isinstance(inside, Indexed) else value
        if name in self.functions:
            return self._of_marginal(self.functions[name], argument)
        if name in _FUNCTIONS:
            return _FUNCTIONS[name](self.value(argument))
        values = [self.value(Chain(part)) for part in arguments(argument)]
        if name == "largest":
            latents, index, noise = values
            chosen = index == np.arange(self.size)
            return np.exp(np.asarray(_log_largest(latents, noise, chosen)))
        if name in DENSITIES:
            return np.exp(np.asarray(DENSITIES[name](*np.broadcast_arrays(*values))))
        raise UnreadableError(name)

    def _of_marginal(self, definition: Tree, argument: Tree) -> Any:
        """A function of the law of z under q, z affine in one latent with mean m and variance v."""
        m, half = self.values["m"], np.sqrt(self.values["v"])
        z, further = (self.including(f=f, z=f).value(argument) for f in (m, m + half))
        second = {"E[z]": z, "E[z^2]": z**2 + (further - z) ** 2}
        root = self.including(**second).value(self.functions["ζ"])
        return self.including(**second, ζ=root).value(definition)

    def _derivative(self, of: Tree, name: str) -> Any:
        """The derivative in each entry of a symbol, by central differences."""
        centre, entries = self.values[name], []
        for entry in np.eye(self.size):
            ends = (self.including(**{name: centre + side * _STEP * entry}).value(of) for side in (1.0, -1.0))
            entries.append(np.subtract(*ends) / (2.0 * _STEP))
        return np.concatenate(entries, axis=-1)

    def _product(self, items: Items) -> Any:
        total = np.ones((1, 1))
        for i, item in enumerate(items):
            if isinstance(item, Big):
                return total * self._big(item, items[i + 1 :])
            total = total * self.value(item)
        return total

    def _big(self, big: Big, items: Items) -> Any:
        """A sum or product over the latents of the items, or a sum or integral over an auxiliary."""
        last = next((i for i, item in enumerate(items) if isinstance(item, Differential)), None)
        variable = big.below if last is None else items[last].variable  # type: ignore[attr-defined]
        inside, after = (items, ()) if last is None else (items[:last], items[last + 1 :])
        if variable == Name("c"):
            terms = self._product(inside)
            terms = np.broadcast_to(terms, (*terms.shape[:-1], self.size))
            return (np.sum if big.symbol == "Σ" else np.prod)(terms, axis=-1, keepdims=True)
        name = "" if variable is None else symbol_of(variable)
        if name not in self.grids:
            raise UndefinedError(name)
        points, log_measure = self.grids[name]
        terms = self.including(**{name: points})._product(inside) * np.exp(log_measure)
        return np.sum(np.where(np.isnan(terms), 0.0, terms), axis=0) * self._product(after)

    def _sum(self, items: Items) -> Any:
        total, sign, product = np.zeros((1, 1)), 1.0, None
        for item in items:
            if not isinstance(item, Operator):
                product = self.value(item) if product is None else product * self.value(item)
            elif item.text not in _SIGNS:
                raise UnreadableError(to_text(Chain(tuple(items))))
            elif item.text != "·":
                total = total if product is None else total + sign * product
                sign, product = (-1.0 if item.text == "-" else 1.0), None
        return total if product is None else total + sign * product


def symbol_of(tree: Tree) -> str:
    """The name of a symbol without its index: E[ω] of E[ω[c]], h of h[0]."""
    match tree:
        case Applied(function, Bracketed(opening, Indexed(base, _), closing)):
            return to_text(Applied(function, Bracketed(opening, base, closing)))
        case Indexed(base, _):
            return to_text(base)
    return to_text(tree)


def items_of(tree: Tree) -> tuple[Tree, ...]:
    """The items of a line; a single tree is one item."""
    return tree.items if isinstance(tree, Chain) else (tree,)


def split(items: Items, *signs: str) -> list[tuple[Tree, ...]]:
    """The items between signs; Apart is the sign ""."""
    groups: list[list[Tree]] = [[]]
    for item in items:
        if (isinstance(item, Operator) and item.text in signs) or (isinstance(item, Apart) and "" in signs):
            groups.append([])
        else:
            groups[-1].append(item)
    return [tuple(part) for part in groups]


def split_at(items: Items, word: str) -> list[tuple[Tree, ...]]:
    """The items before and after the first words that contain a word."""
    at = next((i for i, item in enumerate(items) if isinstance(item, Words) and word in item.text), None)
    return [tuple(items)] if at is None else [tuple(items[:at]), tuple(items[at + 1 :])]


def after(items: Items, word: str) -> Chain:
    """The items after the first words that contain a word. Raises UndefinedError if there are none."""
    groups = split_at(items, word)
    if len(groups) < 2:
        raise UndefinedError(word)
    return Chain(groups[1])


def arguments(argument: Tree) -> list[tuple[Tree, ...]]:
    """The arguments of a call, without words such as "rate"."""
    body = argument.body if isinstance(argument, Bracketed) else argument
    return [tuple(i for i in part if not isinstance(i, Words)) for part in split(items_of(body), ",", ";")]


@compiled
def _log_largest(latents: Any, noise: Any, chosen: Any) -> Any:
    return log_probability_of_largest(latents, noise, chosen, EQUAL_NODES)


def _log_polya_gamma(value: Any, shape: Any, tilt: Any) -> Any:
    density = polya_gamma.log_density(value, np.where(shape > 0, shape, 1.0), tilt)
    return np.where(shape > 0, density, 0.0)


def _log_normal(value: Any, mean: Any, variance: Any) -> Any:
    return -0.5 * (np.log(2.0 * np.pi * variance) + (value - mean) ** 2 / variance)


def _log_poisson(value: Any, rate: Any) -> Any:
    return scipy.special.xlogy(value, rate) - rate - scipy.special.gammaln(value + 1.0)


def _log_levy(value: Any, location: Any, scale: Any) -> Any:
    gap = np.where(scale > 0, value - location, 1.0)
    density = 0.5 * np.log(np.where(scale > 0, scale, 1.0) / (2.0 * np.pi)) - 1.5 * np.log(gap) - scale / (2.0 * gap)
    return np.where(scale > 0, density, 0.0)


# Log densities of a value and parameters; 0 for a variable that is constant at 0 because a parameter is 0.
DENSITIES: dict[str, Callable[..., Any]] = {
    "PG": _log_polya_gamma,
    "Poisson": _log_poisson,
    "Lévy": _log_levy,
    "N": _log_normal,
}
