"""Folders that cannot be trained are refused before anything is built."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nemo_specrl.models.architecture import read_architecture
from nemo_specrl.policy.megatron.weights import Checkpoint, slots


def copy(source: Path, target: Path, **changes: Any) -> Path:
    """The checkpoint with other settings in its config.json."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **changes}))
    return target


def test_families(checkpoints: dict[str, Path]) -> None:
    found = {family: read_architecture(folder) for family, folder in checkpoints.items()}
    assert {f: (a.qkv_bias, a.qk_norm, a.tied, a.head_dim) for f, a in found.items()} == {
        "llama": (False, False, True, 16),
        "qwen2": (True, False, False, 16),
        "qwen3": (False, True, False, 32),
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "supported are LlamaForCausalLM, Qwen2ForCausalLM, Qwen3"),
        ({"architectures": None}, "supported are"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"hidden_size": None}, "malformed"),
    ],
)
def test_configs_that_are_refused(
    checkpoints: dict[str, Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_architecture(copy(checkpoints["llama"], tmp_path, **changes))


def test_folders_that_are_no_models(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        read_architecture(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        read_architecture(tmp_path)


def test_a_tokenizer_of_another_model(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = copy(checkpoints["llama"], tmp_path)
    tokenizer = {"model": {"vocab": {"a": 0, "b": 130}}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    read_architecture(folder)
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, "added_tokens": [{"id": 131}]}))
    with pytest.raises(ValueError, match="largest id is 131"):
        read_architecture(folder)


def test_weights_that_do_not_fit(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = copy(checkpoints["llama"], tmp_path, intermediate_size=128)
    with pytest.raises(ValueError, match=r"gate_proj.*shape \(96, 64\).*\(128, 64\)"):
        Checkpoint(folder, slots(read_architecture(folder), 1))
    folder = copy(checkpoints["llama"], tmp_path, num_hidden_layers=3)
    with pytest.raises(ValueError, match=r"layers\.2.*missing"):
        Checkpoint(folder, slots(read_architecture(folder), 1))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match="corrupt or cut short"):
        Checkpoint(folder, slots(read_architecture(folder), 1))
    weights.unlink()
    with pytest.raises(ValueError, match="safetensors"):
        Checkpoint(folder, slots(read_architecture(folder), 1))
