"""Rows from a Hugging Face datasets name, or from a folder that `datasets` can read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from nemo_specrl.config.data import DataConfig

PATIENCE_S = 5.0
"""How long the hub may take to answer at all, seconds."""


def read_dataset(config: DataConfig) -> Iterator[dict[str, Any]]:
    """The rows of one split. ValueError, within seconds where there is no network, with the remedy."""
    from datasets import load_dataset

    is_folder = os.path.isdir(folder := os.path.expanduser(config.source))
    if not is_folder and config.source.startswith(("/", "./", "../", "~")):
        raise ValueError(f"data.source: there is no file or folder {config.source}.")
    try:
        with nullcontext() if is_folder else _without_retries():
            dataset = load_dataset(folder if is_folder else config.source, name=config.name, split=config.split)
    except Exception as error:  # datasets raises whatever its backends raise
        what = f"(data.name={config.name!r}, data.split={config.split!r}) does not load: {_with_cause(error)}"
        if is_folder:
            raise ValueError(f"the folder data.source={config.source} {what} Name one of its files instead.") from error
        raise ValueError(
            f"data.source={config.source!r} is neither `arithmetic` nor a file, and the dataset of that name {what} "
            f"Without internet: download it elsewhere with HF_HOME on a shared disk, or point data.source to a file."
        ) from error
    return (dict(row) for row in dataset)


@contextmanager
def _without_retries() -> Iterator[None]:
    """Where the hub does not answer, `datasets` looks at its cache alone: it would ask five times more, for half a
    minute, before it did the same."""
    if (silence := _hub_silence()) is None:
        yield
        return
    import datasets
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    except Exception as error:
        raise ConnectionError(
            f"the hub at {constants.ENDPOINT} does not answer ({silence}), and the cache has no copy ({error})."
        ) from error
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _with_cause(error: Exception) -> str:
    """`datasets` says that something went wrong, and only its error's cause what."""
    return f"{error} ({error.__cause__})" if error.__cause__ is not None else str(error)


def _hub_silence() -> Exception | None:
    """Why the hub does not answer. Any answer is one, a refusal among them: what it means is for `datasets` to say."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE_S)
    except Exception as error:  # of whichever HTTP library this version of huggingface_hub uses, or its offline mode
        return error
    return None
