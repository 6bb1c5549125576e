"""The rollout bench: measurements of single steps -> figures per arm and number of slots; terminal, JSON, page."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from nemo_specrl.reporting.curves import Curve
from nemo_specrl.reporting.html import page, write_page
from nemo_specrl.reporting.plot import legend, line_chart
from nemo_specrl.reporting.stats import Contrast, contrast

READING = (
    "Speed: the first arm's seconds / the arm's, verification counted; 95 % intervals over repetitions, paired. "
    "Kept: share of the cached tokens that stand. Accept: mean probability that one does, alone, beside its bound "
    "1 - TV (the overlap of the two laws); an exact rule also loses the tail, which was not stored. Drafts: accepted "
    "/ drafted tokens of the engine's drafter. Rates are ratios of sums."
)


@dataclass(frozen=True)
class Measurement:
    """One arm's rollouts of one step, once."""

    arm: str
    slots: int
    repeat: int
    values: dict[str, float]
    """`time/*`, `rollout/*`, `reuse/*`, `spec/*`, as a training logs them."""


@dataclass(frozen=True)
class Row:
    """Figures of an arm at a number of slots. Times in seconds, counts in tokens, means over repetitions."""

    arm: str
    slots: int
    repeats: int
    rollouts: float
    seconds: float
    verify_s: float
    speed: Contrast | None
    """Against the first arm, verification counted."""
    speed_unverified: Contrast | None
    """The same without the verification pass: what there is to gain from cheaper verifying. None where the engine had
    nothing to do at all."""
    new: float
    reused: float
    verified: float
    kept: float | None
    """Share of the cached tokens that were kept."""
    acceptance: float | None
    tv: float | None
    """Between the cached law and the policy, per token."""
    tail: float | None
    """The cached law's mass outside the stored candidates, per token."""
    bound: float | None
    """1 - tv: the most that an exact rule can accept of a token alone."""
    entropy: float | None
    """Of the policy, nats per token, at the verified positions."""
    drafts: float | None
    """Accepted / drafted tokens of the engine's drafter."""
    draft_length: float | None
    """Tokens per decoding step that carried a draft: accepted + 1."""


def rows(measurements: Sequence[Measurement], arms: Sequence[str]) -> list[Row]:
    """By slots, then by arm in the order of `arms`, of which the first is the baseline."""
    cells: dict[tuple[int, str], list[Measurement]] = {}
    for m in measurements:
        cells.setdefault((m.slots, m.arm), []).append(m)
    return [
        _row(found, cells.get((slots, arms[0]), []))
        for slots in sorted({m.slots for m in measurements})
        for arm in arms
        if (found := cells.get((slots, arm)))
    ]


def _row(found: Sequence[Measurement], base: Sequence[Measurement]) -> Row:
    def mean(key: str) -> float:
        return float(np.mean([m.values.get(key, 0.0) for m in found]))

    def rate(top: str, bottom: str) -> float | None:
        below = mean(bottom)
        return mean(top) / below if below else None

    def average(key: str) -> float | None:
        """A rate per verified token, weighted by how many there were."""
        known = [(m.values[key], m.values["rollout/verified_tokens"]) for m in found if key in m.values]
        return float(np.average([k for k, _ in known], weights=[n for _, n in known])) if known else None

    def against(seconds: Callable[[Measurement], float]) -> Contrast | None:
        own, theirs = ({m.repeat: seconds(m) for m in side} for side in (found, base))
        return contrast(theirs, own, ratio=True)

    tv, tail, accepted = average("reuse/tv"), average("reuse/tail_mass"), rate("spec/accepted", "spec/drafts")
    return Row(
        arm=found[0].arm,
        slots=found[0].slots,
        repeats=len(found),
        rollouts=mean("rollout/count"),
        seconds=mean("time/rollout_s"),
        verify_s=mean("time/verify_s"),
        speed=against(lambda m: m.values["time/rollout_s"]),
        speed_unverified=against(lambda m: m.values["time/rollout_s"] - m.values["time/verify_s"])
        if mean("rollout/new_tokens")
        else None,
        new=mean("rollout/new_tokens"),
        reused=mean("rollout/reused_tokens"),
        verified=mean("rollout/verified_tokens"),
        kept=rate("rollout/reused_tokens", "reuse/draft_tokens"),
        acceptance=average("reuse/acceptance"),
        tv=tv,
        tail=tail,
        bound=None if tv is None else 1 - tv,
        entropy=average("reuse/entropy"),
        drafts=rate("spec/accepted", "spec/drafted"),
        draft_length=None if accepted is None else 1 + accepted,
    )


