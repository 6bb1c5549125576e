"""Evaluation after training."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_specrl.config.bounds import bounded


@dataclass(frozen=True)
class EvaluationConfig:
    """`nemo-specrl eval`: all prompts of `data`, under `sampling`."""

    samples: int = bounded(4, at_least=1)
    """Responses per prompt."""
    untrained: bool = False
    """Evaluate the model as it is where output_dir holds no checkpoint; otherwise that is an error."""
