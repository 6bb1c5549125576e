"""Small rollouts for tests: drafts drawn from a table of log-probabilities."""

from __future__ import annotations

import numpy as np
import torch

from nemo_specrl.speculation.verifier import Draft, Verification, Verifier
from nemo_specrl.types import FinishReason, FloatArray, Rollout, TopK

PROMPT = np.array([5, 6, 7], dtype=np.int32)


def log_laws(rng: np.random.Generator, length: int, vocab: int, near: torch.Tensor | None = None) -> torch.Tensor:
    """[T, V] random log-probabilities, or ones near to given ones."""
    noise = torch.as_tensor(rng.normal(size=(length, vocab)), dtype=torch.float32)
    return torch.log_softmax(noise if near is None else near + 0.5 * noise, -1)


def top(laws: torch.Tensor, k: int) -> TopK:
    values, ids = laws.topk(k, dim=-1)
    return TopK(ids.numpy().astype(np.int32), values.numpy())


def rollout(
    laws: torch.Tensor,
    tokens: list[int],
    k: int,
    *,
    slot: int = 0,
    reason: FinishReason = "length",
    key: str = "prompt",
) -> Rollout:
    """A rollout whose token i has the law laws[i] [V]; k candidates stored (0: none)."""
    ids = np.asarray(tokens, dtype=np.int32)
    inside = np.where(ids < laws.shape[1], ids, 0)
    values: FloatArray = laws.numpy()[np.arange(len(ids)), inside]
    topk = top(laws[: len(ids)], k) if k else None
    return Rollout(key, slot, PROMPT, ids, values, np.zeros(len(ids), np.int32), reason, topk=topk)


def sample(rng: np.random.Generator, laws: torch.Tensor) -> list[int]:
    return [int(rng.choice(laws.shape[1], p=row / row.sum())) for row in laws.double().exp().numpy()]


def run(verifier: Verifier, laws: torch.Tensor, chunk: int = 1000) -> list[Verification]:
    """What a policy's `reduce` does: every row's laws, chunk by chunk."""
    parts = []
    for row, (_, ids) in enumerate(verifier.rows):
        parts.append([verifier(row, s, laws[s : min(s + chunk, len(ids))]) for s in range(0, len(ids), chunk)])
    return verifier.collect(parts)


def draft(source: Rollout, *, limit: int = 1000, vocab: int = 1000) -> Draft:
    made = Draft.of(source, limit=limit, vocab_size=vocab)
    assert made is not None
    return made
