"""Hugging Face <-> Megatron weights: one table, read in both directions, bit-exact.

A `Slot` is one Megatron parameter and the Hugging Face tensors it is made of. Megatron fuses q, k and v (interleaved by
key-value group) and gate and up; tensor parallelism cuts the fused tensor into `tp` equal parts along one dimension.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from nemo_specrl.models.architecture import Architecture
from nemo_specrl.policy.megatron.parallel import ParallelLayout

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Slot:
    """One Megatron parameter."""

    name: str
    """Megatron's name, with the layer's number in the whole model."""
    sources: tuple[tuple[str, Shape], ...]
    """Hugging Face names and shapes."""
    stage: int
    """The pipeline stage that owns it."""
    split: int | None = None
    """The dimension that tensor parallelism cuts; None = replicated."""
    layout: Literal["plain", "vocab", "qkv", "gate_up"] = "plain"


def slots(architecture: Architecture, pp: int) -> list[Slot]:
    """Every parameter of the model, in the order that all ranks walk them."""
    a = architecture
    vocab, norm = (a.vocab_size, a.hidden_size), (a.hidden_size,)
    table = [Slot("embedding.word_embeddings.weight", (("model.embed_tokens.weight", vocab),), 0, 0, "vocab")]
    for i in range(a.num_layers):
        table += layer_slots(a, f"decoder.layers.{i}.", f"model.layers.{i}.", i * pp // a.num_layers)
    table.append(Slot("decoder.final_layernorm.weight", (("model.norm.weight", norm),), pp - 1))
    if not a.tied:
        table.append(Slot("output_layer.weight", (("lm_head.weight", vocab),), pp - 1, 0, "vocab"))
    return table


def layer_slots(architecture: Architecture, here: str, there: str, stage: int) -> list[Slot]:
    """The parameters of one transformer layer: `here` and `there` are Megatron's and Hugging Face's prefixes."""
    a, norm = architecture, (architecture.hidden_size,)
    q, kv = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    table: list[Slot] = []

    def slot(name: str, *sources: tuple[str, Shape], split: int | None = None, layout: Any = "plain") -> None:
        table.append(Slot(here + name, tuple((there + n, s) for n, s in sources), stage, split, layout))

    slot("input_layernorm.weight", ("input_layernorm.weight", norm))
    projections = [(f"self_attn.{x}_proj", n) for x, n in (("q", q), ("k", kv), ("v", kv))]
    slot(
        "self_attention.linear_qkv.weight",
        *((f"{p}.weight", (n, a.hidden_size)) for p, n in projections),
        split=0,
        layout="qkv",
    )
    if a.qkv_bias:
        slot("self_attention.linear_qkv.bias", *((f"{p}.bias", (n,)) for p, n in projections), split=0, layout="qkv")
    if a.qk_norm:
        slot("self_attention.q_layernorm.weight", ("self_attn.q_norm.weight", (a.head_dim,)))
        slot("self_attention.k_layernorm.weight", ("self_attn.k_norm.weight", (a.head_dim,)))
    slot("self_attention.linear_proj.weight", ("self_attn.o_proj.weight", (a.hidden_size, q)), split=1)
    slot("pre_mlp_layernorm.weight", ("post_attention_layernorm.weight", norm))
    slot(
        "mlp.linear_fc1.weight",
        ("mlp.gate_proj.weight", (a.ffn_size, a.hidden_size)),
        ("mlp.up_proj.weight", (a.ffn_size, a.hidden_size)),
        split=0,
        layout="gate_up",
    )
    slot("mlp.linear_fc2.weight", ("mlp.down_proj.weight", (a.hidden_size, a.ffn_size)), split=1)
    return table


def join(slot: Slot, tensors: list[torch.Tensor], architecture: Architecture, tp: int) -> torch.Tensor:
    """Hugging Face tensors -> the whole Megatron tensor, ordered so that rank r's part is its r-th chunk."""
    if slot.layout == "vocab":
        missing = -tensors[0].shape[0] % tp
        return torch.nn.functional.pad(tensors[0], (0, 0, 0, missing)) if missing else tensors[0]
    if slot.layout == "qkv":
        groups = [t.view(architecture.num_kv_heads, -1, *t.shape[1:]) for t in tensors]
        return torch.cat(groups, dim=1).flatten(0, 1)
    if slot.layout == "gate_up":
        return torch.cat([t.view(tp, -1, *t.shape[1:]) for t in tensors], dim=1).flatten(0, 1)
    return tensors[0]


