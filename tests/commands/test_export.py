"""A checkpoint becomes a Hugging Face folder that holds the trained weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from nemo_specrl.commands.export import choose, export_command
from nemo_specrl.config.compose import compose, resolved
from nemo_specrl.models import resolve_model
from nemo_specrl.training.folder import read_run
from nemo_specrl.training.hf_folder import own_files
from tests.training.test_end_to_end import command, run


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_the_trained_weights_come_out_with_their_head(tmp_path: Path) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    run(tmp_path, command(folder, "drafter=mtp", "reuse=off", "trainer.epochs=1", "trainer.val_every=0"))
    run(tmp_path, [sys.executable, "-m", "nemo_specrl.cli", "export", str(folder), str(out)])
    newest = choose(folder / "checkpoints", None)
    state = torch.load(next((newest.folder / "policy").glob("*.pt")), weights_only=True)
    masters = state["optimizer"]["masters"]
    embedding = AutoModelForCausalLM.from_pretrained(out).get_input_embeddings().weight
    assert embedding.dtype == torch.float32, "as the run's policy, whatever the model came as"
    assert any(m.shape == embedding.shape and torch.equal(m, embedding) for m in masters)
    start = AutoModelForCausalLM.from_pretrained(resolve_model(read_run(folder).model).path, dtype=torch.float32)
    assert not torch.equal(start.get_input_embeddings().weight, embedding), "trained"
    assert load_file(out / "draft_head" / "model.safetensors")
    assert not list(tmp_path.glob(".out*")), "nothing half-written is left"


def test_what_is_no_run_or_would_be_overwritten_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "run.json").write_text(json.dumps(resolved(compose(["model=tiny"]))))
    with pytest.raises(ValueError, match="exists already"):
        export_command([str(tmp_path), str(tmp_path / "out")])
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        export_command([str(tmp_path), str(tmp_path / "new")])
    with pytest.raises(ValueError, match=r"has no run\.json"):
        read_run(tmp_path / "elsewhere")


def test_a_checkpoint_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no checkpoint in"):
        choose(tmp_path, None)
    folder = tmp_path / "step_00000004"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "step": 4, "state": {}, "files": {}}))
    assert choose(tmp_path, None).step == choose(tmp_path, 4).step == 4
    with pytest.raises(ValueError, match="no checkpoint of step 3; it has 4"):
        choose(tmp_path, 3)


def test_weights_and_records_stay_behind(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json", ".lock"):
        (tmp_path / name).touch()
    assert [p.name for p in own_files(tmp_path.iterdir())] == ["config.json", "tokenizer.json"]
