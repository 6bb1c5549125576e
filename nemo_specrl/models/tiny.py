"""`builtin:tiny`: a random four-layer Llama with a character tokenizer, for tests. The same bytes on every machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from nemo_specrl.types import FloatArray

HIDDEN, LAYERS, HEADS, KV_HEADS, MLP, VOCAB, POSITIONS = 64, 4, 4, 2, 128, 128, 1024
HEAD_DIM = 32  # vLLM's CPU attention supports no smaller one
_SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<|system|>", "<|user|>", "<|assistant|>")
_CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<eos>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_tiny(folder: Path) -> str:
    """Write model and tokenizer into `folder`: fp32, untied, and with more rows than tokens, as many real models."""
    from safetensors.numpy import save_file

    save_file(_weights(seed=0), folder / "model.safetensors", metadata={"format": "pt"})
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": POSITIONS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": "float32",
        **ids,
    }
    special = dict(zip(("pad_token", "eos_token", "bos_token", "unk_token"), _SPECIAL, strict=False))
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", {"do_sample": True, **ids})
    _write(folder / "tokenizer.json", _tokenizer())
    _write(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": POSITIONS, **special},
    )
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
    return "seed 0"


def _weights(seed: int) -> dict[str, FloatArray]:
    """Scaled so that the next-token law is neither flat nor a spike: about 3.5 nats of entropy."""
    rng = np.random.Generator(np.random.Philox(seed))

    def normal(rows: int, columns: int, std: float) -> FloatArray:
        return (std * rng.standard_normal((rows, columns))).astype(np.float32)

    weights = {"model.embed_tokens.weight": normal(VOCAB, HIDDEN, 0.5)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes = {
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": (MLP, HIDDEN),
            "mlp.up_proj": (MLP, HIDDEN),
            "mlp.down_proj": (HIDDEN, MLP),
        }
        for name, (rows, columns) in shapes.items():
            weights[f"{prefix}{name}.weight"] = normal(rows, columns, columns**-0.5)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{norm}.weight"] = np.ones(HIDDEN, dtype=np.float32)
    weights["model.norm.weight"] = np.ones(HIDDEN, dtype=np.float32)
    weights["lm_head.weight"] = normal(VOCAB, HIDDEN, 0.2)
    weights["lm_head.weight"][
        _SPECIAL.index("<eos>")
    ] *= -1.6  # as drawn it hardly ever came; now responses end by themselves
    return weights


def _tokenizer() -> dict[str, Any]:
    """tokenizer.json: one token per character; BPE without merges is just that."""
    vocabulary = {token: index for index, token in enumerate([*_SPECIAL, *_CHARACTERS])}
    added = [
        {"id": index, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False}
        for index, token in enumerate(_SPECIAL)
    ]
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>", "fuse_unk": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": model,
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
