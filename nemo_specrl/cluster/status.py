"""`nemo-specrl status RUN`: the jobs and attempts of a submission, arrays and requeues counted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from nemo_specrl.cluster.jobs import Job, query
from nemo_specrl.cluster.submit import SUBMISSION_FILE
from nemo_specrl.config.arguments import Parser
from nemo_specrl.handover import REQUEUE_EXIT_CODE, REQUEUE_FILE


@dataclass(frozen=True)
class Attempt:
    """One life of a run's job."""

    number: int
    job: str
    nodes: str
    exit_code: int | None
    """Of the payload; None while it runs, or when it was killed."""
    why: str
    """Why it stopped early, if it did."""


@dataclass(frozen=True)
class RunStatus:
    """One run of a submission."""

    run: str
    state: str
    job_id: str
    exit_code: str
    elapsed: str
    nodes: str
    reason: str
    attempts: tuple[Attempt, ...]
    log: str
    """The newest attempt's output."""


def status_command(args: Sequence[str]) -> int:
    """Print the state of submissions; 0 when every run is found."""
    parser = Parser("nemo-specrl status", description="What became of submitted runs.", allow_abbrev=False)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="an output folder of nemo-specrl submit")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    options = parser.parse_intermixed_args(args)
    rows = [row for run in options.runs for row in collect(run)]
    print(json.dumps([asdict(row) for row in rows], indent=1) if options.json else table(rows))
    return 0


def collect(folder: Path) -> list[RunStatus]:
    """The runs of the submission in this output folder. ValueError when nothing was submitted from it."""
    path = folder / "slurm" / SUBMISSION_FILE
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no submission (no slurm/{SUBMISSION_FILE}): name the output folder of a submit"
        )
    record = json.loads(path.read_text())
    whole = json.loads((Path(record.get("base", folder)) / "slurm" / SUBMISSION_FILE).read_text())
    array = len(whole["output_dirs"]) > 1
    ids = {
        run: _newest_id(Path(run), f"{whole['job_id']}_{task}" if array else whole["job_id"])
        for task, run in enumerate(whole["output_dirs"])
        if run in record["output_dirs"]
    }
    jobs = query(sorted(set(ids.values())))
    return [_status(Path(run), job_id, jobs.get(job_id)) for run, job_id in ids.items()]


def _newest_id(run: Path, submitted: str) -> str:
    """The job that goes on with a run: the last follow-up (requeue off), else the job that was submitted."""
    followed = [path.read_text().strip() for path in _attempt_folders(run, "followed_by")]
    return followed[-1] if followed else submitted


def _attempt_folders(run: Path, file: str) -> list[Path]:
    return sorted((run / "slurm").glob(f"attempt_*/{file}"), key=lambda path: int(path.parent.name.split("_")[1]))


def attempts(run: Path) -> list[Attempt]:
    """The attempts of a run, oldest first."""
    found = []
    for path in _attempt_folders(run, "job"):
        folder = path.parent
        code = _read(folder / "exit_code")
        found.append(
            Attempt(
                number=int(folder.name.split("_")[1]),
                job=_read(path),
                nodes=_read(folder / "nodes"),
                exit_code=int(code) if code else None,
                why=_read(folder / REQUEUE_FILE),
            )
        )
    return found


def _read(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""


def _status(run: Path, job_id: str, job: Job | None) -> RunStatus:
    lives = attempts(run)
    if job is None:  # Slurm has forgotten it: what the batch shell wrote is all there is
        last = lives[-1].exit_code if lives else None
        state = {None: "UNKNOWN", 0: "COMPLETED", REQUEUE_EXIT_CODE: "STOPPED"}.get(last, "FAILED")
        job = Job(job_id, state, "" if last is None else f"{last}:0", "", "", "Slurm no longer knows this job")
    log = str(run / "slurm" / f"attempt_{lives[-1].number}" / "output.log") if lives else ""
    return RunStatus(
        str(run), job.state, job.job_id, job.exit_code, job.elapsed, job.nodes, job.reason, tuple(lives), log
    )


def table(rows: Sequence[RunStatus]) -> str:
    """A plain table, one run per line, its newest log below it."""
    head = ("STATE", "JOB", "ATTEMPTS", "EXIT", "ELAPSED", "NODES", "RUN")
    lines = [head]
    lines += [
        (
            row.state + (f" ({row.reason})" if row.reason else ""),
            row.job_id,
            str(len(row.attempts)),
            row.exit_code,
            row.elapsed,
            row.nodes,
            row.run,
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    for row in rows:
        for attempt in row.attempts:
            code = "running or killed" if attempt.exit_code is None else f"exit {attempt.exit_code}"
            text.append(f"  {row.run}: attempt {attempt.number}, job {attempt.job}, {code} {attempt.why}".rstrip())
    text += [f"  log: {row.log}" for row in rows if row.log]
    return "\n".join(text)
