"""MegatronPolicy on one process, against transformers and against itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nemo_specrl.config.engine import SamplingConfig
from nemo_specrl.config.policy import PolicyConfig
from nemo_specrl.contracts.rows import LossBatch, Row
from nemo_specrl.policy.megatron.policy import MegatronPolicy

from .conftest import FAMILIES, make_checkpoint
from .ranks import make_rows, surrogate, target_log_prob, train_rows

FP32 = PolicyConfig(dtype="fp32", lr=1e-2, micro_batch_tokens=48)


def make(folder: Path, config: PolicyConfig = FP32, **sampling: Any) -> MegatronPolicy:
    return MegatronPolicy(folder, config, SamplingConfig(**sampling), seed=0, total_updates=None)


def transformers_logprobs(model: Any, row: Row, temperature: float) -> torch.Tensor:
    """[T] with gradient."""
    ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids]).astype(np.int64))[None]
    logits = model(ids).logits[0, len(row.prompt_ids) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(1, ids[0, len(row.prompt_ids) :, None])[:, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_gradients_are_transformers(checkpoints: dict[str, Path], family: str) -> None:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoints[family], dtype=torch.float32)
    # Large epsilon, first step: AdamW's update is lr * g / (|g| + eps), which gives the gradient back.
    lr, eps = 1e-2, 1.0
    policy = make(checkpoints[family], replace(FP32, lr=lr, eps=eps, clip_grad=0.0), temperature=0.7)
    rows = make_rows()
    scores = policy.score(rows)
    for row, s in zip(rows, scores, strict=True):
        expected = transformers_logprobs(model, row, 0.7).detach().numpy()
        np.testing.assert_allclose(s.logprobs, expected, atol=1e-4)
    batch = train_rows(rows, scores)
    total = sum(float(r.mask.sum()) for r in batch)
    loss = sum(
        -(torch.from_numpy(t.mask * t.advantages) * (lp - lp.detach()).exp()).sum() / total
        for t, lp in ((t, transformers_logprobs(model, r, 0.7)) for t, r in zip(batch, rows, strict=True))
    )
    loss.backward()
    before = {n: t.clone() for n, t in policy.weights()}
    result = policy.update(batch, surrogate, loss_level="token")
    assert result["loss"] == pytest.approx(float(loss.detach()), abs=1e-6)
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    assert result["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    gradients = {n: p.grad for n, p in model.named_parameters()}
    for name, after in policy.weights():
        g = gradients[name]
        torch.testing.assert_close((before[name] - after) / lr, g / (g.abs() + eps), atol=3e-5, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_weights_round_trip_bit_exactly(tmp_path: Path, family: str, dtype: str) -> None:
    from safetensors.torch import load_file

    kind = torch.float32 if dtype == "fp32" else torch.bfloat16
    folder = make_checkpoint(tmp_path, family, kind)
    expected = load_file(folder / "model.safetensors")
    found = dict(make(folder, replace(FP32, dtype=dtype)).weights())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.6, "top_p": 0.7, "top_k": 20}])
def test_reduce_reads_what_score_says(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any]
) -> None:
    monkeypatch.setattr("nemo_specrl.policy.megatron.policy.POSITIONS", 5)
    policy = make(checkpoints["llama"], **sampling)
    rows = make_rows()
    parts = policy.reduce(rows, target_log_prob(rows))
    scores = policy.score(rows)
    assert [len(p) for p in parts] == [-(-len(r.token_ids) // 5) for r in rows]
    for part, s in zip(parts, scores, strict=True):
        np.testing.assert_allclose(np.concatenate([*part, np.empty(0, np.float32)]), s.logprobs, atol=1e-5)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_split_into_micro_batches_does_not_matter(checkpoints: dict[str, Path], level: str) -> None:
    results = []
    for tokens in (1, 60, 4096):
        policy = make(checkpoints["qwen3"], replace(FP32, micro_batch_tokens=tokens, recompute=tokens == 60))
        rows = make_rows()
        results.append(policy.update(train_rows(rows, policy.score(rows)), surrogate, loss_level=level))
    for other in results[1:]:
        assert other == pytest.approx(results[0], rel=1e-5)


def test_packed_and_padded_layouts_agree(checkpoints: dict[str, Path]) -> None:
    """Packed: no padding, shared prompts once. Padded: what Transformer Engine's attention takes."""
    # With this epsilon AdamW moves a weight in proportion to its gradient, so comparing weights compares gradients.
    config = replace(FP32, lr=1e-2, eps=1.0, clip_grad=0.0)
    packed, padded = make(checkpoints["qwen3"], config), make(checkpoints["qwen3"], config)
    assert packed.model.packs
    padded.model.packs = False
    rows = make_rows()
    for ours, theirs in zip(packed.score(rows), padded.score(rows), strict=True):
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-5)
    batch = train_rows(rows, packed.score(rows))
    mine, other = (p.update(batch, surrogate, loss_level="token") for p in (packed, padded))
    assert mine == pytest.approx(other, rel=1e-5)
    for (name, a), (_, b) in zip(packed.weights(), padded.weights(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_loaded_policy_continues_bit_identically(checkpoints: dict[str, Path], tmp_path: Path, dtype: str) -> None:
    config = replace(FP32, dtype=dtype)
    policy = make(checkpoints["qwen2"], config)
    rows = make_rows()
    batch = train_rows(rows, policy.score(rows))
    policy.update(batch, surrogate, loss_level="token")
    policy.save(tmp_path)
    second = policy.update(batch, surrogate, loss_level="token")
    other = make(checkpoints["qwen2"], config)
    other.load(tmp_path)
    assert other.version == 1
    assert other.update(batch, surrogate, loss_level="token") == second
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(policy.weights(), other.weights(), strict=True))


def test_checkpoints_that_do_not_fit(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    policy = make(checkpoints["llama"])
    with pytest.raises(ValueError, match="holds no policy checkpoint"):
        policy.load(tmp_path)
    policy.save(tmp_path)
    with pytest.raises(ValueError, match="model"):
        make(checkpoints["qwen2"]).load(tmp_path)
    with pytest.raises(ValueError, match="dtype"):
        make(checkpoints["llama"], replace(FP32, dtype="bf16")).load(tmp_path)
    (file,) = tmp_path.glob("*.pt")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ValueError, match="corrupt"):
        policy.load(tmp_path)
    file.unlink()
    with pytest.raises(ValueError, match="incomplete"):
        policy.load(tmp_path)


def test_nothing_unmasked_is_counted_and_changes_nothing(checkpoints: dict[str, Path]) -> None:
    policy = make(checkpoints["llama"])
    rows = make_rows()
    batch = [replace(r, mask=np.zeros_like(r.mask)) for r in train_rows(rows, policy.score(rows))]
    before = [t.clone() for _, t in policy.weights()]
    result = policy.update(batch, surrogate, loss_level="token")
    assert result["skipped"] == 1
    assert policy.version == 1
    assert all(torch.equal(a, b) for a, (_, b) in zip(before, policy.weights(), strict=True))


@pytest.mark.parametrize("what", ["loss", "gradient norm"])
def test_what_is_not_finite_touches_nothing(checkpoints: dict[str, Path], what: str) -> None:
    def broken(logprobs: torch.Tensor, batch: LossBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if what == "loss":
            return (logprobs * batch.weights).sum() * float("nan"), {}
        return ((logprobs * 0).sqrt() * batch.weights).sum(), {}  # finite, with an infinite derivative

    policy = make(checkpoints["llama"])
    rows = make_rows()
    batch = train_rows(rows, policy.score(rows))
    before = [t.clone() for _, t in policy.weights()]
    with pytest.raises(RuntimeError, match=rf"{what}.*policy\.lr"):
        policy.update(batch, broken, loss_level="token")
    assert policy.version == 0
    assert all(torch.equal(a, b) for a, (_, b) in zip(before, policy.weights(), strict=True))
    assert np.isfinite(policy.update(batch, surrogate, loss_level="token")["grad_norm"])


def test_the_reference_stays_when_the_policy_moves(checkpoints: dict[str, Path]) -> None:
    policy = make(checkpoints["llama"])
    rows = make_rows()
    first = policy.score(rows)
    policy.snapshot_reference()
    policy.update(train_rows(rows, first), surrogate, loss_level="token")
    moved, frozen = policy.score(rows), policy.score(rows, reference=True)
    assert all(np.array_equal(a.logprobs, b.logprobs) for a, b in zip(first, frozen, strict=True))
    assert not np.allclose(first[3].logprobs, moved[3].logprobs, atol=1e-3)
