"""Rows from one file: JSON lines, a JSON array, CSV or Parquet. What cannot be read is named by file and line.

JSON and CSV go through the standard library and not through `datasets`, which wants one type a column (an answer of 7
beside one of "x = 3" would be an error, the CSV's 007 would become 7) and names no line."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

RawRow: TypeAlias = dict[str, Any]


def read_file(path: Path) -> Iterator[RawRow]:
    """The file's rows as they are. ValueError that names file and line, or row, and the remedy."""
    try:
        yield from READERS.get(path.suffix.lower(), _read_jsonl)(path)
    except OSError as error:
        raise ValueError(f"data.source={path} cannot be read: {error.strerror or error}.") from error


def _read_json(path: Path) -> Iterator[RawRow]:
    """An array of objects; a file that does not begin with a bracket holds JSON lines."""
    with path.open("rb") as file:
        start = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start.startswith(b"["):
        yield from _read_jsonl(path)
        return
    text = "".join(line for _, line in _lines(path))
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: not JSON ({error}). Write an array of objects.") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {_line_of_long_number(text)}: {_unreadable(error)}") from error
    for number, value in enumerate(rows):
        if not isinstance(value, dict):
            raise ValueError(f"{path}, row {number}: not an object. Write an array of objects.")
        yield value


def _read_jsonl(path: Path) -> Iterator[RawRow]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error}). Write one object per line.") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: {_unreadable(error)}") from error
        if not isinstance(value, dict):
            raise ValueError(f"{path}, line {number}: not an object. Write one object per line.")
        yield value


def _read_csv(path: Path, delimiter: str = ",") -> Iterator[RawRow]:
    """Every value is text, as it stands there."""
    reader = csv.DictReader((line for _, line in _lines(path)), strict=True, delimiter=delimiter)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(
                    f"{path}, line {reader.line_num}: {'more' if None in row else 'fewer'} fields than the header's "
                    f"{len(reader.fieldnames or ())}. Quote a value that holds a comma, a quote or a line break."
                )
            yield row
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {reader.reader.line_num}: not CSV ({error}). Quote it as RFC 4180 does."
        ) from error


def _read_tsv(path: Path) -> Iterator[RawRow]:
    return _read_csv(path, "\t")


def _read_parquet(path: Path) -> Iterator[RawRow]:
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        for batch in parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except (OSError, ValueError, pyarrow.ArrowException) as error:  # a broken file may raise any of them
        raise ValueError(f"{path} is not a readable Parquet file ({error}). Write or copy it again.") from error


READERS: dict[str, Callable[[Path], Iterator[RawRow]]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".parquet": _read_parquet,
}
"""Ending -> reader; a file of any other name is read as JSON lines. A new format is one function and one line."""


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered from 1, without a byte order mark."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: not UTF-8 ({error.reason} {line[error.start]:#x}). Write it in UTF-8, "
                    f"e.g. iconv -f LATIN1 -t UTF-8, and unpack it first if it is compressed."
                ) from error


def _unreadable(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply. Write one flat object per row."
    return f"a number of more than {sys.get_int_max_str_digits()} digits. Write it as text, in quotes."


def _line_of_long_number(text: str) -> int:
    """Line of the first integer that Python refuses to read; 1 where there is none."""
    found = re.search(rf"\d{{{sys.get_int_max_str_digits() + 1},}}", text)
    return 1 + text.count("\n", 0, found.start() if found else 0)
