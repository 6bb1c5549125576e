"""One process, TP=2, PP=2 and DP=2 learn the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nemo_specrl.config.engine import SamplingConfig
from tests.policy.torchrun import torchrun

from .ranks import work

TOLERANCE = 5e-6
"""fp32 sums in another order: log-probabilities, gradients (through weights, see ranks.py) and norms."""


@pytest.fixture(scope="module")
def alone(checkpoints: dict[str, Path]) -> dict[str, Any]:
    return work(str(checkpoints["llama"]), 1, 1, SamplingConfig(temperature=0.8))


@pytest.mark.distributed
@pytest.mark.parametrize(("ranks", "tp", "pp"), [(2, 2, 1), (2, 1, 2), (2, 1, 1)], ids=["tp2", "pp2", "dp2"])
def test_the_layout_does_not_matter(
    checkpoints: dict[str, Path], alone: dict[str, Any], tmp_path: Path, ranks: int, tp: int, pp: int
) -> None:
    found = torchrun("tests.policy.megatron.ranks", ranks, tp, pp, checkpoints["llama"], tmp_path / "out.pt")
    assert found["agree"], "ranks returned different scores or metrics"
    assert found["resumed"], "a loaded checkpoint did not continue identically"
    for field in ("scores", "entropy", "reduced"):
        for a, b in zip(alone[field], found[field], strict=True):
            np.testing.assert_allclose(a, b, atol=TOLERANCE)
    for a, b in zip(alone["updates"], found["updates"], strict=True):
        assert b == pytest.approx(a, rel=1e-5, abs=1e-6)
    for name, tensor in alone["before"].items():
        assert torch.equal(found["before"][name], tensor), name
    for name, tensor in alone["after"].items():
        torch.testing.assert_close(found["after"][name], tensor, atol=TOLERANCE, rtol=0)
    moved = max(float((alone["after"][n] - t).abs().max()) for n, t in alone["before"].items())
    assert moved > 1000 * TOLERANCE, "the updates are too small to prove anything"
