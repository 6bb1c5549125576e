"""Nothing lost, nothing twice, nobody kept waiting; against a sink that can be told to fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nemo_specrl.tracking.follower import CHUNK, BlockedError, Follower, RunLostError
from nemo_specrl.tracking.spool import EVENTS, Event, Spool


class MemorySink:
    """Keeps what it takes; `trouble` is called before each send."""

    def __init__(self) -> None:
        self.taken: list[Event] = []
        self.trouble: Callable[[], object] = lambda: None
        self.new = True
        self.opened = 0

    def open(self) -> bool:
        self.trouble()
        self.opened += 1
        new, self.new = self.new, False
        return new

    def send(self, events: Sequence[Event]) -> int:
        self.trouble()
        assert len(events) <= CHUNK
        self.taken += events
        return 0

    def newest(self) -> dict[str, int]:
        self.trouble()
        return {key: max(self.steps(key)) for _, key in self.points()}

    def steps(self, key: str) -> set[int]:
        return {step for step, name in self.points() if name == key}

    def names(self) -> set[str]:
        return {key for e in self.taken if e["kind"] in ("tags", "params") for key in e["values"]}

    def points(self) -> list[tuple[int, str]]:
        return [(e["step"], key) for e in self.taken if e["kind"] == "metrics" for key in e["values"]]


def write(spool: Spool, steps: Sequence[int], *keys: str) -> None:
    for step in steps:
        spool.append("metrics", attempt=1, step=step, values=dict.fromkeys(keys or ("loss",), step))


def down() -> None:
    raise ConnectionError("down")


def wait(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def test_what_was_written_while_the_sink_was_down_arrives_once(tmp_path: Path) -> None:
    spool, sink = Spool(tmp_path / EVENTS), MemorySink()
    follower = Follower(tmp_path, sink)
    follower.start()
    write(spool, range(3))
    follower.wake()
    wait(lambda: len(sink.taken) == 3)
    sink.trouble = down
    write(spool, range(3, 1000))
    follower.wake()
    time.sleep(0.3)
    sink.trouble = lambda: None
    wait(lambda: len(sink.taken) == 1000)
    assert follower.close(5) == 0
    assert [e["step"] for e in sink.taken] == list(range(1000))


def test_a_sink_that_is_down_from_the_start(tmp_path: Path) -> None:
    spool, sink = Spool(tmp_path / EVENTS), MemorySink()
    sink.trouble = down
    follower = Follower(tmp_path, sink)
    follower.start()
    write(spool, range(5))
    start = time.monotonic()
    assert follower.close(0.5) == spool.path.stat().st_size, "all of it is reported as unsent"
    assert time.monotonic() - start < 3


def test_closing_does_not_wait_for_a_sink_that_hangs(tmp_path: Path) -> None:
    spool, sink, release = Spool(tmp_path / EVENTS), MemorySink(), threading.Event()
    sink.trouble = lambda: release.wait(60)
    follower = Follower(tmp_path, sink)
    follower.start()
    write(spool, range(5))
    start = time.monotonic()
    assert follower.close(0.5) > 0
    assert time.monotonic() - start < 3
    release.set()


def test_the_next_process_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    spool, sink = Spool(tmp_path / EVENTS), MemorySink()
    for steps in (range(5), range(5, 9)):
        write(spool, steps)
        follower = Follower(tmp_path, sink)
        follower.open()
        while follower.step():
            pass
    assert [e["step"] for e in sink.taken] == list(range(9))


def test_steps_that_a_resumed_run_repeats_are_not_sent_again(tmp_path: Path) -> None:
    """The dead attempt reached step 7 and was resumed from step 4: 5..7 come a second time, with a new key in 6."""
    spool, sink = Spool(tmp_path / EVENTS), MemorySink()
    write(spool, range(1, 8))
    first = Follower(tmp_path, sink)
    first.open()
    while first.step():
        pass
    write(spool, [5])
    write(spool, [6], "loss", "val/reward")
    write(spool, [7, 8])
    second = Follower(tmp_path, sink)
    second.open()
    while second.step():
        pass
    expected = [(step, "loss") for step in range(1, 8)] + [(6, "val/reward"), (8, "loss")]
    assert sink.points() == expected


def test_repeats_within_one_unsent_stretch_are_dropped_too(tmp_path: Path) -> None:
    spool, sink = Spool(tmp_path / EVENTS), MemorySink()
    write(spool, [1, 2, 3, 2, 3, 4])
    follower = Follower(tmp_path, sink)
    follower.open()
    follower.step()
    assert sink.points() == [(step, "loss") for step in (1, 2, 3, 4)]


def test_a_failed_send_forgets_that_it_had_marked_the_steps(tmp_path: Path) -> None:
    spool, sink = Spool(tmp_path / EVENTS), MemorySink()
    write(spool, [1, 2])
    follower = Follower(tmp_path, sink)
    follower.open()
    sink.trouble = down
    for _ in range(3):
        try:
            follower.step()
        except ConnectionError:
            continue
    sink.trouble = lambda: None
    follower.step()
    assert sink.points() == [(1, "loss"), (2, "loss")]


def test_a_run_that_the_server_lost_is_sent_anew_from_the_beginning(tmp_path: Path) -> None:
    spool, sink = Spool(tmp_path / EVENTS), MemorySink()
    follower = Follower(tmp_path, sink)
    follower.start()
    write(spool, range(4))
    follower.wake()
    wait(lambda: len(sink.taken) == 4)

    def lost() -> None:
        sink.trouble, sink.new = (lambda: None), True
        sink.taken.clear()
        raise RunLostError

    sink.trouble = lost
    write(spool, [4])
    follower.wake()
    wait(lambda: len(sink.taken) == 5)
    follower.close(5)
    assert [e["step"] for e in sink.taken] == [0, 1, 2, 3, 4]
    assert sink.opened == 2


def test_other_nodes_spools_are_sent_as_well(tmp_path: Path) -> None:
    sink = MemorySink()
    Spool(tmp_path / EVENTS).append("start", attempt=1)
    for node in ("a", "b"):
        Spool(tmp_path / "system" / f"{node}.jsonl").append(
            "system", node=node, step=3, values={f"system/{node}/cpu": 1}
        )
    follower = Follower(tmp_path, sink)
    follower.open()
    while follower.step():
        pass
    assert [e.get("node") for e in sink.taken] == [None, "a", "b"]


def test_a_torn_line_does_not_stop_the_rest(tmp_path: Path) -> None:
    path, sink = tmp_path / EVENTS, MemorySink()
    path.write_bytes(b'{"kind":"metr\n')
    write(Spool(path), [1])
    follower = Follower(tmp_path, sink)
    follower.open()
    while follower.step():
        pass
    assert sink.points() == [(1, "loss")]


def run_through(folder: Path, sink: MemorySink) -> None:
    follower = Follower(folder, sink)
    follower.open()
    while follower.step():
        pass


def test_a_gap_is_filled_from_the_spool_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool, sink = Spool(tmp_path / EVENTS), MemorySink()
    spool.append("params", attempt=1, values={"seed": "1"})
    write(spool, range(1, 1001), "loss", "reward")
    write(spool, range(500, 1005), "loss")  # a resumed attempt repeats steps
    run_through(tmp_path, sink)
    before = sorted(sink.points())
    sink.taken = [e for e in sink.taken if e["kind"] != "metrics" or not 200 <= e["step"] < 300]
    for event in sink.taken:
        if event["kind"] == "metrics" and event["step"] == 7:
            del event["values"]["loss"]
    run_through(tmp_path, sink)
    assert sorted(sink.points()) == before, "what was missing came back, and nothing twice"
    assert "lacks 201 of the entries" in caplog.text
    taken = len(sink.taken)
    run_through(tmp_path, sink)
    assert len(sink.taken) == taken


def test_a_lost_parameter_or_tag_is_a_gap(tmp_path: Path) -> None:
    spool, sink = Spool(tmp_path / EVENTS), MemorySink()
    spool.append("tags", values={"arm": "x"})
    write(spool, range(1, 5))
    run_through(tmp_path, sink)
    sink.taken = [e for e in sink.taken if e["kind"] != "tags"]
    run_through(tmp_path, sink)
    assert sink.names() == {"arm"}
    assert sink.points() == [(step, "loss") for step in range(1, 5)]


def test_what_the_sink_refuses_is_not_replayed_for_ever(tmp_path: Path) -> None:
    class Refusing(MemorySink):
        def send(self, events: Sequence[Event]) -> int:
            return super().send([e for e in events if e["step"] != 3])

    spool, sink = Spool(tmp_path / EVENTS), Refusing()
    write(spool, range(1, 5))
    sends = []
    for _ in range(4):
        before = len(sink.taken)
        run_through(tmp_path, sink)
        sends.append(len(sink.taken) - before)
    assert sends == [3, 0, 0, 0]
    sink.taken = sink.taken[:1]  # and then something else is lost
    run_through(tmp_path, sink)
    assert sink.points() == [(1, "loss"), (2, "loss"), (4, "loss")]


def test_a_server_that_comes_back_from_a_backup_is_caught_up(tmp_path: Path) -> None:
    spool, sink = Spool(tmp_path / EVENTS), MemorySink()
    follower = Follower(tmp_path, sink)
    follower.start()
    write(spool, range(50))
    follower.wake()
    wait(lambda: len(sink.taken) == 50)
    sink.trouble = down
    write(spool, range(50, 60))
    follower.wake()
    time.sleep(0.2)
    sink.taken = sink.taken[:20]
    sink.trouble = lambda: None
    wait(lambda: len(sink.taken) == 60)
    assert follower.close(5) == 0
    assert sorted(sink.points()) == [(step, "loss") for step in range(60)]


def test_a_blocked_sink_is_said_once_and_does_not_hold_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool, sink = Spool(tmp_path / EVENTS), MemorySink()
    asked = []

    def blocked() -> None:
        asked.append(time.monotonic())
        raise BlockedError(f"the experiment was deleted (request {len(asked)})")

    sink.trouble = blocked
    follower = Follower(tmp_path, sink)
    follower.start()
    write(spool, range(5))
    wait(lambda: len(asked) >= 3)
    start = time.monotonic()
    assert follower.close(30) > 0
    assert time.monotonic() - start < 2
    assert caplog.text.count("was deleted") == 1


def test_a_closing_run_does_not_hammer_a_server_that_is_down(tmp_path: Path) -> None:
    spool, sink = Spool(tmp_path / EVENTS), MemorySink()
    asked = []

    def refuse() -> None:
        asked.append(0)
        raise ConnectionError("503")

    sink.trouble = refuse
    follower = Follower(tmp_path, sink)
    follower.start()
    write(spool, range(5))
    assert follower.close(3) > 0
    assert len(asked) < 10, "five times a second before"
