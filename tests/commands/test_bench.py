"""A bench is one parent run with a child per arm and seed, in one store. The trainings are stood in for."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from nemo_specrl.commands.bench import bench_command
from nemo_specrl.config.arguments import parse
from nemo_specrl.config.compose import compose
from nemo_specrl.tracking import create_tracker


def record(command: list[str], **_: Any) -> int:
    """What `nemo-specrl train` would have recorded of these overrides."""
    run = compose(parse(command[4:]).overrides)
    tracker = create_tracker(run, Path(run.output_dir), resumed=False)
    tracker.metrics({"time/step_s": 1.0, "train/epoch": 1}, 1)
    tracker.close("FINISHED")
    return 0


def test_a_bench_is_one_parent_with_a_child_per_arm_and_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # so that what bench sets is taken back
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setattr(subprocess, "call", record)
    words = ["output_dir='the bench'", "experiment=tiny", "reuse=off,exact", "bench.repeats=2", "bench.from_epoch=1"]
    assert bench_command([*words, "tracking.system_metrics_every_s=0"]) == 0
    assert list(tmp_path.rglob("mlflow.db")) == [tmp_path / "the bench" / "mlflow.db"]
    client = MlflowClient(f"sqlite:///{tmp_path}/the bench/mlflow.db")
    runs = list(client.search_runs([client.get_experiment_by_name("nemo-specrl").experiment_id]))
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if run is not parent]
    assert parent.info.run_name == "the bench"
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert sorted(run.info.run_name for run in children) == ["exact/seed0", "exact/seed1", "off/seed0", "off/seed1"]
