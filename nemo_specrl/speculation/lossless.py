"""The lossless gate's statistics: Pearson's chi-square with its level and power, and whether an engine's log-probs mean
what they say.

Pure: counts and log-probs in, figures and verdicts out. A verdict's text says in words what is wrong and what to do.
Whether an engine samples from the policy is `transform`'s question. Ours.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, chdtri, chndtr

from nemo_specrl.contracts.verdict import Verdict

Probs: TypeAlias = NDArray[np.float64]
LEVEL = 1e-3
"""Probability that a sound engine fails the chi-square."""


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


def critical_value(freedom: int, level: float = LEVEL) -> float:
    """The value that a chi-square variable exceeds with probability `level`."""
    return float(chdtri(freedom, level))


def survival(x: float, freedom: int, noncentrality: float = 0.0) -> float:
    """P(X > x) of a (noncentral) chi-square variable."""
    return float(1.0 - chndtr(x, freedom, noncentrality) if noncentrality else chdtrc(freedom, x))
