"""A few rollouts of a step, as a person wants to read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nemo_specrl.algorithms.rows import sample_advantages
from nemo_specrl.config.algorithm import AlgorithmConfig
from nemo_specrl.contracts.sample import Sample
from nemo_specrl.models import Tokenizer
from nemo_specrl.tracking.redact import redact_text
from nemo_specrl.training.token_texts import token_texts
from nemo_specrl.types import IntArray

HEAD, TAIL = 1536, 512
"""Of a longer response only its first and last tokens are shown one by one."""
MAX_TEXT = 8000
"""Longest prompt and answer, in characters."""


def sample_rows(samples: Sequence[Sample], decode: Callable[[IntArray], str], count: int) -> list[dict[str, Any]]:
    """At most `count` evenly spread rollouts of the step; reused and new text apart."""
    rows = []
    for i in _spread(samples, count):
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


def sample_tokens(
    samples: Sequence[Sample], tokenizer: Tokenizer, count: int, algorithm: AlgorithmConfig
) -> list[dict[str, Any]]:
    """The same rollouts token by token, as `reporting.rollout_log` keeps them, with the advantages that the update had;
    secrets are taken out."""
    advantages = sample_advantages(algorithm, samples)
    return [
        _facts(samples[i]) | {"advantage": round(float(advantages[i]), 4)} | _tokens(samples[i], tokenizer)
        for i in _spread(samples, count)
    ]


def _spread(samples: Sequence[Sample], count: int) -> list[int]:
    return [int(i) for i in np.linspace(0, len(samples) - 1, min(count, len(samples)))]


def _facts(sample: Sample) -> dict[str, Any]:
    return {
        "prompt": redact_text(sample.prompt.text)[:MAX_TEXT],
        "answer": redact_text(sample.prompt.answer)[:MAX_TEXT],
        "slot": sample.rollout.slot,
        "reward": sample.score.value if sample.score.valid else None,
        "finish": sample.rollout.finish_reason,
        "length": sample.rollout.length,
    }


def _tokens(sample: Sample, tokenizer: Tokenizer) -> dict[str, Any]:
    ids: list[int] = sample.rollout.token_ids.tolist()
    written = sample.written or "u" * len(ids)
    whole = len(ids) <= HEAD + TAIL
    pieces = [slice(0, len(ids))] if whole else [slice(0, HEAD), slice(len(ids) - TAIL, len(ids))]
    texts = [text for piece in pieces for text in token_texts(tokenizer, ids[piece])]
    text = "".join(texts)
    if (clean := redact_text(text)) != text:  # a secret lies across tokens: they are not told apart
        return {"tokens": [clean], "by": "u", "ids": [], "logprobs": [], "cut": 1, "left_out": 0}
    logprobs = sample.policy_logprobs
    return {
        "tokens": texts,
        "by": "".join(written[piece] for piece in pieces),
        "ids": [token for piece in pieces for token in ids[piece]],
        # -inf: a token just outside the trainer's own truncation; JSON has no such number
        "logprobs": [
            round(value, 3) if np.isfinite(value) else None for piece in pieces for value in logprobs[piece].tolist()
        ],
        "cut": pieces[0].stop,
        "left_out": len(ids) - len(texts),
    }
