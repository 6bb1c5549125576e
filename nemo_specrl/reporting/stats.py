"""Intervals over seeds, and when a difference may be claimed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95
"""Confidence of every interval."""
RESAMPLES = 10_000
ENOUGH = 3
"""Seeds from which on a difference may be claimed. Of two seeds an interval is shown, which is one number's word: its
width is that of a single difference, and what it covers hangs on the normal law alone."""
Verdict: TypeAlias = Literal["higher", "lower", "equal", "unknown"]


@dataclass(frozen=True)
class Estimate:
    """A figure over the seeds of an arm."""

    mean: float
    low: float | None
    """Lower end of Student's interval; None for a single seed."""
    high: float | None
    n: int
    """Seeds."""


@dataclass(frozen=True)
class Contrast:
    """An arm against the baseline."""

    value: float
    """Difference arm - baseline, or ratio."""
    low: float | None
    """Lower end of the interval: the farther of the bootstrap's and Student's; None for a single seed."""
    high: float | None
    n: int
    """Pairs of seeds, or the smaller arm's seeds where none pair up."""
    paired: bool
    verdict: Verdict
    """`higher` or `lower` only where the whole interval is; `equal` = equal within its interval; `unknown` = fewer
    than three seeds, of which nothing is claimed."""


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and Student's interval of at least one value; None of none."""
    if not values:
        return None
    mean = float(np.mean(values))
    if len(values) < 2:
        return Estimate(mean, None, None, len(values))
    half = student_quantile(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, len(values))


def contrast(arm: dict[int, float], base: dict[int, float], *, ratio: bool) -> Contrast | None:
    """Compare by seed: paired over the seeds that both have, else (no common seed) as independent samples.

    A ratio is compared through its logarithm. None where either side is empty, or a ratio's side is not positive.
    """
    seeds = sorted(arm.keys() & base.keys())
    a = np.array([arm[s] for s in seeds] if seeds else list(arm.values()), float)
    b = np.array([base[s] for s in seeds] if seeds else list(base.values()), float)
    if not len(a) or not len(b) or (ratio and (np.any(a <= 0) or np.any(b <= 0))):
        return None
    if ratio:
        a, b = np.log(a), np.log(b)
    found = _paired(a - b) if seeds else _independent(a, b)
    if not ratio:
        return found
    low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
    return Contrast(math.exp(found.value), low, high, found.n, found.paired, found.verdict)


def _paired(differences: np.ndarray) -> Contrast:
    n, value = len(differences), float(np.mean(differences))
    if n < 2:
        return Contrast(value, None, None, n, True, "unknown")
    rng = np.random.default_rng(0)
    means = differences[rng.integers(0, n, (RESAMPLES, n))].mean(1)
    half = student_quantile(n - 1) * float(np.std(differences, ddof=1)) / math.sqrt(n)
    return _claim(value, means, half, n, paired=True)


def _independent(a: np.ndarray, b: np.ndarray) -> Contrast:
    """Welch's interval, and a bootstrap that resamples each side."""
    n, value = min(len(a), len(b)), float(np.mean(a) - np.mean(b))
    if n < 2:
        return Contrast(value, None, None, n, False, "unknown")
    rng = np.random.default_rng(0)
    means = a[rng.integers(0, len(a), (RESAMPLES, len(a)))].mean(1)
    means -= b[rng.integers(0, len(b), (RESAMPLES, len(b)))].mean(1)
    va, vb = float(np.var(a, ddof=1)) / len(a), float(np.var(b, ddof=1)) / len(b)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1)) if va + vb else 1.0
    return _claim(value, means, student_quantile(freedom) * math.sqrt(va + vb), n, paired=False)


def _claim(value: float, means: np.ndarray, half: float, n: int, *, paired: bool) -> Contrast:
    """The bootstrap alone would claim far too often with two or three seeds (a quarter of all null results at three),
    so the interval reaches to the farther end of the two."""
    tail = 50 * (1 - LEVEL)
    low, high = (float(x) for x in np.percentile(means, [tail, 100 - tail]))
    low, high = min(low, value - half), max(high, value + half)
    verdict: Verdict = "unknown" if n < ENOUGH else "higher" if low > 0 else "lower" if high < 0 else "equal"
    return Contrast(value, low, high, n, paired, verdict)


def student_quantile(freedom: float, level: float = LEVEL) -> float:
    """t with P(|T| <= t) = level for Student's T with so many degrees of freedom (>= 1, need not be whole)."""
    return float(stdtrit(freedom, (1 + level) / 2))
