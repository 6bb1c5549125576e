"""Reinforcement learning: the gate, then step after step, with validation where it is due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nemo_specrl.reporting import run_report
from nemo_specrl.training.evaluate import validate_policy
from nemo_specrl.training.parts import Parts
from nemo_specrl.training.plan import StepPlan
from nemo_specrl.training.ranks import is_main
from nemo_specrl.training.samples import sample_rows, sample_tokens
from nemo_specrl.training.step import run_step
from nemo_specrl.training.task import TaskStep


class RlTask:
    """See `Task`."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def begin(self, plans: Sequence[StepPlan], done: int) -> None:
        """The gate, on the weights that the first step will sample from."""
        if done < len(plans):
            parts = self.parts
            parts.refit()
            parts.gate.run(parts.prompts, step=done)

    def step(self, plan: StepPlan) -> TaskStep:
        """One training step, and validation."""
        parts, every = self.parts, self.parts.run.trainer.val_every
        result = run_step(parts, plan)
        metrics = result.metrics
        if every and plan.step % every == 0:
            metrics = metrics | validate_policy(parts, plan.step)
        if not is_main():
            return TaskStep(metrics)
        count = parts.run.tracking.sample_rollouts
        rollouts = sample_rows(result.samples, parts.decode, count)
        tokens = sample_tokens(result.samples, parts.tokenizer, count, parts.run.algorithm)
        return TaskStep(metrics, _line(plan, metrics), rollouts, tokens)

    def end(self, plans: Sequence[StepPlan], done: int) -> None:
        """The report as an artifact of the tracked run, which is about to end."""
        parts = self.parts
        if parts.tracker is not None and done:
            parts.tracker.artifact(run_report(parts.folder, status="FINISHED" if done == len(plans) else "KILLED"))


def _line(plan: StepPlan, m: Mapping[str, float]) -> str:
    new, reused = m["rollout/new_tokens"], m["rollout/reused_tokens"]
    share = reused / max(new + reused, 1)
    reward = f"{m['reward/mean']:.3f}" if "reward/mean" in m else "   - "
    return (
        f"step {plan.step:>4}  epoch {plan.epoch}  reward {reward}  length {m['rollout/length_mean']:5.1f}  "
        f"reused {share:4.0%}  rollout {m['time/rollout_s']:6.1f} s  step {m['time/step_s']:6.1f} s"
    )
