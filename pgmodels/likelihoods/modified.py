"""Likelihoods made from other likelihoods: sums of latents, latents as parameters, one likelihood per output."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from operator import add
from typing import Any, ClassVar

import numpy as np

from pgmodels.likelihoods.expression import (
    Constant,
    Expression,
    Latent,
    Latents,
    Observation,
    ParameterSymbol,
    VectorSymbol,
)
from pgmodels.likelihoods.likelihood import Formula, Likelihood, OfFormula, Sampler
from pgmodels.likelihoods.operations import as_expression, exp, substitute
from pgmodels.likelihoods.sampling import draw_observations, is_normalised
from pgmodels.likelihoods.supports import Given, Piece, Real, Support, Undeclared, first_row
from pgmodels.runtime.messages import shorten


@dataclass(frozen=True)
class Sums:
    """Latents that are sums of latents and offsets: latent l is the sum of the latents ``sums[l]``.

    Columns of y after the first ``num_columns`` are offsets, one for each latent in ``offsets``.
    """

    sums: tuple[tuple[int, ...], ...]
    num_columns: int
    offsets: tuple[int, ...]

    def of(self, terms: Sequence[Any], columns: Sequence[Any]) -> list[Any]:
        """Return the sums of terms and offset columns of y, of expressions or of arrays."""
        values = [reduce(add, [terms[number] for number in numbers]) for numbers in self.sums]
        for number, column in zip(self.offsets, columns, strict=True):
            values[number] = values[number] + column
        return values


@dataclass(frozen=True)
class Summed(OfFormula):
    """A formula whose latents are sums of latents."""

    sums: Sums

    def __call__(self, y: Observation, f: Latent | Latents, **parameters: ParameterSymbol | VectorSymbol) -> Expression:
        size, num_columns = len(self.sums.sums), self.sums.num_columns
        columns = [y[num_columns + number] for number in range(len(self.sums.offsets))]
        observation = y[0] if columns and num_columns == 1 else y
        formula = as_expression(self.formula(observation, Latent(0, 1) if size == 1 else Latents(size), **parameters))
        return substitute(formula, self.sums.of([f[number] for number in range(len(f))], columns))


@dataclass(frozen=True)
class SummedSampler:
    """A sampler of y for a formula whose latents are sums of latents."""

    sampler: Sampler
    sums: Sums

    def __call__(self, rng: np.random.Generator, y: np.ndarray, f: np.ndarray, **values: np.ndarray) -> np.ndarray:
        rows, num_columns = np.atleast_2d(y), self.sums.num_columns
        sums = self.sums.of(list(np.atleast_2d(f)), list(rows[num_columns:]))
        observed = rows[0] if num_columns == 1 else rows[:num_columns]
        return self.sampler(rng, observed, sums[0] if len(sums) == 1 else np.stack(sums), **values)


@dataclass(frozen=True)
class Modelled(OfFormula):
    """A formula whose parameters ``names`` are ``lows`` plus exponentials of the latents after the first ``size``."""

    size: int
    names: tuple[str, ...]
    lows: tuple[float, ...]

    def __call__(self, y: Observation, f: Latents, **parameters: ParameterSymbol | VectorSymbol) -> Expression:
        rates = [exp(f[self.size + number]) for number in range(len(self.names))]
        pairs = zip(self.names, self.lows, rates, strict=True)
        values = {name: low + rate if low else rate for name, low, rate in pairs}
        return self.formula(y, f[0] if self.size == 1 else f, **parameters, **values)


@dataclass(frozen=True)
class ModelledSampler:
    """A sampler of y for a formula whose parameters depend on latents."""

    sampler: Sampler
    of: Modelled

    def __call__(self, rng: np.random.Generator, y: np.ndarray, f: np.ndarray, **values: np.ndarray) -> np.ndarray:
        size, names = self.of.size, self.of.names
        modelled = dict(zip(names, np.array(self.of.lows)[:, None] + np.exp(f[size:]), strict=True))
        return self.sampler(rng, y, f[0] if size == 1 else f[:size], **values, **modelled)


def modelled(likelihood: Likelihood, size: int, lows: Mapping[str, float]) -> Likelihood:
    """Return a likelihood with ``size`` latents, and one more for each of its positive parameters ``lows``.

    Each such parameter is its value in ``lows`` plus the exponential of its latent.
    """
    function = Modelled(likelihood.function, size, tuple(lows), tuple(lows.values()))
    moments = likelihood.conditional_mean, likelihood.conditional_variance
    mean, variance = (one and replace(function, formula=one) for one in moments)
    return replace(
        likelihood,
        parameters={name: value for name, value in likelihood.parameters.items() if name not in lows},
        function=function,
        declared_support=likelihood.support(size),
        conditional_mean=mean,
        conditional_variance=variance,
        num_latents=size + len(lows),
        sampler=likelihood.sampler and ModelledSampler(likelihood.sampler, function),
    )


def with_predictor(likelihood: Likelihood, terms: int | Sequence[int], offset: bool = False) -> Likelihood:
    """Return a likelihood whose latents are sums of latents, as in a regression with several terms.

    Each term is a separate GP in the model, with its own kernel and form, and a column of the result.

    Parameters
    ----------
    likelihood : Likelihood
        A likelihood whose formula reads its latent ``f``, or ``f[0]``, ``f[1]`` and so on.
    terms : int or sequence of int
        Number of terms of the predictor, or of each predictor if the likelihood has several latents.
    offset : bool
        Whether y has one more column, the last one, which is added to the first predictor.

    Returns
    -------
    Likelihood
        A likelihood over as many latents as there are terms.

    Raises
    ------
    ValueError
        If the numbers of terms do not match the likelihood.

    Examples
    --------
    >>> import pgmodels as pgm
    >>> counts = pgm.with_predictor(pgm.NegativeBinomial(2.0), 2, offset=True)
    >>> model = pgm.Model(counts, [pgm.GP(pgm.RBF()), pgm.GP(pgm.White())])
    >>> model.num_latents
    2
    """
    sizes = (terms,) if isinstance(terms, int | np.integer) else tuple(terms)
    if not sizes or any(isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1 for n in sizes):
        raise ValueError(f"terms must be a whole number >= 1, or one for each latent; got {shorten(terms)}.")
    required = likelihood.num_latents or len(sizes)
    if len(sizes) != required:
        raise ValueError(
            f"terms must have a number for each of the {required} latents of {likelihood.name}; got {len(sizes)}."
        )
    sums = [range(end - size, end) for size, end in zip(sizes, np.cumsum(sizes), strict=True)]
    return summed(likelihood, sums, (0,) if offset else ())


def summed(likelihood: Likelihood, sums: Sequence[Iterable[int]], offsets: Sequence[int] = ()) -> Likelihood:
    """Return a likelihood whose latent l is the sum of the latents ``sums[l]``.

    y has one more column for each entry of ``offsets``, the index of the latent to which the column is added.
    """
    support = likelihood.support(len(sums))
    groups = tuple(tuple(int(n) for n in terms) for terms in sums)
    of_terms = Sums(groups, support.num_columns, tuple(offsets))
    mean, variance = likelihood.conditional_mean, likelihood.conditional_variance
    return replace(
        likelihood,
        function=Summed(likelihood.function, of_terms),
        declared_support=Given(support, *[Real()] * len(offsets)) if offsets else support,
        conditional_mean=None if mean is None else Summed(mean, of_terms),
        conditional_variance=None if variance is None else Summed(variance, of_terms),
        num_latents=sum(map(len, groups)),
        sampler=None if likelihood.sampler is None else SummedSampler(likelihood.sampler, of_terms),
    )


class SwitchedSupport(Support):
    """An observation, the number k of its output, and covariates of support k, padded to the largest number."""

    def __init__(self, supports: tuple[Support, ...]):
        self.supports = supports

    @property
    def num_columns(self) -> int:  # type: ignore[override]
        return 1 + max(support.num_columns for support in self.supports)

    @property
    def is_discrete(self) -> bool:
        return all(support.is_discrete for support in self.supports)

    @property
    def is_whole_line(self) -> bool:
        return all(support.is_whole_line for support in self.supports)

    def check(self, y: np.ndarray) -> None:
        self._check_outputs(y[:, 1], "y", 1)
        for output, support in enumerate(self.supports):
            rows = np.flatnonzero(y[:, 1] == output)
            if rows.size:
                _check_output(support, columns_of_output(y, support.num_columns), rows, output)

    def check_covariates(self, covariates: np.ndarray) -> None:
        self._check_outputs(covariates[:, 0], "covariates", 0)
        for output, support in enumerate(self.supports):
            rows = np.flatnonzero(covariates[:, 0] == output)
            if rows.size and support.num_covariates:
                support.check_covariates(covariates[rows, 1 : 1 + support.num_covariates])

    def _check_outputs(self, outputs: np.ndarray, name: str, column: int) -> None:
        if (row := first_row(~np.isin(outputs, np.arange(len(self.supports))))) is not None:
            raise ValueError(
                f"{name} must have the number of the output in column {column}, 0 to {len(self.supports) - 1}; got "
                f"{outputs[row]:g} in row {row}. The columns of y are (value, output), then the covariates of "
                "the output's likelihood."
            )

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        """Return the pieces of all outputs; the pieces of an output are empty in the rows of other outputs."""
        pieces = []
        for output, support in enumerate(self.supports):
            rows = y[:, 1] == output
            if not rows.any():
                continue
            for piece in support.pieces(columns_of_output(y, support.num_columns)):
                low, high = piece.ends(len(y))
                pieces.append(Piece(np.where(rows, low, 0.0), np.where(rows, high, -1.0), piece.is_discrete))
        return pieces

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        y = np.ones((n, self.num_columns))
        y[:, 1] = rng.integers(0, len(self.supports), n)
        for output, support in enumerate(self.supports):
            rows = y[:, 1] == output
            drawn = support.examples(rng, n).reshape(n, support.num_columns)[rows]
            y[rows, 0], y[rows, 2 : 1 + support.num_columns] = drawn[:, 0], drawn[:, 1:]
        return y

    def values(self) -> np.ndarray | None:
        """Return the values of an observation if they are the same few for all outputs, else None."""
        lists = [support.values() for support in self.supports]
        distinct = {None if values is None else tuple(values.tolist()) for values in lists}
        return lists[0] if len(distinct) == 1 else None


def _check_output(support: Support, y: np.ndarray, rows: np.ndarray, output: int) -> None:
    """Raise ValueError if observations of an output are outside its support, with the row in y."""
    try:
        support.check(y[rows])
    except ValueError as error:
        message = re.sub(r"in row (\d+)", lambda match: f"in row {rows[int(match[1])]}", str(error))
        place = "column 0 of y" if support.num_columns == 1 else "y without its column of the output"
        row = "" if "in row" in message else f", in row {_first_invalid(support, y, rows)}"
        # The remedy for y in the message applies to these columns.
        raise ValueError(f"{place}, at output {output}{row}: {message}") from None


def _first_invalid(support: Support, y: np.ndarray, rows: np.ndarray) -> int:
    for row in rows:
        try:
            support.check(y[[row]])
        except ValueError:
            return int(row)
    return int(rows[0])


def columns_of_output(y: np.ndarray, num_columns: int) -> np.ndarray:
    """Return observations (n,) or (n, num_columns) of one output's likelihood, without the output column."""
    return y[:, 0] if num_columns == 1 else np.delete(y, 1, axis=1)[:, :num_columns]


