"""The process of the command line: ``pgmodels``, or ``python -m pgmodels``."""

import os
import sys
from typing import NoReturn

from pgmodels.runtime.interruption import INTERRUPTED, end, exit_on_interrupt

# What a shell says of a process that has written to where nobody reads.
_NOBODY_READS = 128 + 13


def run() -> NoReturn:
    """Run the command line and end the process; quietly where it is interrupted, or where nobody reads on."""
    exit_on_interrupt()
    from pgmodels.cli import main

    status: str | int | None
    try:
        try:
            status = main()
        except SystemExit as ended:
            status = ended.code
        # Here, and not at the interpreter's end.
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        os._exit(_NOBODY_READS)
    if status == INTERRUPTED:
        end()
    sys.exit(status)


if __name__ == "__main__":
    run()
