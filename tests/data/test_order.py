import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_specrl.data import epoch_order, split_validation
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
