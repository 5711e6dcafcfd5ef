"""Progress of long work: a bar in a terminal or notebook, silence elsewhere and where it is turned off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress


class ProgressBar:
    """One bar; ``advance`` moves it and may show a short note."""

    def __init__(self, progress: Progress | None, task: Any):
        self._progress, self._task = progress, task

    @property
    def visible(self) -> bool:
        """Whether anyone sees it."""
        return self._progress is not None

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Move on by some steps."""
        if self._progress is not None:
            self._progress.update(self._task, advance=steps, note=note)


def shows_progress(enabled: bool | None) -> bool:
    """Whether to show progress: as told, and where nothing is said, in a terminal or a notebook only."""
    if enabled is not None:
        return enabled
    from rich.console import Console

    console = Console(stderr=True)
    return console.is_terminal or console.is_jupyter


@contextmanager
def progress_bar(description: str, total: int, enabled: bool | None) -> Iterator[ProgressBar]:
    """A bar of ``total`` steps. ``enabled`` None shows it only where the output is a terminal or a notebook."""
    if not shows_progress(enabled):
        yield ProgressBar(None, None)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield ProgressBar(progress, progress.add_task(description, total=total, note=""))
