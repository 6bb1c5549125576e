"""The Tracker that runs use: the spool first, MLflow second, and never an exception into training."""

from __future__ import annotations

import json
import logging
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_specrl.tracking.base import RunStatus
from nemo_specrl.tracking.follower import Follower
from nemo_specrl.tracking.redact import redact, redact_text
from nemo_specrl.tracking.spool import EVENTS, Spool, read_events
from nemo_specrl.tracking.system import SystemMetrics
from nemo_specrl.tracking.values import KeyCollisionError, KeyTable, flatten, numbers, stable_text

LOG = logging.getLogger("nemo_specrl.tracking")
MAX_CELL = 4000
"""Longest text in a sample table's cell, in characters."""
MAX_TABLE_BYTES = 64 * 2**20
"""A table's history stops growing here."""


class RunTracker:
    """Implements `tracking.base.Tracker`. One process of a run has one."""

    def __init__(self, output_dir: Path, *, flush_timeout_s: float = 30.0, max_rows: int = 8) -> None:
        """Opens the spool in the output folder. Raises OSError where the folder cannot be written."""
        self.output_dir = output_dir
        starts = [event for event in read_events(output_dir / EVENTS) if event["kind"] == "start"]
        self.attempt = len(starts) + 1
        self.spool_id: str = starts[0]["spool"] if starts else uuid.uuid4().hex
        self._spool = Spool(output_dir / EVENTS)
        self._spool.append("start", attempt=self.attempt, spool=self.spool_id)
        self._follower: Follower | None = None
        self._system: SystemMetrics | None = None
        self._keys = KeyTable()
        self._last: dict[str, int] = {}
        self._flush_timeout_s = flush_timeout_s
        self._max_rows = max_rows
        self._closed = False
        self._configs = 0
        self._reports: list[Callable[[Path], Path]] = []
        self.drops: Counter[str] = Counter()
        """Reason -> how many entries were not recorded."""

    def follow(self, follower: Follower) -> None:
        """From now on this thread sends the spool on."""
        self._follower = follower
        follower.start()

    def sample_system(self, every_s: float) -> None:
        """Record this node's load every so many seconds until the run is closed; 0 = not."""
        self._system = SystemMetrics(self.output_dir, every_s)

    def metrics(self, values: Mapping[str, Any], step: int) -> None:
        kept: dict[str, float | int] = {}
        for raw, number in numbers(values):
            try:
                key = self._keys.clean(raw)
            except KeyCollisionError as error:
                self._drop("key collision", str(error))
                continue
            if number is None:
                self._drop("not a number", f"metric {raw!r} is not a number: it is left out")
            elif self._last.get(key) != step:
                kept[key] = number if isinstance(number, int) else float(f"{number:.9g}")  # finer than fp32
                self._last[key] = step
        if kept:
            self._append("metrics", attempt=self.attempt, step=int(step), values=kept)

    def params(self, values: Mapping[str, Any]) -> None:
        clean = redact(values) if isinstance(values, dict) else redact(dict(values))
        flat = {key: stable_text(value) for key, value in flatten(clean, separator=".")}
        self._append("params", attempt=self.attempt, values=flat)
        self._configs += 1
        name = f"attempt-{self.attempt}" + (f"-{self._configs}" if self._configs > 1 else "")
        self._write(Path("config") / f"{name}.json", json.dumps(clean, indent=1, default=stable_text))

    def tags(self, values: Mapping[str, str]) -> None:
        self._append("tags", attempt=self.attempt, values={k: str(redact(v, k)) for k, v in flatten(values, ".")})

    def dataset(
        self, name: str, digest: str, source: str, context: str = "training", *, subset: str | None = None,
        split: str | None = None,
    ) -> None:  # fmt: skip
        where = redact_text(source)
        origin = {"kind": "code", "name": where}
        if os.path.exists(path := os.path.expanduser(source)):
            origin = {"kind": "local", "uri": redact_text(os.path.abspath(path))}
        elif "/" in source:
            origin = {"kind": "hub", "path": where, "subset": subset or "", "split": split or ""}
        self._append(
            "dataset", values={"name": name[:500], "digest": digest[:36], "source": origin, "context": context}
        )

    def model(self, folder: Path, name: str, step: int) -> None:
        self._append("model", path=str(folder.absolute()), name=name, step=int(step))

    def at_end(self, make: Callable[[Path], Path]) -> None:
        self._reports.append(make)

    def text(self, path: Path, content: str) -> None:
        """Write a small text as an artifact at this path below the run's artifacts; secrets are taken out."""
        self._write(path, redact_text(content))

    def artifact(self, path: Path, folder: str = "") -> None:
        try:
            target = self.output_dir / "artifacts" / folder / path.name
            if path.resolve() != target.resolve():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
        except OSError as error:
            self._drop("artifact", f"artifact {path} was not copied: {error}")
            return
        self._append("artifact", path=str(target.relative_to(self.output_dir)), folder=folder)

    def table(self, name: str, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        cut = [{key: _cell(value) for key, value in row.items()} for row in rows[: self._max_rows]]
        if not cut:
            return
        folder = self.output_dir / "tables"
        columns = list(cut[0])
        newest = {"columns": ["step", *columns], "data": [[step, *(row.get(c) for c in columns)] for row in cut]}
        try:
            folder.mkdir(exist_ok=True)
            history = folder / f"{name}.jsonl"
            if not history.exists() or history.stat().st_size < MAX_TABLE_BYTES:
                with history.open("a") as file:
                    file.writelines(json.dumps({"step": step, **row}) + "\n" for row in cut)
            (folder / f"{name}.json").write_text(json.dumps(newest))
        except (OSError, ValueError, TypeError) as error:
            self._drop("table", f"table {name!r} of step {step} was not written: {error}")
            return
        self._append("table", name=name, step=int(step), path=f"tables/{name}.json")

    def close(self, status: RunStatus) -> None:
        if self._closed:
            return
        self._closed = True
        if self._system is not None:
            self._system.stop()
        self._append("end", attempt=self.attempt, status=status, drops=dict(self.drops))
        for make in self._reports:  # after the end, which they tell of
            try:
                self.artifact(make(self.output_dir))
            except Exception as error:  # whatever a report stumbles over, the run is done
                self._drop("report", f"no report of the run: {error}")
        if self._follower is not None:
            pending = self._follower.close(self._flush_timeout_s)
            if pending:
                LOG.warning(
                    "%d bytes of events did not reach MLflow within %g s; they stay in %s and are sent when the run "
                    "is next started, or by `python -m nemo_specrl.tracking %s`",
                    pending, self._flush_timeout_s, self._spool.path, self.output_dir,
                )  # fmt: skip
            if self._follower.refused:
                LOG.warning("MLflow refused %d entries for good; the spool has them", self._follower.refused)
        if self.drops:
            LOG.warning("not recorded: %s", ", ".join(f"{n} ({why})" for why, n in self.drops.items()))
        try:
            self._spool.close()
        except OSError as error:
            LOG.warning("the spool could not be forced to disk: %s", error)

    def _write(self, path: Path, content: str) -> None:
        target = self.output_dir / "artifacts" / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, errors="backslashreplace")
        except OSError as error:
            self._drop("artifact", f"artifact {path} was not written: {error}")
            return
        self.artifact(target, "" if path.parent == Path() else str(path.parent))

    def _append(self, kind: str, **fields: Any) -> None:
        try:
            self._spool.append(kind, **fields)
        except (OSError, ValueError, TypeError) as error:
            self._drop("spool", f"an event could not be written to {self._spool.path}: {error}")
        if self._follower is not None:
            self._follower.wake()

    def _drop(self, reason: str, message: str) -> None:
        self.drops[reason] += 1
        if self.drops[reason] <= 3:
            LOG.warning("%s", message)


def _cell(value: Any) -> Any:
    if isinstance(value, bool | int | float) or value is None:
        return value
    text = redact_text(str(value))
    return text if len(text) <= MAX_CELL else text[:MAX_CELL] + f"... ({len(text)} characters)"
