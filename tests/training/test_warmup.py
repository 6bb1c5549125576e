"""The plan of a warm-up, and what its lessons keep."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from nemo_specrl.config.run import RunConfig
from nemo_specrl.config.validate import validate
from nemo_specrl.policy.base import Row
from nemo_specrl.training import warmup
from nemo_specrl.training.warmup import Lessons, plan_warm_up
from nemo_specrl.types import Prompt

BASE = RunConfig()
RUN = replace(
    BASE,
    drafter=replace(BASE.drafter, method="mtp"),
    algorithm=replace(BASE.algorithm, prompts_per_step=4, group_size=2),
    trainer=replace(BASE.trainer, task="warmup", epochs=3),
)


def test_every_epoch_has_the_same_batches_in_another_order() -> None:
    plans = plan_warm_up(RUN, 22)
    assert [plan.step for plan in plans] == list(range(1, 19))
    epochs = [[plan.prompts for plan in plans if plan.epoch == e] for e in (1, 2, 3)]
    assert sorted(i for batch in epochs[0] for i in batch) == list(range(22))
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[1] != epochs[2]
    short = replace(RUN, trainer=replace(RUN.trainer, max_steps=8))
    assert plan_warm_up(short, 22) == plans[:8]


@pytest.mark.parametrize("changes", [{"drafter": BASE.drafter}, {"reuse": replace(BASE.reuse, rule="exact")}])
def test_warming_up_nothing_or_on_reused_rollouts_is_refused(changes: dict[str, Any]) -> None:
    run = replace(RUN, data=replace(RUN.data, source="arithmetic"))
    validate(run)
    with pytest.raises(ValueError, match=r"trainer\.task=warmup"):
        validate(replace(run, **changes))


class Fake:
    """A policy, a generator and a progress line that write down what they are asked."""

    def __init__(self) -> None:
        self.drawn: list[tuple[int, int]] = []
        self.forwarded = 0
        self.taught: list[bool] = []
        self.version = 0
        self.architecture = SimpleNamespace(hidden_size=8)

    def rollouts(self, prompts: list[Prompt], *, step: int, epoch: int, version: int) -> Any:
        assert (epoch, version) == (1, 0)
        self.drawn.append((step, len(prompts)))
        rows = [
            SimpleNamespace(prompt_ids=p.token_ids, token_ids=np.arange(n, dtype=np.int32), length=n)
            for p in prompts
            for n in (3, 0)
        ]
        return SimpleNamespace(rollouts=rows)

    def head_states(self, rows: list[Row]) -> dict[int, torch.Tensor]:
        self.forwarded += 1
        return {}

    def train_head(self, rows: list[Row], *, states: Any) -> dict[str, float]:
        assert all(len(row.token_ids) for row in rows)
        self.taught.append(states is not None)
        return {"draft/loss": 1.0}

    def head_agreement(self, rows: list[Row]) -> dict[str, float]:
        return {"draft/agreement_pos_0": 0.5}

    def phase(self, *_: Any) -> None:
        return None


def lessons(fake: Fake) -> Lessons:
    prompts = [Prompt(np.array([i], np.int32), "", "") for i in range(8)]
    parts: Any = SimpleNamespace(
        run=RUN, policy=fake, generator=fake, progress=fake, prompts=prompts, validation=prompts[:2]
    )
    return Lessons(parts, plan_warm_up(RUN, len(prompts)))


def test_rollouts_are_drawn_and_forwarded_once() -> None:
    fake = Fake()
    teacher = lessons(fake)
    for plan in plan_warm_up(RUN, 8):
        metrics = teacher.step(plan)
    assert fake.drawn == [(1, 4), (2, 4)]
    assert fake.forwarded == 2
    assert fake.taught == [True] * 6
    assert metrics["draft/loss"] == 1.0
    assert teacher.validate() == teacher.validate() == {"val/agreement_pos_0": 0.5}
    assert fake.drawn[2:] == [(0, 2)]


def test_a_resumed_run_draws_the_same_rollouts() -> None:
    fake = Fake()
    teacher = lessons(fake)
    later = plan_warm_up(RUN, 8)[3:]
    for plan in later:
        teacher.step(plan)
    assert sorted(fake.drawn) == [(1, 4), (2, 4)]


def test_states_that_do_not_fit_are_forwarded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # A batch of 4 rows of 1 + 3 tokens and 8 fp32 numbers takes 512 bytes.
    monkeypatch.setattr(warmup, "STATES_BYTES", 600)
    fake = Fake()
    teacher = lessons(fake)
    for plan in plan_warm_up(RUN, 8):
        teacher.step(plan)
    assert fake.forwarded == 1
    assert sorted(fake.taught) == [False] * 3 + [True] * 3
