"""The output folder: one run, one process."""

import errno
import fcntl
import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from nemo_specrl.config.compose import compose, resolved
from nemo_specrl.config.run import RunConfig
from nemo_specrl.config.trainer import TrainerConfig
from nemo_specrl.data import DataIdentity
from nemo_specrl.training.folder import RUN_FILE, check_folder, check_inputs, claim, rendering_date


def test_first_claim_then_continue(tmp_path: Path) -> None:
    run = compose(["experiment=tiny"])
    with claim(run, folder=tmp_path / "a", resume=True) as continued:
        assert not continued
    with claim(run, folder=tmp_path / "a", resume=True) as continued:
        assert continued
    assert json.loads((tmp_path / "a" / RUN_FILE).read_text()) == json.loads(json.dumps(resolved(run)))


@pytest.mark.parametrize("change", ["seed=5", "data.size=9", "policy.tensor_parallel=2", "reuse=off", "model=smollm2"])
def test_another_run_is_refused_and_named(tmp_path: Path, change: str) -> None:
    with claim(compose(["experiment=tiny"]), folder=tmp_path, resume=True):
        pass
    before = (tmp_path / RUN_FILE).read_text()
    other = compose(["experiment=tiny", change])
    with pytest.raises(ValueError, match="belongs to another run"), claim(other, folder=tmp_path, resume=True):
        pass
    assert (tmp_path / RUN_FILE).read_text() == before


@pytest.mark.parametrize(
    "change", ["trainer.epochs=9", "tracking.mlflow=false", "engine.max_num_seqs=2", "policy.lr=1"]
)
def test_what_may_change_on_resume(tmp_path: Path, change: str) -> None:
    with claim(compose(["experiment=tiny"]), folder=tmp_path, resume=True):
        pass
    with claim(compose(["experiment=tiny", change]), folder=tmp_path, resume=True) as continued:
        assert continued


def test_occupied_without_resume(tmp_path: Path) -> None:
    run = compose(["experiment=tiny"])
    with claim(run, folder=tmp_path, resume=True):
        pass
    with pytest.raises(ValueError, match="trainer.resume=true"), claim(run, folder=tmp_path, resume=False):
        pass


def test_in_use(tmp_path: Path) -> None:
    run = compose(["experiment=tiny"])
    with (
        claim(run, folder=tmp_path, resume=True),
        pytest.raises(ValueError, match="in use by another process"),
        claim(run, folder=tmp_path, resume=True),
    ):
        pass


def test_not_writable_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="cannot write to output_dir"):
        claim(compose([]), folder=tmp_path / "file" / "x", resume=True).__enter__()


def test_a_damaged_record_is_said(tmp_path: Path) -> None:
    (tmp_path / RUN_FILE).write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        check_folder(compose([]), tmp_path)


def test_a_file_system_without_locks_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Lustre and NFS without locks: not "in use by another process"."""

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with claim(compose([]), folder=tmp_path, resume=True) as continued:
        assert not continued
    assert "no file locks" in caplog.text


def identity(**changes: Any) -> DataIdentity:
    values = {"rows": 6, "digest": "d", "unordered": "u", "prompts": "p", "rendered_on": "2026-01-31"}
    return DataIdentity(**values | changes)


def test_the_prompts_of_the_first_start_are_those_of_every_later_one(tmp_path: Path) -> None:
    """An edited data file was trained on without a word; a template's date changed every key at midnight."""
    run = RunConfig()
    assert rendering_date(tmp_path) == date.today()
    check_inputs(run, tmp_path, identity())
    assert rendering_date(tmp_path) == date(2026, 1, 31)
    check_inputs(run, tmp_path, identity())
    with pytest.raises(ValueError, match=r"data\.source=arithmetic has other rows.*2026-01-31.*accept_changed_data"):
        check_inputs(run, tmp_path, identity(digest="e", unordered="v"))
    with pytest.raises(ValueError, match="in another order"):
        check_inputs(run, tmp_path, identity(digest="e"))


def test_a_changed_source_is_accepted_where_asked_and_then_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    accepting = replace(RunConfig(), trainer=TrainerConfig(accept_changed_data=True))
    check_inputs(accepting, tmp_path, identity())
    assert not caplog.text
    check_inputs(accepting, tmp_path, identity(prompts="q"))
    assert "chat template was edited" in caplog.text
    check_inputs(RunConfig(), tmp_path, identity(prompts="q"))


def test_a_damaged_record_of_the_inputs_is_named(tmp_path: Path) -> None:
    (tmp_path / "inputs.json").write_text("{")
    with pytest.raises(ValueError, match=r"inputs\.json is damaged"):
        rendering_date(tmp_path)
