"""A few rollouts of a step, as a person wants to read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nemo_specrl.contracts.sample import Sample
from nemo_specrl.types import IntArray


def sample_rows(samples: Sequence[Sample], decode: Callable[[IntArray], str], count: int) -> list[dict[str, Any]]:
    """At most `count` evenly spread rollouts of the step; reused and new text apart."""
    rows = []
    for i in np.linspace(0, len(samples) - 1, min(count, len(samples))).astype(int):
        prompt, rollout, reward = samples[i].prompt, samples[i].rollout, samples[i].score
        rows.append(
            {
                "prompt": prompt.text,
                "answer": prompt.answer,
                "reused_text": decode(rollout.token_ids[: rollout.reused]),
                "new_text": decode(rollout.token_ids[rollout.reused :]),
                "reused_tokens": rollout.reused,
                "tokens": rollout.length,
                "reward": reward.value if reward.valid else None,
                "finish_reason": rollout.finish_reason,
            }
        )
    return rows
