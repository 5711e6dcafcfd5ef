"""Learning by stochastic steps: scores of test rows along them, and seconds of the steps alone."""

import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pgmodels as pgm
from pgmodels.datasets import Split
from validation.papers.measures import Scores, scores

# Of few steps, few inducing inputs, hyperparameters at their limits, and classes that no row has.
EXPECTED = (pgm.ConvergenceWarning, pgm.CorrectionWarning, pgm.DataWarning, pgm.FitWarning, pgm.InducingWarning)


class Look(NamedTuple):
    """The result after a number of steps, its scores of the test rows, and seconds of the steps so far."""

    steps: int
    seconds: float
    result: Any
    scores: Scores


class _Clock:
    """A callback with the seconds of all windows of steps, over calls that resume from a checkpoint."""

    def __init__(self) -> None:
        self.seconds = {0: 0.0}
        self.resumed: int | None = None

    def __call__(self, state: Any, info: pgm.IterationInfo) -> None:
        if self.resumed is None:
            self.resumed = info.number - 1
        self.seconds[info.number] = self.seconds[self.resumed] + info.seconds


@contextmanager
def expected_warnings() -> Iterator[None]:
    """Silence the warnings that are expected."""
    with warnings.catch_warnings():
        for category in EXPECTED:
            warnings.simplefilter("ignore", category)
        yield


def learned(call: Callable[..., Any], split: Split, steps: int, batch_size: int, **options: Any) -> Look:
    """The last of ``looks``."""
    return next(looks(call, split, [steps], batch_size, **options))


def looks(
    call: Callable[..., Any],
    split: Split,
    steps: Sequence[int],
    batch_size: int,
    *,
    compiled_before: bool = False,
    **options: Any,
) -> Iterator[Look]:
    """Looks at test rows after numbers of steps, each rounded up to whole epochs.

    ``call`` is ``svi`` or a system that passes its options on to ``svi``, called with the training rows. With
    ``compiled_before`` a call of one epoch precedes, so that the seconds have no compilation.
    """
    batch_size = min(batch_size, len(split.y))
    per_epoch = len(split.y) // batch_size
    options |= {"batch_size": batch_size, "progress": False}
    clock = _Clock()

    def run(epochs: int, **more: Any) -> Any:
        with expected_warnings():
            return call(split.X, split.y, max_epochs=epochs, **options, **more)

    with tempfile.TemporaryDirectory() as folder:
        if compiled_before:
            run(1)
        for count in steps:
            epochs, clock.resumed = -(-count // per_epoch), None
            result = run(epochs, checkpoint=folder, callback=clock)
            taken = scores(result.predict(split.X_test), split.y_test)
            yield Look(epochs * per_epoch, max(clock.seconds.values()), result, taken)
