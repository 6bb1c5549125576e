"""`ModelConfig` -> `ModelFolder`: a built-in model, a folder, or a hub name. Imports neither torch nor transformers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from nemo_specrl.config.model import ModelConfig
from nemo_specrl.models.cache import build_once
from nemo_specrl.models.folder import ModelFolder, read_folder, weight_files
from nemo_specrl.models.smollm2 import build_smollm2
from nemo_specrl.models.tiny import build_tiny

BUILTIN: dict[str, Callable[[Path], str]] = {"smollm2-135m": build_smollm2, "tiny": build_tiny}
"""Built-in models: name -> what fills its folder. A new one is one line."""

_VERSION = 2  # raise it when a builder changes what it makes: folders of older versions are then left alone

_PREFIX = "builtin:"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def resolve_model(config: ModelConfig) -> ModelFolder:
    """Build, find or download the model; check it; read its facts. Safe to call from every rank at once.

    ValueError with the remedy: unknown built-in, missing or damaged files, a hub that cannot be reached, a
    `max_length` beyond what the model was made for.
    """
    path = _locate(config.path, config.revision, tokenizer_only=False)
    tokenizer = None if config.tokenizer is None else _locate(config.tokenizer, None, tokenizer_only=True)
    folder = read_folder(path, name=config.path, tokenizer_path=tokenizer)
    if config.max_length > folder.max_position_embeddings:
        raise ValueError(
            f"model.max_length={config.max_length} exceeds the {folder.max_position_embeddings} positions of "
            f"{config.path}. Lower model.max_length, or extend the context in the model's config.json."
        )
    return folder


def _locate(path: str, revision: str | None, *, tokenizer_only: bool) -> Path:
    if path.startswith(_PREFIX):
        name = path.removeprefix(_PREFIX)
        if name not in BUILTIN:
            raise ValueError(f"unknown built-in model {path!r}; there are {', '.join(_PREFIX + n for n in BUILTIN)}.")
        return build_once(f"{name}-v{_VERSION}", BUILTIN[name])
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if folder.is_absolute() or not _HUB_NAME.fullmatch(path):
        raise ValueError(f"there is no folder {path!r}, and it is not a hub name (owner/name) either.")
    return _download(path, revision, tokenizer_only=tokenizer_only)


def _download(name: str, revision: str | None, *, tokenizer_only: bool) -> Path:
    """The hub's snapshot. What is cached and whole is taken without asking the hub: ranks agree, and nodes need no
    internet. Delete the snapshot, or name a revision, to get a newer one."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    patterns = [file for file in _HUB_FILES if not (tokenizer_only and file == "*.safetensors")]
    try:
        cached = Path(snapshot_download(name, revision=revision, allow_patterns=patterns, local_files_only=True))
        if not tokenizer_only:
            weight_files(cached)  # an interrupted download leaves some out
        return cached
    except (LocalEntryNotFoundError, ValueError):
        pass  # not there, or not all of it: fetch it
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, OSError) as error:
        at = f" at revision {revision}" if revision else ""
        raise ValueError(
            f"there is no folder {name!r}, and the hub's model of that name{at} could not be downloaded: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__} "
            f"On a machine with internet run `nemo-specrl prepare model.path={name}` with HF_HOME on a shared disk "
            f"(set HF_TOKEN for a gated model), or set model.path to a local folder."
        ) from error
