"""No uniform is used twice, and its address alone decides it."""

from __future__ import annotations

import numpy as np

from nemo_specrl.speculation.randomness import engine_seed, uniforms


def test_no_number_repeats_over_steps_samples_prompts_streams_and_seeds() -> None:
    """The published code seeds every step alike, so that a slot's u never changes: a bias, not a detail. Samples of
    other data-parallel ranks are other (prompt, slot) pairs."""
    draws = [
        uniforms(seed, step, prompt, slot, stream, 64)
        for seed in (0, 1)
        for step in range(8)
        for prompt in ("a", "b", "c")
        for slot in range(8)
        for stream in ("accept", "residual", "random_cut")
    ]
    flat = np.concatenate(draws)
    assert len(np.unique(flat)) == flat.size
    assert abs(flat.mean() - 0.5) < 4 / np.sqrt(12 * flat.size)


def test_an_address_gives_the_same_numbers_on_every_rank_and_a_longer_draft_the_same_beginning() -> None:
    np.testing.assert_array_equal(uniforms(0, 1, "a", 2, "accept", 9), uniforms(0, 1, "a", 2, "accept", 20)[:9])
    assert engine_seed(0, 1, "a", 2) == engine_seed(0, 1, "a", 2)
    assert len({engine_seed(0, step, "a", slot) for step in range(30) for slot in range(30)}) == 900
