"""The renderer: a configuration in, the text of a job script out. Pure: no file, no clock, no environment."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from nemo_specrl.cluster.batch_shell import BATCH_SHELL, PORT_BLOCKS
from nemo_specrl.cluster.calls import KEPT, LAUNCHERS, OPTIONS, STEPS
from nemo_specrl.cluster.header import header
from nemo_specrl.cluster.payload import constants, expandable, payload, ranks_per_node
from nemo_specrl.cluster.tasks import Task, is_array, plan
from nemo_specrl.config.run import RunConfig
from nemo_specrl.handover import REQUEUE_EXIT_CODE

# Slurm may warn up to a minute early, and a setup line may take minutes: without a trap the shell would die of it.
_EARLY_TRAPS = """\
early=
trap 'early=USR1' USR1
trap 'early=USR2' USR2
trap 'early=TERM' TERM

"""

# The script may also be submitted by hand, from inside another job.
_FORGET = f"""\
# Unset the exported variables that match $1 and not $2.
forget() {{
  local name
  for name in $(compgen -e | grep -E "$1" | grep -vE "$2"); do unset "$name"; done
}}
# What the submitter's own job, mpirun or torchrun has left: a mask of CPUs, servers, ranks.
OPTIONS='{OPTIONS}'
KEPT='{KEPT}'
LAUNCHERS='{LAUNCHERS}'
forget '{STEPS}' "$KEPT"
forget "$LAUNCHERS" "$KEPT"
# sbatch --export=NONE, or a list of names, holds for this shell: a step gets all that is set here.
export SLURM_EXPORT_ENV=ALL

"""


def render(run: RunConfig, overrides: Sequence[str]) -> str:
    """The job script of this run; `overrides` are what the command line gave and what the job's command gets."""
    tasks = plan(run, overrides)
    return "".join(
        [
            "#!/usr/bin/env bash\n",
            *(f"#SBATCH {option.text}\n" for option in header(run, len(tasks))),
            f"# Written by `nemo-specrl submit`, site profile {shlex.quote(run.cluster.name)}: a plain job script.\n",
            "set -euo pipefail\n",
            _EARLY_TRAPS,
            _FORGET,
            _settings(run),
            _tasks(tasks),
            constants(run),
            "\n",
            payload(run),
            BATCH_SHELL,
        ]
    )


def explain(run: RunConfig, overrides: Sequence[str]) -> list[str]:
    """Why the script is as it is, one line per choice."""
    c = run.cluster
    tasks = plan(run, overrides)
    ranks = ranks_per_node(c)
    world = ranks * c.nodes
    lines = [f"{option.text:<40} {option.why}" for option in header(run, len(tasks))]
    if run.trainer.name == "nemo_rl":
        lines.append(f"payload: NeMo RL's ray.sub from {c.nemo_rl_dir}, since trainer=nemo_rl")
    elif world == 1:
        lines.append("payload: one process, no torchrun, since there is one rank")
    else:
        lines.append(f"payload: torchrun, {c.nodes} node(s) x {ranks} rank(s)")
    if run.trainer.name == "local":
        parts = run.policy.tensor_parallel * run.policy.pipeline_parallel
        lines.append(f"layout: {world} rank(s) = {parts} model-parallel x {world // parts} data-parallel")
    lines.append(f"runtime: {c.runtime}" + (f", image {c.image}" if c.image else ""))
    for task in tasks:
        lines.append(f"output: {task.output_dir} (logs in slurm/attempt_N, slurm/latest)")
    lines.append(
        f"stop: {c.stop_before_end_s} s before the end, then {'requeue' if c.requeue else 'a follow-up job'}, "
        f"at most {c.max_attempts} attempts; {c.crash_retries} retries after a crash"
    )
    return lines


def _settings(run: RunConfig) -> str:
    c = run.cluster
    values = {
        "WORKDIR": expandable(c.workdir) if c.workdir else '"$SLURM_SUBMIT_DIR"',
        "TIME_LIMIT": shlex.quote(c.time),
        "REQUEUE": str(int(c.requeue)),
        "MAX_ATTEMPTS": str(c.max_attempts),
        "CRASH_RETRIES": str(c.crash_retries),
        # Ray's own processes would die of a user signal; there the trainer's walltime budget alone stops the run.
        "FORWARD_SIGNAL": str(int(run.trainer.name == "local")),
        "STOPPED_EARLY": str(REQUEUE_EXIT_CODE),
        "PORT_BASE": str(c.port_base),
        "PORT_BLOCKS": str(PORT_BLOCKS),
        "SCRATCH": expandable(c.scratch),
    }
    lines = [f"{name}={value}" for name, value in values.items()]
    if c.image:
        lines.append(f"export NEMO_SPECRL_IMAGE={expandable(c.image)}")
    if is_array(run) and run.tracking.mlflow and run.tracking.uri is None:  # by default a store lies beside one run
        store = shlex.quote(f"sqlite:///{run.output_dir}/mlflow.db")
        lines.append(f'[ -n "${{MLFLOW_TRACKING_URI:-}}" ] || export MLFLOW_TRACKING_URI={store}')
    lines += [f"export {name}={shlex.quote(value)}" for name, value in c.env.items()]
    return "\n".join([*lines, *c.setup]) + "\n\n"


def _tasks(tasks: Sequence[Task]) -> str:
    if len(tasks) == 1:
        return _task(tasks[0], "") + "\n"
    cases = [f"  {number})\n{_task(task, '    ')}    ;;\n" for number, task in enumerate(tasks)]
    return "case $SLURM_ARRAY_TASK_ID in\n" + "".join(cases) + "esac\n\n"


def _task(task: Task, indent: str) -> str:
    words = " ".join(shlex.quote(word) for word in task.overrides)
    return f"{indent}OUTPUT_DIR={shlex.quote(task.output_dir)}\n{indent}overrides=({words})\n"