class _Observed:
    """The observation that the formula of one output reads, without the output column."""

    def __init__(self, y: Observation):
        self.y = y

    def __getitem__(self, column: int) -> Observation:
        observed = self.y[column]
        return self.y[column + 1] if column else observed


@dataclass(frozen=True)
class Switched:
    """The product Π_k factor_k ^ (y[1] == k), which is the factor of each observation's output.

    ``kind`` selects the factors: "density", "mean" or "variance" of the observation.
    """

    likelihoods: tuple[Likelihood, ...]
    kind: str
    num_latents: int

    __name__: ClassVar[str] = "SwitchedLikelihood"

    def __call__(self, y: Observation, f: Latent | Latents, **parameters: ParameterSymbol | VectorSymbol) -> Expression:
        factors = []
        for output, likelihood in enumerate(self.likelihoods):
            values = {name: parameters[f"{name}_{output}"] for name in likelihood.parameters}
            observed = y[0] if likelihood.support(self.num_latents).num_columns == 1 else _Observed(y)
            # A power of 0 is 1 even if another output's factor is undefined; a product with 0 would be undefined.
            formula = _formula(likelihood, self.num_latents, self.kind)
            assert formula is not None
            factors.append(formula(observed, f, **values) ** (y[1] == output))
        return prod(factors[1:], start=factors[0])


