"""What a submission must satisfy, checked before anything reaches Slurm."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields

from nemo_specrl.cluster.batch_shell import PORT_BLOCKS
from nemo_specrl.cluster.nodelist import expand
from nemo_specrl.cluster.payload import ranks_per_node
from nemo_specrl.cluster.tasks import arm_label
from nemo_specrl.cluster.walltime import parse_time
from nemo_specrl.config.cluster import ClusterConfig
from nemo_specrl.config.run import RunConfig
from nemo_specrl.tracking.redact import is_secret_name

CHOICES = {
    "runtime": ("bare", "pyxis", "apptainer"),
    "gpu_request": ("gpus", "gres", "none"),
    "signal": ("USR1", "USR2", "TERM"),
    "verb": ("train", "eval", "bench", "verify"),
}
AT_LEAST = {
    "nodes": 1,
    "ntasks_per_node": 1,
    "gpus_per_node": 0,
    "cpus_per_task": 1,
    "stop_before_end_s": 0,
    "max_attempts": 1,
    "crash_retries": 0,
    "max_parallel": 1,
    "ranks_per_node": 1,
    "port_base": 9000,  # NeMo RL's ray.sub uses ports up to 8999
}
MAX_SIGNAL_S = 65535
CUTS_ENVIRONMENT = {"--cleanenv", "-e", "--containall", "-C"}
PORTS_TAKEN = 16 * PORT_BLOCKS
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def validate_cluster(config: ClusterConfig, run: RunConfig) -> None:
    """ValueError that names every key at fault and the remedy."""
    faults = [*_single(config), *_together(config, run), *_containers(config, run)]
    if faults:
        raise ValueError("\n".join(faults))


def check_secrets(script: str, environ: Mapping[str, str] = os.environ) -> None:
    """ValueError when a secret of the environment would be written into the script, which others can read."""
    for name, value in environ.items():
        if is_secret_name(name) and len(value) >= 8 and value in script:
            raise ValueError(
                f"the job script would contain the value of {name}: take it out of the overrides and of cluster.env; "
                "the job inherits it from your shell (cluster.export=ALL)"
            )


def _single(c: ClusterConfig) -> Iterator[str]:
    for key, choices in CHOICES.items():
        if getattr(c, key) not in choices:
            yield f"cluster.{key}={getattr(c, key)}: must be one of {', '.join(choices)}"
    for key, least in AT_LEAST.items():
        value = getattr(c, key)
        if value is not None and value < least:
            yield f"cluster.{key}={value}: must be at least {least}"
    for item in fields(c):
        value = getattr(c, item.name)
        if item.name not in ("setup", "arms") and isinstance(value, str) and _CONTROL.search(value):
            yield f"cluster.{item.name}={value!r}: a line break or control character cannot stand in an #SBATCH line"
    for text in c.extra_sbatch:
        if not text.startswith("-") or _CONTROL.search(text):
            yield f"cluster.extra_sbatch: {text!r} is no option; write it whole, as in --mail-type=FAIL"
    for name, value in c.env.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            yield f"cluster.env: {name!r} is no name of an environment variable"
        if is_secret_name(name) and value:
            yield (
                f"cluster.env.{name} looks like a secret and would be written into the job script: export it in your "
                "shell instead; the job inherits it (cluster.export=ALL)"
            )
    for name, _, value in (item.partition("=") for item in c.export.split(",")):
        if is_secret_name(name) and value:
            yield (
                f"cluster.export: the value of {name} would be written into the job script: export it in your shell, "
                f"and write cluster.export={name} or ALL"
            )
    if not c.export.strip():
        yield "cluster.export: nothing is said; write ALL, NONE or names of variables"
    if c.output is not None and ("/" in c.output or not c.output):
        yield f"cluster.output={c.output!r}: a file name, without a folder; the log lies in <output_dir>/slurm"
    for key in ("nodelist", "exclude"):
        if (value := getattr(c, key)) is not None and "/" not in value:
            try:
                expand(value)
            except ValueError as error:
                yield f"cluster.{key}: {error}"
    if c.port_base + PORTS_TAKEN > 32768:
        yield f"cluster.port_base={c.port_base}: its {PORTS_TAKEN} ports reach into the ephemeral range (from 32768 on)"


def _together(c: ClusterConfig, run: RunConfig) -> Iterator[str]:
    try:
        limit = parse_time(c.time)
    except ValueError as error:
        yield str(error)
        limit = None
    if c.stop_before_end_s > MAX_SIGNAL_S:
        yield f"cluster.stop_before_end_s={c.stop_before_end_s}: Slurm allows at most {MAX_SIGNAL_S}"
    if limit is not None and c.stop_before_end_s >= limit:
        yield (
            f"cluster.stop_before_end_s={c.stop_before_end_s} leaves nothing of cluster.time={c.time} ({limit} s): "
            "lower the one or raise the other"
        )
    if len(set(c.seeds)) != len(c.seeds):
        yield f"cluster.seeds={list(c.seeds)}: a seed appears twice"
    labels = [arm_label(arm) for arm in c.arms]
    for label in sorted({label for label in labels if labels.count(label) > 1}):
        yield f"cluster.arms: two arms would write to the folder {label!r}; add name=... to one of them"
    if c.max_parallel is not None and len(c.seeds) * max(len(c.arms), 1) < 2 and len(c.arms) < 2:
        yield "cluster.max_parallel limits an array, and there is none: give cluster.seeds or cluster.arms, or drop it"
    world = ranks_per_node(c) * c.nodes
    parts = run.policy.tensor_parallel * run.policy.pipeline_parallel
    if run.trainer.name == "local" and parts and world % parts:
        yield (
            f"{c.nodes} node(s) x {ranks_per_node(c)} rank(s) cannot be divided by policy.tensor_parallel x "
            f"policy.pipeline_parallel = {parts}: change cluster.nodes, cluster.ranks_per_node or the layout"
        )
    if run.trainer.name == "local" and c.gpus_per_node and ranks_per_node(c) > c.gpus_per_node:
        yield f"cluster.ranks_per_node={c.ranks_per_node} exceeds cluster.gpus_per_node={c.gpus_per_node}"


def _containers(c: ClusterConfig, run: RunConfig) -> Iterator[str]:
    ray = run.trainer.name == "nemo_rl"
    if ray and c.nemo_rl_command is None:
        yield "trainer=nemo_rl needs cluster.nemo_rl_command, e.g. 'uv run ./examples/run_grpo.py --config my.yaml'"
    if ray and c.nemo_rl_dir is None:
        yield "trainer=nemo_rl needs cluster.nemo_rl_dir, NeMo RL's checkout on a shared file system (with ray.sub)"
    if ray and c.gpus_per_node < 1:
        yield "trainer=nemo_rl needs cluster.gpus_per_node: ray.sub starts its workers by it"
    if ray and c.runtime != "pyxis":
        yield f"trainer=nemo_rl: ray.sub starts containers through pyxis; cluster.runtime={c.runtime} cannot be used"
    if ray:  # ray.sub writes its paths into command lines without quotes
        paths = {"output_dir": run.output_dir, "cluster.workdir": c.workdir, "cluster.nemo_rl_dir": c.nemo_rl_dir}
        paths |= {"cluster.image": c.image, "cluster.mounts": ",".join(c.mounts)}
        for key, value in paths.items():
            if value and re.search(r"\s", value):
                yield f"{key}={value!r}: ray.sub cannot take a path with a space"
    if (c.runtime in ("pyxis", "apptainer") or ray) and not c.image:
        yield f"cluster.runtime={c.runtime} needs cluster.image"
    if c.runtime == "bare" and not ray and (c.image or c.mounts):
        yield "cluster.image and cluster.mounts have no effect with cluster.runtime=bare: choose pyxis or apptainer"
    if c.extra_container and c.runtime != "apptainer":
        yield f"cluster.extra_container has no effect with cluster.runtime={c.runtime}: use cluster.extra_srun"
    if cut := sorted(CUTS_ENVIRONMENT & {word.partition("=")[0] for word in c.extra_container}):
        yield (
            f"cluster.extra_container: {cut[0]} would take the job's own variables (node rank, attempt, scratch) from "
            "the payload; unset in cluster.setup what disturbs it"
        )
    if any(word.partition("=")[0] == "--export" for word in c.extra_srun):
        yield (
            "cluster.extra_srun: --export would take the job's own variables (attempt, scratch, the head's address) "
            "from the payload; cluster.export says what the job inherits"
        )
    for mount in c.mounts:
        if not re.fullmatch(r"[^:,]+:[^:,]+(:[a-z+-]+)?", mount):
            yield f"cluster.mounts: {mount!r} is not SOURCE:TARGET or SOURCE:TARGET:ro"
    if c.runtime != "bare":
        for key, path in (("output_dir", run.output_dir), ("cluster.workdir", c.workdir or "")):
            if re.search(r"[:,]", path):
                yield f"{key}={path!r}: a container runtime cannot mount a path with a colon or comma"
