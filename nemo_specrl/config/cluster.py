"""How a run is submitted to Slurm."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ClusterConfig:
    """A site profile (conf/cluster) and the job's wishes. Null leaves an option to the site's default."""

    name: str = "generic"
    """Name of the site profile."""

    # What is asked of Slurm: one #SBATCH line each.
    job_name: str | None = None
    """Slurm's name of the job; null = the run's name."""
    account: str | None = None
    """Account that is charged."""
    partition: str | None = None
    """Partition, or several separated by commas."""
    qos: str | None = None
    """Quality of service."""
    nodes: int = 1
    """Nodes of one job."""
    ntasks_per_node: int | None = 1
    """Slurm tasks per node. One: torchrun (or Ray) starts the ranks. Null = say nothing (some sites forbid it)."""
    gpus_per_node: int = 0
    """GPUs per node; 0 = none is asked for, and the ranks run on CPUs."""
    gpu_request: str = "gpus"
    """How GPUs are asked for: `gpus` (--gpus-per-node), `gres` (--gres=gpu:N), `none` (whole nodes bring them)."""
    gpu_type: str | None = None
    """GPU type in the request, for example h100."""
    cpus_per_task: int | None = None
    """CPU cores per task; also given to every srun, which does not inherit it from 22.05 to 23.02."""
    mem: str | None = None
    """Memory per node, for example 200G; "0" = all of the node."""
    time: str = "4:00:00"
    """Time limit of one attempt, in any Slurm form: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S, UNLIMITED."""
    exclusive: bool = False
    """Share the nodes with no other job."""
    constraint: str | None = None
    """Node features."""
    reservation: str | None = None
    """Reservation to run in."""
    nodelist: str | None = None
    """Nodes that the job must have, in Slurm's notation."""
    exclude: str | None = None
    """Nodes that the job must not have."""
    dependency: str | None = None
    """Dependency of the first attempt, for example afterok:1234 or singleton."""
    comment: str | None = None
    """Free text kept with the job."""
    output: str | None = None
    """Name of the batch shell's log, in the folder that sbatch is called in (submit: <output_dir>/slurm);
    null = slurm-%j.log, for arrays slurm-%A_%a.log."""
    extra_sbatch: tuple[str, ...] = ()
    """Further sbatch options, each written whole: --mail-type=FAIL."""

    # Surviving the time limit.
    signal: str = "USR1"
    """Signal that Slurm sends to the batch shell before the end: USR1, USR2 or TERM."""
    stop_before_end_s: int = 300
    """How long before the end that is, seconds; also the reserve of the trainer's own walltime budget. It must be
    enough for one checkpoint; the step in progress is added by the trainer. 0 = no signal."""
    requeue: bool = True
    """Requeue a job that stopped early; false (or where a site forbids it): a follow-up job with a dependency."""
    max_attempts: int = 50
    """Attempts of one submission, whatever ended them; then it fails."""
    crash_retries: int = 0
    """How many attempts that ended with an error (not by the time limit) may be retried."""

    # Several runs in one array.
    seeds: tuple[int, ...] = ()
    """One array task per seed, each in its own output folder; empty = the run's seed only."""
    arms: tuple[str, ...] = ()
    """Ablation: one array task per arm (times the seeds), each a list of overrides: "reuse=exact drafter=history"."""
    max_parallel: int | None = None
    """Array tasks at a time (%P)."""

    # What runs in the job.
    verb: str = "train"
    """The command of nemo-specrl: `train`, `eval`, `bench` or `verify`."""
    runtime: str = "bare"
    """`bare`, `pyxis` (enroot, NVIDIA's plugin for srun) or `apptainer`."""
    image: str | None = None
    """Container image: a registry name or .sqsh file (pyxis), a .sif file (apptainer)."""
    mounts: tuple[str, ...] = ()
    """Folders seen inside the container, SOURCE:TARGET[:ro]; the work and output folders are added."""
    extra_container: tuple[str, ...] = ()
    """Further options of `apptainer exec`; with pyxis use extra_srun."""
    workdir: str | None = None
    """Folder that the job works in (relative paths of the configuration start there); null = where submit is called."""
    setup: tuple[str, ...] = ()
    """Shell lines before the payload, outside of the container: module load cuda."""
    python: str = "python"
    """The job's Python that has nemo_specrl, inside of the container if there is one; may be several words, such as
    `uv run python` (so quote a path with spaces)."""
    ranks_per_node: int | None = None
    """Trainer processes per node (torchrun); null = one per GPU, or one."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables. Never a secret: those are inherited from your shell by `export`."""
    export: str = "ALL"
    """What the job inherits from the shell of `submit` (sbatch --export): ALL, NONE, or names. The payload gets what
    the job sets itself, `env` and `setup` included, in any case; nothing of a job that `submit` runs in."""
    scratch: str = "/tmp"
    """Node-local folder for temporary files and compiler caches, one folder per job, removed at its end."""
    port_base: int = 20000
    """First of the 8,000 ports from which each job takes 16: by its id, or the next that are free on its head node."""
    extra_srun: tuple[str, ...] = ()
    """Further options of the payload's srun, taken literally."""
    nemo_rl_dir: str | None = None
    """trainer=nemo_rl: NeMo RL's checkout on a shared file system; its ray.sub is called from there."""
    nemo_rl_command: str | None = None
    """trainer=nemo_rl: what ray.sub runs, from nemo_rl_dir: NeMo RL's driver and its arguments, e.g.
    `uv run ./examples/run_grpo.py --config my.yaml`. $NAME is expanded on the node."""
