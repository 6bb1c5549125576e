"""Our tracker as NeMo RL's logger. NeMo RL itself is not needed: its interface is stood in for."""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_specrl.nemo_rl.logger import TrackerLogger, tracker_logger
from nemo_specrl.tracking.spool import EVENTS, read_events
from nemo_specrl.tracking.tracker import RunTracker


def values(folder: Path) -> dict[tuple[int, str], float]:
    found = [event for event in read_events(folder / EVENTS) if event["kind"] == "metrics"]
    return {(event["step"], key): value for event in found for key, value in event["values"].items()}


def test_metrics_keep_nemo_rls_prefixes_and_strings_do_no_harm(tmp_path: Path) -> None:
    logger = TrackerLogger(RunTracker(tmp_path))
    logger.log_metrics({"loss": np.float32(0.5), "note": "text", "none": None, "moe": {"load": 2}}, 3, prefix="train")
    logger.log_metrics({"accuracy": 1.0}, 3, prefix="validation", step_finished=True)
    assert values(tmp_path) == {(3, "train/loss"): 0.5, (3, "train/moe/load"): 2, (3, "validation/accuracy"): 1.0}


def test_rollout_metrics_that_come_twice_are_logged_once(tmp_path: Path) -> None:
    logger = TrackerLogger(RunTracker(tmp_path))
    for _ in range(2):
        logger.log_metrics({"mean_total_reward": 0.25}, 1, prefix="train")
    assert len(list(read_events(tmp_path / EVENTS))) == 2, "the start, and one line"


def test_lists_are_summarised(tmp_path: Path) -> None:
    logger = TrackerLogger(RunTracker(tmp_path))
    logger.log_metrics({"lengths": list(range(1, 11))}, 1, prefix="train")
    logger.log_histogram([4.0, 1.0, 2.0], 1, "histogram/len")
    found = values(tmp_path)
    assert (found[1, "train/lengths/mean"], found[1, "train/lengths/p50"], found[1, "train/lengths/max"]) == (
        5.5,
        5.5,
        10,
    )
    assert found[1, "train/lengths/p90"] == 9
    assert (found[1, "histogram/len/p50"], found[1, "histogram/len/max"]) == (2.0, 4.0)


def test_a_step_metric_gives_the_step_and_is_none_itself(tmp_path: Path) -> None:
    TrackerLogger(RunTracker(tmp_path)).log_metrics({"ray/step": 40, "gpu": 0.5}, 0, step_metric="ray/step")
    assert values(tmp_path) == {(40, "gpu"): 0.5}


def test_the_configuration_may_change_on_resume(tmp_path: Path) -> None:
    for log_dir in ("exp_001", "exp_002"):
        logger = TrackerLogger(RunTracker(tmp_path))
        logger.log_hyperparams({"logger": {"log_dir": log_dir}, "fn": len, "api_key": "hush"})
        logger.finish("KILLED")
    params = [event["values"] for event in read_events(tmp_path / EVENTS) if event["kind"] == "params"]
    assert [p["nemo_rl.logger.log_dir"] for p in params] == ["exp_001", "exp_002"]
    assert params[0]["nemo_rl.api_key"] == "[redacted]"


@pytest.mark.parametrize(
    ("error", "status"), [(None, "FINISHED"), (RuntimeError(), "FAILED"), (KeyboardInterrupt(), "KILLED")]
)
def test_finish_in_a_finally_tells_what_happened(tmp_path: Path, error: BaseException | None, status: str) -> None:
    """As NeMo RL's controller calls it: no argument, on success and on failure."""
    logger = TrackerLogger(RunTracker(tmp_path))
    with contextlib.suppress(RuntimeError, KeyboardInterrupt):
        try:
            if error is not None:
                raise error
        finally:
            logger.finish()
    assert [event["status"] for event in read_events(tmp_path / EVENTS) if event["kind"] == "end"] == [status]


def test_a_figure_becomes_an_artifact_and_a_broken_one_a_tag(tmp_path: Path) -> None:
    class Figure:
        def savefig(self, path: Path) -> None:
            path.write_bytes(b"png")

    class Broken:
        def savefig(self, path: Path) -> None:
            raise RuntimeError("no backend")

    logger = TrackerLogger(RunTracker(tmp_path))
    logger.log_plot(Figure(), 7, "probs/error")
    logger.log_plot(Broken(), 8, "bad")
    assert (tmp_path / "artifacts/plots/probs_error-7.png").read_bytes() == b"png"
    tags = [event["values"] for event in read_events(tmp_path / EVENTS) if event["kind"] == "tags"]
    assert tags == [{"plot_error.bad-8": "RuntimeError: no backend"}]


def stand_in(monkeypatch: pytest.MonkeyPatch, *methods: str) -> type:
    """nemo_rl.utils.logger with an interface of these abstract methods."""
    body: dict[str, Any] = {name: abstractmethod(lambda self: None) for name in methods}
    interface = type("LoggerInterface", (ABC,), body)
    module = types.ModuleType("nemo_rl.utils.logger")
    module.LoggerInterface = interface  # type: ignore[attr-defined]
    for name in ("nemo_rl", "nemo_rl.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "nemo_rl.utils.logger", module)
    return interface


def test_it_is_an_instance_of_nemo_rls_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interface = stand_in(monkeypatch, "log_metrics", "log_hyperparams", "log_histogram", "log_plot")
    logger = tracker_logger(RunTracker(tmp_path))
    assert isinstance(logger, interface)
    logger.log_metrics({"loss": 1.0}, 1, prefix="train")
    assert values(tmp_path) == {(1, "train/loss"): 1.0}


def test_every_call_that_nemo_rls_interface_allows_is_taken(tmp_path: Path) -> None:
    """Against the real class, where NeMo RL is installed: ours takes the same arguments, by position and by name."""
    real = pytest.importorskip("nemo_rl.utils.logger").LoggerInterface
    assert isinstance(tracker_logger(RunTracker(tmp_path)), real)
    for name in real.__abstractmethods__:
        theirs = inspect.signature(getattr(real, name)).parameters.values()
        ours = inspect.signature(getattr(TrackerLogger, name)).parameters.values()
        assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in theirs], name


def test_a_newer_interface_is_noticed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "log_metrics", "log_video")
    with pytest.raises(TypeError, match="log_video"):
        tracker_logger(RunTracker(tmp_path))
