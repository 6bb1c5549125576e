"""The figures of a comparison, in the order in which a reader needs them. Each is a ratio of sums, never a mean of
ratios, and None where its counters were never recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from nemo_specrl.reporting.history import Column, RunHistory

Kind: TypeAlias = Literal["absolute", "speedup"]
Better: TypeAlias = Literal["higher", "lower", "neither"]
STAGES = ("verify", "plan", "generate", "reward", "logprob", "update", "refit")
"""What a step's time is made of: `time/<stage>_s`."""
ALIGNMENTS = ("step", "time", "tokens")
POSITIONS = 4
"""Draft positions that get a curve of their own."""


@dataclass(frozen=True)
class Window:
    """What a figure is computed from."""

    steady: RunHistory
    """The compared steps that count (from the second epoch on, where reuse is possible)."""
    whole: RunHistory
    """All compared steps."""
    full: RunHistory
    """The whole run, beyond the steps that the others have too."""
    end: float
    """Where rewards are compared, on the chosen axis: the end of the shortest run."""
    align: str
    goal: float | None
    """The reward R of `time to reward R`."""


@dataclass(frozen=True)
class Measure:
    """One row of the comparison."""

    name: str
    """For JSON and --fail-if."""
    label: str
    compute: Callable[[Window], float | None]
    unit: str = ""
    kind: Kind = "absolute"
    """`speedup`: the figure is seconds, shown as baseline / arm."""
    better: Better = "neither"


def total(history: RunHistory, *keys: str) -> float | None:
    """Sum of counters over steps; None if one of them was never recorded."""
    return sum(history.total(key) for key in keys) if all(history.has(key) for key in keys) else None


def ratio(top: float | None, bottom: float | None) -> float | None:
    return top / bottom if top is not None and bottom else None


def mean(history: RunHistory, key: str) -> float | None:
    series = history.series(key)
    return float(series.mean()) if len(series) else None


def axis(history: RunHistory, align: str) -> Column:
    """[S] where each step ends: step number, seconds of training so far, or response tokens generated so far. And for
    drafts, the policy's `entropy` in the step, nats, which bounds what can be accepted; it goes up and down."""
    if align == "step":
        return history.steps.astype(np.float64)
    if align == "entropy":
        return history.column("rollout/entropy")
    key = {"time": "time/step_s", "tokens": "rollout/new_tokens"}[align]
    return np.cumsum(np.nan_to_num(history.column(key)))


def smoothed_reward(history: RunHistory) -> Column:
    """[S] mean reward over the trailing twentieth of the run's steps (at least one), which is what a goal is read
    against: a single lucky step reaches nothing."""
    reward = history.column("reward/mean")
    width = max(1, len(reward) // 20)
    known = ~np.isnan(reward)
    sums = np.cumsum(np.where(known, reward, 0.0))
    counts = np.cumsum(known)
    sums[width:], counts[width:] = sums[width:] - sums[:-width], counts[width:] - counts[:-width]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counts > 0, sums / counts, np.nan)


def _time_to_goal(window: Window) -> float | None:
    if window.goal is None or not window.full.has("time/step_s"):
        return None
    reached = np.flatnonzero(smoothed_reward(window.full) >= window.goal)
    return float(axis(window.full, "time")[reached[0]]) if len(reached) else None


def _reward(window: Window) -> float | None:
    """Mean reward of the last tenth before the point that all runs reach."""
    x = axis(window.full, window.align)
    reward = window.full.column("reward/mean")
    inside = reward[(x <= window.end * (1 + 1e-9)) & (x > 0.9 * window.end) & ~np.isnan(reward)]
    return float(inside.mean()) if len(inside) else None


def _rollout_s(history: RunHistory) -> float | None:
    """Rollout time with verification, as the loop adds it up."""
    return total(history, "time/rollout_s")


def _less_verify(seconds: float | None, history: RunHistory) -> float | None:
    return None if seconds is None else seconds - history.total("time/verify_s")


def _saved(window: Window) -> float | None:
    return ratio(
        total(window.steady, "rollout/reused_tokens"),
        total(window.steady, "rollout/new_tokens", "rollout/reused_tokens"),
    )


def _drafts(window: Window, top: str, bottom: str, plus: float = 0.0) -> float | None:
    found = ratio(total(window.steady, top), total(window.steady, bottom))
    return None if found is None else found + plus


def _full_reuse(window: Window) -> float | None:
    keys = ("reuse/full", "reuse/partial", "reuse/none")
    return ratio(total(window.steady, keys[0]), total(window.steady, *keys))


