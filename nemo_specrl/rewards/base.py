"""What a reward is, and the registry of rewards. Imports no torch: it runs in the workers."""

from __future__ import annotations

from typing import Protocol

from nemo_specrl.config.registry import resolve
from nemo_specrl.contracts.sample import RewardResult
from nemo_specrl.types import Prompt

REWARDS: dict[str, str] = {
    "math": "nemo_specrl.rewards.math:MathReward",
}
"""Registered rewards: name -> where its class is. A new one is one line; a class of your own needs none: set
reward.name to "package.module:Class"."""


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
    reward: Reward = resolve(REWARDS, name, "reward.name")()
    return reward
