"""The policy as a Hugging Face folder, which `model.path`, transformers and vLLM read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch

from nemo_specrl.contracts.policy import Policy
from nemo_specrl.models.cache import RECORD
from nemo_specrl.training.ranks import is_main, raise_together

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")
"""Files of the model's folder that are not copied: they hold other weights, or say where those are."""
SHARD = "5GB"


def write_policy(policy: Policy, model: Path, folder: Path) -> None:
    """The policy's weights, and beside them what `model`, the folder that it began from, says of it. Collective; rank
    0 writes into the empty `folder`, and removes it where it cannot."""
    error: OSError | None = None
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in policy.weights():
        if is_main():
            weights[name] = tensor.to("cpu", copy=True)
    if is_main():
        try:
            write_model(folder, model, weights)
        except OSError as caught:
            error = caught
            shutil.rmtree(folder, ignore_errors=True)
    raise_together(error)


def write_model(folder: Path, model: Path, weights: dict[str, torch.Tensor]) -> None:
    """Weights in shards; tokenizer and configuration are the model's own, with the dtype that the weights have."""
    from huggingface_hub import save_torch_state_dict

    for path in own_files(model.iterdir()):
        shutil.copy(path, folder / path.name)
    config = json.loads((model / "config.json").read_text())
    key = "torch_dtype" if "torch_dtype" in config else "dtype"  # transformers renamed it in its version 5
    config[key] = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_torch_state_dict(weights, folder, max_shard_size=SHARD, metadata={"format": "pt"})


def own_files(paths: Iterable[Path]) -> list[Path]:
    """Those that are copied: no weights, nothing hidden, no record of where the weights came from."""
    left = (*WEIGHTS, RECORD)
    return sorted(p for p in paths if p.is_file() and not p.name.startswith(".") and not p.name.endswith(left))
