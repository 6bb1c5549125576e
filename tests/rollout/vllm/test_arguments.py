from __future__ import annotations

from pathlib import Path

import pytest

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.config.engine import EngineConfig, SamplingConfig
from nemo_specrl.rollout.vllm.arguments import HISTORY_PROPOSER, llm_arguments, sampling_arguments, speculative_config


def test_off_means_no_speculation() -> None:
    assert speculative_config(DrafterConfig()) is None
    assert "speculative_config" not in llm_arguments(
        Path("m"), EngineConfig(), DrafterConfig(), max_length=8, seed=0, cpu=True
    )


@pytest.mark.parametrize(
    ("drafter", "expected"),
    [
        (
            DrafterConfig(method="ngram", num_draft_tokens=3, speculative_config={"prompt_lookup_min": 4}),
            {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 4, "prompt_lookup_max": 5},
        ),
        (DrafterConfig(method="history"), {"method": "custom_class", "model": HISTORY_PROPOSER}),
        (
            DrafterConfig(method="eagle3", speculative_config={"model": "head", "draft_tensor_parallel_size": 1}),
            {"method": "eagle3", "model": "head", "num_speculative_tokens": 4, "draft_tensor_parallel_size": 1},
        ),
        (DrafterConfig(method="mtp"), {"method": "mtp", "draft_sample_method": "probabilistic"}),
        (
            DrafterConfig(method="mtp", speculative_config={"draft_sample_method": "greedy"}),
            {"draft_sample_method": "greedy"},
        ),
    ],
)
def test_drafters_become_speculative_configs(drafter: DrafterConfig, expected: dict[str, object]) -> None:
    config = speculative_config(drafter)
    assert config is not None
    assert expected.items() <= config.items()


def test_a_served_head_decides_how_it_is_driven_and_block_knows_argmax_drafts_only() -> None:
    served = {"method": "eagle", "model": "folder"}
    config = speculative_config(DrafterConfig(method="mtp", rejection_sample_method="block"), served)
    assert config == served | {"num_speculative_tokens": 4, "rejection_sample_method": "block"}


def test_arguments_on_a_cpu_and_on_a_gpu() -> None:
    engine = EngineConfig(kv_cache_gib=0.5, gpu_memory_utilization=0.7, dtype="fp32", vllm_kwargs={"quantization": "x"})
    cpu = llm_arguments(Path("m"), engine, DrafterConfig(), max_length=9000, seed=3, cpu=True)
    assert cpu["kv_cache_memory_bytes"] == 2**29
    assert cpu["max_model_len"] == 9001
    assert cpu["max_num_batched_tokens"] >= 9001, "without chunked prefill a full prompt must fit in one batch"
    assert cpu["dtype"] == "float32"
    assert cpu["quantization"] == "x"
    assert cpu["seed"] == 3
    gpu = llm_arguments(Path("m"), engine, DrafterConfig(), max_length=9000, seed=3, cpu=False)
    assert gpu["gpu_memory_utilization"] == 0.7
    assert not {"kv_cache_memory_bytes", "enable_chunked_prefill"} & set(gpu)


def test_only_the_given_tokens_end_a_response() -> None:
    law = sampling_arguments(SamplingConfig(temperature=0.6, top_p=0.9, top_k=5), (2, 7))
    assert law["stop_token_ids"] == [2, 7]
    assert law["ignore_eos"] is True
    assert (law["temperature"], law["top_p"], law["top_k"]) == (0.6, 0.9, 5)
