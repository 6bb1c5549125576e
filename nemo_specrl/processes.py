"""Child processes that do not outlive the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel (Linux) kill this process when the thread that started it ends, however it ends; leave at once
    if the parent is gone already. OSError where the kernel refuses."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("the parent ended while we started")
