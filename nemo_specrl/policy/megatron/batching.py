"""Rows -> micro-batches, by a budget of padded tokens.

A micro-batch has two layouts. *Padded* [B, S] is what attention and the losses see. *Packed* [M] is what every other
layer computes: no padding, and a prompt that several rows share (the rollouts of a group) only once. Ours.

Shapes: B rows, S padded positions, M packed tokens, N response tokens of all rows, P prompt and T response tokens of a
row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nemo_specrl.contracts.rows import Tokens


@dataclass(frozen=True)
class MicroBatch:
    """Rows padded on the right. The last response token is predicted, never an input."""

    rows: tuple[int, ...]
    """[B] which of the call's rows these are."""
    lengths: tuple[int, ...]
    """[B] response tokens, T."""
    input_ids: torch.Tensor
    """[B, S]"""
    cells: torch.Tensor
    """[B, S] where each padded position lies in the packed layout: i >= 0 where the row owns packed token i (owned
    positions, row by row, are the packed layout's order), -1 - i where it borrows token i (a prompt that an earlier
    row owns; padding borrows token 0)."""
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

    @property
    def packed(self) -> tuple[torch.Tensor, torch.Tensor]:
        """([1, M] token ids, [1, M] their positions)."""
        owned = self.cells >= 0
        return self.input_ids[owned][None], self.position_ids[owned][None]


def unpack(x: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    """[M, 1, ...] packed and [B, S] cells -> [S, B, ...] padded; what lies at the padding is without meaning."""
    tokens = torch.where(cells >= 0, cells, -1 - cells).T
    return x.flatten(0, 1).index_select(0, tokens.flatten()).view(*tokens.shape, *x.shape[2:])


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
    """This data-parallel rank's part of the chosen rows.

    Rows of one prompt stay together, but where a rank's part ends within them; tokens are dealt out evenly. Prompts
    with the longest rows come first, and so do the longer rows of a prompt."""
    groups: dict[bytes, list[int]] = {}
    for i in chosen:
        groups.setdefault(rows[i].prompt_ids.tobytes(), []).append(i)
    for group in groups.values():
        group.sort(key=lambda i: (-length_of(rows[i]), i))
    ordered = [i for g in sorted(groups.values(), key=lambda g: (-length_of(rows[g[0]]), g[0])) for i in g]
    if len(ordered) <= ranks:
        return ordered[rank : rank + 1]
    sizes = np.array([length_of(rows[i]) for i in ordered])
    middle = (np.cumsum(sizes) - sizes / 2) / sizes.sum()
    return [i for i, owner in zip(ordered, (middle * ranks).astype(int), strict=True) if owner == rank]


def micro_batches(rows: Sequence[Tokens], chosen: Sequence[int], budget: int, device: torch.device) -> list[MicroBatch]:
    """The chosen rows, in order, so that no micro-batch exceeds `budget` padded tokens, but for a longer single row."""
    members: list[list[int]] = []
    longest = 0
    for i in chosen:
        longest = max(longest, length_of(rows[i]))
        if members and longest * (len(members[-1]) + 1) <= budget:
            members[-1].append(i)
        else:
            members.append([i])
            longest = length_of(rows[i])
    return [_pad(rows, batch, device) for batch in members]


def _pad(rows: Sequence[Tokens], members: Sequence[int], device: torch.device) -> MicroBatch:
    b, s = len(members), max(length_of(rows[i]) for i in members)
    longest = max(len(rows[i].token_ids) for i in members)
    ids = np.zeros((b, s), dtype=np.int64)
    cells = np.full((b, s), -1, dtype=np.int64)
    owners: dict[bytes, int] = {}
    packed = 0
    select, targets, place = [], [], []
    for k, i in enumerate(members):
        prompt, response = rows[i].prompt_ids, rows[i].token_ids
        ids[k, : length_of(rows[i])] = np.concatenate([prompt, response])[:-1]
        first = owners.setdefault(prompt.tobytes(), packed)
        borrowed = len(prompt) if first < packed else 0
        cells[k, :borrowed] = -1 - np.arange(first, first + borrowed)
        owned = length_of(rows[i]) - borrowed
        cells[k, borrowed : borrowed + owned] = np.arange(packed, packed + owned)
        packed += owned
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
        cells=torch.from_numpy(cells).to(device),
        select=tensor(select),
        targets=tensor(targets),
        place=tensor(place),
    )
