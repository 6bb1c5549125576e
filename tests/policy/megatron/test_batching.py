"""Packing rows into micro-batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nemo_specrl.policy.base import Row
from nemo_specrl.policy.megatron.batching import check_rows, length_of, micro_batches, share

CPU = torch.device("cpu")


def row(prompt: int, response: int) -> Row:
    start = prompt * 100 + response
    return Row(np.arange(start, start + prompt, dtype=np.int32), np.arange(response, dtype=np.int32) + 7)


def test_every_response_token_is_predicted_by_the_position_before_it() -> None:
    rows = [row(3, 4), row(1, 2), row(5, 1)]
    (batch,) = micro_batches(rows, [0, 1, 2], 100, CPU)
    b, s = batch.input_ids.shape
    assert (b, s) == (3, 6)
    flat = batch.input_ids.T.flatten()
    expected = [np.concatenate([r.prompt_ids, r.token_ids]) for r in rows]
    inputs = [e[len(r.prompt_ids) - 1 : -1] for e, r in zip(expected, rows, strict=True)]
    assert flat[batch.select].tolist() == np.concatenate(inputs).tolist()
    assert batch.targets.tolist() == np.concatenate([r.token_ids for r in rows]).tolist()
    padded = torch.zeros(3 * 4).scatter(0, batch.place, batch.targets.float()).view(3, 4)
    assert padded[1].tolist() == [7.0, 8.0, 0.0, 0.0]


def test_no_batch_exceeds_the_budget_but_for_a_single_long_row() -> None:
    draw = np.random.default_rng(0)
    rows = [row(int(p), int(t)) for p, t in draw.integers(1, 30, (60, 2))] + [row(90, 40)]
    chosen = share(rows, range(len(rows)), 0, 1)
    batches = micro_batches(rows, chosen, 120, CPU)
    assert sorted(i for b in batches for i in b.rows) == list(range(len(rows)))
    assert all(b.input_ids.numel() <= 120 or len(b.rows) == 1 for b in batches)
    lengths = [length_of(rows[i]) for b in batches for i in b.rows]
    assert lengths == sorted(lengths, reverse=True)


def test_replicas_share_all_rows_once() -> None:
    rows = [row(2, n) for n in range(1, 12)]
    parts = [share(rows, range(len(rows)), r, 4) for r in range(4)]
    assert sorted(i for part in parts for i in part) == list(range(11))
    tokens = [sum(length_of(rows[i]) for i in part) for part in parts]
    assert max(tokens) - min(tokens) <= 12


def test_rows_that_cannot_be_scored() -> None:
    with pytest.raises(ValueError, match="row 1 has no prompt"):
        check_rows([row(1, 1), Row(np.empty(0, np.int32), np.zeros(2, np.int32))], 1000)
    with pytest.raises(ValueError, match="token id 50"):
        check_rows([Row(np.array([1], np.int32), np.array([50], np.int32))], 50)
