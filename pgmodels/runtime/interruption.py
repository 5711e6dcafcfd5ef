"""Ctrl-C ends the command line at once, without a traceback, and is not lost in calls from Python."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

# The exit status of an interrupted process, by a shell's convention.
INTERRUPTED = 128 + 2


def exit_on_interrupt() -> None:
    """From now on SIGINT ends the process, unless its parent has set SIGINT to be ignored.

    A KeyboardInterrupt would run the interpreter's shutdown, during which threads that still compile crash; and Python
    discards one that is raised within a callback of the garbage collector.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


def end(signum: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
    """End the process, without the interpreter's shutdown."""
    for stream in (sys.stdout, sys.stderr):
        # The interruption may come while something is written; and a progress bar hides the cursor.
        with suppress(Exception):
            stream.write("\x1b[?25h\n" if stream is sys.stderr and stream.isatty() else "")
            stream.flush()
    os._exit(INTERRUPTED)


# Seconds after which a discarded interruption is raised again: a callback of the garbage collector takes less.
_DELAY = 0.01


class _RaiseAgain:
    """A hook for errors that Python discards: it sends SIGINT again for an interruption, and passes on all others."""

    def __init__(self, previous: Any):
        self.previous = previous

    def __call__(self, unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # By another thread: raised here, it would be discarded once more.
            threading.Timer(_DELAY, signal.raise_signal, [signal.SIGINT]).start()
        else:
            self.previous(unraisable)


@contextmanager
def no_lost_interrupt() -> Iterator[None]:
    """Within the context, a KeyboardInterrupt that Python discards is raised again a moment later.

    Python discards one that is raised within a callback of the garbage collector, and JAX registers such a callback.
    """
    previous = sys.unraisablehook
    # Python interrupts the main thread alone.
    if isinstance(previous, _RaiseAgain) or threading.current_thread() is not threading.main_thread():
        yield
        return
    sys.unraisablehook = _RaiseAgain(previous)
    try:
        yield
    finally:
        sys.unraisablehook = previous


def is_command() -> bool:
    """Whether this process is ``pgmodels`` or ``python -m pgmodels``, also while the package is being imported."""
    arguments = getattr(sys, "argv", [""]) or [""]
    if arguments[0] == "-m":
        original = sys.orig_argv
        return "-m" in original and original[original.index("-m") + 1 :][:1] == ["pgmodels"]
    return Path(arguments[0]).name in ("pgmodels", "pgmodels.exe")
