from __future__ import annotations

import warnings

import pytest

from nemo_specrl.cluster.walltime import job_deadline, parse_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("01:02:03", 3723),
        ("2-3", 2 * 86400 + 3 * 3600),
        ("2-3:04", 2 * 86400 + 3 * 3600 + 240),
        ("2-03:04:05", 2 * 86400 + 3 * 3600 + 245),
        ("UNLIMITED", None),
        ("infinite", None),
        ("-1", None),
    ],
)
def test_every_time_form_of_slurm(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "1h", "1:2:3:4", "1-2:3:4:5", "a", "1-", "-5", "1.5"])
def test_malformed_time_is_refused_with_the_forms(text):
    with pytest.raises(ValueError, match="D-H:M:S"):
        parse_time(text)


def test_no_deadline_outside_of_a_job():
    assert job_deadline({"SLURM_JOB_END_TIME": "1700000000"}) is None


def test_end_time_wins_and_own_copy_serves_where_slurm_variables_are_unset():
    base = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1700000600", "NEMO_SPECRL_TIME_LIMIT": "1"}
    assert job_deadline(base) == 1700000600
    assert job_deadline({"NEMO_SPECRL_JOB_ID": "7", "NEMO_SPECRL_JOB_END_TIME": "1700000900"}) == 1700000900


def test_anchor_is_the_start_of_the_job_and_not_now():
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_START_TIME": "1700000000", "NEMO_SPECRL_TIME_LIMIT": "10"}
    assert job_deadline(env, now=1700000300.0) == 1700000600


@pytest.mark.parametrize("start", [None, "", "Unknown", "2026-11-30T19:00:00", "0"])
def test_malformed_start_falls_back_to_now_with_a_warning(start):
    env = {"SLURM_JOB_ID": "7", "NEMO_SPECRL_TIME_LIMIT": "10"}
    if start is not None:
        env["SLURM_JOB_START_TIME"] = start
    with pytest.warns(UserWarning, match="counted from now"):
        assert job_deadline(env, now=1700000300.0) == 1700000900


def test_unknown_limit_warns_and_unlimited_does_not():
    with pytest.warns(UserWarning, match="stops at a signal only"):
        assert job_deadline({"SLURM_JOB_ID": "7"}) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert job_deadline({"SLURM_JOB_ID": "7", "NEMO_SPECRL_TIME_LIMIT": "UNLIMITED"}) is None
