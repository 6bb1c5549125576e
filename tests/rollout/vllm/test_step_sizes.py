"""Which tokens were drafted, from how many each engine step gave."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.config.engine import EngineConfig, SamplingConfig
from nemo_specrl.contracts.engine import GenerationRequest, SpecCounters
from nemo_specrl.drafting import make_drafter
from nemo_specrl.rollout.vllm.engine import VllmEngine
from nemo_specrl.rollout.vllm.step_sizes import StepSizes, accepted
from tests.rollout.vllm.law import EOS, MAX_LENGTH


@pytest.mark.parametrize(
    ("sizes", "spec", "drafted"),
    [
        ([1, 1, 1], None, "ggg"),
        ([1, 3, 1, 2], SpecCounters(accepted=3), "gddggdg"),
        ([1, 3], SpecCounters(accepted=2), "gddg"),
        ([1, 3], SpecCounters(accepted=3), "gddd"),  # cut inside a draft
        ([1, 3], SpecCounters(accepted=5), "gddd"),  # ... whose rest was accepted, too
        ([1, 3], None, "gddg"),  # not counted: the last one is taken for sampled
        ([1, 1], SpecCounters(accepted=1), "gd"),
    ],
)
def test_a_step_is_its_accepted_drafts_and_one_more(sizes: list[int], spec: SpecCounters | None, drafted: str) -> None:
    found = accepted(sizes, sum(sizes), spec)
    assert found is not None
    assert "".join("d" if d else "g" for d in found) == drafted


def test_steps_that_do_not_add_up_say_nothing() -> None:
    assert accepted([1, 2], 4, None) is None
    assert accepted([], 1, None) is None


@pytest.mark.parametrize("suffix", ["", "-3fa9"])
def test_the_tap_knows_the_callers_ids_and_passes_everything_on(suffix: str) -> None:
    """vLLM 0.32 gives its core another id than the caller's."""
    sent = [SimpleNamespace(outputs=[
        SimpleNamespace(request_id=f"{name}{suffix}", new_token_ids=list(range(n))) for name, n in step
    ]) for step in ([("0", 1), ("1", 1)], [("1", 3), ("0", 0)], [("0", 2)])]  # fmt: skip
    queue = iter(sent)
    core = SimpleNamespace(get_output=lambda: next(queue))
    states = {f"{name}{suffix}": SimpleNamespace(external_req_id=name) for name in "01"} if suffix else {}
    engine: Any = SimpleNamespace(engine_core=core, output_processor=SimpleNamespace(request_states=states))
    steps = StepSizes(engine)
    assert [engine.engine_core.get_output() for _ in sent] == sent
    assert (steps.take("0"), steps.take("1"), steps.take("1")) == ([1, 2], [1, 3], [])


@pytest.mark.engine
def test_a_live_engines_tokens_add_up_to_its_own_counts(tiny_llama: Path, tmp_path: Path) -> None:
    """The prompt holds every token once, so n-gram drafts are made at every step; a few are accepted."""
    prompt = np.random.default_rng(0).permutation(np.arange(2, 128)).astype(np.int32)
    batch = [GenerationRequest(prompt, prompt[:0], 40, seed) for seed in range(48)]
    drafter = DrafterConfig(
        method="ngram", num_draft_tokens=3, max_slots=0,
        speculative_config={"prompt_lookup_min": 1, "prompt_lookup_max": 3},
    )  # fmt: skip
    config = EngineConfig(dtype="fp32", kv_cache_gib=0.125, threads=1, max_num_seqs=16)
    with VllmEngine(
        tiny_llama, config, SamplingConfig(temperature=0.3), make_drafter(drafter),
        max_length=MAX_LENGTH, seed=0, eos_token_ids=[EOS], log=tmp_path / "log",
    ) as engine:  # fmt: skip
        got = engine.generate(batch)
        scored = engine.score([(prompt, got[0].token_ids)])
        again = engine.generate(batch[:1])
    assert len(scored) == 1
    total = 0
    for completion in [*got, *again]:
        assert completion.accepted is not None
        assert completion.spec is not None
        assert len(completion.accepted) == len(completion.token_ids)
        assert not completion.accepted[0], "the prefill's token has no draft"
        lost = completion.spec.accepted - int(completion.accepted.sum())
        assert 0 <= lost <= 2, "only what lay behind the response's end"
        assert lost == 0 or completion.accepted[-1]
        total += int(completion.accepted.sum())
    assert total > 5, "there was something to tell apart"
