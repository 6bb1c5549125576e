"""The worker pool on the real `math` reward and on rewards that misbehave on purpose (tests/rewards/misbehaving.py)."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from nemo_specrl.config.reward import RewardConfig
from nemo_specrl.rewards import Scorer, load_reward
from nemo_specrl.types import Prompt

TIMEOUT_S = 2.0
HOSTILE = [  # DEMANDS 133: 5 to 10 s each in math-verify
    r"$9^{9^{9^{9}}}$",
    r"$(10^{10^{10}})!$",
    r"$\sum_{k=1}^{10^9} k^k$",
    r"$\binom{10^9}{5\cdot10^8}$",
    "$" + "(" * 400 + "x" + ")" * 400 + "$",
    r"$\int_0^1 x^{x^{x^x}}dx$",
]


def prompt(answer="4"):
    return Prompt(np.array([1], dtype=np.int32), answer, "a question")


@pytest.fixture(scope="module")
def scorer():
    with Scorer(RewardConfig(workers=2, timeout_s=TIMEOUT_S)) as scorer:
        yield scorer


@pytest.fixture
def misbehaving(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    def make(workers=1, timeout_s=TIMEOUT_S, **options):
        return Scorer(RewardConfig("misbehaving:Misbehaving", workers=workers, timeout_s=timeout_s, **options))

    return make


def test_results_come_in_order(scorer):
    answers = [str(i % 3) for i in range(60)]
    results = scorer.score([(prompt("1"), f"it is {answer}") for answer in answers])
    assert [result.value for result in results] == [float(answer == "1") for answer in answers]
    assert all(result.valid and result.error is None for result in results)


def test_nothing_to_score(scorer):
    assert scorer.score([]) == []


def test_hostile_responses_time_out_and_cost_nobody_else_his_score(scorer):
    scorer.score([(prompt(), "4")])  # started
    begun = time.monotonic()
    samples = [(prompt(r"\sqrt{2}"), text) for text in HOSTILE]
    ordinary = [(prompt(), "4")] * 8
    results = scorer.score(ordinary[:4] + samples + ordinary[4:])
    took = time.monotonic() - begun
    assert [result.value for result in results[:4] + results[-4:]] == [1.0] * 8
    hostile = results[4:-4]
    assert all(result.value == 0 or (not result.valid and np.isnan(result.value)) for result in hostile)
    assert sum(result.error == "timeout" for result in hostile) >= 4
    # rounds of two, each within its deadline; a killed worker's start (imports) comes on top
    assert took < len(HOSTILE) / 2 * TIMEOUT_S + 60


def test_scoring_works_off_the_main_thread(scorer):
    """verl#3407: math-verify raised there, and every reward became 0. The thread ends between the calls."""
    found = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.extend(scorer.score([(prompt(r"\pi/2"), "pi/2")] * 3)))
        thread.start()
        thread.join()
    assert [result.value for result in found] == [1.0] * 6


def test_plain_numbers_cost_little(scorer):
    scorer.score([(prompt(), "4")])
    begun = time.monotonic()
    scorer.score([(prompt(), "2 + 2 = 4")] * 300)
    assert (time.monotonic() - begun) / 300 < 0.02  # seconds; about 0.001 on a busy two-core machine


def test_a_raising_verifier_is_an_error_and_no_wrong_answer(misbehaving):
    with misbehaving(max_error_fraction=0.5) as scorer:
        results = scorer.score([(prompt(), "raise"), (prompt(), "ok"), (prompt(), "base"), (prompt(), "ok")])
    assert [result.valid for result in results] == [False, True, False, True]
    assert "RuntimeError: on purpose" in results[0].error
    assert "NotAnExceptionError" in results[2].error
    assert np.isnan(results[0].value)


def test_too_many_errors_stop_the_run_with_the_first_ones_text(misbehaving):
    with misbehaving(max_error_fraction=0.5) as scorer, pytest.raises(RuntimeError, match=r"2 of 3.*on purpose"):
        scorer.score([(prompt(), "ok"), (prompt(), "raise"), (prompt(), "raise")])


