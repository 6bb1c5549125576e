"""The tokens that a draft head chooses among: those that rollouts are made of.

A draft costs one layer and one LM head, and on a model with a large vocabulary the LM head is most of it. Rare tokens
are hardly ever drafted rightly anyway, so a head that leaves them out loses little (FR-Spec, arXiv 2502.14856: a fixed
list from a corpus). Here the list is counted from the run's own rollouts and renewed with every weight update (ours).
Verification is what it was: a token outside the list has draft probability 0, so this changes speed only.

Shapes: n rows, H hidden, V vocabulary, L tokens on the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.types import IntArray, Rollout

if TYPE_CHECKING:
    import torch


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

    def shortlist(self, drafter: DrafterConfig, vocab_size: int) -> IntArray | None:
        """[L] ids of the tokens that the draft head shall choose among; None = all of them, or no head."""
        size = drafter.head.vocabulary if drafter.method == "mtp" else 0
        return self.most_frequent(size, vocab_size) if 0 < size < vocab_size else None

    def most_frequent(self, size: int, vocab_size: int) -> IntArray:
        """[min(size, V)] ids in rising order. Among tokens seen equally often, or never, lower ids come first: in a
        byte-pair vocabulary they are the more frequent ones."""
        counts = np.zeros(vocab_size, np.int64)
        known = self._counts[:vocab_size]
        counts[: len(known)] = known
        return np.sort(np.argsort(-counts, kind="stable")[:size]).astype(np.int32)


class Shortlist:
    """The rows of the LM head that a draft multiplies by. Takes the place of a draft model's `compute_logits`."""

    def __init__(self, ids: torch.Tensor, rows: torch.Tensor, vocab_size: int) -> None:
        """ids [L] int64, rows [L, H]."""
        self.ids, self.rows, self.vocab_size = ids, rows, vocab_size

    def __call__(self, hidden_states: torch.Tensor, *_: Any) -> torch.Tensor:
        """[n, H] -> [n, V] logits, -inf outside the list."""
        logits = hidden_states.new_full((len(hidden_states), self.vocab_size), float("-inf"))
        logits[:, self.ids] = hidden_states @ self.rows.T
        return logits


def watch_rows(
    weights: Iterable[tuple[str, torch.Tensor]], ids: IntArray, tied: bool, kept: list[torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The policy's tensors as they pass; `kept` gets the LM head's rows [L, H] of `ids`."""
    import torch

    for name, tensor in weights:
        if name == ("model.embed_tokens.weight" if tied else "lm_head.weight"):
            kept.append(tensor[torch.from_numpy(ids).long()].clone())
        yield name, tensor


def install(draft: Any, ids: IntArray, rows: torch.Tensor, vocab_size: int) -> None:
    """Let the live drafter `draft` choose among `ids` only, until the next call."""
    import torch

    like = next(draft.parameters())
    device = like.device
    draft.compute_logits = Shortlist(
        torch.from_numpy(ids).long().to(device), rows.to(device=device, dtype=like.dtype), vocab_size
    )
