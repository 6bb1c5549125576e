"""A child that speaks the engine's protocol without vLLM: `python fake_server.py FD PARENT_PID`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from nemo_specrl.processes import die_with
from nemo_specrl.rollout.vllm import server


class Fake:
    unfinished = False

    def __init__(self, mood: str) -> None:
        if mood == "fails to start":
            raise ValueError("no such model")
        if mood == "hangs":
            time.sleep(60)
        if mood == "hangs on close":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.mood = mood

    def generate(self, n: int, progress: Callable[[int], None]) -> int:
        for done in range(n):
            progress(done + 1)
        return n

    def echo(self, value: object) -> object:
        return value

    def fail(self) -> None:
        raise KeyError("a reason")

    def fail_half_way(self) -> None:
        self.unfinished = True
        raise KeyError("half way")

    def crash(self) -> None:
        print("the last words", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def shutdown(self) -> None:
        if self.mood == "hangs on close":
            time.sleep(60)


if __name__ == "__main__":
    die_with(int(sys.argv[2]))
    server.serve(Connection(int(sys.argv[1])), Fake)
