"""The report of a single run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from nemo_specrl.reporting.compare import compare
from nemo_specrl.reporting.html import charts, figures_table, notes, page
from nemo_specrl.reporting.measures import KEYS
from nemo_specrl.reporting.spool_reader import read_folder


def run_report(folder: Path) -> Path:
    """Write `report.html` into a run's output folder and return its path. Raises ValueError if it holds no run.

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
    body += _rollouts(folder / "tables" / "rollouts.json")
    body += _table("Environment", run.environment) + _table("Configuration", run.config)
    path = folder / "report.html"
    path.write_text(page(run.arm, f"seed {run.seed}, {run.status}, {run.last_step()} steps", body), encoding="utf-8")
    return path


def _table(title: str, values: Mapping[str, str]) -> str:
    if not values:
        return ""
    rows = "".join(
        f'<tr><th class="code">{escape(key)}</th><td class="code">{escape(value)}</td></tr>'
        for key, value in sorted(values.items())
    )
    return f"<details><summary>{escape(title)}</summary><table>{rows}</table></details>"


def _rollouts(path: Path) -> str:
    """The newest sample table, with the reused part of every response marked; nothing if there is none."""
    if not path.exists():
        return ""
    table = json.loads(path.read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    if not rows:
        return ""
    shown = "".join(_rollout(row) for row in rows)
    return (
        f'<h2>Rollouts of step {rows[0]["step"]}</h2><p class="soft">Reused tokens are <mark>marked</mark>.</p>{shown}'
    )


def _rollout(row: Mapping[str, Any]) -> str:
    texts = {"prompt", "reused_text", "new_text", "step"}
    facts = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row.items() if key not in texts)
    reused, new = (escape(str(row.get(key) or "")) for key in ("reused_text", "new_text"))
    mark = f"<mark>{reused}</mark>" if reused else ""
    return (
        f'<div class="rollout"><span class="soft">{escape(facts)}</span>'
        f"<pre>{escape(str(row.get('prompt', '')))}</pre><pre>{mark}{new}</pre></div>"
    )
