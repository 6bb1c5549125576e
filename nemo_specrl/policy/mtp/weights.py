"""The head's weights (models/head_layout.py): from nothing, from the model's own folder or from a head's folder, and
back."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from nemo_specrl.models.architecture import Architecture
from nemo_specrl.models.head_layout import COUNT, LAYER, NORMS, PREFIX, PROJECTION, check_source, own_tensors
from nemo_specrl.policy.megatron.weights import Checkpoint, Slot, layer_slots, slots

log = logging.getLogger(__name__)


def head_slots(architecture: Architecture, pp: int) -> list[Slot]:
    """Every parameter of the head, in the order that all ranks walk them."""
    h, stage = architecture.hidden_size, pp - 1
    shapes = own_tensors(h)
    norms = [
        Slot(f"{name}.weight", ((f"{LAYER}{name}.weight", shapes[f"{LAYER}{name}.weight"]),), stage) for name in NORMS
    ]
    projection = f"{LAYER}{PROJECTION}.weight"
    project = Slot(f"{PROJECTION}.weight", ((projection, shapes[projection]),), stage, 0)
    return [*norms, project, *layer_slots(architecture, "layer.", LAYER, stage)]


def reader(source: str, folder: Path, architecture: Architecture) -> Callable[[str], torch.Tensor]:
    """The function that gives the head's tensors by name; `folder` is the policy's own.

    Raises ValueError when the source promises a head and holds none, or one of another shape."""
    table = head_slots(architecture, 1)
    if source == "scratch":
        log.info("draft head: 1 layer from scratch, after the policy's last layer")
        return _scratch(Checkpoint(folder, slots(architecture, 1)), architecture)
    where = folder if source == "native" else Path(source)
    found = check_source(source, folder)
    checkpoint = Checkpoint(where, table)
    log.info("draft head: loaded 1 of %d from %s (%d tensors)", found, where, sum(len(s.sources) for s in table))
    return checkpoint.read


def write_head(tensors: Iterable[tuple[str, torch.Tensor]], model: Path, folder: Path) -> None:
    """A head's folder; `model` is the policy's."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = json.loads((model / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, COUNT: 1}, indent=2) + "\n")
    save_file({n: t.cpu().contiguous().clone() for n, t in tensors}, folder / "model.safetensors", {"format": "pt"})


def read_head(folder: Path) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a head's folder, as they are stored."""
    from safetensors.torch import load_file

    return [
        (name, tensor)
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
        if name.startswith(PREFIX)
    ]


def _scratch(trunk: Checkpoint, architecture: Architecture) -> Callable[[str], torch.Tensor]:
    """Layer and final norm are the policy's last ones; the projection, which adds hidden state and embedding, is a
    place-holder until `start.py` fits it."""
    last, h = f"model.layers.{architecture.num_layers - 1}.", architecture.hidden_size

    def read(name: str) -> torch.Tensor:
        name = name.removeprefix(LAYER)
        if name in ("token_layernorm.weight", "hidden_layernorm.weight"):
            return torch.ones(h)
        if name == f"{PROJECTION}.weight":
            return torch.cat([torch.eye(h), torch.eye(h)], dim=1)
        return trunk.read("model.norm.weight" if name == "final_layernorm.weight" else last + name)

    return read
