"""How a response is scored."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RewardConfig:
    """A named reward and the workers it runs in."""

    name: str = "math"
    """A registered reward: `math` (numbers and \\boxed{} answers, math-verify behind them)."""
    workers: int = 2
    """Verifier processes."""
    timeout_s: float = 5.0
    """Deadline of one verification; the worker is killed and respawned, the sample is masked, never scored 0."""
    max_error_fraction: float = 0.5
    """Stop the run, with the first error's text, when more of a step's samples than this could not be verified."""
