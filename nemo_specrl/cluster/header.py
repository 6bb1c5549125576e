"""The #SBATCH lines: one function from configuration to options, each with the reason that --dry-run prints."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nemo_specrl.config.cluster import ClusterConfig
from nemo_specrl.config.run import RunConfig

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]^*&|()!-]+")


@dataclass(frozen=True)
class Option:
    """One sbatch option, for example --nodes=2, and why it is there."""

    text: str
    why: str


def log_name(cluster: ClusterConfig, tasks: int) -> str:
    """File name pattern of the batch shell's log."""
    return cluster.output or ("slurm-%A_%a.log" if tasks > 1 else "slurm-%j.log")


def header(run: RunConfig, tasks: int) -> list[Option]:
    """The options of a job with so many array tasks (1 = no array), in a fixed order."""
    c = run.cluster
    options = [
        _option("job-name", c.job_name or run.name, "cluster.job_name" if c.job_name else "the run's name"),
        _option("account", c.account),
        _option("partition", c.partition),
        _option("qos", c.qos),
        _option("nodes", c.nodes),
        _option("ntasks-per-node", c.ntasks_per_node, "one task per node: torchrun or Ray starts the ranks"),
        *_gpus(c),
        _option("cpus-per-task", c.cpus_per_task),
        _option("mem", c.mem),
        _option("time", c.time, "the limit of one attempt"),
        Option("--exclusive", "cluster.exclusive") if c.exclusive else None,
        _option("constraint", c.constraint),
        _option("reservation", c.reservation),
        _option("nodelist", c.nodelist),
        _option("exclude", c.exclude),
        _option("dependency", c.dependency),
        _option("comment", c.comment),
        _array(c, tasks),
        _option("output", log_name(c, tasks), "the batch shell's log; the payload's output is kept per attempt"),
        Option("--open-mode=append", "a requeued job must not truncate its log"),
        _signal(c),
        Option("--requeue", "cluster.requeue: a job that stops early is requeued under its own id")
        if c.requeue
        else Option("--no-requeue", "cluster.requeue=false: a job that stops early submits a follow-up job"),
        _option("export", c.export),
        *(Option(text, "cluster.extra_sbatch") for text in c.extra_sbatch),
    ]
    return [option for option in options if option is not None]


def _option(name: str, value: object, why: str | None = None) -> Option | None:
    if value is None:
        return None
    return Option(f"--{name}={quote(str(value))}", why or f"cluster.{name.replace('-', '_')}")


def quote(value: str) -> str:
    """A value as the parser of #SBATCH lines reads it back: double quotes, backslash escapes."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _gpus(c: ClusterConfig) -> list[Option | None]:
    if not c.gpus_per_node or c.gpu_request == "none":
        return []
    kind = f"{c.gpu_type}:" if c.gpu_type else ""
    if c.gpu_request == "gres":
        return [_option("gres", f"gpu:{kind}{c.gpus_per_node}", "cluster.gpu_request=gres")]
    return [_option("gpus-per-node", f"{kind}{c.gpus_per_node}", "cluster.gpus_per_node")]


def _array(c: ClusterConfig, tasks: int) -> Option | None:
    if tasks <= 1:
        return None
    limit = f"%{c.max_parallel}" if c.max_parallel else ""
    return Option(f"--array=0-{tasks - 1}{limit}", "one task per arm and seed")


def _signal(c: ClusterConfig) -> Option | None:
    if not c.stop_before_end_s:
        return None
    # B: the batch shell alone gets it and passes it on; without it every process of the steps would.
    return Option(
        f"--signal=B:{c.signal}@{c.stop_before_end_s}",
        f"warns the batch shell {c.stop_before_end_s} s before the end, so that the trainer can write a checkpoint",
    )
