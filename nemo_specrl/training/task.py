"""What the loop is a loop of: RL, or the warm-up of a draft head."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from nemo_specrl.reporting import rollout_log
from nemo_specrl.training.parts import Parts
from nemo_specrl.training.plan import StepPlan

LOG = logging.getLogger("nemo_specrl")


@dataclass
class TaskStep:
    """What is recorded of one step; complete on rank 0."""

    metrics: dict[str, float]
    line: str = ""
    """What the terminal says of it."""
    rollouts: list[dict[str, Any]] = field(default_factory=list)
    """A few of them, as a person wants to read them."""
    tokens: list[dict[str, Any]] = field(default_factory=list)
    """The same, token by token (`reporting.rollout_log`)."""


class Task(Protocol):
    """Every method is collective. The parts hold the state of step `done` when `begin` is called."""

    def begin(self, plans: Sequence[StepPlan], done: int) -> None:
        """Before the first step of this attempt."""
        ...

    def step(self, plan: StepPlan) -> TaskStep:
        """One step. What it raises before the policy has moved leaves the state of the step before."""
        ...

    def end(self, plans: Sequence[StepPlan], done: int) -> None:
        """After the last step of this attempt."""
        ...


def record(parts: Parts, step: int, done: TaskStep) -> None:
    """Everything that is recorded of a step, once; on rank 0."""
    if parts.tracker is not None:
        parts.tracker.metrics(done.metrics, step)
        if done.rollouts:
            parts.tracker.table("rollouts", done.rollouts, step)
        if done.tokens:
            try:
                rollout_log.append(parts.folder, step, int(done.metrics["train/epoch"]), done.tokens)
            except OSError as error:  # telemetry never stops training
                LOG.warning("the rollouts of step %d are not in the report: %s", step, error)
    if done.line:
        parts.progress.say(done.line)
