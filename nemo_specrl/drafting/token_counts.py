"""Which tokens rollouts are made of: what a draft head with a short vocabulary chooses among.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nemo_specrl.types import IntArray, Rollout

_FILE = "token_counts.npy"


class TokenCounts:
    """How often each token occurred in rollouts. Kept by the trainer, so that a resumed run drafts what it would have
    drafted; the engine is told the list with each refit."""

    def __init__(self) -> None:
        self._counts = np.zeros(0, np.int64)

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Count the tokens of finished responses."""
        if not rollouts:
            return
        found = np.bincount(np.concatenate([rollout.token_ids for rollout in rollouts]))
        size = max(len(found), len(self._counts))
        counts = np.zeros(size, np.int64)
        counts[: len(self._counts)] += self._counts
        counts[: len(found)] += found
        self._counts = counts

    def save(self, folder: Path) -> None:
        """Into a checkpoint's folder; nothing where nothing was counted."""
        if len(self._counts):
            np.save(folder / _FILE, self._counts)

    def load(self, folder: Path) -> None:
        """What `save` wrote; nothing where it wrote nothing."""
        if (folder / _FILE).exists():
            self._counts = np.load(folder / _FILE, allow_pickle=False)

    def most_frequent(self, size: int, vocab_size: int) -> IntArray:
        """[min(size, V)] ids in rising order. Among tokens seen equally often, or never, lower ids come first: in a
        byte-pair vocabulary they are the more frequent ones."""
        counts = np.zeros(vocab_size, np.int64)
        known = self._counts[:vocab_size]
        counts[: len(known)] = known
        return np.sort(np.argsort(-counts, kind="stable")[:size]).astype(np.int32)
