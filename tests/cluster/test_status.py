from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_specrl.cluster.status import attempts, collect, status_command
from nemo_specrl.cluster.submit import submit
from nemo_specrl.config.cluster import ClusterConfig
from nemo_specrl.config.run import RunConfig


def life(run: Path, number: int, **files: str) -> None:
    folder = run / "slurm" / f"attempt_{number}"
    folder.mkdir(parents=True)
    for name, text in {"job": "4243", "nodes": "n1", **files}.items():
        (folder / name).write_text(f"{text}\n")


def slurm_says(fake_slurm, *lines: str) -> None:
    text = "".join(f"{line}|0:0|00:01:00|n1|None\\n" for line in lines)
    fake_slurm.write("sacct", f"#!/bin/sh\nprintf '{text}'\n")


@pytest.fixture
def single(fake_slurm, tmp_path) -> Path:
    submit(RunConfig(name="r", output_dir=str(tmp_path / "r")), [])
    return tmp_path / "r"


def test_a_requeued_run_is_one_row_with_its_attempts(fake_slurm, single, capsys):
    for number in range(1, 11):
        life(single, number, exit_code="85", requeue="SIGUSR1")
    life(single, 11)
    slurm_says(fake_slurm, "4243|REQUEUED", "4243|RUNNING")
    assert status_command([str(single)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].split()[:3] == ["RUNNING", "4243", "11"]
    assert "attempt 10, job 4243, exit 85 SIGUSR1" in out
    assert f"log: {single}/slurm/attempt_11/output.log" in out
    assert [item.number for item in attempts(single)] == list(range(1, 12)), "by number, not by text"


def test_a_chain_of_jobs_is_followed_to_its_end(fake_slurm, single):
    life(single, 1, exit_code="85", followed_by="4300")
    life(single, 2, job="4300", exit_code="0")
    slurm_says(fake_slurm, "4300|COMPLETED")
    (row,) = collect(single)
    assert (row.state, row.job_id, len(row.attempts)) == ("COMPLETED", "4300", 2)


def test_array_whole_and_one_task_of_it(fake_slurm, tmp_path, capsys):
    submit(RunConfig(name="r", output_dir=str(tmp_path / "r"), cluster=ClusterConfig(seeds=(5, 6))), [])
    slurm_says(fake_slurm, "4243_0|FAILED", "4243_[1]|PENDING")
    assert [row.state for row in collect(tmp_path / "r")] == ["FAILED", "PENDING"]
    (row,) = collect(tmp_path / "r" / "seed_6")
    assert (row.state, row.job_id) == ("PENDING", "4243_1")
    assert status_command([str(tmp_path / "r"), "--json"]) == 0
    assert [item["job_id"] for item in json.loads(capsys.readouterr().out)] == ["4243_0", "4243_1"]


@pytest.mark.parametrize(("code", "state"), [(None, "UNKNOWN"), ("0", "COMPLETED"), ("85", "STOPPED"), ("3", "FAILED")])
def test_a_job_that_slurm_forgot_is_told_from_its_folder(fake_slurm, single, code, state):
    fake_slurm.write("sacct", "#!/bin/sh\n")
    life(single, 1, **({} if code is None else {"exit_code": code}))
    (row,) = collect(single)
    assert row.state == state
    assert "no longer knows" in row.reason


def test_bad_arguments_show_the_usage(tmp_path):
    for args in ([], ["--what"], [str(tmp_path), "--what"]):
        with pytest.raises(ValueError, match="usage: nemo-specrl status"):
            status_command(args)
    with pytest.raises(ValueError, match="holds no submission"):
        status_command([str(tmp_path)])
