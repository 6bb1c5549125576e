from __future__ import annotations

import pytest

from nemo_specrl.cluster.jobs import Job, parse_sacct, parse_scontrol, query

RUNNING = (
    "JobId=12 JobName=r UserId=me(1) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=1 ExitCode=0:0 "
    "RunTime=00:00:16 TimeLimit=00:02:00 StartTime=2026-11-30T19:27:31 NodeList=node[1-2] Comment=JobState=FAKE "
    "Command=/tmp/a b\nJobX/y.sh WorkDir=/tmp \n"
)


def test_scontrol_record_with_a_line_break_in_its_path():
    assert parse_scontrol(RUNNING) == {"12": Job("12", "RUNNING", "0:0", "00:00:16", "node[1-2]", "")}


def test_scontrol_lists_array_tasks_one_by_one():
    text = (
        "JobId=20 ArrayJobId=20 ArrayTaskId=3-4%2 JobState=PENDING Reason=JobArrayTaskLimit ExitCode=0:0 "
        "NodeList=(null)\n"
        "JobId=21 ArrayJobId=20 ArrayTaskId=0 JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0 NodeList=n1\n"
    )
    jobs = parse_scontrol(text)
    assert sorted(jobs) == ["20_0", "20_3", "20_4"]
    assert jobs["20_0"].state == "FAILED"
    assert jobs["20_4"] == Job("20_4", "PENDING", "0:0", "", "", "JobArrayTaskLimit")


def test_sacct_newest_life_of_a_requeued_job_wins():
    text = "7|REQUEUED|0:0|00:01:00|n1|None\n7|COMPLETED|0:0|00:00:30|n2|None\n"
    text += "8_[1-2]|PENDING|0:0|00:00:00|None assigned|\n"
    jobs = parse_sacct(text)
    assert jobs["7"] == Job("7", "COMPLETED", "0:0", "00:00:30", "n2", "")
    assert jobs["8_2"].nodes == ""
    assert parse_sacct("9|CANCELLED by 0|0:15|00:01|n1|None\n")["9"].state == "CANCELLED"


def test_unexpected_answers_are_errors():
    with pytest.raises(ValueError, match="not the fields"):
        parse_sacct("Slurm accounting storage is disabled\n")


def test_without_accounting_scontrol_answers(fake_slurm):
    fake_slurm.write("sacct", "#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2; exit 1\n")
    fake_slurm.write(
        "scontrol", f"#!/bin/sh\n[ $3 = 12 ] && printf '%s' '{RUNNING}' && exit\necho 'Invalid job id' >&2; exit 1\n"
    )
    assert set(query(["12", "99"])) == {"12"}
    assert query([]) == {}


def test_with_accounting_it_is_asked_once(fake_slurm):
    fake_slurm.write("sacct", "#!/bin/sh\necho '12|FAILED|1:0|00:10|n1|None'\n")
    assert query(["12", "13"])["12"].state == "FAILED"
    assert fake_slurm.calls("scontrol") == []
