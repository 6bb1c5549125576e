"""MLflow without a server: sqlite, and six runs that start at once on one that is not there yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nemo_specrl.config.run import RunConfig
from nemo_specrl.config.tracking import TrackingConfig
from nemo_specrl.reporting import find_runs, load_run
from nemo_specrl.tracking import create_tracker
from nemo_specrl.tracking.afterwards import send

mlflow = pytest.importorskip("mlflow")
pytestmark = pytest.mark.server

RUN = """
import sys
from pathlib import Path
from nemo_specrl.config.run import RunConfig
from nemo_specrl.config.tracking import TrackingConfig
from nemo_specrl.tracking import create_tracker
root, seed = Path(sys.argv[1]), int(sys.argv[2])
run = RunConfig(name="arm", seed=seed, tracking=TrackingConfig(system_metrics_every_s=0, flush_timeout_s=400))
tracker = create_tracker(run, root / str(seed), resumed=False)
for step in range(1, 21):
    tracker.metrics({"reward/mean": seed + step / 100}, step)
tracker.close("FINISHED")
"""


@pytest.mark.timeout(900)
def test_six_processes_on_one_fresh_sqlite_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    processes = [
        subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path), str(seed)], stderr=subprocess.PIPE, text=True)
        for seed in range(6)
    ]
    for process in processes:
        _, said = process.communicate(timeout=800)
        assert process.returncode == 0, said
        assert "did not reach MLflow" not in said
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    runs = find_runs(["arm"], uri=uri, spools=False)
    assert sorted(run.seed for run in runs if run.seed is not None) == list(range(6))
    for run in runs:
        assert run.status == "FINISHED"
        assert list(run.steps) == list(range(1, 21))
        assert run.column("reward/mean")[-1] == pytest.approx((run.seed or 0) + 0.2)
    assert (tmp_path / "mlartifacts").is_dir(), "artifacts lie beside the database, not in the working folder"


def test_a_spool_is_sent_afterwards_and_reads_the_same_from_both_sides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunConfig(name="offline", seed=4, tracking=TrackingConfig(mlflow=False, system_metrics_every_s=0.5))
    tracker = create_tracker(run, tmp_path / "run", resumed=False)
    for step in range(1, 6):
        tracker.metrics({"reward/mean": step / 10, "time/step_s": 2}, step)
    tracker.close("KILLED")
    uri = f"sqlite:///{tmp_path / 'later.db'}"
    run_id = send(tmp_path / "run", uri)
    assert send(tmp_path / "run", uri) == run_id, "sending twice changes nothing"
    assert "0 entries refused" in capsys.readouterr().out
    offline, online = load_run(tmp_path / "run"), load_run(run_id, uri=uri)
    assert (online.arm, online.seed, online.status) == (offline.arm, offline.seed, offline.status)
    assert list(online.steps) == list(offline.steps) == [1, 2, 3, 4, 5]
    assert list(online.series("reward/mean")) == list(offline.series("reward/mean"))
    assert online.config == offline.config
    assert offline.environment.items() <= online.environment.items() | {
        (key, value) for key, value in offline.environment.items() if key.startswith("mlflow.")
    }
    metrics = mlflow.MlflowClient(uri).get_run(run_id).data.metrics
    assert any(key.startswith("system/") for key in metrics)
    folder = tmp_path / "run"
    (near,) = find_runs([run_id], uri=uri)
    assert near.source == str(folder), "its own spool can be read here"
    for spools in (False, True):
        (far,) = find_runs([run_id], uri=uri, spools=spools)
        assert far.source == run_id
        assert list(far.series("reward/mean")) == list(near.series("reward/mean"))
        if not spools:  # another run's spool, where this run's was
            folder.rename(tmp_path / "moved")
            create_tracker(run, folder, resumed=False).close("FINISHED")


def test_a_driver_that_is_not_installed_is_named(tmp_path: Path) -> None:
    if _installed("psycopg2"):
        pytest.skip("psycopg2 is installed here")
    with pytest.raises(
        ValueError, match=r"postgresql\S*://\[redacted\]@127.0.0.1/db needs the database driver 'psycopg2'"
    ):
        create_tracker(
            RunConfig(tracking=TrackingConfig(uri="postgresql+psycopg2://u:p@127.0.0.1/db", required=True)),
            tmp_path,
            resumed=False,
        )


def _installed(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None
