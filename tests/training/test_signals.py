from __future__ import annotations

import multiprocessing as mp
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from nemo_specrl.training.signals import REQUEUE_EXIT_CODE, StopSignal, agree, hand_over


def test_exit_code_is_none_that_shells_or_signals_use():
    assert 2 < REQUEUE_EXIT_CODE < 126


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
def test_signal_becomes_a_reason_at_the_boundary(name):
    with StopSignal() as stop:
        assert stop.stop_requested() is None
        os.kill(os.getpid(), signal.Signals[name])
        assert stop.stop_requested() == name
        assert stop.stop_requested() == name, "the reason stays"


def test_configured_signal_without_its_prefix_and_handlers_are_restored():
    before = {name: signal.getsignal(name) for name in (signal.SIGUSR2, signal.SIGTERM)}
    with StopSignal(signals=("USR2", "HUP")) as stop:
        os.kill(os.getpid(), signal.SIGUSR2)
        assert stop.stop_requested() == "SIGUSR2"
    assert {name: signal.getsignal(name) for name in before} == before
    assert signal.SIGUSR2 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_pending_signal_does_not_kill_on_leaving():
    code = (
        "import os, signal\nfrom nemo_specrl.training.signals import StopSignal\n"
        "with StopSignal():\n    os.kill(os.getpid(), signal.SIGUSR1)\nprint('alive')"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "alive\n"


def test_unknown_signal_lists_the_known_ones():
    with pytest.raises(ValueError, match="SIGUSR1"):
        StopSignal(signals=("SIGUSER1",))


def test_only_the_main_thread_may_install():
    errors: list[str] = []

    def enter() -> None:
        try:
            StopSignal().__enter__()
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert errors
    assert "main thread" in errors[0]


def test_walltime_counts_the_longest_recent_step():
    now = [1000.0]
    stop = StopSignal(deadline=1400.0, reserve_s=100.0, clock=lambda: now[0])
    assert stop.stop_requested() is None
    now[0] = 1150.0
    assert stop.stop_requested() is None, "250 s left, 100 + 150 needed"
    now[0] = 1160.0
    reason = stop.stop_requested()
    assert reason is not None
    assert reason.startswith("walltime: 240 s left")


def test_no_deadline_never_stops():
    stop = StopSignal(clock=lambda: 1e12)
    assert stop.stop_requested() is None


def test_spawned_child_survives_the_user_signal_and_dies_of_terminate():
    with StopSignal():
        child = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"], stdout=-1)
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGUSR1)
        time.sleep(0.2)
        assert child.poll() is None
        child.terminate()
        assert child.wait(10) == -signal.SIGTERM
        child.stdout.close()


def test_forked_child_ignores_the_user_signal_and_dies_of_terminate():
    with StopSignal() as stop:
        child = mp.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGUSR1)
        time.sleep(0.2)
        assert child.is_alive()
        child.terminate()
        child.join(10)
        assert child.exitcode == -signal.SIGTERM
        assert stop.stop_requested() is None


def test_agree_is_the_flag_itself_in_one_process():
    assert agree(True)
    assert not agree(False)


@pytest.mark.parametrize(("ranks", "rank", "code", "written"), [(1, 0, 85, True), (2, 0, 0, True), (2, 1, 0, False)])
def test_hand_over_under_the_batch_shell(monkeypatch, tmp_path, ranks, rank, code, written):
    """torchrun takes every code but 0 for a crash, so there rank 0's file says it."""
    monkeypatch.setenv("NEMO_SPECRL_ATTEMPT_DIR", str(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    monkeypatch.setenv("RANK", str(rank))
    assert hand_over("SIGUSR1") == code
    assert [path.name for path in tmp_path.iterdir()] == (["requeue"] if written else [])
    if written:
        assert (tmp_path / "requeue").read_text() == "SIGUSR1\n"


def test_hand_over_without_a_batch_shell_is_the_code_alone(monkeypatch):
    monkeypatch.delenv("NEMO_SPECRL_ATTEMPT_DIR", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert hand_over("walltime") == REQUEUE_EXIT_CODE


def _vote(rank: int, world: int, path: str, results: mp.SimpleQueue) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    results.put((rank, agree(rank == 1), agree(False)))
    dist.destroy_process_group()


@pytest.mark.distributed
def test_one_rank_is_enough_for_all_to_stop(tmp_path):
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    ranks = [context.Process(target=_vote, args=(r, 2, str(tmp_path / "store"), results)) for r in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    assert sorted(results.get() for _ in ranks) == [(0, True, False), (1, True, False)]
