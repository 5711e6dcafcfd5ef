"""Numerical verification of a derivation and of its printed form."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import scipy
from jax import Array
from numpy.typing import ArrayLike

from pgmodels import polya_gamma
from pgmodels.augmentation.augmentation import Augmentation, expectations
from pgmodels.augmentation.explain import PARAMETERS, explain_sections
from pgmodels.augmentation.laws import (
    VARIANCE,
    ArgmaxNormal,
    Categorical,
    Gamma,
    IntervalNormal,
    InverseGaussian,
    Law,
    Poisson,
    PolyaGamma,
    TruncatedNormal,
)
from pgmodels.augmentation.predictors import Allocated, VerificationError
from pgmodels.augmentation.verify_cases import (
    DRAWS,
    POINTS,
    PRINTED,
    ROWS,
    SIX_DIGITS,
    STANDARD_ERRORS,
    Case,
    Check,
    bound_is_below,
    bound_is_tight,
    draws_follow_conditional,
    elbo_rises,
    integrates_back,
    joint_minus_conditional,
    site_is_gradient,
    site_is_joint,
)
from pgmodels.likelihoods.expression import Environment
from pgmodels.likelihoods.likelihood import undefined_coefficients
from pgmodels.likelihoods.printing import (
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
    names_in,
    to_text,
)
from pgmodels.likelihoods.supports import Support
from pgmodels.numerics.elementary import EQUAL_NODES, log_probability_of_largest
from pgmodels.runtime.jit import compiled
from pgmodels.runtime.precision import double_precision
from pgmodels.runtime.seeds import Seed, as_generator

_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "σ": lambda z: scipy.special.expit(z), "Φ": lambda z: scipy.special.ndtr(z),
    "φ": lambda z: np.exp(_log_normal(z, 0.0, 1.0)), "Γ": lambda x: scipy.special.gamma(x), "exp": np.exp,
    "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh, "cosh": np.cosh, "step": lambda z: np.heaviside(z, 0.5),
}  # fmt: skip
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
Values = Mapping[str, np.ndarray]


class UnreadableError(VerificationError):
    """Error for a formula with words or with unknown functions."""


class UndefinedError(VerificationError):
    """Error for a formula with a symbol that has no earlier definition."""


@dataclass(frozen=True)
class Reader:
    """Values of symbols, (..., n, entries): one entry, or one for each latent or column of y.

    ``grids`` are the values of auxiliaries, (points, n, entries), and their log weights, for sums and integrals.
    ``functions`` are the printed definitions of functions of z, σ̃₊ and σ̃₋. With ``noise``, each intermediate value
    has a random relative error, except in conditions and exponents.
    """

    size: int
    values: Values
    grids: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    functions: Mapping[str, Tree] = field(default_factory=dict)
    noise: np.random.Generator | None = None

    def including(self, **values: np.ndarray) -> "Reader":
        """Return the reader with more values."""
        return replace(self, values={**self.values, **values})

    @cached_property
    def exact(self) -> "Reader":
        """Return the reader without noise."""
        return replace(self, noise=None)

    def value(self, tree: Tree) -> np.ndarray:
        """Return the value of a formula. Raise UnreadableError or UndefinedError."""
        value = self._value(tree)
        # 1e4 times the relative rounding error.
        return value if self.noise is None else value * (1.0 + 1e-12 * self.noise.uniform(-1.0, 1.0, np.shape(value)))

    def _value(self, tree: Tree) -> np.ndarray:
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

    def holds(self, condition: Tree) -> np.ndarray:
        """Return a mask that is true if a relation, or one of a list of intervals with conditions, holds."""
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

    def _inside(self, items: Items) -> np.ndarray:
        """Return a mask that is true inside an interval, and its condition if there is one."""
        groups = split_at(items, "where")
        return np.logical_and(*np.broadcast_arrays(*(self.holds(Chain(part)) for part in (groups * 2)[:2])))

    def _symbol(self, name: str) -> np.ndarray:
        if name not in self.values:
            raise UndefinedError(name)
        return self.values[name]

    def _entry(self, array: np.ndarray, index: Tree) -> np.ndarray:
        if index == Name("c"):
            return array
        place = self.exact.value(index)
        return np.sum(np.where(place == np.arange(array.shape[-1]), array, 0.0), axis=-1, keepdims=True)

    def _applied(self, name: str, argument: Tree) -> np.ndarray:
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
            return np.exp(np.asarray(_log_largest(latents, noise, index == np.arange(self.size))))
        if name in DENSITIES:
            return np.exp(DENSITIES[name](*np.broadcast_arrays(*values)))
        raise UnreadableError(name)

    def _of_marginal(self, definition: Tree, argument: Tree) -> np.ndarray:
        """Return a function of the law of z under q, for z affine in one latent with mean m and variance v."""
        m, half = self.values["m"], np.sqrt(self.values["v"])
        z, further = (self.including(f=f, z=f).value(argument) for f in (m, m + half))
        second = {"E[z]": z, "E[z^2]": z**2 + (further - z) ** 2}
        root = self.including(**second).value(self.functions["ζ"])
        return self.including(**second, ζ=root).value(definition)

    def _derivative(self, of: Tree, name: str) -> np.ndarray:
        # The error of central differences is the square of the step, as large as the rounding of numbers near 1.
        centre, step, entries = self.values[name], 1e-5, []
        for entry in np.eye(self.size):
            ends = (self.including(**{name: centre + side * step * entry}).value(of) for side in (1.0, -1.0))
            entries.append(np.subtract(*ends) / (2.0 * step))
        return np.concatenate(entries, axis=-1)

    def _product(self, items: Items) -> np.ndarray:
        total = np.ones((1, 1))
        for i, item in enumerate(items):
            if isinstance(item, Big):
                return total * self._big(item, items[i + 1 :])
            total = total * self.value(item)
        return total

    def _big(self, big: Big, items: Items) -> np.ndarray:
        """Return a sum or product over the latents of the items, or a sum or integral over an auxiliary."""
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

    def _sum(self, items: Items) -> np.ndarray:
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
    """Return the name of a symbol without its index: E[ω] of E[ω[c]], h of h[0]."""
    match tree:
        case Applied(function, Bracketed(opening, Indexed(base, _), closing)):
            return to_text(Applied(function, Bracketed(opening, base, closing)))
        case Indexed(base, _):
            return to_text(base)
    return to_text(tree)


def items_of(tree: Tree) -> tuple[Tree, ...]:
    """Return the items of a line; a single tree is one item."""
    return tree.items if isinstance(tree, Chain) else (tree,)


def split(items: Items, *signs: str) -> list[tuple[Tree, ...]]:
    """Return the items between signs; Apart is the sign ""."""
    groups: list[list[Tree]] = [[]]
    for item in items:
        if (isinstance(item, Operator) and item.text in signs) or (isinstance(item, Apart) and "" in signs):
            groups.append([])
        else:
            groups[-1].append(item)
    return [tuple(part) for part in groups]


def split_at(items: Items, word: str) -> list[tuple[Tree, ...]]:
    """Return the items before and after the first words that contain a word."""
    at = next((i for i, item in enumerate(items) if isinstance(item, Words) and word in item.text), None)
    return [tuple(items)] if at is None else [tuple(items[:at]), tuple(items[at + 1 :])]


def after(items: Items, word: str) -> Chain:
    """Return the items after the first words that contain a word. Raise UndefinedError if there are none."""
    groups = split_at(items, word)
    if len(groups) < 2:
        raise UndefinedError(word)
    return Chain(groups[1])


def arguments(argument: Tree) -> list[tuple[Tree, ...]]:
    """Return the arguments of a call, without words such as "rate"."""
    body = argument.body if isinstance(argument, Bracketed) else argument
    return [tuple(i for i in part if not isinstance(i, Words)) for part in split(items_of(body), ",", ";")]


_log_largest = compiled(partial(log_probability_of_largest, nodes=EQUAL_NODES))


def _log_polya_gamma(value: np.ndarray, shape: np.ndarray, tilt: np.ndarray) -> np.ndarray:
    density = np.asarray(polya_gamma.log_density(value, np.where(shape > 0, shape, 1.0), tilt))
    return np.where(shape > 0, density, 0.0)


def _log_normal(value: np.ndarray, mean: np.ndarray | float, variance: np.ndarray | float) -> np.ndarray:
    return -0.5 * (np.log(2.0 * np.pi * variance) + (value - mean) ** 2 / variance)


def _log_levy(value: np.ndarray, location: np.ndarray, scale: np.ndarray) -> np.ndarray:
    gap = np.where(scale > 0, value - location, 1.0)
    density = 0.5 * np.log(np.where(scale > 0, scale, 1.0) / (2.0 * np.pi)) - 1.5 * np.log(gap) - scale / (2.0 * gap)
    return np.where(scale > 0, density, 0.0)


# Log densities of a value and parameters; 0 for a variable that is constant at 0 because a parameter is 0.
DENSITIES: dict[str, Callable[..., np.ndarray]] = {
    "PG": _log_polya_gamma,
    "Poisson": lambda value, rate: scipy.special.xlogy(value, rate) - rate - scipy.special.gammaln(value + 1.0),
    "Lévy": _log_levy,
    "N": _log_normal,
}


class PrintedForm:
    """The lines of a derivation, read as numbers and compared with the engines' functions.

    They are the density, identities, joint, conditionals, sites, expectations and bound.

    ``unread`` are the lines that cannot be read, such as laws from outside the package.
    """

    def __init__(self, case: Case):
        self.case, self.augmentation = case, case.augmentation
        sections = explain_sections(self.augmentation, "")
        self.lines = {section.title: [items_of(line.formula) for line in section.lines] for section in sections}
        self.rules = {rule.auxiliary.name: rule for rule in self.augmentation.rules if rule.auxiliary is not None}
        self.latent = "f" if self.augmentation.predictors is None else "z"
        size = self.augmentation.size
        values = {
            "y": case.y[:, None] if case.y.ndim == 1 else case.y,
            "π": np.full((1, 1), np.pi),
            "c": np.arange(float(size))[None],
            self.latent: case.f,
        }
        parameters = {PARAMETERS.get(name, name): np.atleast_2d(value) for name, value in case.parameters.items()}
        self.reader = Reader(size, {**parameters, **values})
        # Draws of all auxiliaries by the engines.
        self.drawn: dict[str, np.ndarray] = {}
        self.unread: list[str] = []
        self.figure = 0.0

    def check(self) -> Check:
        """Compare everything. Raise VerificationError at the first line with another value."""
        # Printed formulas take logarithms of 0 and overflow.
        with np.errstate(all="ignore"):
            for part in (self.density, self.identities, self.conditionals, self.joint, self.updates, self.bound):
                part()
        return Check(PRINTED, self.figure, SIX_DIGITS)

    @contextmanager
    def reading(self, line: Items) -> Iterator[None]:
        """Note a line that cannot be read. Raise VerificationError for an undefined symbol."""
        try:
            yield
        except UnreadableError:
            self.unread.append(to_text(Chain(tuple(line))))
        except UndefinedError:
            self.compare(line, 1.0, np.zeros((1, 1)))

    def compare(
        self,
        line: Items,
        got: ArrayLike,
        expected: ArrayLike,
        slack: np.ndarray | float = 0.0,
        known: np.ndarray | bool = True,
    ) -> None:
        """Compare (..., n, entries). Values are unknown if naive formulas overflow.

        Raises VerificationError if the discrepancy beyond ``slack`` exceeds the rounding of printed numbers.
        """
        got, expected = np.broadcast_arrays(got, expected)
        known = known & np.isfinite(got) & np.isfinite(expected)
        excess = np.maximum(np.abs(got - expected) - slack, 0.0) / (1.0 + np.abs(expected))
        rows = np.max(np.where(known, excess, 0.0), axis=-1)
        rows = np.broadcast_to(rows, (*rows.shape[:-1], len(self.case.y)))
        check = self.case.check(PRINTED, rows, SIX_DIGITS, self.case.f, printed=to_text(Chain(tuple(line))))
        self.figure = max(self.figure, check.figure)

    def value(
        self, reader: Reader, formula: Items, function: Callable[[np.ndarray], np.ndarray] = np.asarray
    ) -> np.ndarray:
        """Return a function of the value of a formula; NaN if the formula, written for readers, loses digits."""
        noisy = replace(reader, noise=self.case.rng)
        exact, other = (function(r.value(Chain(tuple(formula)))) for r in (reader, noisy))
        return np.where(np.abs(other - exact) <= SIX_DIGITS * (1.0 + np.abs(exact)), exact, np.nan)

    def density(self) -> None:
        """Compare the density of y, and the predictors."""
        line = split(self.lines[""][0], "")[0]
        with self.reading(line):
            density = self.value(self.reader, split(line, "=")[1], np.log)
            self.compare(line, density, self.case.log_density_alone(self.case.f)[:, None])
        predictors = self.augmentation.predictors
        if predictors is not None:
            f = self.case.rng.normal(size=(len(self.case.y), predictors.num_latents))
            z = np.einsum("ipl,il->ip", predictors.matrix(self.case.y, self.case.parameters), f)
            for line, value in zip(split(self.lines[""][1][1:], ","), z.T, strict=True):
                with self.reading(line):
                    self.compare(line, self.value(self.reader.including(f=f), split(line, "=")[1]), value[:, None])

    def identities(self) -> None:
        """Compare both sides of each identity, with the auxiliary summed or integrated out."""
        drawn = {name: value[0] for chain in self.case.chains for name, value in chain.items()}
        env, at_draws = self.case.env(self.case.f, **drawn), self.reader.including(**drawn)
        for rule, line in zip(self.augmentation.rules, self.lines.get("Augmentation", [])[1::2], strict=False):
            with self.reading(line):
                identity, *limits = split_at(line, "over")
                identity, *condition = split_at(identity, "where")
                known, reader = at_draws.holds(Chain(condition[0])) if condition else True, at_draws
                if rule.auxiliary is not None and rule.law is not None:
                    name = rule.auxiliary.name
                    grid = rule.law.grid(drawn[name], env)
                    known = known & grid.known
                    if isinstance(rule.law, IntervalNormal) or _is_zero_by_parameters(rule.law):
                        known = known & ~np.asarray(rule.law.off(env))
                    measure = grid.log_measure
                    if limits:
                        inside = at_draws.including(**{name: grid.values}).holds(Chain(limits[0]))
                        measure = np.where(inside, measure, -np.inf)
                    reader = Reader(at_draws.size, at_draws.values, {name: (grid.values, measure)})
                written = split(split_at(identity, "is Gaussian")[0], "=")
                sides = [self.value(reader, side, np.log) for side in written]
                if len(sides) == 2:
                    self.compare(line, sides[0], sides[1], known=known)
                else:
                    self.compare(line, sides[0], rule.factor.log_evaluate(env))

    def conditionals(self) -> None:
        """Compare the law of each auxiliary, and the sites given the auxiliaries, block by block."""
        block = 0
        sites: dict[str, Items] = {}
        for line in self.lines["Complete conditionals (Gibbs)"]:
            if isinstance(line[0], Words) and line[0].text.startswith("Block "):
                block, sites = int(line[0].text[6:-1]) - 1, {}
            elif Operator("~", False) in line:
                names, law = split(split(line, "")[0], "~")
                variables, conditions = split(names, "|")
                if symbol_of(variables[0]) in self.rules:
                    with self.reading(line):
                        self.law(line, block, symbol_of(variables[0]), law)
                else:
                    # The law of latents depends on their sites.
                    read = sites if len(variables) > 1 else {_index(variables[0]): ()}
                    law = tuple(part for index in read for part in sites.get(index, ()))
                if names_in(Chain(law)) & set(self.rules) - names_in(Chain((*variables, *conditions))):
                    self.compare(line, 1.0, np.zeros((1, 1)))
            for symbol, right in _statements(line):
                if symbol_of(symbol) in ("h", "w"):
                    sites[_index(symbol)] = (*sites.get(_index(symbol), ()), *right)
                    chain = {name: value[:POINTS] for name, value in self.case.chains[block].items()}
                    h, w = self.case.sites_given(chain, self.case.f, block)
                    self.site(line, symbol, right, self.reader, h if symbol_of(symbol) == "h" else w)

    def law(self, line: Items, block: int, name: str, law: Items) -> None:
        """Compare the parameters of a printed law; the reader has the engines' draws if the law is of the datum."""
        engine, drawn = self.rules[name].law, self.case.chains[block][name][:POINTS]
        if engine is None:
            return
        env = self.case.env(self.case.f, **self.drawn)
        off = np.broadcast_to(np.asarray(engine.off(env)), drawn.shape)
        # A variable without a law for a datum may have any value, e.g. 1.
        elsewhere: np.ndarray | float = 0.0 if _is_zero_by_parameters(engine) else 1.0
        if isinstance(engine, Categorical):
            elsewhere = self.case.rng.integers(1, len(engine.weights) + 1, drawn.shape)
        # Each interval has its own condition.
        if not isinstance(engine, IntervalNormal) and not _is_zero_by_parameters(engine):
            law, *condition = split_at(law, ", where")
            on, *other = split_at(condition[0], "else") if condition else [()]
            self.compare(line, 1.0 * self.reader.holds(Chain(on)) if on else 1.0, 1.0 * ~off)
            elsewhere = self.reader.value(Chain(split(other[0], "=")[1])) if other else elsewhere
        self.drawn[name] = drawn
        self.reader = self.reader.including(**{name: np.where(off, elsewhere, drawn)})
        if type(engine) not in _LAWS:
            raise UnreadableError(to_text(Chain(tuple(law))))
        for got, expected in _LAWS[type(engine)](engine, name, law, self.reader, env):
            self.compare(line, got, expected, known=~off)

    def site(self, line: Items, symbol: Tree, right: Items, reader: Reader, expected: np.ndarray) -> None:
        """Compare a printed site of one latent, or of each latent, with the engines' site (..., n, latents)."""
        index = _index(symbol)
        at = slice(int(index), int(index) + 1) if index.isdigit() else slice(None)
        with self.reading(line):
            self.compare(line, self.value(reader, right), expected[..., at])

    def joint(self) -> None:
        """Compare the joint density of y and the auxiliaries."""
        (line,) = self.lines["Augmented likelihood"]
        if len(self.augmentation.blocks) > 1:
            # Each block draws allocations again, so that other variables may have a law.
            self.reader = self.reader.including(**self.drawn)
        with self.reading(line):
            density = self.value(self.reader, split(line, "=")[1], np.log)
            expected = self.augmentation.log_joint(self.drawn, self.case.f, self.case.y, self.case.parameters)
            self.compare(line, density, np.asarray(expected)[..., None])
            env = self.case.env(self.case.f, **self.drawn)
            for name, rule in self.rules.items():
                law = rule.law
                if law is not None and type(law) in _OUTSIDE:
                    outside = self.reader.including(**{name: _OUTSIDE[type(law)](law, self.drawn[name], env)})
                    on = ~np.asarray(law.off(env))
                    self.compare(line, outside.value(Chain(split(line, "=")[1])), 0.0, known=on)

    def updates(self) -> None:
        """Compare expectations and sites under q, and expectations at a point as means of draws."""
        m, v = self._moments()
        sites = dict(zip("hw", self.case.local_sites(m, v), strict=True))
        expected = self.case.run(self.expectations, m, v)
        means, readers = self.means(), [self.marginal(m, v), self.marginal(self.case.f, np.zeros_like(v))]
        for line in self.lines["CAVI updates"]:
            for defined, right in _statements(line):
                symbol = symbol_of(defined)
                if symbol in sites:
                    self.site(line, defined, right, readers[0], sites[symbol])
                elif symbol in expected or symbol.startswith("ζ"):
                    # The value is nan if the definition cannot be read.
                    undefined = np.full((1, 1), np.nan)
                    got = [expected.get(symbol, undefined), undefined]
                    with self.reading(line):
                        got = [self.value(reader, right) for reader in readers]
                        if symbol in expected:
                            self.compare(line, got[0], expected[symbol])
                            self.compare(line, got[1], *means[symbol])
                    readers = [r.including(**{symbol: value}) for r, value in zip(readers, got, strict=True)]

    def expectations(self, m: Array, v: Array) -> dict[str, Array]:
        """Return the engines' expectations of auxiliaries at q's marginals, by symbol."""
        values: dict[str, Any] = {**self.case.parameters, VARIANCE: v}
        for symbol, formula in expectations(self.augmentation):
            values[symbol.name] = formula.evaluate(Environment(self.case.y, m, values))
        return {symbol_of(symbol.notation()): values[symbol.name] for symbol, _ in expectations(self.augmentation)}

    def bound(self) -> None:
        """Compare the local bound."""
        m, v = self._moments()
        reader = self.marginal(m, v)
        line = next(line for line in self.lines["Local bound and ELBO"] if to_text(line[0]) == "B")
        with self.reading(line):
            self.compare(line, self.value(reader, split(line, "=")[1]), self.case.local_bound(m, v)[:, None])

    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        return np.clip(self.case.f, -3.0, 3.0), self.case.rng.uniform(0.2, 1.6, self.case.f.shape)

    def marginal(self, m: np.ndarray, v: np.ndarray) -> Reader:
        """Return the reader of formulas of q's marginals, with the printed definitions of σ̃₊ and σ̃₋."""
        functions: dict[str, Tree] = {}
        for line in self.lines["Local bound and ELBO"]:
            is_root = isinstance(line[0], Words) and line[0].text == "Here, with"
            for symbol, right in _statements(split(line, ",")[0][1:] if is_root else line):
                functions[to_text(symbol.function if isinstance(symbol, Applied) else symbol)] = Chain(tuple(right))
        undefined = {self.latent, *self.rules}
        known = {name: value for name, value in self.reader.values.items() if name not in undefined}
        return Reader(self.reader.size, {**known, "m": m, "v": v}, {}, functions)

    def means(self) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return by symbol: means of draws at ``case.f``, their slack for random error, and a mask of known entries."""
        means = {}
        for symbol, _ in expectations(self.augmentation):
            allocated = symbol.auxiliary if isinstance(symbol.auxiliary, Allocated) else None
            name = symbol.auxiliary.name if allocated is None else allocated.auxiliary.name
            chain = next(chain for chain in self.case.chains if name in chain)
            law, draws = self.rules[name].law, chain[name]
            on = np.ones(draws.shape, bool)
            if law is not None and not law.is_zero_where_off:
                on = on & ~np.asarray(law.off(self.case.env(self.case.f, **chain)))
            draws = draws if allocated is None else 1.0 * (draws == allocated.component)
            count = np.maximum(on.sum(axis=0), 1)
            mean = np.where(on, draws, 0.0).sum(axis=0) / count
            squares = np.where(on, (draws - mean) ** 2, 0.0)
            # If a few draws dominate the variance, the standard error is unreliable. A value that was never drawn may
            # still have probability 1 / DRAWS.
            known = (count > DRAWS // 20) & (squares.max(axis=0) <= 0.02 * squares.sum(axis=0) + SIX_DIGITS)
            slack = STANDARD_ERRORS * (np.sqrt(squares.sum(axis=0)) / count + 2.0 / count)
            means[symbol_of(symbol.notation())] = mean, slack, known
        return means


def _statements(line: Items) -> Iterator[tuple[Tree, Items]]:
    """Return the symbol and right side of each equation, the last first: it defines symbols of earlier ones."""
    for statement in reversed(split(line, "")):
        sides = split(statement, "=")
        if len(sides) == 2 and len(sides[0]) == 1:
            yield sides[0][0], sides[1]


def _is_zero_by_parameters(law: Law) -> bool:
    """Return whether parameters of 0 make a variable 0, so that its law needs no condition."""
    return law.is_zero_where_off and not isinstance(law, Categorical)


def _index(tree: Tree) -> str:
    return to_text(tree.index) if isinstance(tree, Indexed) else ""


# The numbers of a law by a reader, and by the engines, by the law's class.
_Pairs = list[tuple[ArrayLike, ArrayLike]]


def _parameters(*names: str) -> Callable[[Any, str, Items, Reader, Environment], _Pairs]:
    def pairs(engine: Any, _: str, law: Items, reader: Reader, env: Environment) -> _Pairs:
        expected = [(value() if callable(value := getattr(engine, name)) else value).evaluate(env) for name in names]
        return list(zip(_arguments(law, reader), expected, strict=False))

    return pairs


def _arguments(law: Items, reader: Reader) -> list[np.ndarray]:
    if not isinstance(law[0], Applied):
        raise UnreadableError(to_text(Chain(tuple(law))))
    return [reader.value(Chain(part)) for part in arguments(law[0].argument)]


def _categorical(engine: Categorical, name: str, law: Items, reader: Reader, env: Environment) -> _Pairs:
    weights = np.stack(np.broadcast_arrays(*_arguments(law, reader)))
    logs = np.asarray(engine.log_weights(env))
    expected = np.exp(logs - np.logaddexp.reduce(logs, axis=0))
    return list(zip(weights / weights.sum(axis=0), expected, strict=True))


def _truncated(engine: TruncatedNormal, name: str, law: Items, reader: Reader, env: Environment) -> _Pairs:
    # All draws are inside.
    return [*_location(engine, name, law, reader, env), (1.0 * reader.holds(after(law, "truncated to")), 1.0)]


def _interval(engine: IntervalNormal, name: str, law: Items, reader: Reader, env: Environment) -> _Pairs:
    limits, location = after(law, "truncated to"), np.asarray(engine.location.evaluate(env))
    low, high = (np.asarray(end) for end in engine.ends(env))
    step = 1e-3 * np.minimum(high - low, 1.0)
    pairs = _location(engine, name, law, reader, env)
    for shift, inside in ((low - step, np.isinf(low)), (low + step, True), (high - step, True), (high + step, False)):
        at = location + np.where(np.isfinite(shift), shift, 0.0 * location)
        inside = inside & np.isfinite(shift) | ~np.isfinite(shift) & (low < 0) & (high > 0)
        pairs.append((1.0 * reader.including(**{name: at}).holds(limits), 1.0 * inside))
    return pairs


def _argmax(engine: ArgmaxNormal, name: str, law: Items, reader: Reader, env: Environment) -> _Pairs:
    largest = 1.0 * reader.holds(after(law, "the largest at"))
    return [*_location(engine, name, law, reader, env), (largest, 1.0 * np.asarray(engine.node.chosen(env)))]


def _beyond(law: IntervalNormal, value: np.ndarray, env: Environment) -> np.ndarray:
    low, high = (np.asarray(end) for end in law.ends(env))
    return np.asarray(law.location.evaluate(env)) + np.where(np.isfinite(high), high + 0.3, low - 0.3)


# Values at which the density is 0, from draws.
_OUTSIDE: dict[type, Callable[[Any, Any, Environment], Any]] = {
    TruncatedNormal: lambda law, value, env: -value,
    IntervalNormal: _beyond,
    ArgmaxNormal: lambda law, value, env: -value,
}
_location = _parameters("location")
_LAWS: dict[type, Callable[[Any, str, Items, Reader, Environment], _Pairs]] = {
    PolyaGamma: _parameters("shape", "tilt"),
    Poisson: _parameters("rate"),
    Gamma: _parameters("shape", "rate"),
    InverseGaussian: _parameters("mean", "shape"),
    Categorical: _categorical,
    TruncatedNormal: _truncated,
    IntervalNormal: _interval,
    ArgmaxNormal: _argmax,
}


@dataclass(frozen=True)
class Verification:
    """The results of the checks of one derivation; all have passed."""

    checks: tuple[Check, ...]

    @property
    def figures(self) -> dict[str, float]:
        """The largest discrepancy of each check, by name."""
        return {check.name: check.figure for check in self.checks}

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        rows = [f"{'check':{width}}  {'figure':>9}  {'tolerance':>9}"]
        rows += [f"{c.name:{width}}  {c.figure:9.1e}  {c.tolerance:9.1e}" for c in self.checks]
        return "\n".join(rows)


@double_precision
@np.errstate(all="ignore")
def verify_augmentation(
    augmentation: Augmentation,
    parameters: Mapping[str, float],
    support: Support,
    seed: Seed = 0,
    y: ArrayLike | None = None,
) -> Verification:
    """Check a derivation numerically at observations from its support, or at rows of ``y``.

    Raises VerificationError, naming the first failed check, its discrepancy and the point. Raises ValueError if there
    are no valid observations.
    """
    rng = as_generator(seed)
    rows = _observations(augmentation, parameters, support, rng, y)
    f = rng.normal(0.4, 1.5, (ROWS, augmentation.size))
    # Two points in the tails, one of each sign.
    f[rng.integers(ROWS, size=2), rng.integers(augmentation.size, size=2)] = [-5.3, 6.1]
    case = Case(augmentation, dict(parameters), rows, f, rng)
    return Verification(tuple(check(case) for check in CHECKS))


def _observations(
    augmentation: Augmentation,
    parameters: Mapping[str, float],
    support: Support,
    rng: np.random.Generator,
    y: ArrayLike | None,
) -> np.ndarray:
    """Return ROWS observations that meet the derivation's requirements and have a finite log density."""
    accepted: list[np.ndarray] = []
    observed = None if y is None else np.asarray(y, dtype=np.float64)
    for _ in range(40):
        rows = None if observed is None else rng.integers(len(observed), size=4 * ROWS)
        candidates = support.examples(rng, 4 * ROWS) if observed is None else observed[rows]
        accepted.extend(candidates[_allowed(augmentation, parameters, candidates)])
        if len(accepted) >= ROWS:
            return np.stack(accepted[:ROWS])
    wanted = "; ".join(f"{r.reason} ({r.expression.text()}) {r.wording}" for r in augmentation.requirements)
    raise ValueError(
        f"verify: {'no examples' if observed is None else 'the rows of y are not'} observations that "
        f"{augmentation.formula.text()} allows{f' (it needs {wanted})' if wanted else ''}: pass y= with some "
        "that it does."
    )


@np.errstate(all="ignore")
def _allowed(augmentation: Augmentation, parameters: Mapping[str, float], y: Any) -> np.ndarray:
    f: Any = np.full((len(y), augmentation.size), 0.3) + 0.2 * np.arange(augmentation.size)
    env = Environment(y, f, parameters)
    allowed = np.ones(len(y), dtype=bool)
    for requirement in augmentation.requirements:
        holds = requirement.holds(np.asarray(requirement.expression.evaluate(env)))
        allowed &= np.broadcast_to(np.all(holds, axis=-1), len(y))
    for _, rows in undefined_coefficients(augmentation.formula, env):
        allowed &= ~rows
    return allowed & np.isfinite(augmentation.predictor_log_density(y, f, parameters))


CHECKS: tuple[Callable[[Case], Check], ...] = (
    integrates_back, joint_minus_conditional, site_is_joint, draws_follow_conditional, bound_is_tight, bound_is_below,
    site_is_gradient, elbo_rises, lambda case: PrintedForm(case).check(),
)  # fmt: skip
