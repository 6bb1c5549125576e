"""Spools read fast and right: the same table as the slow way gives."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_specrl.reporting.spool_reader import read_folder, read_folders
from nemo_specrl.tracking.spool import EVENTS, Spool, read_events

NAMES = ("a", "b/c", "größe", "d 1.5:x")
LINE = st.tuples(
    st.integers(1, 6),
    st.dictionaries(
        st.sampled_from(NAMES), st.one_of(st.integers(-(2**50), 2**50), st.floats(-1e300, 1e300)), min_size=1
    ),
)


def slowly(path: Path) -> dict[tuple[int, str], float]:
    """The specification: every line in order, later lines win."""
    return {
        (event["step"], key): float(value)
        for event in read_events(path)
        if event["kind"] == "metrics"
        for key, value in event["values"].items()
    }


@settings(deadline=None, max_examples=60)
@given(st.lists(LINE, min_size=1, max_size=30))
def test_the_table_is_what_json_says(tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[int, dict]]) -> None:
    folder = tmp_path_factory.mktemp("run")
    spool = Spool(folder / EVENTS)
    for step, values in lines:
        spool.append("metrics", attempt=1, step=step, values=values)
    run = read_folder(folder)
    found = {
        (int(step), key): float(value)
        for key in NAMES
        for step, value in zip(run.steps, run.column(key), strict=True)
        if not np.isnan(value)
    }
    assert found == slowly(folder / EVENTS)
    assert list(run.steps) == sorted({step for step, _ in lines})


def test_more_lines_than_a_block_with_changing_names(tmp_path: Path) -> None:
    spool = Spool(tmp_path / EVENTS)
    for step in range(5000):
        spool.append("metrics", attempt=1, step=step, values={"a": step, **({"val": -step} if step % 10 == 0 else {})})
    run = read_folder(tmp_path)
    assert np.array_equal(run.column("a"), np.arange(5000))
    assert np.array_equal(run.series("val"), -np.arange(0, 5000, 10))
    assert np.isnan(run.column("val")[1]), "missing is missing, not zero"


def test_a_repeated_step_counts_as_the_last_attempt_recorded_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path / EVENTS)
    spool.append("start", attempt=1, spool="x")
    for step in (1, 2, 3):
        spool.append("metrics", attempt=1, step=step, values={"loss": step, "old": 1})
    spool.append("start", attempt=2, spool="x")
    for step in (2, 3, 4):
        spool.append("metrics", attempt=2, step=step, values={"loss": 10 * step})
    run = read_folder(tmp_path)
    assert list(run.series("loss")) == [1, 20, 30, 40]
    assert run.total("loss") == 91
    assert run.status == "RUNNING"


@pytest.mark.parametrize(
    "torn", [b'{"kind":"metrics","time":1.0,"attempt":1,"step":9,"values":{"a":1.2', b'{"kind":"me']
)
@pytest.mark.parametrize("closed", [b"", b"\n"])
def test_a_torn_line_is_no_value(tmp_path: Path, torn: bytes, closed: bytes) -> None:
    Spool(tmp_path / EVENTS).append("metrics", attempt=1, step=1, values={"a": 1})
    with (tmp_path / EVENTS).open("ab") as file:
        file.write(torn + closed)
    assert list(read_folder(tmp_path).steps) == [1]


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    Spool(tmp_path / EVENTS).append("metrics", attempt=1, step=1, values={"a": 1, "b": 2, "c": 3})
    run = read_folder(tmp_path, only={"b"})
    assert list(run.series("b")) == [2]
    assert not run.has("a")
    assert list(read_folder(tmp_path, only={"nothing"}).steps) == [1]
    assert list(read_folder(tmp_path, only={"c"}).series("c")) == [3], (
        "the last number of a line has no comma behind it"
    )


def test_configuration_tags_and_status_are_the_newest(tmp_path: Path) -> None:
    spool = Spool(tmp_path / EVENTS)
    for attempt, rule in ((1, "off"), (2, "exact")):
        spool.append("start", attempt=attempt, spool="x")
        spool.append("params", attempt=attempt, values={"reuse.rule": rule})
        spool.append("params", attempt=attempt, values={"nemo_rl.x": "1"})
        spool.append("tags", attempt=attempt, values={"arm": "left", "seed": "-1", f"attempt.{attempt}": "host"})
        spool.append("end", attempt=attempt, status="KILLED" if attempt == 1 else "FINISHED", drops={})
    run = read_folder(tmp_path)
    assert run.config == {"reuse.rule": "exact", "nemo_rl.x": "1"}
    assert (run.arm, run.seed, run.status) == ("left", -1, "FINISHED")
    assert {"attempt.1", "attempt.2"} <= run.environment.keys()
    assert len(run) == 0


def test_a_folder_without_a_spool_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run's output folder"):
        read_folder(tmp_path)


def test_many_runs_on_all_cores_are_the_same_runs(bench: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [read_folder(folder) for folder in bench]
    monkeypatch.setattr("nemo_specrl.reporting.spool_reader._WORTH_FORKING", 0)
    together = read_folders(bench, None)
    assert [run.source for run in together] == [str(folder) for folder in bench]
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one.column("reward/mean"), other.column("reward/mean"))
        assert (one.config, one.seed, one.status) == (other.config, other.seed, other.status)


def test_time_and_memory_stay_near_the_table(make_run: Callable[..., Path]) -> None:
    """5,000 steps of 12 numbers are half a megabyte as a table; the text is five times that and must not stay."""
    folder = make_run(steps=5000)
    start = time.process_time()
    read_folder(folder)
    assert time.process_time() - start < 5000 * 150e-6, "150 us a line, ten times what it takes on an idle machine"
    tracemalloc.start()
    run = read_folder(folder)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    table = sum(column.nbytes for column in run.columns.values())
    assert kept < 3 * table
    assert peak < 8 * table + 4_000_000
    assert (folder / EVENTS).stat().st_size > 2 * table
    assert json.loads((folder / EVENTS).read_text().splitlines()[-1])["status"] == run.status
