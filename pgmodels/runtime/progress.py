"""Progress bars in a terminal or notebook; none elsewhere, or where they are turned off."""

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

# Receives the bars instead of the screen: description, total (None when a bar ends), steps and note.
_listener: ContextVar[Callable[[str, int | None, int, str], None] | None] = ContextVar("listener", default=None)


class ProgressBar:
    """One bar; ``advance`` moves it and may show a short note."""

    def __init__(self, move: Callable[[int, str], None] | None):
        self._move = move

    @property
    def visible(self) -> bool:
        """Whether the bar is shown."""
        return self._move is not None

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Move on by some steps."""
        if self._move is not None:
            self._move(steps, note)


class ProgressBoard:
    """One row for each of several processes, which report their bars by ``update``."""

    def __init__(self, names: Sequence[str], progress: Progress | None):
        self._names, self._progress = names, progress
        # Two tasks a row, of which one is visible: idle, and the current bar.
        self._rows = [] if progress is None else [(_idle(name, progress), _hidden(name, progress)) for name in names]

    def update(self, index: int, description: str, total: int | None, steps: int, note: str) -> None:
        """Show a message of a process: 0 steps begin a bar, and a total of None ends it."""
        if self._progress is None:
            return
        idle, bar = self._rows[index]
        if steps:
            self._progress.update(bar, advance=steps, note=note)
            return
        if total is not None:
            self._progress.reset(bar, total=total, description=f"{self._names[index]}: {description}", note=note)
        self._progress.update(bar, visible=total is not None)
        self._progress.update(idle, visible=total is None)

    @contextmanager
    def closing(self, index: int) -> Iterator[None]:
        """Remove a row; within the context the bars are hidden, so that text can be printed."""
        if self._progress is None:
            yield
            return
        for task in self._rows[index]:
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
        # Without ipywidgets rich shows a warning and no bar.
        return find_spec("ipywidgets") is not None
    # With FORCE_COLOR or TTY_COMPATIBLE rich treats a file as a terminal.
    is_real = sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()
    return is_real and console.is_terminal and console.is_interactive


@contextmanager
def progress_bar(description: str, total: int, enabled: bool | None) -> Iterator[ProgressBar]:
    """A bar of ``total`` steps, shown if ``shows_progress(enabled)``."""
    listener = _listener.get()
    if listener is not None and enabled is not False:
        listener(description, total, 0, "")
        yield ProgressBar(partial(listener, description, total))
        listener("", None, 0, "")
    elif not shows_progress(enabled):
        yield ProgressBar(None)
    else:
        with _display() as progress:
            task = progress.add_task(description, total=total, note="")
            yield ProgressBar(lambda steps, note: progress.update(task, advance=steps, note=note))


@contextmanager
def redirect_progress(listener: Callable[[str, int | None, int, str], None]) -> Iterator[None]:
    """Within the context bars are reported to ``listener`` instead of being shown."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def progress_board(names: Sequence[str], enabled: bool | None) -> Iterator[ProgressBoard]:
    """A board for processes of these names, shown if ``shows_progress(enabled)``."""
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
