"""A reward that does what the response tells it to."""

import ctypes
import os
import signal
import sys

from nemo_specrl.rewards import RewardResult


class NotAnExceptionError(BaseException):
    pass


class Misbehaving:
    def warm_up(self):
        if os.environ.get("MISBEHAVE_AT_START"):
            raise RuntimeError("no verifier today")

    def check(self, prompt):
        pass

    def __call__(self, response, prompt):
        if response == "raise":
            raise RuntimeError("on purpose")
        if response == "base":
            raise NotAnExceptionError("of the other kind")
        if response == "deaf":  # in C, and Python's handlers wait for it
            ctypes.PyDLL(None).sleep(30)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            ctypes.PyDLL(None).sleep(30)
        if response == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if response == "pid":
            return RewardResult(float(os.getpid()))
        if response == "torch":
            return RewardResult(float("torch" in sys.modules))
        return RewardResult(1.0)
