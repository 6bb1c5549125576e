"""Warm-up: the draft head learns from the policy's own rollouts before RL begins. The policy stays as it is.

In the first epoch every step draws rollouts of its prompts, without drafting, and the head learns from them; later
epochs go over the same rollouts again, batch by batch in another order. Since the policy is frozen, its hidden states
are computed once and kept while they fit. The head's agreement with the policy is measured on rollouts of held-out
prompts. Data of the policy's own are what the paper found to matter most (NeMo RL, arXiv 2604.26779); the procedure is
ours.
"""

from __future__ import annotations

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


def warm_up(run: RunConfig, folder: Path, *, resumed: bool, signal: StopSignal) -> Outcome:
    """Train the head to the end of the plan or until a stop is asked for. Collective over torchrun's ranks."""
    start = time.perf_counter()
    with build(run, folder, resumed=resumed) as parts:
        plans = plan_warm_up(run, len(parts.prompts))
        done = restore(parts, folder / "checkpoints")
        lessons = Lessons(parts, plans)
        stopped = None
        for plan in plans[done:]:
            with parts.progress.step(plan, len(plans)):
                metrics = lessons.step(plan)
                done = plan.step
                every = run.trainer.val_every
                if every and (plan.step % every == 0 or plan.step in (1, len(plans))):
                    metrics |= lessons.validate()
                log(parts, plan, metrics)
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


class Lessons:
    """The rollouts that the head learns from, and the hidden states of those that fit."""

    def __init__(self, parts: Parts, plans: Sequence[StepPlan]) -> None:
        self.parts = parts
        # A resumed run draws what an earlier attempt drew: a batch's random numbers are those of its first step.
        self._first = {plan.prompts: plan.step for plan in reversed(plans)}
        self._drawn: dict[tuple[int, ...], list[Row]] = {}
        self._states: dict[tuple[int, ...], dict[int, torch.Tensor]] = {}
        self._held_out: list[Row] | None = None
        self._free = STATES_BYTES

    def step(self, plan: StepPlan) -> dict[str, float]:
        """One update of the head. Collective."""
        begun = time.perf_counter()
        self.parts.progress.phase("rollouts" if plan.epoch == 1 else "head")
        rows = self._rows(plan)
        drawn = time.perf_counter()
        metrics = self.parts.policy.train_head(rows, states=self._kept(plan.prompts, rows))
        ended = time.perf_counter()
        tokens = sum(len(row.prompt_ids) + len(row.token_ids) for row in rows)
        return metrics | {
            "train/epoch": plan.epoch,
            "draft/tokens_per_s": tokens / (ended - drawn),
            "time/rollout_s": drawn - begun,
            "time/update_s": ended - drawn,
            "time/step_s": ended - begun,
        }

    def validate(self) -> dict[str, float]:
        """Agreement on rollouts of held-out prompts. Collective."""
        parts = self.parts
        if self._held_out is None:
            parts.progress.phase("held-out rollouts", len(parts.validation) * parts.run.algorithm.group_size)
            self._held_out = self._draw(parts.validation, step=0)
        parts.progress.phase("validation")
        found = parts.policy.head_agreement(self._held_out)
        return {f"val/{name.removeprefix('draft/')}": value for name, value in found.items()}

    def _rows(self, plan: StepPlan) -> list[Row]:
        if plan.prompts not in self._drawn:
            prompts = [self.parts.prompts[i] for i in plan.prompts]
            self._drawn[plan.prompts] = self._draw(prompts, step=self._first[plan.prompts])
        return self._drawn[plan.prompts]

    def _draw(self, prompts: Sequence[Prompt], *, step: int) -> list[Row]:
        batch = self.parts.generator.rollouts(prompts, step=step, epoch=1, version=self.parts.policy.version)
        return [Row(r.prompt_ids, r.token_ids) for r in batch.rollouts if r.length]

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


def log(parts: Parts, plan: StepPlan, metrics: dict[str, float]) -> None:
    """Record one step."""
    if not is_main():
        return
    if parts.tracker is not None:
        parts.tracker.metrics(metrics, plan.step)
    held_out = metrics.get("val/agreement_pos_0")
    shown = "" if held_out is None else f"  held out {held_out:.3f}"
    loss, seen = (metrics.get(f"draft/{name}", float("nan")) for name in ("loss", "agreement_pos_0"))
    parts.progress.say(
        f"step {plan.step:>4}  epoch {plan.epoch}  loss {loss:.4f}  agreement {seen:.3f}{shown}  "
        f"step {metrics['time/step_s']:6.1f} s"
    )
