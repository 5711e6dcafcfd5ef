"""Supports of observations that are cut short: bounded at an end, censored, or truncated."""

from collections.abc import Sequence

import numpy as np

from pgmodels.likelihoods.pieces import Piece
from pgmodels.likelihoods.supports import SWAP, Support
from pgmodels.runtime.formatting import shorten


class Clipped(Support):
    """A real number censored at ``low`` and ``high``, which are recorded as these values: a Tobit model's y."""

    def __init__(self, low: float = -np.inf, high: float = np.inf):
        if not low < high or np.isinf([low, high]).all():
            raise ValueError(f"low and high of Clipped must be numbers, low < high, or one of them; got {low}, {high}.")
        self.low, self.high = float(low), float(high)

    def check(self, y: np.ndarray) -> None:
        bad = np.flatnonzero((y < self.low) | (y > self.high))
        if bad.size:
            raise ValueError(
                f"y must hold numbers from {self.low:g} to {self.high:g}, where it is clipped; got {y[bad[0]]:g} in "
                f"row {bad[0]}. Clip it with np.clip, or change the limits of Clipped."
            )

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        ends = [Piece(end, end, is_discrete=True) for end in (self.low, self.high) if np.isfinite(end)]
        return [*ends, Piece(self.low, self.high)]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        ends = [end for end in (self.low, self.high) if np.isfinite(end)]
        spread = 0.4 * (self.high - self.low) if len(ends) == 2 else 1.5
        return np.clip(np.mean(ends) + rng.normal(0.0, spread, n), self.low, self.high)


