"""On a real slurmctld (.ci/slurm.sh), with a stand-in for the trainer: the time limit, requeue, chains, arrays."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nemo_specrl.cluster.preflight import preflight
from nemo_specrl.cluster.status import collect
from nemo_specrl.cluster.submit import submit
from nemo_specrl.config.cluster import ClusterConfig
from nemo_specrl.config.compose import compose
from nemo_specrl.config.run import RunConfig
from tests.cluster.slurm import NEEDS_SLURM, ROOT, environment, over, wait_for

__all__ = ["environment"]
pytestmark = NEEDS_SLURM
STAND_IN = Path(__file__).with_name("stand_in.py")


def stand_in(folder: Path, *overrides: str, **cluster: object) -> str:
    """Submit the stand-in trainer; the job id."""
    python = folder.parent / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" "{STAND_IN}" "$@"\n')
    python.chmod(0o755)
    config = ClusterConfig(python=f"'{python}'", scratch=str(folder.parent), **cluster)
    run = RunConfig(name="stand-in", output_dir=str(folder), cluster=config)
    return submit(run, [f"output_dir={folder}", *overrides]).job_id


LEFT = {
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_END_TIME": "1700000000",
    "SLURM_CPU_BIND": "mask_cpu:0x1",
    "SLURM_MEM_PER_CPU": "7",
    "SBATCH_PARTITION": "nowhere",
    "PMIX_RANK": "3",
    "WORLD_SIZE": "4",
    "RANK": "2",
}
"""What the submitter's own job has left in the environment."""
ARRAY = {"time": "2", "stop_before_end_s": 105, "seeds": (3, 4), "max_parallel": 2}
JOBS: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("steps=3 step_s=0.1", {"time": "5", "stop_before_end_s": 60}),
    "cancelled": ("steps=500 step_s=1", {"time": "10", "stop_before_end_s": 60}),
    "crash": ("steps=9 step_s=0 crash_at=2", {"time": "5", "stop_before_end_s": 60, "crash_retries": 1}),
    "with space, it's %j": ("steps=55 step_s=1", {"time": "2", "stop_before_end_s": 100, "export": "HOME"}),
    "chain": ("steps=50 step_s=1", {"time": "2", "stop_before_end_s": 105, "requeue": False, "export": "NONE"}),
    "array": ("steps=50 step_s=1", ARRAY),
    "array_chain": ("steps=50 step_s=1", {**ARRAY, "requeue": False}),
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory, environment) -> Iterator[Callable[[str], tuple[Path, str]]]:
    """Folder and id of each stand-in job. All are submitted at once: they wait for slurmctld's clock, not for a CPU.

    The submitter sits in an interactive job of its own that is over."""
    submitted = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in LEFT.items():
            patch.setenv(name, value)
        for name, (overrides, cluster) in JOBS.items():
            folder = tmp_path_factory.mktemp("job") / name
            submitted[name] = folder, stand_in(folder, *overrides.split(), **cluster)
    yield submitted.__getitem__
    subprocess.run(["scancel", *(job_id for _, job_id in submitted.values())], capture_output=True)


def steps(folder: Path) -> list[int]:
    return [int(line.split()[0]) for line in (folder / "steps.log").read_text().splitlines()]


def test_cancel_is_final_and_the_trainer_gets_to_save(jobs):
    folder, job_id = jobs("cancelled")
    while not (folder / "checkpoint").exists():
        time.sleep(0.2)
    subprocess.run(["scancel", job_id], check=True)
    job = wait_for(job_id, over, 60)
    assert job.state == "CANCELLED"
    time.sleep(10)
    (status,) = collect(folder)
    assert (status.state, len(status.attempts)) == ("CANCELLED", 1)
    assert "stopping: SIG" in Path(status.log).read_text()


def test_nothing_of_the_submitters_job_reaches_the_payload(jobs):
    """A mask of its CPUs pinned the job, and its end stopped it after one step."""
    folder, job_id = jobs("plain")
    assert wait_for(job_id, over, 120).state == "COMPLETED"
    assert [item.exit_code for item in collect(folder)[0].attempts] == [0]
    assert steps(folder) == [1, 2, 3]
    seen = json.loads((folder / "environment.json").read_text())
    assert {name: seen.get(name) for name in LEFT} == dict.fromkeys(LEFT) | {"SLURM_JOB_ID": job_id}
    assert int(seen["NEMO_SPECRL_JOB_END_TIME"]) > time.time()


