"""On a real slurmctld (.ci/slurm.sh): tiny trainings that are requeued, cancelled and crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from nemo_specrl.cluster.status import collect
from nemo_specrl.cluster.submit import submit_command
from nemo_specrl.tracking.spool import EVENTS, read_events
from tests.cluster.slurm import NEEDS_SLURM, ROOT, environment, over, wait_for

__all__ = ["environment"]
pytestmark = NEEDS_SLURM


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
    """Two nodes, torchrun, TP=2. The warning comes early in each attempt, so each does one step and is requeued.

    The job inherits nothing: what the payload needs is what the job script sets."""
    folder = tmp_path / "two_nodes"
    limits = ["cluster.time=15", "cluster.stop_before_end_s=880"]
    inherited = ["cluster.export=NONE", f"cluster.env.PYTHONPATH={ROOT}", "cluster.env.OMP_NUM_THREADS='1'"]
    limits += [*inherited, "cluster.env.HF_HUB_OFFLINE='1'"]
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
