"""Load of a node."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemo_specrl.tracking.follower import Follower
from nemo_specrl.tracking.spool import read_events
from nemo_specrl.tracking.system import Sampler, SystemMetrics, _read_gpus, sample_node
from nemo_specrl.tracking.tracker import RunTracker
from tests.tracking.test_follower import MemorySink


def test_a_sample_is_within_physical_bounds(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path)
    sum(range(10**6))
    values = sampler.sample()
    assert 0 <= values["cpu_percent"] <= 100
    assert 0 < values["memory_percent"] < 100
    assert values["memory_used_gib"] > 0
    assert values["disk_free_gib"] > 0
    assert values["network_received_mib_s"] >= 0


def test_samples_land_in_the_nodes_own_spool_and_the_thread_ends(tmp_path: Path) -> None:
    system = SystemMetrics(tmp_path, 0.05)
    time.sleep(1.3)
    start = time.monotonic()
    system.stop()
    system.stop()
    assert time.monotonic() - start < 5
    (path,) = (tmp_path / "system").glob("*.jsonl")
    found = list(read_events(path))
    assert len(found) >= 2
    assert len({event["step"] for event in found}) == len(found), "no step twice"
    assert all(key.startswith(f"system/{path.stem}/") for event in found for key in event["values"])


def test_steps_go_on_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        system = SystemMetrics(tmp_path, 60)
        time.sleep(1.1)
        system.stop()
    (path,) = (tmp_path / "system").glob("*.jsonl")
    steps = [event["step"] for event in read_events(path)]
    assert steps == sorted(set(steps))
    assert len(steps) == 2


def test_every_node_is_sampled_and_one_follower_sends_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fake nodes: rank 0's, which has the tracker, and one that has only a sampler."""
    sink = MemorySink()
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    tracker = RunTracker(tmp_path)
    tracker.follow(Follower(tmp_path, sink))
    tracker.sample_system(0.05)
    monkeypatch.setenv("SLURMD_NODENAME", "node2")
    with sample_node(tmp_path, 0.05):
        tracker.metrics({"loss": 1.0}, 1)
        time.sleep(1.3)
    tracker.close("FINISHED")
    for node in ("node1", "node2"):
        written = list(read_events(tmp_path / "system" / f"{node}.jsonl"))
        sent = [event for event in sink.taken if event.get("node") == node]
        assert [event["step"] for event in sent] == [event["step"] for event in written] != []
        assert all(key.startswith(f"system/{node}/") for event in sent for key in event["values"])
    assert sink.points() == [(1, "loss")]


def test_a_node_that_cannot_write_the_folder_trains_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "system").write_text("a file where the folder belongs")
    with sample_node(tmp_path, 0.05):
        pass
    assert "no system metrics" in caplog.text


def test_zero_seconds_means_off(tmp_path: Path) -> None:
    SystemMetrics(tmp_path, 0).stop()
    assert not (tmp_path / "system").exists()


def test_a_gpu_that_gives_no_utilisation_still_gives_its_memory() -> None:
    class NVMLError(Exception):
        pass

    def unsupported(_: object) -> None:
        raise NVMLError

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlDeviceGetUtilizationRates=unsupported,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=2**30, total=4 * 2**30),
        nvmlDeviceGetPowerUsage=lambda _: 350_000,
    )
    assert _read_gpus(nvml, ["handle"]) == {
        "gpu_0_memory_used_gib": 1.0, "gpu_0_memory_percent": 25.0, "gpu_0_power_w": 350.0,
    }  # fmt: skip
