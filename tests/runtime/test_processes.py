"""What a process does while the package computes: forks, threads, interruptions."""

import _thread
import os
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import pgmodels as pgm
from pgmodels.runtime.jit import SMALL, one_thread_up_to

RNG = np.random.default_rng(2)
X = RNG.normal(size=(12, 1))
Y = (X[:, 0] > 0.2).astype(float)


def model(lengthscale):
    return pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.RBF(1.0, lengthscale)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_process_is_refused_with_a_remedy():
    vi = pgm.cavi(model(1.0), X, Y)
    with warnings.catch_warnings():
        # JAX and Python warn of the fork itself.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        signal.alarm(60)  # what hangs ends, and not with 0
        num_errors = 0
        for call in (lambda: pgm.cavi(model(1.0), X, Y), lambda: vi.predict(X).probabilities, lambda: vi.mean):
            try:
                call()
            except RuntimeError as error:
                num_errors += "fork" in str(error) and "spawn" in str(error)
        os._exit(0 if num_errors == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    # The parent goes on.
    np.testing.assert_array_equal(pgm.cavi(model(1.0), X, Y).mean, vi.mean)


def test_threads_agree_with_one_thread():
    models = [model(0.5 + 0.1 * i) for i in range(6)]
    alone = [pgm.cavi(m, X, Y).mean for m in models]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda m: pgm.cavi(m, X, Y).mean, models))
    np.testing.assert_array_equal(together, alone)


def threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_few_rows_are_factorised_by_one_thread():
    with threadpool_limits(2, user_api="blas"):
        with one_thread_up_to(SMALL):
            assert threads() == {1}
        assert threads() == {2}
        with one_thread_up_to(SMALL + 1):
            assert threads() == {2}


def in_a_thread(call):
    """What a call gives in a thread that ends: one that has set the number of threads may keep others from it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@pytest.mark.parametrize("first_out", [0, 1])
def test_threads_that_overlap_leave_the_number_of_blas_threads_as_it_was(first_out):
    inside, leave, exited = (tuple(threading.Event() for _ in range(2)) for _ in range(3))

    def stay(number):
        # Within itself too, as an engine within another.
        with one_thread_up_to(SMALL), one_thread_up_to(SMALL - 1):
            inside[number].set()
            assert leave[number].wait(30.0)
        exited[number].set()

    before = in_a_thread(lambda: threadpool_limits(2, user_api="blas"))
    try:
        with ThreadPoolExecutor(2) as pool:
            done = []
            for number in range(2):
                done.append(pool.submit(stay, number))
                assert inside[number].wait(30.0)
            for number, remaining in ((first_out, {1}), (1 - first_out, {2})):
                assert threads() == {1}
                leave[number].set()
                assert exited[number].wait(30.0)
                assert threads() == remaining
            for one in done:
                one.result()
        # It begins again, also after an error.
        with pytest.raises(ZeroDivisionError), one_thread_up_to(SMALL):
            1 / (threads() != {1})
        assert threads() == {2}
    finally:
        in_a_thread(before.restore_original_limits)


def test_an_interruption_is_obeyed_and_leaves_nothing_behind():
    sizes = {"num_warmup": 2, "num_chains": 1, "seed": 0, "keep": "moments"}
    first = pgm.gibbs(model(1.0), X, Y, num_samples=2, **sizes)
    interrupt = threading.Timer(0.5, _thread.interrupt_main)
    # A process that was started in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt.start()
    begin = time.perf_counter()
    try:
        with pytest.raises(KeyboardInterrupt):
            pgm.gibbs(model(1.0), X, Y, num_samples=10_000_000, **sizes)
    finally:
        signal.signal(signal.SIGINT, before)
    # Ten million samples take minutes; the stretch that runs is finished first.
    assert time.perf_counter() - begin < 30.0
    np.testing.assert_array_equal(pgm.gibbs(model(1.0), X, Y, num_samples=2, **sizes).mean, first.mean)
