"""What Slurm says of jobs: from sacct where accounting is on, else from scontrol."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nemo_specrl.cluster.calls import call

_ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
_SACCT_FIELDS = ("JobID", "State", "ExitCode", "Elapsed", "NodeList", "Reason")


@dataclass(frozen=True)
class Job:
    """One job or array task. A requeued job is one `Job`: its newest life counts."""

    job_id: str
    """Slurm's id as a user writes it: 12 or 12_3."""
    state: str
    """RUNNING, PENDING, COMPLETED, FAILED, CANCELLED, TIMEOUT, ..."""
    exit_code: str
    """CODE:SIGNAL."""
    elapsed: str
    """Of the newest life."""
    nodes: str
    """Node list, in Slurm's notation."""
    reason: str
    """Why it is pending or ended, where Slurm says so."""

    @property
    def ended(self) -> bool:
        """Whether its newest life is over. Transient states (COMPLETING, SIGNALING, STAGE_OUT, ...) are not."""
        return self.state in _ENDED


def query(job_ids: Sequence[str]) -> dict[str, Job]:
    """The jobs, by id, array tasks one by one. An id that Slurm has forgotten is left out."""
    if not job_ids:
        return {}
    try:
        return parse_sacct(_sacct(job_ids))
    except ValueError:  # no accounting on this cluster, or no sacct
        found: dict[str, Job] = {}
        for job_id in job_ids:
            found |= _scontrol(job_id)
        return found


def _sacct(job_ids: Sequence[str]) -> str:
    options = ["--allocations", "--duplicates", "--noheader", "--parsable2", f"--format={','.join(_SACCT_FIELDS)}"]
    return call(["sacct", f"--jobs={','.join(job_ids)}", *options])


def _scontrol(job_id: str) -> dict[str, Job]:
    try:
        return parse_scontrol(call(["scontrol", "show", "job", job_id, "--oneliner"]))
    except ValueError as error:
        if "Invalid job id" in str(error) or "not found" in str(error):  # the latter: an array task
            return {}
        raise


def parse_sacct(text: str) -> dict[str, Job]:
    """From `sacct --parsable2`; later lines (later lives of a requeued job) replace earlier ones."""
    jobs: dict[str, Job] = {}
    for line in text.splitlines():
        values = line.split("|")
        if len(values) != len(_SACCT_FIELDS):
            raise ValueError(f"sacct answered {line!r}, not the fields {', '.join(_SACCT_FIELDS)}")
        job_id, state, exit_code, elapsed, nodes, reason = values
        for name in _each_task(job_id):
            jobs[name] = Job(name, state.split(" ")[0], exit_code, elapsed, _known(nodes), _known(reason))
    return jobs


def parse_scontrol(text: str) -> dict[str, Job]:
    """From `scontrol show job --oneliner`; a record may hold line breaks of its own (in paths)."""
    jobs: dict[str, Job] = {}
    for record in re.split(r"^(?=JobId=)", text, flags=re.MULTILINE):
        values = dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", record)[::-1])  # of a repeated key the first one counts
        if "JobId" not in values:
            continue
        job_id = values["JobId"]
        if "ArrayJobId" in values:
            job_id = f"{values['ArrayJobId']}_{values.get('ArrayTaskId', job_id)}"
        for name in _each_task(job_id):
            jobs[name] = Job(
                name,
                values.get("JobState", "UNKNOWN"),
                values.get("ExitCode", ""),
                values.get("RunTime", ""),
                _known(values.get("NodeList", "")),
                _known(values.get("Reason", "")),
            )
    return jobs


def _each_task(job_id: str) -> Iterator[str]:
    """12_[0,2-4%2] and 12_0,2-4%2 (tasks that still wait together) -> 12_0, 12_2, 12_3, 12_4."""
    base, _, tasks = job_id.partition("_")
    tasks = tasks.strip("[]").partition("%")[0]
    if not re.fullmatch(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*", tasks):
        yield job_id
        return
    for part in tasks.split(","):
        span, _, stride = part.partition(":")
        first, _, last = span.partition("-")
        for number in range(int(first), int(last or first) + 1, int(stride or 1)):
            yield f"{base}_{number}"


def _known(text: str) -> str:
    return "" if text in ("None", "(null)", "None assigned", "Unknown") else text
