"""The array of a submission: arms times seeds, each run in its own output folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from nemo_specrl.config.compose import hydra_quote
from nemo_specrl.config.run import RunConfig


@dataclass(frozen=True)
class Task:
    """One run of a submission."""

    overrides: tuple[str, ...]
    """What `nemo-specrl train` is given, complete."""
    output_dir: str
    """Where this run writes."""


def plan(run: RunConfig, overrides: Sequence[str]) -> list[Task]:
    """The runs of a submission, arm by arm and in it seed by seed; a single one without arms and seeds. The runs of an
    array are children of one parent run, named after the submission's folder."""
    tasks: list[Task] = []
    sweep = is_array(run) and run.tracking.sweep is None
    for arm in run.cluster.arms or (None,):
        for seed in run.cluster.seeds or (None,):
            folder = PurePosixPath(run.output_dir)
            words = list(overrides)
            if arm is not None:
                given = shlex.split(arm)
                label = arm_label(arm)
                folder /= label
                words += given
                if not any(word.startswith("name=") for word in given):
                    words.append(f"name={hydra_quote(label)}")
            if seed is not None:
                folder /= f"seed_{seed}"
                words.append(f"seed={seed}")
            if arm is not None or seed is not None:
                words.append(f"output_dir={hydra_quote(str(folder))}")
            if sweep:
                words.append(f"tracking.sweep={hydra_quote(run.output_dir)}")
            tasks.append(Task(tuple(words), str(folder)))
    return tasks


def is_array(run: RunConfig) -> bool:
    """Whether the submission is more than one run."""
    return max(len(run.cluster.arms), 1) * max(len(run.cluster.seeds), 1) > 1


def arm_label(arm: str) -> str:
    """A folder name from the values of an arm's overrides: "reuse=exact drafter=history" -> exact-history."""
    values = [word.partition("=")[2] for word in shlex.split(arm)]
    return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(values)).strip("_") or "arm"
