"""What a reward is, and the registry of rewards. Imports no torch: it runs in the workers."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Protocol

from nemo_specrl.types import Prompt

REWARDS: dict[str, str] = {
    "math": "nemo_specrl.rewards.math:MathReward",
}
"""Registered rewards: name -> where its class is. A new one is one line; a class of your own needs none: set
reward.name to "package.module:Class"."""


@dataclass(frozen=True, slots=True)
class RewardResult:
    """The score of one response."""

    value: float
    """The reward; NaN where `valid` is false, so that nobody mistakes it for a wrong answer."""
    valid: bool = True
    """Whether the response could be scored. Samples that could not are left out of baseline and loss."""
    error: str | None = None
    """Why not: `timeout`, or the verifier's own error."""

    @staticmethod
    def failed(error: str) -> RewardResult:
        return RewardResult(math.nan, valid=False, error=error)


class Reward(Protocol):
    """Scores responses in a worker process. Constructed without arguments, in the trainer and in every worker."""

    def warm_up(self) -> None:
        """Import what scoring needs; called once in every worker, and not counted against the deadline."""
        ...

    def check(self, prompt: Prompt) -> None:
        """ValueError for a prompt whose answer cannot be compared with; called for all of them before training.
        Must be quick, and must import nothing heavy: it runs in the trainer."""
        ...

    def __call__(self, response: str, prompt: Prompt) -> RewardResult:
        """Score one response. What it raises is an error of the verifier and makes the result invalid."""
        ...


def load_reward(name: str) -> Reward:
    """The reward of that name. ValueError for an unknown one."""
    target = REWARDS.get(name, name if ":" in name else None)
    if target is None:
        raise ValueError(
            f"reward.name={name!r}: there are {', '.join(REWARDS)}. For one of your own write 'package.module:Class'."
        )
    module, _, attribute = target.partition(":")
    try:
        reward: Reward = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"reward.name={name!r} cannot be loaded: {error}. Is it on the PYTHONPATH?") from error
    return reward