def apart(slot: Slot, whole: torch.Tensor, architecture: Architecture, tp: int) -> list[torch.Tensor]:
    """The inverse of `join`."""
    if slot.layout == "vocab":
        return [whole[: architecture.vocab_size]]
    if slot.layout in ("qkv", "gate_up"):
        chunks = architecture.num_kv_heads if slot.layout == "qkv" else tp
        grouped = whole.view(chunks, -1, *whole.shape[1:])
        sizes = [shape[0] // chunks for _, shape in slot.sources]
        return [part.flatten(0, 1) for part in torch.split(grouped, sizes, dim=1)]
    return [whole]


def parameters_by_slot(model: Any, architecture: Architecture, layout: ParallelLayout) -> dict[str, torch.Tensor]:
    """This rank's parameters under their slots' names."""
    offset = layout.pp_rank * (architecture.num_layers // layout.pp)
    named: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        for theirs, ours in _TRANSFORMER_ENGINE_NAMES.items():
            name = name.replace(theirs, ours)
        if name.startswith("decoder.layers."):
            _, _, number, rest = name.split(".", 3)
            name = f"decoder.layers.{int(number) + offset}.{rest}"
        named[name] = parameter
    if architecture.tied and layout.last_stage and not layout.first_stage:
        named["embedding.word_embeddings.weight"] = named.pop("output_layer.weight")
    return named


# Transformer Engine fuses the norms into the linear layers that follow them.
_TRANSFORMER_ENGINE_NAMES = {
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
}


def load_weights(
    parameters: Mapping[str, torch.Tensor],
    table: Iterable[Slot],
    read: Callable[[str], torch.Tensor],
    architecture: Architecture,
    layout: ParallelLayout,
    dtype: torch.dtype,
) -> None:
    """Fill this rank's parameters (by slot name) from whole Hugging Face tensors, rounded to `dtype`."""
    left = dict(parameters)
    with torch.no_grad():
        for slot in table:
            parameter = left.pop(slot.name, None)
            if parameter is None:
                continue
            whole = join(slot, [read(name) for name, _ in slot.sources], architecture, layout.tp)
            mine = whole if slot.split is None else whole.chunk(layout.tp, slot.split)[layout.tp_rank]
            parameter.copy_(mine.to(dtype))
            mark_split(parameter, slot)
    assert not left, f"no weights for {sorted(left)}"


def mark_split(parameter: torch.Tensor, slot: Slot) -> None:
    """Megatron sets these while it initialises, which we skip; the gradient norm counts by them."""
    parameter.tensor_model_parallel = slot.split is not None  # type: ignore[attr-defined]
    parameter.partition_dim = -1 if slot.split is None else slot.split  # type: ignore[attr-defined]
    parameter.partition_stride = 1  # type: ignore[attr-defined]


def export_weights(
    parameters: Mapping[str, torch.Tensor],
    table: Iterable[Slot],
    architecture: Architecture,
    layout: ParallelLayout,
    stored: torch.dtype,
    dtype: torch.dtype,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Hugging Face (name, tensor) pairs, whole on every rank, as `dtype`; the parameters are `stored` in another where
    the CPU asks for it. Collective. A tensor may share memory with the model: it is valid until the next update."""
    for slot in table:
        whole = _gathered(slot, parameters.get(slot.name), architecture, layout, stored)
        for (name, _), tensor in zip(slot.sources, apart(slot, whole, architecture, layout.tp), strict=True):
            yield name, tensor.to(dtype)


def _gathered(
    slot: Slot, mine: torch.Tensor | None, architecture: Architecture, layout: ParallelLayout, dtype: torch.dtype
) -> torch.Tensor:
    owner = layout.pp_rank == slot.stage
    whole: torch.Tensor
    if owner:
        assert mine is not None
        whole = mine.detach()
        if slot.split is not None and layout.tp > 1:
            parts = [torch.empty_like(whole) for _ in range(layout.tp)]
            dist.all_gather(parts, whole.contiguous(), group=parallel_state.get_tensor_model_parallel_group())
            whole = torch.cat(parts, dim=slot.split)
    if layout.pp > 1:
        if not owner:
            empty = [torch.empty(shape, dtype=dtype, device=layout.device) for _, shape in slot.sources]
            whole = join(slot, empty, architecture, layout.tp)
        group = parallel_state.get_pipeline_model_parallel_group()
        whole = whole.contiguous()
        dist.broadcast(whole, dist.get_global_rank(group, slot.stage), group=group)
    return whole


class OwnMapping:
    """A model's weights from and to a Hugging Face folder, by the table of this module (`policy.hf_mapping=own`)."""

    def __init__(self, folder: Path, architecture: Architecture) -> None:
        """Raises ValueError for a folder that does not hold the architecture's weights."""
        self._architecture = architecture
        self._checkpoint = Checkpoint(folder, slots(architecture, 1))

    def load(self, model: Any, layout: ParallelLayout, dtype: torch.dtype) -> None:
        """Fill this rank's shard, rounded to `dtype`."""
        parameters = parameters_by_slot(model, self._architecture, layout)
        table = slots(self._architecture, layout.pp)
        load_weights(parameters, table, self._checkpoint.read, self._architecture, layout, dtype)
        self._checkpoint.close()

    def export(self, model: Any, layout: ParallelLayout, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """Every weight of the folder, as `export_weights` gives it."""
        parameters = parameters_by_slot(model, self._architecture, layout)
        table = slots(self._architecture, layout.pp)
        return export_weights(parameters, table, self._architecture, layout, model.config.params_dtype, dtype)


class Checkpoint:
    """The safetensors files of a Hugging Face folder; every tensor is checked before the first is read.

    Raises ValueError when files or tensors are missing, corrupt, or shaped otherwise than the config says."""

    def __init__(self, folder: Path, table: Iterable[Slot]) -> None:
        self.folder = folder
        self._files = self._index()
        self._handles: dict[str, Any] = {}
        for slot in table:
            for name, shape in slot.sources:
                self._check(name, shape)

    @property
    def names(self) -> list[str]:
        """Every tensor of the folder."""
        return sorted(self._files)

    def read(self, name: str) -> torch.Tensor:
        return self._open(name).get_tensor(name)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Let go of the files; `read` opens them again."""
        self._handles = {}

    def _check(self, name: str, shape: Shape) -> None:
        if name not in self._files:
            raise ValueError(
                f"{self.folder}: weight {name} is missing; its config.json does not fit its weights, "
                "or the download is incomplete"
            )
        found = tuple(self._open(name).get_slice(name).get_shape())
        if found != shape:
            raise ValueError(f"{self.folder}: weight {name} has shape {found}, but config.json asks for {shape}")

    def _index(self) -> dict[str, str]:
        index = self.folder / "model.safetensors.index.json"
        if index.exists():
            try:
                return dict(json.loads(index.read_text())["weight_map"])
            except (json.JSONDecodeError, KeyError, UnicodeDecodeError) as error:
                raise ValueError(f"{index} is corrupt ({error}): download the model again") from error
        single = "model.safetensors"
        if not (self.folder / single).exists():
            raise ValueError(
                f"{self.folder} has no {single} (nor an index of shards): weights must be in safetensors format; "
                "load and save_pretrained() the model with transformers to convert others"
            )
        self._handles = {}
        return dict.fromkeys(self._open_file(single).keys(), single)

    def _open(self, name: str) -> Any:
        file = self._files[name]
        if file not in self._handles:
            self._handles[file] = self._open_file(file)
        return self._handles[file]

    def _open_file(self, file: str) -> Any:
        from safetensors import SafetensorError, safe_open

        path = self.folder / file
        if not path.exists():
            raise ValueError(f"{path} is missing: the download is incomplete")
        try:
            return safe_open(path, framework="pt")
        except SafetensorError as error:
            raise ValueError(f"{path} is corrupt or cut short ({error}): download the model again") from error
