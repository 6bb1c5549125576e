"""What reuse gained, estimated from the run's own first epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_specrl.reporting import load_run
from nemo_specrl.reporting.gain import reuse_gain

MakeRun = Callable[..., Path]


def test_a_known_gain(make_run: MakeRun) -> None:
    """Generation takes 8 s for 1,000 tokens in the first epoch, then 1 s of verification and 4 s for 500 of 1,000."""
    run = load_run(make_run("exact", noise=0.0, verify_s=1.0, generate_s=4.0, reused=500))
    gain = reuse_gain(run)
    assert gain is not None
    assert (gain.first_steps, gain.steps) == (10, 30)
    assert gain.token_s == pytest.approx(0.008)
    assert gain.rollout_without_s == pytest.approx(8.0)
    assert (gain.rollout_s, gain.step_s, gain.step_without_s) == (pytest.approx(5), pytest.approx(7), pytest.approx(10))
    assert gain.rollout_speedup == pytest.approx(1.6)
    assert gain.step_speedup == pytest.approx(10 / 7)


def test_it_is_per_token_so_longer_responses_are_no_loss(make_run: MakeRun) -> None:
    run = load_run(make_run("exact", noise=0.0, verify_s=1.0, generate_s=4.0, reused=500))
    longer = run.columns["rollout/reused_tokens"] * 3.0  # 500 new and 1,500 reused tokens from epoch 2 on
    gain = reuse_gain(replace(run, columns={**run.columns, "rollout/reused_tokens": longer}))
    assert gain is not None
    assert gain.rollout_without_s == pytest.approx(16.0)


def test_slower_is_said_as_it_is(make_run: MakeRun) -> None:
    gain = reuse_gain(load_run(make_run("exact", noise=0.0, verify_s=9.0, generate_s=4.0, reused=500)))
    assert gain is not None
    assert gain.rollout_speedup == pytest.approx(8 / 13)


@pytest.mark.parametrize("lost", ["train/epoch", "time/rollout_s", "time/step_s", "rollout/new_tokens"])
def test_nothing_is_estimated_from_nothing(make_run: MakeRun, lost: str) -> None:
    run = load_run(make_run("exact", verify_s=1.0, reused=500))
    assert reuse_gain(replace(run, columns={k: v for k, v in run.columns.items() if k != lost})) is None
    assert reuse_gain(run.from_epoch(2)) is None, "no first epoch"
    assert reuse_gain(run.between(1, 10)) is None, "no later one"


def test_a_first_epoch_that_reused_is_no_measure(make_run: MakeRun, tmp_path: Path) -> None:
    run = load_run(make_run("exact", verify_s=1.0, reused=500))
    reused = run.columns["rollout/reused_tokens"] + 1
    assert reuse_gain(replace(run, columns={**run.columns, "rollout/reused_tokens": reused})) is None
