"""The rollout engine and the law it samples from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nemo_specrl.config.bounds import bounded


@dataclass(frozen=True)
class SamplingConfig:
    """The sampling law: the policy's softmax at a temperature, truncated. Trainer and engine both apply it."""

    temperature: float = bounded(1.0, above=0)
    """Logits are divided by this; must be positive (rollouts of RL are sampled)."""
    top_p: float = bounded(1.0, above=0, at_most=1)
    """Nucleus truncation."""
    top_k: int = bounded(0, at_least=0)
    """Keep the k most likely tokens; 0 = all. Not with a drafter on vLLM's CPU backend (it crashes there)."""
    max_new_tokens: int = bounded(256, at_least=1)
    """The response-length limit R, end-of-sequence token included."""


@dataclass(frozen=True)
class EngineConfig:
    """vLLM, in a process of its own that dies with the trainer."""

    max_num_seqs: int = bounded(8, at_least=1)
    """Engine slots: requests decoded at once."""
    dtype: str = bounded("bf16", choices=("bf16", "fp32"))
    """`bf16` or `fp32`; in files and on the command line also `auto`: bf16 where the hardware multiplies it."""
    tensor_parallel: int = bounded(1, at_least=1)
    """The engine's own tensor parallelism."""
    kv_cache_gib: float = bounded(1.0, above=0)
    """KV-cache memory on a CPU, GiB."""
    gpu_memory_utilization: float = bounded(0.5, above=0, at_most=1)
    """Share of the GPU's memory that the engine may take."""
    enable_prefix_caching: bool = True
    """Share the KV cache of common prefixes; it is reset at every refit."""
    enforce_eager: bool = True
    """No CUDA graphs and no torch.compile: starts fast; turn off for long GPU runs."""
    threads: int = bounded(0, at_least=0)
    """OpenMP threads of a CPU engine; 0 = all cores."""
    start_timeout_s: float = bounded(600.0, above=0)
    """How long the engine may take to start before that is an error, seconds."""
    vllm_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further arguments of vllm.LLM, passed through."""
