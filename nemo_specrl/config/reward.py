"""How a response is scored."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_specrl.config.bounds import bounded


@dataclass(frozen=True)
class RewardConfig:
    """A named reward and the workers it runs in."""

    name: str = "math"
    """A registered reward: `math` (numbers and \\boxed{} answers, math-verify behind them)."""
    workers: int = bounded(2, at_least=1)
    """Verifier processes."""
    timeout_s: float = bounded(5.0, above=0)
    """Deadline of one verification; the worker is killed and respawned, the sample is masked, never scored 0."""
    max_error_fraction: float = bounded(0.5, at_least=0, at_most=1)
    """Stop the run, with the first error's text, when more of a step's samples than this could not be verified."""
