"""A child ends with its parent, however that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

CHILD = (
    "import os, sys, time; from nemo_specrl.processes import die_with; die_with(int(sys.argv[1]))\n"
    "print(os.getpid(), flush=True); time.sleep(60)"
)
PARENT = (
    "import os, subprocess, sys, time\n"
    "subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())]); time.sleep(60)"
)


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def test_a_child_is_killed_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert not gone(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    end = time.monotonic() + 10
    while not gone(child):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_child_whose_parent_was_gone_before_leaves_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, "1"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "the parent ended while we started" in done.stderr
