"""Packing rows into micro-batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nemo_specrl.contracts.rows import Row
from nemo_specrl.policy.megatron.batching import check_rows, length_of, micro_batches, share, unpack

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


def test_a_shared_prompt_is_packed_once() -> None:
    prompt, other = np.array([5, 6, 7], np.int32), np.array([9], np.int32)
    responses = [np.array(ids, np.int32) for ids in ([1, 2, 3], [4], [1, 1, 1, 1])]
    rows = [Row(prompt, responses[0]), Row(other, responses[1]), Row(prompt, responses[2])]
    (batch,) = micro_batches(rows, [0, 1, 2], 100, CPU)
    tokens, positions = batch.packed
    assert tokens.tolist() == [[5, 6, 7, 1, 2, 9, 1, 1, 1]]
    assert positions.tolist() == [[0, 1, 2, 3, 4, 0, 3, 4, 5]]
    padded = unpack(tokens.T[..., None], batch.cells)[..., 0].T
    assert [padded[k, : length_of(r)].tolist() for k, r in enumerate(rows)] == [
        batch.input_ids[k, : length_of(r)].tolist() for k, r in enumerate(rows)
    ]


def test_groups_stay_on_one_replica_where_they_fit() -> None:
    rows = [Row(np.full(4, g, np.int32), np.ones(3 + g, np.int32)) for g in range(6) for _ in range(4)]
    parts = [share(rows, range(len(rows)), r, 3) for r in range(3)]
    assert sorted(i for part in parts for i in part) == list(range(24))
    owners = [{i // 4 for i in part} for part in parts]
    assert sum(len(o) for o in owners) <= 6 + 2, "a group is cut only where a part ends"


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
