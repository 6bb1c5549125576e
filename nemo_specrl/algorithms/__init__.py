"""Advantages, losses and training rows: pure functions of numbers."""

from nemo_specrl.algorithms.advantages import group_advantages, has_signal
from nemo_specrl.algorithms.loss import policy_loss
from nemo_specrl.algorithms.registry import ALGORITHMS, check_algorithm
from nemo_specrl.algorithms.rows import build_rows, split_groups

__all__ = [
    "ALGORITHMS",
    "build_rows",
    "check_algorithm",
    "group_advantages",
    "has_signal",
    "policy_loss",
    "split_groups",
]
