"""Against a real `mlflow server`: started, killed and restarted in mid-run."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from server import MlflowServer, free_port

from nemo_specrl.config.run import RunConfig
from nemo_specrl.config.tracking import TrackingConfig
from nemo_specrl.reporting import find_runs, load_run, run_report
from nemo_specrl.tracking import create_tracker
from nemo_specrl.tracking.afterwards import send

mlflow = pytest.importorskip("mlflow")
pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    running = MlflowServer(tmp_path_factory.mktemp("server"))
    running.start()
    yield running
    running.kill()


def config(uri: str, **changes: Any) -> RunConfig:
    tracking = TrackingConfig(uri=uri, system_metrics_every_s=0, flush_timeout_s=120, **changes)
    return RunConfig(name="arm", seed=1, tracking=tracking)


def history(client: Any, run_id: str, key: str) -> list[tuple[int, float]]:
    return sorted((m.step, m.value) for m in client.get_metric_history(run_id, key))


def test_a_server_that_dies_and_comes_back_has_everything_once(server: MlflowServer, tmp_path: Path) -> None:
    tracker = create_tracker(config(server.uri), tmp_path, resumed=False)
    for step in range(1, 301):
        if step == 100:
            deadline = time.monotonic() + 120
            while not (tmp_path / "mlflow_offsets.json").exists():  # some of it has arrived before the server dies
                assert time.monotonic() < deadline
                time.sleep(0.1)
            server.kill()
        if step == 250:
            server.start()
        start = time.monotonic()
        tracker.metrics({"train": {"loss": 1 / step}, "bad": float("inf")}, step)
        assert time.monotonic() - start < 1, "the server's absence was felt by training"
        time.sleep(0.01)
    tracker.table("rollouts", [{"prompt": "1+1=", "reused_tokens": 2, "reward": 1.0}], 300)
    tracker.dataset("arithmetic", "abc123", "builtin:arithmetic")
    tracker.close("FINISHED")
    client = mlflow.MlflowClient(server.uri)
    run_id = (tmp_path / "mlflow_run_id").read_text().strip()
    run = client.get_run(run_id)
    assert history(client, run_id, "train/loss") == [(s, pytest.approx(1 / s)) for s in range(1, 301)]
    assert len(history(client, run_id, "nonfinite/bad")) == 300
    assert "bad" not in run.data.metrics
    assert run.info.status == "FINISHED"
    assert run.data.params["reuse.rule"] == "off"
    assert run.data.tags["arm"] == "arm"
    assert len(run.data.tags["mlflow.source.git.commit"]) == 40 or "git.commit" not in run.data.tags
    assert run.inputs.dataset_inputs[0].dataset.digest == "abc123"
    assert [a.path for a in client.list_artifacts(run_id, "config")] == ["config/attempt-1.json"]
    assert [a.path for a in client.list_artifacts(run_id, "tables")] == ["tables/rollouts.json"]
    assert len(client.search_runs([run.info.experiment_id], "")) == 1


def test_a_resumed_run_reopens_and_repeats_nothing(server: MlflowServer, tmp_path: Path) -> None:
    first = create_tracker(config(server.uri, experiment="resume"), tmp_path, resumed=False)
    for step in range(1, 8):
        first.metrics({"loss": step}, step)
    first.close("KILLED")
    run_id = (tmp_path / "mlflow_run_id").read_text().strip()
    client = mlflow.MlflowClient(server.uri)
    assert client.get_run(run_id).info.status == "KILLED"
    changed = RunConfig(
        name="arm", seed=1, output_dir="elsewhere", tracking=config(server.uri, experiment="resume").tracking
    )
    second = create_tracker(changed, tmp_path, resumed=True)
    for step in range(5, 11):
        second.metrics({"loss": step + 0.5}, step)
    second.close("FAILED")
    assert (tmp_path / "mlflow_run_id").read_text().strip() == run_id
    run = client.get_run(run_id)
    assert [step for step, _ in history(client, run_id, "loss")] == list(range(1, 11))
    assert run.info.status == "FAILED"
    assert run.data.params["output_dir"] == "runs/${name}", "a parameter cannot change"
    assert '["runs/${name}", "elsewhere"]' in run.data.tags["resume.2.changed"]
    assert list(load_run(tmp_path).series("loss")) == [1, 2, 3, 4, 5.5, 6.5, 7.5, 8.5, 9.5, 10.5]


def test_a_batch_whose_answer_was_lost_is_stored_once(server: MlflowServer, tmp_path: Path) -> None:
    tracker = create_tracker(config(server.uri, experiment="answer"), tmp_path, resumed=False)
    for step in range(1, 51):
        tracker.metrics({"loss": step}, step)
    tracker.close("FINISHED")
    (tmp_path / "mlflow_offsets.json").unlink()  # as if the process had died before it noted what was sent
    create_tracker(config(server.uri, experiment="answer"), tmp_path, resumed=True).close("FINISHED")
    run_id = (tmp_path / "mlflow_run_id").read_text().strip()
    client = mlflow.MlflowClient(server.uri)
    assert history(client, run_id, "loss") == [(step, step) for step in range(1, 51)]


def test_long_values_bad_keys_and_a_lost_run(server: MlflowServer, tmp_path: Path) -> None:
    tracker = create_tracker(config(server.uri, experiment="odd"), tmp_path, resumed=False)
    tracker.params({"long": "x" * 20_000, "name": "arm"})
    tracker.metrics({"pass@1": 0.5, "a[0]//b": 1.0, "text": "no"}, 1)
    tracker.close("FINISHED")
    run_id = (tmp_path / "mlflow_run_id").read_text().strip()
    client = mlflow.MlflowClient(server.uri)
    run = client.get_run(run_id)
    assert run.data.metrics["pass_at_1"] == 0.5
    assert run.data.metrics["a_0_/b"] == 1.0
    assert len(run.data.params["long"]) == 6000
    client.delete_run(run_id)
    again = create_tracker(config(server.uri, experiment="odd"), tmp_path, resumed=True)
    again.metrics({"pass@1": 0.7}, 2)
    again.close("FINISHED")
    new_id = (tmp_path / "mlflow_run_id").read_text().strip()
    assert new_id != run_id
    assert history(client, new_id, "pass_at_1") == [(1, 0.5), (2, 0.7)], "a lost run is rebuilt from the spool"


def test_children_hang_under_one_sweep(server: MlflowServer, tmp_path: Path) -> None:
    for seed in (1, 2):
        run = RunConfig(
            name="arm", seed=seed, tracking=config(server.uri, experiment="sweep", sweep="lr sweep").tracking
        )
        tracker = create_tracker(run, tmp_path / str(seed), resumed=False)
        tracker.metrics({"reward/mean": seed, "time/step_s": 1}, 1)
        tracker.close("FINISHED")
    client = mlflow.MlflowClient(server.uri)
    runs = client.search_runs([client.get_experiment_by_name("sweep").experiment_id])
    parents = [run for run in runs if run.data.tags.get("nemo_specrl.sweep")]
    assert len(parents) == 1
    children = [run.data.tags["mlflow.parentRunId"] for run in runs if run is not parents[0]]
    assert children == [parents[0].info.run_id] * 2
    found = find_runs([], experiment="sweep", uri=server.uri, spools=False)
    assert sorted(run.seed for run in found if run.seed is not None) == [1, 2], "the parent is no run of the comparison"
    by_name = find_runs(["arm/seed2"], uri=server.uri)
    assert [list(run.series("reward/mean")) for run in by_name] == [[2.0]]
    by_filter = find_runs(
        [], filter_string="tags.seed = '1' and tags.`nemo_specrl.status` = 'FINISHED'", uri=server.uri
    )
    assert {run.seed for run in by_filter} == {1}


def reached(run_id: str, uri: str, step: int) -> None:
    """Wait until the server has this step."""
    client, deadline = mlflow.MlflowClient(uri), time.monotonic() + 60
    while max((s for s, _ in history(client, run_id, "loss")), default=0) < step:
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def test_a_run_deleted_and_restored_loses_nothing(
    server: MlflowServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = create_tracker(config(server.uri, experiment="bin", required=True), tmp_path, resumed=False)
    client = mlflow.MlflowClient(server.uri)
    run_id = (tmp_path / "mlflow_run_id").read_text().strip()
    for step in range(1, 31):
        if step == 11:
            reached(run_id, server.uri, 10)
            client.delete_run(run_id)
        if step == 21:
            deadline = time.monotonic() + 60
            while "was deleted" not in caplog.text:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            time.sleep(2)
            client.restore_run(run_id)
        tracker.metrics({"loss": step}, step)
    tracker.close("FINISHED")
    assert caplog.text.count("was deleted") == 1
    assert f"mlflow runs restore --run-id {run_id}" in caplog.text
    assert (tmp_path / "mlflow_run_id").read_text().strip() == run_id
    assert history(client, run_id, "loss") == [(step, step) for step in range(1, 31)]
    assert client.get_run(run_id).info.status == "FINISHED"


def test_a_server_restored_from_a_backup_is_caught_up_once(server: MlflowServer, tmp_path: Path) -> None:
    """It comes back while the run goes on, and once more when the run is over."""
    settings = config(server.uri, experiment="backup", required=True)
    tracker = create_tracker(settings, tmp_path / "run", resumed=False)
    run_id = (tmp_path / "run/mlflow_run_id").read_text().strip()
    backup = tmp_path / "backup.db"
    for step in range(1, 61):
        tracker.metrics({"loss": step, "reward": -step}, step)
        if step == 10:
            reached(run_id, server.uri, 10)
            server.kill()
            shutil.copy(server.database, backup)
            server.start()
        if step == 40:
            reached(run_id, server.uri, 40)
            server.kill()
            shutil.copy(backup, server.database)
            tracker.metrics({"later": 1}, step)
            time.sleep(1)
            server.start()
    tracker.close("FINISHED")
    client = mlflow.MlflowClient(server.uri)
    for _ in range(2):
        assert history(client, run_id, "loss") == [(step, step) for step in range(1, 61)]
        assert history(client, run_id, "reward") == [(step, -step) for step in range(1, 61)]
        assert client.get_run(run_id).data.tags["nemo_specrl.status"] == "FINISHED"
        server.kill()
        shutil.copy(backup, server.database)
        server.start()
        assert len(history(client, run_id, "loss")) == 10
        assert send(tmp_path / "run", server.uri) == run_id


def test_a_deleted_experiment_is_said_once_and_holds_no_end(
    server: MlflowServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = mlflow.MlflowClient(server.uri)
    gone = client.create_experiment("gone too")
    client.delete_experiment(gone)
    tracker = create_tracker(config(server.uri, experiment="gone too"), tmp_path, resumed=False)
    tracker.metrics({"loss": 1}, 1)
    deadline = time.monotonic() + 60
    while "was deleted" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(3)
    start = time.monotonic()
    tracker.close("FINISHED")
    assert time.monotonic() - start < 10
    assert caplog.text.count("was deleted") == 1
    client.restore_experiment(gone)
    assert history(client, send(tmp_path, server.uri, "gone too"), "loss") == [(1, 1)]


def test_a_503_that_asks_for_two_minutes_holds_nothing(tmp_path: Path) -> None:
    class Busy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.send_header("Retry-After", "120")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as busy:
        threading.Thread(target=busy.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{busy.server_port}"
        start = time.monotonic()
        tracking = TrackingConfig(uri=uri, system_metrics_every_s=0, flush_timeout_s=3)
        tracker = create_tracker(RunConfig(tracking=tracking), tmp_path / "a", resumed=False)
        for step in range(100):
            tracker.metrics({"loss": step}, step)
        tracker.close("FINISHED")
        with pytest.raises(ConnectionError, match=r"tracking.required is set.*503"):
            create_tracker(config(uri, required=True), tmp_path / "b", resumed=False)
        assert time.monotonic() - start < 30
        busy.shutdown()


def test_data_a_model_and_a_report_are_kept_with_the_run(
    server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)  # the registry's address as well
    rows, folder = tmp_path / "rows.jsonl", tmp_path / "model"
    rows.write_text("{}")
    (folder / "sub").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "sub/x.bin"):
        (folder / name).write_text(name)
    settings = config(server.uri, experiment="things")
    tracker = create_tracker(settings, tmp_path / "run", resumed=False)
    tracker.dataset("openai/gsm8k:main:train", "d" * 32, "openai/gsm8k", subset="main", split="train")
    tracker.dataset("rows", "e" * 32, str(rows), "validation")
    tracker.dataset("arithmetic", "f" * 32, "arithmetic")
    tracker.metrics({"reward/mean": 0.5, "time/step_s": 1}, 1)
    tracker.model(folder, "my-model", 4)
    tracker.at_end(run_report)
    tracker.at_end(lambda _: Path("/nowhere/at/all"))
    tracker.at_end(lambda _: Path(str(1 / 0)))
    tracker.close("FINISHED")
    client = mlflow.MlflowClient(server.uri)
    run_id = send(tmp_path / "run", server.uri)
    data = {entry.dataset.name: entry for entry in client.get_run(run_id).inputs.dataset_inputs}
    assert {name: (e.dataset.digest[0], e.dataset.source_type, e.tags[0].value) for name, e in data.items()} == {
        "openai/gsm8k:main:train": ("d", "hugging_face", "training"), "rows": ("e", "local", "validation"),
        "arithmetic": ("f", "code", "training"),
    }  # fmt: skip
    source = mlflow.data.get_source(data["openai/gsm8k:main:train"].dataset)
    assert (source.path, source.config_name, source.split) == ("openai/gsm8k", "main", "train")
    assert json.loads(data["rows"].dataset.source) == {"uri": str(rows)}
    (version,) = client.search_model_versions("name = 'my-model'")
    assert (version.run_id, version.tags["nemo_specrl.step"]) == (run_id, "4")
    there = Path(mlflow.artifacts.download_artifacts("models:/my-model/1"))
    assert sorted(str(p.relative_to(there)) for p in there.rglob("*") if p.is_file()) == [
        "config.json", "model.safetensors", "sub/x.bin",
    ]  # fmt: skip
    page = Path(mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path="report.html"))
    assert "FINISHED" in page.read_text()
    (tmp_path / "run/mlflow_offsets.json").unlink()
    send(tmp_path / "run", server.uri)
    assert len(client.search_model_versions("name = 'my-model'")) == 1, "sent twice, registered once"


def test_a_deleted_experiment_names_its_remedy(server: MlflowServer, tmp_path: Path) -> None:
    client = mlflow.MlflowClient(server.uri)
    client.delete_experiment(client.create_experiment("gone"))
    with pytest.raises(ValueError, match="mlflow experiments restore --experiment-id"):
        create_tracker(config(server.uri, experiment="gone", required=True), tmp_path, resumed=False)


def test_an_unreachable_server_is_felt_only_where_it_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens on the one port, and on the other somebody listens who never answers."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for index, port in enumerate((free_port(), silent.getsockname()[1])):
            uri = f"http://127.0.0.1:{port}"
            start = time.monotonic()
            tracking = TrackingConfig(uri=uri, system_metrics_every_s=0, flush_timeout_s=1)
            tracker = create_tracker(RunConfig(tracking=tracking), tmp_path / str(index), resumed=False)
            for step in range(100):
                tracker.metrics({"loss": step}, step)
            tracker.close("FINISHED")
            assert time.monotonic() - start < 20
            assert len(load_run(tmp_path / str(index))) == 100
        with pytest.raises(ConnectionError, match="tracking.required is set"):
            create_tracker(config(uri, required=True), tmp_path / "required", resumed=False)
    assert threading.active_count() < 20
