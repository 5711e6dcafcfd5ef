"""Additive predictors: a likelihood whose latents are sums of several latents, and of offset columns of y."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from pgmodels.likelihoods.algebra import as_expression
from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.likelihoods.substitution import substitute
from pgmodels.likelihoods.supports import Given, Real
from pgmodels.likelihoods.symbols import Latent, Latents, Observation
from pgmodels.runtime.formatting import shorten


@dataclass(frozen=True)
class Summed:
    """A formula whose latent number l is the sum of the latents ``sums[l]``, and of offsets.

    Columns of y after the formula's ``num_columns`` are offsets of the latents ``offsets``, in turn.
    """

    formula: Callable[..., Any]
    sums: tuple[tuple[int, ...], ...]
    num_columns: int
    offsets: tuple[int, ...]

    @property
    def __name__(self) -> str:
        return self.formula.__name__

    def __call__(self, y: Observation, f: Any, **parameters: Any) -> Expression:
        total = sum(map(len, self.sums))
        terms = [f] if total == 1 else [f[number] for number in range(total)]
        columns = [y[self.num_columns + number] for number in range(len(self.offsets))]
        observation = y[0] if self.offsets and self.num_columns == 1 else y
        size = len(self.sums)
        formula = as_expression(self.formula(observation, Latent(0, 1) if size == 1 else Latents(size), **parameters))
        return substitute(formula, _sums(terms, self.sums, self.offsets, columns))


@dataclass(frozen=True)
class SummedSampler:
    """A sampler of y for sums of latents: see Summed."""

    sampler: Callable[..., np.ndarray]
    sums: tuple[tuple[int, ...], ...]
    num_columns: int
    offsets: tuple[int, ...]

    def __call__(self, rng: np.random.Generator, y: np.ndarray, f: np.ndarray, **values: Any) -> np.ndarray:
        rows = np.atleast_2d(y)
        observed = rows[: self.num_columns]
        sums = _sums(list(np.atleast_2d(f)), self.sums, self.offsets, list(rows[self.num_columns :]))
        one = observed[0] if self.num_columns == 1 else observed
        return self.sampler(rng, one, sums[0] if len(sums) == 1 else np.stack(sums), **values)


def with_predictor(likelihood: Likelihood, terms: int | Sequence[int], offset: bool = False) -> Likelihood:
    """A likelihood whose latents are sums of latents, as in a regression with several terms.

    Each term is a GP of its own in the model, with its own kernel and form, and a column of the result.

    Parameters
    ----------
    likelihood : Likelihood
        A likelihood whose formula reads its latent ``f``, or ``f[0]``, ``f[1]`` and so on.
    terms : int or sequence of int
        The number of terms of the predictor; of each predictor if the likelihood has several latents.
    offset : bool
        Whether y has one more column, the last one, that is added to the first predictor.

    Returns
    -------
    Likelihood
        Over as many latents as there are terms.

    Raises
    ------
    ValueError
        For numbers of terms that do not match the likelihood.

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
    ends = np.cumsum(sizes)
    sums = [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return summed(likelihood, sums, (0,) if offset else ())


def summed(likelihood: Likelihood, sums: Sequence[Iterable[int]], offsets: Sequence[int] = ()) -> Likelihood:
    """A likelihood whose latent number l is the sum of the latents ``sums[l]``.

    y has one more column for each of ``offsets``, the number of the latent that it is added to.
    """
    support = likelihood.support(len(sums))
    options = tuple(tuple(int(n) for n in terms) for terms in sums), support.num_columns, tuple(offsets)

    def wrapped(formula: Any) -> Any:
        return None if formula is None else Summed(formula, *options)

    return replace(
        likelihood,
        function=wrapped(likelihood.function),
        declared_support=Given(support, *[Real()] * len(offsets)) if offsets else support,
        conditional_mean=wrapped(likelihood.conditional_mean),
        conditional_variance=wrapped(likelihood.conditional_variance),
        num_latents=sum(map(len, options[0])),
        sampler=None if likelihood.sampler is None else SummedSampler(likelihood.sampler, *options),
    )


def _sums(terms: list[Any], sums: Sequence[Sequence[int]], offsets: Sequence[int], columns: list[Any]) -> list[Any]:
    values = [reduce(add, [terms[number] for number in numbers]) for numbers in sums]
    for number, column in zip(offsets, columns, strict=True):
        values[number] = values[number] + column
    return values
