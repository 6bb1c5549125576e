"""Checkpoints: complete or not there."""

import errno
import json
from pathlib import Path

import pytest

from nemo_specrl.training import checkpoint


def _write(text: str) -> "checkpoint.Callable[[Path], None]":
    return lambda folder: (folder / "weights").write_text(text) and None


def _publish(root: Path, step: int, keep: int = 2) -> Path:
    return checkpoint.publish(root, step, _write(f"w{step}"), {"step": step}, keep=keep)


def test_newest_complete_is_found_and_older_ones_pruned(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        _publish(tmp_path, step)
    found = checkpoint.newest(tmp_path)
    assert found is not None
    assert (found.step, found.state, (found.folder / "weights").read_text()) == (3, {"step": 3}, "w3")
    assert [c.step for c in checkpoint.complete(tmp_path)] == [3, 2]


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path / "none") is None


@pytest.mark.parametrize("damage", ["truncate", "flip", "no manifest", "broken manifest", "missing file"])
def test_a_damaged_newest_one_costs_only_itself(tmp_path: Path, damage: str) -> None:
    _publish(tmp_path, 1)
    newest = _publish(tmp_path, 2)
    match damage:
        case "truncate":
            (newest / "weights").write_text("")
        case "flip":
            (newest / "weights").write_text("x2")
        case "no manifest":
            (newest / checkpoint.MANIFEST).unlink()
        case "broken manifest":
            (newest / checkpoint.MANIFEST).write_text("{")
        case "missing file":
            (newest / "weights").unlink()
    found = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.step == 1


def test_none_usable_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (_publish(tmp_path, 1) / "weights").write_text("xx")
    with pytest.raises(ValueError, match="restore one, or start afresh"):
        checkpoint.newest(tmp_path)


@pytest.mark.parametrize("where", ["write", "seal"])
def test_full_disk_keeps_the_earlier_one(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _publish(tmp_path, 1)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if where == "seal":
        monkeypatch.setattr(checkpoint, "_seal", full)
    with pytest.raises(OSError, match="earlier checkpoints are intact: free some space"):
        checkpoint.publish(tmp_path, 2, full if where == "write" else _write("w2"), {}, keep=2)
    assert [c.step for c in checkpoint.complete(tmp_path)] == [1]
    assert not list(tmp_path.glob(".*partial"))


def test_other_errors_are_not_renamed(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        checkpoint.publish(tmp_path, 1, broken, {}, keep=2)


def test_an_abandoned_partial_folder_is_replaced(tmp_path: Path) -> None:
    partial = tmp_path / ".step_00000001.partial"
    partial.mkdir()
    (partial / "rubbish").write_text("x")
    folder = _publish(tmp_path, 1)
    assert sorted(json.loads((folder / checkpoint.MANIFEST).read_text())["files"]) == ["weights"]
