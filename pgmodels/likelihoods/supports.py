"""Supports of y, integration over pieces of a support, and censored observations."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from pgmodels.runtime.messages import shorten

LogDensity = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Piece:
    """A piece of a support: an interval from ``low`` to ``high``, or low, low + 1, ..., high if ``is_discrete``.

    If y has several columns, the piece contains values of the first column. ``others`` are the later columns; None
    keeps each datum's own columns. The ends may be infinite. The ends and ``others`` are numbers, or arrays with one
    entry per datum.
    """

    low: float | np.ndarray
    high: float | np.ndarray
    is_discrete: bool = False
    others: ArrayLike | None = None

    def ends(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends for each of n data, (n,) each."""
        low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), (n,)) for end in (self.low, self.high))
        return low, high

    def inside(self, n: int) -> np.ndarray:
        """Return a value in the piece for each of n data, (n,): the smallest of a sequence, or an inner point."""
        low, high = self.ends(n)
        below, above = np.isfinite(low), np.isfinite(high)
        if self.is_discrete:
            return np.select([below, above], [low, high], default=0.0)
        with np.errstate(invalid="ignore"):
            return np.select([below & above, below, above], [0.5 * (low + high), low + 1.0, high - 1.0], default=0.0)

    def holds(self, y: np.ndarray) -> np.ndarray:
        """Return whether the first column of each datum of y is in the piece, (n,)."""
        first = y if y.ndim == 1 else y[:, 0]
        low, high = self.ends(len(first))
        return (first >= low) & (first <= high) & (not self.is_discrete or (first - low) % 1.0 == 0.0)

    def columns(self, first: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return observations (points, n) or (points, n, columns) whose first column of y is ``first`` (points, n)."""
        if y.ndim == 1:
            return first
        others = y[:, 1:] if self.others is None else np.broadcast_to(self.others, y[:, 1:].shape)
        return np.concatenate([first[..., None], np.broadcast_to(others, (*first.shape, others.shape[-1]))], axis=-1)


def steps(low: np.ndarray, high: np.ndarray, max_points: float = np.inf) -> tuple[np.ndarray, np.ndarray]:
    """Return low, low + 1, ... up to high, at most ``max_points``: points (points, n) and a mask of existing points."""
    length = np.max(np.minimum(high - low, max_points - 1.0), initial=0.0)
    points = low + np.arange(length + 1.0)[:, None]
    return np.minimum(points, high), points <= high


def outermost(low: np.ndarray, high: np.ndarray, max_points: int) -> tuple[np.ndarray, ...]:
    """Return up to ``max_points`` unit steps from each end, and the interval between them.

    Steps down from high need a finite high. The result is points (points, n), a mask of existing points, and the ends
    of the interval, (n,) each. An empty interval has low >= high.
    """
    points, exists = steps(low, high, max_points)
    last = low + max_points - 1.0
    beyond = np.max(high - last, initial=0.0, where=np.isfinite(high))
    top = high - np.arange(min(beyond, float(max_points)))[:, None]
    inside = np.isfinite(top) & (top > last)
    points, exists = np.concatenate([points, np.where(inside, top, low)]), np.concatenate([exists, inside])
    return points, exists, last + 0.5, high - max_points + 0.5


def cover(
    log_density: LogDensity, low: np.ndarray, high: np.ndarray, coordinates: np.ndarray, mass: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return quadrature points y and log(p dy/ds), (points, n): dense near the mode and far into the tails.

    The coordinate is y, log|y - end|, or the logit of y between its ends. The points are mode + scale sinh(s), with s
    from ``coordinates``. The scale follows from the mass and the density at the mode. A point that is rounded to an end
    has no mass.
    """

    def evaluate(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y, log_slope = _place(low, high, t)
        log_p = np.nan_to_num(log_density(y), nan=-np.inf, neginf=-np.inf)
        return y, np.where(np.isfinite(log_slope), log_p + log_slope, -np.inf)

    mode, height = _mode(lambda t: evaluate(t)[1], low, high, len(coordinates))
    # The log standard deviation of a Gaussian with this height and mass. Densities themselves may over- or underflow.
    log_scale = np.clip(np.nan_to_num(np.log(0.4 * mass) - height, neginf=0.0, posinf=0.0), -600.0, 600.0)
    s = coordinates[:, None]
    y, log_mass = evaluate(mode + np.exp(log_scale) * np.sinh(s))
    return y, log_mass + log_scale + np.log(np.cosh(s))


def _mode(log_mass: LogDensity, low: np.ndarray, high: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mode of the density in the coordinate and its log density, (n,), by a grid search."""
    below, above = np.isfinite(low), np.isfinite(high)
    line, columns = np.linspace(-1.0, 1.0, count)[:, None], np.arange(len(low))
    # The first search covers y itself (-1e43 to 1e43), the log distance from one end, or the logit of the relative
    # position between two ends. σ(36) is the last value that differs from 1 in double precision.
    points = np.select([below & above, below | above], [36.0 * line, 100.0 * line], default=np.sinh(100.0 * line))
    spacing = np.gradient(points, axis=0)
    line = np.linspace(-1.0, 1.0, 64)[:, None]
    for _ in range(8):
        best = log_mass(points).argmax(axis=0)
        t, step = points[best, columns], spacing[best, columns]
        points = t + step * line
        spacing = np.broadcast_to(step * (line[1] - line[0]), points.shape)
    height = log_mass(points)
    best = height.argmax(axis=0)
    return points[best, columns], height[best, columns]


def _place(low: np.ndarray, high: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return y and log dy/dt at coordinates t (points, n) of intervals."""
    below, above = np.isfinite(low), np.isfinite(high)
    with np.errstate(over="ignore", invalid="ignore"):
        width = np.where(below & above, high - low, 1.0)
        y = np.select(
            [below & above, below, above],
            [low + width * scipy.special.expit(t), low + np.exp(t), high - np.exp(t)],
            default=t,
        )
        between = np.log(width) + scipy.special.log_expit(t) + scipy.special.log_expit(-t)
    log_slope = np.select([below & above, below | above], [between, t], default=0.0)
    # Points that are rounded to an end or to infinity have weight 0.
    return np.clip(y, -1e300, 1e300), np.where((y > low) & (y < high), log_slope, -np.inf)


@contextmanager
def _errors_of(place: str) -> Iterator[None]:
    """Put a place before the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


SWAP = "Use y = numpy.array(y); y[:, [0, 1]] = y[:, [1, 0]]."


def first_row(is_wrong: np.ndarray) -> int | None:
    """Return the first row in which a mask (n,) is True, or None."""
    rows = np.flatnonzero(is_wrong)
    return int(rows[0]) if rows.size else None


class Support(ABC):
    """The set of possible observations. y has shape (n,) if ``num_columns`` is 1, else (n, num_columns).

    A user-defined support implements ``check``, ``pieces`` and ``examples``. Two supports of the same class are equal
    if their fields are equal. The fields must be hashable.
    """

    num_columns: int = 1

    @property
    def is_discrete(self) -> bool:
        """Whether the support is a finite or infinite sequence of numbers."""
        return all(piece.is_discrete for piece in self.pieces(self.examples(np.random.default_rng(0), 1)))

    @property
    def is_whole_line(self) -> bool:
        """Whether the support is the real line."""
        pieces = self.pieces(self.examples(np.random.default_rng(0), 1))
        infinite = all(np.isinf(end).all() for piece in pieces for end in (piece.low, piece.high))
        return len(pieces) == 1 and not pieces[0].is_discrete and infinite

    def __repr__(self) -> str:
        # Functions are written by name: their repr contains an address, which differs between processes.
        written = {name: getattr(value, "__qualname__", repr(value)) for name, value in vars(self).items()}
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in written.items())})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(vars(self).items()))))

    @property
    def num_covariates(self) -> int:
        """The number of columns at the end of y that are covariates, such as trials, not observations."""
        return self.num_columns - 1

    def covariate_columns(self, y: np.ndarray) -> np.ndarray | None:
        """Return the covariate columns (n, num_covariates) of observations y, or None if there are none."""
        return y[:, self.num_columns - self.num_covariates :] if self.num_covariates else None

    def others(self, covariates: np.ndarray) -> np.ndarray:
        """Return the columns of y after the first, (n, num_columns - 1), for predictions given the covariates."""
        return covariates

    def check_covariates(self, covariates: np.ndarray) -> None:
        """Raise ValueError, naming covariates, if no observation can have these columns (n, num_covariates)."""
        pieces = self.pieces(np.column_stack([np.zeros(len(covariates)), covariates]))
        if not pieces:
            return
        with _errors_of("covariates must be valid values of y's columns after the first"):
            self.check(np.column_stack([pieces[0].inside(len(covariates)), covariates]))

    def beyond(self, first: np.ndarray, covariates: np.ndarray) -> np.ndarray | None:
        """Return observations of the event that y[0] > ``first`` (n,), or None if y cannot express it."""
        return None

    def recorded(self, first: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return observations (..., n) or (..., n, num_columns) with ``first`` (..., n) recorded like in y."""
        if self.num_columns == 1:
            return first
        return np.concatenate([first[..., None], np.broadcast_to(y[:, 1:], (*first.shape, y.shape[1] - 1))], axis=-1)

    @abstractmethod
    def check(self, y: np.ndarray) -> None:
        """Raise ValueError if y is outside the support, naming the first invalid row and the remedy."""

    @abstractmethod
    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        """Return the possible observations of each datum, given the covariates of y; their probabilities sum to 1."""

    @abstractmethod
    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Return random observations in the support, shape (n,) or (n, num_columns)."""

    def values(self) -> np.ndarray | None:
        """Return all possible values of an observation, or None if they are many or differ between data."""
        return None


def check_whole(y: np.ndarray, what: str, name: str = "y") -> None:
    """Raise ValueError if y contains a number that is not a whole number >= 0."""
    if (row := first_row((y < 0) | (y != np.round(y)))) is not None:
        raise ValueError(
            f"{name} must hold {what}, whole numbers >= 0; got {y[row]:g} in row {row}. "
            f"Use a likelihood for real values if {name} is not a count."
        )


class Binary(Support):
    """A label, 0 or 1."""

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
            f"y must hold the labels 0 and 1; got {y[row]:g} in row {row}, and {values.size} distinct values. For "
            "more than two classes use LogisticSoftmax, Softmax or StickBreaking; else a count or a real-valued "
            "likelihood."
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
        if (row := first_row((y < 0) | (y > top) | (y != np.round(y)))) is not None:
            labels = np.unique(y)
            remedy = f"set num_classes to the number of labels, {len(labels)}, and code the labels from 0."
            if len(labels) <= self.num_classes:
                codes = {float(label): float(code) for code, label in enumerate(labels)}
                remedy = f"recode the labels, new data alike: y = [{codes}[label] for label in numpy.asarray(y)]."
            raise ValueError(f"y must hold class indices 0 to {top}; got {y[row]:g} in row {row}: {remedy}")

    def unseen(self, y: np.ndarray) -> list[int]:
        """Return the classes without an observation in y."""
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


class PositiveCounts(Counts):
    """A count 1, 2, ..."""

    def check(self, y: np.ndarray) -> None:
        check_whole(y, "counts")
        if (row := first_row(y < 1)) is not None:
            raise ValueError(f"y must hold counts of 1 or more; got {y[row]:g} in row {row}.")

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        return [Piece(1, np.inf, is_discrete=True)]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return 1.0 + super().examples(rng, n)


class SuccessesOfTrials(Support):
    """Successes and trials: y of shape (n, 2)."""

    num_columns = 2

    def check(self, y: np.ndarray) -> None:
        check_whole(y[:, 0], "successes in its first column")
        check_whole(y[:, 1], "trials in its second column")
        if (row := first_row(y[:, 0] > y[:, 1])) is not None:
            remedy = "The columns are (successes, trials), not (successes, failures)."
            if (y[:, 0] >= y[:, 1]).all():
                remedy = f"The columns look swapped: they are (successes, trials). {SWAP}"
            raise ValueError(
                f"y must hold successes <= trials; got {y[row, 0]:g} successes of {y[row, 1]:g} trials in row "
                f"{row}. {remedy}"
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
    """Any number. Its examples are positive, since such a column may be a scale or an exposure."""

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.gamma(2.0, 0.8, n)


class Positive(Support):
    """A real number > 0."""

    def check(self, y: np.ndarray) -> None:
        if (row := first_row(y <= 0)) is not None:
            raise ValueError(
                f"y must hold real numbers > 0; got {y[row]:g} in row {row}. Drop such rows, or use a support "
                "that includes them, such as pgm.Real() or pgm.Clipped(0.0)."
            )

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        return [Piece(0, np.inf)]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.gamma(2.0, 0.8, n)


class UnitInterval(Support):
    """A real number strictly between 0 and 1, such as a share."""

    def check(self, y: np.ndarray) -> None:
        if (row := first_row((y <= 0) | (y >= 1))) is not None:
            raise ValueError(
                f"y must hold real numbers above 0 and below 1; got {y[row]:g} in row {row}. Divide percentages "
                "by 100. Shares of 0 and 1 that were rounded can be moved inside, as in y = (y * (n - 1) + 0.5) / n "
                "with n = len(y); shares of a number of trials are Binomial or BetaBinomial."
            )

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        return [Piece(0, 1)]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.beta(1.5, 2.5, n)


class WithEnds(Support):
    """A number that is in another support, an interval from ``low`` to ``high``, or is exactly one of the ``ends``."""

    def __init__(self, inside: Support, *ends: float):
        self.inside, self.ends = inside, ends

    def check(self, y: np.ndarray) -> None:
        with _errors_of(f"y other than {' and '.join(f'{end:g}' for end in self.ends)}"):
            self.inside.check(y[~np.isin(y, self.ends)])

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        return [*(Piece(end, end, is_discrete=True) for end in self.ends), *self.inside.pieces(y)]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return np.where(rng.random(n) < 0.3, rng.choice(self.ends, n), self.inside.examples(rng, n))


class Given(Support):
    """An observation and covariate columns that the formula reads, e.g. ``Given(Counts(), Positive())``, an exposure.

    Parameters
    ----------
    observed : Support
        The support of the observation, the first column or columns of y.
    *covariates : Support
        The support of each further column of y.

    Raises
    ------
    ValueError
        If there are no covariates, or a covariate has several columns.

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
                "Given expects a support of the observation and one of each covariate column, as in "
                f"pgm.Given(pgm.Counts(), pgm.Positive()); got {shorten(supports)}."
            )
        if any(part.num_columns != 1 for part in covariates):
            raise ValueError(f"each covariate of Given is one column; got {covariates!r}.")
        self.observed, self.covariates = observed, covariates
        self.num_columns = observed.num_columns + len(covariates)

    def __repr__(self) -> str:
        return f"Given{(self.observed, *self.covariates)!r}"

    @property
    def num_covariates(self) -> int:
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
            column = f"y[{self.observed.num_columns + j}]"
            with _errors_of(f"covariates must hold in column {inner.shape[1] + j} valid values of {column}"):
                support.check(outer[:, j])

    def _split(self, covariates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Split covariates into the covariates of the observed support and the columns added by this one."""
        return covariates[:, : self.observed.num_covariates], covariates[:, self.observed.num_covariates :]

    def _observed(self, y: np.ndarray) -> np.ndarray:
        return y[:, 0] if self.observed.num_columns == 1 else y[:, : self.observed.num_columns]

    def check(self, y: np.ndarray) -> None:
        # The remedy in the message applies to a single column. Supports of several columns name their own.
        with _errors_of("column 0 of y") if self.observed.num_columns == 1 else nullcontext():
            self.observed.check(self._observed(y))
        for j, part in enumerate(self.covariates, self.observed.num_columns):
            with _errors_of(f"column {j} of y"):
                part.check(y[:, j])

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        covariates = y[:, self.observed.num_columns :]
        shape = (len(y), self.observed.num_columns - 1)
        pieces = []
        for piece in self.observed.pieces(self._observed(y)):
            others = piece.others
            if others is not None:
                others = np.column_stack([np.broadcast_to(others, shape), covariates])
            pieces.append(replace(piece, others=others))
        return pieces

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return np.column_stack([part.examples(rng, n) for part in (self.observed, *self.covariates)])

    def values(self) -> np.ndarray | None:
        return self.observed.values()


class Undeclared(Support):
    """The support of a formula without a declared support: all values that the formula allows."""

    def __init__(self, num_columns: int = 1):
        self.num_columns = num_columns

    def check(self, y: np.ndarray) -> None:
        pass

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        return []

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Return candidates of several kinds. The caller keeps the ones that the formula allows."""
        shape = (n, self.num_columns)
        kinds = [rng.integers(0, 2, shape), rng.poisson(2.0, shape), rng.normal(0.3, 1.5, shape)]
        chosen: Any = rng.integers(0, len(kinds), (n, 1))
        y = np.select([chosen == i for i in range(len(kinds))], kinds).astype(float)
        return y[:, 0] if self.num_columns == 1 else y


class Clipped(Support):
    """A real number that is censored at ``low`` and ``high`` and then recorded as the limit: y of a Tobit model."""

    def __init__(self, low: float = -np.inf, high: float = np.inf):
        if not low < high or np.isinf([low, high]).all():
            raise ValueError(f"low and high of Clipped must be numbers, low < high, or one of them; got {low}, {high}.")
        self.low, self.high = float(low), float(high)

    def check(self, y: np.ndarray) -> None:
        if (row := first_row((y < self.low) | (y > self.high))) is not None:
            raise ValueError(
                f"y must hold numbers from {self.low:g} to {self.high:g}, the limits of Clipped; got {y[row]:g} in "
                f"row {row}. Clip it with np.clip, or change the limits."
            )

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        ends = [Piece(end, end, is_discrete=True) for end in (self.low, self.high) if np.isfinite(end)]
        return [*ends, Piece(self.low, self.high)]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        ends = [end for end in (self.low, self.high) if np.isfinite(end)]
        spread = 0.4 * (self.high - self.low) if len(ends) == 2 else 1.5
        return np.clip(np.mean(ends) + rng.normal(0.0, spread, n), self.low, self.high)


class Censored(Support):
    """A time > 0 and an event indicator, y of shape (n, 2): 1 for an event, 0 for right censoring.

    The formula is a density in ``y[0]`` if ``y[1]`` is 1, and the survival probability if it is 0.
    """

    num_columns = 2
    # The event indicator is observed together with the time, and predictions are of the time to the event.
    num_covariates = 0  # type: ignore[assignment]

    def others(self, covariates: np.ndarray) -> np.ndarray:
        return np.ones((len(covariates), 1))

    def beyond(self, first: np.ndarray, covariates: np.ndarray) -> np.ndarray:
        return np.column_stack([first, np.zeros(len(first))])

    def recorded(self, first: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Censor at the censored times of y. The censoring times of observed events are unknown."""
        end = np.where(y[:, 1] == 0, y[:, 0], np.inf)
        return np.stack([np.minimum(first, end), (first <= end).astype(float)], axis=-1)

    def check(self, y: np.ndarray) -> None:
        # Events may be coded as 1 and 2, and then a 2 in the second column does not mean that the columns are swapped.
        others = y[~np.isin(y[:, 1], (0.0, 1.0, 2.0)), 1]
        if np.isin(y[:, 0], (0.0, 1.0)).all() and others.size:
            raise ValueError(
                "y must hold (time, event), and its columns look swapped: the first contains only 0 and 1, the second "
                f"values such as {others[0]:g}. {SWAP}"
            )
        if (row := first_row(y[:, 0] <= 0)) is not None:
            raise ValueError(
                f"y[0] must hold times > 0; got {y[row, 0]:g} in row {row}. A time that is censored at 0 has "
                "no information: drop such a row. An event at 0 was rounded down: use a fraction of the time unit."
            )
        if (row := first_row(~np.isin(y[:, 1], (0.0, 1.0)))) is not None:
            raise ValueError(
                f"y[1] must hold 1 for an observed time and 0 for a censored one; got {y[row, 1]:g} in row "
                f"{row}. The columns are (time, event)."
            )

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        return [Piece(0, y[:, 0], others=1.0), Piece(y[:, 0], y[:, 0], is_discrete=True, others=0.0)]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return np.stack([rng.gamma(2.0, 0.8, n), rng.integers(0, 2, n)], axis=1)


class LeftTruncated(Censored):
    """A time > 0, an event indicator like in ``Censored``, and an entry time, 0 for none: y of shape (n, 3).

    A row is in the data because its time is later than its entry ``y[2]``. The formula is a density in ``y[0]`` if
    ``y[1]`` is 1 and the survival probability if it is 0, each divided by the survival probability at entry.
    Predictions are of times without an entry.
    """

    num_columns = 3

    def others(self, covariates: np.ndarray) -> np.ndarray:
        return np.column_stack([np.ones(len(covariates)), np.zeros(len(covariates))])

    def beyond(self, first: np.ndarray, covariates: np.ndarray) -> np.ndarray:
        return np.column_stack([super().beyond(first, covariates), np.zeros(len(first))])

    def recorded(self, first: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Raise ValueError if a row has an entry: a time before it is not recorded, and later times cannot be drawn."""
        if (y[:, 2] > 0).any():
            raise ValueError("y: times after an entry, y[2] > 0, cannot be simulated. Leave out rows with an entry.")
        inner = super().recorded(first, y[:, :2])
        return np.concatenate([inner, np.zeros((*first.shape, 1))], axis=-1)

    def check(self, y: np.ndarray) -> None:
        super().check(y[:, :2])
        if (row := first_row((y[:, 2] < 0) | (y[:, 2] >= y[:, 0]))) is not None:
            raise ValueError(
                f"y[2] must hold entry times >= 0 (0 for none) and below the time y[0]; got {y[row, 2]:g} with "
                f"the time {y[row, 0]:g} in row {row}. The columns are (time, event, entry)."
            )

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        """Return two pieces: events between the entry and ``y[0]``, and no event until then."""
        time, entry = y[:, 0], y[:, 2]
        event, none = (np.column_stack([np.full(len(y), code), entry]) for code in (1.0, 0.0))
        return [Piece(entry, time, others=event), Piece(time, time, is_discrete=True, others=none)]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        y = super().examples(rng, n)
        return np.column_stack([y, y[:, 0] * rng.uniform(0.0, 0.9, n) * rng.integers(0, 2, n)])


class IntervalCensored(Support):
    """A value, a code and a second value, y of shape (n, 3). It has the codes of R's ``Surv(type="interval")``.

    Code 0 means above ``y[0]``, 1 ``y[0]`` itself, 2 below ``y[0]``, and 3 between ``y[0]`` and ``y[2]``. Only code 3
    uses ``y[2]``, and it repeats ``y[0]`` in other rows. The formula is a density in ``y[0]`` for code 1 and a
    probability for the other codes.

    Parameters
    ----------
    low : float
        The lower end of the values: 0 for times, -inf for any numbers.
    """

    num_columns = 3
    # Codes are observed together with the values, and predictions are of the value itself.
    num_covariates = 0  # type: ignore[assignment]

    def __init__(self, low: float = 0.0):
        if low not in (0.0, -np.inf):
            raise ValueError(
                f"low of IntervalCensored must be 0 for times or -inf for any numbers; got {shorten(low)}."
            )
        self.low = float(low)

    def others(self, covariates: np.ndarray) -> np.ndarray:
        return np.ones((len(covariates), 2))

    def beyond(self, first: np.ndarray, covariates: np.ndarray) -> np.ndarray | None:
        return np.column_stack([first, np.zeros(len(first)), first]) if self.low == 0 else None

    def recorded(self, first: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Record ``first`` with the inspection times of y: ``y[0]`` for codes 0 and 2, both values for 3, all for 1."""
        low, code, high = y.T
        high = np.where(code == 3, high, low)
        new = np.select([code == 1, first <= low, (code == 0) | (first > high)], [1, 2, 0], default=3)
        # Events in rows that were followed up are seen when they happen.
        new = np.where((code == 0) & (first <= low), 1, new)
        time = np.select([new == 1, new == 0], [first, high], default=low)
        return np.stack([time, new, np.where(new == 3, high, time)], axis=-1)

    def check(self, y: np.ndarray) -> None:
        for column in (0, 2):
            if (row := first_row(y[:, column] <= self.low)) is not None:
                raise ValueError(
                    f"y[{column}] must hold times > 0; got {y[row, column]:g} in row {row}. Write a time below "
                    "an end t as (t, 2, t), with code 2; y[2] repeats y[0] if the code is not 3."
                )
        if (row := first_row(~np.isin(y[:, 1], (0.0, 1.0, 2.0, 3.0)))) is not None:
            raise ValueError(
                f"y[1] must hold a code: 0 for above y[0], 1 for y[0] itself, 2 for below y[0], 3 for between y[0] and "
                f"y[2]; got {y[row, 1]:g} in row {row}. The columns are (value, code, second value)."
            )
        if (row := first_row((y[:, 1] == 3) & (y[:, 2] <= y[:, 0]))) is not None:
            raise ValueError(
                f"y[2] must be above y[0] if the code y[1] is 3; got {y[row, 0]:g} to {y[row, 2]:g} in row "
                f"{row}. A known value has code 1."
            )

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        """Return three pieces: exact values up to ``y[0]``, values from there to ``y[2]``, and larger values."""
        low, high = y[:, 0], np.maximum(y[:, 0], y[:, 2])
        fixed = np.ones(len(y))
        return [
            Piece(self.low, low, others=np.column_stack([fixed, y[:, 2]])),
            Piece(low, low, is_discrete=True, others=np.column_stack([3 * fixed, y[:, 2]])),
            Piece(high, high, is_discrete=True, others=np.column_stack([0 * fixed, high])),
        ]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        low = rng.gamma(2.0, 0.8, n) if self.low == 0 else rng.normal(0.3, 1.5, n)
        return np.stack([low, rng.integers(0, 4, n), low + rng.gamma(2.0, 0.8, n)], axis=1)
