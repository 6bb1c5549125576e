import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_specrl.data import epoch_order, split_validation, step_prompts, steps_per_epoch
from nemo_specrl.types import Prompt

PROMPTS = [Prompt(np.array([i], dtype=np.int32), str(i), str(i)) for i in range(7)]


def test_validation_is_the_end_and_never_trained_on():
    train, held_out = split_validation(PROMPTS, 2)
    assert [p.text for p in train + held_out] == [p.text for p in PROMPTS]
    assert [p.text for p in held_out] == ["5", "6"]
    assert split_validation(PROMPTS, 0) == (PROMPTS, [])


@pytest.mark.parametrize("n", [-1, 7, 8])
def test_a_split_must_leave_something(n):
    with pytest.raises(ValueError, match="val_prompts"):
        split_validation(PROMPTS, n)


@given(st.integers(1, 40), st.integers(0, 2**32), st.integers(0, 9), st.booleans())
def test_an_epochs_order_is_a_permutation_that_depends_on_nothing_else(n, seed, epoch, shuffle):
    order = epoch_order(n, seed, epoch, shuffle)
    assert sorted(order) == list(range(n))
    assert order == epoch_order(n, seed, epoch, shuffle)
    if not shuffle:
        assert order == list(range(n))


def test_orders_differ_between_epochs_and_seeds():
    assert len({tuple(epoch_order(50, seed, epoch, True)) for seed in range(3) for epoch in range(3)}) == 9


@given(st.integers(1, 12), st.booleans())
def test_every_prompt_once_an_epoch_and_the_last_step_smaller(per_step, shuffle):
    steps = steps_per_epoch(len(PROMPTS), per_step)
    for epoch in range(2):
        taken = [step_prompts(PROMPTS, per_step, epoch * steps + i, seed=3, shuffle=shuffle) for i in range(steps)]
        assert {e for e, _ in taken} == {epoch}
        assert sorted(p.text for _, part in taken for p in part) == [p.text for p in PROMPTS]
        assert all(len(part) == per_step for _, part in taken[:-1])
        assert 0 < len(taken[-1][1]) <= per_step
