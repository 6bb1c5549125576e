"""Rows -> padded micro-batches, by a budget of padded tokens.

Shapes: B rows, S padded positions, N response tokens of all rows, P prompt and T response tokens of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from nemo_specrl.types import IntArray


class Tokens(Protocol):
    """A `Row` or a `TrainRow`."""

    @property
    def prompt_ids(self) -> IntArray: ...
    @property
    def token_ids(self) -> IntArray: ...


@dataclass(frozen=True)
class MicroBatch:
    """Rows padded on the right. The last response token is predicted, never an input."""

    rows: tuple[int, ...]
    """[B] which of the call's rows these are."""
    lengths: tuple[int, ...]
    """[B] response tokens, T."""
    input_ids: torch.Tensor
    """[B, S]"""
    select: torch.Tensor
    """[N] where in flattened [S, B] hidden states each response token is predicted, row by row."""
    targets: torch.Tensor
    """[N] the response tokens."""
    place: torch.Tensor
    """[N] where in a flattened [B, max T] tensor each response token belongs."""

    @property
    def position_ids(self) -> torch.Tensor:
        """[B, S]"""
        return torch.arange(self.input_ids.shape[1], device=self.input_ids.device).expand_as(self.input_ids)


def check_rows(rows: Sequence[Tokens], vocab_size: int) -> None:
    """ValueError for rows that cannot be scored."""
    for i, row in enumerate(rows):
        if len(row.prompt_ids) == 0:
            raise ValueError(f"row {i} has no prompt token: its first response token has no law")
        largest = max(int(np.max(row.prompt_ids)), int(np.max(row.token_ids, initial=0)))
        if largest >= vocab_size:
            raise ValueError(
                f"row {i} holds token id {largest}, but the model has only {vocab_size}: "
                "is the tokenizer another model's?"
            )


def length_of(row: Tokens) -> int:
    """Positions that the model sees of a row: P + T - 1."""
    return len(row.prompt_ids) + len(row.token_ids) - 1


def share(rows: Sequence[Tokens], chosen: Sequence[int], rank: int, ranks: int) -> list[int]:
    """This data-parallel rank's part of the chosen rows, longest first; lengths are dealt out evenly."""
    ordered = sorted(chosen, key=lambda i: (-length_of(rows[i]), i))
    return ordered[rank::ranks]


def micro_batches(rows: Sequence[Tokens], chosen: Sequence[int], budget: int, device: torch.device) -> list[MicroBatch]:
    """Pack the chosen rows (longest first) so that none exceeds `budget` padded tokens, but for a longer single row."""
    packed: list[list[int]] = []
    for i in chosen:
        if packed and length_of(rows[packed[-1][0]]) * (len(packed[-1]) + 1) <= budget:
            packed[-1].append(i)
        else:
            packed.append([i])
    return [_pad(rows, members, device) for members in packed]


def _pad(rows: Sequence[Tokens], members: Sequence[int], device: torch.device) -> MicroBatch:
    b, s = len(members), max(length_of(rows[i]) for i in members)
    longest = max(len(rows[i].token_ids) for i in members)
    ids = np.zeros((b, s), dtype=np.int64)
    select, targets, place = [], [], []
    for k, i in enumerate(members):
        prompt, response = rows[i].prompt_ids, rows[i].token_ids
        ids[k, : length_of(rows[i])] = np.concatenate([prompt, response])[:-1]
        steps = np.arange(len(response))
        select.append((len(prompt) - 1 + steps) * b + k)
        place.append(k * longest + steps)
        targets.append(response)

    def tensor(parts: list[np.ndarray]) -> torch.Tensor:  # type: ignore[type-arg]
        return torch.from_numpy(np.concatenate(parts).astype(np.int64)).to(device)

    return MicroBatch(
        rows=tuple(members),
        lengths=tuple(len(rows[i].token_ids) for i in members),
        input_ids=torch.from_numpy(ids).to(device),
        select=tensor(select),
        targets=tensor(targets),
        place=tensor(place),
    )
