"""An arm's seeds -> one curve with its band, short enough to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nemo_specrl.reporting.history import Column, RunHistory
from nemo_specrl.reporting.measures import ALIGNMENTS, axis, curve

POINTS = 240
"""Most points of a curve."""


@dataclass(frozen=True)
class Curve:
    """One line of a chart; the arrays are of one length."""

    name: str
    x: Column
    y: Column
    low: Column
    """The lowest seed's value; NaN where only one seed has one. A band is the seeds' range: an interval of two or three
    seeds would dwarf the curves."""
    high: Column


def arm_curves(arms: Mapping[str, Sequence[RunHistory]], key: str) -> dict[str, list[Curve]]:
    """Alignment -> one curve per arm that recorded the metric; empty if none did."""
    charts: dict[str, list[Curve]] = {}
    for align in (*ALIGNMENTS, "entropy") if key.startswith(("spec/", "draft/")) else ALIGNMENTS:
        curves = [c for arm, runs in arms.items() if (c := _mean_curve(arm, runs, key, align)) is not None]
        if curves:
            charts[align] = curves
    return charts


def _mean_curve(arm: str, runs: Sequence[RunHistory], key: str, align: str) -> Curve | None:
    """Seeds are brought to one grid up to where the shortest ends, and averaged there.

    Each grid cell holds the mean of the steps in it, so a long run's noise shrinks and nothing is picked out."""
    points: list[tuple[Column, Column]] = []
    for run in runs:
        x, y = axis(run, align), curve(run, key)
        known = ~np.isnan(x) & ~np.isnan(y)
        if known.any():
            order = np.argsort(x[known], kind="stable")
            points.append((x[known][order], y[known][order]))
    if not points:
        return None
    start, end = max(float(x[0]) for x, _ in points), min(float(x[-1]) for x, _ in points)
    cells = min(POINTS, *(len(x) for x, _ in points)) if end > start else 1
    edges = np.linspace(start, end, cells + 1)
    values = np.array([_binned(x, y, edges) for x, y in points])
    count = (~np.isnan(values)).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.nansum(values, 0) / count
    several = count > 1
    low = np.where(several, np.nanmin(np.where(several, values, 0.0), 0), np.nan)
    high = np.where(several, np.nanmax(np.where(several, values, 0.0), 0), np.nan)
    kept = count > 0
    middle: Column = np.asarray((edges[:-1] + edges[1:]) / 2 if end > start else edges[:1], np.float64)
    if align == "step" and cells == end - start + 1:
        middle = np.arange(start, end + 1, dtype=np.float64)
    return Curve(arm, middle[kept], mean[kept], low[kept], high[kept])


def _binned(x: Column, y: Column, edges: Column) -> Column:
    """[len(edges) - 1] mean of y in each cell, the last one's end included; an empty cell lies on the line between its
    neighbours, and is NaN beyond the first and the last."""
    cells = len(edges) - 1
    if edges[-1] <= edges[0]:
        return np.array([y.mean()])
    inside = (x >= edges[0]) & (x <= edges[-1])
    cell = np.minimum(((x[inside] - edges[0]) / (edges[-1] - edges[0]) * cells).astype(int), cells - 1)
    count = np.bincount(cell, minlength=cells)
    full = np.flatnonzero(count)
    means = np.bincount(cell, y[inside], minlength=cells)[full] / count[full]
    return np.interp(np.arange(cells), full, means, left=np.nan, right=np.nan) if len(full) else np.full(cells, np.nan)
