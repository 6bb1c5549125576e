"""Where a run comes from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nemo_specrl.tracking import provenance as module
from nemo_specrl.tracking.provenance import dirty_patch, provenance


def test_versions_of_what_is_installed_and_nothing_else() -> None:
    tags = provenance({})
    assert tags["version.numpy"].count(".") == 2
    assert "version.nemo-rl" not in tags
    assert "slurm.job_id" not in tags
    assert tags["mlflow.source.type"] == "LOCAL"


def test_the_job_under_slurm_and_under_ray_sub() -> None:
    slurm = provenance({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_RESTART_COUNT": "1"})
    assert (slurm["slurm.job_id"], slurm["slurm.nodes"], slurm["slurm.restarts"]) == ("7", "n[1-2]", "1")
    assert slurm["mlflow.source.type"] == "JOB"
    ours = provenance({"NEMO_SPECRL_JOB_ID": "8", "SLURM_JOB_ID": "9", "NEMO_SPECRL_CONTAINER_DIGEST": "sha256:ab"})
    assert (ours["slurm.job_id"], ours["container.digest"]) == ("8", "sha256:ab")


def test_secrets_on_the_command_line_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/opt/bin/nemo-specrl", "train", "tracking.uri=postgresql://u:hunter2@db/x"])
    name = provenance({})["mlflow.source.name"]
    assert name == "nemo-specrl train tracking.uri=postgresql://[redacted]@db/x"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose work tree holds this module."""
    file = tmp_path / "pkg" / "provenance.py"
    file.parent.mkdir()
    file.write_text("a = 1\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "-q", "-b", "topic"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setattr(module, "__file__", str(file))
    return file


def test_a_clean_checkout(checkout: Path) -> None:
    tags = provenance({})
    assert len(tags["git.commit"]) == 40
    assert tags["mlflow.source.git.commit"] == tags["git.commit"]
    assert (tags["git.branch"], tags["git.dirty"]) == ("topic", "no")
    assert dirty_patch() == ""


def test_a_changed_checkout_and_its_patch_without_secrets(checkout: Path) -> None:
    checkout.write_text("a = 2\nAPI_KEY = 'very-secret-value'\n")
    (checkout.parent / "new.txt").write_text("x")
    assert provenance({})["git.dirty"] == "1 changed, 1 untracked"
    patch = dirty_patch()
    assert "+a = 2" in patch
    assert "very-secret-value" not in patch


def test_a_huge_patch_is_cut(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout.write_text("b = 1\n" * 1000)
    monkeypatch.setattr(module, "MAX_PATCH", 500)
    patch = dirty_patch()
    assert len(patch) < 600
    assert "characters in all" in patch


def test_outside_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "__file__", str(tmp_path / "provenance.py"))
    assert not any(key.startswith("git.") for key in provenance({}))
    assert dirty_patch() == ""
