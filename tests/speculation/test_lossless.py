"""The gate's statistics: against scipy, at their stated error level and power, and in words."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_specrl.speculation.lossless import canary_verdict, chi_square, critical_value, distance, survival


@pytest.mark.parametrize("freedom", [1, 2, 9, 63, 400])
def test_survival_is_scipys(freedom: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    for x in (0.1, 1.0, float(freedom), 1.7 * freedom + 5, 4.0 * freedom + 30):
        assert survival(x, freedom) == pytest.approx(stats.chi2.sf(x, freedom), rel=1e-8, abs=1e-14)
        for shift in (0.5, 30.0, 900.0):
            assert survival(x, freedom, shift) == pytest.approx(stats.ncx2.sf(x, freedom, shift), abs=1e-7)
    assert critical_value(freedom, 1e-3) == pytest.approx(stats.chi2.isf(1e-3, freedom), rel=1e-9)
    assert survival(0.0, freedom) == 1.0


def test_chi_square_has_the_stated_level_and_power() -> None:
    """2,000 experiments each: rejected in 5 % under the law (+- 5 standard errors), else as `survival` predicts."""
    rng = np.random.default_rng(4)
    p, other = rng.dirichlet(np.ones(8)), rng.dirichlet(np.ones(8))
    mixed = 0.93 * p + 0.07 * other
    limit, n = critical_value(7, 0.05), 1000
    false = np.mean([chi_square(rng.multinomial(n, p), p) > limit for _ in range(2000)])
    assert false == pytest.approx(0.05, abs=0.025)
    power = survival(limit, 7, n * distance(mixed, p))
    assert 0.2 < power < 0.98, "a case in which the figure can be wrong on both sides"
    found = np.mean([chi_square(rng.multinomial(n, mixed), p) > limit for _ in range(2000)])
    assert found == pytest.approx(power, abs=0.06)


TRAINER = -np.abs(np.random.default_rng(5).normal(1.0, 0.7, 500)) - 0.2


@pytest.mark.parametrize(
    ("engine", "status", "words"),
    [
        (TRAINER + 1e-3, "pass", "are the trainer's"),
        (TRAINER + np.random.default_rng(6).normal(0, 0.05, 500), "warn", "drift apart"),
        (TRAINER * 0.7, "fail", "other weights"),
        (np.zeros(500), "fail", "log-prob 0.0 for 500 tokens"),
        (np.where(np.arange(500) == 7, 0.0, TRAINER), "fail", "log-prob 0.0 for 1 tokens"),
        (np.where(np.arange(500) == 7, np.nan, TRAINER), "fail", "not finite"),
        (np.where(np.arange(500) == 7, -np.inf, TRAINER), "fail", "not finite"),
    ],
)
def test_canary(engine: np.ndarray, status: str, words: str) -> None:
    verdict = canary_verdict(engine, TRAINER)
    assert verdict.status == status
    assert words in verdict.text


def test_canary_figures() -> None:
    engine = TRAINER.copy()
    engine[:50] += 0.2
    figures = canary_verdict(engine, TRAINER).figures
    assert figures["ratio_outside_fraction"] == pytest.approx(0.1)
    assert figures["logprob_gap"] == pytest.approx(0.02)
    assert figures["logprob_gap_max"] == pytest.approx(0.2)
    with pytest.raises(ValueError, match="at least one response"):
        canary_verdict(np.zeros(0), np.zeros(0))
