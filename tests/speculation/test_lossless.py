"""The gate's statistics: against scipy, at their stated error level and power, and in words."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_specrl.speculation.lossless import (
    canary_verdict,
    chi_square,
    critical_value,
    distance,
    make_bins,
    samples_needed,
    sampling_verdict,
    survival,
    tempered,
)

RNG = np.random.default_rng(0)
LAWS = [RNG.dirichlet(np.full(5000, 0.02)) for _ in range(3)]


def samples(laws: list[np.ndarray], n: int, seed: int, temperature: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.choice(len(p), n, p=tempered(p, temperature)) for p in laws]


@pytest.mark.parametrize("freedom", [1, 2, 9, 63, 400])
def test_survival_is_scipys(freedom: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    for x in (0.1, 1.0, float(freedom), 1.7 * freedom + 5, 4.0 * freedom + 30):
        assert survival(x, freedom) == pytest.approx(stats.chi2.sf(x, freedom), rel=1e-8, abs=1e-14)
        for shift in (0.5, 30.0, 900.0):
            assert survival(x, freedom, shift) == pytest.approx(stats.ncx2.sf(x, freedom, shift), abs=1e-7)
    assert critical_value(freedom, 1e-3) == pytest.approx(stats.chi2.isf(1e-3, freedom), rel=1e-9)
    assert survival(0.0, freedom) == 1.0


def test_bins_partition_the_vocabulary() -> None:
    for p in LAWS:
        bins = make_bins(p, 2000)
        assert bins.probs.sum() == pytest.approx(1.0)
        assert bins.probs.min() * 2000 >= 10 - 1e-9
        assert len(bins.probs) <= 64
        np.testing.assert_allclose(bins.fold(p), bins.probs, atol=1e-12)
        assert (bins.labels >= 0).sum() == (p > 0).sum()
    masked = make_bins(np.array([0.5, 0.5, 0.0]), 100)
    assert masked.labels.tolist() == [0, 1, -1]
    counts, massless = masked.count(np.array([0, 1, 1, 2, -1, 7]))
    assert (counts.tolist(), massless) == ([1, 2], 3)


def test_a_sound_engine_passes_at_the_stated_level() -> None:
    """100 gates at 5 %: the number of failures is Binomial(100, 0.05); above 14 once in 7,000."""
    failures = sum(
        not sampling_verdict(list(zip(LAWS[:1], samples(LAWS[:1], 400, seed), strict=True)), level=0.05).passed
        for seed in range(100)
    )
    assert failures <= 14


def test_a_wrong_temperature_fails_and_is_put_into_words() -> None:
    for temperature in (0.8, 1.25, 3.0):
        verdict = sampling_verdict(list(zip(LAWS, samples(LAWS, 2000, 1, temperature), strict=True)))
        assert verdict.status == "fail"
        assert "does not sample from the policy" in verdict.text
        assert "VLLM_PLUGINS" in verdict.text
        assert "error level 0.1%" in verdict.text
    good = sampling_verdict(list(zip(LAWS, samples(LAWS, 2000, 1), strict=True)))
    assert good.status == "pass"
    assert good.figures["power"] > 0.99
    assert good.figures["chi_square"] < good.figures["critical"]


def test_one_token_without_mass_fails() -> None:
    p = np.array([0.5, 0.5, 0.0])
    verdict = sampling_verdict([(p, np.array([0, 1] * 500 + [2]))])
    assert verdict.status == "fail"
    assert "1 of its tokens have probability 0" in verdict.text


def test_a_weak_test_says_so_and_an_empty_one_refuses() -> None:
    assert sampling_verdict(list(zip(LAWS, samples(LAWS, 40, 2), strict=True))).status == "warn"
    with pytest.raises(ValueError, match="less certain contexts"):
        sampling_verdict([(np.array([0.0, 1.0]), np.ones(50, int))])


def test_tolerance_allows_rounding_and_no_more() -> None:
    p = RNG.dirichlet(np.ones(30))
    rounded = p * np.exp(0.02 * RNG.normal(size=30))
    rounded /= rounded.sum()
    drawn = np.random.default_rng(3).choice(30, 200_000, p=rounded)
    assert not sampling_verdict([(p, drawn)]).passed
    assert sampling_verdict([(p, drawn)], tolerance=1e-3).passed
    wrong = np.random.default_rng(3).choice(30, 200_000, p=tempered(p, 1.25))
    assert not sampling_verdict([(p, wrong)], tolerance=1e-3).passed


def test_planned_samples_have_the_planned_power() -> None:
    p = RNG.dirichlet(np.ones(8))
    other = tempered(p, 1.2)
    n = samples_needed(other, p, power=0.9, level=0.01)
    assert survival(critical_value(7, 0.01), 7, n * distance(other, p)) >= 0.9
    assert survival(critical_value(7, 0.01), 7, (n - 1) * distance(other, p)) < 0.9
    rng, limit = np.random.default_rng(4), critical_value(7, 0.01)
    found = np.mean([chi_square(rng.multinomial(n, other), p) > limit for _ in range(2000)])
    assert found == pytest.approx(0.9, abs=0.04)
    with pytest.raises(ValueError, match="the law itself"):
        samples_needed(p, p)


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
