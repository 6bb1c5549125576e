"""A real engine with an MTP head: the law stays the policy's, a refit brings the head along, and a missing one is told.

The statistic and its error level are test_speculation.py's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.config.engine import EngineConfig, SamplingConfig
from nemo_specrl.config.head import HeadConfig
from nemo_specrl.contracts.engine import GenerationRequest, StaleEngineError
from nemo_specrl.drafting import make_drafter
from nemo_specrl.rollout.vllm import draft_folder
from nemo_specrl.rollout.vllm.engine import NOT_THE_POLICYS, VllmEngine
from nemo_specrl.types import IntArray
from tests.rollout.vllm.law import EOS, MAX_LENGTH
from tests.rollout.vllm.mtp_reference import random_head
from tests.rollout.vllm.test_speculation import CRITICAL, statistic_and_error
from tests.rollout.vllm.tiny import model_and_head, tiny_model

pytestmark = pytest.mark.engine
MTP = DrafterConfig(method="mtp", num_draft_tokens=2)


@dataclass
class Running:
    engine: VllmEngine
    model: Any
    """Another policy than the engine was started with, and its head."""
    head: dict[str, torch.Tensor]
    shortlist: IntArray | None

    def refit(self, version: int) -> None:
        extras = {} if self.shortlist is None else {"shortlist": self.shortlist}
        self.engine.refit(self.weights(), version, extras)

    def weights(self, *, head: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.model.state_dict().items()
        if head:
            yield from self.head.items()


def start(model_folder: Path, head: Path | None, drafter: DrafterConfig, *, ranks: int = 1) -> VllmEngine:
    return VllmEngine(
        model_folder,
        EngineConfig(dtype="fp32", kv_cache_gib=0.125, threads=1, max_num_seqs=64, tensor_parallel=ranks),
        SamplingConfig(),
        make_drafter(drafter),
        max_length=MAX_LENGTH,
        seed=0,
        eos_token_ids=[EOS],
        log=model_folder.parent / "engine.log",
        head=head,
    )


@pytest.fixture(scope="module", params=[("llama", 40), ("qwen3", 0)], ids=["llama-shortlist", "qwen3"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    family, vocabulary = request.param  # 40 of 128 tokens are drafted at all; from the first refit on
    folder = tmp_path_factory.mktemp(family)
    _, _, model_folder, head_folder = model_and_head(family, folder)
    model = tiny_model(family, seed=1)
    drafter = replace(MTP, head=HeadConfig(vocabulary=vocabulary))
    with start(model_folder, head_folder, drafter) as engine:
        yield Running(
            engine, model, random_head(model, seed=1), np.arange(vocabulary, dtype=np.int32) if vocabulary else None
        )


def requests(n: int) -> list[GenerationRequest]:
    prompt = np.random.default_rng(0).permutation(np.arange(2, 128)).astype(np.int32)[:40]
    return [GenerationRequest(prompt, prompt[:0], 6, seed) for seed in range(n)]


def test_after_a_refit_the_law_is_the_new_policys_and_drafts_are_accepted(running: Running) -> None:
    running.refit(1)
    batch = requests(400)
    got = running.engine.generate(batch, topk=3)
    counters = running.engine.counters()
    assert counters.drafts > 500
    assert 0 < counters.accepted == sum(counters.accepted_per_position)
    statistic, worst = statistic_and_error(running.model, batch, got)
    print(f"statistic {statistic:.0f}, worst log-probability error {worst:.1e}, {counters}")
    assert statistic < CRITICAL
    assert worst < 1e-3


def test_sampled_drafts_depend_on_the_requests_alone(running: Running) -> None:
    """A resumed run draws what it would have drawn, though its gate has drawn from the same engine in between."""
    running.refit(2)
    first = running.engine.generate(requests(20))
    running.refit(3)
    running.engine.generate([replace(r, prompt_ids=r.prompt_ids[::-1].copy()) for r in requests(7)])
    second = running.engine.generate(requests(20))
    assert all(np.array_equal(a.token_ids, b.token_ids) for a, b in zip(first, second, strict=True))


def test_a_head_that_does_not_arrive_is_a_stale_engine(running: Running) -> None:
    with pytest.raises(StaleEngineError, match=r"not sent, e\.g\. model\.mtp_layers"):
        running.engine.refit(running.weights(head=False), version=3)
    part = [(n, t) for n, t in running.weights() if "mtp_layers.0.mlp.up_proj" not in n]
    with pytest.raises(StaleEngineError, match="up_proj"):
        running.engine.refit(part, version=3)
    running.refit(4)
    assert running.engine.version == 4


@pytest.mark.parametrize("drafter", [DrafterConfig(), MTP], ids=["off", "mtp"])
def test_a_model_with_a_head_of_its_own_follows_the_policy(tmp_path: Path, drafter: DrafterConfig) -> None:
    """Without a drafter the policy's tensors are all that is expected; with one, the head that the folder holds is not
    the one that learns, so nothing counts as the policy's before the first refit."""
    _, _, trunk, head_folder = model_and_head("qwen2", tmp_path)
    native = draft_folder.build(trunk, head_folder, tmp_path / "native").model
    model = tiny_model("qwen2", seed=1)
    weights = dict(model.state_dict())
    if drafter.method == "mtp":
        weights |= random_head(model, seed=1)
    with start(native, head_folder if drafter.method == "mtp" else None, drafter) as engine:
        assert engine.version == (NOT_THE_POLICYS if drafter.method == "mtp" else 0)
        engine.refit(weights.items(), version=1)
        assert engine.version == 1
        batch = requests(40)
        _, worst = statistic_and_error(model, batch, engine.generate(batch, topk=3))
        assert worst < 1e-3


def test_two_engine_ranks_draft_with_shares_of_one_head(tmp_path: Path) -> None:
    _, _, model_folder, head_folder = model_and_head("qwen3", tmp_path)
    model = tiny_model("qwen3", seed=1)
    with start(model_folder, head_folder, MTP, ranks=2) as engine:
        engine.refit([*model.state_dict().items(), *random_head(model, seed=1).items()], version=1)
        batch = requests(100)
        statistic, worst = statistic_and_error(model, batch, engine.generate(batch, topk=3))
        assert statistic < CRITICAL
        assert worst < 1e-3
        assert engine.counters().accepted > 0


def test_a_head_needs_drafter_mtp_and_the_other_way_round(tmp_path: Path) -> None:
    _, _, model_folder, head_folder = model_and_head("llama", tmp_path)
    for drafter, head, message in ((DrafterConfig(), head_folder, "it has none"), (MTP, None, "it needs one")):
        with pytest.raises(ValueError, match=message):
            start(model_folder, head, drafter)
