"""What `prepare` calls ready, `train` takes: everything that can be known is said before weights are loaded."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from nemo_specrl import cli
from nemo_specrl.config.compose import compose
from nemo_specrl.config.model import ModelConfig
from nemo_specrl.config.run import RunConfig
from nemo_specrl.models import resolve_model
from nemo_specrl.models.head_layout import LAYER
from nemo_specrl.training.checks import check_run


def run_of(*overrides: str) -> RunConfig:
    return compose(["experiment=tiny", *overrides])


def model(folder: Path, **changes: Any) -> str:
    """The tiny model under another config.json."""
    shutil.copytree(resolve_model(ModelConfig("builtin:tiny", max_length=64)).path, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return f"model.path={folder}"


def test_a_sound_run_comes_with_its_material() -> None:
    found = check_run(run_of("trainer.val_every=1", "trainer.val_prompts=3"))
    assert (len(found.prompts), len(found.validation)) == (5, 3)
    assert found.model.family == "llama"


@pytest.mark.parametrize(
    ("architecture", "family"),
    [
        ("Gemma2ForCausalLM", "gemma2"),
        ("MistralForCausalLM", "mistral"),
        ("PhiForCausalLM", "phi"),
        ("Qwen3MoeForCausalLM", "qwen3_moe"),
    ],
)
def test_families_that_are_not_trained(tmp_path: Path, architecture: str, family: str) -> None:
    with pytest.raises(ValueError, match=f"'{architecture}' is not supported"):
        check_run(run_of(model(tmp_path / "m", architectures=[architecture], model_type=family)))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["reward.name=maths"], r"reward\.name='maths': there are math"),
        (["gate.samples=40", "gate.tokens_per_sample=2"], "gate needs at least 160"),
        (["sampling.max_new_tokens=1", "gate.samples=100"], "100 tokens, and the gate needs"),
        (["drafter=mtp", "drafter.head.source=/no/such/head"], "missing"),
        (["drafter=mtp", "drafter.head.source=native"], "no model.mtp_layers"),
        (["drafter.method=no.such:Thing"], "cannot be loaded"),
        (["sampling.top_k=3", "drafter=history"], "top_k"),
        (["trainer=nemo_rl"], "nemo-specrl submit"),
    ],
)
def test_what_two_numbers_or_a_look_into_a_folder_tell(overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_run(run_of(*overrides))


def test_few_gate_samples_are_no_matter_where_there_is_no_gate() -> None:
    check_run(run_of("gate.samples=32", "gate.tokens_per_sample=1", "gate.enabled=false"))


def test_an_answer_that_the_reward_refuses(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1", "answer": "2"}\n{"prompt": "1+2", "answer": " "}\n')
    with pytest.raises(ValueError, match="answer"):
        check_run(run_of("data=jsonl", f"data.source={rows}"))


def test_attention_heads_that_the_cpu_engine_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="24 numbers each"):
        check_run(run_of(model(tmp_path / "m", head_dim=24)))


def test_the_cpu_head_sizes_are_those_of_the_installed_engine() -> None:
    from nemo_specrl.rollout.vllm.limits import CPU_HEAD_SIZES

    source = Path(sys.prefix) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "vllm"
    text = (source / "v1" / "attention" / "backends" / "cpu_attn.py").read_text()
    assert f"return {list(CPU_HEAD_SIZES)}" in text


def test_a_draft_model_with_a_shorter_context(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 16}))
    draft = f"++drafter.speculative_config.model={tmp_path}"
    with pytest.raises(ValueError, match="made for 16 positions"):
        check_run(run_of("drafter.method=eagle3", "drafter.frozen=true", draft))


def test_a_head_of_another_width(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    folder = resolve_model(ModelConfig("builtin:tiny", max_length=64)).path
    shutil.copy(folder / "config.json", tmp_path)
    save_file({f"{LAYER}input_proj.weight": torch.zeros(4, 8)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="the MTP head does not fit the model"):
        check_run(run_of("drafter=mtp", f"drafter.head.source={tmp_path}"))


@pytest.mark.parametrize("verb", ["prepare", "train", "bench", "verify", "eval"])
def test_every_verb_makes_these_checks(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["experiment=tiny", "reward.name=maths", f"output_dir={tmp_path / 'run'}", "evaluation.untrained=true"]
    assert cli.run([verb, *words, *(["seed=0,1"] if verb == "bench" else [])]) == 2
    assert "reward.name='maths': there are math" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_eval_of_a_mistyped_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["eval", "experiment=tiny", f"output_dir={tmp_path / 'no_run'}"]) == 2
    said = capsys.readouterr().err
    assert "no checkpoint to evaluate" in said
    assert "evaluation.untrained=true" in said
    assert not (tmp_path / "no_run").exists()
