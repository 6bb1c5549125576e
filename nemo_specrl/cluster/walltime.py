"""When the job ends: Slurm's time forms, and the deadline anchored at the job's start (not at the trainer's)."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Mapping, Sequence

from nemo_specrl.cluster.calls import call

UNLIMITED = frozenset({"UNLIMITED", "INFINITE", "-1"})
_FORMS = (
    re.compile(r"(?P<m>\d+)(:(?P<s>\d+))?"),
    re.compile(r"(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)"),
    re.compile(r"(?P<d>\d+)-(?P<h>\d+)(:(?P<m>\d+)(:(?P<s>\d+))?)?"),
)
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}

# The batch shell exports its own copies, since NeMo RL's ray.sub unsets every SLURM_ variable before the driver.
OWN = "NEMO_SPECRL_JOB_"
SLURM = "SLURM_JOB_"
TIME_LIMIT = "NEMO_SPECRL_TIME_LIMIT"
ASK_TIMEOUT_S = 10.0


def parse_time(text: str) -> int | None:
    """Seconds of a Slurm time: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S; None for UNLIMITED, INFINITE and -1.

    Raises ValueError for anything else (`man sbatch`, --time).
    """
    text = text.strip()
    if text.upper() in UNLIMITED:
        return None
    for form in _FORMS:
        if match := form.fullmatch(text):
            return sum(int(value) * _SECONDS[unit] for unit, value in match.groupdict().items() if value)
    raise ValueError(
        f"cluster.time={text!r} is no Slurm time; write minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S or UNLIMITED"
    )


def job_deadline(environ: Mapping[str, str], now: float | None = None) -> float | None:
    """The epoch second at which Slurm ends this job, or None outside of a job and for an unlimited one.

    Taken from the end time that Slurm states; else the job's start plus its limit; else `now` plus the limit, with a
    warning, since that misses what the container and the imports took. A shell may outlive its interactive job and keep
    that one's variables: an end that lies before `now`, or a job that Slurm no longer runs, is no deadline, with a
    warning.
    """
    now = time.time() if now is None else now
    own = _is_own(environ)
    if not own and f"{SLURM}ID" not in environ:
        return None
    deadline = _stated(environ, own, now)
    if deadline is not None and (deadline <= now or not (own or _runs(environ[f"{SLURM}ID"]))):
        warnings.warn(
            f"job {environ.get(f'{SLURM}ID') or environ.get(f'{OWN}ID')} of the environment is over: its end is no "
            "deadline for this run (unset the SLURM_ variables, or start a new shell)",
            stacklevel=2,
        )
        return None
    return deadline


def _is_own(environ: Mapping[str, str]) -> bool:
    """Whether our batch shell has started this job, and not only one whose environment came along."""
    mine = environ.get(f"{OWN}ID")
    return mine is not None and environ.get(f"{SLURM}ID", mine) == mine


def _stated(environ: Mapping[str, str], own: bool, now: float) -> float | None:
    prefixes = (OWN, SLURM) if own else (SLURM,)
    end = _epoch(environ, prefixes, "END_TIME")
    if end is not None:
        return end
    text = environ.get(TIME_LIMIT) if own else None
    if text is None:
        warnings.warn("Slurm states no end time for this job: it stops at a signal only", stacklevel=3)
        return None
    limit = parse_time(text)
    if limit is None:
        return None
    start = _epoch(environ, prefixes, "START_TIME")
    if start is None:
        warnings.warn(
            "SLURM_JOB_START_TIME and SLURM_JOB_END_TIME are unset or malformed: the time limit is counted from now, "
            "which overestimates the time that is left",
            stacklevel=3,
        )
        start = now
    return start + limit


def _runs(job_id: str) -> bool:
    """Whether Slurm still runs the job; True where it cannot be asked, as inside of most containers."""
    try:
        text = call(["scontrol", "show", "job", job_id, "--oneliner"], timeout_s=ASK_TIMEOUT_S)
    except ValueError as error:
        return "Invalid job id" not in str(error)
    return re.search(r" JobState=(RUNNING|COMPLETING|SIGNALING|SUSPENDED)\b", text) is not None


def _epoch(environ: Mapping[str, str], prefixes: Sequence[str], name: str) -> float | None:
    for prefix in prefixes:
        text = environ.get(prefix + name)
        if text is None or text == "":
            continue
        if re.fullmatch(r"\d{9,11}", text):
            return float(text)
        warnings.warn(f"{prefix}{name}={text!r} is no epoch second: ignored", stacklevel=4)
    return None
