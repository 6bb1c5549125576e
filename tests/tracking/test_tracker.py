"""What a run hands over, and that nothing it hands over can hurt it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_specrl.config.run import RunConfig
from nemo_specrl.config.tracking import TrackingConfig
from nemo_specrl.tracking import Tracker, create_tracker
from nemo_specrl.tracking.null import NullTracker
from nemo_specrl.tracking.spool import EVENTS, read_events
from nemo_specrl.tracking.tracker import MAX_CELL, RunTracker


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(folder / EVENTS) if event["kind"] == kind]


def spool_only(**changes: Any) -> RunConfig:
    return RunConfig(name="arm", seed=3, tracking=TrackingConfig(mlflow=False, system_metrics_every_s=0), **changes)


def test_metrics_are_flat_finite_and_logged_once_per_step(tmp_path: Path) -> None:
    tracker = RunTracker(tmp_path)
    tracker.metrics({"train": {"loss": 0.123456789012, "nan": float("nan")}, "pass@1": np.float32(0.5)}, 1)
    tracker.metrics({"train": {"loss": 9.0}, "late": 1}, 1)
    tracker.metrics({"train": {"loss": 7}}, 2)
    assert [(e["step"], e["values"]) for e in events(tmp_path, "metrics")] == [
        (1, {"train/loss": 0.123456789, "nonfinite/train/nan": 1, "pass_at_1": 0.5}),
        (1, {"late": 1}),
        (2, {"train/loss": 7}),
    ]


def test_what_cannot_be_recorded_is_counted_and_said_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = RunTracker(tmp_path)
    tracker.metrics({"text": "abc", "none": None, "a@b": 1, "a_at_b": 2}, 1)
    tracker.artifact(tmp_path / "missing.txt")
    with caplog.at_level(logging.WARNING):
        tracker.close("FINISHED")
    assert tracker.drops == {"not a number": 2, "key collision": 1, "artifact": 1}
    assert "2 (not a number), 1 (key collision), 1 (artifact)" in caplog.text
    assert events(tmp_path, "end")[0]["drops"] == dict(tracker.drops)


def test_a_full_disk_does_not_stop_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = RunTracker(tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nemo_specrl.tracking.spool.os.write", full)
    tracker.metrics({"loss": 1.0}, 1)
    tracker.tags({"a": "b"})
    assert tracker.drops == {"spool": 2}


def test_params_are_flat_redacted_and_whole_in_the_config_artifact(tmp_path: Path) -> None:
    tracker = RunTracker(tmp_path)
    tracker.params({"model": {"path": "x", "hub_token": "hush"}, "long": "y" * 10_000, "f": lambda: 0})
    values = events(tmp_path, "params")[0]["values"]
    assert values["model.path"] == "x"
    assert values["model.hub_token"] == "[redacted]"
    assert "0x" not in values["f"]
    whole = json.loads((tmp_path / "artifacts/config/attempt-1.json").read_text())
    assert whole["long"] == "y" * 10_000
    assert "hush" not in (tmp_path / EVENTS).read_text() + json.dumps(whole)


def test_tables_are_capped_in_rows_and_in_text(tmp_path: Path) -> None:
    tracker = RunTracker(tmp_path, max_rows=2)
    for step in (1, 2):
        tracker.table("rollouts", [{"text": "z" * (MAX_CELL + 1), "reward": 0.5, "reused_tokens": 3}] * 5, step)
    newest = json.loads((tmp_path / "tables/rollouts.json").read_text())
    assert newest["columns"] == ["step", "text", "reward", "reused_tokens"]
    assert [row[0] for row in newest["data"]] == [2, 2]
    assert newest["data"][0][1].endswith(f"... ({MAX_CELL + 1} characters)")
    history = (tmp_path / "tables/rollouts.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in history] == [1, 1, 2, 2]
    assert [e["step"] for e in events(tmp_path, "table")] == [1, 2]


def test_an_artifact_is_copied_so_that_its_source_may_go(tmp_path: Path) -> None:
    source = tmp_path / "elsewhere" / "gate.json"
    source.parent.mkdir()
    source.write_text("{}")
    tracker = RunTracker(tmp_path / "run")
    tracker.artifact(source, "gate")
    source.unlink()
    path = events(tmp_path / "run", "artifact")[0]["path"]
    assert (tmp_path / "run" / path).read_text() == "{}"
    assert path == "artifacts/gate/gate.json"


def test_attempts_are_counted_and_share_one_spool_id(tmp_path: Path) -> None:
    first = RunTracker(tmp_path)
    first.metrics({"a": 1}, 1)
    second = RunTracker(tmp_path)
    second.metrics({"a": 1}, 1)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.spool_id == second.spool_id
    assert [e["attempt"] for e in events(tmp_path, "metrics")] == [1, 2], "a new attempt may repeat steps in the spool"


def test_closing_twice_keeps_the_first_status(tmp_path: Path) -> None:
    tracker = RunTracker(tmp_path)
    tracker.close("FAILED")
    tracker.close("FINISHED")
    assert [e["status"] for e in events(tmp_path, "end")] == ["FAILED"]


def test_create_tracker_records_where_and_what_runs(tmp_path: Path) -> None:
    tracker: Tracker = create_tracker(spool_only(), tmp_path, resumed=False)
    tracker.dataset("arithmetic", "d" * 50, "builtin:arithmetic")
    tracker.close("FINISHED")
    tags = events(tmp_path, "tags")[0]["values"]
    assert tags["arm"] == "arm"
    assert tags["seed"] == "3"
    assert tags["lossy"] == "no"
    assert tags["version.numpy"] == np.__version__
    assert "from the start" in tags["attempt.1"]
    assert events(tmp_path, "params")[0]["values"]["reuse.rule"] == "off"
    assert events(tmp_path, "dataset")[0]["values"]["digest"] == "d" * 36
    assert not (tmp_path / "system").exists()


def test_a_lossy_run_is_stamped(tmp_path: Path) -> None:
    from nemo_specrl.config.reuse import ReuseConfig

    create_tracker(spool_only(reuse=ReuseConfig(rule="lenient")), tmp_path, resumed=True).close("FINISHED")
    tags = events(tmp_path, "tags")[0]["values"]
    assert "lenient" in tags["lossy"]
    assert tags["attempt.1"].startswith("resumed")


def test_other_ranks_record_nothing(tmp_path: Path) -> None:
    tracker: Tracker = create_tracker(spool_only(), tmp_path / "x", resumed=False, enabled=False)
    tracker.metrics({"a": 1}, 1)
    tracker.close("FINISHED")
    assert isinstance(tracker, NullTracker)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("uri", ["./mlruns", "file:///tmp/mlruns"])
def test_a_folder_as_uri_warns_or_fails_as_asked(tmp_path: Path, uri: str, caplog: pytest.LogCaptureFixture) -> None:
    tracking = TrackingConfig(uri=uri, system_metrics_every_s=0)
    create_tracker(RunConfig(tracking=tracking), tmp_path / "a", resumed=False).close("FINISHED")
    assert "no longer takes" in caplog.text
    required = TrackingConfig(uri=uri, required=True, system_metrics_every_s=0)
    with pytest.raises(ValueError, match="use sqlite"):
        create_tracker(RunConfig(tracking=required), tmp_path / "b", resumed=False)
