"""From measurements of single steps to figures, table, JSON and page."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from nemo_specrl.reporting.rollout_bench import Measurement, print_rows, rows, write

ARMS = ["vanilla", "exact_history"]


def measured(arm: str, slots: int, repeat: int, seconds: float, **values: float) -> Measurement:
    counts = {"rollout/count": 8.0, "rollout/new_tokens": 80.0, "rollout/reused_tokens": 0.0, "time/verify_s": 0.0}
    return Measurement(arm, slots, repeat, {**counts, "time/rollout_s": seconds, **values})


def some() -> list[Measurement]:
    reuse = {
        "time/verify_s": 1.0, "rollout/new_tokens": 20.0, "rollout/reused_tokens": 60.0, "reuse/draft_tokens": 80.0,
        "spec/drafts": 10.0, "spec/drafted": 40.0, "spec/accepted": 15.0,
    }  # fmt: skip
    out = []
    for slots, scale in ((8, 1.0), (1, 4.0)):
        for repeat in range(2):
            out.append(measured("vanilla", slots, repeat, scale * (10.0 + repeat)))
            rates = {"reuse/acceptance": 0.9 - 0.1 * repeat, "reuse/tv": 0.1, "reuse/tail_mass": 0.05}
            verified = {"rollout/verified_tokens": 60.0 if repeat else 20.0}
            out.append(
                measured("exact_history", slots, repeat, scale * (5.0 + repeat / 2), **reuse, **rates, **verified)
            )
    return out


def test_speeds_are_paired_ratios_with_verification_counted() -> None:
    found = {(row.slots, row.arm): row for row in rows(some(), ARMS)}
    assert list(found) == [(1, "vanilla"), (1, "exact_history"), (8, "vanilla"), (8, "exact_history")]
    exact = found[8, "exact_history"]
    assert exact.speed is not None
    assert exact.speed.value == pytest.approx(2.0)
    assert exact.speed.verdict == "unknown", "two repetitions: an interval and no claim"
    assert exact.speed.low == pytest.approx(2.0)
    assert exact.speed_unverified is not None
    assert exact.speed_unverified.value == pytest.approx(((10 / 4) * (11 / 4.5)) ** 0.5)
    assert exact.repeats == 2
    assert exact.kept == pytest.approx(0.75)
    assert (exact.drafts, exact.draft_length) == (pytest.approx(15 / 40), pytest.approx(2.5))


def test_rates_per_token_are_weighted_by_the_tokens_verified() -> None:
    exact = rows(some(), ARMS)[1]
    assert exact.acceptance == pytest.approx((0.9 * 20 + 0.8 * 60) / 80)
    assert exact.bound == pytest.approx(1 - 0.1)
    assert exact.tail == pytest.approx(0.05)


def test_what_was_not_recorded_is_blank() -> None:
    vanilla = rows(some(), ARMS)[0]
    assert (vanilla.acceptance, vanilla.bound, vanilla.drafts, vanilla.kept) == (None, None, None, None)
    assert vanilla.speed is not None
    assert vanilla.speed.value == pytest.approx(1.0)


def test_without_new_tokens_there_is_no_speed_without_verification() -> None:
    whole = measured(ARMS[1], 8, 0, 1.0, **{"rollout/new_tokens": 0.0, "time/verify_s": 0.999})
    found = rows([measured("vanilla", 8, 0, 2.0), whole], ARMS)[1]
    assert found.speed is not None
    assert found.speed.value == pytest.approx(2.0)
    assert found.speed_unverified is None


def test_one_repetition_claims_nothing() -> None:
    exact = rows([m for m in some() if m.repeat == 0], ARMS)[1]
    assert exact.speed is not None
    assert (exact.speed.low, exact.speed.verdict) == (None, "unknown")


def test_table_figures_and_page(tmp_path: Path) -> None:
    found, out = rows(some(), ARMS), io.StringIO()
    print_rows(found, Console(file=out, width=80))
    assert "2.00 [2.00, 2.00]" in out.getvalue()
    assert "…" not in out.getvalue(), "it fits a terminal of 80 columns"
    write(found, ARMS, "a bench", html=tmp_path / "r.html", json_path=tmp_path / "r.json")
    figures = json.loads((tmp_path / "r.json").read_text())
    assert figures["baseline"] == "vanilla"
    assert [row["arm"] for row in figures["rows"]] == ARMS * 2
    html = (tmp_path / "r.html").read_text()
    assert html.count("<svg") == 2
    assert 'data-series="exact_history"' in html
