"""Infrastructure without Gaussian processes: interrupts, double precision, compilation, progress, pickling, files."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

# The exit status of an interrupted process, by a shell's convention.
INTERRUPTED = 128 + 2


def exit_on_interrupt() -> None:
    """Let SIGINT end the process from now on, unless its parent has set SIGINT to be ignored.

    A KeyboardInterrupt would run the interpreter's shutdown, during which threads that still compile crash. Python also
    discards a KeyboardInterrupt that is raised within a callback of the garbage collector.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


def end(signum: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
    """End the process without the interpreter's shutdown."""
    for stream in (sys.stdout, sys.stderr):
        # The interruption may come during a write, and a progress bar hides the cursor.
        with suppress(Exception):
            stream.write("\x1b[?25h\n" if stream is sys.stderr and stream.isatty() else "")
            stream.flush()
    os._exit(INTERRUPTED)


def is_command() -> bool:
    """Return whether this process is ``pgmodels`` or ``python -m pgmodels``, also during the package's import."""
    arguments = getattr(sys, "argv", [""]) or [""]
    if arguments[0] == "-m":
        original = sys.orig_argv
        return "-m" in original and original[original.index("-m") + 1 :][:1] == ["pgmodels"]
    return Path(arguments[0]).name in ("pgmodels", "pgmodels.exe")
