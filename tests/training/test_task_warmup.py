"""The plan of a warm-up, and what its lessons keep."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from nemo_specrl.config.run import RunConfig
from nemo_specrl.config.validate import validate
from nemo_specrl.contracts.rows import Row
from nemo_specrl.training import task_warmup as warmup
from nemo_specrl.training.checks import check_run
from nemo_specrl.training.plan import StepPlan, plan_steps
from nemo_specrl.training.task_warmup import Lessons, learning_rate
from nemo_specrl.types import Prompt

BASE = RunConfig()
RUN = replace(
    BASE,
    drafter=replace(BASE.drafter, method="mtp"),
    algorithm=replace(BASE.algorithm, prompts_per_step=4, group_size=2),
    trainer=replace(BASE.trainer, task="warmup", epochs=3),
)


def test_every_epoch_has_the_same_batches_in_another_order() -> None:
    plans = plan_steps(RUN, 22)
    assert [plan.step for plan in plans] == list(range(1, 19))
    epochs = [[plan.prompts for plan in plans if plan.epoch == e] for e in (1, 2, 3)]
    assert sorted(i for batch in epochs[0] for i in batch) == list(range(22))
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[1] != epochs[2]
    short = replace(RUN, trainer=replace(RUN.trainer, max_steps=8))
    assert plan_steps(short, 22) == plans[:8]


@pytest.mark.parametrize("changes", [{"drafter": BASE.drafter}, {"reuse": replace(BASE.reuse, rule="exact")}])
def test_warming_up_nothing_or_on_reused_rollouts_is_refused(changes: dict[str, Any]) -> None:
    run = replace(RUN, data=replace(RUN.data, source="arithmetic"))
    check(run)
    with pytest.raises(ValueError, match=r"trainer\.task=warmup"):
        check(replace(run, **changes))


def check(run: RunConfig) -> None:
    validate(run)
    check_run(run)


class Fake:
    """A policy, its head, a generator and a progress line that write down what they are asked."""

    def __init__(self) -> None:
        self.drawn: list[tuple[int, list[int]]] = []
        self.forwarded = 0
        self.taught: list[bool] = []
        self.started: list[int] = []
        self.version = 0
        self.hidden_size = 8

    def rollouts(self, prompts: list[Prompt], *, step: int, epoch: int, version: int) -> Any:
        assert (epoch, version) == (1, 0)
        self.drawn.append((step, [int(p.token_ids[0]) for p in prompts]))
        rows = [
            SimpleNamespace(prompt_ids=p.token_ids, token_ids=np.arange(n, dtype=np.int32))
            for p in prompts
            for n in (3, 0)
        ]
        return SimpleNamespace(rollouts=rows)

    def start(self, rows: list[Row]) -> None:
        self.started.append(len(rows))

    def states(self, rows: list[Row]) -> dict[int, torch.Tensor]:
        self.forwarded += 1
        return {}

    def train(self, rows: list[Row], *, states: Any, lr: float) -> dict[str, float]:
        assert [len(row.token_ids) for row in rows] == [3] * 4
        self.taught.append(states is not None)
        return {"draft/loss": lr}

    def agreement(self, rows: list[Row]) -> dict[str, float]:
        return {"draft/agreement_pos_0": 0.5}

    def phase(self, *_: Any) -> None:
        return None


def lessons(fake: Fake, first: int = 0) -> tuple[Lessons, list[StepPlan]]:
    """Those of a run that continues after step `first`."""
    prompts = [Prompt(np.array([i], np.int32), "", "") for i in range(8)]
    parts: Any = SimpleNamespace(
        run=RUN, policy=fake, generator=fake, progress=fake, prompts=prompts, validation=prompts[:2]
    )
    plans = plan_steps(RUN, len(prompts))
    head: Any = fake
    found = Lessons(parts, head)
    found.draw(plans)
    return found, plans[first:]


def test_rollouts_are_drawn_and_forwarded_once() -> None:
    fake = Fake()
    teacher, plans = lessons(fake)
    for plan in plans:
        metrics = teacher.step(plan, 0.25)
    assert [(step, sorted(prompts)) for step, prompts in fake.drawn] == [(1, list(range(8)))]
    assert fake.forwarded == 2
    assert fake.taught == [True] * 6
    assert metrics["draft/loss"] == metrics["draft/lr"] == 0.25
    assert teacher.validate() == teacher.validate() == {"val/agreement_pos_0": 0.5}
    assert fake.drawn[1:] == [(0, [0, 1])]


def test_a_resumed_run_draws_the_same_rollouts() -> None:
    whole, later = Fake(), Fake()
    lessons(whole)
    teacher, plans = lessons(later, first=3)
    for plan in plans:
        teacher.step(plan, 0.25)
    assert later.drawn == whole.drawn


def test_states_that_do_not_fit_are_forwarded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # A batch of 4 rows of 1 + 3 tokens and 8 fp32 numbers takes 512 bytes.
    monkeypatch.setattr(warmup, "STATES_BYTES", 600)
    fake = Fake()
    teacher, plans = lessons(fake)
    for plan in plans:
        teacher.step(plan, 0.25)
    assert fake.forwarded == 1
    assert sorted(fake.taught) == [False] * 3 + [True] * 3


def test_the_start_looks_at_no_more_rows_than_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    teacher, _ = lessons(fake)
    teacher.start()
    monkeypatch.setattr(warmup, "START_POSITIONS", 1)  # 16 features, 3 tokens a row
    teacher.start()
    assert fake.started == [8, 6]


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [learning_rate(2.0, step, 100) for step in range(1, 101)]
    assert rates[:5] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
    assert all(a > b for a, b in pairwise(rates[4:]))
    assert rates[-1] == pytest.approx(0.2)
    assert learning_rate(2.0, 1, 1) == 2.0
