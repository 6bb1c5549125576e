"""A tiny random Llama, written once per session."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.rollout.vllm.law import MAX_LENGTH

VOCAB = 128

torch.set_num_threads(1)  # the engines beside us need the cores


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny_llama(tmp_path_factory.mktemp("tiny-llama"), tied=False)


@pytest.fixture(scope="session")
def tied_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny_llama(tmp_path_factory.mktemp("tied-llama"), tied=True)


def _tiny_llama(folder: Path, *, tied: bool) -> Path:
    """fp32, far from uniform; heads of 32, the smallest that vLLM attends with on a CPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=tied,
        eos_token_id=1,
        bos_token_id=0,
        initializer_range=0.25,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return folder
