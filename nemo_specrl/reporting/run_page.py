"""The report of a single run."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from nemo_specrl.reporting.compare import compare
from nemo_specrl.reporting.html import charts, figures_table, notes, page, write_page
from nemo_specrl.reporting.measures import KEYS
from nemo_specrl.reporting.rollout_log import read
from nemo_specrl.reporting.rollouts import BUDGET, rollouts_section
from nemo_specrl.reporting.spool_reader import read_folder


def run_report(folder: Path, *, status: str = "") -> Path:
    """Write `report.html` into a run's output folder and return its path. Raises ValueError if it holds no run.
    `status`: how the run is about to end, where its record does not say so yet.

    A run without any step yet gets a page that says so.
    """
    run = read_folder(folder, KEYS)
    if len(run):
        comparison = compare([run])
        body = notes(comparison.notes)
        body += (
            f'<h2>Figures</h2><div class="scroll">{figures_table(comparison)}</div><h2>Curves</h2>{charts(comparison)}'
        )
    else:
        body = notes(["no step has been recorded yet"])
    body += rollouts_section(read(folder, BUDGET))
    body += _table("Environment", run.environment) + _table("Configuration", run.config)
    path = folder / "report.html"
    subtitle = f"seed {run.seed}, {status or run.status}, {run.last_step()} steps"
    write_page(path, page(run.arm, subtitle, body, parts=["rollouts"]))
    return path


def _table(title: str, values: Mapping[str, str]) -> str:
    if not values:
        return ""
    rows = "".join(
        f'<tr><th class="code">{escape(key)}</th><td class="code">{escape(value)}</td></tr>'
        for key, value in sorted(values.items())
    )
    return f"<details><summary>{escape(title)}</summary><table>{rows}</table></details>"
