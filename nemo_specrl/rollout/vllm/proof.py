"""Evidence that live parameters are what was sent: read back where they lie, multiplied with where they are packed.

Linear weights are fused and pre-packed for the hardware, so they can't be read; multiplying unit vectors by them brings
their columns back. Imported inside vLLM's workers only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_ROWS = 64
_COLUMNS = 8
_FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.o_proj": ("self_attn.o_proj",),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj": ("mlp.down_proj",),
}
"""vLLM's linear layer -> the checkpoint's, in the order of their rows."""


def multiplies_by(layer: Any, sent: torch.Tensor) -> bool:
    """Whether vLLM's linear `layer` has `sent` [rows, width] as the first rows of its weight. Looks at the first
    columns."""
    width = sent.shape[1]
    dtype = getattr(layer, "params_dtype", layer.weight.dtype)
    probe = torch.eye(min(_COLUMNS, width), width, dtype=dtype, device=layer.weight.device)
    got = layer.quant_method.apply(layer, probe)[:, : len(sent)].cpu()
    want = sent.to(dtype).cpu().T[: len(probe)]
    return torch.equal(got, want)


class TrunkProof:
    """Keeps the first rows of each tensor that the model holds unpacked under its own name (norms, biases, the
    embedding), to compare them with the live parameters once loading is done. Its linear weights went through the same
    loader. The LM head, which may be tied and packed a second time, is multiplied with."""

    def __init__(self, model: Any) -> None:
        self.live: dict[str, torch.Tensor] = dict(model.named_parameters())
        self.model = model
        self.names: set[str] = set()
        self.samples: dict[str, torch.Tensor] = {}
        self.head: torch.Tensor | None = None
        self.head_rows = 0
        self.tied = bool(getattr(model.config, "tie_word_embeddings", False))

    def watch(self, weights: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            self.names.add(name)
            if name == "lm_head.weight" or (self.tied and name == "model.embed_tokens.weight"):
                self.head, self.head_rows = tensor[:_ROWS].clone(), len(tensor)
            if name in self.live and self._comparable(name, self.live[name], tensor):
                self.samples[name] = tensor[:_ROWS].clone()
            yield name, tensor

    @staticmethod
    def _comparable(name: str, live: torch.Tensor, sent: torch.Tensor) -> bool:
        unpacked = live.dim() == 1 or "embed" in name
        # Vocabulary rows may be padded at the end, never elsewhere; a sharded embedding is shorter than what was sent.
        return (
            unpacked
            and live.dim() == sent.dim()
            and live.shape[1:] == sent.shape[1:]
            and live.shape[0] >= sent.shape[0]
        )

    def _head_difference(self) -> list[str]:
        head: Any = getattr(self.model, "lm_head", None)
        if self.head is None or not hasattr(head, "quant_method") or head.weight.shape[0] < self.head_rows:
            return []  # no head on this pipeline stage, or a share of it
        right = multiplies_by(head, self.head)
        return [] if right else ["lm_head: the live head does not multiply by what was sent"]

    def differences(self) -> list[str]:
        """What is wrong; empty = sound."""
        if not self.samples:
            return ["not one of the tensors sent has the name and shape of a live parameter"]
        live = dict(self.model.named_parameters())
        return self._head_difference() + [
            f"{name}: the live parameter is not what was sent"
            for name, sent in self.samples.items()
            if not torch.equal(live[name].detach()[: len(sent)].cpu(), sent.to(live[name].dtype).cpu())
        ]


def head_differences(model: Any, sent: Mapping[str, torch.Tensor]) -> tuple[int, list[str]]:
    """How many tensors of an MTP head were compared with the live drafter `model`, and what is wrong.

    `sent`: all of the head's tensors by their names in the checkpoint."""
    parts = {name.split(".", 3)[-1]: tensor for name, tensor in sent.items()}
    # Both vLLM's and our class wrap the decoder layer's modules: mtp_layers.<n>.[mtp_block|block].self_attn...
    modules = {re.sub(r".*mtp_layers\.\d+\.(mtp_block\.|block\.)?", "", n): m for n, m in model.named_modules()}
    compared, wrong = 0, []
    for fused, pieces in _FUSED.items():
        layer = modules[fused]
        for kind in ("weight", "bias"):
            names = [f"{piece}.{kind}" for piece in pieces]
            if not parts.keys() >= set(names):
                continue  # it has none, or the sender's side says that it is missing
            rows = torch.cat([_share(layer, name, parts[name]) for name in names])
            if not _held(layer, rows):
                continue
            compared += len(pieces)
            right = multiplies_by(layer, rows) if kind == "weight" else _equal(layer.bias, rows)
            wrong += [] if right else [f"{fused}.{kind}"]
    for name, tensor in parts.items():
        module, _, kind = name.rpartition(".")
        live = getattr(modules.get(module), kind, None)
        if module not in _FUSED and live is not None and live.shape == tensor.shape:
            compared += 1
            wrong += [] if _equal(live, tensor) else [name]
    problems = [f"the draft head's live {name} is not what was sent" for name in wrong]
    return compared, problems or ([] if compared else ["not one tensor of the draft head could be compared"])


def _equal(live: torch.Tensor, sent: torch.Tensor) -> bool:
    return torch.equal(live.detach().cpu(), sent.to(live.dtype).cpu())


def _share(layer: Any, name: str, sent: torch.Tensor) -> torch.Tensor:
    """What this engine rank holds of a linear layer's weight [rows, width] or bias [rows] (vLLM's linear.py): some of
    its columns where the layer's input is spread over the ranks, else some of its rows. Ranks beyond the number of
    key-value heads hold the same ones."""
    rank, size = getattr(layer, "tp_rank", 0), getattr(layer, "tp_size", 1)
    if name.startswith(("self_attn.o_proj.", "mlp.down_proj.")):
        return sent.tensor_split(size, dim=1)[rank] if sent.dim() == 2 else sent
    alike = getattr(layer, "num_kv_head_replicas", 1) if name.startswith(("self_attn.k_", "self_attn.v_")) else 1
    return sent.tensor_split(max(1, size // alike))[rank // alike]


def _held(layer: Any, sent: torch.Tensor) -> bool:
    """Whether a [rows, width] weight or a [rows] bias has the size of what this rank holds."""
    held = (getattr(layer, "output_size_per_partition", None), getattr(layer, "input_size_per_partition", None))
    return held[: sent.dim()] == tuple(sent.shape)
