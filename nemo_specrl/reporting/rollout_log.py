"""The sampled rollouts of a run, token by token: one line of JSON a step, in a file that stays bounded.

A line is {"step", "epoch", "rollouts": [...]}; a rollout has `prompt`, `answer`, `slot`, `reward` (null: could not be
scored), `advantage`, `finish` and, one entry a token, `tokens` (texts), `ids`, `logprobs` (of the policy) and `by`
(letters of contracts.sample.WRITERS); `left_out` tokens are missing before token `cut`, where a response is long.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nemo_specrl.files import write_atomic

Step: TypeAlias = dict[str, Any]
ROLLOUTS = "rollouts.jsonl"
"""The file's name inside a run's output folder."""
MAX_BYTES = 32 * 2**20
"""Where it grows beyond this, every second step goes, evenly over the run."""


def append(folder: Path, step: int, epoch: int, rollouts: Sequence[Mapping[str, Any]]) -> None:
    """Add a step's rollouts. A step that was repeated after a kill counts as it was last. May raise OSError."""
    path = folder / ROLLOUTS
    line = json.dumps({"step": step, "epoch": epoch, "rollouts": list(rollouts)}, separators=(",", ":")) + "\n"
    with path.open("a", encoding="ascii") as file:
        if file.tell() and not _ends_whole(path):
            file.write("\n")
        file.write(line)
        size = file.tell()
    if size > MAX_BYTES:
        found = _lines(path)
        write_atomic(path, b"".join(found[kept] for kept in spread(list(found), max(len(found) // 2, 1))))


def read(folder: Path, budget: int) -> list[Step]:
    """Steps in order, so many of them, evenly over the run, that their lines together have at most `budget` bytes (but
    at least the newest); none where nothing was logged."""
    found = _lines(folder / ROLLOUTS)
    count = len(found)
    while count > 1 and sum(len(found[step]) for step in spread(list(found), count)) > budget:
        count -= max(count // 8, 1)
    return [json.loads(found[step]) for step in spread(list(found), count)]


def spread(steps: Sequence[int], count: int) -> list[int]:
    """At most `count` of the ascending steps, those next to an even spacing, the last always among them."""
    if not steps:
        return []
    if count >= len(steps):
        return list(steps)
    known = np.asarray(steps)
    wanted = np.linspace(known[-1], known[0], max(count, 1))
    return sorted({int(known[np.abs(known - step).argmin()]) for step in wanted})


def _lines(path: Path) -> dict[int, bytes]:
    """Step -> its last whole line, in the order of steps."""
    if not path.exists():
        return {}
    found: dict[int, bytes] = {}
    with path.open("rb") as file:
        for line in file:
            head = line[: line.find(b",")]
            if line.startswith(b'{"step":') and line.endswith(b"}\n"):
                found[int(head[len(b'{"step":') :])] = line
    return dict(sorted(found.items()))


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
