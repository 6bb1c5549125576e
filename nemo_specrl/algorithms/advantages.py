"""Group-relative advantages (GRPO, arXiv 2402.03300, section 4.1.2). n samples, in any order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nemo_specrl.types import BoolArray, FloatArray

_ROUNDING, _NOTHING = 1e-6, 1e-12


def group_advantages(
    rewards: ArrayLike, valid: ArrayLike, groups: Sequence[str], normalize_std: bool, baseline: str = "group"
) -> FloatArray:
    """[n] reward minus the mean of the group's valid rewards, over their sample standard deviation if asked for.

    `baseline=leave_one_out`: minus the mean of the group's others (RLOO, arXiv 2402.14740). `batch`: all
    rewards given are one group (REINFORCE++, arXiv 2501.03262).

    A sample that could not be scored (`valid` false) is left out of its group's baseline and gets advantage 0; its
    reward is not looked at and may be NaN. So does every sample of a group with fewer than two valid rewards, or with
    rewards that are equal up to rounding: sums of shaped rewards that differ in their last bits (0.1 + 0.2 and 0.3)
    would be blown up to advantages near 1. The deviation divides by m - 1, as in TRL and verl; no epsilon is added to
    it, so that advantages do not depend on the rewards' unit.
    """
    reward, counts = _checked(rewards, valid, groups)
    advantages = np.zeros(len(reward))
    for members in _members([""] * len(groups) if baseline == "batch" else groups):
        scored = members[counts[members]]
        values = reward[scored]
        if not _differ(values):
            continue
        centred = values - values.mean()
        if baseline == "leave_one_out":
            centred *= len(values) / (len(values) - 1)
        advantages[scored] = centred / values.std(ddof=1) if normalize_std else centred
    return advantages.astype(np.float32)


def has_signal(rewards: ArrayLike, valid: ArrayLike, groups: Sequence[str]) -> BoolArray:
    """[n] whether the sample's group has two valid rewards that differ by more than rounding: what DAPO's dynamic
    sampling keeps (arXiv 2503.14476, section 3.2)."""
    reward, counts = _checked(rewards, valid, groups)
    signal = np.zeros(len(reward), dtype=np.bool_)
    for members in _members(groups):
        signal[members] = _differ(reward[members[counts[members]]])
    return signal


def _differ(values: NDArray[np.float64]) -> bool:
    """Whether [m] rewards span more than a millionth of the largest (a few roundings of fp32), and more than 1e-12
    (what is left where terms near 1 cancel in float64)."""
    return len(values) > 1 and bool(np.ptp(values) > max(_ROUNDING * np.abs(values).max(), _NOTHING))


def _checked(rewards: ArrayLike, valid: ArrayLike, groups: Sequence[str]) -> tuple[NDArray[np.float64], BoolArray]:
    reward, counts = np.asarray(rewards, dtype=np.float64), np.asarray(valid, dtype=np.bool_)
    assert reward.shape == counts.shape == (len(groups),), (reward.shape, counts.shape, len(groups))
    fits = np.abs(reward) <= np.finfo(np.float32).max / 2  # advantages are fp32; NaN does not fit, either
    if not fits[counts].all():
        bad = int(np.flatnonzero(counts & ~fits)[0])
        raise ValueError(
            f"the reward of sample {bad} is {reward[bad]}. A reward that cannot be computed must return valid=False."
        )
    return reward, counts


def _members(groups: Sequence[str]) -> list[NDArray[np.intp]]:
    by_key: dict[str, list[int]] = {}
    for index, key in enumerate(groups):
        by_key.setdefault(key, []).append(index)
    return [np.asarray(indices, dtype=np.intp) for indices in by_key.values()]
