"""Rows from files and datasets, with the field names of a `DataConfig`, validated before anything heavy starts."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from nemo_specrl.config.data import DataConfig
from nemo_specrl.data.arithmetic import arithmetic_problems
from nemo_specrl.data.files import READERS, RawRow, read_file
from nemo_specrl.data.hub import read_dataset

Message: TypeAlias = dict[str, str]

_REQUIRED, _OPTIONAL = ("prompt", "answer"), ("source",)
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One validated row, not yet tokenised."""

    number: int
    """Its position in the source, from 0; in a CSV the header is not counted."""
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
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float, Decimal)):
        return f"row {number} has the answer {reprlib.repr(answer)}, which is neither text nor a number"
    if isinstance(answer, (float, Decimal)) and not math.isfinite(answer):
        return f"row {number} has the answer {answer}: a missing value, or a number beyond what a float holds"
    if not str(answer).strip():
        return f"row {number} has an empty answer: no response to it could be right"
    source = values[config.columns["source"]] if "source" in config.columns else "default"
    if not isinstance(source, str) or not source:
        return f"row {number} has the source {source!r}, which is not a name"
    said = [prompt] if isinstance(prompt, str) else [text for message in prompt for text in message.values()]
    for text in (*said, answer, source):
        if isinstance(text, str) and (half := _lone_surrogate(text)):
            return f"row {number} has half of a character ({half!r}, a lone surrogate), which no encoding can write"
    return Row(number, prompt if isinstance(prompt, str) else [dict(m) for m in prompt], str(answer).strip(), source)


def _lone_surrogate(text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return text[error.start]
    return None


def _message_fault(prompt: Any) -> str | None:
    """What keeps `prompt` from being a chat: a list of {role, content} whose last one is not the assistant's."""
    if not isinstance(prompt, Sequence) or not prompt:
        return f"its prompt is neither text nor a list of chat messages but {type(prompt).__name__}"
    for message in prompt:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            return f"its prompt has a message without text under role and content: {reprlib.repr(message)}"
    return "its prompt ends with the assistant's own message" if prompt[-1]["role"] == "assistant" else None


def _read(config: DataConfig) -> Iterable[RawRow]:
    if config.source == "arithmetic":
        names = config.columns
        problems = arithmetic_problems(config)
        return ({names["prompt"]: p, names["answer"]: a, names.get("source", "source"): s} for p, a, s in problems)
    if is_file(config.source):
        return read_file(Path(config.source).expanduser())
    if is_local(config.source):
        raise ValueError(f"data.source: there is no file {config.source}.")
    return read_dataset(config)


def is_local(source: str) -> bool:
    """Whether the source is no datasets name: built in, or a file's name."""
    return source == "arithmetic" or Path(source).suffix.lower() in READERS or is_file(source)


def is_file(source: str) -> bool:
    """Whether it is there. A name that no file system takes is none."""
    try:
        return Path(source).expanduser().is_file()
    except (OSError, RuntimeError):  # too long, or of an unknown user's home
        return False
