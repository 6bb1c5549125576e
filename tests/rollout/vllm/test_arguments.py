from __future__ import annotations

from pathlib import Path

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.config.engine import EngineConfig, SamplingConfig
from nemo_specrl.drafting import make_drafter
from nemo_specrl.rollout.vllm.arguments import llm_arguments, sampling_arguments

OFF = make_drafter(DrafterConfig())


def test_off_means_no_speculation() -> None:
    assert "speculative_config" not in llm_arguments(Path("m"), EngineConfig(), OFF, max_length=8, seed=0, cpu=True)


def test_arguments_on_a_cpu_and_on_a_gpu() -> None:
    engine = EngineConfig(kv_cache_gib=0.5, gpu_memory_utilization=0.7, dtype="fp32", vllm_kwargs={"quantization": "x"})
    cpu = llm_arguments(Path("m"), engine, OFF, max_length=9000, seed=3, cpu=True)
    assert cpu["kv_cache_memory_bytes"] == 2**29
    assert cpu["max_model_len"] == 9001
    assert cpu["max_num_batched_tokens"] >= 9001, "without chunked prefill a full prompt must fit in one batch"
    assert cpu["dtype"] == "float32"
    assert cpu["quantization"] == "x"
    assert cpu["seed"] == 3
    gpu = llm_arguments(Path("m"), engine, OFF, max_length=9000, seed=3, cpu=False)
    assert gpu["gpu_memory_utilization"] == 0.7
    assert not {"kv_cache_memory_bytes", "enable_chunked_prefill"} & set(gpu)


def test_only_the_given_tokens_end_a_response() -> None:
    law = sampling_arguments(SamplingConfig(temperature=0.6, top_p=0.9, top_k=5), (2, 7))
    assert law["stop_token_ids"] == [2, 7]
    assert law["ignore_eos"] is True
    assert (law["temperature"], law["top_p"], law["top_k"]) == (0.6, 0.9, 5)
