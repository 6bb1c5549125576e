"""`nemo-specrl submit`: render, check, make the log folders, call sbatch, remember the job."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_specrl.cluster.calls import call, unheard_options
from nemo_specrl.cluster.header import log_name
from nemo_specrl.cluster.sbatch import explain, render
from nemo_specrl.cluster.tasks import plan
from nemo_specrl.cluster.validate import check_secrets, validate_cluster
from nemo_specrl.config.arguments import Parser
from nemo_specrl.config.compose import compose
from nemo_specrl.config.run import RunConfig
from nemo_specrl.files import write_atomic

SUBMISSION_FILE = "submission.json"
SCRIPT_FILE = "job.sh"


@dataclass(frozen=True)
class Submission:
    """What is remembered about a submission, in <output_dir>/slurm."""

    job_id: str
    """Slurm's id; that of the array if there is one."""
    output_dirs: tuple[str, ...]
    """The runs' folders, one per array task."""


def submit_command(args: Sequence[str]) -> int:
    """Submit a run, or with --dry-run print the very bytes of the script (stdout) and the reasons (stderr)."""
    parser = Parser("nemo-specrl submit", description="Submit a run to Slurm.", allow_abbrev=False)
    parser.add_argument("overrides", nargs="*", metavar="group=option|key=value", help="as for `nemo-specrl train`")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the script, and why it is as it is; submit nothing"
    )
    options = parser.parse_intermixed_args(args)
    overrides: list[str] = options.overrides
    run = compose(overrides)
    if unheard := unheard_options(os.environ):
        print(
            f"not handed on to sbatch: {', '.join(unheard)}; say it in the configuration (cluster.partition, "
            "cluster.extra_sbatch, ...)",
            file=sys.stderr,
        )
    if options.dry_run:
        script = checked_script(run, overrides)
        sys.stdout.write(script)
        sys.stdout.flush()
        print("\n".join(explain(run, overrides)), file=sys.stderr)
        return 0
    done = submit(run, overrides)
    print(f"job {done.job_id}: {len(done.output_dirs)} run(s)")
    for folder in done.output_dirs:
        print(f"  {folder}  (nemo-specrl status {folder})")
    return 0


def checked_script(run: RunConfig, overrides: Sequence[str]) -> str:
    """The job script, after every check."""
    validate_cluster(run.cluster, run)
    script = render(run, overrides)
    check_secrets(script)
    return script


def submit(run: RunConfig, overrides: Sequence[str]) -> Submission:
    """Submit to Slurm. ValueError with Slurm's own words when it refuses.

    The log folders are made first: Slurm drops a job silently when they are missing."""
    script = checked_script(run, overrides)
    workdir = Path.cwd() if run.cluster.workdir is None else Path(os.path.expandvars(run.cluster.workdir))
    tasks = plan(run, overrides)
    logs = (workdir / run.output_dir).absolute() / "slurm"
    if "\\" in str(logs):
        raise ValueError(f"output_dir={run.output_dir!r}: Slurm cannot write a log to a path with a backslash")
    folders = [logs, *((workdir / task.output_dir).absolute() / "slurm" for task in tasks)]
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"cannot make the log folder {folder}: {error.strerror}") from error
    path = logs / SCRIPT_FILE
    path.write_text(script)
    path.chmod(0o755)
    job_id = sbatch(path, str(logs).replace("%", "%%") + "/" + log_name(run.cluster, len(tasks)))
    done = Submission(job_id, tuple(str(folder.parent) for folder in folders[1:]))
    for folder in folders:
        mine = done.output_dirs if folder == logs else [str(folder.parent)]
        record = {"job_id": job_id, "output_dirs": mine, "base": str(logs.parent)}
        write_atomic(folder / SUBMISSION_FILE, json.dumps(record, indent=1))  # `status` may be reading
    return done


def sbatch(script: Path, output: str) -> str:
    """Call sbatch on a script; the job id."""
    text = call(["sbatch", "--parsable", f"--output={output}", str(script)])
    match = re.search(r"^(\d+)(?:;.*)?$", text, re.MULTILINE)
    if match is None:
        raise ValueError(f"sbatch answered {text.strip()!r}, which holds no job id")
    return match[1]
