"""Progress bars in a terminal or notebook; not shown elsewhere, or if turned off."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


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
    if not shows_progress(enabled):
        yield ProgressBar(None)
    else:
        with _display() as progress:
            task = progress.add_task(description, total=total, note="")
            yield ProgressBar(lambda steps, note: progress.update(task, advance=steps, note=note))


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
