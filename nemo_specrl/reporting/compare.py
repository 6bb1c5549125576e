"""Arms against a baseline: figures over seeds, what differs between them, and the curves to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nemo_specrl.reporting.curves import Curve, arm_curves
from nemo_specrl.reporting.diff import config_diff, environment_diff
from nemo_specrl.reporting.history import RunHistory
from nemo_specrl.reporting.measures import (
    ALIGNMENTS,
    CURVES,
    MEASURES,
    STAGES,
    Measure,
    Window,
    axis,
    mean,
    smoothed_reward,
)
from nemo_specrl.reporting.stats import ENOUGH, Contrast, Estimate, contrast, estimate


@dataclass(frozen=True)
class Figure:
    """One row: a measure over all arms."""

    measure: Measure
    label: str
    estimates: dict[str, Estimate | None]
    """Arm -> mean over its seeds; None = not recorded, or not reached."""
    contrasts: dict[str, Contrast | None]
    """Arm -> against the baseline: a ratio for speedups, else a difference. Without the baseline itself."""


@dataclass(frozen=True)
class Comparison:
    """All that the renderers show."""

    arms: list[str]
    baseline: str
    runs: dict[str, list[RunHistory]]
    figures: list[Figure]
    config_diff: dict[str, dict[str, str | None]]
    """Configuration key -> arm -> value, for keys in which the arms differ; None = the arm has no such key."""
    environment_diff: dict[str, dict[str, str | None]]
    stages: dict[str, dict[str, float]]
    """Arm -> stage -> mean seconds per step; a stage that was not recorded is left out."""
    charts: dict[str, dict[str, list[Curve]]]
    """Metric -> alignment -> one curve per arm."""
    align: str
    goal: float | None
    notes: list[str] = field(default_factory=list)
    """What a reader must know before believing the figures."""

    def figure(self, name: str) -> Figure:
        """The row of this name. Raises ValueError listing the names."""
        for figure in self.figures:
            if figure.measure.name == name:
                return figure
        raise ValueError(f"no figure {name!r}; there are {', '.join(f.measure.name for f in self.figures)}")


def compare(
    runs: Sequence[RunHistory],
    *,
    baseline: str | None = None,
    align: str = "step",
    from_epoch: int = 2,
    goal: float | None = None,
) -> Comparison:
    """Group runs by arm, with seeds as repeats, and compare each arm with the baseline (default: the first run's).

    Throughput figures count steps that all runs have, of epoch `from_epoch` and later. Raises ValueError for no runs,
    an unknown baseline or alignment, or two runs of one arm with one seed.
    """
    groups = _group(runs)
    baseline = baseline or runs[0].arm
    if baseline not in groups:
        raise ValueError(f"baseline {baseline!r} is none of the arms: {', '.join(groups)}")
    if align not in ALIGNMENTS:
        raise ValueError(f"align={align}: must be one of {', '.join(ALIGNMENTS)}")
    arms = [baseline, *(arm for arm in groups if arm != baseline)]
    last = min(run.last_step() for run in runs)
    first = max(int(run.steps[0]) for run in runs)
    common = {id(run): run.between(first, last) for run in runs}
    steady = {key: run.from_epoch(from_epoch) for key, run in common.items()}
    notes = _notes(groups, last, from_epoch, steady_steps=min(len(run) for run in steady.values()))
    if not all(len(run) for run in steady.values()):
        steady = common
    goal = goal if goal is not None else _default_goal(groups[baseline])
    end = min(float(axis(run, align)[-1]) for run in runs)
    windows = {id(run): Window(steady[id(run)], common[id(run)], run, end, align, goal) for run in runs}
    figures = [_figure(m, groups, arms, windows, align, goal) for m in MEASURES]
    return Comparison(
        arms=arms,
        baseline=baseline,
        runs={arm: groups[arm] for arm in arms},
        figures=[f for f in figures if any(f.estimates.values()) and (len(arms) > 1 or f.measure.kind != "speedup")],
        config_diff=config_diff({arm: groups[arm] for arm in arms}),
        environment_diff=environment_diff({arm: groups[arm] for arm in arms}),
        stages={arm: _stages([steady[id(run)] for run in groups[arm]]) for arm in arms},
        charts={key: arm_curves({arm: groups[arm] for arm in arms}, key) for key in CURVES},
        align=align,
        goal=goal,
        notes=notes,
    )


def _group(runs: Sequence[RunHistory]) -> dict[str, list[RunHistory]]:
    if not runs:
        raise ValueError("nothing to compare: no runs were given or found")
    groups: dict[str, list[RunHistory]] = {}
    for run in runs:
        if not len(run):
            raise ValueError(f"{run.source} has no steps: leave it out")
        groups.setdefault(run.arm, []).append(run)
    for arm, members in groups.items():
        seeds = [run.seed for run in members if run.seed is not None]
        if len(set(seeds)) < len(seeds):
            sources = ", ".join(run.source for run in members)
            raise ValueError(
                f"arm {arm!r} has two runs of one seed ({sources}): repeats need different seeds, arms different names"
            )
    return groups


def _figure(
    measure: Measure,
    groups: dict[str, list[RunHistory]],
    arms: list[str],
    windows: dict[int, Window],
    align: str,
    goal: float | None,
) -> Figure:
    values: dict[str, dict[int, float]] = {}
    for arm in arms:
        found = {_seed(run, i): measure.compute(windows[id(run)]) for i, run in enumerate(groups[arm])}
        values[arm] = {seed: value for seed, value in found.items() if value is not None and np.isfinite(value)}
    base = values[arms[0]]
    speedup = measure.kind == "speedup"
    contrasts = {
        arm: contrast(base, values[arm], ratio=True) if speedup else contrast(values[arm], base, ratio=False)
        for arm in arms[1:]
    }
    label = measure.label.format(align=align, goal="?" if goal is None else f"{goal:.3g}")
    return Figure(measure, label, {arm: estimate(list(values[arm].values())) for arm in arms}, contrasts)


def _seed(run: RunHistory, index: int) -> int:
    """Runs without a seed are told apart by their place, below every real seed."""
    return run.seed if run.seed is not None else -1_000_000 - index


def _default_goal(runs: Sequence[RunHistory]) -> float | None:
    """The reward that every seed of the baseline ends with at least: what there is to reach, sooner or later."""
    ends = [values[-1] for run in runs if len(values := smoothed_reward(run)) and np.isfinite(values[-1])]
    return float(min(ends)) if ends else None


def _stages(runs: Sequence[RunHistory]) -> dict[str, float]:
    stages: dict[str, float] = {}
    for stage in STAGES:
        found = [value for run in runs if (value := mean(run, f"time/{stage}_s")) is not None]
        if found:
            stages[stage] = float(np.mean(found))
    return stages


def _notes(groups: dict[str, list[RunHistory]], last: int, from_epoch: int, steady_steps: int) -> list[str]:
    notes = []
    few = [f"{arm} {len(runs)}" for arm, runs in groups.items() if len(runs) < ENOUGH]
    if few and len(groups) > 1:
        notes.append(
            f"fewer than {ENOUGH} seeds ({', '.join(few)}): differences and intervals are shown, none is claimed"
        )
    longer = sorted({run.source for runs in groups.values() for run in runs if run.last_step() > last})
    if longer:
        notes.append(f"compared up to step {last}, where the shortest run ends; longer: {', '.join(longer)}")
    unfinished = [
        f"{run.source} ({run.status})" for runs in groups.values() for run in runs if run.status != "FINISHED"
    ]
    if unfinished:
        notes.append(f"not finished: {', '.join(unfinished)}")
    if not steady_steps:
        notes.append(f"no run reaches epoch {from_epoch}: figures count all steps")
    elif from_epoch > 1 and any(run.has("train/epoch") for runs in groups.values() for run in runs):
        notes.append(f"throughput and acceptance count epoch {from_epoch} and later ({steady_steps} steps)")
    return notes
