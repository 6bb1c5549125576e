"""Advantages, losses and training rows: pure functions of numbers."""

from nemo_specrl.algorithms.advantages import group_advantages, has_signal
from nemo_specrl.algorithms.loss import policy_loss
from nemo_specrl.algorithms.rows import build_rows, split_groups

__all__ = [
    "build_rows",
    "group_advantages",
    "has_signal",
    "policy_loss",
    "split_groups",
]
