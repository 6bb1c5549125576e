"""The lossless gate's statistics: does an engine sample from the policy, and do its log-probs mean what they say?

Pure: probabilities, counts and log-probs in, verdicts out. The verdict's text says in words what is wrong and what to
do. Pearson's chi-square over bins of the vocabulary, summed over contexts; error level and power are always stated.
Ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Probs: TypeAlias = NDArray[np.float64]
LEVEL = 1e-3
"""Probability that a sound engine fails the chi-square."""


@dataclass(frozen=True, slots=True)
class Bins:
    """A partition of the vocabulary at one context, coarse enough for the chi-square to hold."""

    labels: NDArray[np.int64]
    """[V] bin of each token; -1 for tokens without mass."""
    probs: Probs
    """[B] the policy's probability of each bin, positive, summing to 1."""

    def count(self, samples: NDArray[np.integer]) -> tuple[NDArray[np.int64], int]:
        """([B] samples per bin, samples on tokens that the policy gives no mass)."""
        known = (samples >= 0) & (samples < len(self.labels))
        labels = np.where(known, self.labels[np.where(known, samples, 0)], -1)
        return np.bincount(labels[labels >= 0], minlength=len(self.probs)), int((labels < 0).sum())

    def fold(self, law: Probs) -> Probs:
        """[B] the probability of each bin under another law [V] (mass outside all bins is left out)."""
        inside = self.labels >= 0
        folded = np.bincount(self.labels[inside], weights=law[inside], minlength=len(self.probs))
        return np.asarray(folded, dtype=np.float64)


