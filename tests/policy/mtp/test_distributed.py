"""The head learns the same under TP, PP and DP, and the policy never notices it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.policy.torchrun import torchrun

from .ranks import work

TOLERANCE = 5e-6
"""fp32 sums in another order."""


@pytest.fixture(scope="module")
def alone(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return work(str(checkpoints["qwen3"]), 1, 1, tmp_path_factory.mktemp("alone"))


def test_the_policy_is_bit_for_bit_the_same_with_a_head(alone: dict[str, Any]) -> None:
    assert alone["isolated"]
    moved = max(float((alone["after"][n] - t).abs().max()) for n, t in alone["before"].items())
    assert moved > 100 * TOLERANCE, "the head did not learn, so its isolation proves nothing"


def test_a_loaded_head_continues_bit_identically(alone: dict[str, Any]) -> None:
    assert alone["resumed"]  # and states at hand teach what a forward pass does


@pytest.mark.distributed
@pytest.mark.parametrize(("ranks", "tp", "pp"), [(2, 2, 1), (2, 1, 2), (2, 1, 1)], ids=["tp2", "pp2", "dp2"])
def test_the_layout_does_not_matter(
    checkpoints: dict[str, Path], alone: dict[str, Any], tmp_path: Path, ranks: int, tp: int, pp: int
) -> None:
    # Qwen3: untied embeddings, which the last stage has not, and q/k norms, whose gradients TP splits.
    found = torchrun("tests.policy.mtp.ranks", ranks, tp, pp, checkpoints["qwen3"], tmp_path / "out.pt")
    assert found["agree"], "ranks returned different metrics"
    assert found["isolated"], "the head changed the policy"
    assert found["noticed"], "a head that has diverged went unnoticed on some rank"
    assert found["resumed"], "a loaded checkpoint did not continue identically"
    for a, b in zip([*alone["metrics"], alone["agreement"]], [*found["metrics"], found["agreement"]], strict=True):
        assert b == pytest.approx(a, rel=1e-4, abs=1e-6)
    for name, tensor in alone["before"].items():
        assert torch.equal(found["before"][name], tensor), name
    for name, tensor in alone["after"].items():
        torch.testing.assert_close(found["after"][name], tensor, atol=TOLERANCE, rtol=0, msg=name)
    for loss, weights in alone["taught_by"].items():
        for name, tensor in weights.items():
            torch.testing.assert_close(
                found["taught_by"][loss][name], tensor, atol=TOLERANCE, rtol=0, msg=f"{loss} {name}"
            )
    for name, tensor in alone["started"].items():
        torch.testing.assert_close(found["started"][name], tensor, atol=1e-4, rtol=1e-3, msg=name)
