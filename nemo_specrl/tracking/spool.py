"""The run's own record: one JSON object per line, on disk before anything else hears of it.

The spool is also the queue to MLflow: whoever sends it keeps a byte offset, so memory stays bounded however long
a server is away, and nothing is lost when the process dies.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

Event: TypeAlias = dict[str, Any]
EVENTS = "events.jsonl"
"""The spool's name inside a run's output folder."""


class Spool:
    """Appends events. A line reaches the operating system before `append` returns, so it survives kill -9."""

    def __init__(self, path: Path) -> None:
        """Opens (or makes) the file; a line that a dying process left torn is closed off. May raise OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def append(self, kind: str, **fields: Any) -> None:
        """Write one event of this kind with the wall-clock time, seconds since 1970. May raise OSError."""
        event = {"kind": kind, "time": round(time.time(), 3), **fields}
        line = json.dumps(event, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with self._lock:  # one write call per line: a reader never sees half of it
            written = os.write(self._file, line)
            if written < len(line):
                raise OSError(f"{self.path} took {written} of {len(line)} bytes: is the disk full?")

    def close(self) -> None:
        """Force what was written to the disk. May be called twice."""
        with self._lock:
            if self._file >= 0:
                os.fsync(self._file)
                os.close(self._file)
                self._file = -1


def read_lines(path: Path, offset: int = 0, limit: int | None = None) -> Iterator[tuple[bytes, int]]:
    """Complete lines from a byte offset on, each with the offset after it; a missing file has none."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(offset)
        for count, line in enumerate(file):
            if not line.endswith(b"\n") or (limit is not None and count >= limit):
                return
            offset += len(line)
            yield line, offset


def parse(line: bytes) -> Event | None:
    """The event of one line; None where a dying process left it torn."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "kind" in event else None


def read_events(path: Path) -> Iterator[Event]:
    """All whole events of a spool, in the order written."""
    for line, _ in read_lines(path):
        if (event := parse(line)) is not None:
            yield event
