"""Slurm's commands, called without what the caller's own job has left in the environment.

A variable such as SLURM_CPU_BIND is an option of Slurm's commands, and sbatch hands the whole environment on: a job
that is submitted from inside another would be pinned to that one's cores, or take its ranks for its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

CALL_TIMEOUT_S = 120.0
# The patterns are read by Python and, in the job script, by `grep -E`.
OPTIONS = "^(SACCT|SALLOC|SBATCH|SCONTROL|SLURM|SLURMD|SQUEUE|SRUN)_"
"""What describes a job to its processes, or changes what Slurm's commands do."""
KEPT = "^SLURM_(CLUSTERS|CONF|CONF_SERVER|JWT)$"
"""Of these: where the cluster is, and who asks."""
LAUNCHERS = (
    "^((HYDI|OMPI|ORTE|PALS|PET|PMI|PMI2|PMIX|PRTE|TORCHELASTIC)_.*|MPI_LOCAL.*|MV2_COMM_WORLD_.*"
    "|(GROUP_|LOCAL_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)"
    "|NEMO_SPECRL_(ARRAY_.*|ATTEMPT.*|JOB_.*|PORT_BASE|RESTART_COUNT|SCRATCH|TIME_LIMIT))$"
)
"""What mpirun, srun's MPI plugins, torchrun and our own batch shell tell a process of its place."""
STEPS = "^(SLURM_(CPU_BIND|EXPORT_ENV|SRUN_|STEP_)|SRUN_)"
"""Options that sbatch itself gives to no batch script: there they are left over from the submitter's job."""
DEVICES = "^(CUDA|GPU|HIP|NVIDIA|ROCR)_(VISIBLE_DEVICES|DEVICE_ORDINAL)$|^ZE_AFFINITY_MASK$"
"""The share of a node that Slurm gave to a job."""


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the caller's own job; the user's other variables stay."""
    patterns = [OPTIONS, LAUNCHERS, *([DEVICES] if "SLURM_JOB_ID" in environ else [])]
    left = re.compile("|".join(patterns))
    return {name: value for name, value in environ.items() if re.search(KEPT, name) or not left.search(name)}


def unheard_options(environ: Mapping[str, str]) -> list[str]:
    """SBATCH_* variables that a user may have meant, and that `clean` drops: the script says all that is asked for."""
    return sorted(name for name in environ if name.startswith("SBATCH_"))


def call(words: Sequence[str], timeout_s: float = CALL_TIMEOUT_S) -> str:
    """The output of one of Slurm's commands; ValueError with its error text."""
    if shutil.which(words[0]) is None:
        raise ValueError(f"{words[0]} is not on the PATH: run this on a login node of a Slurm cluster")
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL, env=clean(os.environ)
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{words[0]} gave no answer within {timeout_s:.0f} s: is slurmctld up? (sdiag)") from error
    if done.returncode:
        raise ValueError(f"{words[0]} refused: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
