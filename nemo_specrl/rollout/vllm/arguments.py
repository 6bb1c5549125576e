"""Our configuration -> vLLM's arguments. Pure; imports neither vllm nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_specrl.config.engine import EngineConfig, SamplingConfig
from nemo_specrl.contracts.drafter import Drafter

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
MAX_TOPK = 1024
"""Most candidates per position that `generate(topk=...)` may ask for."""
_PREFILL_TOKENS = 4096


def llm_arguments(
    model_folder: Path,
    engine: EngineConfig,
    drafter: Drafter,
    *,
    max_length: int,
    seed: int,
    cpu: bool,
    served: Mapping[str, Any] | None = None,
    count_requests: bool = False,
) -> dict[str, Any]:
    """Keyword arguments of vllm.LLM. `max_length`: longest prompt + response, tokens. `served`: see above.
    `count_requests`: vLLM can count speculation for each request."""
    arguments: dict[str, Any] = {
        "model": str(model_folder),
        "skip_tokenizer_init": True,  # token ids in, token ids out
        "dtype": DTYPES[engine.dtype],
        "seed": seed,
        # Scoring a full row makes vLLM sample one token more, which is thrown away.
        "max_model_len": max_length + 1,
        "max_num_seqs": engine.max_num_seqs,
        "tensor_parallel_size": engine.tensor_parallel,
        "enable_prefix_caching": engine.enable_prefix_caching,
        "enforce_eager": engine.enforce_eager,
        "logprobs_mode": "processed_logprobs",  # of the law that was sampled: temperature and truncation applied
        "max_logprobs": MAX_TOPK,
        "generation_config": "vllm",  # the checkpoint's own sampling defaults and stop tokens must not creep in
        "disable_log_stats": False,  # get_metrics() needs them
        "worker_extension_cls": "nemo_specrl.rollout.vllm.worker.RefitExtension",
    }
    if config := drafter.speculative_config(served):
        arguments["speculative_config"] = config
        if count_requests:
            arguments["per_request_spec_decode_metrics"] = "summary"
    if cpu:
        arguments |= {
            "kv_cache_memory_bytes": int(engine.kv_cache_gib * 2**30),
            # A seeded request whose prefill is cut in two dies here: vLLM steps the generator's offset back, and a
            # CPU generator has none (RuntimeError, torch 2.13).
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(max_length + 1, _PREFILL_TOKENS),
        }
    else:
        arguments["gpu_memory_utilization"] = engine.gpu_memory_utilization
    return arguments | engine.vllm_kwargs


def sampling_arguments(sampling: SamplingConfig, eos_token_ids: tuple[int, ...]) -> dict[str, Any]:
    """The part of vLLM's SamplingParams that every rollout shares."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stop_token_ids": list(eos_token_ids),
        "ignore_eos": True,  # only the stop tokens above end a response
        "detokenize": False,
        "flat_logprobs": True,
    }
