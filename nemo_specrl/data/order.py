"""Which prompts a step takes: pure functions of (seed, epoch), so a resumed run walks on where it stopped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_specrl.types import Prompt


def split_validation(prompts: Sequence[Prompt], n: int) -> tuple[list[Prompt], list[Prompt]]:
    """(training, validation): the last n prompts are held out. ValueError when nothing would be left to train on."""
    if n < 0 or n >= len(prompts):
        raise ValueError(
            f"trainer.val_prompts={n} of {len(prompts)} prompts leaves none to train on. Lower it or add data."
        )
    return list(prompts[: len(prompts) - n]), list(prompts[len(prompts) - n :])


def epoch_order(n: int, seed: int, epoch: int, shuffle: bool) -> list[int]:
    """The order of n prompts in one epoch: a permutation of range(n), drawn from (seed, epoch) alone."""
    if not shuffle:
        return list(range(n))
    key = np.array([seed % 2**64, epoch], dtype=np.uint64)
    return [int(i) for i in np.random.Generator(np.random.Philox(key=key)).permutation(n)]
