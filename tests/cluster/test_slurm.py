"""On a real slurmctld (.ci/slurm.sh): submit, survive the time limit, requeue, finish as one run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nemo_specrl.cluster.jobs import Job, query
from nemo_specrl.cluster.preflight import preflight_command
from nemo_specrl.cluster.status import collect
from nemo_specrl.cluster.submit import submit, submit_command
from nemo_specrl.config.cluster import ClusterConfig
from nemo_specrl.config.run import RunConfig
from nemo_specrl.tracking.spool import EVENTS, read_events

ROOT = Path(__file__).parents[2]
STAND_IN = Path(__file__).with_name("stand_in.py")


def _slurm_answers() -> bool:
    if shutil.which("sinfo") is None:
        return False
    return subprocess.run(["sinfo", "-h"], capture_output=True, timeout=30).returncode == 0


pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not _slurm_answers(), reason="no Slurm: . .ci/slurm.sh starts one"),
    pytest.mark.timeout(1500),
]


@pytest.fixture(scope="module", autouse=True)
def _environment():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        for name in [name for name in os.environ if name.startswith(("MLFLOW_", "SLURM_JOB", "NEMO_SPECRL"))]:
            patch.delenv(name)
        yield


def wait_for(job_id: str, done: Callable[[Job], bool], limit_s: float) -> Job:
    """The job, once `done` holds."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        job = query([job_id]).get(job_id)
        if job is not None and done(job):
            return job
        time.sleep(0.5)
    raise AssertionError(f"job {job_id} is still {query([job_id])}")


def over(job: Job) -> bool:
    return job.ended


def stand_in(folder: Path, *overrides: str, **cluster: object) -> str:
    """Submit the stand-in trainer; the job id."""
    python = folder.parent / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STAND_IN}" "$@"\n')
    python.chmod(0o755)
    config = ClusterConfig(python=f"'{python}'", scratch=str(folder.parent), **cluster)
    run = RunConfig(name="stand-in", output_dir=str(folder), cluster=config)
    return submit(run, [f"output_dir={folder}", *overrides]).job_id


ARRAY = {"time": "2", "stop_before_end_s": 105, "seeds": (3, 4), "max_parallel": 2}
JOBS: dict[str, tuple[str, dict[str, object]]] = {
    "cancelled": ("steps=500 step_s=1", {"time": "10", "stop_before_end_s": 60}),
    "crash": ("steps=9 step_s=0 crash_at=2", {"time": "5", "stop_before_end_s": 60, "crash_retries": 1}),
    "with space, it's %j": ("steps=55 step_s=1", {"time": "2", "stop_before_end_s": 100}),
    "chain": ("steps=50 step_s=1", {"time": "2", "stop_before_end_s": 105, "requeue": False}),
    "array": ("steps=50 step_s=1", ARRAY),
    "array_chain": ("steps=50 step_s=1", {**ARRAY, "requeue": False}),
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory, _environment) -> Iterator[Callable[[str], tuple[Path, str]]]:
    """Folder and id of each stand-in job. All are submitted at once: they wait for slurmctld's clock, not for a CPU."""
    submitted = {}
    for name, (overrides, cluster) in JOBS.items():
        folder = tmp_path_factory.mktemp("job") / name
        submitted[name] = folder, stand_in(folder, *overrides.split(), **cluster)
    yield submitted.__getitem__
    subprocess.run(["scancel", *(job_id for _, job_id in submitted.values())], capture_output=True)


def steps(folder: Path) -> list[int]:
    return [int(line.split()[0]) for line in (folder / "steps.log").read_text().splitlines()]


def test_cancel_is_final_and_the_trainer_gets_to_save(jobs):
    folder, job_id = jobs("cancelled")
    while not (folder / "checkpoint").exists():
        time.sleep(0.2)
    subprocess.run(["scancel", job_id], check=True)
    job = wait_for(job_id, over, 60)
    assert job.state == "CANCELLED"
    time.sleep(10)
    (status,) = collect(folder)
    assert (status.state, len(status.attempts)) == ("CANCELLED", 1)
    assert "stopping: SIG" in Path(status.log).read_text()


def test_crash_retries_are_bounded_and_the_job_is_failed(jobs):
    folder, job_id = jobs("crash")
    assert wait_for(job_id, over, 120).state == "FAILED"
    assert [item.exit_code for item in collect(folder)[0].attempts] == [1, 1]


def test_walltime_signal_requeue_and_finish(jobs):
    """The time limit is two minutes, the warning comes 100 s before; no step is lost and none is done twice.

    slurmctld looks at time limits every 30 s, so a warning can be that late: the work must outlast it."""
    folder, job_id = jobs("with space, it's %j")
    job = wait_for(job_id, over, 240)
    assert job.state == "COMPLETED", next(iter(folder.glob("slurm/*.log"))).read_text()
    (status,) = collect(folder)
    assert status.state == "COMPLETED"
    assert len(status.attempts) >= 2
    assert {item.job for item in status.attempts} == {job_id}
    assert [item.exit_code for item in status.attempts] == [85] * (len(status.attempts) - 1) + [0]
    assert status.attempts[0].why == "SIGUSR1"
    assert steps(folder) == list(range(1, 56))
    assert not list(folder.parent.glob("nemo-specrl-*")), "scratch is removed"


