"""Figures as text; the same words in the terminal and on the page."""

from __future__ import annotations

from nemo_specrl.reporting.compare import Comparison, Figure
from nemo_specrl.reporting.stats import Contrast, Estimate

_VERDICTS = {
    "higher": "higher",
    "lower": "lower",
    "equal": "equal within its interval",
}


def number(value: float, unit: str = "") -> str:
    """Three significant digits with the unit; shares as percentages."""
    if unit == "%":
        return f"{100 * value:.1f} %"
    text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")
    return f"{text}{unit}" if unit == "x" else f"{text} {unit}".rstrip()


def interval(low: float | None, high: float | None, unit: str) -> str:
    """`[low, high] unit`, or nothing where a single seed gives none."""
    if low is None or high is None:
        return ""
    scale = 100 if unit == "%" else 1
    text = f"[{number(scale * low)}, {number(scale * high)}]"
    return f"{text}{unit}" if unit == "x" else f"{text} {unit}".rstrip()


def cell(comparison: Comparison, figure: Figure, arm: str) -> tuple[str, str, str]:
    """What an arm's cell says: the figure, its interval, and the verdict against the baseline. Blank = missing."""
    measure, found = figure.measure, figure.estimates[arm]
    if found is None:
        return "", "", ""
    against = figure.contrasts.get(arm)
    if measure.kind == "speedup":
        if arm == comparison.baseline:
            return "1.00x", f"{number(found.mean, 's')} in all", ""
        if against is None:
            return "", "", ""
        return number(against.value, "x"), interval(against.low, against.high, "x"), verdict(figure, arm)
    main = number(found.mean, measure.unit) + _missing(found, len(comparison.runs[arm]))
    return main, interval(found.low, found.high, measure.unit), verdict(figure, arm)


def verdict(figure: Figure, arm: str) -> str:
    """Against the baseline, in words, with the difference for figures that are no ratio; blank without a contrast."""
    against = figure.contrasts.get(arm)
    if against is None:
        return ""
    if figure.measure.kind == "speedup":
        return {"higher": "faster", "lower": "slower"}.get(against.verdict) or _claim(against)
    spread = interval(*_points(against, figure.measure.unit), "")
    return f"{_signed(against.value, figure.measure.unit)} {spread}".rstrip() + f": {_claim(against)}"


def short(comparison: Comparison, figure: Figure, arm: str) -> str:
    """One line below an arm's figure: `-430 [-484, -372] lower`; the baseline's own interval."""
    against, found, unit = figure.contrasts.get(arm), figure.estimates[arm], figure.measure.unit
    if against is None:
        spread = figure.measure.kind != "speedup" and found is not None
        return interval(found.low, found.high, unit) if spread and found is not None else ""
    word = _seeds(against.n) if against.verdict == "unknown" else against.verdict
    if figure.measure.kind == "speedup":
        word = {"higher": "faster", "lower": "slower"}.get(word, word)
        return f"{interval(against.low, against.high, '')} {word}".lstrip()
    spread_text = interval(*_points(against, unit), "")
    return f"{_signed(against.value, '' if unit == 's' else unit)} {spread_text}".rstrip() + f" {word}"


def _points(against: Contrast, unit: str) -> tuple[float | None, float | None]:
    """The interval's ends, of a share in percentage points."""
    if against.low is None or against.high is None or unit != "%":
        return against.low, against.high
    return 100 * against.low, 100 * against.high


def _signed(value: float, unit: str) -> str:
    """A difference with its sign; of a share, percentage points."""
    text = number(100 * abs(value), "pp") if unit == "%" else number(abs(value), unit)
    return ("+" if value >= 0 else "-") + text


def favour(figure: Figure, arm: str) -> str:
    """`good` or `bad` where a claimed difference is one; else nothing."""
    against = figure.contrasts.get(arm)
    if against is None or against.verdict not in ("higher", "lower") or figure.measure.better == "neither":
        return ""
    return "good" if against.verdict == figure.measure.better else "bad"


def _claim(against: Contrast) -> str:
    if against.verdict == "unknown":
        return f"{_seeds(against.n)}: no claim"
    return _VERDICTS[against.verdict]


def _seeds(n: int) -> str:
    return "1 seed" if n == 1 else f"{n} seeds"


def _missing(found: Estimate, runs: int) -> str:
    return f" ({found.n} of {runs} seeds)" if found.n < runs else ""
