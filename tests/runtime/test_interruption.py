"""Ctrl-C is not lost in a call of the package."""

import gc
import signal
import sys
import threading
import time

import pytest

from pgmodels.runtime.precision import double_precision, no_lost_interrupt


@pytest.fixture
def interrupting_collection():
    """The next collection is interrupted within a callback, as JAX registers one; how often is counted."""
    times = []

    def callback(phase, info):
        if not times:
            times.append(phase)
            signal.raise_signal(signal.SIGINT)

    gc.callbacks.append(callback)
    yield times
    gc.callbacks.remove(callback)


@double_precision
def work():
    gc.collect()
    # A signal that is sent again comes within 0.01 s.
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        time.sleep(0.001)


@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is not signal.default_int_handler, reason="SIGINT raises no KeyboardInterrupt here"
)
def test_an_interruption_within_the_collection_of_garbage_ends_the_call(interrupting_collection):
    before = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt):
        work()
    assert interrupting_collection == ["start"]
    assert sys.unraisablehook is before


class Fails:
    def __del__(self):
        raise OSError("in a finaliser")


def test_other_discarded_errors_reach_the_hook_of_the_user(monkeypatch):
    errors = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: errors.append(unraisable.exc_type))
    with no_lost_interrupt(), no_lost_interrupt():
        Fails()
    assert errors == [OSError]


def test_calls_in_other_threads_leave_the_hook_of_the_process():
    hooks = []

    def call():
        with no_lost_interrupt():
            hooks.append(sys.unraisablehook)

    thread = threading.Thread(target=call)
    before = sys.unraisablehook
    thread.start()
    thread.join()
    assert hooks == [before]
