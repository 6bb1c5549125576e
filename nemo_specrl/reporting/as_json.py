"""A comparison as JSON: stable names, null for whatever is missing."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from nemo_specrl.reporting.compare import Comparison

SCHEMA = 1
"""Grows when a field changes its meaning or goes."""


def as_json(comparison: Comparison) -> str:
    """Figures, contrasts, differences and notes; the curves stay on the page."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "baseline": comparison.baseline,
        "align": comparison.align,
        "goal": comparison.goal,
        "notes": comparison.notes,
        "runs": {
            arm: [
                {"source": run.source, "seed": run.seed, "status": run.status, "last_step": run.last_step()}
                for run in comparison.runs[arm]
            ]
            for arm in comparison.arms
        },
        "figures": {
            figure.measure.name: {
                "label": figure.label,
                "unit": "s" if figure.measure.kind == "speedup" else figure.measure.unit,
                "kind": figure.measure.kind,
                "arms": {arm: _dict(value) for arm, value in figure.estimates.items()},
                "against_baseline": {arm: _dict(value) for arm, value in figure.contrasts.items()},
            }
            for figure in comparison.figures
        },
        "seconds_per_step": comparison.stages,
        "config_diff": comparison.config_diff,
        "environment_diff": comparison.environment_diff,
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _dict(value: Any) -> dict[str, Any] | None:
    return None if value is None else dataclasses.asdict(value)
