"""Charts as inline SVG. The page's script adds hovering and legend toggles; without it the charts still read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from nemo_specrl.reporting.curves import Curve
from nemo_specrl.reporting.history import Column

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 42
COLOURS = 8
"""Colours of the page's palette; further series repeat them."""


@dataclass(frozen=True)
class _Frame:
    """Data coordinates -> pixels."""

    x: tuple[float, float]
    y: tuple[float, float]

    def px(self, x: Column | float) -> Any:
        return LEFT + (x - self.x[0]) / (self.x[1] - self.x[0]) * (WIDTH - LEFT - RIGHT)

    def py(self, y: Column | float) -> Any:
        return HEIGHT - BOTTOM - (y - self.y[0]) / (self.y[1] - self.y[0]) * (HEIGHT - TOP - BOTTOM)

    def path(self, x: Column, y: Column) -> str:
        """Straight lines through the points."""
        return "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in zip(self.px(x), self.py(y), strict=True))


def line_chart(curves: Sequence[Curve], *, names: Sequence[str], label: str, x_label: str) -> str:
    """Lines with the range of their seeds. Values under the pointer come from the data that the SVG carries.

    A curve's colour is its place among `names`, so that an arm looks the same in every chart."""
    frame = _Frame(
        _range([c.x for c in curves], pad=0.0), _range([a for c in curves for a in (c.y, c.low, c.high)], pad=0.05)
    )
    parts = [_axes(frame, x_label)]
    for curve in curves:
        name = escape(curve.name, quote=True)
        parts.append(
            f'<g class="series s{names.index(curve.name) % COLOURS}" data-series="{name}">{_shape(curve, frame)}</g>'
        )
    parts.append(f'<line class="cursor" y1="{TOP}" y2="{HEIGHT - BOTTOM}" visibility="hidden"/>')
    series = [
        {
            "name": c.name,
            "colour": names.index(c.name) % COLOURS,
            **{key: _short(getattr(c, key)) for key in ("x", "y", "low", "high")},
        }
        for c in curves
    ]
    data = {"x": frame.x, "box": [LEFT, WIDTH - RIGHT], "label": x_label, "series": series}
    return _svg(label, "".join(parts), data)


def stacked_bars(bars: Mapping[str, Mapping[str, float]], *, label: str, x_label: str) -> str:
    """One horizontal bar per name, made of named pieces in a common order."""
    pieces = list(dict.fromkeys(piece for bar in bars.values() for piece in bar))
    longest = max(sum(bar.values()) for bar in bars.values()) or 1.0
    names = max(len(name) for name in bars)
    left = min(220, 16 + 7 * names)
    row, height = 34, TOP + 34 * len(bars) + BOTTOM
    scale = (WIDTH - left - RIGHT - 50) / longest
    parts = []
    for value in ticks(0, longest, 5):
        x = left + value * scale
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>')
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{height - BOTTOM + 16}" text-anchor="middle">{tick(value)}</text>'
        )
    middle = (left + WIDTH - RIGHT) / 2
    parts.append(f'<text class="axis" x="{middle}" y="{height - 6}" text-anchor="middle">{escape(x_label)}</text>')
    for index, (name, bar) in enumerate(bars.items()):
        y, x = TOP + index * row, float(left)
        parts.append(f'<text class="name" x="{left - 8}" y="{y + 20}" text-anchor="end">{escape(name)}</text>')
        for piece, value in bar.items():
            tip = f"{name}: {piece} {value:.3g} s of {sum(bar.values()):.3g} s"
            parts.append(
                f'<rect class="series s{pieces.index(piece) % COLOURS}" data-series="{escape(piece, quote=True)}" '
                f'data-tip="{escape(tip, quote=True)}" x="{x:.1f}" y="{y + 4}" '
                f'width="{max(value * scale, 0.5):.1f}" height="{row - 10}"/>'
            )
            x += value * scale
        parts.append(f'<text class="tick" x="{x + 6:.1f}" y="{y + 20}">{sum(bar.values()):.3g} s</text>')
    return _svg(label, "".join(parts), None, height)


def legend(shown: Sequence[str], names: Sequence[str]) -> str:
    """Buttons that hide and show a series of the chart beside them, in the colours of `names`."""
    buttons = "".join(
        f'<button type="button" class="key" aria-pressed="true" data-toggle="{escape(name, quote=True)}">'
        f'<span class="swatch s{names.index(name) % COLOURS}"></span>{escape(name)}</button>'
        for name in shown
    )
    return f'<div class="legend">{buttons}</div>'


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round values (1, 2 or 5 times a power of ten apart) inside [low, high], about `count` of them."""
    rough = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def tick(value: float) -> str:
    """A tick's label: 1.5k, 2M, 0.002."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if suffix == 'k' else limit):g}{suffix}"
    return f"{value:.6g}"


def _range(arrays: Sequence[Column], pad: float) -> tuple[float, float]:
    """Lowest and highest finite value, widened; never empty."""
    values = np.concatenate(arrays)
    values = values[np.isfinite(values)]
    low, high = float(values.min()), float(values.max())
    if high <= low:
        spread = abs(low) * 0.1 or 1.0
        return low - spread, high + spread
    return low - pad * (high - low), high + pad * (high - low)


def _axes(frame: _Frame, x_label: str) -> str:
    parts = []
    bottom = HEIGHT - BOTTOM
    for value in ticks(*frame.y, 5):
        y = frame.py(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick(value)}</text>')
    for value in ticks(*frame.x, 6):
        parts.append(
            f'<text class="tick" x="{frame.px(value):.1f}" y="{bottom + 16}" text-anchor="middle">{tick(value)}</text>'
        )
    parts.append(f'<line class="base" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="axis" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    return "".join(parts)


def _shape(curve: Curve, frame: _Frame) -> str:
    """The band where there are at least two seeds, then the line; a lone point is a dot."""
    band = ""
    known = np.isfinite(curve.low)
    if known.sum() > 1:
        x = np.concatenate([curve.x[known], curve.x[known][::-1]])
        y = np.concatenate([curve.high[known], curve.low[known][::-1]])
        band = f'<path class="band" d="{frame.path(x, y)}Z"/>'
    if len(curve.x) == 1:
        return f'{band}<circle class="dot" cx="{frame.px(curve.x[0]):.1f}" cy="{frame.py(curve.y[0]):.1f}" r="3.5"/>'
    return f'{band}<path class="line" d="{frame.path(curve.x, curve.y)}"/>'


def _short(values: Column) -> list[float | None]:
    """Five significant digits, enough to show; null where there is nothing."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


def _svg(label: str, body: str, data: object, height: int = HEIGHT) -> str:
    carried = "" if data is None else f" data-chart='{escape(json.dumps(data, separators=(',', ':')), quote=True)}'"
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" tabindex="0" '
        f'aria-label="{escape(label, quote=True)}"{carried}>'
        f"<title>{escape(label)}</title>{body}</svg>"
    )
