"""Files are written whole, by several processes at once too, and nothing else is written."""

import errno
import gc
import json
import os
import platform
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pgmodels.runtime import io
from pgmodels.runtime.io import atomic_write, locked_folder, read_arrays, remove_temporary, write_arrays
from pgmodels.runtime.precision import double_precision, no_lost_interrupt


def test_atomic_write_twice_at_once_gives_each_its_own_file(tmp_path):
    path = tmp_path / "fit.npz"
    with atomic_write(path) as first:
        first.write_text("first")
        with atomic_write(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
        assert first.read_text() == "first"
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_write_arrays_by_several_at_once_leaves_a_complete_file_at_any_moment(tmp_path):
    path = tmp_path / "fit.npz"
    write_arrays(path, {"number": 0}, {"values": np.zeros(500)})

    def write(number):
        for _ in range(40):
            write_arrays(path, {"number": number}, {"values": np.full(500, float(number))})

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(write, number) for number in (1, 2)]
        while not all(writer.done() for writer in writers):
            document, arrays = read_arrays(path)
            np.testing.assert_array_equal(arrays["values"], np.full(500, float(document["number"])))
        for writer in writers:
            writer.result()
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_write_does_not_follow_links_at_temporary_names(tmp_path, monkeypatch):
    path, victim = tmp_path / "fit.npz", tmp_path / "victim"
    victim.write_text("precious")
    # The name that every write of this file used to have, and one that is guessed.
    (tmp_path / ".fit.npz.tmp").symlink_to(victim)
    (tmp_path / ".fit.npz.0123456789abcdef.tmp").symlink_to(victim)
    with atomic_write(path) as temporary:
        temporary.write_text("result")
    assert (path.read_text(), victim.read_text()) == ("result", "precious")
    monkeypatch.setattr(io.secrets, "token_hex", lambda _: "0123456789abcdef")
    with pytest.raises(FileExistsError), atomic_write(path):
        pytest.fail("a file that is there already is not written to")
    assert (path.read_text(), victim.read_text()) == ("result", "precious")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_atomic_write_gives_the_permissions_of_any_new_file(tmp_path, mask):
    before = os.umask(mask)
    try:
        with atomic_write(tmp_path / "ours") as temporary:
            temporary.write_text("text")
        (tmp_path / "plain").write_text("text")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "plain")]
    assert modes == [0o666 & ~mask] * 2


def test_remove_temporary_removes_what_killed_writes_left_and_no_other_file(tmp_path):
    kept = [".fit.npz.tmp", ".other.npz.0123456789abcdef.tmp", ".fit.npz.mine.tmp", "fit.npz", ".fitnpz.tmp"]
    for name in (*kept, ".fit.npz.0123456789abcdef.tmp"):
        (tmp_path / name).touch()
    remove_temporary(tmp_path, r"fit\.npz|index\.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


# One run at a time uses a folder, whatever became of the others.


fcntl = pytest.importorskip("fcntl")

# Without the package, whose import takes seconds.
HOLDER = """
import importlib.util, pathlib, sys, time
spec = importlib.util.spec_from_file_location("folder_lock", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
with module.locked_folder(pathlib.Path(sys.argv[2]), "checkpoint", "svi"):
    print("locked", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder."""
    command = [sys.executable, "-c", HOLDER, io.__file__, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def lock_file(folder, **changes):
    holder = {"run": "gibbs", "process": os.getpid(), "host": platform.node(), "since": "2026-01-02 03:04:05"}
    (folder / "pgmodels.lock").write_text(json.dumps(holder | changes))
    return folder / "pgmodels.lock"


def require_refused(folder, message):
    with pytest.raises(ValueError, match=message), locked_folder(folder, "checkpoint", "gibbs"):
        pytest.fail("the folder was locked")


def require_free(folder):
    with locked_folder(folder, "checkpoint", "gibbs"):
        assert json.loads((folder / "pgmodels.lock").read_text())["process"] == os.getpid()
    assert (folder / "pgmodels.lock").read_text() == ""


def ended_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_locked_folder_of_another_process_names_it_and_is_free_after_its_death(tmp_path, holder):
    text = f"checkpoint: {tmp_path} is in use by a run of svi in process {holder.pid} on {platform.node()}, since 20"
    require_refused(tmp_path, re.escape(text))
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert json.loads((tmp_path / "pgmodels.lock").read_text())["process"] == holder.pid
    require_free(tmp_path)


def test_locked_folder_twice_in_one_process_is_refused_until_the_first_ends(tmp_path):
    with locked_folder(tmp_path, "checkpoint", "gibbs"):
        require_refused(tmp_path, f"a run of gibbs in process {os.getpid()}.*Wait until that run has ended, or name")
        require_refused(tmp_path, f"a run of gibbs in process {os.getpid()}")
    require_free(tmp_path)


def test_locked_folder_after_an_error_in_the_context_is_free(tmp_path):
    with pytest.raises(KeyboardInterrupt), locked_folder(tmp_path, "checkpoint", "gibbs"):
        raise KeyboardInterrupt
    require_free(tmp_path)


def test_locked_folder_of_another_machine_is_refused_until_its_file_is_deleted(tmp_path):
    path = lock_file(tmp_path, host="elsewhere", process=12)
    require_refused(tmp_path, f"in process 12 on elsewhere, since 2026-01-02.*If it has ended, delete {path}")
    assert json.loads(path.read_text())["process"] == 12
    path.unlink()
    require_free(tmp_path)


@pytest.mark.parametrize(("is_running", "is_refused"), [(True, True), (False, False)])
def test_locked_folder_without_locks_of_the_file_system_depends_on_the_process(
    tmp_path, monkeypatch, is_running, is_refused
):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock_file(tmp_path, process=os.getpid() if is_running else ended_process())
    if is_refused:
        require_refused(tmp_path, f"is in use by a run of gibbs in process {os.getpid()} on {platform.node()}")
    else:
        require_free(tmp_path)


@pytest.mark.parametrize("text", ["my notes", "[1, 2]", '{"run": "gibbs", "process": -1, "host": "a", "since": "b"}'])
def test_locked_folder_with_a_file_of_that_name_by_another_program_leaves_it(tmp_path, text):
    (tmp_path / "pgmodels.lock").write_text(text)
    require_refused(tmp_path, "is no lock file of pgmodels. Delete it, or name another folder")
    assert (tmp_path / "pgmodels.lock").read_text() == text


def test_locked_folder_with_a_link_or_a_pipe_of_that_name_is_refused(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "pgmodels.lock"
    victim.write_text("")
    path.symlink_to(victim)
    require_refused(tmp_path, "cannot be used as a lock file .it is a link.")
    path.unlink()
    os.mkfifo(path)
    require_refused(tmp_path, "cannot be used as a lock file .it is no regular file.")
    path.unlink()
    path.mkdir()
    require_refused(tmp_path, "cannot be used as a lock file .Is a directory.")


# Ctrl-C is not lost in a call of the package.


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
