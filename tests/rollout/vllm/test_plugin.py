from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_specrl.rollout.vllm import plugin
from nemo_specrl.rollout.vllm.draft_folder import DRAFT_CLASS, TRUNKS


def upstream(x: Any, cu_num_tokens: Any, num_tokens: Any, replace_from: int = 0, replace_to: int = 0) -> None:
    """The signature that the patch was written for."""


REGISTERED: dict[str, str] = {}


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for the modules that the patch looks at: importing the real ones takes half a minute."""
    module = ModuleType("vllm.v1.sample.rejection_sampler")
    module.expand_batch_to_tokens = upstream  # type: ignore[attr-defined]
    platforms = SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: True))
    vllm = ModuleType("vllm")
    vllm.ModelRegistry = SimpleNamespace(register_model=REGISTERED.__setitem__)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setitem(sys.modules, "vllm.v1", ModuleType("vllm.v1"))
    monkeypatch.setitem(sys.modules, "vllm.v1.sample", SimpleNamespace(rejection_sampler=module))
    monkeypatch.setitem(sys.modules, "vllm.v1.sample.rejection_sampler", module)
    monkeypatch.delenv(plugin.UNPATCHED, raising=False)
    return module


def test_the_function_is_replaced_once_and_again(sampler: ModuleType) -> None:
    plugin.register()
    plugin.register()
    assert sampler.expand_batch_to_tokens is plugin.expand_batch_to_tokens


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


@pytest.mark.parametrize("moved", [None, lambda x, cu_num_tokens: None])
def test_a_vllm_that_has_moved_fails_loudly(sampler: ModuleType, moved: Any) -> None:
    sampler.expand_batch_to_tokens = moved  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="expand_batch_to_tokens"):
        plugin.register()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_rows_are_repeated_and_greedy_is_replaced(dtype: torch.dtype) -> None:
    x = torch.tensor([3, 0, 5, 2], dtype=dtype)
    cumulative = torch.tensor([2, 3, 3, 6], dtype=torch.int32)
    got = plugin.expand_batch_to_tokens(x, cumulative, 6, replace_from=0, replace_to=1)
    assert got.dtype == dtype
    assert got.tolist() == [3, 3, 1, 2, 2, 2]
    assert x.tolist() == [3, 0, 5, 2]
