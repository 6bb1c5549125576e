"""Rewards: named, checked before training, and computed in processes that can be killed."""

from nemo_specrl.contracts.sample import RewardResult
from nemo_specrl.rewards.base import REWARDS, Reward, load_reward
from nemo_specrl.rewards.scorer import Scorer

__all__ = ["REWARDS", "Reward", "RewardResult", "Scorer", "load_reward"]