def _formula(likelihood: Likelihood, size: int, kind: str) -> Formula | None:
    """Return the formula of the density or a moment of y: declared, or summed over its values if these are few."""
    declared = likelihood.function if kind == "density" else getattr(likelihood, f"conditional_{kind}")
    support = likelihood.support(size)
    values = support.values()
    if declared is not None or values is None or support.num_columns > 1:
        return declared

    def power_mean(order: int, f: Latent | Latents, parameters: Mapping[str, Any]) -> Any:
        return sum(value**order * likelihood.function(Constant(value), f, **parameters) for value in values)

    if kind == "mean":
        return lambda y, f, **parameters: power_mean(1, f, parameters)
    return lambda y, f, **parameters: power_mean(2, f, parameters) - power_mean(1, f, parameters) ** 2


@dataclass(frozen=True)
class SwitchedSampler:
    """A sampler of y for several outputs."""

    likelihoods: tuple[Likelihood, ...]

    def __call__(self, rng: np.random.Generator, y: np.ndarray, f: np.ndarray, **values: np.ndarray) -> np.ndarray:
        y, f = y.T, np.atleast_2d(f).T
        drawn = np.full(len(y), np.nan)
        for output, likelihood in enumerate(self.likelihoods):
            rows = np.flatnonzero(y[:, 1] == output)
            if rows.size:
                support = likelihood.support(f.shape[1])
                covariates = support.covariate_columns(columns_of_output(y[rows], support.num_columns))
                here = {n: np.atleast_2d(values[f"{n}_{output}"]).T[rows] for n in likelihood.parameters}
                drawn[rows] = draw_observations(likelihood, f[rows], covariates, rng, here)
        return drawn