class Censored(Support):
    """A time > 0 and an event indicator, 1 for an event and 0 for right censoring: y of shape (n, 2).

    The formula is a density in ``y[0]`` where ``y[1]`` is 1, and the survival probability where it is 0.
    """

    num_columns = 2

    @property
    def num_covariates(self) -> int:
        """0: the event indicator is observed with the time, and predictions are of the time to the event."""
        return 0

    def others(self, covariates: np.ndarray) -> np.ndarray:
        return np.ones((len(covariates), 1))

    def beyond(self, first: np.ndarray, covariates: np.ndarray) -> np.ndarray:
        return np.column_stack([first, np.zeros(len(first))])

    def recorded(self, first: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Censors at the censored times of y; the censoring times of observed events are unknown."""
        end = np.where(y[:, 1] == 0, y[:, 0], np.inf)
        return np.stack([np.minimum(first, end), (first <= end).astype(float)], axis=-1)

    def check(self, y: np.ndarray) -> None:
        # Events may be coded as 1 and 2, so that a second column of 2 does not mean swapped columns.
        others = y[~np.isin(y[:, 1], (0.0, 1.0, 2.0)), 1]
        if np.isin(y[:, 0], (0.0, 1.0)).all() and others.size:
            raise ValueError(
                "y must hold (time, event), and its columns look swapped: the first contains only 0 and 1, the second "
                f"other values such as {others[0]:g}. {SWAP}"
            )
        bad = np.flatnonzero(y[:, 0] <= 0)
        if bad.size:
            raise ValueError(
                f"y[0] must hold times > 0; got {y[bad[0], 0]:g} in row {bad[0]}. A time that is censored at 0 "
                "has no information: drop such a row. An event at 0 was rounded down: use a fraction of the time unit."
            )
        bad = np.flatnonzero(~np.isin(y[:, 1], (0.0, 1.0)))
        if bad.size:
            raise ValueError(
                f"y[1] must hold 1 where a time was observed and 0 where it is censored; got {y[bad[0], 1]:g} in row "
                f"{bad[0]}. The columns are (time, event)."
            )

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        return [Piece(0, y[:, 0], others=1.0), Piece(y[:, 0], y[:, 0], is_discrete=True, others=0.0)]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return np.stack([rng.gamma(2.0, 0.8, n), rng.integers(0, 2, n)], axis=1)


class LeftTruncated(Censored):
    """A time > 0, an event indicator as in ``Censored``, and a time of entry, 0 for none: y of shape (n, 3).

    A row is in the data because its time is above that of entry, ``y[2]``. The formula is a density in ``y[0]`` where
    ``y[1]`` is 1 and the survival probability where it is 0, both over the survival probability at entry. Predictions
    are of times without an entry.
    """

    num_columns = 3

    def others(self, covariates: np.ndarray) -> np.ndarray:
        return np.column_stack([np.ones(len(covariates)), np.zeros(len(covariates))])

    def beyond(self, first: np.ndarray, covariates: np.ndarray) -> np.ndarray:
        return np.column_stack([super().beyond(first, covariates), np.zeros(len(first))])

    def recorded(self, first: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Raise ValueError: a time before the entry is not recorded, and the others are not drawn given that."""
        if (y[:, 2] > 0).any():
            raise ValueError("y: times after an entry, y[2] > 0, cannot be simulated; leave rows with an entry out.")
        inner = super().recorded(first, y[:, :2])
        return np.concatenate([inner, np.zeros((*first.shape, 1))], axis=-1)

    def check(self, y: np.ndarray) -> None:
        super().check(y[:, :2])
        bad = np.flatnonzero((y[:, 2] < 0) | (y[:, 2] >= y[:, 0]))
        if bad.size:
            raise ValueError(
                f"y[2] must hold times of entry from 0, for none, to below the time y[0]; got {y[bad[0], 2]:g} with "
                f"the time {y[bad[0], 0]:g} in row {bad[0]}. The columns are (time, event, entry)."
            )

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        """Events between the entry and ``y[0]``, or none by then."""
        time, entry = y[:, 0], y[:, 2]
        event, none = (np.column_stack([np.full(len(y), code), entry]) for code in (1.0, 0.0))
        return [Piece(entry, time, others=event), Piece(time, time, is_discrete=True, others=none)]

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        y = super().examples(rng, n)
        return np.column_stack([y, y[:, 0] * rng.uniform(0.0, 0.9, n) * rng.integers(0, 2, n)])


class IntervalCensored(Support):
    """A value, a code and a second value, y of shape (n, 3), with the codes of R's ``Surv(type="interval")``.

    Code 0: above ``y[0]``; 1: ``y[0]`` itself; 2: below ``y[0]``; 3: between ``y[0]`` and ``y[2]``. ``y[2]`` counts for
    code 3 alone, and repeats ``y[0]`` in other rows. The formula is a density in ``y[0]`` for code 1, and a probability
    for the others.

    Parameters
    ----------
    low : float
        The end of the values: 0 for times, -inf for any numbers.
    """

    num_columns = 3

    def __init__(self, low: float = 0.0):
        if low not in (0.0, -np.inf):
            raise ValueError(
                f"low of IntervalCensored must be 0 for times or -inf for any numbers; got {shorten(low)}."
            )
        self.low = float(low)

    @property
    def num_covariates(self) -> int:
        """0: codes are observed with the values, and predictions are of the value itself."""
        return 0

    def others(self, covariates: np.ndarray) -> np.ndarray:
        return np.ones((len(covariates), 2))

    def beyond(self, first: np.ndarray, covariates: np.ndarray) -> np.ndarray | None:
        return np.column_stack([first, np.zeros(len(first)), first]) if self.low == 0 else None

    def recorded(self, first: np.ndarray, y: np.ndarray) -> np.ndarray:
        """As if looked at when y was: at ``y[0]`` for codes 0 and 2, at both values for 3, and always for 1."""
        low, code, high = y.T
        high = np.where(code == 3, high, low)
        new = np.select([code == 1, first <= low, (code == 0) | (first > high)], [1, 2, 0], default=3)
        # Events of rows that were followed up are seen when they happen.
        new = np.where((code == 0) & (first <= low), 1, new)
        time = np.select([new == 1, new == 0], [first, high], default=low)
        return np.stack([time, new, np.where(new == 3, high, time)], axis=-1)

    def check(self, y: np.ndarray) -> None:
        for column in (0, 2):
            bad = np.flatnonzero(y[:, column] <= self.low)
            if bad.size:
                raise ValueError(
                    f"y[{column}] must hold times > 0; got {y[bad[0], column]:g} in row {bad[0]}. A time that is below "
                    "an end t is (t, 2, t), with code 2; y[2] repeats y[0] where the code is not 3."
                )
        bad = np.flatnonzero(~np.isin(y[:, 1], (0.0, 1.0, 2.0, 3.0)))
        if bad.size:
            raise ValueError(
                f"y[1] must hold a code: 0 for above y[0], 1 for y[0] itself, 2 for below y[0], 3 for between y[0] and "
                f"y[2]; got {y[bad[0], 1]:g} in row {bad[0]}. The columns are (value, code, second value)."
            )
        bad = np.flatnonzero((y[:, 1] == 3) & (y[:, 2] <= y[:, 0]))
        if bad.size:
            raise ValueError(
                f"y[2] must be above y[0] where the code y[1] is 3; got {y[bad[0], 0]:g} to {y[bad[0], 2]:g} in row "
                f"{bad[0]}. A value that is known has code 1."
            )

    def pieces(self, y: np.ndarray) -> Sequence[Piece]:
        """Values up to ``y[0]`` as they are, then between ``y[0]`` and ``y[2]``, or above both."""
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
