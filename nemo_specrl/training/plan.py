"""Which prompts belong to which step: a pure function of the configuration, so a resumed run needs only its step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nemo_specrl.config.run import RunConfig
from nemo_specrl.data import epoch_order


@dataclass(frozen=True)
class StepPlan:
    """One step of the run."""

    step: int
    """1, 2, ... over the whole run."""
    epoch: int
    """1, 2, ..."""
    prompts: tuple[int, ...]
    """Indices of this step's prompts; an epoch's last step may have fewer."""


def plan_steps(run: RunConfig, n_prompts: int) -> list[StepPlan]:
    """All steps of the run, in order."""
    return (_plan_warm_up if run.trainer.task == "warmup" else _plan_rl)(run, n_prompts)


def _plan_warm_up(run: RunConfig, n_prompts: int) -> list[StepPlan]:
    """The first epoch's batches of prompts, and the same batches in another order in each further epoch."""
    once = replace(run, trainer=replace(run.trainer, epochs=1, max_steps=None))
    batches = [plan.prompts for plan in _plan_rl(once, n_prompts)]
    plans: list[StepPlan] = []
    for epoch in range(1, run.trainer.epochs + 1):
        order = epoch_order(len(batches), run.seed, epoch, run.data.shuffle and epoch > 1)
        plans += [StepPlan(len(plans) + i, epoch, batches[b]) for i, b in enumerate(order, start=1)]
    return plans[: run.trainer.max_steps]


def _plan_rl(run: RunConfig, n_prompts: int) -> list[StepPlan]:
    """Every prompt is used once per epoch."""
    per_step = run.algorithm.prompts_per_step
    plans: list[StepPlan] = []
    for epoch in range(1, run.trainer.epochs + 1):
        order = epoch_order(n_prompts, run.seed, epoch, run.data.shuffle)
        for start in range(0, n_prompts, per_step):
            plans.append(StepPlan(len(plans) + 1, epoch, tuple(int(i) for i in order[start : start + per_step])))
    return plans[: run.trainer.max_steps]
