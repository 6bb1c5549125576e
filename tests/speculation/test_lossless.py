"""The gate's statistics: against tables and draws, at their stated error level and power, and in words."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_specrl.speculation.lossless import canary_verdict, chi_square, critical_value, distance, survival


@pytest.mark.parametrize(
    ("level", "freedom", "value"),
    [(0.05, 1, 3.841), (0.05, 10, 18.307), (0.001, 1, 10.828), (0.001, 10, 29.588), (0.001, 100, 149.449)],
)
def test_critical_values_are_the_tables(level: float, freedom: int, value: float) -> None:
    assert critical_value(freedom, level) == pytest.approx(value, abs=1e-3)
    assert survival(value, freedom) == pytest.approx(level, rel=1e-3)
    assert survival(0.0, freedom) == 1.0


@pytest.mark.parametrize(("freedom", "shift"), [(1, 2.0), (9, 30.0), (63, 900.0)])
def test_noncentral_survival_is_the_frequency_of_shifted_squares(freedom: int, shift: float) -> None:
    """400,000 sums of squares each: within 5 standard errors; without the shift it would be off by far more."""
    z = np.random.default_rng(2).standard_normal((400_000, 1))[:, 0]
    rest = np.random.default_rng(3).chisquare(freedom - 1, 400_000) if freedom > 1 else 0.0
    x = freedom + shift + 3.0
    share = survival(x, freedom, shift)
    assert np.mean((z + np.sqrt(shift)) ** 2 + rest > x) == pytest.approx(share, abs=5 * np.sqrt(0.25 / 400_000))
    assert abs(survival(x, freedom) - share) > 0.05


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
