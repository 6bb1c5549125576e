"""Hugging Face <-> Megatron weights by NVIDIA's Megatron-Bridge (`policy.hf_mapping=bridge`), where it is installed.

Read at Megatron-Bridge 0.7.0, commit 067f987 (2026-08-22). `AutoBridge` converts models that it did not build: it walks
the parameters of a Megatron GPTModel and decides by their names, their modules' classes, the model's `config` and its
process groups. `PolicyModel` has Megatron's names in both of its layer specs (Transformer Engine's and the local one);
the one thing that Bridge's own model configurations say, and Megatron's does not, is that the embedding is tied.

Bridge logs a warning where a parameter has no counterpart and goes on: the parameter stays as it was, or the engine
never gets it. Here that is an error.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nemo_specrl.models.architecture import Architecture
from nemo_specrl.policy.megatron.parallel import ParallelLayout
from nemo_specrl.policy.megatron.weights import Checkpoint, OwnMapping, mark_split, parameters_by_slot, slots

READ_AT = "0.7.0 (067f987)"
USED = {
    "from_hf_pretrained": ("path",),
    "load_hf_weights": ("model",),
    "export_hf_weights": ("model", "cpu", "show_progress"),
}
"""AutoBridge's methods and their parameters that we rely on."""


def hf_mapping(name: str, folder: Path, architecture: Architecture) -> OwnMapping | BridgeMapping:
    """The converter that `policy.hf_mapping` names; ValueError when the folder or the installation can't serve it."""
    return BridgeMapping(folder, architecture) if name == "bridge" else OwnMapping(folder, architecture)


def auto_bridge() -> Any:
    """Megatron-Bridge's AutoBridge class; ValueError when it cannot be imported or is not the one that was read."""
    try:
        module = importlib.import_module("megatron.bridge")
    except ImportError as error:
        raise ValueError(
            f"policy.hf_mapping=bridge, but Megatron-Bridge cannot be imported ({error}): run in a container that has "
            "it together with its Megatron-core and Transformer Engine (NVIDIA's nemo image), or set "
            "policy.hf_mapping=own"
        ) from error
    found = getattr(module, "AutoBridge", None)
    for method, names in USED.items():
        function = getattr(found, method, None)
        if function is None or not set(names) <= set(inspect.signature(function).parameters):
            raise ValueError(
                f"policy.hf_mapping=bridge: Megatron-Bridge {version()} has no AutoBridge.{method} with parameters "
                f"{', '.join(names)}, as {READ_AT} had: install a version near it, or set policy.hf_mapping=own"
            )
    return found


def version() -> str:
    """Of the Megatron-Bridge in use."""
    return str(getattr(importlib.import_module("megatron.bridge"), "__version__", "of unknown version"))


class BridgeMapping:
    """What `OwnMapping` does, done by Megatron-Bridge and checked against our table."""

    def __init__(self, folder: Path, architecture: Architecture) -> None:
        """Raises ValueError where Bridge cannot be used, and as `OwnMapping` does."""
        bridge = auto_bridge()
        Checkpoint(folder, slots(architecture, 1))
        self._architecture = architecture
        self._bridge = bridge.from_hf_pretrained(str(folder))

    def load(self, model: Any, layout: ParallelLayout, dtype: torch.dtype) -> None:
        """Fill this rank's shard, rounded to `dtype`. Collective. Raises RuntimeError when a parameter is left out."""
        model.config.share_embeddings_and_output_weights = self._architecture.tied
        parameters = parameters_by_slot(model, self._architecture, layout)
        with torch.no_grad():
            for parameter in parameters.values():
                parameter.fill_(torch.nan)
        self._bridge.load_hf_weights([model])
        unfilled = [name for name, parameter in parameters.items() if parameter.isnan().any()]
        if unfilled:
            raise RuntimeError(self._moved(f"left {_few(unfilled)} unfilled (or the checkpoint itself holds NaN)"))
        with torch.no_grad():
            for slot in slots(self._architecture, layout.pp):
                if slot.name in parameters:
                    parameter = parameters[slot.name]
                    parameter.copy_(parameter.to(dtype))  # stored in a wider one where the CPU asks for it
                    mark_split(parameter, slot)

    def export(self, model: Any, _layout: ParallelLayout, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face (name, tensor) pairs, whole on every rank, as `dtype`, in Bridge's order. Collective. A tensor
        may share memory with the model: it is valid until the next update.

        What Bridge gives beyond the trained weights (a stored copy of a tied head, rotary buffers) is left out.
        Raises RuntimeError when a weight is missing or has another shape than the folder's."""
        missing = {name: shape for slot in slots(self._architecture, 1) for name, shape in slot.sources}
        for name, tensor in self._bridge.export_hf_weights([model], cpu=False, show_progress=False):
            shape = missing.pop(name, None)
            if shape is None:
                continue
            if tuple(tensor.shape) != shape:
                raise RuntimeError(self._moved(f"exported {name} as {tuple(tensor.shape)} instead of {shape}"))
            yield name, tensor.detach().to(dtype)
        if missing:
            raise RuntimeError(self._moved(f"did not export {_few(list(missing))}"))

    def _moved(self, what: str) -> str:
        return f"Megatron-Bridge {version()} {what}; it was read at {READ_AT}. Set policy.hf_mapping=own"


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
