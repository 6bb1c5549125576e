"""A real vLLM engine on a tiny random Llama in fp32, against transformers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.config.engine import EngineConfig, SamplingConfig
from nemo_specrl.contracts.engine import Completion, GenerationRequest, StaleEngineError
from nemo_specrl.drafting import make_drafter
from nemo_specrl.rollout.vllm import transfer
from nemo_specrl.rollout.vllm.engine import VllmEngine
from nemo_specrl.types import IntArray
from tests.rollout.vllm.law import EOS, MAX_LENGTH, conditional_logprobs

pytestmark = pytest.mark.engine

TEMPERATURE, TOP_P, K = 0.7, 0.9, 5


@pytest.fixture(scope="module")
def engine(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    # A small prefill budget is not reachable by configuration: chunked prefill is off on a CPU.
    with VllmEngine(
        tiny_llama,
        EngineConfig(dtype="fp32", kv_cache_gib=0.125, threads=1),
        SamplingConfig(temperature=TEMPERATURE, top_p=TOP_P),
        make_drafter(DrafterConfig()),
        max_length=MAX_LENGTH,
        seed=0,
        eos_token_ids=[EOS],
        log=tmp_path_factory.mktemp("log") / "engine.log",
    ) as started:
        yield started


@pytest.fixture
def model(tiny_llama: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(tiny_llama).eval()


def ids(*values: int) -> IntArray:
    return np.asarray(values, dtype=np.int32)


def requests(n: int, max_tokens: int = 24) -> list[GenerationRequest]:
    return [GenerationRequest(ids(5, 6, 7 + i % 4), ids(*range(20, 20 + i % 3)), max_tokens, 100 + i) for i in range(n)]


def same(a: Sequence[Completion], b: Sequence[Completion]) -> bool:
    return all(np.array_equal(x.token_ids, y.token_ids) for x, y in zip(a, b, strict=True))


def test_seeds_decide_the_tokens_whatever_the_batch(engine: VllmEngine) -> None:
    batch = requests(20)
    first = engine.generate(batch)
    assert same(first, engine.generate(batch)), "the same seeds, the same tokens"
    assert same(first, engine.generate(batch[::-1])[::-1]), "the order does not matter"
    assert same(first[3:4], engine.generate(batch[3:4])), "nor the company"
    reseeded = [GenerationRequest(r.prompt_ids, r.prefix_ids, r.max_tokens, r.seed + 999) for r in batch]
    assert not same(first, engine.generate(reseeded))


def test_logprobs_are_those_of_the_law_that_was_sampled(engine: VllmEngine, model: Any) -> None:
    for request, got in zip(batch := requests(12), engine.generate(batch, topk=K), strict=True):
        law = conditional_logprobs(model, request, got.token_ids, TEMPERATURE, TOP_P)
        want = law[np.arange(len(got.token_ids)), got.token_ids]
        np.testing.assert_allclose(got.logprobs, want, atol=1e-4)
        assert got.topk is not None
        top = -np.sort(-law, axis=1)[:, :K]
        np.testing.assert_allclose(got.topk.logprobs, top, atol=1e-4)
        assert (got.topk.ids == -1).tolist() == np.isneginf(top).tolist()
        rows, columns = np.nonzero(got.topk.ids >= 0)
        chosen = law[rows, got.topk.ids[rows, columns]]
        np.testing.assert_allclose(chosen, got.topk.logprobs[rows, columns], atol=1e-4)


def test_responses_end_at_eos_or_at_their_limit(engine: VllmEngine) -> None:
    limits = [1 + i % 40 for i in range(120)]
    batch = [GenerationRequest(ids(5), ids(), limit, i) for i, limit in enumerate(limits)]
    finished: list[int] = []
    reasons = set()
    for limit, got in zip(limits, engine.generate(batch, on_progress=finished.append), strict=True):
        reasons.add(got.finish_reason)
        assert EOS not in got.token_ids[:-1]
        assert (got.token_ids[-1] == EOS) == (got.finish_reason == "stop"), "the end token is included"
        assert got.finish_reason == "stop" or len(got.token_ids) == limit
        assert len(got.logprobs) == len(got.token_ids) <= limit
    assert reasons == {"stop", "length"}
    assert finished == sorted(finished)
    assert finished[-1] == len(batch)


def test_a_full_context_fits_and_more_is_refused(engine: VllmEngine) -> None:
    prompt = np.arange(2, 2 + MAX_LENGTH - 2, dtype=np.int32) % 100 + 2
    got = engine.generate([GenerationRequest(prompt, ids(), 2, 0)])[0]
    assert 1 <= len(got.token_ids) <= 2
    assert len(engine.score([(prompt, ids(3, 4))])[0]) == 2
    with pytest.raises(ValueError, match="max_length"):
        engine.generate([GenerationRequest(prompt, ids(), 3, 0)])
    with pytest.raises(ValueError, match="max_length"):
        engine.score([(prompt, ids(3, 4, 5))])


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GenerationRequest(ids(), ids(), 4, 0), "empty"),
        (GenerationRequest(ids(5), ids(), 0, 0), "max_tokens"),
        (GenerationRequest(ids(5, 128), ids(), 4, 0), "token ids"),
        (GenerationRequest(ids(5), ids(-1), 4, 0), "token ids"),
    ],
)
def test_impossible_requests_are_named(engine: VllmEngine, request_: GenerationRequest, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        engine.generate([request_])


def test_scores_are_raw_and_not_read_from_the_prefix_cache(engine: VllmEngine, model: Any) -> None:
    batch = requests(6)
    rows = [(r.prompt_ids, c.token_ids) for r, c in zip(batch, engine.generate(batch), strict=True)]
    rows.append((np.arange(2, 102, dtype=np.int32), np.arange(2, 102, dtype=np.int32)))  # longer than a cache block
    for _ in range(2):
        for (prompt, response), got in zip(rows, engine.score(rows), strict=True):
            law = conditional_logprobs(model, GenerationRequest(prompt, ids(), 1, 0), response, 1.0, 1.0)
            np.testing.assert_allclose(got, law[np.arange(len(response)), response], atol=1e-4)


def test_a_refit_changes_the_law_and_the_version(engine: VllmEngine, model: Any) -> None:
    batch = requests(8)
    before = engine.generate(batch)
    original = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    engine.refit(model.state_dict().items(), version=7)
    assert engine.version == 7
    after = engine.generate(batch)
    assert not same(before, after)
    for request, got in zip(batch, after, strict=True):
        law = conditional_logprobs(model, request, got.token_ids, TEMPERATURE, TOP_P)
        np.testing.assert_allclose(got.logprobs, law[np.arange(len(got.token_ids)), got.token_ids], atol=1e-4)
    engine.refit(original.items(), version=8)
    assert same(before, engine.generate(batch)), "back to where it was: no cached prefix of the other weights is left"


def test_a_refit_that_goes_wrong_is_noticed(engine: VllmEngine, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = model.state_dict()

    monkeypatch.setattr(transfer, "checksum", lambda tensors, right=transfer.checksum: right(tensors) ^ 1)
    with pytest.raises(StaleEngineError, match="checksum"):
        engine.refit(weights.items(), version=9)
    monkeypatch.undo()
    with pytest.raises(StaleEngineError, match="refit again"):
        engine.generate(requests(1))
    with pytest.raises(StaleEngineError, match="refit again"):
        _ = engine.version

    with pytest.raises(StaleEngineError, match="not sent"):
        engine.refit([(n, t) for n, t in weights.items() if "layers.1.mlp.up_proj" not in n], version=9)

    def breaks() -> Iterator[tuple[str, torch.Tensor]]:
        yield from list(weights.items())[:3]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        engine.refit(breaks(), version=9)

    engine.refit(weights.items(), version=9)
    assert engine.version == 9
    assert len(engine.generate(requests(1))) == 1


def test_counters_without_a_drafter_are_zero(engine: VllmEngine) -> None:
    assert engine.counters().drafts == 0
    engine.observe([])


def test_settings_are_refused_before_anything_starts(tiny_llama: Path, tmp_path: Path) -> None:
    def start(**changes: Any) -> VllmEngine:
        given: dict[str, Any] = {"max_length": MAX_LENGTH, "seed": 0, "eos_token_ids": [EOS], "log": tmp_path / "log"}
        folder = changes.pop("folder", tiny_llama)
        drafter = changes.pop("drafter", DrafterConfig())
        return VllmEngine(folder, EngineConfig(), SamplingConfig(), make_drafter(drafter), **(given | changes))

    with pytest.raises(ValueError, match="context of 256"):
        start(max_length=MAX_LENGTH + 1)
    with pytest.raises(ValueError, match="end-of-sequence"):
        start(eos_token_ids=[128])
    with pytest.raises(ValueError, match=r"config\.json"):
        start(folder=tmp_path)
    with pytest.raises(ValueError, match="allow_lossy"):
        start(drafter=DrafterConfig(method="ngram", rejection_sample_method="synthetic"))
    assert not (tmp_path / "log").exists(), "no process was started"


def test_a_killed_engine_is_an_error_and_never_a_hang(engine: VllmEngine) -> None:
    """The last test of this file: the engine is gone afterwards."""
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="SIGKILL"):
        engine.generate(requests(1))
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="gone"):
        engine.generate(requests(1))


def test_a_tied_head_follows_its_embedding(tied_llama: Path, tmp_path: Path) -> None:
    """vLLM packs a tied LM head at load and forgets it on reload: log-probs drift a little further at every update.

    SmolLM2 and the small Qwen models tie theirs."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(tied_llama).eval()
    with VllmEngine(
        tied_llama,
        EngineConfig(dtype="fp32", kv_cache_gib=0.125, threads=1),
        SamplingConfig(),
        make_drafter(DrafterConfig()),
        max_length=MAX_LENGTH,
        seed=0,
        eos_token_ids=[EOS],
        log=tmp_path / "engine.log",
    ) as engine:
        with torch.no_grad():
            model.model.embed_tokens.weight.mul_(1.05)
        engine.refit(((n, t) for n, t in model.state_dict().items() if n != "lm_head.weight"), version=1)
        for request, got in zip(batch := requests(4), engine.generate(batch), strict=True):
            law = conditional_logprobs(model, request, got.token_ids, 1.0, 1.0)
            np.testing.assert_allclose(got.logprobs, law[np.arange(len(got.token_ids)), got.token_ids], atol=1e-4)