_COLUMNS: dict[str, Callable[[Row], str]] = {
    "slots": lambda r: str(r.slots),
    "arm": lambda r: r.arm,
    "rollouts": lambda r: f"{r.rollouts:.0f}",
    "time, s": lambda r: f"{r.seconds:.1f}",
    "verify": lambda r: f"{r.verify_s:.1f}" if r.verified else "",
    "speed": lambda r: _speed(r.speed),
    "unverified": lambda r: "" if r.speed_unverified is None else f"{r.speed_unverified.value:.2f}",
    "new tokens": lambda r: f"{r.new:.0f}",
    "reused": lambda r: f"{r.reused:.0f}",
    "kept": lambda r: _share(r.kept),
    "accept": lambda r: _share(r.acceptance),
    "bound": lambda r: _share(r.bound),
    "TV": lambda r: "" if r.tv is None else f"{r.tv:.4f}",
    "tail": lambda r: "" if r.tail is None else f"{r.tail:.4f}",
    "entropy": lambda r: "" if r.entropy is None else f"{r.entropy:.2f}",
    "drafts": lambda r: _share(r.drafts),
    "draft length": lambda r: "" if r.draft_length is None else f"{r.draft_length:.2f}",
}

_NARROW = ("slots", "arm", "time, s", "verify", "speed", "kept", "accept", "bound", "drafts")
"""Columns for a terminal; the page has all."""


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}%"


def _speed(found: Contrast | None) -> str:
    if found is None:
        return ""
    spread = "" if found.low is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.value:.2f}{spread}"


def print_rows(found: Sequence[Row], console: Console) -> None:
    """A table, one section per number of slots."""
    table = Table(pad_edge=False, box=None, padding=(0, 1, 0, 0))
    for name in _NARROW:
        table.add_column(name, justify="left" if name == "arm" else "right", no_wrap=True)
    for i, row in enumerate(found):
        if i and found[i - 1].slots != row.slots:
            table.add_row()
        table.add_row(*(_COLUMNS[name](row) for name in _NARROW))
    console.print(table)
    console.print(READING, style="dim")


def write(found: Sequence[Row], arms: Sequence[str], title: str, *, html: Path, json_path: Path) -> None:
    """The page and the figures."""
    values = [dataclasses.asdict(row) for row in found]
    json_path.write_text(json.dumps({"schema": 1, "baseline": arms[0], "rows": values}, indent=1, allow_nan=False))
    head = "".join(f"<th>{escape(name)}</th>" for name in _COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(show(row))}</td>" for show in _COLUMNS.values()) + "</tr>" for row in found
    )
    table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    charts = "".join(
        f"<figure><h3>{escape(label)}</h3>{legend([c.name for c in curves], arms)}"
        f"{line_chart(curves, names=arms, label=label, x_label='engine slots (logarithm to base 2)')}</figure>"
        for label, curves in (
            ("rollout speed, verification counted", _curves(found, arms, lambda r: r.speed)),
            ("rollout speed without verification", _curves(found, arms, lambda r: r.speed_unverified)),
        )
    )
    text = f'<p class="soft">{escape(READING)}</p><div class="charts">{charts}</div><h2>Figures</h2>{table}'
    write_page(html, page(title, f"speeds against {arms[0]}", text))


def _curves(found: Sequence[Row], arms: Sequence[str], figure: Callable[[Row], Contrast | None]) -> list[Curve]:
    curves = []
    for arm in arms:
        points = [(row.slots, speed) for row in found if row.arm == arm and (speed := figure(row)) is not None]
        if points:
            x = np.log2([slots for slots, _ in points])
            y = np.array([speed.value for _, speed in points])
            low, high = (
                np.array([np.nan if (end := getattr(speed, name)) is None else end for _, speed in points])
                for name in ("low", "high")
            )
            curves.append(Curve(arm, x, y, low, high))
    return curves
