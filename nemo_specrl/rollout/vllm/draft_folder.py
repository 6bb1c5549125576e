"""A policy's checkpoint and its MTP head -> folders that vLLM can serve. No torch at import; nothing large is copied.

Two layouts:
- `mimo`, vLLM's own: a Qwen2 trunk with one MTP layer is its MiMoForCausalLM, and a Llama is a Qwen2 with zero q, k and
  v biases. One folder: the checkpoint's files by symlink, the head, and the biases that a Llama lacks. `method: mtp`.
- `eagle`, ours (draft_model.py): the checkpoint under the name of our trunk class, and a draft folder with the head.

In both the head reads the trunk's hidden states *before* the final norm, as MiMo's trunk hands them out (vLLM's
MiMoModel returns them so, and norms in compute_logits): a head trained on the normed ones drafts nothing of use here.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_specrl.models.folder import headers, shapes
from nemo_specrl.models.head_layout import COUNT, PREFIX, check_head

if TYPE_CHECKING:
    import torch

TRUNKS = {"llama": "SpecrlLlamaForCausalLM", "qwen2": "SpecrlQwen2ForCausalLM", "qwen3": "SpecrlQwen3ForCausalLM"}
"""model_type -> our trunk class for the eagle layout."""
DRAFT_CLASS = "EagleSpecrlForCausalLM"
_QKV = tuple(f"self_attn.{part}_proj.weight" for part in "qkv")


@dataclass(frozen=True)
class Served:
    """What vLLM is started with."""

    model: Path
    """Folder of the trunk."""
    speculative: dict[str, Any]
    """Keys of vLLM's speculative_config."""
    zero_biases: bool = False
    """vLLM's trunk has q, k and v biases that the policy has not."""

    def complete(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """The policy's tensors as the served model wants them: those of trunk and head, zero biases added."""
        for name, tensor in weights:
            yield name, tensor
            if self.zero_biases and name.endswith(_QKV):
                yield name.removesuffix("weight") + "bias", tensor.new_zeros(len(tensor))


def layout_of(config: Mapping[str, Any]) -> str:
    """`mimo` where vLLM's own MiMo classes compute what the checkpoint's config.json says, else `eagle`. ValueError for
    a family that neither serves."""
    family = config.get("model_type")
    if family == "mimo" or family == "qwen2":
        return "mimo"
    if family == "llama":
        regular = config.get("head_dim") in (None, config["hidden_size"] // config["num_attention_heads"])
        if config.get("attention_bias") or config.get("mlp_bias"):
            raise ValueError(
                "drafter=mtp: a Llama with attention_bias or mlp_bias has no MTP head here; use drafter=history"
            )
        return "mimo" if regular else "eagle"
    if family in TRUNKS:
        return "eagle"
    raise ValueError(
        f"drafter=mtp: no MTP head is served for model_type={family}; known are mimo, {', '.join(sorted(TRUNKS))}. "
        "Use drafter=history or ngram, or add its decoder layer to rollout/vllm/draft_model.py"
    )


def build(model: Path, head: Path, out: Path, *, layout: str | None = None) -> Served:
    """Write the served folders under `out`, anew.

    `model`: the checkpoint. `head`: a folder whose safetensors hold model.mtp_layers.0.*. `layout`: null = layout_of.
    ValueError when the head does not fit the trunk."""
    config = json.loads((model / "config.json").read_text())
    layout = layout or layout_of(config)
    check_head(shapes(model), shapes(head), config)
    shutil.rmtree(out, ignore_errors=True)
    if layout == "eagle":
        trunk, draft = out / "trunk", out / "draft"
        _link(model, trunk, config | {"architectures": [TRUNKS[config["model_type"]]]})
        of_one: dict[str, Any] = {
            "architectures": [DRAFT_CLASS],
            "specrl_family": config["model_type"],
            "num_hidden_layers": 1,
        }
        if "layer_types" in config:  # one entry a layer; the head's attends to everything
            of_one["layer_types"] = ["full_attention"]
        _link(head, draft, config | of_one)
        return Served(trunk, {"method": "eagle", "model": str(draft)})
    mimo = {"architectures": ["MiMoForCausalLM"], COUNT: 1}
    if config["model_type"] == "llama":
        # What a Qwen2 has besides: no sliding window, and biases.
        mimo |= {"model_type": "qwen2", "use_sliding_window": False}
    _link(model, out, config | mimo)
    if not any(name.startswith(PREFIX) for name in shapes(model)):
        for file in head.glob("*.safetensors"):
            (out / f"mtp-head-{file.name}").symlink_to(file.resolve())
    zero_biases = config["model_type"] == "llama"
    if zero_biases:
        _write_zero_biases({**headers(model), **headers(head)}, out / "zero-biases.safetensors")
    return Served(out, {"method": "mtp"}, zero_biases)


def _link(source: Path, target: Path, config: Mapping[str, Any]) -> None:
    """`source`'s weights and small files by symlink, with another config.json. Without an index, vLLM reads every
    safetensors file that it finds."""
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file() and file.name != "config.json" and not file.name.endswith(".index.json"):
            (target / file.name).symlink_to(os.path.realpath(file))
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _write_zero_biases(headers: Mapping[str, Any], path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    dtypes = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
    weights = {name: entry for name, entry in headers.items() if name.endswith(_QKV)}
    save_file(
        {
            name.removesuffix("weight") + "bias": torch.zeros(entry["shape"][0], dtype=dtypes[entry["dtype"]])
            for name, entry in weights.items()
        },
        path,
    )
