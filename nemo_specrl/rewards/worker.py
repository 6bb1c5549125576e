"""A verifier process: scores on its main thread, one response at a time, until its pipe closes or its parent dies.

Started as `python -m nemo_specrl.rewards.worker FD PARENT_PID` and not through multiprocessing: `spawn` runs the
parent's main module again in the child, and that imports torch. Imports no torch.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from nemo_specrl.contracts.sample import RewardResult
from nemo_specrl.processes import die_with
from nemo_specrl.rewards.base import Reward, load_reward
from nemo_specrl.types import Prompt

_MEMORY = 4 << 30
_LONGEST_ERROR = 500


def main(fd: int, parent: int) -> None:
    """Receive the reward's name, say that it is loaded, then answer (response, prompt) with a `RewardResult`."""
    die_with(parent)
    # Slurm and Ctrl-C signal every process of a step: the trainer decides when the workers end
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(name, signal.SIG_IGN)
    # (10^10)! must fail here, and not take the node's memory
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    connection = Connection(fd)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the trainer has gone or closed
        _serve(connection)


def _serve(connection: Connection[Any, Any]) -> None:
    try:
        reward = load_reward(connection.recv())
        reward.warm_up()
    except Exception as error:
        connection.send(_told(error))
        return
    connection.send(None)
    while True:
        connection.send(_scored(reward, *connection.recv()))


class _DeadlineError(BaseException):
    """Not an Exception, so that no verifier takes it for an error of its own."""


def _scored(reward: Reward, response: str, prompt: Prompt, timeout_s: float) -> RewardResult:
    """An alarm interrupts what runs in Python; the pool kills what is deaf to it, a little later."""

    def stop(number: int, frame: object) -> None:
        raise _DeadlineError

    signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        try:
            return reward(response, prompt)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _DeadlineError:
        return RewardResult.failed("timeout")
    except BaseException as error:  # math-verify's TimeoutException is no Exception
        return RewardResult.failed(_told(error))


def _told(error: BaseException) -> str:
    """Type and text, bounded: some verifiers put the whole expression into it."""
    try:
        text = str(error)
    except Exception:  # sympy may fail or recurse in printing what it failed on
        text = "(its text could not be made)"
    return f"{type(error).__name__}: {text}"[:_LONGEST_ERROR]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
