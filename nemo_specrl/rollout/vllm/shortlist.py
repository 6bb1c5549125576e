"""The tokens that a draft head chooses among: those that rollouts are made of.

A draft costs one layer and one LM head, and on a model with a large vocabulary the LM head is most of it. Rare tokens
are hardly ever drafted rightly anyway, so a head that leaves them out loses little (FR-Spec, arXiv 2502.14856: a fixed
list from a corpus). Here the list is counted from the run's own rollouts and renewed with every weight update (ours).
Verification is what it was: a token outside the list has draft probability 0, so this changes speed only.

Shapes: n rows, H hidden, V vocabulary, L tokens on the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from nemo_specrl.types import IntArray

if TYPE_CHECKING:
    import torch


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