def make_bins(probs: Probs, samples: int, *, expected: float = 10.0, most: int = 64) -> Bins:
    """Bins over `probs` [V]: likely tokens alone, unlikely ones together in order of probability (so a wrong
    temperature shows), each with at least `expected` samples of `samples`, at most `most` bins."""
    law = np.asarray(probs, dtype=np.float64)
    law = law / law.sum()
    smallest = max(expected / samples, 1.0 / most)
    labels = np.full(len(law), -1, dtype=np.int64)
    masses: list[float] = [0.0]
    for token in np.argsort(-law, kind="stable"):
        if law[token] <= 0:
            break
        if masses[-1] >= smallest:
            masses.append(0.0)
        labels[token] = len(masses) - 1
        masses[-1] += float(law[token])
    if len(masses) > 1 and masses[-1] < smallest:  # too thin a rest joins the bin before it
        labels[labels == len(masses) - 1] -= 1
        masses[-2:] = [masses[-2] + masses[-1]]
    return Bins(labels, np.asarray(masses))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a check."""

    status: Literal["pass", "warn", "fail"]
    text: str
    """One paragraph for a person: what was found and, unless it passed, what to do."""
    figures: dict[str, float]
    """The numbers behind it, for `gate/*`."""

    @property
    def passed(self) -> bool:
        return self.status != "fail"


def sampling_verdict(
    contexts: Sequence[tuple[Probs, NDArray[np.integer]]],
    *,
    alternative_temperature: float = 1.25,
    tolerance: float = 0.0,
    level: float = LEVEL,
) -> Verdict:
    """Chi-square of an engine's samples against the policy.

    `contexts`: (the policy's law [V], samples [n]) each. `alternative_temperature`: the power stated is that against
    the law at this relative temperature. `tolerance`: chi-square distance sum (a - p)^2 / p per context that counts
    as numerical noise (bf16 against fp32); the critical value is then the noncentral one."""
    statistic, freedom, total, massless, noncentrality, allowed = 0.0, 0, 0, 0, 0.0, 0.0
    for law, samples in contexts:
        bins, n = make_bins(law, len(samples)), len(samples)
        counts, outside = bins.count(np.asarray(samples))
        statistic += chi_square(counts, bins.probs)
        freedom += len(bins.probs) - 1
        noncentrality += n * distance(bins.fold(tempered(law, alternative_temperature)), bins.probs)
        allowed += n * tolerance
        total, massless = total + n, massless + outside
    if not freedom:
        raise ValueError(
            "the gate's contexts leave nothing to test: in each the policy is all but certain of one token; "
            "choose less certain contexts, or draw more samples"
        )
    limit = critical_value(freedom, level, allowed)
    power = survival(limit, freedom, noncentrality)
    figures = {
        "chi_square": statistic,
        "critical": limit,
        "freedom": float(freedom),
        "samples": float(total),
        "massless": float(massless),
        "level": level,
        "power": power,
    }
    what = (
        f"{total} samples in {len(contexts)} contexts: chi-square {statistic:.1f}, critical value {limit:.1f} at "
        f"{freedom} degrees of freedom (error level {level:.1%}; power {power:.1%} against temperature "
        f"x{alternative_temperature:g})"
    )
    remedy = (
        "Do not train on these samples. Check that the engine runs with this package's vLLM plugin (VLLM_PLUGINS), "
        "that it holds the policy's current weights, that temperature, top_p and top_k are the same on both sides, "
        "and try again with drafter.method=off: if that passes, the drafter's verification is at fault"
    )
    if massless:
        return Verdict(
            "fail",
            f"The engine does not sample from the policy: {massless} of its tokens have probability 0 under the "
            f"sampling law. {what}. {remedy}.",
            figures,
        )
    if statistic > limit:
        return Verdict("fail", f"The engine does not sample from the policy. {what}. {remedy}.", figures)
    if power < 0.9:
        return Verdict("warn", f"No deviation was found, but the test is weak: draw more samples. {what}.", figures)
    return Verdict("pass", f"The engine samples from the policy. {what}.", figures)


def canary_verdict(
    engine: NDArray[np.floating],
    trainer: NDArray[np.floating],
    *,
    warn: float = 0.02,
    breach: float = 0.1,
) -> Verdict:
    """Log-probs of the same tokens, [N] from the engine and [N] from the trainer, under the same law.

    `warn`, `breach`: limits of the mean absolute difference, nats (bf16 against bf16 is near 0.01)."""
    assert engine.shape == trainer.shape, "the canary compares the same tokens"
    if not engine.size:
        raise ValueError("the canary has no tokens to compare; give it at least one response")
    a, b = np.asarray(engine, np.float64), np.asarray(trainer, np.float64)
    broken = int((~np.isfinite(a)).sum() + (~np.isfinite(b)).sum())
    zeros = int(((a == 0.0) & (b < -0.1)).sum())
    gap = np.abs(np.nan_to_num(a - b, nan=np.inf))
    with np.errstate(over="ignore"):
        outside = float((np.abs(np.expm1(np.clip(b - a, -50, 50))) > 0.1).mean())
    figures = {
        "logprob_gap": float(gap.mean()),
        "logprob_gap_max": float(gap.max()),
        "ratio_outside_fraction": outside,
        "zero_logprobs": float(zeros),
        "nonfinite_logprobs": float(broken),
        "tokens": float(a.size),
    }
    what = (
        f"{a.size} tokens: mean |difference| {gap.mean():.4f} nats, largest {gap.max():.3f}, "
        f"{outside:.1%} with a probability ratio off by more than 10 %"
    )
    if broken:
        return Verdict(
            "fail",
            f"{broken} log-probs are not finite ({what}). Look for NaN weights, or for a token that one side's "
            "truncation forbids.",
            figures,
        )
    if zeros:
        return Verdict(
            "fail",
            f"The engine reports log-prob 0.0 for {zeros} tokens that the trainer finds uncertain ({what}). Its "
            "log-probs are not those of the sampled tokens: known with seeded sampling, processed log-probs and a "
            "drafter together; set drafter.method=off or another vLLM version.",
            figures,
        )
    if gap.mean() > breach:
        return Verdict(
            "fail",
            f"The engine and the trainer disagree on the same tokens ({what}; limit {breach:g}). The engine holds "
            "other weights (a refit that failed), or another temperature or truncation.",
            figures,
        )
    if gap.mean() > warn:
        return Verdict(
            "warn",
            f"The engine and the trainer drift apart ({what}; expected below {warn:g}). Harmless rounding in low "
            "precision, or the first sign of stale weights: compare with engine.dtype=fp32.",
            figures,
        )
    return Verdict("pass", f"The engine's log-probs are the trainer's ({what}).", figures)


def chi_square(counts: NDArray[np.integer], probs: Probs) -> float:
    """Pearson's statistic of counts [B] against probs [B] (all positive)."""
    expected = counts.sum() * probs
    return float(((counts - expected) ** 2 / expected).sum())


def distance(law: Probs, probs: Probs) -> float:
    """The chi-square distance sum (law - probs)^2 / probs; n times it is the noncentrality at n samples."""
    return float(((law - probs) ** 2 / probs).sum())


def tempered(probs: Probs, temperature: float) -> Probs:
    """[V] the law at a relative temperature: probs^(1/temperature), normalised."""
    law = np.power(np.asarray(probs, np.float64), 1.0 / temperature)
    return np.asarray(law / law.sum(), dtype=np.float64)


def samples_needed(alternative: Probs, probs: Probs, *, power: float = 0.99, level: float = LEVEL) -> int:
    """Samples at which the chi-square over bins `probs` [B] tells `alternative` [B] from it with this power."""
    effect, freedom = distance(alternative, probs), len(probs) - 1
    if effect <= 0:
        raise ValueError("the alternative is the law itself: no number of samples can tell them apart")
    limit, low, high = critical_value(freedom, level), 0, 1
    while survival(limit, freedom, high * effect) < power:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if survival(limit, freedom, middle * effect) >= power else (middle, high)
    return high


def critical_value(freedom: int, level: float = LEVEL, noncentrality: float = 0.0) -> float:
    """The value that a (noncentral) chi-square variable exceeds with probability `level`."""
    low, high = 0.0, float(freedom + noncentrality + 10)
    while survival(high, freedom, noncentrality) > level:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if survival(middle, freedom, noncentrality) > level else (low, middle)
    return high


def survival(x: float, freedom: int, noncentrality: float = 0.0) -> float:
    """P(X > x) of a (noncentral) chi-square variable: a Poisson(noncentrality / 2) mixture of central ones."""
    if x <= 0:
        return 1.0
    if noncentrality == 0:
        return _upper_gamma(freedom / 2, x / 2)
    if x < freedom + noncentrality - 10 * math.sqrt(2 * (freedom + 2 * noncentrality)):
        return 1.0
    mean = noncentrality / 2
    spread = 10 * math.sqrt(mean) + 20
    terms = range(max(0, int(mean - spread)), int(mean + spread) + 1)
    weights = [math.exp(j * math.log(mean) - mean - math.lgamma(j + 1)) for j in terms]
    return min(1.0, sum(w * _upper_gamma(freedom / 2 + j, x / 2) for j, w in zip(terms, weights, strict=True)))


def _upper_gamma(a: float, x: float) -> float:
    """The regularised upper incomplete gamma function Q(a, x): series below a + 1, continued fraction above."""
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1.0 / a
        n = a
        while term > total * 1e-16:
            n += 1
            term *= x / n
            total += term
        return 1.0 - front * total
    tiny = 1e-300
    b = x + 1 - a
    c, d = 1 / tiny, 1 / b
    value = d
    for i in range(1, 10_000):
        an = i * (a - i)
        b += 2
        d = 1 / (an * d + b or tiny)
        c = b + an / c or tiny
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * value
