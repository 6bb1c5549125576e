"""Checkpoint and head become folders that vLLM can read, without a copy of the weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_specrl.rollout.vllm import draft_folder
from nemo_specrl.rollout.vllm.draft_folder import DRAFT_CLASS, build, layout_of, shapes
from tests.rollout.vllm.tiny import model_and_head


def test_a_llama_becomes_a_mimo_with_zero_biases(tmp_path: Path) -> None:
    model, head, folder, head_folder = model_and_head("llama", tmp_path)
    served = build(folder, head_folder, tmp_path / "out")
    config = json.loads((served.model / "config.json").read_text())
    assert served.speculative == {"method": "mtp"}
    assert config["architectures"] == ["MiMoForCausalLM"]
    assert config["model_type"] == "qwen2"
    assert config["num_nextn_predict_layers"] == 1
    assert config["rope_parameters"] == model.config.rope_parameters
    assert (served.model / "model.safetensors").is_symlink(), "the trunk is not copied"
    names = shapes(served.model)
    for layer in ("model.layers.0", "model.layers.1", "model.mtp_layers.0"):
        for part in "qkv":
            weight = names[f"{layer}.self_attn.{part}_proj.weight"]
            assert names[f"{layer}.self_attn.{part}_proj.bias"] == weight[:1]
    biases = load_file(served.model / "zero-biases.safetensors")
    assert len(biases) == 9
    assert all(not bias.any() for bias in biases.values())
    sent = dict(served.complete([*model.state_dict().items(), *head.items()]))
    assert sent.keys() | {"lm_head.weight"} == names.keys() | {"lm_head.weight"}, "a refit brings what the folder holds"


def test_a_qwen2_keeps_its_own_biases(tmp_path: Path) -> None:
    model, head, folder, head_folder = model_and_head("qwen2", tmp_path)
    served = build(folder, head_folder, tmp_path / "out")
    assert not served.zero_biases
    assert dict(served.complete(head.items())).keys() == head.keys()
    assert shapes(served.model).keys() == model.state_dict().keys() | head.keys()


def test_a_qwen3_gets_a_trunk_and_a_draft_folder(tmp_path: Path) -> None:
    _, head, folder, head_folder = model_and_head("qwen3", tmp_path)
    served = build(folder, head_folder, tmp_path / "out")
    build(folder, head_folder, tmp_path / "out")  # once more, over the first
    draft = Path(served.speculative["model"])
    assert served.speculative["method"] == "eagle"
    trunk_config, draft_config = (json.loads((f / "config.json").read_text()) for f in (served.model, draft))
    assert trunk_config["architectures"] == ["SpecrlQwen3ForCausalLM"]
    assert draft_config["architectures"] == [DRAFT_CLASS]
    for key in ("max_position_embeddings", "rope_parameters", "vocab_size"):
        assert draft_config[key] == trunk_config[key], "positions and words are the policy's"
    assert shapes(draft).keys() == head.keys()


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        ({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2}, "mimo"),
        ({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "head_dim": 64}, "eagle"),
        ({"model_type": "qwen2"}, "mimo"),
        ({"model_type": "mimo"}, "mimo"),
        ({"model_type": "qwen3"}, "eagle"),
    ],
)
def test_the_layout_is_vllms_own_where_it_computes_the_same(config: dict[str, object], layout: str) -> None:
    assert layout_of(config) == layout


def test_families_without_a_served_head_are_refused() -> None:
    with pytest.raises(ValueError, match="drafter=history"):
        layout_of({"model_type": "gemma3_text"})
    with pytest.raises(ValueError, match="attention_bias"):
        layout_of({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "attention_bias": True})


@pytest.mark.parametrize("fault", ["missing", "extra", "shape"])
def test_a_head_of_another_model_is_refused_by_name(tmp_path: Path, fault: str) -> None:
    _, head, folder, head_folder = model_and_head("qwen2", tmp_path)
    name = draft_folder.PREFIX + "0.self_attn.q_proj.bias"
    if fault == "missing":
        del head[name]
    elif fault == "extra":
        name = draft_folder.PREFIX + "1.input_proj.weight"
        head[name] = torch.zeros(2)
    else:
        head[name] = torch.zeros(3)
    save_file(head, head_folder / "head.safetensors")
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        build(folder, head_folder, tmp_path / "out")
