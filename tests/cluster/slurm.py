"""What the tests on a real slurmctld (.ci/slurm.sh) share."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nemo_specrl.cluster.jobs import Job, query

ROOT = Path(__file__).parents[2]


def slurm_answers() -> bool:
    if shutil.which("sinfo") is None:
        return False
    return subprocess.run(["sinfo", "-h"], capture_output=True, timeout=30).returncode == 0


NEEDS_SLURM = [
    pytest.mark.slurm,
    pytest.mark.skipif(not slurm_answers(), reason="no Slurm: . .ci/slurm.sh starts one"),
    pytest.mark.timeout(1500),
]


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """Jobs inherit the submitter's environment: this checkout, one thread each, nothing of the surroundings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        for name in [name for name in os.environ if name.startswith(("MLFLOW_", "SLURM_JOB", "NEMO_SPECRL"))]:
            patch.delenv(name)
        yield


def wait_for(job_id: str, done: Callable[[Job], bool], limit_s: float) -> Job:
    """The job, once `done` holds."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        job = query([job_id]).get(job_id)
        if job is not None and done(job):
            return job
        time.sleep(0.5)
    raise AssertionError(f"job {job_id} is still {query([job_id])}")


def over(job: Job) -> bool:
    return job.ended
