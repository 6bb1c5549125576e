"""Trunk and head in one stream of chunks, wherever it is cut; and the proof that finds a head that did not arrive."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nemo_specrl.rollout.vllm import transfer
from nemo_specrl.rollout.vllm.proof import head_differences
from nemo_specrl.rollout.vllm.worker import without_head
from tests.rollout.vllm.mtp_reference import PREFIX

TRUNK = {f"model.layers.{i}.{part}.weight": torch.randn(3, 2 + i) for i in range(3) for part in ("a", "b")}
HEAD = {f"{PREFIX}{part}.weight": torch.randn(2, 5) for part in ("input_proj", "q", "k", "norm")}


@settings(max_examples=60)
@given(order=st.permutations(sorted(TRUNK | HEAD)), chunk_bytes=st.integers(1, 400))
def test_any_order_and_any_chunks_load_the_same_trunk_and_head(order: list[str], chunk_bytes: int) -> None:
    tensors = {name: (TRUNK | HEAD)[name] for name in order}
    head: dict[str, torch.Tensor] = {}
    trunk: dict[str, torch.Tensor] = {}
    problems: list[str] = []
    with transfer.private_folder() as folder:
        take = threading.Thread(
            target=lambda: trunk.update(without_head(transfer.receive(folder, 0, problems), head)), daemon=True
        )
        take.start()
        transfer.send(tensors.items(), folder, ranks=1, answered=lambda: False, chunk_bytes=chunk_bytes)
        take.join(20)
    assert problems == []
    for got, want in ((trunk, TRUNK), (head, HEAD)):
        assert got.keys() == want.keys()
        assert all(torch.equal(got[name], want[name]) for name in want)


class Packed(nn.Module):
    """A linear layer as vLLM keeps it on a CPU: what can be read of the weight is empty, it can only be applied."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.packed = weight.clone()
        self.weight = nn.Parameter(torch.empty(0))
        self.output_size_per_partition, self.input_size_per_partition = weight.shape
        self.quant_method = SimpleNamespace(apply=lambda layer, x: x @ layer.packed.T)


def head_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {f"self_attn.{p}_proj.weight": (8, 16) for p in "qkv"}
    shapes |= {f"self_attn.{p}_proj.bias": (8,) for p in "qkv"}
    shapes |= {"self_attn.o_proj.weight": (16, 8), "input_proj.weight": (16, 32), "final_layernorm.weight": (16,)}
    shapes |= {"mlp.gate_proj.weight": (24, 16), "mlp.up_proj.weight": (24, 16), "mlp.down_proj.weight": (16, 24)}
    return {PREFIX + name: torch.randn(shape) for name, shape in shapes.items()}


def live_drafter(sent: dict[str, torch.Tensor], block: str) -> Any:
    """Modules named as in vLLM's MiMo class (mtp_layers.0.mtp_block.*) or ours (mtp_layers.0.block.*)."""
    w = {name.removeprefix(PREFIX).removesuffix(".weight"): tensor for name, tensor in sent.items()}
    layer = nn.Module()
    layer.input_proj = nn.Linear(32, 16, bias=False)
    layer.final_layernorm = nn.Module()
    layer.input_proj.weight = nn.Parameter(w["input_proj"].clone())
    layer.final_layernorm.weight = nn.Parameter(w["final_layernorm"].clone())
    inner = nn.Module()
    inner.self_attn, inner.mlp = nn.Module(), nn.Module()
    inner.self_attn.qkv_proj = Packed(torch.cat([w[f"self_attn.{p}_proj"] for p in "qkv"]))
    inner.self_attn.qkv_proj.bias = nn.Parameter(torch.cat([w[f"self_attn.{p}_proj.bias"] for p in "qkv"]))
    inner.self_attn.o_proj = Packed(w["self_attn.o_proj"])
    inner.mlp.gate_up_proj = Packed(torch.cat([w["mlp.gate_proj"], w["mlp.up_proj"]]))
    inner.mlp.down_proj = Packed(w["mlp.down_proj"])
    layer.add_module(block, inner)
    model = nn.Module()
    model.model = nn.Module()
    model.model.mtp_layers = nn.ModuleDict({"0": layer})
    return model


@pytest.mark.parametrize("block", ["mtp_block", "block"])
def test_every_tensor_of_a_sound_head_is_compared(block: str) -> None:
    sent = head_tensors()
    assert head_differences(live_drafter(sent, block), sent) == (len(sent), [])


@pytest.mark.parametrize("name", sorted(head_tensors()))
def test_one_stale_tensor_is_named(name: str) -> None:
    sent = head_tensors()
    live = live_drafter(sent | {name: sent[name] * 1.001}, "block")
    _, problems = head_differences(live, sent)
    assert len(problems) == 1
    part, kind = name.removeprefix(PREFIX).split(".")[-2:]
    part = part.removesuffix("_proj")
    fused = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up"}.get(part, part)
    assert fused in problems[0]
    assert kind in problems[0]


def share(sent: dict[str, torch.Tensor], rank: int) -> Any:
    """The drafter of one of two ranks, which share one key-value head, as vLLM cuts it."""
    live = live_drafter(sent, "block")
    layers = {name.split(".")[-1]: module for name, module in live.named_modules() if isinstance(module, Packed)}
    w = {name.removeprefix(PREFIX).removesuffix(".weight"): tensor for name, tensor in sent.items()}
    q, k, v = (w[f"self_attn.{p}_proj"] for p in "qkv")
    layers["qkv_proj"].packed = torch.cat([q.chunk(2)[rank], k, v])
    layers["qkv_proj"].bias.data = torch.cat(
        [w["self_attn.q_proj.bias"].chunk(2)[rank]] + [w[f"self_attn.{p}_proj.bias"] for p in "kv"]
    )
    layers["qkv_proj"].num_kv_head_replicas = 2
    layers["gate_up_proj"].packed = torch.cat([w[f"mlp.{p}_proj"].chunk(2)[rank] for p in ("gate", "up")])
    for name in ("o_proj", "down_proj"):
        layers[name].packed = layers[name].packed.chunk(2, dim=1)[rank]
    for layer in layers.values():
        layer.output_size_per_partition, layer.input_size_per_partition = layer.packed.shape
        layer.tp_rank, layer.tp_size = rank, 2
    return live


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_compares_its_share_of_every_tensor(rank: int) -> None:
    sent = head_tensors()
    live = share(sent, rank)
    assert head_differences(live, sent) == (len(sent), [])
    for name in sent:
        assert head_differences(live, sent | {name: sent[name] * 1.001})[1], name
    assert head_differences(share(sent, 1 - rank), sent) == (len(sent), [])


def test_a_share_of_unknown_size_is_not_held_against_it() -> None:
    sent = head_tensors()
    live = share(sent, 0)
    for module in live.modules():
        if isinstance(module, Packed):
            module.tp_size = 4
    assert head_differences(live, sent) == (2, [])
