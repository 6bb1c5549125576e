"""A training with a draft head, on a tiny random model with real vLLM: the head learns, is refitted, and drafts."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from nemo_specrl.training import checkpoint
from tests.training.test_end_to_end import command, events, run, untimed

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


def test_what_the_trainer_expects_of_the_head_is_what_the_engine_accepts(tmp_path: Path) -> None:
    """The gate passes with the head on; then acceptance at the first draft position, over all steps, is the expected
    one within 4 standard errors (1 in 16,000 runs fails by chance). A head that is not refitted, or is fed other
    hidden states than in training, is off by more: its expectation moves with every update, at this learning rate."""
    folder = tmp_path / "run"
    more = (
        "reuse=off",
        "drafter=mtp",
        "drafter.head.lr=3e-3",
        "drafter.head.acceptance_floor=0",
        "trainer.epochs=4",
        "trainer.val_every=0",
    )
    run(tmp_path, command(folder, *more))
    steps = events(folder, "metrics")
    assert sorted(steps) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(steps[s]["draft/grad_norm"] > 0 for s in steps)
    assert all(steps[s]["gate/logprob_gap"] < 1e-4 for s in steps)
    draws_the_same_after_a_crash(tmp_path, command(folder, *more), folder)
    drafts = sum(steps[s]["spec/drafts"] for s in steps)
    accepted = sum(steps[s]["spec/accepted_pos_0"] for s in steps)
    expected = sum(steps[s]["spec/drafts"] * steps[s]["draft/agreement_pos_0"] for s in steps) / drafts
    assert drafts > 100
    assert abs(accepted / drafts - expected) < 4 * math.sqrt(expected * (1 - expected) / drafts)


def draws_the_same_after_a_crash(tmp: Path, args: list[str], folder: Path) -> None:
    """The last step once more, from the checkpoint before it: sampled drafts are those of the run that never stopped,
    although this time the gate has drawn from the engine first."""
    before = untimed(events(folder, "metrics")[8])
    shutil.rmtree(checkpoint.complete(folder / "checkpoints")[0].folder)
    run(tmp, args)
    assert untimed(events(folder, "metrics")[8]) == before
