"""What a job runs: our command under torchrun in an srun step, or NeMo RL's own ray.sub around it."""

from __future__ import annotations

import re
import shlex

from nemo_specrl.config.cluster import ClusterConfig
from nemo_specrl.config.run import RunConfig

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")

# Runs once per node, inside of the container. USR1 is ignored here and so in torchrun, which would die of it;
# the trainer installs its own handler. torchrun reads its node rank from PET_NODE_RANK.
NODE_SHELL = r"""
trap '' USR1 USR2
export TMPDIR=$NEMO_SPECRL_SCRATCH/tmp TRITON_CACHE_DIR=$NEMO_SPECRL_SCRATCH/triton PET_NODE_RANK=${SLURM_NODEID:-0}
export TORCHINDUCTOR_CACHE_DIR=$NEMO_SPECRL_SCRATCH/inductor VLLM_CACHE_ROOT=$NEMO_SPECRL_SCRATCH/vllm
mkdir -p "$TMPDIR" "$TRITON_CACHE_DIR" "$TORCHINDUCTOR_CACHE_DIR" "$VLLM_CACHE_ROOT"
exec "$@"
"""

# NeMo RL's ray.sub names its containers ray-head and ray-worker on every node: two jobs would share one (RL#4066).
# It is called as it is; this srun, first in its PATH, makes the names the job's own.
SRUN_WRAPPER = r"""#!/usr/bin/env bash
arguments=()
for word in "$@"; do
  case $word in --container-name=*) word=$word-$NEMO_SPECRL_JOB_ID ;; esac
  arguments+=("$word")
done
exec "$NEMO_SPECRL_SRUN" "${arguments[@]}"
"""


def ranks_per_node(cluster: ClusterConfig) -> int:
    """Trainer processes on each node."""
    return cluster.ranks_per_node or max(cluster.gpus_per_node, 1)


def expandable(text: str) -> str:
    """A bash word: $NAME and ${NAME} are expanded on the node, everything else is literal."""
    parts: list[str] = []
    end = 0
    for match in _VARIABLE.finditer(text):
        if literal := text[end : match.start()]:
            parts.append(shlex.quote(literal))
        parts.append('"${' + (match[1] or match[2]) + '}"')
        end = match.end()
    if literal := text[end:]:
        parts.append(shlex.quote(literal))
    return "".join(parts) or "''"


def command(run: RunConfig) -> str:
    """The words of the command as a bash array body; ${overrides[@]} is the task's."""
    c = run.cluster
    if run.trainer.name == "nemo_rl":
        assert c.nemo_rl_command is not None
        return " ".join(expandable(word) for word in shlex.split(c.nemo_rl_command))
    ours = f'-m nemo_specrl.cli {shlex.quote(c.verb)} "${{overrides[@]}}"'
    python = " ".join(expandable(word) for word in shlex.split(c.python))
    ranks = ranks_per_node(c)
    if ranks * c.nodes == 1:
        return f"{python} {ours}"
    return (
        f'{python} -m torch.distributed.run --nnodes="${{#nodes[@]}}" --nproc-per-node={ranks} '
        f'--master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 {ours}'
    )


def payload(run: RunConfig) -> str:
    """The bash function `payload` of the job script."""
    body = _ray(run) if run.trainer.name == "nemo_rl" else _srun(run.cluster)
    return "payload() {\n" + f"  local command=({command(run)})\n" + body + "}\n"


def _srun(c: ClusterConfig) -> str:
    # --overlap: the step may share the allocation with preflight and with an operator's shell.
    # --kill-on-bad-exit: one failing node frees the allocation in place of holding it until the time limit.
    options = ["--overlap", "--kill-on-bad-exit=1", '--nodes="${#nodes[@]}"', '--ntasks="${#nodes[@]}"']
    if c.ntasks_per_node is not None:
        options.append("--ntasks-per-node=1")
    if c.cpus_per_task is not None:
        options.append(f"--cpus-per-task={c.cpus_per_task}")
    if c.nodes > 1:
        options.append("--label")
    before, inside = container(c)
    words = [*options, *before, *(shlex.quote(word) for word in c.extra_srun)]
    lines = [f"exec srun {' '.join(words)}", *([" ".join(inside)] if inside else [])]
    return "  " + " \\\n    ".join([*lines, 'bash -c "$NODE_SHELL" node "${command[@]}"']) + "\n"


def container(c: ClusterConfig) -> tuple[list[str], list[str]]:
    """Options of srun, and the words that go before the command, which put it into the container."""
    if c.runtime == "bare":
        return [], []
    assert c.image is not None
    folders = ['"$WORKDIR:$WORKDIR"', '"$OUTPUT_DIR:$OUTPUT_DIR"', '"$SCRATCH:$SCRATCH"']
    mounts = [*folders, *(expandable(mount) for mount in c.mounts)]
    if c.runtime == "pyxis":
        return [
            f"--container-image={expandable(c.image)}",
            f"--container-mounts={','.join(mounts)}",
            '--container-workdir="$WORKDIR"',
            "--no-container-mount-home",
        ], []
    words = ["apptainer", "exec", *(["--nv"] if c.gpus_per_node else []), '--pwd "$WORKDIR"']
    words += [f"--bind {mount}" for mount in mounts]
    return [], [*words, *(shlex.quote(word) for word in c.extra_container), expandable(c.image)]


def _ray(run: RunConfig) -> str:
    c = run.cluster
    assert c.image is not None
    assert c.nemo_rl_dir is not None
    # The checkout too: ray.sub makes it the containers' work folder.
    folders = ['"$WORKDIR:$WORKDIR"', '"$OUTPUT_DIR:$OUTPUT_DIR"', expandable(f"{c.nemo_rl_dir}:{c.nemo_rl_dir}")]
    mounts = ",".join([*folders, *map(expandable, c.mounts)])
    return f"""\
  export COMMAND CONTAINER={expandable(c.image)} MOUNTS={mounts}
  COMMAND="cd $(printf '%q' {expandable(c.nemo_rl_dir)}) && $(printf '%q ' "${{command[@]}}")"
  export GPUS_PER_NODE={c.gpus_per_node} BASE_LOG_DIR="$NEMO_SPECRL_ATTEMPT_DIR"
  export SLURM_SUBMIT_DIR={expandable(c.nemo_rl_dir)}
  export SLURM_JOB_ACCOUNT="${{SLURM_JOB_ACCOUNT:-none}}"  # ray.sub reads it; without accounting Slurm sets none
  export PYTHONPATH="$WORKDIR${{PYTHONPATH:+:$PYTHONPATH}}" NEMO_SPECRL_SRUN
  NEMO_SPECRL_SRUN=$(command -v srun)
  mkdir -p "$NEMO_SPECRL_ATTEMPT_DIR/bin"
  printf '%s' "$SRUN_WRAPPER" > "$NEMO_SPECRL_ATTEMPT_DIR/bin/srun"
  chmod +x "$NEMO_SPECRL_ATTEMPT_DIR/bin/srun"
  export PATH="$NEMO_SPECRL_ATTEMPT_DIR/bin:$PATH"
  cd "$SLURM_SUBMIT_DIR"
  exec bash ray.sub
"""


def constants(run: RunConfig) -> str:
    """The shell text that `payload` uses, as a here-document."""
    name, text = ("SRUN_WRAPPER", SRUN_WRAPPER) if run.trainer.name == "nemo_rl" else ("NODE_SHELL", NODE_SHELL)
    return f"{name}=$(cat << 'EOF'\n{text.strip()}\nEOF\n)\n"