def test_without_requeue_a_chain_of_jobs_finishes(jobs):
    folder, first = jobs("chain")
    wait_for(first, over, 200)
    (status,) = collect(folder)
    assert status.job_id != first
    last = wait_for(status.job_id, over, 200)
    while (status := collect(folder)[0]).job_id != last.job_id:
        last = wait_for(status.job_id, over, 200)
    assert last.state == "COMPLETED"
    assert steps(folder) == list(range(1, 51))


@pytest.mark.parametrize("name", ["array", "array_chain"])
def test_array_tasks_come_back_one_by_one(jobs, name):
    folder, _ = jobs(name)
    end = time.monotonic() + 300
    while any(row.state != "COMPLETED" for row in collect(folder)):
        assert time.monotonic() < end, collect(folder)
        time.sleep(1)
    for row in collect(folder):
        assert len(row.attempts) >= 2
        assert steps(Path(row.run)) == list(range(1, 51))


def test_preflight_on_two_nodes(tmp_path, capsys):
    words = [f"output_dir={tmp_path}/r", f"cluster.python={sys.executable}", "cluster.nodes=2", "cluster.mem=100"]
    code = preflight_command(words)
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert "node1: 0 GPU(s)" in shown.out
    assert "node2: 0 GPU(s)" in shown.out
    assert preflight_command([*words, "cluster.gpus_per_node=1", "cluster.gpu_request=none"]) == 1
    assert "node2: sees 0 of 1 GPUs" in capsys.readouterr().err


def mlflow_runs(folder: Path) -> list:
    """All runs of the sqlite file beside the output folders."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    return list(client.search_runs([e.experiment_id for e in client.search_experiments()]))


def metric_steps(folder: Path, run_id: str, key: str) -> list[int]:
    from mlflow.tracking import MlflowClient

    history = MlflowClient(f"sqlite:///{folder}/mlflow.db").get_metric_history(run_id, key)
    return [point.step for point in history]


def training(folder: Path, *overrides: str) -> str:
    """Submit a real tiny training; the job id."""
    words = ["experiment=tiny", f"output_dir={folder}", f"cluster.python={sys.executable}", "gate.enabled=false"]
    assert submit_command([*words, *overrides]) == 0
    return collect(folder)[0].job_id.partition("_")[0]


def test_a_real_training_over_two_nodes_is_one_run_across_requeues(tmp_path):
    """Two nodes, torchrun, TP=2. The warning comes early in each attempt, so each does one step and is requeued."""
    folder = tmp_path / "two_nodes"
    limits = ["cluster.time=15", "cluster.stop_before_end_s=880"]
    job_id = training(folder, *limits, "cluster.nodes=2", "policy.tensor_parallel=2", "trainer.max_steps=2")
    job = wait_for(job_id, over, 1400)
    (status,) = collect(folder)
    assert job.state == "COMPLETED", Path(status.log).read_text()[-3000:]
    assert len(status.attempts) == 2
    assert status.attempts[0].why
    (run,) = mlflow_runs(tmp_path)
    assert run.info.status == "FINISHED"
    assert metric_steps(tmp_path, run.info.run_id, "reward/mean") == [1, 2]
    starts = [event for event in read_events(folder / EVENTS) if event["kind"] == "start"]
    assert len(starts) == 2, "rank 0 alone records"
    for node in ("node1", "node2"):
        assert f"system/{node}/cpu_percent" in run.data.metrics


def test_a_seed_array_with_one_task_cancelled_and_a_crash(tmp_path):
    array = tmp_path / "array"
    array_id = training(array, "cluster.seeds=[0,1,2]", "cluster.max_parallel=2", "trainer.max_steps=1")
    for task in (0, 1):  # Slurm keeps no record of a task that is cancelled before its array was split up
        wait_for(f"{array_id}_{task}", lambda job: job.state != "PENDING", 600)
    subprocess.run(["scancel", f"{array_id}_2"], check=True)
    # Rewards that cannot be verified in time stop the run.
    crash_id = training(tmp_path / "crash", "reward.timeout_s=1e-9", "trainer.max_steps=1")
    assert wait_for(crash_id, over, 1400).state == "FAILED"
    states = [wait_for(f"{array_id}_{task}", over, 1400).state for task in range(3)]
    assert states == ["COMPLETED", "COMPLETED", "CANCELLED"]
    assert [row.state for row in collect(array)] == states
    (parent,) = [run for run in mlflow_runs(array) if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in mlflow_runs(array) if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert sorted(run.data.params["seed"] for run in children) == ["0", "1"]
    assert {run.info.status for run in children} == {"FINISHED"}
    assert [run.info.status for run in mlflow_runs(tmp_path)] == ["FAILED"]
