"""Group-relative advantages (GRPO, arXiv 2402.03300, section 4.1.2). n samples, in any order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nemo_specrl.types import FloatArray

BoolArray = NDArray[np.bool_]


def group_advantages(rewards: ArrayLike, valid: ArrayLike, groups: Sequence[str], normalize_std: bool) -> FloatArray:
    """[n] reward minus the mean of the group's valid rewards, over their sample standard deviation if asked for.

    A sample that could not be scored (`valid` false) is left out of its group's baseline and gets advantage 0; its
    reward is not looked at and may be NaN. So does every sample of a group with fewer than two valid rewards, or with
    equal ones. The deviation divides by m - 1, as in TRL and verl; no epsilon is added, since equality is decided on
    the rewards themselves.
    """
    reward, counts = _checked(rewards, valid, groups)
    advantages = np.zeros(len(reward))
    for members in _members(groups):
        scored = members[counts[members]]
        values = reward[scored]
        if len(values) < 2 or np.ptp(values) == 0:
            continue
        centred = values - values.mean()
        advantages[scored] = centred / values.std(ddof=1) if normalize_std else centred
    return advantages.astype(np.float32)


def has_signal(rewards: ArrayLike, valid: ArrayLike, groups: Sequence[str]) -> BoolArray:
    """[n] whether the sample's group has two different valid rewards: what DAPO's dynamic sampling keeps
    (arXiv 2503.14476, section 3.2)."""
    reward, counts = _checked(rewards, valid, groups)
    signal = np.zeros(len(reward), dtype=np.bool_)
    for members in _members(groups):
        values = reward[members[counts[members]]]
        signal[members] = len(values) > 1 and np.ptp(values) > 0
    return signal


def _checked(rewards: ArrayLike, valid: ArrayLike, groups: Sequence[str]) -> tuple[NDArray[np.float64], BoolArray]:
    reward, counts = np.asarray(rewards, dtype=np.float64), np.asarray(valid, dtype=np.bool_)
    assert reward.shape == counts.shape == (len(groups),), (reward.shape, counts.shape, len(groups))
    if not np.isfinite(reward[counts]).all():
        bad = int(np.flatnonzero(counts & ~np.isfinite(reward))[0])
        raise ValueError(
            f"the reward of sample {bad} is {reward[bad]}. A reward that cannot be computed must return valid=False."
        )
    return reward, counts


def _members(groups: Sequence[str]) -> list[NDArray[np.intp]]:
    by_key: dict[str, list[int]] = {}
    for index, key in enumerate(groups):
        by_key.setdefault(key, []).append(index)
    return [np.asarray(indices, dtype=np.intp) for indices in by_key.values()]
