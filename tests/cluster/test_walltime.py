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


NOW = 1700000300.0


@pytest.fixture(autouse=True)
def _slurm(fake_slurm, monkeypatch):
    """`scontrol show job` of these says RUNNING."""
    fake_slurm.write("scontrol", '#!/bin/sh\necho "JobId=$3 JobState=${FAKE_STATE:-RUNNING}"\n')


def test_no_deadline_outside_of_a_job():
    assert job_deadline({"SLURM_JOB_END_TIME": "1700000600"}, NOW) is None


def test_end_time_wins_and_own_copy_serves_where_slurm_variables_are_unset():
    base = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1700000600", "NEMO_SPECRL_TIME_LIMIT": "1"}
    assert job_deadline(base, NOW) == 1700000600
    assert job_deadline({"NEMO_SPECRL_JOB_ID": "7", "NEMO_SPECRL_JOB_END_TIME": "1700000900"}, NOW) == 1700000900


@pytest.mark.parametrize(
    "env",
    [
        {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1700000299"},
        {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1700000300"},
        {"NEMO_SPECRL_JOB_ID": "7", "NEMO_SPECRL_JOB_END_TIME": "1600000000"},
        {"NEMO_SPECRL_JOB_ID": "7", "NEMO_SPECRL_JOB_START_TIME": "1600000000", "NEMO_SPECRL_TIME_LIMIT": "10"},
    ],
)
def test_an_end_that_is_past_is_another_jobs(env):
    """A shell that outlives its salloc ended every run after one step."""
    with pytest.warns(UserWarning, match="job 7 of the environment is over"):
        assert job_deadline(env, NOW) is None


def test_a_revoked_allocation_ends_nothing(monkeypatch, fake_slurm):
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1700009999"}
    monkeypatch.setenv("FAKE_STATE", "CANCELLED")
    with pytest.warns(UserWarning, match="job 7 of the environment is over"):
        assert job_deadline(env, NOW) is None
    assert job_deadline(env | {"NEMO_SPECRL_JOB_ID": "7"}, NOW) == 1700009999, "our batch shell's own job is not asked"
    fake_slurm.write("scontrol", "#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1\n")
    with pytest.warns(UserWarning, match="is over"):
        assert job_deadline(env, NOW) is None
    fake_slurm.write("scontrol", "#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    assert job_deadline(env, NOW) == 1700009999


def test_in_a_container_without_slurm_the_environment_is_believed(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert job_deadline({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1700009999"}, NOW) == 1700009999


def test_copies_of_another_job_do_not_count():
    """A job that was submitted from inside one of ours."""
    other = {"NEMO_SPECRL_JOB_ID": "6", "NEMO_SPECRL_JOB_END_TIME": "1700000400", "NEMO_SPECRL_TIME_LIMIT": "1"}
    assert job_deadline(other | {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1700000900"}, NOW) == 1700000900
    with pytest.warns(UserWarning, match="stops at a signal only"):
        assert job_deadline(other | {"SLURM_JOB_ID": "7"}, NOW) is None


def test_anchor_is_the_start_of_the_job_and_not_now():
    env = {"NEMO_SPECRL_JOB_ID": "7", "SLURM_JOB_START_TIME": "1700000000", "NEMO_SPECRL_TIME_LIMIT": "10"}
    assert job_deadline(env, NOW) == 1700000600


@pytest.mark.filterwarnings("ignore:.*is no epoch second")
@pytest.mark.parametrize("start", [None, "", "Unknown", "2026-11-30T19:00:00", "0"])
def test_malformed_start_falls_back_to_now_with_a_warning(start):
    env = {"NEMO_SPECRL_JOB_ID": "7", "SLURM_JOB_ID": "7", "NEMO_SPECRL_TIME_LIMIT": "10"}
    if start is not None:
        env["SLURM_JOB_START_TIME"] = start
    with pytest.warns(UserWarning, match="counted from now"):
        assert job_deadline(env, NOW) == 1700000900


def test_unknown_limit_warns_and_unlimited_does_not():
    with pytest.warns(UserWarning, match="stops at a signal only"):
        assert job_deadline({"SLURM_JOB_ID": "7"}) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert job_deadline({"NEMO_SPECRL_JOB_ID": "7", "NEMO_SPECRL_TIME_LIMIT": "UNLIMITED"}) is None
