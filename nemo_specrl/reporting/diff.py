"""What differs between arms, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nemo_specrl.reporting.history import RunHistory

Diff = dict[str, dict[str, str | None]]
_IDENTITY = {"name", "seed", "output_dir", "arm"}
_PER_RUN = (
    "attempt.",
    "resume.",
    "nemo_specrl.",
    "mlflow.",
    "slurm.job",
    "slurm.nodes",
    "slurm.attempt",
    "slurm.restarts",
    "checkpoint.",
    "gate.verdict",
    "host",
)
"""Tags that differ between any two runs and explain nothing."""


def config_diff(arms: Mapping[str, Sequence[RunHistory]]) -> Diff:
    """Configuration key -> arm -> value, where arms differ."""
    return _diff({arm: [run.config for run in runs] for arm, runs in arms.items()})


def environment_diff(arms: Mapping[str, Sequence[RunHistory]]) -> Diff:
    """The same of the tags: versions, hardware, commit, stamps."""
    return _diff(
        {
            arm: [{k: v for k, v in run.environment.items() if not k.startswith(_PER_RUN)} for run in runs]
            for arm, runs in arms.items()
        }
    )


def _diff(arms: Mapping[str, Sequence[Mapping[str, str]]]) -> Diff:
    keys = sorted({key for tables in arms.values() for table in tables for key in table} - _IDENTITY)
    diff: Diff = {}
    for key in keys:
        row = {arm: _values(key, tables) for arm, tables in arms.items()}
        if len(set(row.values())) > 1 or any(value and " | " in value for value in row.values()):
            diff[key] = row
    return diff


def _values(key: str, tables: Sequence[Mapping[str, str]]) -> str | None:
    """An arm's value; None where no run has the key; ` | ` between values that its runs do not agree on."""
    found = sorted({table[key] for table in tables if key in table})
    return " | ".join(found) if found else None
