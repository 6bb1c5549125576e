"""Evaluation: fresh rollouts of given prompts under the sampling law, and their mean reward.

`validate_policy` during training, on held-out prompts; `commands/evaluate.py` afterwards, on any data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nemo_specrl.contracts.engine import GenerationRequest
from nemo_specrl.speculation.randomness import engine_seed
from nemo_specrl.training.parts import Parts
from nemo_specrl.types import Prompt


@dataclass(frozen=True)
class Evaluation:
    """Rewards of one sample or more per prompt."""

    rewards: np.ndarray
    """[prompts, samples], NaN where the verifier failed."""
    lengths: np.ndarray
    """[prompts, samples] response tokens."""

    def mean(self) -> float:
        """Mean reward over prompts that have at least one valid sample."""
        return float(np.nanmean(self.rewards)) if np.isfinite(self.rewards).any() else float("nan")

    def standard_error(self) -> float:
        """Of the mean, over prompts (the samples of a prompt are not independent)."""
        valid = self.rewards[np.isfinite(self.rewards).any(axis=1)]
        per_prompt = np.nanmean(valid, axis=1)
        return float(per_prompt.std(ddof=1) / len(per_prompt) ** 0.5) if len(per_prompt) > 1 else float("nan")


def evaluate(parts: Parts, prompts: Sequence[Prompt], *, step: int, samples: int = 1) -> Evaluation:
    """Draw and score; rank 0 only. Training uses slots >= 0, so slots -1, -2, ... have random numbers of their own."""
    assert parts.engine is not None
    assert parts.reward is not None
    run = parts.run
    empty = np.zeros(0, np.int32)
    chosen = [(prompt, -1 - i) for prompt in prompts for i in range(samples)]
    requests = [
        GenerationRequest(p.token_ids, empty, run.sampling.max_new_tokens, engine_seed(run.seed, step, p.key, slot))
        for p, slot in chosen
    ]
    completions = parts.engine.generate(requests, on_progress=parts.progress.advance_to)
    results = parts.reward.score(
        [(p, parts.decode(c.token_ids)) for (p, _), c in zip(chosen, completions, strict=True)]
    )
    shape = (len(prompts), samples)
    rewards = np.array([r.value if r.valid else np.nan for r in results]).reshape(shape)
    return Evaluation(rewards, np.array([len(c.token_ids) for c in completions]).reshape(shape))


def validate_policy(parts: Parts, step: int) -> dict[str, float]:
    """`val/reward_mean`, its standard error and the mean length over the held-out prompts. Collective."""
    parts.refit()
    if parts.engine is None:
        return {}
    parts.progress.phase("validation", len(parts.validation))
    found = evaluate(parts, parts.validation, step=step)
    invalid = int(np.isnan(found.rewards).sum())
    metrics = {"val/n": found.rewards.size - invalid, "val/invalid": invalid, "val/length_mean": found.lengths.mean()}
    metrics |= {"val/reward_mean": found.mean(), "val/reward_se": found.standard_error()}
    return {name: float(value) for name, value in metrics.items() if np.isfinite(value)}