def SwitchedLikelihood(likelihoods: Sequence[Likelihood], num_latents: int | None = None) -> Likelihood:
    """Return a likelihood per output over the same latents: p(y | f) = Π_k p_k(y[0] | f) ^ (y[1] == k).

    y has the columns (value, output), then the covariates of the output's likelihood. Its formula's ``y[1]`` is
    therefore column 2 of y. Columns that an output does not use are 1. The name of a parameter ends with the number of
    its output: ``scale_0``.

    Parameters
    ----------
    likelihoods : sequence of Likelihood
        The likelihood of each output, with a declared support, over the same latents.
    num_latents : int, optional
        The number of latents, if none of the likelihoods fixes it; 1 by default.

    Returns
    -------
    Likelihood

    Raises
    ------
    ValueError
        If the likelihoods have different numbers of latents, one has no support, or one is of censored times.

    Examples
    --------
    >>> import pgmodels as pgm
    >>> likelihood = pgm.SwitchedLikelihood([pgm.Gaussian(0.1), pgm.Bernoulli()])
    >>> list(likelihood.parameters)
    ['scale_0']
    """
    listed = tuple(likelihoods) if isinstance(likelihoods, Sequence) else ()
    wrong = [likelihood for likelihood in listed if not isinstance(likelihood, Likelihood)]
    if not listed or wrong:
        raise ValueError(
            "likelihoods of SwitchedLikelihood must be a list of likelihoods, such as [pgm.Gaussian(0.1), "
            f"pgm.Bernoulli()]; got {(wrong[0] if wrong else likelihoods)!r}."
        )
    numbers = {likelihood.num_latents for likelihood in listed} | {num_latents}
    fixed = sorted(number for number in numbers if number is not None)
    if len(fixed) > 1:
        raise ValueError(
            f"the likelihoods of SwitchedLikelihood must have the same latents; got {fixed} latents. Write one formula "
            "with a power of (y[1] == k) for each output, which reads its own latents: f[0], f[1], ..."
        )
    size = fixed[0] if fixed else 1
    supports = tuple(likelihood.support(size) for likelihood in listed)
    for output, (likelihood, support) in enumerate(zip(listed, supports, strict=True)):
        if isinstance(support, Undeclared):
            raise ValueError(
                f"likelihood {output} of SwitchedLikelihood, {likelihood.name}, has no declared support of y: declare "
                "it, as in @pgm.likelihood(support=pgm.Counts())."
            )
        if support.num_covariates != support.num_columns - 1:
            raise ValueError(
                f"likelihood {output} of SwitchedLikelihood, {likelihood.name}, observes more than one column of y "
                f"({support!r}), but an output must have one value: write one formula with a power of (y[1] == k) "
                "for each output."
            )
    # Moments are declared, or sums over values, which need probabilities that sum to 1.
    has_moments = all(
        (likelihood.conditional_mean is not None and likelihood.conditional_variance is not None)
        or (_formula(likelihood, size, "mean") is not None and is_normalised(likelihood, size) is True)
        for likelihood in listed
    )
    return Likelihood(
        {f"{name}_{k}": p for k, likelihood in enumerate(listed) for name, p in likelihood.parameters.items()},
        name="SwitchedLikelihood",
        function=Switched(listed, "density", size),
        declared_support=SwitchedSupport(supports),
        conditional_mean=Switched(listed, "mean", size) if has_moments else None,
        conditional_variance=Switched(listed, "variance", size) if has_moments else None,
        num_latents=size,
        sampler=SwitchedSampler(listed),
    )
