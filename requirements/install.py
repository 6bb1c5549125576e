"""`python requirements/install.py WHAT [pip arguments ...]`: pip install, with its progress in few words.

Says what is installed and how far it is: one line that is rewritten on a terminal, a line now and then elsewhere. All
that pip says, with the warnings that some mirrors cause for every package, goes to pip.log in the environment; its end
is shown where pip fails. Standard library only: it runs in an empty environment.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TextIO

PIP = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off", "--no-input"]
EVERY_S = 15.0
_FETCH = re.compile(
    r"Collecting (?P<name>[^\s;(]+)|Processing (?P<path>\S+)|Requirement already satisfied: (?P<had>\S+)"
)
_SIZE = re.compile(r"(?:Downloading|Using cached) (?P<file>\S+) \((?P<size>[^)]+)\)")


def progress(lines: Iterable[str], total: int | None) -> Iterator[str]:
    """What is to be shown after each of pip's lines that says something new; `total` packages, where that is known."""
    of = f"/{total}" if total else ""
    fetched = 0
    for line in lines:
        line = line.strip()
        if found := _FETCH.match(line):
            fetched += 1
            name = found["name"] or found["had"] or Path(found["path"]).name
            yield f"{fetched}{of} {name}"
        elif found := _SIZE.match(line):
            yield f"{fetched}{of} {Path(found['file']).name} ({found['size']})"
        elif line.startswith("Installing collected packages:"):
            number = len(line.split(","))
            yield f"unpacking {number} packages" if number > 1 else "unpacking"


def show(texts: Iterable[str], what: str, out: TextIO) -> None:
    """On a terminal one line, rewritten; elsewhere the first, the last, and one every 15 seconds."""
    start = time.monotonic()
    shown, last = -EVERY_S, None
    for text in texts:
        took = time.monotonic() - start
        if out.isatty():
            width = shutil.get_terminal_size().columns - 1
            out.write(f"\r{f'{what}: {text}, {took:.0f} s'[:width]:<{width}}")
        elif took - shown >= EVERY_S or text.startswith("unpacking"):
            out.write(f"{what}: {text}, {took:.0f} s\n")
            shown = took
        last = text
        out.flush()
    if out.isatty() and last:
        out.write("\n")


def count(arguments: list[str]) -> int | None:
    """How many packages these arguments of pip name; None where that is not known before."""
    files = [value for flag, value in pairwise(arguments) if flag == "-r"]
    lines = [line for file in files for line in Path(file).read_text().splitlines()]
    return sum(bool(line.strip()) and not line.lstrip().startswith(("#", "-")) for line in lines) or None


def install(what: str, arguments: list[str], log: Path, out: TextIO, pip: list[str] = PIP) -> int:
    """pip's exit code."""
    start = time.monotonic()
    tail: list[str] = []
    with log.open("a") as file:
        process = subprocess.Popen([*pip, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None

        def lines() -> Iterator[str]:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                if not line.startswith("WARNING: Location"):
                    tail[:] = [*tail[-19:], line]
                yield line

        show(progress(lines(), count(arguments)), what, out)
        code = process.wait()
    if code:
        out.write("".join(tail) + f"{what}: pip ended with {code}; all it said is in {log}\n")
    else:
        out.write(f"{what}: done in {time.monotonic() - start:.0f} s\n")
    return code


if __name__ == "__main__":
    sys.exit(install(sys.argv[1], sys.argv[2:], Path(sys.prefix) / "pip.log", sys.stdout))
