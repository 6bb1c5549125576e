"""How arms are compared."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_specrl.config.bounds import bounded


@dataclass(frozen=True)
class BenchConfig:
    """`nemo-specrl bench`: every arm starts from the same weights, on the same prompts, with the same seeds."""

    kind: str = bounded("trainings", choices=("trainings", "rollouts"))
    """`trainings`: every arm trains. `rollouts`: one training is recorded, then every arm draws the rollouts of its
    next step again and again, from the same weights and the same cache."""
    repeats: int = bounded(3, at_least=1)
    """Repetitions; repetition r of every arm uses seed + r. Arms alternate, their order rotates."""
    from_epoch: int = bounded(2, at_least=1)
    """Figures count this epoch and later ones: the first has nothing to reuse. `rollouts`: its first step."""
    slots: tuple[int, ...] = bounded((1, 4, 8, 16, 32), at_least=1)
    """`rollouts`: engine slots (requests decoded at once) to measure at."""
    rollouts_per_slot: int = bounded(8, at_least=1)
    """`rollouts`: with n slots at most n times so many rollouts are drawn, in whole groups: bounds the time at few
    slots."""
