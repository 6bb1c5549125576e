"""Tiny random models of each family that a draft head is served for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.rollout.vllm.mtp_reference import random_head

VOCAB = 128


def tiny_model(family: str, *, tied: bool = False, seed: int = 0) -> Any:
    """fp32, far from uniform, biases not zero; heads of 32, the smallest that vLLM attends with on a CPU."""
    import transformers

    name = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        eos_token_id=1,
        bos_token_id=0,
        initializer_range=0.25,
    )
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(torch.float32).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias") or "norm" in parameter_name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def write(model: Any, head: dict[str, torch.Tensor], folder: Path) -> tuple[Path, Path]:
    """(model folder, head folder)."""
    model.save_pretrained(folder / "model")
    (folder / "head").mkdir()
    save_file(head, folder / "head" / "head.safetensors")
    return folder / "model", folder / "head"


def model_and_head(family: str, folder: Path, *, tied: bool = False) -> tuple[Any, dict[str, torch.Tensor], Path, Path]:
    """A tiny model, a random head for it, and their folders."""
    model = tiny_model(family, tied=tied)
    head = random_head(model)
    return (model, head, *write(model, head, folder))
