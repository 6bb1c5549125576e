"""Warm-up: the draft head learns from the policy's own rollouts before RL begins. The policy stays as it is.

All rollouts are drawn first, without drafting. A head from scratch gets its closed-form start on them (policy/mtp/
start.py); then it learns, batch by batch, epoch after epoch in another order. Since the policy is frozen, its hidden
states are computed once and kept while they fit. The head's agreement with the policy is measured on rollouts of
held-out prompts. Data of the policy's own are what the paper found to matter most (NeMo RL, arXiv 2604.26779); the
procedure is ours.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch

from nemo_specrl.contracts.rows import Row
from nemo_specrl.policy.mtp.companion import HeadCompanion
from nemo_specrl.training.parts import Parts
from nemo_specrl.training.plan import StepPlan
from nemo_specrl.training.ranks import is_main
from nemo_specrl.training.task import TaskStep, record
from nemo_specrl.types import Prompt

STATES_BYTES = 4 << 30
"""Hidden states that are kept at once, over all replicas; batches beyond it are forwarded again in every epoch."""
HEAD_FOLDER = "head"
"""Where in the run's folder the warmed head lies: what drafter.head.source takes."""
START_POSITIONS = 32
"""The closed-form start looks at so many positions per feature that it has, twice the hidden size, where there are."""
RISE, FINAL = 0.05, 0.1
"""The learning rate rises over this share of the plan, and falls along a cosine to this share of drafter.head.lr."""


class WarmupTask:
    """See `Task`."""

    def __init__(self, parts: Parts) -> None:
        (self.head,) = (c for c in parts.policy.companions if isinstance(c, HeadCompanion))
        self.parts = parts
        self.lessons = Lessons(parts, self.head)
        self.steps = 0

    def begin(self, plans: Sequence[StepPlan], done: int) -> None:
        """Draw all rollouts, and give a fresh head its start."""
        self.steps = len(plans)
        if done == self.steps:
            return
        self.lessons.draw(plans)
        if self.head.fresh:
            before = {f"{name}_before_start": value for name, value in self.lessons.validate().items()}
            self._record(before)
            self.lessons.start()
            self._record(self.lessons.validate())

    def step(self, plan: StepPlan) -> TaskStep:
        """One update of the head, and validation where it is due."""
        run = self.parts.run
        metrics = self.lessons.step(plan, learning_rate(run.drafter.head.lr, plan.step, self.steps))
        every = run.trainer.val_every
        if every and (plan.step % every == 0 or plan.step == self.steps):
            metrics |= self.lessons.validate()
        return TaskStep(metrics, _line(plan.step, plan.epoch, metrics))

    def end(self, plans: Sequence[StepPlan], done: int) -> None:
        """Write the head as it now is."""
        folder = self.parts.folder / HEAD_FOLDER
        self.head.export(folder)
        self.parts.progress.say(f"use the head with  drafter=mtp drafter.head.source={folder}")

    def _record(self, metrics: dict[str, float]) -> None:
        """Step 0 is before the first update."""
        if is_main():
            record(self.parts, 0, TaskStep(metrics, _line(0, 0, metrics)))


def learning_rate(peak: float, step: int, steps: int) -> float:
    """Of a step, counted from 1: a linear rise, then a cosine to `FINAL` of the peak."""
    rise = max(1, round(RISE * steps))
    if step <= rise:
        return peak * step / rise
    share = (step - rise) / max(1, steps - rise)
    return peak * (FINAL + (1 - FINAL) * 0.5 * (1 + math.cos(math.pi * share)))


class Lessons:
    """The rollouts that the head learns from, and the hidden states of those that fit."""

    def __init__(self, parts: Parts, head: HeadCompanion) -> None:
        self.parts, self.head = parts, head
        self._drawn: dict[tuple[int, ...], list[Row]] = {}
        self._states: dict[tuple[int, ...], dict[int, torch.Tensor]] = {}
        self._held_out: list[Row] | None = None
        self._free = STATES_BYTES

    def draw(self, plans: Sequence[StepPlan]) -> None:
        """The rollouts of every batch in the plan, in one go: the engine's slots stay full. A resumed run draws what
        an earlier attempt drew: the random numbers are those of step 1, prompt and slot."""
        batches = list(dict.fromkeys(plan.prompts for plan in plans))
        chosen = [i for batch in batches for i in batch]
        rows = iter(self._draw([self.parts.prompts[i] for i in chosen], "rollouts", step=1))
        size = self.parts.run.algorithm.group_size
        for batch in batches:
            drawn = [next(rows) for _ in range(len(batch) * size)]
            self._drawn[batch] = [row for row in drawn if len(row.token_ids)]

    def start(self) -> None:
        """The closed-form start of a fresh head. Collective."""
        self.parts.progress.phase("head's start")
        wanted = START_POSITIONS * 2 * self.head.hidden_size
        rows: list[Row] = []
        for row in (row for drawn in self._drawn.values() for row in drawn):
            rows.append(row)
            wanted -= len(row.token_ids)
            if wanted <= 0:
                break
        self.head.start(rows)

    def step(self, plan: StepPlan, lr: float) -> dict[str, float]:
        """One update of the head. Collective."""
        begun = time.perf_counter()
        self.parts.progress.phase("head")
        rows = self._drawn[plan.prompts]
        metrics = self.head.train(rows, states=self._kept(plan.prompts, rows), lr=lr)
        seconds = time.perf_counter() - begun
        tokens = sum(len(row.prompt_ids) + len(row.token_ids) for row in rows)
        return metrics | {
            "train/epoch": plan.epoch,
            "draft/lr": lr,
            "draft/tokens_per_s": tokens / seconds,
            "time/step_s": seconds,
        }

    def validate(self) -> dict[str, float]:
        """Agreement on rollouts of held-out prompts. Collective."""
        parts = self.parts
        if self._held_out is None:
            self._held_out = self._draw(parts.validation, "held-out rollouts", step=0)
        parts.progress.phase("validation")
        found = self.head.agreement(self._held_out)
        return {f"val/{name.removeprefix('draft/')}": value for name, value in found.items()}

    def _draw(self, prompts: Sequence[Prompt], what: str, *, step: int) -> list[Row]:
        self.parts.progress.phase(what, len(prompts) * self.parts.run.algorithm.group_size)
        batch = self.parts.generator.rollouts(prompts, step=step, epoch=1, version=self.parts.policy.version)
        return [Row(r.prompt_ids, r.token_ids) for r in batch.rollouts]

    def _kept(self, batch: tuple[int, ...], rows: Sequence[Row]) -> dict[int, torch.Tensor] | None:
        """The batch's hidden states; None where they don't fit. The same decision on every rank."""
        if batch not in self._states:
            size = 4 * self.head.hidden_size * sum(len(row.prompt_ids) + len(row.token_ids) for row in rows)
            if size > self._free:
                return None
            self._free -= size
            self._states[batch] = self.head.states(rows)
        return self._states[batch]


def _line(step: int, epoch: int, metrics: dict[str, float]) -> str:
    shown = f"step {step:>4}  epoch {epoch}"
    if "draft/loss" in metrics:
        shown += f"  loss {metrics['draft/loss']:.4f}  agreement {metrics['draft/agreement_pos_0']:.3f}"
    held_out = [value for name, value in sorted(metrics.items()) if name.startswith("val/agreement_pos_")]
    if held_out:
        shown += f"  held out {' '.join(f'{value:.3f}' for value in held_out)}"
    if "time/step_s" in metrics:
        shown += f"  step {metrics['time/step_s']:6.1f} s"
    return shown
