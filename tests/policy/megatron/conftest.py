"""Tiny random checkpoints of the three families, made by transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

FAMILIES = ("llama", "qwen2", "qwen3")


def make_checkpoint(folder: Path, family: str, dtype: torch.dtype = torch.float32) -> Path:
    """Two layers, 4 heads over 2 key-value groups, a vocabulary of 131 (odd, so TP=2 pads it). Llama: tied embeddings
    and llama3 RoPE scaling; Qwen2: qkv bias; Qwen3: q/k norm and a head size of its own."""
    import transformers

    common = {
        "vocab_size": 131,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    config = {
        "llama": lambda: transformers.LlamaConfig(**common, tie_word_embeddings=True, rope_parameters=scaling),
        "qwen2": lambda: transformers.Qwen2Config(**common, tie_word_embeddings=False),
        "qwen3": lambda: transformers.Qwen3Config(**common, tie_word_embeddings=False, head_dim=32),
    }[family]()
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        # Norms and biases away from 1 and 0, or a mapping that forgets them would pass.
        torch.nn.init.normal_(parameter, 0.8 if parameter.dim() == 1 else 0.0, 0.2)
    model.to(dtype).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("models")
    return {family: make_checkpoint(root / family, family) for family in FAMILIES}
