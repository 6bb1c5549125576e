"""Validation: held-out prompts, fresh rollouts under the sampling law, mean reward."""

from __future__ import annotations

import numpy as np

from nemo_specrl.rollout.engine import GenerationRequest
from nemo_specrl.speculation.randomness import engine_seed
from nemo_specrl.training.parts import Parts
from nemo_specrl.training.refit import refit


def validate_policy(parts: Parts, step: int) -> dict[str, float]:
    """`val/reward_mean`, its standard error and the mean length over the held-out prompts. Collective."""
    refit(parts)
    if parts.engine is None or parts.reward is None:
        return {}
    run = parts.run
    parts.progress.phase("validation", len(parts.validation))
    empty = np.zeros(0, np.int32)
    requests = [
        # slots of training rollouts are >= 0: -1 keeps validation's random numbers apart from theirs
        GenerationRequest(p.token_ids, empty, run.sampling.max_new_tokens, engine_seed(run.seed, step, p.key, -1))
        for p in parts.validation
    ]
    completions = parts.engine.generate(requests, on_progress=parts.progress.advance_to)
    texts = [parts.decode(c.token_ids) for c in completions]
    results = parts.reward.score(list(zip(parts.validation, texts, strict=True)))
    values = np.array([r.value for r in results if r.valid])
    metrics = {
        "val/n": float(values.size),
        "val/invalid": float(len(results) - values.size),
        "val/length_mean": float(np.mean([len(c.token_ids) for c in completions])),
    }
    if values.size:
        metrics |= {"val/reward_mean": float(values.mean()), "val/reward_se": float(values.std() / values.size**0.5)}
    return metrics
