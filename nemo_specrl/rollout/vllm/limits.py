"""What the vLLM engine can't do, said before anything is started. Imports neither vllm nor torch.

The configuration's validator and VllmEngine call the same `check`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.config.engine import EngineConfig, SamplingConfig

log = logging.getLogger(__name__)

LOSSLESS = ("standard", "block")
"""vLLM's rejection_sample_method values that leave the sampling law alone. An allowlist: new lossy ones appear
(`synthetic`, 0.33's `fly`) and a denylist would miss them."""

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

_DRAFTER_OWNED: dict[str, str] = {
    "method": "drafter.method",
    "num_speculative_tokens": "drafter.num_draft_tokens",
    "rejection_sample_method": "drafter.rejection_sample_method",
}


FOLLOWING = ("off", "ngram", "ngram_gpu", "suffix", "history", "custom_class", "mtp")
"""Methods that a weight update leaves no staler: without weights of their own, or (mtp) with weights that it brings.
An allowlist, like LOSSLESS: new methods with weights appear."""


CPU_SLOTS = 8
"""drafter.max_slots where it is null and vLLM runs on a CPU."""


def effective_drafter(drafter: DrafterConfig, engine: EngineConfig, *, cpu: bool) -> DrafterConfig:
    """`drafter`, or none where the engine has too many slots for it (drafter.max_slots). (A history drafter decides by
    itself, in every step.)"""
    limit = (CPU_SLOTS if cpu else 0) if drafter.max_slots is None else drafter.max_slots
    if drafter.method == "ngram" and 0 < limit < engine.max_num_seqs:
        log.warning(
            "drafter=%s is off: engine.max_num_seqs=%d slots are more than drafter.max_slots=%d",
            drafter.method,
            engine.max_num_seqs,
            limit,
        )
        return DrafterConfig()
    return drafter


def _acceptance_keys(config: dict[str, Any]) -> list[str]:
    """Keys that bend acceptance: synthetic_acceptance_rates, typical_acceptance_*, posterior_threshold, ..."""
    return sorted(k for k in config if any(word in k for word in ("accept", "posterior", "lenien", "rejection")))


def check_sampling(sampling: SamplingConfig, drafter: DrafterConfig, *, cpu: bool) -> None:
    """ValueError when the engine can't sample this law."""
    if not sampling.temperature > 0:
        raise ValueError(f"sampling.temperature={sampling.temperature}: must be positive; use a small one, e.g. 1e-3")
    if not 0 < sampling.top_p <= 1:
        raise ValueError(f"sampling.top_p={sampling.top_p}: must be in (0, 1]; 1 = no truncation")
    if sampling.top_k < 0:
        raise ValueError(f"sampling.top_k={sampling.top_k}: must be >= 0; 0 = no truncation")
    if sampling.max_new_tokens < 1:
        raise ValueError(f"sampling.max_new_tokens={sampling.max_new_tokens}: must be at least 1")
    if cpu and sampling.top_k and drafter.method != "off":
        raise ValueError(
            f"sampling.top_k={sampling.top_k} with drafter={drafter.method}: vLLM's CPU backend crashes on it. "
            "Set sampling.top_k=0 (top_p works) or drafter=off"
        )


def check_drafter(drafter: DrafterConfig) -> None:
    """ValueError for a drafter that is lossy without leave, or said twice."""
    extra = drafter.speculative_config
    if drafter.method == "off":
        if extra:
            raise ValueError(
                f"drafter=off with drafter.speculative_config={extra}: choose a drafter or drop these keys"
            )
        return
    if drafter.method not in FOLLOWING and not drafter.frozen:
        raise ValueError(
            f"drafter={drafter.method} has weights of its own, which no weight update reaches: the policy moves away "
            "from it and acceptance falls, silently. Use drafter=mtp (a head that is trained along), history or ngram, "
            "or set drafter.frozen=true to keep it as it is on purpose"
        )
    if drafter.num_draft_tokens < 1:
        raise ValueError(f"drafter.num_draft_tokens={drafter.num_draft_tokens}: must be at least 1; drafter=off = none")
    methods = {drafter.rejection_sample_method, extra.get("rejection_sample_method", drafter.rejection_sample_method)}
    if not drafter.allow_lossy:
        for method in sorted(methods - set(LOSSLESS)):
            raise ValueError(
                f"rejection_sample_method={method} is not known to be lossless: choose one of {', '.join(LOSSLESS)}, "
                "or set drafter.allow_lossy=true, which is stamped on the run"
            )
        if lossy := [k for k in _acceptance_keys(extra) if k != "rejection_sample_method"]:
            raise ValueError(
                f"drafter.speculative_config.{lossy[0]} bends the acceptance of drafts: remove it, "
                "or set drafter.allow_lossy=true, which is stamped on the run"
            )
    for key, ours in _DRAFTER_OWNED.items():
        if key in extra:
            raise ValueError(
                f"drafter.speculative_config.{key}={extra[key]}: set {ours} instead, so that it is said once"
            )
    if drafter.method == "history" and (
        clash := sorted({"model", "num_speculative_tokens_per_batch_size"} & set(extra))
    ):
        raise ValueError(f"drafter=history with drafter.speculative_config.{clash[0]}: drafters exclude one another")
    if drafter.method == "mtp" and (clash := sorted({"model", "draft_tensor_parallel_size"} & set(extra))):
        raise ValueError(
            f"drafter=mtp with drafter.speculative_config.{clash[0]}: the head is drafter.head.source, and runs with "
            "the engine's own tensor parallelism; remove the key"
        )
    if drafter.method == "suffix" and "num_speculative_tokens_per_batch_size" in extra:
        raise ValueError("drafter=suffix: vLLM has no num_speculative_tokens_per_batch_size for it; remove the key")


def check_draft_model(drafter: DrafterConfig, policy: Mapping[str, Any], *, max_length: int) -> None:
    """ValueError when a draft model in a folder of its own (drafter.speculative_config.model) can't follow the policy.

    `policy`: the policy's config.json. A draft model with a shorter context drafts nonsense beyond it, and one with
    another vocabulary other words; vLLM accepts the first, and outputs stay right, so nobody would notice. (The head
    of drafter=mtp takes both, and the rotary embedding, from the policy.)"""
    path = Path(str(drafter.speculative_config.get("model", ""))) / "config.json"
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
    if drafter.method in ("eagle", "eagle3") and frequencies[0] != frequencies[1]:
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
    if engine.dtype not in ("bf16", "fp32"):
        raise ValueError(f"engine.dtype={engine.dtype}: choose bf16 or fp32")
    for name in ("max_num_seqs", "tensor_parallel"):
        if getattr(engine, name) < 1:
            raise ValueError(f"engine.{name}={getattr(engine, name)}: must be at least 1")
    for key, ours in OWNED.items():
        if key in engine.vllm_kwargs:
            raise ValueError(f"engine.vllm_kwargs.{key} can't be set there: it is decided by {ours}")
    if cpu and engine.vllm_kwargs.get("enable_chunked_prefill"):
        raise ValueError(
            "engine.vllm_kwargs.enable_chunked_prefill: seeded sampling dies on a chunked prefill on vLLM's CPU "
            "backend (a CPU generator has no offset to step back); remove it"
        )


def check(engine: EngineConfig, sampling: SamplingConfig, drafter: DrafterConfig, *, cpu: bool) -> None:
    """All of it: ValueError, naming the key and the remedy, for what this engine can't do exactly."""
    check_engine(engine, cpu=cpu)
    check_drafter(drafter)
    check_sampling(sampling, drafter, cpu=cpu)