def test_a_worker_deaf_to_its_alarm_is_killed_at_the_deadline(misbehaving):
    with misbehaving(workers=2, timeout_s=1.0) as scorer:
        scorer.score([(prompt(), "ok")])
        begun = time.monotonic()
        results = scorer.score([(prompt(), "deaf"), (prompt(), "ok"), (prompt(), "ok")])
        assert time.monotonic() - begun < 10
        assert [result.error for result in results] == ["timeout", None, None]
        assert scorer.score([(prompt(), "ok")] * 4)[3].value == 1.0  # respawned


def test_a_worker_killed_from_outside_gives_its_sample_a_second_chance_only(misbehaving):
    with misbehaving(max_error_fraction=1.0) as scorer:
        results = scorer.score([(prompt(), "die"), (prompt(), "ok")])
        assert "died twice, with status -9" in results[0].error
        assert results[1].value == 1.0
        pid = int(scorer.score([(prompt(), "pid")])[0].value)
        os.kill(pid, signal.SIGKILL)
        assert scorer.score([(prompt(), "ok")])[0].value == 1.0  # an idle one's death is not even noticed


def test_workers_ignore_the_signals_of_slurm_and_of_the_keyboard(misbehaving):
    with misbehaving() as scorer:
        pid = int(scorer.score([(prompt(), "pid")])[0].value)
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(pid, name)
        assert int(scorer.score([(prompt(), "pid")])[0].value) == pid


def test_workers_import_no_torch_even_if_the_trainer_did(misbehaving):
    import torch  # noqa: F401

    with misbehaving() as scorer:
        assert scorer.score([(prompt(), "torch")])[0].value == 0.0


def test_close_ends_the_workers_and_may_be_called_twice(misbehaving):
    scorer = misbehaving()
    pid = int(scorer.score([(prompt(), "pid")])[0].value)
    scorer.close()
    scorer.close()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(RuntimeError, match="closed"):
        scorer.score([(prompt(), "ok")])


def test_workers_die_with_a_killed_trainer(tmp_path):
    script = (
        "import sys, time, numpy as np; sys.path.insert(0, sys.argv[1])\n"
        "from nemo_specrl.config.reward import RewardConfig\n"
        "from nemo_specrl.rewards import Scorer\n"
        "from nemo_specrl.types import Prompt\n"
        "scorer = Scorer(RewardConfig('misbehaving:Misbehaving', workers=1))\n"
        "prompt = Prompt(np.array([1], dtype=np.int32), '4', 'q')\n"
        "print(int(scorer.score([(prompt, 'pid')])[0].value), flush=True)\n"
        "time.sleep(60)\n"
    )
    trainer = subprocess.Popen(
        [sys.executable, "-c", script, str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
    )
    pid = int(trainer.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    trainer.kill()
    trainer.wait()
    deadline = time.monotonic() + 10
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_reward_that_cannot_start_says_why(misbehaving, monkeypatch):
    monkeypatch.setenv("MISBEHAVE_AT_START", "1")
    with misbehaving() as scorer, pytest.raises(RuntimeError, match="no verifier today"):
        scorer.score([(prompt(), "ok")])


@pytest.mark.parametrize(("name", "message"), [("maths", "there are math"), ("no.such:Reward", "cannot be loaded")])
def test_an_unknown_reward(name, message):
    with pytest.raises(ValueError, match=message):
        load_reward(name)


@pytest.mark.parametrize("options", [{"workers": 0}, {"timeout_s": 0.0}])
def test_settings_that_cannot_work(options):
    with pytest.raises(ValueError, match="must be positive"):
        Scorer(RewardConfig(**options))


def test_answers_are_checked_before_training(scorer):
    with pytest.raises(ValueError, match="Repair the row"):
        scorer.check([prompt("4"), prompt("")])
    scorer.check([prompt("4")])
