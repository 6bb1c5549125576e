"""Loss weights and the tokens outside the law."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nemo_specrl.contracts.rows import TrainRow
from nemo_specrl.policy.megatron.batching import micro_batches
from nemo_specrl.policy.megatron.loss import loss_batch, token_weights


def train_row(mask: list[float], old: list[float] | None = None) -> TrainRow:
    n = len(mask)
    zeros = np.zeros(n, np.float32)
    values = zeros if old is None else np.array(old, np.float32)
    return TrainRow(
        np.array([1, 2], np.int32), np.arange(n, dtype=np.int32), values, values, zeros + 1, np.array(mask, np.float32)
    )


def test_token_level_weighs_every_token_alike() -> None:
    weights = token_weights([train_row([1, 0, 1]), train_row([1]), train_row([0, 0])], "token")
    np.testing.assert_allclose(np.concatenate(weights), [1 / 3, 0, 1 / 3, 1 / 3, 0, 0])


def test_sequence_level_weighs_every_row_alike() -> None:
    weights = token_weights([train_row([1, 0, 1]), train_row([1]), train_row([0, 0])], "sequence")
    np.testing.assert_allclose([w.sum() for w in weights], [0.5, 0.5, 0.0])
    np.testing.assert_allclose(weights[0], [0.25, 0, 0.25])


def test_an_unknown_level() -> None:
    with pytest.raises(ValueError, match="token, sequence"):
        token_weights([train_row([1])], "batch")


def test_a_token_outside_the_law_leaves_the_loss_and_is_counted() -> None:
    rows = [train_row([1, 1, 1], old=[-1.0, -np.inf, -2.0])]
    (batch,) = micro_batches(rows, [0], 100, torch.device("cpu"))
    flat = torch.tensor([-1.0, -np.inf, -2.0], requires_grad=True)
    logprobs, prepared, outside = loss_batch(rows, token_weights(rows, "token"), batch, flat)
    assert int(outside) == 1
    assert prepared.weights[0, 1] == 0
    loss = (prepared.weights * (logprobs - prepared.old_logprobs).exp()).sum()
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(flat.grad).all()
    torch.testing.assert_close(flat.grad, torch.tensor([1 / 3, 0.0, 1 / 3]))
