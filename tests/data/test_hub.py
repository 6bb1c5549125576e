"""A datasets name: what is asked for, and what is said where nobody answers."""

import socket
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from nemo_specrl.config.data import DataConfig
from nemo_specrl.data import hub
from nemo_specrl.data.rows import load_rows

COLUMNS = {"prompt": "question", "answer": "gold"}


def datasets_that(load_dataset: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(load_dataset=load_dataset, config=types.SimpleNamespace(HF_HUB_OFFLINE=False))


def test_split_and_configuration_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def load_dataset(path: str, name: str, split: str) -> list[dict[str, str]]:
        asked.update(path=path, name=name, split=split)
        return [{"question": "a", "gold": "1"}]

    monkeypatch.setitem(sys.modules, "datasets", datasets_that(load_dataset))
    (row,) = load_rows(DataConfig(source="owner/set", split="test", name="main", columns=COLUMNS))
    assert asked == {"path": "owner/set", "name": "main", "split": "test"}
    assert row.prompt == "a"


def test_a_dataset_that_does_not_load_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", datasets_that(load_dataset))
    with pytest.raises(ValueError, match=r"(?s)no route.*Without internet"):
        load_rows(DataConfig(source="owner/set"))


@pytest.mark.parametrize("listens", [False, True])
def test_a_hub_that_does_not_answer_is_said_at_once(monkeypatch: pytest.MonkeyPatch, listens: bool) -> None:
    """The real `datasets` asks six times over half a minute; nobody listens, or somebody listens who never answers."""
    constants = pytest.importorskip("huggingface_hub.constants")
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(hub, "PATIENCE_S", 1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listens:
            silent.listen()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
        start = time.monotonic()
        with pytest.raises(ValueError, match=r"(?s)does not answer.*Without internet"):
            load_rows(DataConfig(source="owner/set", columns=COLUMNS))
        assert time.monotonic() - start < 5
        assert (constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE) == (False, False)


def test_a_folder_needs_no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(hub, "_hub_silence", lambda: pytest.fail("the hub was asked"))
    folder = tmp_path / "rows"
    folder.mkdir()
    for shard, text in enumerate(["a", "b"]):
        (folder / f"train-{shard}.jsonl").write_text(f'{{"question": "{text}", "gold": "{shard}"}}\n')
    rows = load_rows(DataConfig(source=str(folder), columns=COLUMNS))
    assert [(row.prompt, row.answer) for row in rows] == [("a", "0"), ("b", "1")]


@pytest.mark.parametrize("source", ["/no/such/folder", "./nowhere", "~nobody-of-this-name/x"])
def test_a_path_that_is_not_there_is_no_datasets_name(source: str) -> None:
    with pytest.raises(ValueError, match="there is no file or folder"):
        load_rows(DataConfig(source=source, columns=COLUMNS))


def test_a_name_that_no_file_system_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_hub_silence", lambda: ConnectionError("down"))
    with pytest.raises(ValueError, match="does not load"):
        load_rows(DataConfig(source="x" * 5000, columns=COLUMNS))


def test_what_is_wrong_within_a_folder_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.jsonl").write_text("{broken")
    with pytest.raises(ValueError, match=r"the folder data\.source=.*JSON.*Name one of its files"):
        load_rows(DataConfig(source=str(tmp_path / "rows"), columns=COLUMNS))
