"""What reuse gained in a run alone: an estimate from its own first epoch, which reuses nothing."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_specrl.reporting.history import RunHistory


@dataclass(frozen=True)
class Gain:
    """Mean seconds of a step from the second epoch on. An estimate: it takes generation to cost the same per token in
    every epoch, which a response that grows, an engine that empties, or a machine that is shared does not keep to."""

    token_s: float
    """Seconds of the rollout phase per response token in the first epoch."""
    first_steps: int
    """Steps that this was measured in."""
    steps: int
    """Steps since."""
    rollout_s: float
    """Measured, verification counted."""
    rollout_without_s: float
    """Had every response token been generated at `token_s`."""
    step_s: float
    """Measured."""

    @property
    def step_without_s(self) -> float:
        """A whole step, had every response token been generated."""
        return self.step_s - self.rollout_s + self.rollout_without_s

    @property
    def rollout_speedup(self) -> float:
        return self.rollout_without_s / self.rollout_s

    @property
    def step_speedup(self) -> float:
        return self.step_without_s / self.step_s


def reuse_gain(run: RunHistory) -> Gain | None:
    """None where there is nothing to estimate from: no first epoch without reuse, no later one, no time recorded."""
    if not (run.has("train/epoch") and run.has("time/rollout_s") and run.has("time/step_s")):
        return None
    epochs = run.column("train/epoch")
    if not (epochs == 1).any():
        return None
    first, later = run.between(0, int(run.steps[epochs == 1].max())), run.from_epoch(2)
    drawn = first.total("rollout/new_tokens")
    if not len(later) or not drawn or first.total("rollout/reused_tokens") or not later.total("time/rollout_s"):
        return None
    parts = ("new", "reused", "replaced")
    tokens = sum(later.total(f"rollout/{part}_tokens") for part in parts)
    token_s, n = first.total("time/rollout_s") / drawn, len(later)
    return Gain(
        token_s=token_s,
        first_steps=len(first),
        steps=n,
        rollout_s=later.total("time/rollout_s") / n,
        rollout_without_s=tokens * token_s / n,
        step_s=later.total("time/step_s") / n,
    )
