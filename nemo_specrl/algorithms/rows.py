"""Scored rollouts -> the rows of an update."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from nemo_specrl.algorithms.advantages import group_advantages, has_signal
from nemo_specrl.config.algorithm import AlgorithmConfig
from nemo_specrl.policy.base import TrainRow
from nemo_specrl.types import FloatArray, Rollout


def build_rows(
    config: AlgorithmConfig,
    rollouts: Sequence[Rollout],
    rewards: ArrayLike,
    valid: ArrayLike,
    *,
    old_logprobs: Sequence[FloatArray],
    ref_logprobs: Sequence[FloatArray] | None = None,
    behaviour_logprobs: Sequence[FloatArray] | None = None,
) -> list[TrainRow]:
    """One row for each of n rollouts that the loss has a use for, in their order; whole groups only.

    `rewards`, `valid`: [n]. `old_logprobs`, `ref_logprobs`: n arrays [T], under the policy at the start of the step
    and under the reference. `behaviour_logprobs`: n arrays [T], what the loss is told that the tokens were drawn from;
    None = the old policy. Left out: rollouts that could not be scored, empty ones,
    with `overlong_masking` those that hit the length limit, with `dynamic_sampling` those of groups with equal
    rewards. The list may be empty: then there is nothing to learn, and the update must be skipped.
    """
    groups = [rollout.prompt_key for rollout in rollouts]
    advantages = group_advantages(rewards, valid, groups, config.normalize_std)
    keep = np.array(valid, dtype=np.bool_)
    if config.dynamic_sampling:
        keep &= has_signal(rewards, valid, groups)
    rows = []
    for index, rollout in enumerate(rollouts):
        cut = config.overlong_masking and rollout.finish_reason == "length"
        if not keep[index] or cut or rollout.length == 0:
            continue
        shape = (rollout.length,)
        old = old_logprobs[index]
        reference = None if ref_logprobs is None else ref_logprobs[index]
        assert old.shape == shape, (old.shape, shape)
        assert reference is None or reference.shape == shape, (reference.shape, shape)
        rows.append(
            TrainRow(
                prompt_ids=rollout.prompt_ids,
                token_ids=rollout.token_ids,
                old_logprobs=old,
                behaviour_logprobs=old if behaviour_logprobs is None else behaviour_logprobs[index],
                advantages=np.full(shape, advantages[index], dtype=np.float32),
                mask=np.ones(shape, dtype=np.float32),
                ref_logprobs=reference,
            )
        )
    return rows


def split_groups(prompt_keys: Sequence[str], n: int) -> list[list[int]]:
    """Indices of the rollouts in each of n mini-batches of whole groups, as even as can be, groups in order of first
    appearance; fewer batches where there are fewer groups. Advantages are per group, so building rows batch by batch
    gives the same rows."""
    assert n > 0
    by_key: dict[str, list[int]] = {}
    for index, key in enumerate(prompt_keys):
        by_key.setdefault(key, []).append(index)
    members = list(by_key.values())
    parts = np.array_split(np.arange(len(members)), min(n, len(members))) if members else []
    return [[index for group in part for index in members[group]] for part in parts]
