"""A spool -> a table, at a few microseconds per line: `json.loads` of every line would take most of a minute for
50 runs of 10,000 steps.

Lines of one layout (the same names in the same order) differ in their numbers only, so the names are looked at as
bytes and the numbers of many lines are parsed in one call.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nemo_specrl.reporting.history import Column, RunHistory
from nemo_specrl.tracking.spool import EVENTS, Event, parse

_PREFIX = b'{"kind":"metrics","time":'
_HEAD = ("time", "attempt", "step", "values")
_BLOCK = 2048
_WORTH_FORKING = 50_000_000
TIME = "_time"
"""Column of the wall-clock time at which a step's line was written, seconds since 1970."""


class _Layout:
    """Metric lines with the same names."""

    def __init__(self, names: list[str], only: Container[str] | None) -> None:
        chosen = [i for i, name in enumerate(names) if name == "step" or only is None or name in only]
        self.names = [names[i] for i in chosen]
        self.step = self.names.index("step")
        self.order: list[int] = []
        self.blocks: list[Column] = []
        self._last = chosen[-1] == len(names) - 1
        # In a line split at its quotes the number of name i follows the name; there is no number behind "values".
        places = [6 + 2 * i if i < 3 else 8 + 2 * i for i in chosen]
        self._numbers = itemgetter(slice(places[0], places[0] + 1)) if len(places) == 1 else itemgetter(*places)
        self._pending: list[bytes] = []

    def add(self, pieces: list[bytes], order: int) -> None:
        text = b"".join(self._numbers(pieces))
        self._pending.append(text + b"," if self._last else text)
        self.order.append(order)
        if len(self._pending) == _BLOCK:
            self.flush()

    def flush(self) -> None:
        if self._pending:
            text = b"".join(self._pending).translate(None, b":{}\n").rstrip(b",")
            self.blocks.append(np.array(json.loads(b"[" + text + b"]"), np.float64).reshape(len(self._pending), -1))
            self._pending = []


def read_folder(folder: Path, only: Container[str] | None = None) -> RunHistory:
    """The run in an output folder, or just the metrics named in `only`. A step that was repeated after a kill counts
    as its last attempt recorded it.

    Raises ValueError if the folder holds no spool.
    """
    path = folder / EVENTS
    if not path.exists():
        raise ValueError(f"{folder} is no run's output folder: it has no {EVENTS}")
    layouts: dict[bytes, _Layout] = {}
    config: dict[str, str] = {}
    environment: dict[str, str] = {}
    status = "RUNNING"
    for order, line in enumerate(_lines(path)):
        if line.startswith(_PREFIX):
            pieces = line.split(b'"')
            signature = b'"'.join(pieces[5::2])
            if (layout := layouts.get(signature)) is None:
                layout = layouts[signature] = _Layout(_names(pieces[5::2]), only)
            layout.add(pieces, order)
        elif (event := parse(line)) is not None:
            status = _take(event, config, environment, status)
    steps, columns = _table(list(layouts.values()))
    seed = environment.get("seed", config.get("seed", ""))
    return RunHistory(
        source=str(folder),
        arm=environment.get("arm", config.get("name", folder.name)),
        seed=int(seed) if seed.lstrip("-").isdigit() else None,
        steps=steps,
        columns=columns,
        config=config,
        environment=environment,
        status=status,
    )


def read_folders(folders: Sequence[Path], only: Container[str] | None = None) -> list[RunHistory]:
    """Many runs, in order; on all cores where there is enough to read. Raises ValueError as `read_folder` does."""
    spools = (folder / EVENTS for folder in folders)
    size = sum(path.stat().st_size for path in spools if path.exists())
    workers = min(len(os.sched_getaffinity(0)), len(folders))
    if size < _WORTH_FORKING or workers < 2 or threading.active_count() > 1:  # a fork copies no thread but ours
        return [read_folder(folder, only) for folder in folders]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        return list(pool.map(partial(read_folder, only=only), folders))


def _lines(path: Path) -> Iterator[bytes]:
    """Whole lines: what a dying process left torn ends neither in a brace nor, perhaps, in a newline."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"}\n") and (not line.startswith(_PREFIX) or line.endswith(b"}}\n")):
                yield line


def _names(pieces: list[bytes]) -> list[str]:
    names = [json.loads(b'"' + piece + b'"') for piece in pieces]
    assert tuple(names[:4]) == _HEAD, f"a spool line starts with {names[:4]}, not {_HEAD}"
    return [TIME, "attempt", "step", *names[4:]]


def _take(event: Event, config: dict[str, str], environment: dict[str, str], status: str) -> str:
    match event["kind"]:
        case "params":
            config.update(event["values"])
        case "tags":
            environment.update(event["values"])
        case "start":
            config.clear()
            return "RUNNING"
        case "end":
            return str(event["status"])
    return status


def _table(layouts: list[_Layout]) -> tuple[NDArray[np.int64], dict[str, Column]]:
    """Layouts that share steps and names, merged; of two values of a step the later line's stays."""
    tables = []
    for layout in layouts:
        layout.flush()
        tables.append(np.concatenate(layout.blocks))
        layout.blocks = []
    if not tables:
        return np.zeros(0, np.int64), {}
    numbers = [table[:, layout.step].astype(np.int64) for table, layout in zip(tables, layouts, strict=True)]
    steps = np.unique(np.concatenate(numbers))
    rows = [np.searchsorted(steps, number) for number in numbers]
    where: dict[str, list[tuple[int, int]]] = {}
    for index, layout in enumerate(layouts):
        for position, name in enumerate(layout.names):
            if name not in ("attempt", "step"):
                where.setdefault(name, []).append((index, position))
    columns: dict[str, Column] = {}
    for name, places in where.items():
        column = columns[name] = np.full(len(steps), np.nan)
        row = np.concatenate([rows[i] for i, _ in places])
        value = np.concatenate([tables[i][:, p] for i, p in places])
        if len(places) > 1:
            later = np.argsort(np.concatenate([layouts[i].order for i, _ in places]), kind="stable")
            row, value = row[later], value[later]
        column[row] = value  # numpy keeps the last of repeated rows
    return steps, columns
