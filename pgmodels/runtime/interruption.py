"""An interruption of the command line ends it at once, and quietly."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

# What a shell says of a process that an interruption has ended.
INTERRUPTED = 128 + 2


def obey_at_once() -> None:
    """From now on an interruption ends the process, unless whoever started it has it ignore them.

    As an exception it would unwind through the interpreter's end, in which threads that still compile are cut off in
    the middle and crash; and where it comes within a callback of the garbage collector, Python drops it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


def end(signum: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
    """End the process and those that it has started, without what an interpreter does at its end."""
    processes = sys.modules.get("multiprocessing.process")
    for process in processes.active_children() if processes is not None else []:
        process.terminate()
    for stream in (sys.stdout, sys.stderr):
        # It may have come in the midst of writing; and a bar hides the cursor.
        with suppress(Exception):
            stream.write("\x1b[?25h\n" if stream is sys.stderr and stream.isatty() else "")
            stream.flush()
    os._exit(INTERRUPTED)


def is_command() -> bool:
    """Whether this process is ``pgmodels`` or ``python -m pgmodels``, also while it loads the package."""
    arguments = getattr(sys, "argv", [""]) or [""]
    if arguments[0] == "-m":
        given = sys.orig_argv
        return "-m" in given and given[given.index("-m") + 1 :][:1] == ["pgmodels"]
    return Path(arguments[0]).name in ("pgmodels", "pgmodels.exe")
