"""A policy on disk: one file per rank and a manifest that says what they are. Publishing atomically is the caller's."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import torch

from nemo_specrl.models.architecture import Architecture
from nemo_specrl.policy.megatron.parallel import ParallelLayout

MANIFEST = "policy.json"
_HEAD = 1 << 20


def fingerprint(folder: Path, architecture: Architecture) -> str:
    """Identifies the model that training started from: its architecture and the first MiB of each weight file
    (headers, and enough of the weights to tell two models of one architecture apart)."""
    digest = hashlib.blake2b(json.dumps(architecture.describe(), sort_keys=True).encode(), digest_size=16)
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(_HEAD))
    return digest.hexdigest()


def manifest(layout: ParallelLayout, dtype: str, model: str) -> dict[str, Any]:
    """What must agree between the run that saved and the run that loads."""
    return {
        "format": 1,
        "model": model,
        "dtype": dtype,
        "tensor_parallel": layout.tp,
        "pipeline_parallel": layout.pp,
        "data_parallel": layout.dp,
    }


def write(folder: Path, layout: ParallelLayout, about: dict[str, Any], state: dict[str, Any]) -> None:
    """Write this rank's file, and the manifest on rank 0. Replicas of data parallelism hold the same: one writes."""
    if layout.dp_rank == 0:
        torch.save(state, folder / _name(layout))
    if layout.rank == 0:
        (folder / MANIFEST).write_text(json.dumps(about, indent=1) + "\n")


def read(folder: Path, layout: ParallelLayout, about: dict[str, Any]) -> dict[str, Any]:
    """This rank's state. Raises ValueError when it is missing, corrupt, or another layout's or model's."""
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: {folder} holds no policy checkpoint") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is corrupt ({error}): resume from an earlier checkpoint") from error
    # Data-parallel replicas are equal, so their number may change.
    different = [k for k in about if k != "data_parallel" and found.get(k) != about[k]]
    if different:
        details = ", ".join(f"{k} {found.get(k)!r} (now {about[k]!r})" for k in different)
        raise ValueError(f"checkpoint {folder} was saved with {details}: resume with the same settings and model")
    path = folder / _name(layout)
    try:
        state: dict[str, Any] = torch.load(path, map_location=layout.device, weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: the checkpoint is incomplete; resume from an earlier one") from None
    except (RuntimeError, EOFError, pickle.UnpicklingError, ValueError, OSError) as error:
        raise ValueError(f"{path} is corrupt ({error}): resume from an earlier checkpoint") from error
    return state


def _name(layout: ParallelLayout) -> str:
    return f"policy_pp{layout.pp_rank:03d}_tp{layout.tp_rank:03d}.pt"
