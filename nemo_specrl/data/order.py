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


def steps_per_epoch(n: int, per_step: int) -> int:
    """Steps that n prompts make. The last one is smaller where per_step does not divide n: every prompt is used once
    an epoch, which reuse relies on, and nothing is carried over an epoch's end."""
    assert min(n, per_step) > 0
    return -(-n // per_step)


def step_prompts(
    prompts: Sequence[Prompt], per_step: int, step: int, *, seed: int, shuffle: bool
) -> tuple[int, list[Prompt]]:
    """(epoch, prompts) of global step `step`, both from 0. Needs no state: a run resumes by its step number."""
    epoch, within = divmod(step, steps_per_epoch(len(prompts), per_step))
    order = epoch_order(len(prompts), seed, epoch, shuffle)
    return epoch, [prompts[i] for i in order[within * per_step : (within + 1) * per_step]]
