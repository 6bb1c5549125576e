import numpy as np
import pytest

from nemo_specrl.algorithms import make_algorithm
from nemo_specrl.algorithms.rows import build_rows, split_groups
from nemo_specrl.config.algorithm import AlgorithmConfig
from nemo_specrl.contracts.sample import RewardResult, Sample
from nemo_specrl.policy.megatron.loss import token_weights
from nemo_specrl.types import Prompt, Rollout

GRPO = AlgorithmConfig(group_size=2)
PROMPT = Prompt(np.array([7, 8], np.int32), "", "")


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


def samples_of(rollouts, rewards, valid=None, reference=None):
    valid = [True] * len(rollouts) if valid is None else valid
    return [
        Sample(
            PROMPT,
            r.with_(policy_logprobs=np.full(r.length, -2.0, dtype=np.float32)),
            reward=RewardResult(value, ok),
            ref_logprobs=None if reference is None else np.full(r.length, reference, dtype=np.float32),
        )
        for r, value, ok in zip(rollouts, rewards, valid, strict=True)
    ]


def rows_of(config, rollouts, rewards, valid=None):
    return make_algorithm(config).rows(samples_of(rollouts, rewards, valid))


def test_a_row_carries_its_rollout_and_its_advantage():
    rows = rows_of(GRPO, [rollout(slot=0), rollout(slot=1, length=2)], [1.0, 0.0])
    assert [row.token_ids.tolist() for row in rows] == [[0, 1, 2], [1, 2]]
    root_half = np.sqrt(0.5)
    np.testing.assert_allclose(rows[0].advantages, [root_half] * 3, rtol=1e-6)
    np.testing.assert_allclose(rows[1].advantages, [-root_half] * 2, rtol=1e-6)
    assert rows[0].mask.tolist() == [1.0, 1.0, 1.0]
    assert rows[0].ref_logprobs is None


@pytest.mark.parametrize("correction", ["none", "token", "sequence"])
def test_the_behaviour_law_is_told_only_where_a_correction_is_on(correction):
    """Without a draft it is the first token's own law that is told."""
    samples = samples_of([rollout(slot=0, shift=0.5), rollout(slot=1)], [1.0, 0.0], reference=-3.0)
    row = build_rows(GRPO, samples, correction=correction)[0]
    assert row.old_logprobs.tolist() == [-2.0] * 3
    assert row.behaviour_logprobs.tolist() == ([-2.0] * 3 if correction == "none" else [-0.5, -2.0, -2.0])
    assert row.ref_logprobs.tolist() == [-3.0] * 3


def test_unscored_and_empty_rollouts_are_left_out():
    rollouts = [rollout(slot=0), rollout(slot=1), rollout(slot=2), rollout(slot=3, length=0)]
    rows = rows_of(GRPO, rollouts, [1.0, 0.0, np.nan, 0.0], [True, True, False, True])
    assert [row.token_ids[0] for row in rows] == [0, 1]


def test_overlong_masking_leaves_out_cut_responses_but_not_their_rewards():
    rollouts = [rollout(slot=0), rollout(slot=1, finish="length")]
    config = AlgorithmConfig(overlong_masking=True, normalize_std=False)
    kept = rows_of(config, rollouts, [1.0, 0.0])
    assert len(kept) == 1
    assert kept[0].advantages[0] == 0.5  # the cut one stays in the baseline
    assert len(rows_of(GRPO, rollouts, [1.0, 0.0])) == 2


def test_dynamic_sampling_leaves_out_groups_with_equal_rewards():
    rollouts = [rollout("a", 0), rollout("a", 1), rollout("b", 0), rollout("b", 1)]
    assert len(rows_of(GRPO, rollouts, [1.0, 1.0, 1.0, 0.0])) == 4
    dynamic = AlgorithmConfig(dynamic_sampling=True)
    assert len(rows_of(dynamic, rollouts, [1.0, 1.0, 1.0, 0.0])) == 2
    assert rows_of(dynamic, rollouts, [1.0] * 4) == []


def test_mini_batches_hold_whole_groups_and_build_the_same_rows():
    rollouts = [rollout(key, slot) for slot, key in enumerate("abacbc")]
    samples = samples_of(rollouts, [1.0, 2.0, 0.0, 5.0, 3.0, 4.0])
    batches = split_groups(samples, 2)
    assert [[sample.rollout.slot for sample in batch] for batch in batches] == [[0, 2, 1, 4], [3, 5]]
    whole = build_rows(GRPO, samples)
    for batch in batches:
        for sample, row in zip(batch, build_rows(GRPO, batch), strict=True):
            assert row.advantages.tolist() == whole[sample.rollout.slot].advantages.tolist()


def test_fewer_groups_than_mini_batches():
    two = samples_of([rollout(slot=0), rollout(slot=1)], [0.0, 1.0])
    assert split_groups(two, 4) == [two]
    assert split_groups([], 4) == []


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_step_with_truncated_rollouts_is_no_smaller_step(level):
    """One of four is cut off: it stays in the baseline (a quarter right, not a third), and the three that count weigh
    what four would."""
    rollouts = [rollout(slot=i, length=i + 1, finish="length" if i == 3 else "stop") for i in range(4)]
    config = AlgorithmConfig(overlong_masking=True, normalize_std=False, loss_level=level)
    rows = rows_of(config, rollouts, [1.0, 0.0, 0.0, 0.0])
    assert [row.advantages[0] for row in rows] == [0.75, -0.25, -0.25]
    assert sum(float(w.sum()) for w in token_weights(rows, level)) == pytest.approx(1)
