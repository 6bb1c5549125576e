"""Runs to compare, made on the spot: a known truth per arm, noise per seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_specrl.tracking.spool import EVENTS

MakeRun = Callable[..., Path]


def write_run(
    folder: Path,
    arm: str = "vanilla",
    seed: int = 0,
    *,
    steps: int = 40,
    verify_s: float = 0.0,
    generate_s: float = 8.0,
    reused: int = 0,
    reward: float = 0.8,
    noise: float = 0.02,
    status: str = "FINISHED",
    config: dict[str, str] | None = None,
    tags: dict[str, str] | None = None,
    extra: dict[str, float] | None = None,
) -> Path:
    """A run of four epochs; a step is verify + generate + 2 s of update; reuse begins in the second epoch."""
    rng = np.random.default_rng([seed, len(arm)])
    luck = 1 + noise * rng.standard_normal()
    folder.mkdir(parents=True)
    events: list[dict[str, Any]] = [
        {"kind": "start", "time": 1000.0, "attempt": 1, "spool": f"{arm}{seed}"},
        {"kind": "tags", "time": 1000.0, "attempt": 1, "values": {"arm": arm, "seed": str(seed), **(tags or {})}},
        {"kind": "params", "time": 1000.0, "attempt": 1, "values": {"name": arm, "seed": str(seed), **(config or {})}},
    ]
    for step in range(1, steps + 1):
        epoch = 1 + 4 * (step - 1) // steps
        active = epoch > 1
        verify = verify_s * active
        generate = (generate_s if active or not verify_s else 8.0) * luck
        old = reused if active else 0
        values = {
            "time/verify_s": verify, "time/plan_s": 0.0, "time/generate_s": generate, "time/update_s": 2.0,
            "time/rollout_s": verify + generate, "time/step_s": verify + generate + 2.0,
            "rollout/new_tokens": 1000 - old, "rollout/reused_tokens": old, "rollout/entropy": 1.5,
            "reward/mean": reward * step / steps * luck, "train/epoch": epoch, "gate/logprob_gap": 0.002,
            **(extra or {}),
        }  # fmt: skip
        events.append({"kind": "metrics", "time": 1000.0 + step, "attempt": 1, "step": step, "values": values})
    if status != "RUNNING":
        events.append({"kind": "end", "time": 2000.0, "attempt": 1, "status": status, "drops": {}})
    lines = (json.dumps(event, separators=(",", ":")) + "\n" for event in events)
    (folder / EVENTS).write_text("".join(lines))
    return folder


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """`make_run(arm, seed, **truth)` -> the run's folder."""
    return lambda arm="vanilla", seed=0, **truth: write_run(tmp_path / f"{arm}-{seed}", arm, seed, **truth)


@pytest.fixture
def bench(make_run: MakeRun) -> list[Path]:
    """Three seeds of a baseline and of an arm whose rollouts take 4 + 1 s in place of 8 from the second epoch on."""
    fast = {"verify_s": 1.0, "generate_s": 4.0, "reused": 500, "config": {"reuse.rule": "exact"}}
    slow = {"config": {"reuse.rule": "off"}}
    return [*(make_run("vanilla", s, **slow) for s in range(3)), *(make_run("exact", s, **fast) for s in range(3))]
