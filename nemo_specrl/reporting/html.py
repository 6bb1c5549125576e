"""A comparison as one page: no network, no files beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from nemo_specrl.reporting.compare import Comparison
from nemo_specrl.reporting.curves import Curve
from nemo_specrl.reporting.diff import Diff
from nemo_specrl.reporting.measures import CURVES
from nemo_specrl.reporting.plot import legend, line_chart, stacked_bars
from nemo_specrl.reporting.words import cell, favour

READING = (
    "Intervals are 95 %: Student's over seeds; against the baseline, the wider of Student's and the bootstrap's over "
    "pairs of seeds. Speedups are baseline / arm. A difference is claimed only where its interval leaves no room for "
    "none, and never from fewer than three seeds. Bands in the charts are the range over seeds. Blank: not recorded."
)
X_LABELS = {
    "step": "step",
    "time": "seconds of training",
    "tokens": "response tokens generated",
    "entropy": "policy entropy, nats",
}
_TABS = {"step": "by step", "time": "by time", "tokens": "by tokens", "entropy": "by entropy"}


def comparison_page(comparison: Comparison) -> str:
    """The whole comparison as an HTML document."""
    others = [arm for arm in comparison.arms if arm != comparison.baseline]
    title = " against ".join([", ".join(others), comparison.baseline]) if others else comparison.baseline
    seeds = ", ".join(f"{arm}: {len(comparison.runs[arm])}" for arm in comparison.arms)
    body = [
        notes(comparison.notes),
        '<h2>Figures</h2><div class="scroll">' + figures_table(comparison) + "</div>",
        f'<p class="soft">{READING}</p>',
        "<h2>Curves</h2>" + charts(comparison),
        differences("Configuration that differs", comparison.config_diff, comparison.arms),
        differences("Environment that differs", comparison.environment_diff, comparison.arms),
        runs_table(comparison),
    ]
    return page(title, f"seeds per arm: {seeds}; rewards at equal {comparison.align}", "".join(body))


def page(title: str, subtitle: str, body: str, *, parts: Sequence[str] = ()) -> str:
    """A document with our style and script inlined, and those of `parts`."""
    here = resources.files("nemo_specrl.reporting")
    style, script = (
        "".join((here / f"{name}.{kind}").read_text(encoding="utf-8") for name in ("page", *parts))
        for kind in ("css", "js")
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body>"
        f'<header><div><h1>{escape(title)}</h1><p class="soft">{escape(subtitle)}</p></div>'
        '<button id="theme" type="button" title="switch between light and dark">Dark</button></header>'
        f"{body}<script>{script}</script></body></html>\n"
    )


def write_page(path: Path, text: str) -> None:
    """Lone surrogates, which UTF-8 has no bytes for, are written as character references."""
    path.write_text(text, encoding="utf-8", errors="xmlcharrefreplace")


def notes(lines: Sequence[str]) -> str:
    """What to know first; nothing if there is nothing."""
    return f'<div class="notes">{"".join(f"<p>{escape(line)}</p>" for line in lines)}</div>' if lines else ""


def figures_table(comparison: Comparison) -> str:
    base = comparison.baseline if len(comparison.arms) > 1 else None
    head = "".join(
        f'<th>{escape(arm)}<span class="spread">{"baseline" if arm == base else "&nbsp;"}</span></th>'
        for arm in comparison.arms
    )
    rows = []
    for figure in comparison.figures:
        cells = []
        for arm in comparison.arms:
            main, spread, said = (escape(text) for text in cell(comparison, figure, arm))
            extra = "".join(f'<span class="{c}">{t}</span>' for c, t in (("spread", spread), ("said", said)) if t)
            cells.append(f'<td class="{favour(figure, arm)}"><span class="main">{main}</span>{extra}</td>')
        rows.append(f"<tr><th>{escape(figure.label)}</th>{''.join(cells)}</tr>")
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def charts(comparison: Comparison) -> str:
    """A figure per metric that any run recorded, with tabs for what it is drawn against."""
    parts = [_figure(CURVES[key], panels, comparison) for key, panels in comparison.charts.items() if panels]
    stages = {arm: pieces for arm, pieces in comparison.stages.items() if pieces}
    if stages:
        names = list(dict.fromkeys(name for pieces in stages.values() for name in pieces))
        svg = stacked_bars(stages, label="where a step's time goes", x_label="seconds per step")
        parts.insert(1, f"<figure><h3>where a step's time goes</h3>{legend(names, names)}{svg}</figure>")
    return f'<div class="charts">{"".join(parts)}</div>'


def _figure(title: str, panels: Mapping[str, Sequence[Curve]], comparison: Comparison) -> str:
    chosen = comparison.align if comparison.align in panels else next(iter(panels))
    tabs = "".join(
        f'<button type="button" class="tab" data-tab="{key}" aria-selected="{str(key == chosen).lower()}">'
        f"{_TABS[key]}</button>"
        for key in panels
    )
    drawn = "".join(
        f'<div data-panel="{key}"{"" if key == chosen else " hidden"}>'
        f"{line_chart(curves, names=comparison.arms, label=title, x_label=X_LABELS[key])}</div>"
        for key, curves in panels.items()
    )
    keys = legend([curve.name for curve in panels[chosen]], comparison.arms)
    return f'<figure><h3>{escape(title)}</h3><div class="tabs">{tabs}</div>{keys}{drawn}</figure>'


def differences(title: str, diff: Diff, arms: Sequence[str]) -> str:
    if not diff:
        return ""
    head = "".join(f"<th>{escape(arm)}</th>" for arm in arms)
    rows = "".join(
        f'<tr><th class="code">{escape(key)}</th>'
        + "".join(f'<td class="code">{escape(row[arm] or "")}</td>' for arm in arms)
        + "</tr>"
        for key, row in diff.items()
    )
    return (
        f'<h2>{escape(title)}</h2><div class="scroll"><table><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def runs_table(comparison: Comparison) -> str:
    rows = "".join(
        f"<tr><td>{escape(arm)}</td><td>{'' if run.seed is None else run.seed}</td><td>{escape(run.status)}</td>"
        f'<td>{run.last_step()}</td><td class="code">{escape(run.source)}</td></tr>'
        for arm in comparison.arms
        for run in comparison.runs[arm]
    )
    return (
        '<h2>Runs</h2><div class="scroll"><table><thead><tr><th>arm</th><th>seed</th><th>status</th><th>last step</th>'
        f"<th>read from</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )
