"""Progress of long work: a bar in a terminal or notebook, silence elsewhere and where it is turned off."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class ProgressBar:
    """One bar; ``advance`` moves it and may show a short note."""

    def __init__(self, progress: Progress | None, task: Any):
        self._progress, self._task = progress, task

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Move on by some steps."""
        if self._progress is not None:
            self._progress.update(self._task, advance=steps, note=note)


@contextmanager
def progress_bar(description: str, total: int, enabled: bool | None) -> Iterator[ProgressBar]:
    """A bar of ``total`` steps. ``enabled`` None shows it only where the output is a terminal or a notebook."""
    console = Console(stderr=True)
    if enabled is False or (enabled is None and not (console.is_terminal or console.is_jupyter)):
        yield ProgressBar(None, None)
        return
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
