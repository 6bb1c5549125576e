"""Sends spools to a sink from a thread of its own: bounded memory, bounded waiting, nothing sent twice."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from nemo_specrl.files import write_atomic
from nemo_specrl.tracking.spool import EVENTS, Event, parse, read_lines

LOG = logging.getLogger("nemo_specrl.tracking")
CHUNK = 200
"""Most events in memory at a time."""
MAX_BACKOFF_S = 60.0
POLL_S = 5.0
"""How long the thread sleeps when nobody wakes it: other nodes' spools grow without a word."""


class RunLostError(Exception):
    """The server no longer has the run: it has to be made again, and everything sent anew."""


class Sink(Protocol):
    """Where events go. Any exception but RunLostError means: not now, try again later."""

    def open(self) -> bool:
        """Find or make the run; True if it is new, so that nothing has been sent to it yet."""
        ...

    def send(self, events: Sequence[Event]) -> int:
        """Take these events; returns how many entries were refused for good."""
        ...


class Follower:
    """Tails `events.jsonl` and the other nodes' spools of an output folder."""

    def __init__(self, folder: Path, sink: Sink) -> None:
        self._folder = folder
        self._sink = sink
        self._state = folder / "mlflow_offsets.json"
        self._opened = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracking", daemon=True)
        self._sent: dict[tuple[str, str], int] = {}
        self._offsets: dict[str, int] = {}
        self.refused = 0
        """Entries that the server will never take."""

    def start(self) -> None:
        self._thread.start()

    def open(self) -> None:
        """Open the sink and recall what it was sent before. Raises what the sink raises."""
        new = self._sink.open()
        self._offsets = {} if new or not self._state.exists() else json.loads(self._state.read_text())
        self._sent = {}
        for name, offset in self._offsets.items():
            for line, end in read_lines(self._folder / name):
                if end > offset:
                    break
                if (event := parse(line)) is not None:
                    self._unsent(event)
        self._opened = True

    def wake(self) -> None:
        self._wake.set()

    def close(self, timeout_s: float) -> int:
        """Send what is left within so many seconds; returns the bytes of spool that stay unsent."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._given_up.set()
        return self.pending()

    def pending(self) -> int:
        """Bytes of spool that the sink has not taken yet."""
        return sum(path.stat().st_size - self._offsets.get(name, 0) for name, path in self._spools().items())

    def _spools(self) -> dict[str, Path]:
        paths = [self._folder / EVENTS, *sorted(self._folder.glob("system/*.jsonl"))]
        return {str(path.relative_to(self._folder)): path for path in paths if path.exists()}

    def _run(self) -> None:
        backoff = 0.5
        while not self._given_up.is_set():
            try:
                if not self._opened:
                    self.open()
                while self.step():
                    pass
                backoff = 0.5
            except RunLostError:
                self._opened = False
                continue
            except Exception as error:  # telemetry never ends a run: whatever it is, it is said and tried again
                LOG.warning("MLflow did not answer, will try again (nothing is lost): %s", _first_line(error))
                self._pause(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF_S)
                continue
            if self._closing.is_set():
                return
            self._wake.wait(POLL_S)
            self._wake.clear()

    def _pause(self, seconds: float) -> None:
        """Jittered, so that the runs of a cluster do not come back all at once; short once the run is closing."""
        deadline = time.monotonic() + seconds * (0.5 + random.random())
        while time.monotonic() < deadline:
            if self._closing.wait(min(0.2, max(0.0, deadline - time.monotonic()))):
                time.sleep(0.2)
                return

    def step(self) -> bool:
        """Send one chunk of every spool; False when there was nothing to send."""
        worked = False
        for name, path in self._spools().items():
            chunk = list(read_lines(path, self._offsets.get(name, 0), CHUNK))
            if not chunk:
                continue
            before = dict(self._sent)
            try:
                events = [unsent for line, _ in chunk if (e := parse(line)) is not None and (unsent := self._unsent(e))]
                self.refused += self._sink.send(events)
            except BaseException:
                self._sent = before
                raise
            self._offsets[name] = chunk[-1][1]
            self._save()
            worked = True
        return worked

    def _unsent(self, event: Event) -> Event | None:
        """The event without the values whose step was sent before: a resumed run repeats steps, MLflow must not."""
        if event["kind"] not in ("metrics", "system"):
            return event
        step, source = event["step"], event.get("node", "")
        fresh = {key: value for key, value in event["values"].items() if step > self._sent.get((source, key), -1)}
        self._sent.update({(source, key): step for key in fresh})
        return {**event, "values": fresh} if fresh else None

    def _save(self) -> None:
        write_atomic(self._state, json.dumps(self._offsets))


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return f"{type(error).__name__}: {text.splitlines()[0][:300]}"
