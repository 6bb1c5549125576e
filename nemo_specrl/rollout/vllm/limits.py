"""What the vLLM engine can't do, said before anything is started. Imports neither vllm nor torch.

`training/checks.py` and VllmEngine call the same functions; a drafter's own limits are in drafting/.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_specrl.config import bounds
from nemo_specrl.config.engine import EngineConfig, SamplingConfig
from nemo_specrl.contracts.drafter import Drafter
from nemo_specrl.rollout.vllm.draft_folder import layout_of

OWNED: dict[str, str] = {
    "model": "model.path",
    "tokenizer": "model.tokenizer",
    "skip_tokenizer_init": "nothing: the engine is given token ids",
    "dtype": "engine.dtype",
    "seed": "seed",
    "max_model_len": "model.max_length",
    "max_num_seqs": "engine.max_num_seqs",
    "tensor_parallel_size": "engine.tensor_parallel",
    "pipeline_parallel_size": "nothing: drafters live on the last pipeline stage only",
    "gpu_memory_utilization": "engine.gpu_memory_utilization",
    "kv_cache_memory_bytes": "engine.kv_cache_gib",
    "enable_prefix_caching": "engine.enable_prefix_caching",
    "enforce_eager": "engine.enforce_eager",
    "logprobs_mode": "nothing: the loss needs log-probabilities of the law that was sampled",
    "max_logprobs": "reuse.topk",
    "generation_config": "sampling.*",
    "override_generation_config": "sampling.*",
    "logits_processors": "nothing: they change the sampling law behind the trainer's back",
    "disable_log_stats": "nothing: the speculation counters need it",
    "worker_extension_cls": "nothing: weight updates need it",
    "speculative_config": "drafter.* and drafter.speculative_config",
    "spec_method": "drafter.method",
    "spec_model": "drafter.speculative_config.model",
    "spec_tokens": "drafter.num_draft_tokens",
    "rejection_sample_method": "drafter.rejection_sample_method",
}
"""Arguments of vllm.LLM that are ours -> the key of ours that says it."""


def check_sampling(sampling: SamplingConfig, drafter: Drafter, *, cpu: bool) -> None:
    """ValueError when the engine can't sample this law."""
    bounds.check(sampling, "sampling")
    if cpu and sampling.top_k and drafter.drafts:
        raise ValueError(
            f"sampling.top_k={sampling.top_k} with drafter={drafter.name}: vLLM's CPU backend crashes on it. "
            "Set sampling.top_k=0 (top_p works) or drafter=off"
        )


CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of an attention head that vLLM's CPU kernels know (0.32; a test compares)."""


def check_model(drafter: Drafter, config: Mapping[str, Any], *, max_length: int, cpu: bool) -> None:
    """ValueError when the engine, or its drafter, can't serve the model with this config.json."""
    context = config.get("max_position_embeddings")
    if context and max_length > context:
        raise ValueError(f"model.max_length={max_length} exceeds the model's context of {context} tokens")
    heads = config.get("num_attention_heads")
    size = config.get("head_dim") or (config["hidden_size"] // heads if heads else None)
    if cpu and size is not None and size not in CPU_HEAD_SIZES:
        raise ValueError(
            f"the model's attention heads have {size} numbers each, and vLLM's CPU kernels know "
            f"{', '.join(map(str, CPU_HEAD_SIZES))}: choose another model, or a machine with a GPU"
        )
    if drafter.has_head:
        layout_of(config)
    check_draft_model(drafter, config, max_length=max_length)


def check_draft_model(drafter: Drafter, policy: Mapping[str, Any], *, max_length: int) -> None:
    """ValueError when a draft model in a folder of its own (drafter.speculative_config.model) can't follow the policy.

    `policy`: the policy's config.json. A draft model with a shorter context drafts nonsense beyond it, and one with
    another vocabulary other words; vLLM accepts the first, and outputs stay right, so nobody would notice. (The head
    of drafter=mtp takes both, and the rotary embedding, from the policy.)"""
    path = Path(str(drafter.config.speculative_config.get("model", ""))) / "config.json"
    if not path.is_file():
        return
    draft = json.loads(path.read_text())
    context = draft.get("max_position_embeddings")
    if context and context < max_length:
        raise ValueError(
            f"the draft model {path.parent} was made for {context} positions and model.max_length is {max_length}: "
            "lower model.max_length, or choose another draft model"
        )
    if draft.get("vocab_size", policy["vocab_size"]) != policy["vocab_size"]:
        raise ValueError(
            f"the draft model {path.parent} has {draft['vocab_size']} tokens and the policy {policy['vocab_size']}: "
            "choose a draft model with the policy's tokenizer"
        )
    frequencies = [_rope(config) for config in (draft, policy)]
    if drafter.name in ("eagle", "eagle3") and frequencies[0] != frequencies[1]:
        raise ValueError(
            f"the draft model {path.parent} has rotary frequencies {frequencies[0]} and the policy {frequencies[1]}: "
            "its positions are not the policy's. Choose a head that was trained on this policy"
        )


def _rope(config: Mapping[str, Any]) -> tuple[float, Any]:
    """(base, scaling) of a config.json, in its old or new spelling."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = float(rope.pop("rope_theta", config.get("rope_theta", 10000.0)))
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    return base, "default" if kind == "default" else (kind, sorted(rope.items(), key=str))


def check_engine(engine: EngineConfig, *, cpu: bool) -> None:
    """ValueError for engine settings that clash with ours."""
    bounds.check(engine, "engine")
    for key, ours in OWNED.items():
        if key in engine.vllm_kwargs:
            raise ValueError(f"engine.vllm_kwargs.{key} can't be set there: it is decided by {ours}")
    if cpu and engine.vllm_kwargs.get("enable_chunked_prefill"):
        raise ValueError(
            "engine.vllm_kwargs.enable_chunked_prefill: seeded sampling dies on a chunked prefill on vLLM's CPU "
            "backend (a CPU generator has no offset to step back); remove it"
        )


def check(engine: EngineConfig, sampling: SamplingConfig, drafter: Drafter, *, cpu: bool) -> None:
    """All of it: ValueError, naming the key and the remedy, for what this engine can't do exactly."""
    check_engine(engine, cpu=cpu)
    drafter.check()
    check_sampling(sampling, drafter, cpu=cpu)
