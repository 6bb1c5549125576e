"""Megatron-Bridge in the place of our own mapping: same weights, same training; whatever it leaves out is an error.

`FakeAutoBridge` has the interface and the habits of Megatron-Bridge 0.7.0 (067f987) on one rank, as far as they concern
us: parameters are found by name under both layer specs, one without a counterpart is skipped, the embedding's copy is
exported when the folder stores one, rotary buffers too, vocabulary padding is cut off."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_specrl.config.policy import PolicyConfig
from nemo_specrl.policy.megatron.policy import MegatronPolicy

from .conftest import FAMILIES, make_checkpoint
from .ranks import make_rows, surrogate, train_rows
from .test_policy import FP32, make

BRIDGE = replace(FP32, hf_mapping="bridge")
NAMES = {
    "embedding.word_embeddings": ("model.embed_tokens",),
    "output_layer": ("lm_head",),
    "decoder.final_layernorm": ("model.norm",),
    "input_layernorm": ("input_layernorm",),
    "pre_mlp_layernorm": ("post_attention_layernorm",),
    "self_attention.linear_proj": ("self_attn.o_proj",),
    "self_attention.q_layernorm": ("self_attn.q_norm",),
    "self_attention.k_layernorm": ("self_attn.k_norm",),
    "self_attention.linear_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.linear_fc1": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.linear_fc2": ("mlp.down_proj",),
}


class HFWeightTuple(NamedTuple):
    param_name: str
    weight: torch.Tensor


class FakeAutoBridge:
    """See the module's docstring."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self.state = state

    @classmethod
    def from_hf_pretrained(cls, path: str | Path, **kwargs: Any) -> FakeAutoBridge:
        return cls(load_file(Path(path) / "model.safetensors"))

    def load_hf_weights(
        self, model: list[Any], hf_path: str | None = None, allowed_mismatched_params: list[str] | None = None
    ) -> None:
        for name, parameter in model[0].named_parameters():
            sources = self.sources(name)
            if sources and all(s in self.state for s in sources):
                tensors = [self.state[s] for s in sources]
                groups = model[0].config.num_query_groups
                if len(tensors) == 3:  # q, k and v of one key-value group lie together
                    tensors = [t.view(groups, -1, *t.shape[1:]) for t in tensors]
                    joined = torch.cat(tensors, dim=1).flatten(0, 1)
                else:
                    joined = torch.cat(tensors)
                parameter.data.copy_(joined)

    def export_hf_weights(
        self,
        model: list[Any],
        cpu: bool = False,
        show_progress: bool = True,
        conversion_tasks: Any = None,
        merge_adapter_weights: bool = True,
        weight_dtype: torch.dtype | None = None,
    ) -> Iterator[HFWeightTuple]:
        config = model[0].config
        for name, parameter in model[0].named_parameters():
            sources = self.sources(name)
            rows = [self.state[s].shape[0] for s in sources]
            if len(sources) == 3:
                grouped = parameter.view(config.num_query_groups, -1, *parameter.shape[1:])
                sizes = [n // config.num_query_groups for n in rows]
                parts = [p.flatten(0, 1) for p in grouped.split(sizes, dim=1)]
            else:
                parts = list(parameter.split(rows)) if len(sources) == 2 else [parameter]
            yield from map(HFWeightTuple, sources, parts)
            tied = getattr(config, "share_embeddings_and_output_weights", False)
            if tied and name == "embedding.word_embeddings.weight" and "lm_head.weight" in self.state:
                yield HFWeightTuple("lm_head.weight", parameter.clone())
            buffer = f"{sources[0].removesuffix('input_layernorm.weight')}self_attn.rotary_emb.inv_freq"
            if buffer in self.state:
                yield HFWeightTuple(buffer, self.state[buffer])

    @staticmethod
    def sources(name: str) -> list[str]:
        """The Hugging Face names of a Megatron parameter."""
        module, _, kind = name.rpartition(".")
        layer = ""
        if module.startswith("decoder.layers."):
            _, _, number, module = module.split(".", 3)
            layer = f"model.layers.{number}."
        return [f"{layer}{hf}.{kind}" for hf in NAMES.get(module, ())]


def install(monkeypatch: pytest.MonkeyPatch, bridge: type) -> None:
    module = ModuleType("megatron.bridge")
    module.AutoBridge, module.__version__ = bridge, "0.7.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "megatron.bridge", module)


def assert_same_policy(folder: Path, config: PolicyConfig = BRIDGE) -> None:
    """Own and bridge: bit-equal parameters, marks, updates and exports."""
    own, bridge = make(folder, replace(config, hf_mapping="own")), make(folder, config)
    for (name, a), (_, b) in zip(own.model.named_parameters(), bridge.model.named_parameters(), strict=True):
        assert torch.equal(a, b), name
        for mark in ("tensor_model_parallel", "partition_dim", "partition_stride"):
            assert getattr(a, mark) == getattr(b, mark), (name, mark)
    rows = make_rows()
    first, second = (
        p.update(train_rows(rows, p.score(rows)), surrogate, loss_level="token") for p in (own, bridge)
    )  # fmt: skip
    assert first == second
    expected, found = dict(own.weights()), dict(bridge.weights())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert not any(tensor.requires_grad for tensor in found.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_policy_is_the_same(checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    install(monkeypatch, FakeAutoBridge)
    assert_same_policy(checkpoints[family])


def test_bf16_rounds_alike(checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeAutoBridge)
    assert_same_policy(checkpoints["llama"], replace(BRIDGE, dtype="bf16"))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_real_bridge(tmp_path: Path, family: str) -> None:
    """Where it is installed, which takes Transformer Engine and so a GPU."""
    pytest.importorskip("megatron.bridge", reason="Megatron-Bridge is not installed", exc_type=ImportError)
    assert_same_policy(make_checkpoint(tmp_path, family))


def test_what_is_no_weight_is_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeAutoBridge)
    folder = make_checkpoint(tmp_path, "llama")
    state = load_file(folder / "model.safetensors")
    names = set(state)
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    state["model.layers.1.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    policy = make(folder, BRIDGE)
    given = {name for name, _ in policy._mapping._bridge.export_hf_weights([policy.model])}
    assert given == set(state), "the fake does not give what the real one does"
    assert {name for name, _ in policy.weights()} == names


def test_without_bridge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_checkpoint(tmp_path, "llama")
    (folder / "model.safetensors").write_bytes(b"")  # it would be refused, too, but later
    monkeypatch.setitem(sys.modules, "megatron.bridge", None)
    with pytest.raises(ValueError, match=r"cannot be imported.*policy\.hf_mapping=own"):
        make(folder, BRIDGE)


def test_a_folder_that_lacks_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeAutoBridge)
    folder = make_checkpoint(tmp_path, "qwen2")
    state = load_file(folder / "model.safetensors")
    del state["model.layers.1.self_attn.k_proj.bias"]
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"k_proj\.bias is missing"):
        make(folder, BRIDGE)


class Renamed(FakeAutoBridge):
    export_hf_weights = None  # type: ignore[assignment]


class OtherParameters(FakeAutoBridge):
    def load_hf_weights(self, models: list[Any]) -> None:  # type: ignore[override]
        raise AssertionError("called in spite of it")


@pytest.mark.parametrize(
    ("bridge", "message"),
    [(Renamed, r"0\.7\.0 has no AutoBridge\.export_hf_weights"), (OtherParameters, r"load_hf_weights with .*model")],
)
def test_an_interface_that_moved(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, bridge: type, message: str
) -> None:
    install(monkeypatch, bridge)
    with pytest.raises(ValueError, match=message):
        make(checkpoints["llama"], BRIDGE)


def test_a_parameter_that_bridge_skips(checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeAutoBridge)
    monkeypatch.delitem(NAMES, "self_attention.q_layernorm")
    with pytest.raises(
        RuntimeError, match=r"left decoder\.layers\.0\.self_attention\.q_layernorm\.weight, .* unfilled"
    ):
        make(checkpoints["qwen3"], BRIDGE)


class Keeps(FakeAutoBridge):
    """Does not export what the test names, or exports it longer."""

    def export_hf_weights(self, model: list[Any], cpu: bool = False, show_progress: bool = True) -> Any:  # type: ignore[override]
        for name, tensor in super().export_hf_weights(model):
            if name == "model.embed_tokens.weight":
                yield HFWeightTuple(name, torch.cat([tensor, tensor[:1]]))
            elif name != "model.norm.weight":
                yield HFWeightTuple(name, tensor)


def exported(policy: MegatronPolicy) -> dict[str, torch.Tensor]:
    return dict(policy.weights())


def test_an_export_that_is_not_whole(checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Keeps)
    policy = make(checkpoints["llama"], BRIDGE)
    with pytest.raises(RuntimeError, match=r"embed_tokens\.weight as \(132, 64\) instead of \(131, 64\)"):
        exported(policy)

    class KeepsOnlyTheNorm(FakeAutoBridge):
        def export_hf_weights(self, model: list[Any], cpu: bool = False, show_progress: bool = True) -> Any:  # type: ignore[override]
            return (w for w in super().export_hf_weights(model) if w.param_name != "model.norm.weight")

    install(monkeypatch, KeepsOnlyTheNorm)
    policy = make(checkpoints["llama"], BRIDGE)
    with pytest.raises(RuntimeError, match=r"did not export model\.norm\.weight"):
        exported(policy)
