"""The record on disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nemo_specrl.tracking.spool import EVENTS, Spool, parse, read_events, read_lines


def test_events_come_back_as_they_were_written(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "deep" / EVENTS)
    spool.append("metrics", step=1, values={"a": 0.1})
    spool.append("tags", values={"k": "line\nbreak"})
    events = list(read_events(spool.path))
    assert [e["kind"] for e in events] == ["metrics", "tags"]
    assert events[0]["values"] == {"a": 0.1}
    assert events[1]["values"] == {"k": "line\nbreak"}
    assert events[0]["time"] <= events[1]["time"]


def test_a_torn_line_costs_itself_only(tmp_path: Path) -> None:
    path = tmp_path / EVENTS
    Spool(path).append("start", attempt=1)
    with path.open("ab") as file:
        file.write(b'{"kind":"metrics","step":1,"val')
    assert [e["kind"] for e in read_events(path)] == ["start"]
    Spool(path).append("start", attempt=2)
    assert [e["attempt"] for e in read_events(path)] == [1, 2]


def test_nan_is_refused_before_it_is_on_disk(tmp_path: Path) -> None:
    spool = Spool(tmp_path / EVENTS)
    with pytest.raises(ValueError, match="JSON"):
        spool.append("metrics", step=1, values={"a": float("nan")})
    assert spool.path.read_bytes() == b""


def test_reading_goes_on_from_an_offset_and_stops_at_the_limit(tmp_path: Path) -> None:
    spool = Spool(tmp_path / EVENTS)
    for step in range(10):
        spool.append("metrics", step=step)
    first = list(read_lines(spool.path, limit=4))
    rest = list(read_lines(spool.path, first[-1][1]))
    assert len(first) == 4
    assert [json.loads(line)["step"] for line, _ in first + rest] == list(range(10))
    assert rest[-1][1] == spool.path.stat().st_size


def test_an_unfinished_line_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / EVENTS
    path.write_bytes(b'{"kind":"a"}\n{"kind":"b"')
    assert [line for line, _ in read_lines(path)] == [b'{"kind":"a"}\n']


@pytest.mark.parametrize("line", [b"nonsense\n", b"[1]\n", b'{"no":"kind"}\n', b"\xff\xfe\n"])
def test_what_is_no_event_is_passed_over(line: bytes) -> None:
    assert parse(line) is None


def test_threads_do_not_tear_each_others_lines(tmp_path: Path) -> None:
    spool = Spool(tmp_path / EVENTS)
    threads = [
        threading.Thread(target=lambda i=i: [spool.append("m", who=i, pad="x" * 5000) for _ in range(50)])
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(read_events(spool.path))) == 200


def test_kill_9_loses_no_line_that_was_written(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom nemo_specrl.tracking.spool import Spool\n"
        "s = Spool(Path(sys.argv[1]))\n"
        "for i in range(10**9):\n    s.append('metrics', step=i)\n    print(i, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / EVENTS)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 100:
            os.kill(process.pid, signal.SIGKILL)
            break
    said = [int(line), *(int(rest) for rest in process.stdout)]
    process.wait()
    assert len(list(read_events(tmp_path / EVENTS))) >= said[-1] + 1


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    spool = Spool(tmp_path / EVENTS)
    spool.close()
    spool.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        spool.append("late")
