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
from dataclasses import replace
from pathlib import Path

import torch

from nemo_specrl.config.run import RunConfig
from nemo_specrl.data import epoch_order
from nemo_specrl.policy.base import Row
from nemo_specrl.training.loop import Outcome, restore, save_or_stop
from nemo_specrl.training.parts import Parts, build
from nemo_specrl.training.plan import StepPlan, plan_steps
from nemo_specrl.training.ranks import is_main
from nemo_specrl.training.signals import StopSignal
from nemo_specrl.types import Prompt

STATES_BYTES = 4 << 30
"""Hidden states that are kept at once, over all replicas; batches beyond it are forwarded again in every epoch."""
HEAD_FOLDER = "head"
"""Where in the run's folder the warmed head lies: what drafter.head.source takes."""
START_POSITIONS = 32
"""The closed-form start looks at so many positions per feature that it has, twice the hidden size, where there are."""
RISE, FINAL = 0.05, 0.1
"""The learning rate rises over this share of the plan, and falls along a cosine to this share of drafter.head.lr."""


def warm_up(run: RunConfig, folder: Path, *, resumed: bool, signal: StopSignal) -> Outcome:
    """Train the head to the end of the plan or until a stop is asked for. Collective over torchrun's ranks."""
    start = time.perf_counter()
    with build(run, folder, resumed=resumed) as parts:
        plans = plan_warm_up(run, len(parts.prompts))
        done = restore(parts, folder / "checkpoints")
        lessons = Lessons(parts)
        lessons.draw(plans)
        stopped = None
        if parts.policy.head is not None and parts.policy.head.fresh:
            log(parts, 0, 0, {f"{name}_before_start": value for name, value in lessons.validate().items()})
            lessons.start()
            log(parts, 0, 0, lessons.validate())
        for plan in plans[done:]:
            with parts.progress.step(plan, len(plans)):
                metrics = lessons.step(plan, learning_rate(run.drafter.head.lr, plan.step, len(plans)))
                done = plan.step
                every = run.trainer.val_every
                if every and (plan.step % every == 0 or plan.step == len(plans)):
                    metrics |= lessons.validate()
                log(parts, plan.step, plan.epoch, metrics)
                stopped = save_or_stop(parts, folder / "checkpoints", plan, len(plans), signal)
            if stopped:
                break
        parts.policy.export_head(folder / HEAD_FOLDER)
        parts.progress.say(f"use the head with  drafter=mtp drafter.head.source={folder / HEAD_FOLDER}")
        return Outcome(done, len(plans), stopped, time.perf_counter() - start)


def plan_warm_up(run: RunConfig, n_prompts: int) -> list[StepPlan]:
    """The first epoch's batches of prompts, and the same batches in another order in each further epoch."""
    once = replace(run, trainer=replace(run.trainer, epochs=1, max_steps=None))
    batches = [plan.prompts for plan in plan_steps(once, n_prompts)]
    plans: list[StepPlan] = []
    for epoch in range(1, run.trainer.epochs + 1):
        order = epoch_order(len(batches), run.seed, epoch, run.data.shuffle and epoch > 1)
        plans += [StepPlan(len(plans) + i, epoch, batches[b]) for i, b in enumerate(order, start=1)]
    return plans[: run.trainer.max_steps]


def learning_rate(peak: float, step: int, steps: int) -> float:
    """Of a step, counted from 1: a linear rise, then a cosine to `FINAL` of the peak."""
    rise = max(1, round(RISE * steps))
    if step <= rise:
        return peak * step / rise
    share = (step - rise) / max(1, steps - rise)
    return peak * (FINAL + (1 - FINAL) * 0.5 * (1 + math.cos(math.pi * share)))


class Lessons:
    """The rollouts that the head learns from, and the hidden states of those that fit."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
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
        wanted = START_POSITIONS * 2 * self.parts.policy.architecture.hidden_size
        rows: list[Row] = []
        for row in (row for drawn in self._drawn.values() for row in drawn):
            rows.append(row)
            wanted -= len(row.token_ids)
            if wanted <= 0:
                break
        self.parts.policy.start_head(rows)

    def step(self, plan: StepPlan, lr: float) -> dict[str, float]:
        """One update of the head. Collective."""
        begun = time.perf_counter()
        self.parts.progress.phase("head")
        rows = self._drawn[plan.prompts]
        metrics = self.parts.policy.train_head(rows, states=self._kept(plan.prompts, rows), lr=lr)
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
        found = parts.policy.head_agreement(self._held_out)
        return {f"val/{name.removeprefix('draft/')}": value for name, value in found.items()}

    def _draw(self, prompts: Sequence[Prompt], what: str, *, step: int) -> list[Row]:
        self.parts.progress.phase(what, len(prompts) * self.parts.run.algorithm.group_size)
        batch = self.parts.generator.rollouts(prompts, step=step, epoch=1, version=self.parts.policy.version)
        return [Row(r.prompt_ids, r.token_ids) for r in batch.rollouts]

    def _kept(self, batch: tuple[int, ...], rows: Sequence[Row]) -> dict[int, torch.Tensor] | None:
        """The batch's hidden states; None where they don't fit. The same decision on every rank."""
        if batch not in self._states:
            config = self.parts.policy.architecture
            size = 4 * config.hidden_size * sum(len(row.prompt_ids) + len(row.token_ids) for row in rows)
            if size > self._free:
                return None
            self._free -= size
            self._states[batch] = self.parts.policy.head_states(rows)
        return self._states[batch]


def log(parts: Parts, step: int, epoch: int, metrics: dict[str, float]) -> None:
    """Record one step; step 0 is before the first update."""
    if not is_main():
        return
    if parts.tracker is not None:
        parts.tracker.metrics(metrics, step)
    shown = f"step {step:>4}  epoch {epoch}"
    if "draft/loss" in metrics:
        shown += f"  loss {metrics['draft/loss']:.4f}  agreement {metrics['draft/agreement_pos_0']:.3f}"
    held_out = [value for name, value in sorted(metrics.items()) if name.startswith("val/agreement_pos_")]
    if held_out:
        shown += f"  held out {' '.join(f'{value:.3f}' for value in held_out)}"
    if "time/step_s" in metrics:
        shown += f"  step {metrics['time/step_s']:6.1f} s"
    parts.progress.say(shown)
