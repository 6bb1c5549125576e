"""The last lines of a run say what was gained, what that is an estimate from, and when nothing was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_specrl.config.compose import compose
from nemo_specrl.tracking.spool import EVENTS
from nemo_specrl.training.loop import Outcome
from nemo_specrl.training.summary import summarise


def write(folder: Path, *, rollout_s: float, reused: int) -> None:
    """Two steps of an epoch that reuses nothing (100 tokens in 8 s), two of one that does."""
    events = []
    for step in range(1, 5):
        later = step > 2
        values = {
            "train/epoch": 2 if later else 1, "time/rollout_s": rollout_s if later else 8.0, "time/verify_s": 0.5,
            "time/step_s": (rollout_s if later else 8.0) + 2, "time/update_s": 2.0, "reward/mean": 0.5,
            "rollout/new_tokens": 100 - reused if later else 100, "rollout/reused_tokens": reused if later else 0,
        }  # fmt: skip
        events.append({"kind": "metrics", "time": 1.0, "attempt": 1, "step": step, "values": values})
    folder.mkdir()
    (folder / EVENTS).write_text("".join(json.dumps(e, separators=(",", ":")) + "\n" for e in events))


@pytest.mark.parametrize(
    ("overrides", "rollout_s", "said"),
    [
        (
            ["reuse=exact"],
            4.0,
            "took 6.0 s from epoch 2 on, without reuse it would have taken about 10.0 s: 1.7x as fast",
        ),
        (["reuse=exact"], 16.0, "verification 16.0 s, without about 8.0 s: slower, 0.50x)"),
        (["experiment=exact_history"], 4.0, "without reuse (and drafts since) it would"),
    ],
)
def test_what_was_gained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], rollout_s: float, said: str
) -> None:
    write(tmp_path / "run", rollout_s=rollout_s, reused=60)
    summarise(compose(overrides), tmp_path / "run", Outcome(4, 4, None, 40.0))
    out = capsys.readouterr().out
    assert said in out
    assert "an estimate, from 80.0 ms a response token in 2 steps of epoch 1" in out


def test_a_run_that_reuses_nothing_gained_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "run", rollout_s=8.0, reused=0)
    summarise(compose(["reuse=off"]), tmp_path / "run", Outcome(4, 4, None, 40.0))
    assert "estimate" not in capsys.readouterr().out
