"""Nothing of the submitter's own job reaches the next one."""

from __future__ import annotations

import re
import subprocess

import pytest

from nemo_specrl.cluster.calls import KEPT, LAUNCHERS, OPTIONS, STEPS, call, clean, unheard_options

LEFT = [
    *("SLURM_JOB_ID", "SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_JOB_END_TIME", "SLURM_MEM_PER_NODE"),
    *("SLURMD_NODENAME", "SBATCH_PARTITION", "SRUN_CPUS_PER_TASK", "SRUN_EXPORT_ENV", "SQUEUE_STATES", "SALLOC_QOS"),
    *("SLURM_TIME_FORMAT", "SACCT_FORMAT", "SCONTROL_ALL", "SLURM_NTASKS", "SLURM_TASK_PID"),
    *("PMIX_RANK", "PMIX_SERVER_URI41", "PMI_FD", "PMI2_RANK", "OMPI_COMM_WORLD_RANK", "PRTE_LAUNCHED"),
    *("MPI_LOCALRANKID", "MV2_COMM_WORLD_SIZE", "HYDI_CONTROL_FD", "PALS_APID"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "PET_NODE_RANK"),
    *("NEMO_SPECRL_ATTEMPT", "NEMO_SPECRL_ATTEMPT_DIR", "NEMO_SPECRL_JOB_END_TIME", "NEMO_SPECRL_TIME_LIMIT"),
    *("NEMO_SPECRL_ARRAY_TASK_ID", "NEMO_SPECRL_SCRATCH", "NEMO_SPECRL_PORT_BASE"),
]
USERS = [
    *("PATH", "HOME", "HF_TOKEN", "MLFLOW_TRACKING_URI", "OMP_NUM_THREADS", "HYDRA_FULL_ERROR", "NCCL_DEBUG"),
    *(
        "NEMO_SPECRL_CACHE",
        "NEMO_SPECRL_IMAGE",
        "NEMO_SPECRL_CONTAINER",
        "I_MPI_PMI_LIBRARY",
        "MY_SLURM_THING",
        "RANKS",
    ),
    *("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS", "MPICH_GPU_SUPPORT_ENABLED", "MASTER_KEY"),
]


def test_the_callers_job_is_left_out_and_the_user_is_not():
    assert sorted(clean(dict.fromkeys([*LEFT, *USERS], "x"))) == sorted(USERS)


def test_gpus_of_the_callers_job_are_left_out_and_a_users_own_choice_is_not():
    chosen = {"CUDA_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1", "ZE_AFFINITY_MASK": "0", "CUDA_HOME": "/c"}
    assert clean(chosen) == chosen
    assert clean(chosen | {"SLURM_JOB_ID": "7"}) == {"CUDA_HOME": "/c"}


@pytest.mark.parametrize("pattern", [OPTIONS, KEPT, LAUNCHERS, STEPS])
def test_grep_reads_the_patterns_as_python_does(pattern):
    names = [*LEFT, *USERS]
    done = subprocess.run(["grep", "-E", pattern], input="\n".join(names), capture_output=True, text=True)
    assert done.stdout.split() == [name for name in names if re.search(pattern, name)]


def test_every_command_of_slurm_is_called_so(fake_slurm, monkeypatch):
    for name in ("SLURM_CPU_BIND", "SBATCH_QOS", "SQUEUE_STATES", "SLURM_CONF"):
        monkeypatch.setenv(name, "x")
    call(["squeue"])
    assert list(fake_slurm.calls("squeue")[0]["env"]) == ["SLURM_CONF"]


def test_a_dropped_wish_is_named():
    assert unheard_options({"SBATCH_QOS": "a", "SBATCH_ACCOUNT": "b", "SLURM_CPU_BIND": "c"}) == [
        "SBATCH_ACCOUNT",
        "SBATCH_QOS",
    ]
