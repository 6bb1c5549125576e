"""vLLM's outputs -> ours, checked on the way: a wrong log-probability must not reach the loss. No vllm import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nemo_specrl.contracts.engine import Completion, LogprobError, SpecCounters
from nemo_specrl.rollout.vllm.step_sizes import accepted
from nemo_specrl.types import FinishReason, FloatArray, IntArray, TopK

_SLACK = 1e-4
"""How far above 0 rounding may lift a log-probability."""


def check_logprobs(token_ids: IntArray, logprobs: FloatArray) -> None:
    """LogprobError unless there is one finite log-probability <= 0 for each of the [M] tokens, and not all are 0."""
    if len(token_ids) != len(logprobs):
        raise LogprobError(f"{len(logprobs)} log-probabilities for {len(token_ids)} tokens")
    bad = ~(np.isfinite(logprobs) & (logprobs <= _SLACK))
    if bad.any():
        position = int(bad.argmax())
        raise LogprobError(f"log-probability {logprobs[position]} of token {token_ids[position]} at {position}")


def completion(output: Any, topk: int, steps: list[int] | None = None) -> Completion:
    """A finished vllm.RequestOutput with flat log-probabilities: per position the sampled token, then the top K.
    `steps`: how many tokens each engine step gave."""
    sample = output.outputs[0]
    token_ids = np.asarray(sample.token_ids, dtype=np.int32)
    if sample.finish_reason not in ("stop", "length"):
        raise RuntimeError(f"vLLM ended a request with finish_reason={sample.finish_reason!r}")
    finish: FinishReason = sample.finish_reason
    flat = sample.logprobs
    columns = topk + 1
    if len(flat.logprobs) != columns * len(token_ids):
        raise LogprobError(f"{len(flat.logprobs)} log-probabilities for {len(token_ids)} tokens x {columns}")
    ids = np.asarray(flat.token_ids, dtype=np.int32).reshape(-1, columns)
    values = np.asarray(flat.logprobs, dtype=np.float32).reshape(-1, columns)
    if not np.array_equal(ids[:, 0], token_ids):
        raise LogprobError("log-probabilities belong to other tokens than were returned")
    check_logprobs(token_ids, values[:, 0])
    # The top K is a function of the law alone, ties included: the sampled token's own column is not mixed in.
    top = TopK(np.where(np.isneginf(values), -1, ids)[:, 1:], values[:, 1:]) if topk else None
    spec = _request_spec(sample)
    drafted = None if steps is None else accepted(steps, len(token_ids), spec)
    return Completion(token_ids, np.minimum(values[:, 0], 0.0), finish, top, spec, drafted)


def _request_spec(sample: Any) -> SpecCounters | None:
    """One request's speculation, from its histogram over j, the number of accepted tokens of a draft (vLLM 0.32's
    per_request_spec_decode_metrics); None where it is not counted."""
    metrics = getattr(sample, "spec_decode_metrics", None)
    if metrics is None:
        return None
    steps = list(metrics.histogram)
    positions = tuple(sum(steps[i:]) for i in range(1, len(steps)))
    return SpecCounters(sum(steps), int(metrics.num_draft_tokens), sum(positions), positions)


def response_logprobs(output: Any, length: int) -> FloatArray:
    """[length] log-probabilities of the last `length` prompt tokens of a vllm.RequestOutput."""
    flat = output.prompt_logprobs
    ids = np.asarray(output.prompt_token_ids, dtype=np.int32)
    if output.num_cached_tokens:
        raise LogprobError(f"{output.num_cached_tokens} prompt tokens came from the prefix cache, unscored")
    # One entry for each position but the first.
    if list(flat.token_ids) != ids[1:].tolist():
        raise LogprobError(f"{len(flat.token_ids)} prompt log-probabilities for {len(ids)} tokens, or in another order")
    values = np.asarray(flat.logprobs, dtype=np.float32)
    check_logprobs(ids[1:], values)
    return np.minimum(values[len(values) - length :], 0.0)


_COUNTERS = {"num_drafts": "drafts", "num_draft_tokens": "drafted", "num_accepted_tokens": "accepted"}


def counters(metrics: Sequence[Any]) -> SpecCounters:
    """vllm.LLM.get_metrics() -> our counters, summed over engines."""
    totals = dict.fromkeys(_COUNTERS.values(), 0)
    positions: list[int] = []
    for metric in metrics:
        name = metric.name.removeprefix("vllm:spec_decode_")
        if name in _COUNTERS:
            totals[_COUNTERS[name]] += int(metric.value)
        elif name == "num_accepted_tokens_per_pos":
            values = [int(v) for v in metric.values]
            positions += [0] * (len(values) - len(positions))
            for i, value in enumerate(values):
                positions[i] += value
    return SpecCounters(**totals, accepted_per_position=tuple(positions))
