"""Stopping early: signals and the walltime budget set a flag that the loop reads between steps."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from nemo_specrl.files import write_atomic
from nemo_specrl.handover import ATTEMPT_DIR, REQUEUE_EXIT_CODE, REQUEUE_FILE

DEFAULT_SIGNALS = ("SIGUSR1", "SIGTERM")
_RECENT_STEPS = 8


class StopSignal:
    """Collects the reasons to stop early. A context manager; enter it in the trainer's main thread.

    `deadline` is the job's end in epoch seconds (`nemo_specrl.cluster.walltime.job_deadline`), None where there is
    none. A step is not begun when the deadline is nearer than `reserve_s` plus the longest of the last eight steps;
    a step's length is the time between two calls of `stop_requested`.

    Children: a forked one that inherits the handlers ignores user signals and dies of SIGTERM as usual; a spawned one
    inherits a blocked mask for the user signals, so a SIGUSR1 to the whole process group cannot kill the engine.
    """

    def __init__(
        self,
        signals: Sequence[str] = DEFAULT_SIGNALS,
        deadline: float | None = None,
        reserve_s: float = 120.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._signals = [_signal_number(name) for name in signals]
        self._deadline = deadline
        self._reserve_s = reserve_s
        self._clock = clock
        self._owner = os.getpid()
        self._reason: str | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._blocked: set[signal.Signals] = set()
        self._steps: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._last_call: float | None = None

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("StopSignal must be entered in the main thread: Python delivers signals there only")
        self._owner = os.getpid()
        for number in self._signals:
            self._previous[number] = signal.signal(number, self._handle)
        user: set[signal.Signals] = {item for item in self._signals if item.name in ("SIGUSR1", "SIGUSR2")}
        self._blocked = user - signal.pthread_sigmask(signal.SIG_BLOCK, user)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owner != os.getpid():
            return
        # Unblocked while our handler is still there: a signal that is pending must not kill the trainer now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._blocked)
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._previous.clear()

    def stop_requested(self) -> str | None:
        """Why the run should stop now, or None; call it once between two steps."""
        now = self._clock()
        if self._last_call is not None:
            self._steps.append(now - self._last_call)
        self._last_call = now
        pending = signal.sigpending() & set(self._signals)
        if self._reason is None and pending:
            self._reason = min(pending).name
        if self._reason is None and self._deadline is not None:
            step = max(self._steps, default=0.0)
            left = self._deadline - now
            if left < self._reserve_s + step:
                self._reason = f"walltime: {left:.0f} s left, {self._reserve_s:.0f} s reserved, a step takes {step:.0f}"
        return self._reason

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._owner:
            self._reason = self._reason or signal.Signals(number).name
        elif number not in (signal.SIGUSR1, signal.SIGUSR2):
            # A forked child: give the signal its usual meaning back, so that terminate() still works.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def agree(flag: bool) -> bool:
    """True on every rank when it is true on any (an all-reduce); the flag itself where there is one process."""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return flag
    device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
    votes = torch.tensor([int(flag)], dtype=torch.int32, device=device)
    dist.all_reduce(votes, op=dist.ReduceOp.MAX)
    return bool(votes.item())


def _signal_number(name: str) -> signal.Signals:
    try:
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except KeyError:
        known = ", ".join(sorted(item.name for item in signal.Signals))
        raise ValueError(f"{name!r} is no signal; known: {known}") from None


def hand_over(reason: str) -> int:
    """Tell the batch shell to continue this run later; the trainer's exit code. Call it after the checkpoint is safe.

    Under torchrun an exit code other than 0 counts as a crash and is reported as 1, so there a file in the attempt's
    folder says it and every rank exits with 0. Without a batch shell the code alone says it.
    """
    folder = os.environ.get(ATTEMPT_DIR)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if folder is None:
        return REQUEUE_EXIT_CODE
    if int(os.environ.get("RANK", "0")) == 0:
        write_atomic(Path(folder) / REQUEUE_FILE, f"{reason}\n")
    return 0 if ranks > 1 else REQUEUE_EXIT_CODE
