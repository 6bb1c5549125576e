"""A child process that answers calls over a socket pair, dies with us, and never leaves us hanging.

The child gets a session of its own, so Ctrl-C in the terminal reaches only this process, which then closes it. Its
output goes to a log file whose last lines are quoted when it dies.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO

_TAIL_LINES = 30
_POLL_S = 0.2


class ChildError(RuntimeError):
    """The child raised (it lives on), died, or did not answer in time."""

    def __init__(self, text: str, kind: str = "") -> None:
        """`kind`: the name of the class that the child raised; empty where it raised nothing."""
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of the child's."""

    kind: str
    """Name of its class."""
    text: str
    """Its traceback."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the child sends: kind `ok` (value: the result), `error` (a `Raised`) or `progress` (a count)."""

    kind: str
    value: Any


class Child:
    """One child process and our end of its socket pair. Talk to it from one thread."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path, name: str) -> None:
        """Start `command` + [file descriptor of its end, our pid]. `name` is what errors call it."""
        self.name = name
        self.log = log
        self._broken = ""
        log.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = multiprocessing.Pipe()
        with log.open("ab") as out:
            self.process = _popen([*command, str(theirs.fileno()), str(os.getpid())], env, out, theirs.fileno())
        theirs.close()
        self._conn = ours
        # Runs when we are collected and at interpreter exit. A forked copy of us (a reward worker) must not run it.
        self._finalizer = weakref.finalize(self, _end, self.process, ours, os.getpid())

    def call(
        self,
        method: str,
        *args: Any,
        timeout_s: float | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> Any:
        """The child's answer to `method(*args)`; ChildError when it raises, dies or takes longer than `timeout_s`."""
        self.post(method, *args)
        return self.wait(timeout_s=timeout_s, on_progress=on_progress)

    def post(self, method: str, *args: Any) -> None:
        """Ask without waiting; `wait` fetches the answer."""
        if self._broken or not self._finalizer.alive:
            raise ChildError(f"{self.name} is gone: {self._broken or 'it was closed'}")
        try:
            self._conn.send((method, args))
        except OSError as error:
            raise self._dead() from error

    def answered(self) -> bool:
        """Whether an answer to a `post` is waiting; ChildError when the child is dead."""
        if self._conn.poll(0):
            return True
        if self.process.poll() is not None and not self._conn.poll(0):
            raise self._dead()
        return False

    def wait(self, *, timeout_s: float | None = None, on_progress: Callable[[int], None] | None = None) -> Any:
        """The answer to the last `post`."""
        deadline = time.monotonic() + timeout_s if timeout_s else None
        try:
            while True:
                if not self._conn.poll(_POLL_S):
                    if self.process.poll() is not None and not self._conn.poll(0):
                        raise self._dead()
                    if deadline and time.monotonic() > deadline:
                        raise ChildError(self._break(f"no answer within {timeout_s:.0f} s"))
                    continue
                reply: Reply = self._conn.recv()
                if reply.kind == "progress":
                    if on_progress:
                        on_progress(reply.value)
                elif reply.kind == "error":
                    raise ChildError(f"{self.name}: {reply.value.text}", reply.value.kind)
                else:
                    return reply.value
        except (EOFError, ConnectionError) as error:
            raise self._dead() from error
        except ChildError:
            raise
        except BaseException:
            # Ctrl-C, or an error in on_progress: the answer is still to come, and would be taken for the next one's.
            self._broken = "a call to it was interrupted"
            raise

    def _dead(self) -> ChildError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        code = self.process.returncode
        if code is None:
            how = "it closed its end of the connection"
        elif code < 0:
            how = f"it was killed by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                how += " (out of memory? see dmesg)"
        else:
            how = f"it ended with exit status {code}"
        return ChildError(self._break(how))

    def _break(self, how: str) -> str:
        self._broken = how
        return f"{self.name}: {how}. Last lines of {self.log}:\n{self.tail()}"

    def tail(self) -> str:
        """The last lines of the child's log."""
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join(f"  | {line}" for line in lines) or "  | (empty)"

    def close(self) -> None:
        """End the child; may be called twice."""
        self._finalizer()


def _popen(command: Sequence[str], env: Mapping[str, str], out: BinaryIO, fd: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        pass_fds=[fd],
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes], conn: Connection, owner: int) -> None:
    """Ask, terminate, kill; by pid, and the child's own process group last, for workers that it started."""
    if os.getpid() != owner:
        return
    with contextlib.suppress(OSError):
        conn.send(("close", ()))
    conn.close()
    for grace_s, end in ((5.0, process.terminate), (2.0, process.kill)):
        try:
            process.wait(grace_s)
            break
        except subprocess.TimeoutExpired:
            end()
    # Its session is its own: nobody else's process can be in this group.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
