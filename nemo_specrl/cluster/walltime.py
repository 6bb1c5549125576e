"""When the job ends: Slurm's time forms, and the deadline anchored at the job's start (not at the trainer's)."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Mapping

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
    warning, since that misses what the container and the imports took.
    """
    if not any(key in environ for key in (f"{OWN}ID", f"{SLURM}ID")):
        return None
    end = _epoch(environ, "END_TIME")
    if end is not None:
        return end
    text = environ.get(TIME_LIMIT)
    if text is None:
        warnings.warn("Slurm states no end time for this job: it stops at a signal only", stacklevel=2)
        return None
    limit = parse_time(text)
    if limit is None:
        return None
    start = _epoch(environ, "START_TIME")
    if start is None:
        warnings.warn(
            "SLURM_JOB_START_TIME and SLURM_JOB_END_TIME are unset or malformed: the time limit is counted from now, "
            "which overestimates the time that is left",
            stacklevel=2,
        )
        start = time.time() if now is None else now
    return start + limit


def _epoch(environ: Mapping[str, str], name: str) -> float | None:
    for prefix in (OWN, SLURM):
        text = environ.get(prefix + name)
        if text is None or text == "":
            continue
        if re.fullmatch(r"\d{9,11}", text):
            return float(text)
        warnings.warn(f"{prefix}{name}={text!r} is no epoch second: ignored", stacklevel=3)
    return None
