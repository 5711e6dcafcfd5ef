"""Work in processes of its own, side by side."""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, TypeVar

R = TypeVar("R")


class _Outcome(NamedTuple):
    """What a job returned, or its exception."""

    value: Any
    error: Exception | None = None


def side_by_side(work: Callable[..., R], jobs: Sequence[tuple[Any, ...]], hear: Callable[..., None]) -> Iterator[R]:
    """What ``work(tell, *job)`` returns for each job, each in a process of its own, in the order of the jobs.

    ``work`` is a function of a module; what it takes, tells and returns is pickled. What it tells is heard here, as
    ``hear(place of the job, *told)``. Its exception is raised here when it is its turn. That, or an interruption, ends
    the processes that still run, and so does the end of this one, however it comes. Raises RuntimeError where a process
    ends without a result. In the main thread alone.
    """
    # A forked process would lack the threads of what has computed here.
    context = multiprocessing.get_context("spawn")
    processes: list[Any] = []
    connections: dict[int, Connection] = {}
    try:
        # A terminal interrupts all processes of a command; this one ends the others.
        interruption = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for place, job in enumerate(jobs):
                receiving, sending = context.Pipe(duplex=False)
                processes.append(context.Process(target=_run, args=(sending, work, job), daemon=True))
                processes[-1].start()
                sending.close()
                connections[place] = receiving
        finally:
            signal.signal(signal.SIGINT, interruption)
        outcomes: dict[int, _Outcome] = {}
        for place in range(len(jobs)):
            while place not in outcomes:
                _listen(connections, processes, outcomes, hear)
            value, error = outcomes.pop(place)
            if error is not None:
                raise error
            yield value
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _listen(
    connections: dict[int, Connection],
    processes: Sequence[Any],
    outcomes: dict[int, _Outcome],
    hear: Callable[..., None],
) -> None:
    """Wait until something is told, and hear it; a process that has told its outcome is heard no longer."""
    ready = wait(list(connections.values()))
    for place, connection in list(connections.items()):
        if connection not in ready:
            continue
        try:
            told = connection.recv()
        except EOFError:
            processes[place].join()
            status = processes[place].exitcode
            told = _Outcome(None, RuntimeError(f"a process ended with status {status} and without a result."))
        if isinstance(told, _Outcome):
            outcomes[place] = told
            del connections[place]
        else:
            hear(place, *told)


def _run(sending: Connection, work: Callable[..., Any], job: tuple[Any, ...]) -> None:
    """Within the process: do the job, and tell the outcome."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        outcome = _Outcome(work(lambda *told: sending.send(told), *job))
    except Exception as error:
        error.add_note(f"It was raised in a process of its own:\n{traceback.format_exc()}")
        outcome = _Outcome(None, error)
    sending.send(outcome)


def _end_with_parent() -> None:
    """End this process with the one that started it: what is killed ends nothing itself."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
