"""The head on one process: against a plain reference that decodes as an engine does, and its weights' ways."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_specrl.config.engine import SamplingConfig
from nemo_specrl.config.head import HeadConfig
from nemo_specrl.config.policy import PolicyConfig
from nemo_specrl.contracts.companion import Lesson
from nemo_specrl.contracts.rows import Row
from nemo_specrl.policy.megatron.policy import MegatronPolicy
from nemo_specrl.policy.mtp import draft
from tests.policy.megatron.conftest import FAMILIES
from tests.policy.megatron.ranks import make_rows, surrogate, train_rows
from tests.policy.mtp.ranks import head_of, with_a_head
from tests.rollout.vllm.mtp_reference import MtpReference, random_head, trunk_hidden

FP32 = PolicyConfig(dtype="fp32", lr=1e-2, micro_batch_tokens=48)


def make(folder: Path, head: HeadConfig | None, config: PolicyConfig = FP32, **sampling: Any) -> MegatronPolicy:
    return with_a_head(MegatronPolicy(folder, config, SamplingConfig(**sampling), seed=0, total_updates=None), head)


def write(folder: Path, model: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    config = json.loads((model / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])  # the reference knows no llama3 scaling
def test_agreement_is_what_decoding_token_by_token_gives(
    checkpoints: dict[str, Path], tmp_path: Path, family: str
) -> None:
    """Depth 3, teacher-forced: the reference keeps a cache as an engine does, with its own states above the prefix."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoints[family], dtype=torch.float32)
    tensors = random_head(model)
    folder = write(tmp_path / "head", checkpoints[family], tensors)
    policy = make(checkpoints[family], HeadConfig(source=str(folder), depth=3), temperature=0.7)
    rows = [*make_rows(), Row(np.array([5], np.int32), np.arange(1, 9, dtype=np.int32))]
    sums, counts = np.zeros(3), np.zeros(3)
    reference = MtpReference(tensors, model)
    for row in rows:
        ids = [int(x) for x in np.concatenate([row.prompt_ids, row.token_ids])]
        hidden = trunk_hidden(model, ids)
        p = (model.model.norm(hidden) @ reference.lm_head.T / 0.7).softmax(-1).detach()
        # Drafts begin after the first response token: `seen` tokens are known, drafts are the realised tokens.
        for seen in range(len(row.prompt_ids) + 1, len(ids)):
            drafts = ids[seen : seen + 3]
            logits = reference.draft_logits(ids[:seen], hidden, drafts)
            for d in range(len(drafts)):
                q = (logits[d] / 0.7).softmax(-1)
                sums[d] += float(torch.minimum(p[seen - 1 + d], q).sum())
                counts[d] += 1
    found = head_of(policy).agreement(rows)
    for d in range(3):
        assert found[f"draft/agreement_pos_{d}"] == pytest.approx(sums[d] / counts[d], abs=1e-5)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_logits_are_the_references(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """At every position and depth, to 1e-3 in fp32; the engine's are compared with the same reference."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoints[family], dtype=torch.float32)
    tensors = random_head(model)
    policy = make(
        checkpoints[family], HeadConfig(source=str(write(tmp_path / "head", checkpoints[family], tensors)), depth=3)
    )
    reference = MtpReference(tensors, model)
    found: list[torch.Tensor] = []

    def record(student: torch.Tensor, _teacher: torch.Tensor, head: torch.Tensor, law: Any) -> torch.Tensor:
        found.append(student @ head[: law.vocab_size].T)
        return torch.zeros(len(student), 3)

    monkeypatch.setattr(draft, "agreement", record)
    for row in make_rows():
        found.clear()
        head_of(policy).agreement([row])
        ids = [int(x) for x in np.concatenate([row.prompt_ids, row.token_ids])]
        hidden = trunk_hidden(model, ids)
        wanted: list[list[torch.Tensor]] = [[], [], []]
        for seen in range(len(row.prompt_ids) + 1, len(ids)):
            drafts = ids[seen : seen + 3]
            for depth, logits in enumerate(reference.draft_logits(ids[:seen], hidden, drafts)[: len(drafts)]):
                wanted[depth].append(logits)
        for got, want in zip(found, wanted, strict=False):
            assert len(got) == len(want)
            if want:
                torch.testing.assert_close(got, torch.stack(want), atol=1e-3, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_folder_and_back_is_bit_exact(checkpoints: dict[str, Path], tmp_path: Path, family: str, dtype: str) -> None:
    config = replace(FP32, dtype=dtype)
    first = make(checkpoints[family], HeadConfig(lr=1e-2), config)
    head_of(first).train(make_rows())
    head_of(first).export(tmp_path / "head")
    stored = load_file(tmp_path / "head" / "model.safetensors")
    again = make(checkpoints[family], HeadConfig(source=str(tmp_path / "head")), config)
    found = dict(head_of(again).weights())
    assert found.keys() == stored.keys()
    assert all(torch.equal(found[name], stored[name]) for name in stored)
    assert {t.dtype for t in found.values()} == {torch.float32 if dtype == "fp32" else torch.bfloat16}
    assert ("model.mtp_layers.0.self_attn.q_proj.bias" in found) == (family == "qwen2")
    assert ("model.mtp_layers.0.self_attn.q_norm.weight" in found) == (family == "qwen3")


def test_a_head_that_is_promised_and_missing(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="promises none either"):
        make(checkpoints["llama"], HeadConfig(source="native"))
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        make(checkpoints["llama"], HeadConfig(source=str(tmp_path / "nowhere")))
    empty = write(tmp_path / "empty", checkpoints["llama"], {"model.norm.weight": torch.ones(64)})
    with pytest.raises(ValueError, match="no model.mtp_layers.* weights.*promises 1"):
        make(checkpoints["llama"], HeadConfig(source=str(empty)))
    head_of(make(checkpoints["qwen3"], HeadConfig())).export(tmp_path / "other")
    with pytest.raises(ValueError, match="made for a model with rope_parameters"):
        make(checkpoints["llama"], HeadConfig(source=str(tmp_path / "other")))
    tensors = load_file(tmp_path / "other" / "model.safetensors")
    with pytest.raises(ValueError, match="has shape"):
        make(checkpoints["llama"], HeadConfig(source=str(write(tmp_path / "shape", checkpoints["llama"], tensors))))
    del tensors["model.mtp_layers.0.input_proj.weight"]
    with pytest.raises(ValueError, match=r"input_proj\.weight is missing"):
        make(checkpoints["qwen3"], HeadConfig(source=str(write(tmp_path / "cut", checkpoints["qwen3"], tensors))))


def test_the_native_head_of_a_model_is_found(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    source = checkpoints["qwen2"]
    head_of(make(source, HeadConfig())).export(tmp_path / "head")
    head = load_file(tmp_path / "head" / "model.safetensors")
    model = write(tmp_path / "model", source, load_file(source / "model.safetensors") | head)
    config = json.loads((model / "config.json").read_text())
    mimo = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "attention_bias": True}
    (model / "config.json").write_text(json.dumps({**config, **mimo}))
    policy = make(model, HeadConfig(source="native"))
    found = dict(head_of(policy).weights())
    assert all(torch.equal(found[name], head[name]) for name in head)
    trunk = load_file(source / "model.safetensors")
    assert all(torch.equal(tensor, trunk[name]) for name, tensor in policy.weights())


def test_micro_batches_do_not_matter(checkpoints: dict[str, Path]) -> None:
    results = []
    for tokens in (1, 4096):
        policy = make(checkpoints["qwen2"], HeadConfig(depth=3), replace(FP32, micro_batch_tokens=tokens))
        results.append(head_of(policy).train(make_rows(), [1.0, 0.0, 2.0, 1.0, 1.0, 0.5]))
    assert results[1] == pytest.approx(results[0], rel=1e-4)


@pytest.mark.parametrize(("loss", "topk"), [("kl", 0), ("kl", 20), ("acceptance", 0)])
def test_lessons_raise_agreement(checkpoints: dict[str, Path], loss: str, topk: int) -> None:
    policy = make(checkpoints["llama"], HeadConfig(depth=2, lr=3e-3, loss=loss, topk=topk))
    rows = make_rows()
    before = head_of(policy).agreement(rows)
    losses = [head_of(policy).train(rows)["draft/loss"] for _ in range(25)]
    after = head_of(policy).agreement(rows)
    assert losses[-1] < 0.5 * losses[0]
    for d in range(2):
        assert after[f"draft/agreement_pos_{d}"] > before[f"draft/agreement_pos_{d}"] + 0.15


def test_rows_without_a_second_token_teach_nothing(checkpoints: dict[str, Path]) -> None:
    policy = make(checkpoints["llama"], HeadConfig())
    before = {n: t.clone() for n, t in head_of(policy).weights()}
    assert head_of(policy).train(make_rows(lengths=(1, 0, 1))) == {"draft/events": 0.0}
    assert head_of(policy).train([]) == {}
    assert all(torch.equal(t, before[n]) for n, t in head_of(policy).weights())
    assert head_of(policy).agreement(make_rows(lengths=(1,))) == {}


def test_a_head_whose_gradients_are_not_finite_is_left_alone(checkpoints: dict[str, Path]) -> None:
    policy = make(checkpoints["llama"], HeadConfig())
    head_of(policy).head.parameters()["layer.mlp.linear_fc2.weight"].data[0, 0] = float("nan")
    before = {n: t.clone() for n, t in head_of(policy).weights()}
    with pytest.raises(RuntimeError, match=r"draft head.*drafter\.head\.lr"):
        head_of(policy).train(make_rows())
    assert all(torch.equal(t, before[n]) or "down_proj" in n for n, t in head_of(policy).weights())


def test_a_head_that_diverges_does_not_end_the_policys_training(checkpoints: dict[str, Path]) -> None:
    policy = make(checkpoints["llama"], HeadConfig())
    head_of(policy).head.parameters()["layer.mlp.linear_fc2.weight"].data[0, 0] = float("nan")
    rows = make_rows()
    batch = train_rows(rows, policy.score(rows))
    before = {n: t.clone() for n, t in policy.weights()}
    metrics = policy.update(batch, surrogate, loss_level="token", lessons=[Lesson(head_of(policy), [1.0] * len(rows))])
    assert metrics["draft/skipped"] == 1
    assert metrics["grad_norm"] > 0
    assert not any("nan" in repr(value) for value in metrics.values())
    assert any(not torch.equal(t, before[n]) for n, t in policy.weights())


def test_without_a_head_there_is_none(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    policy = make(checkpoints["llama"], None)
    assert policy.companions == []
    policy.save(tmp_path)
    learner = make(checkpoints["llama"], HeadConfig())
    learner.load(tmp_path)  # a run may gain a head on resume: it starts from its source
    rows = make_rows()
    assert "draft/loss" in learner.update(
        train_rows(rows, learner.score(rows)),
        surrogate,
        loss_level="token",
        lessons=[Lesson(head_of(learner), [1.0] * len(rows))],
    )
