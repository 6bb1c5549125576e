"""From rows to the loss's inputs: weights that make the loss a plain sum, whatever the split.

Shapes: B rows, T response tokens (padded), N response tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from nemo_specrl.contracts.rows import LossBatch, TrainRow
from nemo_specrl.policy.megatron.batching import MicroBatch
from nemo_specrl.types import FloatArray


def token_weights(rows: Sequence[TrainRow], loss_level: str) -> list[FloatArray]:
    """[T] per row: mask / normaliser over the whole mini-batch.

    `token`: every unmasked token weighs 1 / (unmasked tokens of all rows). `sequence`: every row with an unmasked token
    weighs 1 / (number of such rows), spread evenly over its unmasked tokens. Raises ValueError for another level."""
    sums = [float(row.mask.sum()) for row in rows]
    if loss_level == "token":
        normalisers = [sum(sums)] * len(rows)
    elif loss_level == "sequence":
        counted = sum(s > 0 for s in sums)
        normalisers = [s * counted for s in sums]
    else:
        raise ValueError(f"loss level {loss_level!r} is unknown; known are token, sequence")
    return [
        (row.mask / n).astype(np.float32) if n > 0 else np.zeros_like(row.mask, dtype=np.float32)
        for row, n in zip(rows, normalisers, strict=True)
    ]


def loss_batch(
    rows: Sequence[TrainRow], weights: Sequence[FloatArray], batch: MicroBatch, logprobs: torch.Tensor
) -> tuple[torch.Tensor, LossBatch, torch.Tensor]:
    """[N] log-probs -> ([B, T] log-probs, the padded batch, number of tokens outside the law).

    An engine's rounding can sample a token that the trainer's own truncation (top_p, top_k) just removes: its
    log-probability is -inf and carries no gradient. Such a token is taken out of the loss, and counted."""
    shape = (len(batch.rows), max(batch.lengths))
    members = [rows[i] for i in batch.rows]

    def pad(fields: Sequence[FloatArray]) -> torch.Tensor:
        out = np.zeros(shape, dtype=np.float32)
        for k, values in enumerate(fields):
            out[k, : len(values)] = values
        return torch.from_numpy(out).to(logprobs.device)

    old, behaviour = pad([r.old_logprobs for r in members]), pad([r.behaviour_logprobs for r in members])
    placed = logprobs.new_zeros(shape[0] * shape[1]).scatter(0, batch.place, logprobs).view(shape)
    weight = pad([weights[i] for i in batch.rows])
    inside = ~(torch.isneginf(placed) | torch.isneginf(old) | torch.isneginf(behaviour))
    outside = ((~inside) & (weight > 0)).sum()
    references = [r.ref_logprobs for r in members]
    reference = pad([r for r in references if r is not None]) if all(r is not None for r in references) else None
    zero = torch.zeros((), device=logprobs.device)
    prepared = LossBatch(
        old_logprobs=torch.where(inside, old, zero),
        behaviour_logprobs=torch.where(inside, behaviour, zero),
        advantages=pad([r.advantages for r in members]),
        weights=torch.where(inside, weight, zero),
        ref_logprobs=reference,
    )
    return torch.where(inside, placed, zero), prepared, outside
