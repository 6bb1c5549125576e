"""A Hugging Face folder, read without torch or transformers: what it holds, whether it is whole, and its digest."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_SAMPLE = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A checked checkpoint on this machine's disk."""

    path: Path
    """config.json and safetensors."""
    tokenizer_path: Path
    """The tokenizer's files; the same folder unless `ModelConfig.tokenizer` names another."""
    name: str
    """What the configuration called it."""
    family: str
    """`model_type` of config.json: llama, qwen2, qwen3, ..."""
    vocab_size: int
    """Rows of the embedding; may exceed the tokenizer's length."""
    max_position_embeddings: int
    """The longest sequence that the model was made for, tokens."""
    eos_token_ids: tuple[int, ...]
    """Ids that end a response, ascending: those of generation_config.json (else config.json) and the tokenizer's."""


def read_folder(path: Path, *, name: str, tokenizer_path: Path | None = None) -> ModelFolder:
    """Check the folder and read its facts. ValueError says what is missing or broken, and what to do."""
    config = read_json(path / "config.json")
    text = config.get("text_config", config)  # multimodal checkpoints keep the language model's keys there
    missing = [key for key in ("model_type", "vocab_size", "max_position_embeddings") if key not in text]
    if missing:
        raise ValueError(f"{path / 'config.json'} has no {', '.join(missing)}: not a causal language model's config.")
    for weights in weight_files(path):
        _check_safetensors(weights)
    tokenizer_path = tokenizer_path or path
    if not any((tokenizer_path / file).is_file() for file in _TOKENIZER_FILES):
        raise ValueError(
            f"{tokenizer_path} has no tokenizer ({', '.join(_TOKENIZER_FILES)}). Save one there with "
            f"tokenizer.save_pretrained(...), or set model.tokenizer to a folder or hub name that has one."
        )
    eos = _eos_token_ids(path, text, tokenizer_path)
    if not eos:
        raise ValueError(f"{path} names no end-of-sequence token. Set eos_token_id in its generation_config.json.")
    return ModelFolder(
        path=path,
        tokenizer_path=tokenizer_path,
        name=name,
        family=text["model_type"],
        vocab_size=text["vocab_size"],
        max_position_embeddings=text["max_position_embeddings"],
        eos_token_ids=eos,
    )


def model_digest(folder: Path) -> str:
    """Hex digest (32 characters) that tells checkpoints apart without reading all their weights.

    It covers config, tokenizer and chat template in full; of each weights file the name, the size, the header and the
    first, middle and last MiB. Training changes every tensor, so a trained copy differs; a single flipped bit may not.
    """
    digest = hashlib.blake2b(digest_size=16)
    small = {"config.json", "generation_config.json", "chat_template.jinja", "tokenizer_config.json", *_TOKENIZER_FILES}
    for file in sorted(folder / name for name in small):
        if file.is_file():
            digest.update(f"{file.name}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    for file in weight_files(folder):
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as stream:
            (header,) = struct.unpack("<Q", stream.read(8))
            digest.update(stream.read(min(header, 64 * _SAMPLE)))
            for start in (8 + header, size // 2, max(size - _SAMPLE, 0)):
                stream.seek(start)
                digest.update(stream.read(_SAMPLE))
    return digest.hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """The checkpoint's safetensors, by its index where it has one; sorted. ValueError when any is missing."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = sorted({folder / name for name in read_json(index)["weight_map"].values()})
    else:
        files = sorted(folder.glob("*.safetensors"))
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ValueError(f"{folder} lacks the weights {', '.join(missing)} of its index. Download it again.")
    if not files:
        raise ValueError(
            f"{folder} has no *.safetensors. Download the weights, or convert older ones with "
            f"model.save_pretrained(folder, safe_serialization=True)."
        )
    return files


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors in a folder's safetensors files, from their headers alone."""
    return {name: tuple(entry["shape"]) for name, entry in headers(folder).items()}


def headers(folder: Path) -> dict[str, Any]:
    """Tensor name -> its entry (dtype, shape, ...) in a folder's safetensors files."""
    entries: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            entries |= json.loads(file.read(int.from_bytes(file.read(8), "little")))
    entries.pop("__metadata__", None)
    return entries


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ValueError when it is missing or broken."""
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ValueError(f"{path} does not exist: {path.parent} is not a Hugging Face model folder.") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}). Download it again.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object. Download it again.")
    return value


def _check_safetensors(path: Path) -> None:
    """The header must parse and the file must be as long as the header says: catches cut downloads and LFS pointers."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if 8 + length > size:
            raise ValueError(f"{path} is cut short, or no safetensors file (a Git LFS pointer?). Download it again.")
        try:
            header = json.loads(stream.read(length))
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} has a broken header ({error}). Download it again.") from error
    end = max((t["data_offsets"][1] for key, t in header.items() if key != "__metadata__"), default=0)
    if 8 + length + end != size:
        raise ValueError(f"{path} has {size} bytes where its header says {8 + length + end}. Download it again.")


def _eos_token_ids(path: Path, text_config: dict[str, Any], tokenizer_path: Path) -> tuple[int, ...]:
    generation = path / "generation_config.json"
    declared = read_json(generation).get("eos_token_id") if generation.is_file() else None
    if declared is None:
        declared = text_config.get("eos_token_id")
    ids = declared if isinstance(declared, list) else [] if declared is None else [declared]
    if not all(isinstance(number, int) for number in ids):
        raise ValueError(f"{path} has eos_token_id {declared!r}: it must be a token's number, or a list of them.")
    token = _tokenizer_eos(tokenizer_path)
    return tuple(sorted({*ids} if token is None else {*ids, token}))


def _tokenizer_eos(folder: Path) -> int | None:
    """The tokenizer's own end-of-sequence id: engines stop at it whatever the model's config says."""
    if not (folder / "tokenizer_config.json").is_file():
        return None
    config = read_json(folder / "tokenizer_config.json")
    eos = config.get("eos_token")
    content = eos.get("content") if isinstance(eos, dict) else eos
    added = [{"id": int(key), **value} for key, value in config.get("added_tokens_decoder", {}).items()]
    if (folder / "tokenizer.json").is_file():
        added += read_json(folder / "tokenizer.json").get("added_tokens", [])
    return next((token["id"] for token in added if token["content"] == content), None)


def vocabulary(folder: Path) -> dict[str, int]:
    """Token -> id of tokenizer.json; empty where there is none, or it is not of the kind that lists ids."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return {}
    content = read_json(path)
    tokens = content.get("model", {}).get("vocab")
    if not isinstance(tokens, dict):
        return {}
    return tokens | {token["content"]: token["id"] for token in content.get("added_tokens", [])}
