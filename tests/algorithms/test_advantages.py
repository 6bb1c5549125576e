import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_specrl.algorithms.advantages import group_advantages, has_signal


def test_closed_form_with_and_without_std():
    rewards, valid, groups = [1.0, 0.0, 0.0, 1.0], [True] * 4, ["a"] * 4
    np.testing.assert_allclose(group_advantages(rewards, valid, groups, False), [0.5, -0.5, -0.5, 0.5])
    std = np.sqrt(4 * 0.25 / 3)  # m - 1
    expected = np.array([0.5, -0.5, -0.5, 0.5]) / std
    np.testing.assert_allclose(group_advantages(rewards, valid, groups, True), expected, rtol=1e-6)


def test_groups_are_told_apart_in_any_order():
    rewards, groups = [1.0, 5.0, 0.0, 7.0], ["a", "b", "a", "b"]
    np.testing.assert_allclose(group_advantages(rewards, [True] * 4, groups, False), [0.5, -1.0, -0.5, 1.0])


def test_an_invalid_sample_neither_moves_the_baseline_nor_learns():
    """NeMo-RL#431: an error of the verifier must not count as a wrong answer."""
    groups = ["a"] * 3
    advantages = group_advantages([1.0, 0.0, np.nan], [True, True, False], groups, False)
    np.testing.assert_allclose(advantages, [0.5, -0.5, 0.0])
    scored_as_wrong = group_advantages([1.0, 0.0, 0.0], [True] * 3, groups, False)
    assert abs(scored_as_wrong[0] - advantages[0]) > 0.1  # the fault would have been seen


@pytest.mark.parametrize("normalize_std", [True, False])
@pytest.mark.parametrize(
    ("rewards", "valid"),
    [([0.1, 0.1, 0.1], [True] * 3), ([1.0, 0.0, 0.0], [True, False, False]), ([1.0, 0.0, 0.5], [False] * 3)],
)
def test_no_advantage_without_two_different_valid_rewards(rewards, valid, normalize_std):
    assert group_advantages(rewards, valid, ["a"] * 3, normalize_std).tolist() == [0.0, 0.0, 0.0]
    assert not has_signal(rewards, valid, ["a"] * 3).any()


@pytest.mark.parametrize("normalize_std", [True, False])
@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 1e6, 1e30])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_rewards_that_are_equal_up_to_rounding_are_equal(scale, kind, normalize_std):
    """Divided by their own deviation, 0.1 + 0.2 and 0.3 would have advantages of 0.7."""
    assert group_advantages([0.1 + 0.2, 0.3], [True] * 2, ["a"] * 2, normalize_std).tolist() == [0.0, 0.0]
    x = kind(0.3 * scale)
    rewards = [x, np.nextafter(x, kind(np.inf)), np.nextafter(x, kind(0))]
    assert len({float(r) for r in rewards}) == 3
    assert group_advantages(rewards, [True] * 3, ["a"] * 3, normalize_std).tolist() == [0.0, 0.0, 0.0]
    assert not has_signal(rewards, [True] * 3, ["a"] * 3).any()


def test_terms_that_cancel_leave_no_signal():
    rewards = [1.0 - 0.9 - 0.1, 0.0, 0.1 + 0.2 - 0.3]
    assert rewards[0] != 0
    assert group_advantages(rewards, [True] * 3, ["a"] * 3, True).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0, 1e6, 1e30])
def test_what_differs_keeps_its_advantage_at_every_scale(scale):
    """A thousandth apart is a difference, whatever the unit, and beside rewards equal up to rounding, too."""
    rewards = [scale, 1.001 * scale, (0.1 + 0.2) / 0.3 * scale, scale]
    found = group_advantages(rewards, [True] * 4, ["a"] * 4, True)
    np.testing.assert_allclose(found, [-0.5, 1.5, -0.5, -0.5], rtol=1e-5)
    assert has_signal(rewards, [True] * 4, ["a"] * 4).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_a_valid_reward_must_be_finite_in_fp32(bad):
    with pytest.raises(ValueError, match=r"sample 1 is .*valid=False"):
        group_advantages([0.0, bad], [True, True], ["a", "a"], True)


@given(st.lists(st.tuples(st.integers(-5, 5), st.booleans(), st.sampled_from("abc")), max_size=24), st.booleans())
def test_each_group_sums_to_zero_and_order_is_kept(samples, normalize_std):
    rewards, valid, groups = ([s[i] for s in samples] for i in range(3))
    advantages = group_advantages(rewards, valid, groups, normalize_std)
    signal = has_signal(rewards, valid, groups)
    for key in set(groups):
        members = [i for i, g in enumerate(groups) if g == key]
        assert abs(advantages[members].sum()) < 1e-4
        scored = [i for i in members if valid[i]]
        if normalize_std and signal[members[0]]:
            assert advantages[scored].std(ddof=1) == pytest.approx(1, abs=1e-4)
        for i in scored:
            for j in scored:
                assert (rewards[i] > rewards[j]) == (advantages[i] > advantages[j])
    assert all(a == 0 for a, v in zip(advantages, valid, strict=True) if not v)
    assert ((advantages == 0) | signal).all()
