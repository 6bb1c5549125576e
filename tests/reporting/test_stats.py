"""Intervals and claims: their error level, and that a wrong rule would be caught."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nemo_specrl.reporting.stats import contrast, estimate, student_quantile


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (10, 2.22814), (1e4, 1.96020), (2.5, 3.574655)]
)
def test_student_quantiles_are_the_tables(freedom: float, quantile: float) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, rel=1e-4)


def test_an_interval_of_known_numbers() -> None:
    found = estimate([1.0, 2.0, 3.0])
    assert found is not None
    half = 4.30265 / math.sqrt(3)
    assert (found.mean, found.n) == (2.0, 3)
    assert (found.low, found.high) == (pytest.approx(2 - half, rel=1e-4), pytest.approx(2 + half, rel=1e-4))


def test_missing_is_none_and_one_seed_has_no_interval() -> None:
    assert estimate([]) is None
    single = estimate([5.0])
    assert single is not None
    assert (single.low, single.high, single.n) == (None, None, 1)
    assert contrast({}, {0: 1.0}, ratio=False) is None
    assert contrast({0: 0.0}, {0: 1.0}, ratio=True) is None, "no ratio to nothing"


def test_one_seed_claims_nothing_however_large_the_difference() -> None:
    found = contrast({0: 100.0}, {0: 1.0}, ratio=True)
    assert found is not None
    assert (found.value, found.low, found.verdict) == (pytest.approx(100), None, "unknown")


def test_pairs_by_seed_cancel_what_the_seeds_share() -> None:
    base = {0: 1.0, 1: 10.0, 2: 100.0}
    paired = contrast({s: v * 1.1 for s, v in base.items()}, base, ratio=True)
    assert paired is not None
    assert (paired.paired, paired.verdict, paired.value) == (True, "higher", pytest.approx(1.1))
    apart = contrast({s + 7: v * 1.1 for s, v in base.items()}, base, ratio=True)
    assert apart is not None
    assert (apart.paired, apart.verdict) == (False, "equal"), "without pairs the seeds' spread hides it"


def test_only_common_seeds_are_paired() -> None:
    found = contrast({0: 2.0, 1: 3.0, 5: 99.0}, {0: 1.0, 1: 2.0, 6: -99.0}, ratio=False)
    assert found is not None
    assert (found.n, found.value) == (2, 1.0)


def false_claims(seeds: int, paired: bool, trials: int = 400) -> tuple[float, float]:
    """How often a difference is claimed where there is none: by us, and by a bootstrap alone."""
    rng = np.random.default_rng(5)
    ours = naive = 0
    for _ in range(trials):
        a, b = rng.standard_normal(seeds), rng.standard_normal(seeds)
        shift = 0 if paired else seeds
        found = contrast(dict(enumerate(a)), {i + shift: x for i, x in enumerate(b)}, ratio=False)
        assert found is not None
        ours += found.verdict != "equal"
        picks = rng.integers(0, seeds, (500, seeds))
        means = (a - b)[picks].mean(1) if paired else a[picks].mean(1) - b[rng.integers(0, seeds, (500, seeds))].mean(1)
        low, high = np.percentile(means, [2.5, 97.5])
        naive += low > 0 or high < 0
    return ours / trials, naive / trials


@pytest.mark.parametrize("paired", [True, False])
def test_false_claims_are_as_rare_as_promised(paired: bool) -> None:
    """Level 5 %, three seeds, 400 null comparisons: above 8.3 % has probability 0.3 % if the level holds. The bootstrap
    alone, the wrong rule, is far above it, so the test has the power to see it."""
    ours, naive = false_claims(3, paired)
    assert ours <= 0.083
    assert naive > 0.12


def test_a_real_difference_is_found() -> None:
    """Five standard deviations of the pair difference, three seeds: found in most of 200 trials."""
    rng = np.random.default_rng(6)
    found = [
        contrast({s: 5 + x for s, x in enumerate(rng.standard_normal(3) / math.sqrt(2))},
                 dict(enumerate(rng.standard_normal(3) / math.sqrt(2))), ratio=False)
        for _ in range(200)
    ]  # fmt: skip
    assert sum(c is not None and c.verdict == "higher" for c in found) > 150
