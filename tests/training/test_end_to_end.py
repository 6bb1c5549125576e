"""The main job on a tiny random model, with real vLLM and real Megatron: complete, killed and resumed, and under TP=2.

The killed run must end up with the very rollouts and metrics of the complete one (fp32, same seed)."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from nemo_specrl.training import checkpoint

ROOT = Path(__file__).parents[2]
SETTINGS = [
    "experiment=tiny", "reward.name=tests.training.letters:LowerCaseShare", "policy.lr=3e-3", "reuse=exact",
    "trainer.epochs=3", "gate.samples=96", "gate.canary_every=3", "tracking.sample_rollouts=8", "trainer.val_every=3",
    "trainer.val_prompts=2",
]  # fmt: skip
pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


def command(folder: Path, *more: str, launcher: tuple[str, ...] = ()) -> list[str]:
    start = [sys.executable, "-m", *(launcher or ("nemo_specrl.cli",))]
    return [*start, "train", *SETTINGS, f"output_dir={folder}", *more]


def environment(tmp: Path) -> dict[str, str]:
    return {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp}/mlflow.db", "HF_HUB_OFFLINE": "1"}


def run(tmp: Path, args: list[str], *, code: int = 0) -> str:
    done = subprocess.run(args, cwd=ROOT, env=environment(tmp), capture_output=True, text=True, timeout=800)
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def events(folder: Path, kind: str) -> dict[int, dict[str, Any]]:
    """The last attempt's line of each step."""
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return {line["step"]: line["values"] for line in lines if line["kind"] == kind}


def untimed(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if not k.startswith("time/")}


def tables(folder: Path) -> dict[str, list[str]]:
    """Each table's rows; a step that was run again has written the same rows again."""
    return {p.name: sorted(set(p.read_text().splitlines())) for p in (folder / "tables").iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from start to end."""
    tmp = tmp_path_factory.mktemp("whole")
    out = run(tmp, command(tmp / "run", "tracking.register_model=tiny"))
    assert "tokens" in out
    assert "report" in out
    return tmp / "run"


def test_a_complete_run_learns_reuses_and_reports(whole: Path) -> None:
    steps = events(whole, "metrics")
    assert sorted(steps) == [1, 2, 3, 4, 5, 6]
    assert steps[1]["rollout/reused_tokens"] == 0
    assert sum(steps[s]["rollout/reused_tokens"] for s in (3, 4, 5, 6)) > 0
    assert all(steps[s]["rollout/new_tokens"] + steps[s]["rollout/reused_tokens"] > 0 for s in steps)
    assert steps[6]["train/policy_version"] == 6
    assert steps[1]["train/grad_norm"] > 0
    assert max(steps[s]["gate/logprob_gap"] for s in steps if "gate/logprob_gap" in steps[s]) < 1e-4
    assert "val/reward_mean" in steps[3]
    assert (whole / "report.html").stat().st_size > 1000
    client = MlflowClient(f"sqlite:///{whole.parent}/mlflow.db")
    (version,) = client.search_model_versions("name = 'tiny'")
    files = {Path(f.path).name for f in client.list_artifacts(version.run_id, "model/step_00000006")}
    assert files >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert "report.html" in {f.path for f in client.list_artifacts(version.run_id)}
    assert [c.step for c in checkpoint.complete(whole / "checkpoints")] == [6, 5]


def test_killed_at_any_moment_it_continues_to_the_same_end(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(
        command(folder), cwd=ROOT, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 600
    while not (folder / "events.jsonl").exists() or 3 not in events(folder, "metrics"):
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run(tmp_path, command(folder))
    expected, found = events(whole, "metrics"), events(folder, "metrics")
    assert sorted(found) == sorted(expected)
    for step in expected:
        assert untimed(found[step]) == untimed(expected[step]), f"step {step} differs"
    assert tables(folder) == tables(whole)


def test_a_finished_run_is_not_run_again(whole: Path, tmp_path: Path) -> None:
    before, engine = events(whole, "metrics"), (whole / "engine.log").read_bytes()
    out = run(whole.parent, command(whole))
    assert "6 of 6 steps" in out
    assert events(whole, "metrics") == before
    assert (whole / "engine.log").read_bytes() == engine, "no engine was started for it"


def test_another_run_in_the_same_folder_is_refused(whole: Path, tmp_path: Path) -> None:
    args = [a if a != "reuse=exact" else "reuse=off" for a in command(whole)]
    done = subprocess.run(args, cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "belongs to another run (reuse.rule: exact there, off now)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.distributed
def test_tensor_parallel_two_gives_the_same_run(whole: Path, tmp_path: Path) -> None:
    """Splitting sums over ranks rounds differently, so numbers agree closely, not to the bit."""
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "nemo_specrl.cli")
    run(tmp_path, command(tmp_path / "run", "policy.tensor_parallel=2", "trainer.max_steps=3", launcher=launcher))
    expected, found = events(whole, "metrics"), events(tmp_path / "run", "metrics")
    assert sorted(found) == [1, 2, 3]
    for key in ("reward/mean", "train/loss", "train/grad_norm", "rollout/new_tokens", "rollout/reused_tokens"):
        assert found[1][key] == pytest.approx(expected[1][key], rel=1e-3, abs=1e-4), key
