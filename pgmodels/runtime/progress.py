"""Progress of long work: a bar in a terminal or notebook, silence elsewhere and where it is turned off."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# Who is told of bars, in the place of the screen: what a bar is of, its length, by how much it moves, and a note.
_site_precisions: ContextVar[Callable[[str, int | None, int, str], None] | None] = ContextVar("told", default=None)


class ProgressBar:
    """One bar; ``advance`` moves it and may show a short note."""

    def __init__(self, move: Callable[[int, str], None] | None):
        self._move = move

    @property
    def visible(self) -> bool:
        """Whether anyone sees it."""
        return self._move is not None

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Move on by some steps."""
        if self._move is not None:
            self._move(steps, note)


class ProgressBoard:
    """A row for each of several processes, which tell of their bars; ``hear`` shows what the one at a place tells."""

    def __init__(self, names: Sequence[str], progress: Progress | None):
        self._names, self._progress = names, progress
        # Two tasks a row, of which one is seen: between bars, and a bar.
        self._rows = [] if progress is None else [(_idle(name, progress), _hidden(name, progress)) for name in names]

    def hear(self, place: int, description: str, total: int | None, steps: int, note: str) -> None:
        """What a process tells: without steps that a bar begins, without its length that it has ended."""
        if self._progress is None:
            return
        idle, bar = self._rows[place]
        if steps:
            self._progress.update(bar, advance=steps, note=note)
            return
        if total is not None:
            self._progress.reset(bar, total=total, description=f"{self._names[place]}: {description}", note=note)
        self._progress.update(bar, visible=total is not None)
        self._progress.update(idle, visible=total is None)

    @contextmanager
    def closing(self, place: int) -> Iterator[None]:
        """Take a row away, and leave the screen to others within the context."""
        if self._progress is None:
            yield
            return
        for task in self._rows[place]:
            self._progress.remove_task(task)
        self._progress.stop()
        yield
        self._progress.start()


def shows_progress(enabled: bool | None) -> bool:
    """Whether to show progress: in a terminal or a notebook, unless it is turned off."""
    if enabled is False:
        return False
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_jupyter:
        # Without these rich warns in the place of showing anything.
        return find_spec("ipywidgets") is not None
    # With FORCE_COLOR or TTY_COMPATIBLE rich takes a file for a terminal, for its colours.
    is_real = sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()
    return is_real and console.is_terminal and console.is_interactive


@contextmanager
def progress_bar(description: str, total: int, enabled: bool | None) -> Iterator[ProgressBar]:
    """A bar of ``total`` steps, where ``shows_progress`` says so."""
    tell = _site_precisions.get()
    if tell is not None and enabled is not False:
        tell(description, total, 0, "")
        yield ProgressBar(partial(tell, description, total))
        tell("", None, 0, "")
    elif not shows_progress(enabled):
        yield ProgressBar(None)
    else:
        with _display() as progress:
            task = progress.add_task(description, total=total, note="")
            yield ProgressBar(lambda steps, note: progress.update(task, advance=steps, note=note))


@contextmanager
def progress_told(tell: Callable[[str, int | None, int, str], None]) -> Iterator[None]:
    """Within the context bars are told of, in the place of being shown."""
    token = _site_precisions.set(tell)
    try:
        yield
    finally:
        _site_precisions.reset(token)


@contextmanager
def progress_board(names: Sequence[str], enabled: bool | None) -> Iterator[ProgressBoard]:
    """A board for processes of these names, shown where ``progress_bar`` would show a bar."""
    with _display() if shows_progress(enabled) else nullcontext() as progress:
        yield ProgressBoard(names, progress)


def _idle(name: str, progress: Progress) -> TaskID:
    return progress.add_task(name, total=None, note="")


def _hidden(name: str, progress: Progress) -> TaskID:
    return progress.add_task(name, total=1, note="", visible=False)


def _display() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
