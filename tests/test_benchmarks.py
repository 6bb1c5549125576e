"""The benchmarks run, at a small size, and say what they claim."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize("rule", ["exact", "block", "lenient"])
def test_reuse_planning_is_cheap_and_its_memory_is_as_documented(rule: str) -> None:
    measured = runpy.run_path(str(FOLDER / "reuse_planning.py"))["measure"](8, 512, 20, 64, rule)
    assert measured["kept_tokens"] == 8 * 512, "an unchanged policy keeps everything"
    assert measured["bytes_per_token"] == pytest.approx(12 + 8 * 20 + 4 * 100 / 512)
    # About 2 us a token; far above it something has become a Python loop over tokens.
    assert measured["planning_us_per_token"] < 30
