"""Running jobs in parallel processes."""

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
    """The result of a job, or its exception."""

    value: Any
    error: Exception | None = None


def run_in_processes(
    work: Callable[..., R], jobs: Sequence[tuple[Any, ...]], on_message: Callable[..., None]
) -> Iterator[R]:
    """The results of ``work(send, *job)`` for each job, in the order of the jobs, each run in its own process.

    ``work`` is a module-level function; its arguments, messages and result are pickled. A message sent by
    ``send(*message)`` arrives here as ``on_message(index of the job, *message)``. An exception of a job is raised here
    in the job's turn. It, an interruption and the end of this process all end the processes that still run. Raises
    RuntimeError where a process ends without a result. Call it in the main thread only.
    """
    # A forked process would lack JAX's threads.
    context = multiprocessing.get_context("spawn")
    processes: list[Any] = []
    connections: dict[int, Connection] = {}
    try:
        # A terminal sends SIGINT to all processes of a command; this process ends the others itself.
        interruption = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for index, job in enumerate(jobs):
                receiving, sending = context.Pipe(duplex=False)
                processes.append(context.Process(target=_run, args=(sending, work, job), daemon=True))
                processes[-1].start()
                sending.close()
                connections[index] = receiving
        finally:
            signal.signal(signal.SIGINT, interruption)
        outcomes: dict[int, _Outcome] = {}
        for index in range(len(jobs)):
            while index not in outcomes:
                _receive(connections, processes, outcomes, on_message)
            value, error = outcomes.pop(index)
            if error is not None:
                raise error
            yield value
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _receive(
    connections: dict[int, Connection],
    processes: Sequence[Any],
    outcomes: dict[int, _Outcome],
    on_message: Callable[..., None],
) -> None:
    """Wait for messages and handle them; the connection of a process is closed after its outcome."""
    ready = wait(list(connections.values()))
    for index, connection in list(connections.items()):
        if connection not in ready:
            continue
        try:
            message = connection.recv()
        except EOFError:
            processes[index].join()
            status = processes[index].exitcode
            message = _Outcome(None, RuntimeError(f"a process ended with status {status} and without a result."))
        if isinstance(message, _Outcome):
            outcomes[index] = message
            del connections[index]
        else:
            on_message(index, *message)


def _run(sending: Connection, work: Callable[..., Any], job: tuple[Any, ...]) -> None:
    """In the child process: run the job and send its outcome."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        outcome = _Outcome(work(lambda *message: sending.send(message), *job))
    except Exception as error:
        error.add_note(f"It was raised in a child process:\n{traceback.format_exc()}")
        outcome = _Outcome(None, error)
    sending.send(outcome)


def _end_with_parent() -> None:
    """End this process when its parent ends: a killed parent cannot end its children."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
