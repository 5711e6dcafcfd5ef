"""The process of the command line: ``pgmodels``, or ``python -m pgmodels``."""

import os
import sys
from typing import NoReturn

from pgmodels.runtime import INTERRUPTED, end, exit_on_interrupt

# The exit status of a process that writes to a closed pipe, by a shell's convention.
_CLOSED_PIPE = 128 + 13


def run() -> NoReturn:
    """Run the command line and end the process, without a traceback after an interruption or a closed pipe."""
    exit_on_interrupt()
    from pgmodels.cli import main

    status: str | int | None
    try:
        try:
            status = main()
        except SystemExit as ended:
            status = ended.code
        # Now, where the error can be caught, and not in the interpreter's shutdown.
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        os._exit(_CLOSED_PIPE)
    if status == INTERRUPTED:
        end()
    sys.exit(status)


if __name__ == "__main__":
    run()
