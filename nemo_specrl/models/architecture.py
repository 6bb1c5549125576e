"""What a Hugging Face folder says its model is; checked before anything is built. No torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MiMoForCausalLM": "qwen2",  # a Qwen2 with draft heads (policy/mtp)
}


@dataclass(frozen=True)
class Architecture:
    """The dense decoder that the three families share; they differ in qkv bias and q/k norm."""

    family: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    tied: bool
    """The LM head is the embedding."""
    max_positions: int
    rope_theta: float
    rope_scaling: tuple[tuple[str, float], ...] = ()
    """Empty, or the parameters of `linear` (factor) or `llama3` (factor, low_freq_factor, high_freq_factor,
    original_max_position_embeddings) scaling."""

    @property
    def qkv_bias(self) -> bool:
        return self.family == "qwen2"

    @property
    def qk_norm(self) -> bool:
        return self.family == "qwen3"

    def describe(self) -> dict[str, Any]:
        """For fingerprints and messages."""
        return asdict(self)


def read_architecture(folder: Path) -> Architecture:
    """The architecture of a Hugging Face model folder.

    Raises ValueError when the folder or its config is missing or broken, or the model is none that we train."""
    if not folder.is_dir():
        raise ValueError(f"model folder {folder} does not exist: give a Hugging Face model folder or hub name")
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: {folder} is not a Hugging Face model folder") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}): download the model again") from error
    name = (config.get("architectures") or ["none named"])[0]
    if name not in FAMILIES:
        raise ValueError(f"{path}: architecture {name!r} is not supported; supported are {', '.join(FAMILIES)}")
    _refuse_variants(path, config, FAMILIES[name])
    try:
        heads = int(config["num_attention_heads"])
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        architecture = Architecture(
            family=FAMILIES[name],
            num_layers=int(config["num_hidden_layers"]),
            hidden_size=int(config["hidden_size"]),
            ffn_size=int(config["intermediate_size"]),
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
            vocab_size=int(config["vocab_size"]),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            tied=bool(config.get("tie_word_embeddings", False)),
            max_positions=int(config.get("max_position_embeddings", 2048)),
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta", 10000.0)),
            rope_scaling=_rope_scaling(path, rope),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error} is missing or malformed; download the model again") from error
    _check_tokenizer(folder, architecture.vocab_size)
    return architecture


def _rope_scaling(path: Path, rope: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    keys = {
        "default": (),
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    }
    if kind not in keys:
        raise ValueError(f"{path}: rope scaling {kind!r} is not supported; supported are {', '.join(keys)}")
    return tuple((key, float(rope[key])) for key in keys[kind])


def _refuse_variants(path: Path, config: dict[str, Any], family: str) -> None:
    """Options of these families that change the forward pass and that we do not build."""
    variants = {
        "attention_bias": config.get("attention_bias", False) and family != "qwen2",  # there it means q, k and v
        "mlp_bias": config.get("mlp_bias", False),
        "use_sliding_window": config.get("use_sliding_window", False),
        "attention_dropout": config.get("attention_dropout", 0.0),
    }
    for key, value in variants.items():
        if value:
            raise ValueError(f"{path}: {key}={value} is not supported; use a model without it")
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"{path}: hidden_act={config['hidden_act']!r} is not supported; supported is 'silu'")


def _check_tokenizer(folder: Path, vocab_size: int) -> None:
    """A tokenizer with more ids than the embedding has rows would index past its end."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return
    try:
        tokenizer = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}): download the model again") from error
    vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
    largest = max([*ids, *(token["id"] for token in tokenizer.get("added_tokens") or [])], default=-1)
    if largest >= vocab_size:
        raise ValueError(
            f"{folder}: the tokenizer's largest id is {largest}, but the model has only {vocab_size} embeddings: "
            "this tokenizer belongs to another model"
        )
