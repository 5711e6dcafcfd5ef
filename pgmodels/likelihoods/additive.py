"""Additive predictors: a likelihood whose latents are sums of several latents, and of an offset column of y."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.likelihood import Likelihood
from pgmodels.likelihoods.supports import Given, Real
from pgmodels.likelihoods.symbols import Observation


@dataclass(frozen=True)
class Summed:
    """A formula whose latent number l is a sum of ``sizes[l]`` latents, in turn, and of an offset for the first.

    The offset is the column of y after the formula's ``num_columns``, if there is one.
    """

    formula: Callable[..., Any]
    sizes: tuple[int, ...]
    num_columns: int
    has_offset: bool

    @property
    def __name__(self) -> str:
        return self.formula.__name__

    def __call__(self, y: Observation, f: Any, **parameters: Any) -> Expression:
        terms = [f] if sum(self.sizes) == 1 else [f[number] for number in range(sum(self.sizes))]
        offset = y[self.num_columns] if self.has_offset else None
        observation = y[0] if self.has_offset and self.num_columns == 1 else y
        sums = _sums(terms, self.sizes, offset)
        return self.formula(observation, sums[0] if len(sums) == 1 else sums, **parameters)


@dataclass(frozen=True)
class SummedSampler:
    """A sampler of y for sums of latents: see Summed."""

    sampler: Callable[..., np.ndarray]
    sizes: tuple[int, ...]
    num_columns: int
    has_offset: bool

    def __call__(self, rng: np.random.Generator, y: np.ndarray, f: np.ndarray, **values: Any) -> np.ndarray:
        rows = np.atleast_2d(y)
        observed = rows[: self.num_columns]
        sums = _sums(list(np.atleast_2d(f)), self.sizes, rows[self.num_columns] if self.has_offset else None)
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
        raise ValueError(f"terms must be a whole number >= 1, or one for each latent; got {terms!r}.")
    required = likelihood.num_latents or len(sizes)
    if len(sizes) != required:
        raise ValueError(
            f"terms must have a number for each of the {required} latents of {likelihood.name}; got {len(sizes)}."
        )
    support = likelihood.support(required)
    options = tuple(int(n) for n in sizes), support.num_columns, bool(offset)

    def wrapped(formula: Any) -> Any:
        return None if formula is None else Summed(formula, *options)

    return replace(
        likelihood,
        function=wrapped(likelihood.function),
        declared_support=Given(support, Real()) if offset else support,
        conditional_mean=wrapped(likelihood.conditional_mean),
        conditional_variance=wrapped(likelihood.conditional_variance),
        num_latents=sum(options[0]),
        sampler=None if likelihood.sampler is None else SummedSampler(likelihood.sampler, *options),
    )


def _sums(terms: list[Any], sizes: Sequence[int], offset: Any) -> list[Any]:
    ends = np.cumsum(sizes)
    sums = [reduce(add, terms[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
    return sums if offset is None else [sums[0] + offset, *sums[1:]]
