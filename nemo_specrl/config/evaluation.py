"""Evaluation after training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EvaluationConfig:
    """`nemo-specrl eval`: all prompts of `data`, under `sampling`."""

    samples: int = 4
    """Responses per prompt."""
