"""Files are written whole, by several processes at once too, and nothing else is written."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pgmodels.runtime import io as atomic_io
from pgmodels.runtime.io import atomic_write, read_arrays, remove_temporary, write_arrays


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
    monkeypatch.setattr(atomic_io.secrets, "token_hex", lambda _: "0123456789abcdef")
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
