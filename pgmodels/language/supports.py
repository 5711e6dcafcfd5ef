"""What an observation can be: checks with a remedy, the values to sum over, and examples to test with."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np


class Support(ABC):
    """The set that an observation lies in. ``num_columns`` is 1 for y of shape (n,), else y is (n, num_columns)."""

    num_columns: int = 1
    is_discrete: bool = True

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(vars(self).items()))))

    @abstractmethod
    def check(self, y: np.ndarray) -> None:
        """Raise ValueError, naming the first offending row and the remedy, where y lies outside the support."""

    @abstractmethod
    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Some observations in the support, shape (n,) or (n, num_columns)."""

    def values(self) -> np.ndarray | None:
        """All values that an observation can take, where they are few and the same for every datum."""
        return None


def check_whole(y: np.ndarray, what: str) -> None:
    """Raise ValueError where y is not made of whole numbers >= 0."""
    bad = np.flatnonzero((y < 0) | (y != np.round(y)))
    if bad.size:
        raise ValueError(
            f"y must hold {what}, whole numbers >= 0; got {y[bad[0]]:g} in row {bad[0]}. "
            "Use a likelihood for real values if y is not a count."
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
                f"Map {high} to 1{f' and {low} to 0' if values.size == 2 else ''}: y = (y == {high}).astype(float)."
            )
        row = int(np.flatnonzero(~np.isin(y, (0.0, 1.0)))[0])
        raise ValueError(
            f"y must hold the labels 0 and 1; got {y[row]:g} in row {row}, and {values.size} distinct values. Use "
            "LogisticSoftmax or StickBreaking for more than two classes, a count or a real-valued likelihood otherwise."
        )

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.integers(0, 2, n).astype(float)

    def values(self) -> np.ndarray:
        return np.array([0.0, 1.0])


class Classes(Support):
    """A class index 0, 1, ..., num_classes - 1."""

    def __init__(self, num_classes: int):
        if isinstance(num_classes, bool) or not isinstance(num_classes, (int, np.integer)) or num_classes < 2:
            raise ValueError(f"num_classes must be a whole number >= 2; got {num_classes!r}.")
        self.num_classes = int(num_classes)

    def check(self, y: np.ndarray) -> None:
        top = self.num_classes - 1
        bad = np.flatnonzero((y < 0) | (y > top) | (y != np.round(y)))
        if bad.size:
            raise ValueError(
                f"y must hold class indices 0 to {top}; got {y[bad[0]]:g} in row {bad[0]}. Recode the labels with "
                "np.unique(y, return_inverse=True)[1], or give the model as many classes as there are labels."
            )

    def unseen(self, y: np.ndarray) -> list[int]:
        """The classes of which there is no observation."""
        return sorted(set(range(self.num_classes)) - set(y.astype(int).tolist()))

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.integers(0, self.num_classes, n).astype(float)

    def values(self) -> np.ndarray:
        return np.arange(float(self.num_classes))


class Counts(Support):
    """A count 0, 1, 2, ..."""

    def check(self, y: np.ndarray) -> None:
        check_whole(y, "counts")

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
            raise ValueError(
                f"y must hold successes <= trials; got {y[bad[0], 0]:g} successes of {y[bad[0], 1]:g} trials in row "
                f"{bad[0]}. The columns are (successes, trials), not (successes, failures)."
            )

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        trials = rng.integers(0, 6, n)
        return np.stack([rng.binomial(trials, 0.4), trials], axis=1).astype(float)


class Real(Support):
    """A real number."""

    is_discrete = False

    def check(self, y: np.ndarray) -> None:
        pass

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.normal(0.3, 1.5, n)


class Undeclared(Support):
    """The support of a formula that declares none: whatever the formula itself allows."""

    def __init__(self, num_columns: int = 1):
        self.num_columns = num_columns

    def check(self, y: np.ndarray) -> None:
        pass

    def examples(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Candidates of every kind; the caller keeps those that the formula allows."""
        shape = (n, self.num_columns)
        kinds = [rng.integers(0, 2, shape), rng.poisson(2.0, shape), rng.normal(0.3, 1.5, shape)]
        chosen: Any = rng.integers(0, len(kinds), (n, 1))
        y = np.select([chosen == i for i in range(len(kinds))], kinds).astype(float)
        return y[:, 0] if self.num_columns == 1 else y
