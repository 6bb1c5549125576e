"""A few rollouts of a step, as a person wants to read them."""

from __future__ import annotations

from typing import Any

import numpy as np

from nemo_specrl.training.parts import Parts
from nemo_specrl.training.step import StepResult


def sample_rows(parts: Parts, result: StepResult) -> list[dict[str, Any]]:
    """Evenly spread rollouts of the step; reused and new text apart. Length per `tracking.sample_rollouts`."""
    count = min(parts.run.tracking.sample_rollouts, len(result.rollouts))
    rows = []
    for i in np.linspace(0, len(result.rollouts) - 1, count).astype(int):
        rollout, reward = result.rollouts[i], result.rewards[i]
        prompt = result.prompts[i // parts.run.algorithm.group_size]
        rows.append(
            {
                "prompt": prompt.text,
                "answer": prompt.answer,
                "reused_text": parts.decode(rollout.token_ids[: rollout.reused]),
                "new_text": parts.decode(rollout.token_ids[rollout.reused :]),
                "reused_tokens": rollout.reused,
                "tokens": rollout.length,
                "reward": reward.value if reward.valid else None,
                "finish_reason": rollout.finish_reason,
            }
        )
    return rows
