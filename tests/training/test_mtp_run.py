"""A training with a draft head, on a tiny random model with real vLLM: the head learns, is refitted, and drafts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.training.test_end_to_end import command, events, run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


def test_what_the_trainer_expects_of_the_head_is_what_the_engine_accepts(tmp_path: Path) -> None:
    """The gate passes with the head on; then acceptance at the first draft position, over all steps, is the expected
    one within 4 standard errors (1 in 16,000 runs fails by chance). A head that is not refitted, or is fed other
    hidden states than in training, is off by more: its expectation moves with every update, at this learning rate."""
    folder = tmp_path / "run"
    more = ("reuse=off", "drafter=mtp", "drafter.head.lr=3e-3", "trainer.epochs=4", "trainer.val_every=0")
    run(tmp_path, command(folder, *more))
    steps = events(folder, "metrics")
    assert sorted(steps) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(steps[s]["draft/grad_norm"] > 0 for s in steps)
    losses = [steps[s]["draft/loss"] for s in sorted(steps)]
    assert losses[-1] < 0.5 * max(losses), "the policy ran away from the head, which has not caught up"
    assert all(steps[s]["gate/logprob_gap"] < 1e-4 for s in steps)
    drafts = sum(steps[s]["spec/drafts"] for s in steps)
    accepted = sum(steps[s]["spec/accepted_pos_0"] for s in steps)
    expected = sum(steps[s]["spec/drafts"] * steps[s]["draft/agreement_pos_0"] for s in steps) / drafts
    assert drafts > 100
    assert abs(accepted / drafts - expected) < 4 * math.sqrt(expected * (1 - expected) / drafts)
