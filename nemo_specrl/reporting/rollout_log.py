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
        lines = _lines(path)
        kept = [lines[i] for i in spread(len(lines), max(len(lines) // 2, 1))]
        scratch = path.with_suffix(".tmp")
        scratch.write_bytes(b"".join(kept))
        os.replace(scratch, path)


def read(folder: Path, budget: int) -> list[Step]:
    """Steps in order, so many of them, evenly over the run, that their lines together have at most `budget` bytes (but
    at least the newest); none where nothing was logged."""
    lines = _lines(folder / ROLLOUTS)
    count = len(lines)
    while count > 1 and sum(len(lines[i]) for i in spread(len(lines), count)) > budget:
        count -= max(count // 8, 1)
    return [json.loads(lines[i]) for i in spread(len(lines), count)]


def spread(n: int, count: int) -> list[int]:
    """`count` of n indices, evenly, the last always among them."""
    return sorted({n - 1 - int(i) for i in np.linspace(0, n - 1, count)}) if n else []


def _lines(path: Path) -> list[bytes]:
    """The last whole line of each step, ordered by step."""
    if not path.exists():
        return []
    found: dict[int, bytes] = {}
    with path.open("rb") as file:
        for line in file:
            head = line[: line.find(b",")]
            if line.startswith(b'{"step":') and line.endswith(b"}\n"):
                found[int(head[len(b'{"step":') :])] = line
    return [line for _, line in sorted(found.items())]


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
