from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_specrl.cluster.sbatch import render
from nemo_specrl.cluster.submit import submit, submit_command
from nemo_specrl.config.cluster import ClusterConfig
from nemo_specrl.config.compose import compose
from nemo_specrl.config.run import RunConfig


def test_log_folders_exist_before_sbatch_is_called(fake_slurm, hostile_path):
    """hydra#2100: Slurm drops the job silently when they are missing."""
    logs = hostile_path / "slurm"
    fake_slurm.write(
        "sbatch", f'#!/bin/sh\n[ -d "$(dirname "$3")" ] || exit 9\nprintf %s "$2" > {fake_slurm.bin}/out\necho 77\n'
    )
    run = RunConfig(name="r", output_dir=str(hostile_path))
    done = submit(run, ["a=1"])
    assert done.job_id == "77"
    assert (fake_slurm.bin / "out").read_text() == "--output=" + str(logs).replace("%", "%%") + "/slurm-%j.log"
    assert (logs / "job.sh").read_text() == render(run, ["a=1"])
    assert json.loads((logs / "submission.json").read_text())["job_id"] == "77"


def test_array_remembers_each_run_in_its_own_folder(fake_slurm, tmp_path):
    run = RunConfig(name="r", output_dir=str(tmp_path / "r"), cluster=ClusterConfig(seeds=(1, 2)))
    done = submit(run, [])
    assert done.output_dirs == (f"{tmp_path}/r/seed_1", f"{tmp_path}/r/seed_2")
    record = json.loads((tmp_path / "r/seed_2/slurm/submission.json").read_text())
    assert record == {"job_id": "4243", "output_dirs": [f"{tmp_path}/r/seed_2"], "base": f"{tmp_path}/r"}
    (call,) = fake_slurm.calls("sbatch")
    assert call["argv"][2].endswith("/slurm-%A_%a.log")


def test_relative_output_lies_in_the_work_folder(fake_slurm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACE", str(tmp_path / "elsewhere"))
    run = RunConfig(name="r", output_dir="runs/r")
    assert submit(run, []).output_dirs == (f"{tmp_path}/runs/r",)
    moved = replace(run, cluster=ClusterConfig(workdir="$PLACE"))
    assert submit(moved, []).output_dirs == (f"{tmp_path}/elsewhere/runs/r",)


@pytest.mark.parametrize(
    ("fake", "message"),
    [
        ("echo 'sbatch: error: invalid partition' >&2; exit 1", "sbatch refused: sbatch: error: invalid partition"),
        ("echo hello", "holds no job id"),
    ],
)
def test_slurm_own_words_reach_the_user(fake_slurm, tmp_path, fake, message):
    fake_slurm.write("sbatch", f"#!/bin/sh\n{fake}\n")
    with pytest.raises(ValueError, match=message):
        submit(RunConfig(output_dir=str(tmp_path / "r")), [])


def test_multi_cluster_answer_and_warnings_are_understood(fake_slurm, tmp_path):
    fake_slurm.write("sbatch", "#!/bin/sh\necho 'sbatch: note'\necho '88;cluster2'\n")
    assert submit(RunConfig(output_dir=str(tmp_path / "r")), []).job_id == "88"


def test_no_slurm_here_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match="login node"):
        submit(RunConfig(output_dir=str(tmp_path / "r")), [])


def test_backslash_and_unwritable_folders_are_refused(fake_slurm, tmp_path):
    with pytest.raises(ValueError, match="backslash"):
        submit(RunConfig(output_dir=str(tmp_path / "a\\b")), [])
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot make the log folder"):
        submit(RunConfig(output_dir=str(tmp_path / "file" / "r")), [])
    assert fake_slurm.calls("sbatch") == []


def test_dry_run_prints_the_very_bytes_and_reasons_and_submits_nothing(fake_slurm, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = ["experiment=tiny", "cluster=cpu"]
    assert submit_command([*overrides[:1], "--dry-run", *overrides[1:]]) == 0
    shown = capsys.readouterr()
    assert fake_slurm.calls("sbatch") == []
    assert list(Path(tmp_path).iterdir()) == [fake_slurm.bin]
    assert submit_command(overrides) == 0
    assert shown.out == (tmp_path / "runs/tiny/slurm/job.sh").read_text()
    assert "the limit of one attempt" in shown.err
    assert "nemo-specrl status" in capsys.readouterr().out


def test_unknown_cluster_key_says_did_you_mean():
    with pytest.raises(ValueError, match=r"Did you mean cluster\.partition"):
        compose(["cluster.partitoin=x"])


@pytest.mark.parametrize("profile", ["generic", "cpu", "pyxis", "apptainer"])
def test_every_site_profile_renders(profile, capsys):
    assert submit_command([f"cluster={profile}", "--dry-run"]) == 0
    assert f"site profile {profile}:" in capsys.readouterr().out


def test_what_is_dropped_from_the_environment_is_said(fake_slurm, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SBATCH_PARTITION", "debug")
    monkeypatch.setenv("SLURM_CPU_BIND", "mask_cpu:0x1")
    assert submit_command(["experiment=tiny", f"output_dir={tmp_path}/r"]) == 0
    assert "not handed on to sbatch: SBATCH_PARTITION; say it in the configuration" in capsys.readouterr().err
    assert not fake_slurm.calls("sbatch")[0]["env"].keys() - {"SLURM_CONF"}


@pytest.mark.parametrize("words", [["--dry-rnu"], ["experiment=tiny", "--config-name=x"]])
def test_an_unknown_option_shows_the_usage(words):
    with pytest.raises(ValueError, match=r"unrecognized arguments: --.*usage: nemo-specrl submit .*--dry-run"):
        submit_command(words)
