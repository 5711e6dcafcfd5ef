"""Supports of observations: checks with a remedy, the values to sum or integrate over, and examples for tests."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pgmodels.likelihoods.pieces import Piece
from pgmodels.runtime.formatting import shorten

SWAP = "Use y = numpy.array(y); y[:, [0, 1]] = y[:, [1, 0]]."


class Support(ABC):
    """The set of possible observations. ``num_columns`` is 1 for y of shape (n,), else y is (n, num_columns).

    A user-defined support implements ``check``, ``pieces`` and ``examples``. Supports of one class are equal if their
    fields are, which must be hashable.
    """

    num_columns: int = 1

    @property
    def is_discrete(self) -> bool:
        """Whether the support is discrete: a finite or infinite sequence of numbers."""
        return all(piece.is_discrete for piece in self.pieces(self.examples(np.random.default_rng(0), 1)))

    @property
    def is_whole_line(self) -> bool:
        """Whether the support is the real line."""
        pieces = self.pieces(self.examples(np.random.default_rng(0), 1))
        infinite = all(np.isinf(end).all() for piece in pieces for end in (piece.low, piece.high))
        return len(pieces) == 1 and not pieces[0].is_discrete and infinite

    def __repr__(self) -> str:
        # The name of a function: its repr has an address, which differs between processes.
        written = {name: getattr(value, "__qualname__", repr(value)) for name, value in vars(self).items()}
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in written.items())})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(vars(self).items()))))

    @property
    def num_covariates(self) -> int:
        """The number of last columns of y that are covariates of the first, such as trials, not observations."""
        return self.num_columns - 1

    def covariate_columns(self, y: np.ndarray) -> np.ndarray | None:
        """The covariate columns (n, num_covariates) of observations y; None if there are none."""
        return y[:, self.num_columns - self.num_covariates :] if self.num_covariates else None

    def others(self, covariates: np.ndarray) -> np.ndarray:
        """Columns of y after the first, (n, num_columns - 1), for predictions given the covariates."""
        return covariates

    def check_covariates(self, covariates: np.ndarray) -> None:
        """Raise ValueError, naming covariates, where no observation can have these columns (n, num_covariates)."""
        pieces = self.pieces(np.column_stack([np.zeros(len(covariates)), covariates]))
        if not pieces:
            return
        try:
            self.check(np.column_stack([pieces[0].inside(len(covariates)), covariates]))
        except ValueError as error:
            raise ValueError(f"covariates must be valid values of y's columns after the first: {error}") from None

    def beyond(self, first: np.ndarray, covariates: np.ndarray) -> np.ndarray | None:
        """Observations of the event that the first column exceeds ``first`` (n,); None if y cannot express that."""
        return None

    def recorded(self, first: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Observations (..., n) or (..., n, num_columns) with ``first`` (..., n) recorded as in y, such as censored."""
        if self.num_columns == 1:
            return first
        return np.concatenate([first[..., None], np.broadcast_to(y[:, 1:], (*first.shape, y.shape[1] - 1))], axis=-1)

    @abstractmethod
    def check(self, y: np.ndarray) -> None:
        """Raise ValueError, naming the first invalid row and the remedy, if y is outside the support."""

    @abstractmethod
    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        """The possible observations of each datum, whose probabilities sum to 1, given the covariate columns of y."""

    @abstractmethod
    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Random observations in the support, shape (n,) or (n, num_columns)."""

    def values(self) -> np.ndarray | None:
        """All possible values of an observation, or None if they are many or differ between data."""
        return None


def check_whole(y: np.ndarray, what: str, name: str = "y") -> None:
    """Raise ValueError if y is not made of whole numbers >= 0."""
    bad = np.flatnonzero((y < 0) | (y != np.round(y)))
    if bad.size:
        raise ValueError(
            f"{name} must hold {what}, whole numbers >= 0; got {y[bad[0]]:g} in row {bad[0]}. "
            f"Use a likelihood for real values if {name} is not a count."
        )


class Binary(Support):
    """0 or 1."""

    def check(self, y: np.ndarray) -> None:
        values = np.unique(y)
        if np.isin(values, (0.0, 1.0)).all():
            return
        if values.size <= 2:
            low, high = f"{values[0]:g}", f"{values[-1]:g}"
            raise ValueError(
                f"y must hold the labels 0 and 1; got {{{', '.join(f'{v:g}' for v in values)}}}. "
                f"Map {high} to 1{f' and {low} to 0' if values.size == 2 else ''}: "
                f"y = (numpy.asarray(y) == {high}).astype(float)."
            )
        row = int(np.flatnonzero(~np.isin(y, (0.0, 1.0)))[0])
        raise ValueError(
            f"y must hold the labels 0 and 1; got {y[row]:g} in row {row}, and {values.size} distinct values. Use "
            "LogisticSoftmax, Softmax or StickBreaking for more than two classes, a count or a real-valued likelihood "
            "otherwise."
        )

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        return [Piece(0, 1, is_discrete=True)]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.integers(0, 2, n).astype(float)

    def values(self) -> np.ndarray:
        return np.array([0.0, 1.0])


class Classes(Support):
    """A class index 0, 1, ..., num_classes - 1."""

    def __init__(self, num_classes: int):
        if isinstance(num_classes, bool) or not isinstance(num_classes, (int, np.integer)) or num_classes < 2:
            raise ValueError(f"num_classes must be a whole number >= 2; got {shorten(num_classes)}.")
        self.num_classes = int(num_classes)

    def check(self, y: np.ndarray) -> None:
        top = self.num_classes - 1
        bad = np.flatnonzero((y < 0) | (y > top) | (y != np.round(y)))
        if bad.size:
            labels = np.unique(y)
            remedy = f"set num_classes to the number of labels, {len(labels)}, and code the labels from 0."
            if len(labels) <= self.num_classes:
                codes = {float(label): float(code) for code, label in enumerate(labels)}
                remedy = f"recode the labels, new data alike: y = [{codes}[label] for label in numpy.asarray(y)]."
            raise ValueError(f"y must hold class indices 0 to {top}; got {y[bad[0]]:g} in row {bad[0]}: {remedy}")

    def unseen(self, y: np.ndarray) -> list[int]:
        """The classes without an observation in y."""
        return sorted(set(range(self.num_classes)) - set(y.astype(int).tolist()))

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        return [Piece(0, self.num_classes - 1, is_discrete=True)]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.integers(0, self.num_classes, n).astype(float)

    def values(self) -> np.ndarray:
        return np.arange(float(self.num_classes))


class Counts(Support):
    """A count 0, 1, 2, ..."""

    def check(self, y: np.ndarray) -> None:
        check_whole(y, "counts")

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        return [Piece(0, np.inf, is_discrete=True)]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.poisson(2.0, n).astype(float)


class SuccessesOfTrials(Support):
    """Successes out of trials: y of shape (n, 2)."""

    num_columns = 2

    def check(self, y: np.ndarray) -> None:
        check_whole(y[:, 0], "successes in its first column")
        check_whole(y[:, 1], "trials in its second column")
        bad = np.flatnonzero(y[:, 0] > y[:, 1])
        if bad.size:
            remedy = "The columns are (successes, trials), not (successes, failures)."
            if (y[:, 0] >= y[:, 1]).all():
                remedy = f"The columns look swapped: they are (successes, trials). {SWAP}"
            raise ValueError(
                f"y must hold successes <= trials; got {y[bad[0], 0]:g} successes of {y[bad[0], 1]:g} trials in row "
                f"{bad[0]}. {remedy}"
            )

    def check_covariates(self, covariates: np.ndarray) -> None:
        check_whole(covariates[:, 0], "trials", "covariates")

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        return [Piece(0, y[:, 1], is_discrete=True)]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        trials = rng.integers(0, 6, n)
        return np.stack([rng.binomial(trials, 0.4), trials], axis=1).astype(float)


class Real(Support):
    """A real number."""

    def check(self, y: np.ndarray) -> None:
        pass

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        return [Piece(-np.inf, np.inf)]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.normal(0.3, 1.5, n)


class AnyNumber(Real):
    """Any number; the examples are positive, so that they may be scales or exposures."""

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.gamma(2.0, 0.8, n)


class Positive(Support):
    """A real number > 0."""

    def check(self, y: np.ndarray) -> None:
        bad = np.flatnonzero(y <= 0)
        if bad.size:
            raise ValueError(
                f"y must hold real numbers > 0; got {y[bad[0]]:g} in row {bad[0]}. Drop such rows, or use a support "
                "that includes them, such as pgm.Real() or pgm.Clipped(0.0)."
            )

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        return [Piece(0, np.inf)]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.gamma(2.0, 0.8, n)


class UnitInterval(Support):
    """A real number between 0 and 1, such as a share, both ends left out."""

    def check(self, y: np.ndarray) -> None:
        bad = np.flatnonzero((y <= 0) | (y >= 1))
        if bad.size:
            raise ValueError(
                f"y must hold real numbers above 0 and below 1; got {y[bad[0]]:g} in row {bad[0]}. Divide percentages "
                "by 100. Shares of 0 and 1 that were rounded can be moved inside, as in y = (y * (n - 1) + 0.5) / n "
                "with n = len(y); shares of a number of trials are Binomial or BetaBinomial."
            )

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        return [Piece(0, 1)]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.beta(1.5, 2.5, n)


class Given(Support):
    """An observation and covariate columns that the formula reads: ``Given(Counts(), Positive())`` with an exposure.

    Parameters
    ----------
    observed : Support
        The support of the observation, the first column or columns of y.
    *covariates : Support
        The support of each further column of y.

    Raises
    ------
    ValueError
        Without covariates, and for covariates of several columns.

    Examples
    --------
    >>> import pgmodels as pgm
    >>> @pgm.likelihood(support=pgm.Given(pgm.Counts(), pgm.Positive()))
    ... def exposed(y, f):
    ...     return (y[1] * pgm.exp(f)) ** y[0] * pgm.exp(-y[1] * pgm.exp(f)) / pgm.gamma(y[0] + 1)
    >>> vi = pgm.gaussian_vi(pgm.Model(exposed(), pgm.GP(pgm.RBF())), [[0.0], [1.0]], [[3, 1.5], [8, 2.0]])
    >>> low, high = vi.predict([[0.0], [0.0]], covariates=[1.0, 3.0]).mean
    >>> round(float(high / low), 2)
    3.0
    """

    def __init__(self, observed: Support, *covariates: Support):
        supports = (observed, *covariates)
        if not covariates or not all(isinstance(support, Support) for support in supports):
            raise ValueError(
                "Given takes the support of the observation and that of each covariate column, as in "
                f"pgm.Given(pgm.Counts(), pgm.Positive()); got {shorten(supports)}."
            )
        if any(part.num_columns != 1 for part in covariates):
            raise ValueError(f"each covariate of Given is one column; got {covariates!r}.")
        self.observed, self.covariates = observed, covariates

    def __repr__(self) -> str:
        return f"Given{(self.observed, *self.covariates)!r}"

    @property
    def num_columns(self) -> int:  # type: ignore[override]
        """The number of columns of the observation and the covariates."""
        return self.observed.num_columns + len(self.covariates)

    @property
    def num_covariates(self) -> int:
        """The number of covariates of the observed support and of this one."""
        return self.observed.num_covariates + len(self.covariates)

    def others(self, covariates: np.ndarray) -> np.ndarray:
        inner, outer = self._split(covariates)
        return np.column_stack([self.observed.others(inner), outer])

    def beyond(self, first: np.ndarray, covariates: np.ndarray) -> np.ndarray | None:
        inner, outer = self._split(covariates)
        observed = self.observed.beyond(first, inner)
        return None if observed is None else np.column_stack([observed, outer])

    def recorded(self, first: np.ndarray, y: np.ndarray) -> np.ndarray:
        observed = self.observed.recorded(first, self._observed(y))
        observed = observed[..., None] if observed.ndim == first.ndim else observed
        after = y[:, self.observed.num_columns :]
        return np.concatenate([observed, np.broadcast_to(after, (*first.shape, after.shape[1]))], axis=-1)

    def check_covariates(self, covariates: np.ndarray) -> None:
        inner, outer = self._split(covariates)
        if inner.shape[1]:
            self.observed.check_covariates(inner)
        for j, support in enumerate(self.covariates):
            try:
                support.check(outer[:, j])
            except ValueError as error:
                raise ValueError(
                    f"covariates must hold in column {inner.shape[1] + j} valid values of "
                    f"y[{self.observed.num_columns + j}]: {error}"
                ) from None

    def _split(self, covariates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Split covariates into the covariates of the observed support and the columns added by this one."""
        return covariates[:, : self.observed.num_covariates], covariates[:, self.observed.num_covariates :]

    def _observed(self, y: np.ndarray) -> np.ndarray:
        return y[:, 0] if self.observed.num_columns == 1 else y[:, : self.observed.num_columns]

    def check(self, y: np.ndarray) -> None:
        try:
            self.observed.check(self._observed(y))
        except ValueError as error:
            if self.observed.num_columns > 1:
                raise
            # The message's remedy for y applies to this column.
            raise ValueError(f"column 0 of y: {error}") from None
        for j, part in enumerate(self.covariates, self.observed.num_columns):
            try:
                part.check(y[:, j])
            except ValueError as error:
                raise ValueError(f"column {j} of y: {error}") from None

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        covariates = y[:, self.observed.num_columns :]
        return [self._with(piece, covariates) for piece in self.observed.pieces(self._observed(y))]

    def _with(self, piece: Piece, covariates: np.ndarray) -> Piece:
        """A piece of the observed support, extended by covariate columns."""
        if piece.others is None:
            return piece
        others = np.broadcast_to(piece.others, (len(covariates), self.observed.num_columns - 1))
        return replace(piece, others=np.concatenate([others, covariates], axis=1))

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return np.column_stack([part.examples(rng, n) for part in (self.observed, *self.covariates)])

    def values(self) -> np.ndarray | None:
        return self.observed.values()


class Undeclared(Support):
    """The support of a formula without a declared support: the values that the formula allows."""

    def __init__(self, num_columns: int = 1):
        self.num_columns = num_columns

    def check(self, y: np.ndarray) -> None:
        pass

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        return []

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Candidates of several kinds; the caller keeps those that the formula allows."""
        shape = (n, self.num_columns)
        kinds = [rng.integers(0, 2, shape), rng.poisson(2.0, shape), rng.normal(0.3, 1.5, shape)]
        chosen: Any = rng.integers(0, len(kinds), (n, 1))
        y = np.select([chosen == i for i in range(len(kinds))], kinds).astype(float)
        return y[:, 0] if self.num_columns == 1 else y
