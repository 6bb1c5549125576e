"""Which predictions of the head count, and by how much.

An event is (row, depth d, response token j): the head, started where token j - d was predicted, foresees token j. In
the engine that happens exactly when token j - d was sampled and the d tokens from it to j - 1 and j itself belong to
the response; so an event counts when all of those are unmasked. Shapes: T response tokens of a row, D depths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from nemo_specrl.contracts.companion import Forward
from nemo_specrl.types import FloatArray

if TYPE_CHECKING:
    from jaxtyping import Float


def possible(mask: Float[FloatArray, " T"], depth: int) -> Float[FloatArray, "{depth} T"]:
    """[T] response mask -> [D, T]: 1 where the event counts. Tokens of padding or other segments are masked, so no
    event crosses them."""
    alive = (mask > 0).astype(np.float32)
    out = np.zeros((depth, len(mask)), dtype=np.float32)
    for d in range(1, depth + 1):
        alive = alive * np.concatenate([np.zeros(min(d, len(mask))), (mask > 0)[:-d]]).astype(np.float32)
        out[d - 1] = alive
    return out


@dataclass(frozen=True)
class Events:
    """The events of a whole mini-batch, the same on every rank; their weights sum to 1."""

    weights: list[FloatArray]
    """Per row [D, T]."""
    shares: FloatArray
    """[D] what each depth's weights sum to."""
    count: int
    """Events with a weight."""

    @classmethod
    def of(
        cls, masks: Sequence[FloatArray], sample_weights: Sequence[float] | None, depth: int, decay: float
    ) -> Events:
        """decay^(d - 1) times the row's weight (1 without `sample_weights`), normalised over all rows.

        Raises ValueError for weights that are negative, not finite or not one per row."""
        rows = np.ones(len(masks)) if sample_weights is None else np.asarray(sample_weights, dtype=np.float64)
        if rows.shape != (len(masks),) or not (np.isfinite(rows).all() and (rows >= 0).all()):
            raise ValueError(f"the head's sample weights must be {len(masks)} finite numbers of at least 0")
        levels = decay ** np.arange(depth)[:, None]
        raw = [possible(mask, depth) * levels * w for mask, w in zip(masks, rows, strict=True)]
        shares = sum((w.sum(axis=1) for w in raw), np.zeros(depth))
        total = float(shares.sum()) or 1.0
        return cls(
            [(w / total).astype(np.float32) for w in raw],
            (shares / total).astype(np.float32),
            int(sum((w > 0).sum() for w in raw)),
        )

    def idle(self) -> Events:
        """The same rows at weight 0: for a rank without rows of its own, which must take part all the same."""
        return replace(self, weights=[np.zeros_like(w) for w in self.weights])

    def flat(self, batch: Forward) -> torch.Tensor:
        """[D, N] over the response tokens of a micro-batch, row by row, as its `select` is."""
        joined = np.concatenate([self.weights[i] for i in batch.rows], axis=1)
        return torch.from_numpy(joined).to(batch.select.device)
