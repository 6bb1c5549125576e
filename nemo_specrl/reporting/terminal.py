"""A comparison in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nemo_specrl.reporting.compare import Comparison
from nemo_specrl.reporting.diff import Diff
from nemo_specrl.reporting.words import cell, favour, short

_STYLES = {"good": "green", "bad": "red", "": ""}


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Headline figures first, then what differs, then what to know before believing it."""
    console = console or Console(highlight=False)
    table = Table(title=None, show_lines=False, pad_edge=False)
    table.add_column("", overflow="fold")
    for arm in comparison.arms:
        seeds = len(comparison.runs[arm])
        role = ", baseline" if arm == comparison.baseline and len(comparison.arms) > 1 else ""
        table.add_column(f"{arm}\n{seeds} seed{'s' * (seeds > 1)}{role}", overflow="fold")
    for figure in comparison.figures:
        cells = []
        for arm in comparison.arms:
            text = Text(cell(comparison, figure, arm)[0], style=_STYLES[favour(figure, arm)])
            if (against := short(comparison, figure, arm)) and text.plain:
                text.append(f"\n{against}", style="dim")
            cells.append(text)
        table.add_row(figure.label, *cells)
    console.print(table)
    _print_diff(console, "configuration that differs", comparison.config_diff, comparison.arms)
    _print_diff(console, "environment that differs", comparison.environment_diff, comparison.arms)
    if len(comparison.arms) > 1:
        console.print(
            "Second lines: the baseline's interval; the arms' difference from it, with its interval (95 %). "
            "Speedups are baseline / arm.",
            style="dim",
        )
    for note in comparison.notes:
        console.print(f"note: {note}", markup=False)


def _print_diff(console: Console, title: str, diff: Diff, arms: list[str]) -> None:
    if not diff:
        return
    table = Table(title=title, title_justify="left", pad_edge=False)
    table.add_column("")
    for arm in arms:
        table.add_column(arm, overflow="fold")
    for key, row in diff.items():
        table.add_row(Text(key), *(Text(row[arm] or "") for arm in arms))
    console.print(table)