def test_jobs_that_would_share_ports_do_not(tmp_path):
    """Two jobs on one node, with first ports such that the second one's id leads it to the first one's."""
    common = {"time": "5", "stop_before_end_s": 60, "nodelist": "node1", "job_name": "stand-in-ports"}
    folders = [tmp_path / "one", tmp_path / "two"]
    one = stand_in(folders[0], "steps=600", "step_s=0.1", port_base=12000, **common)
    wanted = 12000 + 16 * (int(one) % 500)
    seen = [folder / "environment.json" for folder in folders]
    try:
        while not (seen[0].exists() and seen[0].read_text().endswith("}")):
            time.sleep(0.1)
        last = one
        for _ in range(20):  # other tests submit jobs, too: until the second job's id is the one that was foreseen
            foreseen = int(last) + 1
            base = wanted - 16 * (foreseen % 500)
            two = last = stand_in(folders[1], "steps=600", "step_s=0.1", port_base=base, **common)
            if int(two) == foreseen:
                break
            subprocess.run(["scancel", two], check=True)
            wait_for(two, over, 60)
            shutil.rmtree(folders[1])
        assert int(two) == foreseen
        while not (seen[1].exists() and seen[1].read_text().endswith("}")):
            time.sleep(0.1)
        ports = [int(json.loads(path.read_text())["MASTER_PORT"]) for path in seen]
        assert len(list(tmp_path.glob("nemo-specrl-*-ports-*"))) == 2
    finally:
        subprocess.run(["scancel", "--name=stand-in-ports"], check=True)
    assert ports[0] == wanted
    assert ports[1] == base + 16 * ((int(two) + 1) % 500)
    for job in (one, two):
        wait_for(job, over, 60)
    assert not list(tmp_path.glob("nemo-specrl-*"))


def test_crash_retries_are_bounded_and_the_job_is_failed(jobs):
    folder, job_id = jobs("crash")
    assert wait_for(job_id, over, 120).state == "FAILED"
    assert [item.exit_code for item in collect(folder)[0].attempts] == [1, 1]


def test_walltime_signal_requeue_and_finish(jobs):
    """The time limit is two minutes, the warning comes 100 s before; no step is lost and none is done twice.

    slurmctld looks at time limits every 30 s, so a warning can be that late: the work must outlast it."""
    folder, job_id = jobs("with space, it's %j")
    job = wait_for(job_id, over, 240)
    assert job.state == "COMPLETED", next(iter(folder.glob("slurm/*.log"))).read_text()
    (status,) = collect(folder)
    assert status.state == "COMPLETED"
    assert len(status.attempts) >= 2
    assert {item.job for item in status.attempts} == {job_id}
    assert [item.exit_code for item in status.attempts] == [85] * (len(status.attempts) - 1) + [0]
    assert status.attempts[0].why == "SIGUSR1"
    assert steps(folder) == list(range(1, 56))
    assert not list(folder.parent.glob("nemo-specrl-*")), "scratch is removed"


def test_without_requeue_a_chain_of_jobs_finishes(jobs):
    folder, first = jobs("chain")
    wait_for(first, over, 200)
    (status,) = collect(folder)
    assert status.job_id != first
    last = wait_for(status.job_id, over, 200)
    while (status := collect(folder)[0]).job_id != last.job_id:
        last = wait_for(status.job_id, over, 200)
    assert last.state == "COMPLETED"
    assert steps(folder) == list(range(1, 51))


@pytest.mark.parametrize("name", ["array", "array_chain"])
def test_array_tasks_come_back_one_by_one(jobs, name):
    folder, _ = jobs(name)
    end = time.monotonic() + 300
    while any(row.state != "COMPLETED" for row in collect(folder)):
        assert time.monotonic() < end, collect(folder)
        time.sleep(1)
    for row in collect(folder):
        assert len(row.attempts) >= 2
        assert steps(Path(row.run)) == list(range(1, 51))


def test_preflight_on_two_nodes(tmp_path, capsys):
    words = [f"output_dir={tmp_path}/r", f"cluster.python={sys.executable}", "cluster.nodes=2", "cluster.mem=100"]
    code = preflight(compose(words))
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert "node1: 0 GPU(s)" in shown.out
    assert "node2: 0 GPU(s)" in shown.out
    assert preflight(compose([*words, "cluster.gpus_per_node=1", "cluster.gpu_request=none"])) == 1
    assert "node2: sees 0 of 1 GPUs" in capsys.readouterr().err
