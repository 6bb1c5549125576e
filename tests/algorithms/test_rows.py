import numpy as np
import pytest

from nemo_specrl.algorithms import build_rows, split_groups
from nemo_specrl.config.algorithm import AlgorithmConfig
from nemo_specrl.types import Rollout

GRPO = AlgorithmConfig(group_size=2)


def rollout(key="a", slot=0, length=3, finish="stop", shift=0.0):
    return Rollout(
        prompt_key=key,
        slot=slot,
        prompt_ids=np.array([7, 8], dtype=np.int32),
        token_ids=np.arange(length, dtype=np.int32) + slot,
        logprobs=np.full(length, -1.0 + shift, dtype=np.float32),
        policy_version=np.zeros(length, dtype=np.int32),
        finish_reason=finish,
    )


def old_of(rollouts):
    return [np.full(r.length, -2.0, dtype=np.float32) for r in rollouts]


def test_a_row_carries_its_rollout_and_its_advantage():
    rollouts = [rollout(slot=0), rollout(slot=1, length=2)]
    rows = build_rows(GRPO, rollouts, [1.0, 0.0], [True, True], old_logprobs=old_of(rollouts))
    assert [row.token_ids.tolist() for row in rows] == [[0, 1, 2], [1, 2]]
    root_half = np.sqrt(0.5)
    np.testing.assert_allclose(rows[0].advantages, [root_half] * 3, rtol=1e-6)
    np.testing.assert_allclose(rows[1].advantages, [-root_half] * 2, rtol=1e-6)
    assert rows[0].mask.tolist() == [1.0, 1.0, 1.0]
    assert rows[0].ref_logprobs is None


@pytest.mark.parametrize("correct", [True, False])
def test_the_behaviour_law_is_told_only_where_a_correction_is_on(correct):
    rollouts = [rollout(slot=0, shift=0.5), rollout(slot=1)]
    old = old_of(rollouts)
    reference = [o - 1 for o in old]
    row = build_rows(
        GRPO,
        rollouts,
        [1.0, 0.0],
        [True, True],
        old_logprobs=old,
        ref_logprobs=reference,
        behaviour_logprobs=[r.logprobs for r in rollouts] if correct else None,
    )[0]
    assert row.old_logprobs.tolist() == [-2.0] * 3
    assert row.behaviour_logprobs.tolist() == ([-0.5] * 3 if correct else [-2.0] * 3)
    assert row.ref_logprobs.tolist() == [-3.0] * 3


def test_unscored_and_empty_rollouts_are_left_out():
    rollouts = [rollout(slot=0), rollout(slot=1), rollout(slot=2), rollout(slot=3, length=0)]
    rows = build_rows(GRPO, rollouts, [1.0, 0.0, np.nan, 0.0], [True, True, False, True], old_logprobs=old_of(rollouts))
    assert [row.token_ids[0] for row in rows] == [0, 1]


def test_overlong_masking_leaves_out_cut_responses_but_not_their_rewards():
    rollouts = [rollout(slot=0), rollout(slot=1, finish="length")]
    config = AlgorithmConfig(overlong_masking=True, normalize_std=False)
    kept = build_rows(config, rollouts, [1.0, 0.0], [True, True], old_logprobs=old_of(rollouts))
    assert len(kept) == 1
    assert kept[0].advantages[0] == 0.5  # the cut one stays in the baseline
    assert len(build_rows(GRPO, rollouts, [1.0, 0.0], [True, True], old_logprobs=old_of(rollouts))) == 2


def test_dynamic_sampling_leaves_out_groups_with_equal_rewards():
    rollouts = [rollout("a", 0), rollout("a", 1), rollout("b", 0), rollout("b", 1)]
    rewards, valid, old = [1.0, 1.0, 1.0, 0.0], [True] * 4, old_of(rollouts)
    assert len(build_rows(GRPO, rollouts, rewards, valid, old_logprobs=old)) == 4
    dynamic = AlgorithmConfig(dynamic_sampling=True)
    assert len(build_rows(dynamic, rollouts, rewards, valid, old_logprobs=old)) == 2
    assert build_rows(dynamic, rollouts, [1.0] * 4, valid, old_logprobs=old) == []


def test_mini_batches_hold_whole_groups_and_build_the_same_rows():
    keys = ["a", "b", "a", "c", "b", "c"]
    batches = split_groups(keys, 2)
    assert batches == [[0, 2, 1, 4], [3, 5]]
    rollouts = [rollout(key, slot) for slot, key in enumerate(keys)]
    rewards = [1.0, 2.0, 0.0, 5.0, 3.0, 4.0]
    whole = build_rows(GRPO, rollouts, rewards, [True] * 6, old_logprobs=old_of(rollouts))
    for batch in batches:
        part = [rollouts[i] for i in batch]
        rows = build_rows(GRPO, part, [rewards[i] for i in batch], [True] * len(part), old_logprobs=old_of(part))
        for i, row in zip(batch, rows, strict=True):
            assert row.advantages.tolist() == whole[i].advantages.tolist()


def test_fewer_groups_than_mini_batches():
    assert split_groups(["a", "a"], 4) == [[0, 1]]
    assert split_groups([], 4) == []
