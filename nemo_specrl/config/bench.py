"""How arms are compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BenchConfig:
    """`nemo-specrl bench`: every arm trains from the same weights, on the same prompts, with the same seeds."""

    repeats: int = 3
    """Repetitions; repetition r of every arm uses seed + r. Arms alternate, their order rotates."""
    from_epoch: int = 2
    """Figures count this epoch and later ones: the first has nothing to reuse."""
