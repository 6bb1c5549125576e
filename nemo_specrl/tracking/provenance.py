"""Where a run comes from: commit, versions, machine, job, container. Facts only, gathered in well under a second."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from nemo_specrl.packages import versions
from nemo_specrl.tracking.redact import redact_patch, redact_text

MAX_PATCH = 1_000_000
"""A longer patch is cut, in characters."""
_JOB = {
    "slurm.job_id": ("NEMO_SPECRL_JOB_ID", "SLURM_JOB_ID"),
    "slurm.nodes": ("NEMO_SPECRL_JOB_NODELIST", "SLURM_JOB_NODELIST"),
    "slurm.restarts": ("NEMO_SPECRL_RESTART_COUNT", "SLURM_RESTART_COUNT"),
    "slurm.attempt": ("NEMO_SPECRL_ATTEMPT",),
    "slurm.partition": ("SLURM_JOB_PARTITION",),
    "container.image": ("NEMO_SPECRL_CONTAINER", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"),
    "container.digest": ("NEMO_SPECRL_CONTAINER_DIGEST",),
}
"""Tag -> the environment variables it may come from. Our own copies come first: NeMo RL's ray.sub unsets Slurm's."""


def provenance(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Tags of a run; what is unknown is left out, never guessed."""
    environ = os.environ if environ is None else environ
    tags = {
        "host": socket.gethostname(),
        "cpus": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
    }
    tags |= {f"version.{name}": version for name, version in versions().items()}
    for tag, names in _JOB.items():
        if value := next((environ[name] for name in names if environ.get(name)), None):
            tags[tag] = value
    tags |= _nvidia() | _git()
    tags["mlflow.source.name"] = redact_text(" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]))[:500]
    tags["mlflow.source.type"] = "JOB" if "slurm.job_id" in tags else "LOCAL"
    if "git.commit" in tags:  # MLflow's own guess looks at the console script's folder
        tags["mlflow.source.git.commit"] = tags["git.commit"]
    try:
        tags["mlflow.user"] = getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry in its passwd file
        tags["mlflow.user"] = str(os.getuid())
    return tags


def dirty_patch() -> str:
    """What differs from the commit, secrets taken out; empty for a clean checkout or no checkout."""
    patch = redact_patch(_run_git("diff", "HEAD", "--no-color", "--no-ext-diff") or "")
    return patch if len(patch) <= MAX_PATCH else patch[:MAX_PATCH] + f"\n... cut: {len(patch)} characters in all\n"


def _nvidia() -> dict[str, str]:
    """Driver and GPU models from /proc, which no library has to be loaded for."""
    found = {}
    try:
        line = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
        found["driver.nvidia"] = next((word for word in line.split() if word[:1].isdigit() and "." in word), line)
    except (OSError, IndexError):
        return {}
    models = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        fields = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        models.append(fields.get("Model", "unknown").strip())
    if models:
        found["gpu"] = ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models))
    return found


def _git() -> dict[str, str]:
    """Commit, branch and state of the checkout that this code runs from."""
    commit = _run_git("rev-parse", "HEAD")
    if not commit:
        return {}
    status = (_run_git("status", "--porcelain", "--untracked-files=normal") or "").splitlines()
    untracked = sum(line.startswith("??") for line in status)
    branch = _run_git("rev-parse", "--abbrev-ref", "HEAD") or ""
    dirty = f"{len(status) - untracked} changed, {untracked} untracked" if status else "no"
    return {"git.commit": commit, "git.branch": branch, "git.dirty": dirty}


def _run_git(*arguments: str) -> str | None:
    """Output of git in our checkout; None outside of one, without git, or where it takes too long."""
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.rstrip("\n")
