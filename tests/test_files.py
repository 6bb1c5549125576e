"""Files that are complete or not there."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_specrl import files
from nemo_specrl.files import put_in_place, staged, sync, write_atomic


def test_contents_are_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, "ä\n")
    assert path.read_bytes() == "ä\n".encode()
    write_atomic(path, b"\0\1")
    assert path.read_bytes() == b"\0\1"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask, "others may read it, as any other file"


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def fail() -> None:
        with staged(path) as scratch:
            scratch.write_text("half")
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("durable", [True, False])
def test_contents_are_on_the_disk_before_the_name_and_the_name_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    done = []
    replace = os.replace
    monkeypatch.setattr(files, "sync", lambda path: done.append("sync folder" if path == tmp_path else "sync file"))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("rename"), replace(a, b)))
    with staged(tmp_path / "a", durable=durable) as scratch:
        scratch.write_text("x")
    assert done == (["sync file", "rename", "sync folder"] if durable else ["rename"])


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomic(path, "old")
    code = (
        "import os, pathlib, sys; from nemo_specrl.files import staged\n"
        "with staged(pathlib.Path(sys.argv[1])) as scratch: scratch.write_text('half'); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -9
    assert path.read_text() == "old"


def test_a_folder_is_put_in_place_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    put_in_place(tmp_path / "one", tmp_path / "final")
    assert (tmp_path / "final" / "file").read_text() == "one"
    with pytest.raises(OSError, match="not empty"):
        put_in_place(tmp_path / "two", tmp_path / "final")


def test_a_file_system_without_sync_is_no_error_and_a_broken_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(code: int) -> None:
        def fsync(descriptor: int) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "fsync", fsync)

    refuse(errno.EINVAL)
    sync(tmp_path)
    refuse(errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        sync(tmp_path)
