"""What the loop is a loop of: RL, or the warm-up of a draft head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from nemo_specrl.training.parts import Parts
from nemo_specrl.training.plan import StepPlan


@dataclass
class TaskStep:
    """What is recorded of one step; complete on rank 0."""

    metrics: dict[str, float]
    line: str = ""
    """What the terminal says of it."""
    rollouts: list[dict[str, Any]] = field(default_factory=list)
    """A few of them, as a person wants to read them."""


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
    if done.line:
        parts.progress.say(done.line)
