"""One run at a time uses a folder, whatever became of the others."""

import errno
import json
import os
import platform
import re
import signal
import subprocess
import sys

import pytest

from pgmodels.runtime import io as folder_lock
from pgmodels.runtime.io import locked_folder

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
    command = [sys.executable, "-c", HOLDER, folder_lock.__file__, str(tmp_path)]
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
def test_locked_folder_where_the_file_system_has_no_locks_asks_for_the_process(
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
