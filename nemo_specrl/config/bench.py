"""How arms are compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BenchConfig:
    """`nemo-specrl bench`: every arm starts from the same weights, on the same prompts, with the same seeds."""

    kind: str = "trainings"
    """`trainings`: every arm trains. `rollouts`: one training is recorded, then every arm draws the rollouts of its
    next step again and again, from the same weights and the same cache."""
    repeats: int = 3
    """Repetitions; repetition r of every arm uses seed + r. Arms alternate, their order rotates."""
    from_epoch: int = 2
    """Figures count this epoch and later ones: the first has nothing to reuse. `rollouts`: its first step."""
    slots: tuple[int, ...] = (1, 4, 8, 16, 32)
    """`rollouts`: engine slots (requests decoded at once) to measure at."""
    rollouts_per_slot: int = 8
    """`rollouts`: with n slots at most n times so many rollouts are drawn, in whole groups: bounds the time at few
    slots."""