MEASURES: tuple[Measure, ...] = (
    Measure("time_to_reward", "time to reward {goal}", _time_to_goal, "s", better="lower"),
    Measure(
        "rollout_speedup",
        "rollout speedup, verification counted",
        lambda w: _rollout_s(w.steady),
        "x",
        "speedup",
        "higher",
    ),
    Measure(
        "step_speedup",
        "step speedup, verification counted",
        lambda w: total(w.steady, "time/step_s"),
        "x",
        "speedup",
        "higher",
    ),
    Measure(
        "rollout_speedup_unverified",
        "rollout speedup without verification",
        lambda w: _less_verify(_rollout_s(w.steady), w.steady),
        "x",
        "speedup",
    ),
    Measure(
        "step_speedup_unverified",
        "step speedup without verification",
        lambda w: _less_verify(total(w.steady, "time/step_s"), w.steady),
        "x",
        "speedup",
    ),
    Measure(
        "run_speedup",
        "speedup of all steps, the first epoch too",
        lambda w: total(w.whole, "time/step_s"),
        "x",
        "speedup",
        "higher",
    ),
    Measure("tokens_saved", "response tokens reused, not generated", _saved, "%", better="higher"),
    Measure("full_reuse", "rollouts reused whole", _full_reuse, "%"),
    Measure(
        "acceptance",
        "draft tokens accepted",
        lambda w: _drafts(w, "spec/accepted", "spec/drafted"),
        "%",
        better="higher",
    ),
    Measure(
        "acceptance_length",
        "tokens per drafting step",
        lambda w: _drafts(w, "spec/accepted", "spec/drafts", 1.0),
        better="higher",
    ),
    Measure("reward", "reward at equal {align}", _reward, better="higher"),
    Measure(
        "logprob_gap",
        "log-prob gap, engine against trainer",
        lambda w: mean(w.steady, "gate/logprob_gap"),
        better="lower",
    ),
    Measure("tv", "total variation, old against new policy", lambda w: mean(w.steady, "reuse/tv")),
    Measure("entropy", "policy entropy, nats", lambda w: mean(w.steady, "rollout/entropy")),
    Measure("rollout_s", "rollout seconds per step", lambda w: mean(w.steady, "time/rollout_s"), "s"),
    Measure("step_s", "seconds per step", lambda w: mean(w.steady, "time/step_s"), "s"),
)

CURVES: Mapping[str, str] = {
    "reward/mean": "reward",
    "time/rollout_s": "rollout seconds per step",
    "rollout/reused_share": "share of response tokens reused",
    "spec/acceptance": "share of draft tokens accepted",
    "spec/length": "tokens per drafting step",
    "spec/length_rewarded": "tokens per drafting step, rewarded rollouts",
    "spec/length_unrewarded": "tokens per drafting step, rollouts without reward",
    **{f"spec/share_pos_{i}": f"drafts accepted up to position {i + 1}" for i in range(POSITIONS)},
    **{f"draft/agreement_pos_{i}": f"acceptance expected of the head, position {i + 1}" for i in range(POSITIONS)},
    **{f"val/agreement_pos_{i}": f"the same on held-out prompts, position {i + 1}" for i in range(POSITIONS)},
    "draft/loss": "loss of the draft head",
    "draft/grad_norm": "gradient norm of the draft head",
    "rollout/entropy": "policy entropy, nats",
    "reuse/tv": "total variation, old against new policy",
    "gate/logprob_gap": "log-prob gap, engine against trainer",
    "rollout/length_mean": "mean response length, tokens",
}
"""Metric, or a share derived from counters -> its chart's title."""

KEYS = frozenset(
    {f"time/{stage}_s" for stage in (*STAGES, "step", "rollout")}
    | {"rollout/new_tokens", "rollout/reused_tokens", "rollout/entropy", "rollout/length_mean", "train/epoch"}
    | {"reward/mean", "gate/logprob_gap", "reuse/tv", "reuse/full", "reuse/partial", "reuse/none"}
    | {f"spec/{what}{of}" for what in ("drafts", "drafted", "accepted") for of in ("", "_rewarded", "_unrewarded")}
    | {f"spec/accepted_pos_{i}" for i in range(POSITIONS)}
    | {"draft/loss", "draft/grad_norm"}
    | {f"{split}/agreement_pos_{i}" for split in ("draft", "val") for i in range(POSITIONS)}
)
"""All that a comparison reads of a run."""


def curve(history: RunHistory, key: str) -> Column:
    """[S] one chart's values; the derived shares are per-step ratios, for looking at only."""
    with np.errstate(invalid="ignore", divide="ignore"):
        if key == "rollout/reused_share":
            reused = history.column("rollout/reused_tokens")
            return reused / (reused + history.column("rollout/new_tokens"))
        if key == "spec/acceptance":
            return history.column("spec/accepted") / history.column("spec/drafted")
        if key.startswith("spec/length"):
            of = key.removeprefix("spec/length")
            return 1.0 + history.column(f"spec/accepted{of}") / history.column(f"spec/drafts{of}")
        if key.startswith("spec/share_pos_"):
            return history.column(key.replace("share", "accepted")) / history.column("spec/drafts")
    return history.column(key)
