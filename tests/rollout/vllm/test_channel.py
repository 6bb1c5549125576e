"""The child process, with a fake engine inside: what is tested is who dies when, and who hears of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nemo_specrl.rollout.vllm.channel import Child, ChildError

FAKE = Path(__file__).with_name("fake_server.py")


def child(log: Path, mood: str = "well", timeout_s: float = 30) -> Child:
    started = Child([sys.executable, str(FAKE)], os.environ, log / "engine.log", "the fake engine")
    try:
        started.call("start", mood, timeout_s=timeout_s)
    except BaseException:
        started.close()
        raise
    return started


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Child]:
    started = child(tmp_path)
    yield started
    started.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 15) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_calls_are_answered_and_progress_is_reported(fake: Child) -> None:
    seen: list[int] = []
    assert fake.call("echo", {"a": [1]}) == {"a": [1]}
    assert fake.call("generate", 3, on_progress=seen.append) == 3
    assert seen == [1, 2, 3]


def test_an_error_of_the_child_is_raised_here_and_the_child_lives_on(fake: Child) -> None:
    with pytest.raises(ChildError, match="a reason"):
        fake.call("fail")
    assert fake.call("echo", 1) == 1


def test_a_call_that_leaves_requests_behind_ends_the_child(fake: Child) -> None:
    with pytest.raises(ChildError, match="half way"):
        fake.call("fail_half_way")
    with pytest.raises(ChildError, match="exit status 1"):
        fake.call("echo", 1)


def test_a_crash_is_an_error_with_the_logs_last_lines(fake: Child) -> None:
    with pytest.raises(ChildError, match=r"(?s)SIGSEGV.*the last words"):
        fake.call("crash")
    with pytest.raises(ChildError, match="SIGSEGV"):
        fake.call("echo", 1)


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ChildError, match=r"(?s)exit status 1.*no such model"):
        child(tmp_path, "fails to start")


def test_a_start_that_hangs_ends_at_the_timeout(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ChildError, match="no answer within 3 s"):
        child(tmp_path, "hangs", timeout_s=3)
    assert time.monotonic() - began < 20


def test_an_interrupted_call_can_not_mix_up_answers(fake: Child) -> None:
    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fake.call("generate", 3, on_progress=interrupt)
    with pytest.raises(ChildError, match="interrupted"):
        fake.call("echo", 1)


def test_close_twice_then_calls_are_refused(fake: Child) -> None:
    fake.close()
    fake.close()
    assert not alive(fake.process.pid)
    with pytest.raises(ChildError, match="closed"):
        fake.call("echo", 1)


def test_a_child_that_ignores_everything_is_killed(tmp_path: Path) -> None:
    stubborn = child(tmp_path, "hangs on close")
    began = time.monotonic()
    stubborn.close()
    assert not alive(stubborn.process.pid)
    assert time.monotonic() - began < 15


def test_a_dropped_child_is_ended(tmp_path: Path) -> None:
    pid = child(tmp_path).process.pid
    assert wait_until(lambda: not alive(pid))


OWNER = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {here!r})
from test_channel import child
engine = child(Path({log!r}))
print(engine.process.pid, flush=True)
if {call!r} == "busy":
    engine.call("sleep", 60)
time.sleep(60)
"""


def owner(tmp_path: Path, call: str) -> tuple[subprocess.Popen[str], int]:
    code = OWNER.format(here=str(FAKE.parent), log=str(tmp_path), call=call)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.mark.parametrize("call", ["idle", "busy"])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_orphan_however_the_owner_ends(tmp_path: Path, sent: signal.Signals, call: str) -> None:
    process, pid = owner(tmp_path, call)
    assert alive(pid)
    time.sleep(0.2)
    os.killpg(process.pid, sent)  # the whole foreground group, as a terminal does
    process.wait(20)
    assert wait_until(lambda: not alive(pid))
    assert process.stdout is not None
    process.stdout.close()


def test_ctrl_c_reaches_the_owner_alone(fake: Child) -> None:
    assert os.getpgid(fake.process.pid) != os.getpgid(0)
    assert os.getsid(fake.process.pid) != os.getsid(0)


def test_a_forked_copy_of_the_owner_does_not_end_the_child(fake: Child) -> None:
    pid = os.fork()
    if pid == 0:
        fake.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert fake.call("echo", 1) == 1
