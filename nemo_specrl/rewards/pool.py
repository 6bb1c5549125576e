"""Worker processes that can be killed: a response that hangs its verifier costs its deadline, and nobody else's score.

Ours. Threads cannot be killed, a ProcessPoolExecutor's running call cannot be cancelled, and signal timeouts need the
main thread and stay deaf inside C code; so each worker is a process with one job at a time and a deadline.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from nemo_specrl.contracts.sample import RewardResult
from nemo_specrl.types import Prompt

_START_TIMEOUT_S = 120.0
_SOFT = 0.8  # of the deadline: then the worker tries to stop by itself, which saves the seconds of a new one's start
_ATTEMPTS = 2  # a worker that dies without our doing (out of memory) gets its job's second chance, and no third


class _Worker:
    """One process, its pipe, and the job that it has."""

    def __init__(self, reward: str) -> None:
        ours, theirs = Pipe()
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nemo_specrl.rewards.worker", str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        theirs.close()
        self.connection: Connection[Any, Any] = ours
        self.job: int | None = None
        self.deadline = time.monotonic() + _START_TIMEOUT_S
        self.ready = False
        ours.send(reward)

    def give(self, index: int, job: tuple[str, Prompt], timeout_s: float) -> None:
        self.job = index
        self.deadline = time.monotonic() + timeout_s
        self.connection.send((*job, _SOFT * timeout_s))

    def kill(self) -> int:
        """End it and wait for it; its exit status."""
        self.process.kill()
        self.connection.close()
        return self.process.wait()


class WorkerPool:
    """`score` may be called from any thread; calls wait for each other."""

    def __init__(self, reward: str, workers: int, timeout_s: float) -> None:
        if workers < 1 or timeout_s <= 0:
            raise ValueError(f"reward.workers={workers} and reward.timeout_s={timeout_s} must be positive.")
        self._reward, self._count, self._timeout_s = reward, workers, timeout_s
        self._workers: list[_Worker] = []
        self._closed = False
        # One thread owns the workers for as long as the pool lives: they die with the thread that started them.
        self._owner = ThreadPoolExecutor(1, thread_name_prefix="rewards")
        self._owner.submit(self._fill)

    def score(self, jobs: Sequence[tuple[str, Prompt]]) -> list[RewardResult]:
        """The results in the order of the (response, prompt) pairs, each within `timeout_s` of being begun.

        RuntimeError when workers cannot start, or the pool is closed."""
        if self._closed:
            raise RuntimeError("the reward workers are closed.")
        return self._owner.submit(self._score, list(jobs)).result()

    def close(self) -> None:
        """Kill the workers; may be called twice. A `score` still running in another thread raises RuntimeError."""
        if self._closed:
            return
        self._closed = True
        for worker in list(self._workers):
            worker.process.kill()  # wakes the owner, if it waits for one
        self._owner.submit(self._clear)
        self._owner.shutdown()

    def _clear(self) -> None:
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    def _fill(self) -> None:
        while len(self._workers) < self._count:
            self._workers.append(_Worker(self._reward))

    def _score(self, jobs: list[tuple[str, Prompt]]) -> list[RewardResult]:
        results: dict[int, RewardResult] = {}
        waiting = deque(range(len(jobs)))
        attempts = [0] * len(jobs)
        while len(results) < len(jobs):
            if self._closed:
                raise RuntimeError("the reward workers were closed while they were scoring.")
            self._fill()
            for worker in self._workers:
                if waiting and worker.ready and worker.job is None:
                    index = waiting.popleft()
                    attempts[index] += 1
                    try:
                        worker.give(index, jobs[index], self._timeout_s)
                    except OSError:  # it has died idle; its end is dealt with below
                        continue
            self._collect(results, waiting, attempts)
        return [results[index] for index in range(len(jobs))]

    def _collect(self, results: dict[int, RewardResult], waiting: deque[int], attempts: list[int]) -> None:
        """Wait for the next answer, death or deadline, and settle all that have come."""
        busy = [worker for worker in self._workers if worker.job is not None or not worker.ready]
        soonest = min(worker.deadline for worker in busy)
        answered = set(wait([worker.connection for worker in busy], max(0.0, soonest - time.monotonic())))
        now = time.monotonic()
        for worker in busy:
            if worker.connection in answered:
                try:
                    self._settle(worker, worker.connection.recv(), results)
                except (EOFError, ConnectionResetError):
                    self._bury(worker, results, waiting, attempts)
            elif worker.deadline <= now:
                if not worker.ready:
                    raise RuntimeError(f"a reward worker did not start within {_START_TIMEOUT_S:.0f} s.")
                assert worker.job is not None
                results[worker.job] = RewardResult.failed("timeout")
                worker.kill()
                self._workers.remove(worker)

    def _settle(self, worker: _Worker, message: Any, results: dict[int, RewardResult]) -> None:
        if worker.ready:
            assert worker.job is not None
            results[worker.job] = message
            worker.job = None
        elif message is not None:
            raise RuntimeError(f"the reward {self._reward!r} does not start in its worker: {message}")
        worker.ready = True

    def _bury(
        self, worker: _Worker, results: dict[int, RewardResult], waiting: deque[int], attempts: list[int]
    ) -> None:
        status = worker.kill()
        self._workers.remove(worker)
        if not worker.ready:
            raise RuntimeError(f"a reward worker died at its start with status {status}; its own message is above.")
        if worker.job is None or worker.job in results:
            return
        if attempts[worker.job] < _ATTEMPTS:
            waiting.appendleft(worker.job)
        else:
            results[worker.job] = RewardResult.failed(f"the verifier's process died twice, with status {status}")
