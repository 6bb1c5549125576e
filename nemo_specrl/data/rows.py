"""Rows from files and datasets, with the field names of a `DataConfig`, validated before anything heavy starts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from nemo_specrl.config.data import DataConfig
from nemo_specrl.data.arithmetic import arithmetic_problems

Message: TypeAlias = dict[str, str]
RawRow: TypeAlias = dict[str, Any]

_REQUIRED, _OPTIONAL = ("prompt", "answer"), ("source",)
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One validated row, not yet tokenised."""

    number: int
    """Its position in the source, from 0."""
    prompt: str | list[Message]
    answer: str
    source: str


def load_rows(config: DataConfig) -> list[Row]:
    """The source's rows, mapped by `config.columns`, at most `config.limit`. ValueError names rows, fields, columns."""
    fields = set(config.columns)
    if unknown := sorted(fields - {*_REQUIRED, *_OPTIONAL}):
        raise ValueError(f"data.columns maps {', '.join(unknown)}; the fields are prompt, answer and source.")
    if missing := [field for field in _REQUIRED if field not in fields]:
        raise ValueError(f"data.columns does not map {', '.join(missing)}; it needs prompt and answer.")
    raw = list(islice(_read(config), config.limit))
    if not raw:
        raise ValueError(f"{config.source} has no rows (split {config.split!r}, limit {config.limit}).")
    rows: list[Row] = []
    faults: list[str] = []
    for number, values in enumerate(raw):
        row = _row(number, values, config)
        if isinstance(row, Row):
            rows.append(row)
        else:
            faults.append(row)
    if faults:
        more = f" ... and {len(faults) - _MOST_NAMED} more rows" if len(faults) > _MOST_NAMED else ""
        raise ValueError(
            f"{config.source}: {len(faults)} of {len(raw)} rows cannot be used: {'; '.join(faults[:_MOST_NAMED])}{more}"
            f". Map the columns with data.columns (now {config.columns}), or repair the rows."
        )
    return rows


def rows_digest(rows: Sequence[Row]) -> str:
    """Hex digest (16 characters) of what the rows say: equal data has an equal digest wherever it is stored."""
    digest = hashlib.blake2b(digest_size=8)
    for row in rows:
        digest.update(json.dumps([row.prompt, row.answer, row.source]).encode() + b"\n")
    return digest.hexdigest()


def _row(number: int, values: RawRow, config: DataConfig) -> Row | str:
    """The row, or what is wrong with it."""
    found = ", ".join(map(str, values)) or "none"
    for field in config.columns:
        if config.columns[field] not in values:
            return f"row {number} has no column {config.columns[field]!r} for {field} (columns: {found})"
    prompt, answer = values[config.columns["prompt"]], values[config.columns["answer"]]
    if isinstance(prompt, str):
        if not prompt.strip():
            return f"row {number} has an empty prompt"
    elif fault := _message_fault(prompt):
        return f"row {number}: {fault}"
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)):
        return f"row {number} has the answer {answer!r}, which is neither text nor a number"
    if not str(answer).strip():
        return f"row {number} has an empty answer: no response to it could be right"
    source = values[config.columns["source"]] if "source" in config.columns else "default"
    if not isinstance(source, str) or not source:
        return f"row {number} has the source {source!r}, which is not a name"
    return Row(number, prompt if isinstance(prompt, str) else [dict(m) for m in prompt], str(answer).strip(), source)


def _message_fault(prompt: Any) -> str | None:
    """What keeps `prompt` from being a chat: a list of {role, content} whose last one is not the assistant's."""
    if not isinstance(prompt, Sequence) or not prompt:
        return f"its prompt is neither text nor a list of chat messages but {type(prompt).__name__}"
    for message in prompt:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            return f"its prompt has a message without text under role and content: {message!r}"
    return "its prompt ends with the assistant's own message" if prompt[-1]["role"] == "assistant" else None


def _read(config: DataConfig) -> Iterable[RawRow]:
    if config.source == "arithmetic":
        names = config.columns
        problems = arithmetic_problems(config)
        return ({names["prompt"]: p, names["answer"]: a, names.get("source", "source"): s} for p, a, s in problems)
    path = Path(config.source).expanduser()
    if path.suffix in {".jsonl", ".json", ".parquet"} or path.is_file():
        if not path.is_file():
            raise ValueError(f"data.source: there is no file {config.source}.")
        return _read_parquet(path) if path.suffix == ".parquet" else _read_jsonl(path)
    return _read_dataset(config)


def _read_jsonl(path: Path) -> Iterable[RawRow]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error}). Write one object per line.") from error
            if not isinstance(value, dict):
                raise ValueError(f"{path}, line {number}: not an object. Write one object per line.")
            yield value


def _read_parquet(path: Path) -> Iterable[RawRow]:
    import pyarrow.parquet as parquet

    try:
        for batch in parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except OSError as error:  # pyarrow's errors of a broken file are OSErrors and ValueErrors
        raise ValueError(f"{path} is not a readable Parquet file: {error}") from error


def _read_dataset(config: DataConfig) -> Iterable[RawRow]:
    from datasets import load_dataset

    try:
        dataset = load_dataset(config.source, name=config.name, split=config.split)
    except Exception as error:  # datasets raises whatever its backends raise
        raise ValueError(
            f"data.source={config.source!r} is neither `arithmetic` nor a file, and the hub's dataset of that name "
            f"(name={config.name!r}, split={config.split!r}) does not load: {error} "
            f"Without internet: download it elsewhere with HF_HOME on a shared disk, or point data.source to a file."
        ) from error
    return (dict(row) for row in dataset)
