"""The benchmarks run, at a small size, and say what they claim."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


def measure(*args: Any, **options: Any) -> dict[str, float]:
    measured: dict[str, float] = runpy.run_path(str(FOLDER / "reuse_planning.py"))["measure"](*args, **options)
    return measured


@pytest.mark.parametrize(("rule", "k"), [("exact", 20), ("block", 20), ("lenient", 20), ("lenient", 0)])
def test_reuse_planning_is_cheap_and_its_memory_is_as_documented(rule: str, k: int) -> None:
    measured = measure(8, 512, k, 64, rule)
    assert measured["kept_tokens"] == 8 * 512, "an unchanged policy keeps everything"
    assert measured["bytes_per_token"] == pytest.approx(12 + 8 * k + 4 * 100 / 512)
    # Under 2 us a token; far above it something has become a Python loop over tokens.
    assert measured["planning_us_per_token"] < 20
    assert measured["one_percent_step_s"] == pytest.approx(measured["planning_ms"] / 10)
    parts = sum(measured[f"{part}_ms"] for part in ("lookup", "verify", "splice"))
    assert measured["planning_ms"] == pytest.approx(parts)


def test_reuse_planning_counts_replacements_apart() -> None:
    measured = measure(8, 64, 20, 64, "exact", drift=2.0)
    assert measured["replaced_tokens"] == 8
    assert 0 < measured["kept_tokens"] < 8 * 64
    assert measured["replace_us_each"] == pytest.approx(measured["replace_ms"] * 1e3 / 8)
