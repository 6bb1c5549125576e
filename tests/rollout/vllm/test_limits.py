from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.config.engine import EngineConfig, SamplingConfig
from nemo_specrl.drafting import make_drafter
from nemo_specrl.rollout.vllm import limits

NGRAM = DrafterConfig(method="ngram")


def check(
    engine: EngineConfig | None = None,
    sampling: SamplingConfig | None = None,
    drafter: DrafterConfig | None = None,
    *,
    cpu: bool = True,
) -> None:
    limits.check(
        engine or EngineConfig(), sampling or SamplingConfig(), make_drafter(drafter or DrafterConfig()), cpu=cpu
    )


def test_defaults_and_every_drafter_of_ours_pass() -> None:
    for method in ("off", "ngram", "history"):
        check(drafter=DrafterConfig(method=method))
    check(drafter=DrafterConfig(method="mtp", rejection_sample_method="block"))


def test_top_k_with_a_drafter_is_refused_on_a_cpu_only() -> None:
    top_k = SamplingConfig(top_k=20)
    check(sampling=top_k)
    check(sampling=top_k, drafter=NGRAM, cpu=False)
    with pytest.raises(ValueError, match="top_k=0"):
        check(sampling=top_k, drafter=NGRAM)


@pytest.mark.parametrize("method", ["synthetic", "fly", "typical_acceptance_sampler", "Standard"])
@pytest.mark.parametrize("smuggled", [False, True])
def test_lossy_verifiers_need_leave_wherever_they_are_said(method: str, smuggled: bool) -> None:
    def drafter(**more: Any) -> DrafterConfig:
        if smuggled:
            return DrafterConfig(method="ngram", speculative_config={"rejection_sample_method": method}, **more)
        return DrafterConfig(method="ngram", rejection_sample_method=method, **more)

    with pytest.raises(ValueError, match="allow_lossy"):
        check(drafter=drafter())
    if not smuggled:
        check(drafter=drafter(allow_lossy=True))


@pytest.mark.parametrize("key", ["synthetic_acceptance_rates", "posterior_threshold", "typical_acceptance_delta"])
def test_keys_that_bend_acceptance_need_leave(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        check(drafter=DrafterConfig(method="ngram", speculative_config={key: 0.5}))
    check(drafter=DrafterConfig(method="ngram", speculative_config={key: 0.5}, allow_lossy=True))


@pytest.mark.parametrize("where", ["speculative_config", "spec_method", "rejection_sample_method"])
def test_speculation_can_not_come_in_through_the_engine(where: str) -> None:
    with pytest.raises(ValueError, match="drafter"):
        check(EngineConfig(vllm_kwargs={where: "x"}))


@pytest.mark.parametrize(("key", "ours"), sorted(limits.OWNED.items()))
def test_arguments_of_ours_can_not_be_overridden(key: str, ours: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  both names are looked for below
        check(EngineConfig(vllm_kwargs={key: 1}))
    assert key in str(error.value)
    assert ours in str(error.value)


def test_every_argument_that_we_pass_is_owned() -> None:
    from pathlib import Path

    from nemo_specrl.rollout.vllm import arguments

    free = {"max_num_batched_tokens", "enable_chunked_prefill"}
    for cpu in (True, False):
        passed = arguments.llm_arguments(Path("m"), EngineConfig(), make_drafter(NGRAM), max_length=8, seed=0, cpu=cpu)
        assert set(passed) <= set(limits.OWNED) | free


@pytest.mark.parametrize(
    ("drafter", "message"),
    [
        (DrafterConfig(speculative_config={"method": "ngram"}), "drafter=off"),
        (DrafterConfig(method="ngram", speculative_config={"method": "mtp"}), "drafter.method"),
        (DrafterConfig(method="ngram", speculative_config={"num_speculative_tokens": 9}), "num_draft_tokens"),
        (DrafterConfig(method="ngram", num_draft_tokens=0), "at least 1"),
        (DrafterConfig(method="history", speculative_config={"model": "x"}), "exclude"),
        (DrafterConfig(method="suffix", speculative_config={"num_speculative_tokens_per_batch_size": []}), "suffix"),
    ],
)
def test_a_drafter_is_said_once(drafter: DrafterConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(drafter=drafter)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(temperature=0.0),
        SamplingConfig(temperature=float("nan")),
        SamplingConfig(top_p=0.0),
        SamplingConfig(top_p=1.1),
        SamplingConfig(top_k=-1),
        SamplingConfig(max_new_tokens=0),
    ],
)
def test_laws_that_can_not_be_sampled(sampling: SamplingConfig) -> None:
    with pytest.raises(ValueError, match="sampling"):
        check(sampling=sampling)


@pytest.mark.parametrize(
    "engine",
    [
        EngineConfig(dtype="fp16"),
        EngineConfig(max_num_seqs=0),
        EngineConfig(tensor_parallel=0),
        EngineConfig(vllm_kwargs={"enable_chunked_prefill": True}),
    ],
)
def test_engines_that_can_not_work(engine: EngineConfig) -> None:
    with pytest.raises(ValueError, match="engine"):
        check(engine)


def test_importing_needs_neither_vllm_nor_torch() -> None:
    code = (
        "import sys, nemo_specrl.rollout.vllm.limits, nemo_specrl.rollout.vllm.engine;"
        "assert not {'torch', 'vllm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("method", ["eagle", "eagle3", "draft_model", "medusa", "dflash", "a_new_one"])
def test_drafters_that_go_stale_need_leave(method: str) -> None:
    with pytest.raises(ValueError, match="frozen=true"):
        check(drafter=DrafterConfig(method=method))
    check(drafter=DrafterConfig(method=method, frozen=True))


def test_an_mtp_head_is_drafter_head_and_nothing_else() -> None:
    for key in ("model", "draft_tensor_parallel_size"):
        with pytest.raises(ValueError, match=rf"speculative_config\.{key}"):
            check(drafter=DrafterConfig(method="mtp", speculative_config={key: 1}))
    with pytest.raises(ValueError, match="top_k=0"):
        check(sampling=SamplingConfig(top_k=5), drafter=DrafterConfig(method="mtp"))


POLICY = {"max_position_embeddings": 512, "vocab_size": 100, "rope_theta": 1e6}


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ({"max_position_embeddings": 128}, "128 positions"),
        ({"vocab_size": 90}, "90 tokens"),
        ({"rope_theta": 1e4}, "rotary"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rotary"),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, None),
        ({}, None),
    ],
)
def test_a_draft_models_limits_are_the_policys(tmp_path: Path, draft: dict[str, Any], message: str | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps(POLICY | draft))
    drafter = make_drafter(DrafterConfig(method="eagle3", frozen=True, speculative_config={"model": str(tmp_path)}))
    if message is None:
        limits.check_draft_model(drafter, POLICY, max_length=256)
    else:
        with pytest.raises(ValueError, match=message):
            limits.check_draft_model(drafter, POLICY, max_length=256)


def test_a_draft_model_on_the_hub_or_none_is_left_to_vllm() -> None:
    for extra in ({}, {"model": "some/hub-name"}):
        drafter = make_drafter(DrafterConfig(method="draft_model", speculative_config=extra))
        limits.check_draft_model(drafter, POLICY, max_length=9)
