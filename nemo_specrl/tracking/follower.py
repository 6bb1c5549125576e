"""Sends spools to a sink from a thread of its own: bounded waiting, nothing sent twice, nothing missing for good."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import re
import threading
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from nemo_specrl.files import write_atomic
from nemo_specrl.tracking.spool import EVENTS, Event, parse, read_lines
from nemo_specrl.tracking.values import clean_key

LOG = logging.getLogger("nemo_specrl.tracking")
CHUNK = 200
"""Most events in memory at a time."""
MAX_BACKOFF_S = 60.0
CLOSING_BACKOFF_S = 2.0
"""The same once the run is closing, when there is little time left."""
POLL_S = 5.0
"""How long the thread sleeps when nobody wakes it: other nodes' spools grow without a word."""


class RunLostError(Exception):
    """The server no longer has the run: it has to be made again, and everything sent anew."""


class BlockedError(ValueError):
    """Waiting alone mends nothing: somebody has to act, such as to restore a run that lies in the server's bin."""


class Sink(Protocol):
    """Where events go. Any exception but RunLostError means: not now, try again later."""

    def open(self) -> bool:
        """Find or make the run; True if it is new, so that nothing has been sent to it yet."""
        ...

    def send(self, events: Sequence[Event]) -> int:
        """Take these events; returns how many entries were refused for good."""
        ...

    def newest(self) -> dict[str, int]:
        """The newest step of every metric that the run has."""
        ...

    def names(self) -> set[str]:
        """Of its parameters and tags."""
        ...

    def steps(self, key: str) -> set[int]:
        """All steps of one of its metrics."""
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
        self._replayed = ""
        """Digest of what was missing when the spools were last read again."""
        self._replay: dict[str, tuple[int, set[int]]] = {}
        """Where the spools are read again: each metric's newest step that was sent before, and those that are
        missing up to it."""
        self.refused = 0
        """Entries that the server will never take."""

    def start(self) -> None:
        self._thread.start()

    def open(self) -> None:
        """Open the sink, recall what it was sent before and compare that with what it has: where something is missing
        (it came while the run was deleted, or the server lost it), all spools are read again and what is missing is
        sent. What is still missing after that is not tried a second time. Raises what the sink raises."""
        new = self._sink.open()
        saved = {} if new or not self._state.exists() else json.loads(self._state.read_text())
        self._offsets, self._replayed = saved.get("offsets", {}), saved.get("replayed", "")
        self._sent, self._replay = {}, {}
        steps, names = self._recall()
        if steps or names:
            self._find_gaps(steps, names)
        self._opened = True

    def _recall(self) -> tuple[dict[str, array[int]], set[str]]:
        """What the spools hold before the offsets: each metric's steps; names of parameters and tags."""
        steps: dict[str, array[int]] = {}
        names: set[str] = set()
        for name, offset in self._offsets.items():
            for line, end in read_lines(self._folder / name):
                if end > offset:
                    break
                event = parse(line)
                if event is None or (event := self._unsent(event)) is None:
                    continue
                if event["kind"] in ("metrics", "system"):
                    for key in event["values"]:
                        steps.setdefault(clean_key(key), array("q")).append(event["step"])
                elif event["kind"] in ("params", "tags"):
                    names.update(map(clean_key, event["values"]))
        return steps, names

    def _find_gaps(self, sent: dict[str, array[int]], names: set[str]) -> None:
        """One request per metric. Where the sink lacks something, everything but the metrics that it has is sent anew:
        sending those other entries twice changes nothing."""
        there = self._sink.newest()
        replay = {
            key: (steps[-1], set(steps) - (self._sink.steps(key) if key in there else set()))
            for key, steps in sent.items()
        }
        missing = {key: sorted(steps) for key, (_, steps) in replay.items() if steps}
        missing |= {name: [] for name in names - self._sink.names()}
        mark = hashlib.blake2b(json.dumps(missing, sort_keys=True).encode(), digest_size=8).hexdigest()
        if not missing:
            self._replayed = ""
        elif mark != self._replayed:
            LOG.warning(
                "MLflow lacks %d of the entries that it was sent before: they are sent again from the spool",
                sum(max(1, len(steps)) for steps in missing.values()),
            )
            self._offsets, self._sent, self._replay, self._replayed = {}, {}, replay, mark

    def _look_back(self) -> None:
        """After an outage: a server that came back from a backup has older steps than it was sent."""
        newest = self._sink.newest()
        if any(newest.get(clean_key(key), -1) < step for (_, key), step in self._sent.items()):
            self.open()

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
        backoff, said, lost = 0.5, "", False
        while not self._given_up.is_set():
            try:
                if not self._opened:
                    self.open()
                elif said:
                    self._look_back()
                while self.step():
                    pass
                backoff, said, lost = 0.5, "", False
            except Exception as error:  # telemetry never ends a run: whatever it is, it is said and tried again
                self._opened = self._opened and not isinstance(error, RunLostError)
                if isinstance(error, RunLostError) and not lost:
                    lost = True
                    continue
                if _same_words(text := _first_line(error)) != _same_words(said):
                    LOG.warning("MLflow did not answer, will try again (nothing is lost): %s", text)
                said = text
                if self._closing.is_set() and isinstance(error, BlockedError):
                    return
                self._pause(backoff)
                backoff = min(2 * backoff, CLOSING_BACKOFF_S if self._closing.is_set() else MAX_BACKOFF_S)
                continue
            if self._closing.is_set():
                return
            self._wake.wait(POLL_S)
            self._wake.clear()

    def _pause(self, seconds: float) -> None:
        """Jittered, so that the runs of a cluster do not come back all at once; a run that closes tries at once."""
        waits = self._given_up if self._closing.is_set() else self._closing
        waits.wait(seconds * (0.5 + random.random()))

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
        if self._replay:
            fresh = {key: value for key, value in fresh.items() if self._lacks(clean_key(key), step)}
        return {**event, "values": fresh} if fresh else None

    def _lacks(self, key: str, step: int) -> bool:
        newest, missing = self._replay.get(key, (-1, ()))
        return step > newest or step in missing

    def _save(self) -> None:
        write_atomic(self._state, json.dumps({"offsets": self._offsets, "replayed": self._replayed}))


def _same_words(text: str) -> str:
    """Without addresses, ports and counts, which differ where nothing else does: one trouble is said once."""
    return re.sub(r"0x[0-9a-f]+|\d+", "", text)


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return f"{type(error).__name__}: {text.splitlines()[0][:300]}"
