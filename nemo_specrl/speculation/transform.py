"""The probability integral transform: one uniform number per sampled token, whatever its context was.

Order the vocabulary by the policy's probability at that position. The mass of all likelier tokens, plus a random share
of the token's own, is uniform on [0, 1) exactly when the token was drawn from the policy. So tokens of every context
and every speculative position can be pooled into one chi-square over equal bins: it needs no repeated contexts, and a
wrong temperature, truncation or residual bends it. The gate's way of looking at a live engine. Ours; the transform is
Rosenblatt's (1952).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nemo_specrl.contracts.verdict import Verdict
from nemo_specrl.speculation.lossless import LEVEL, chi_square, critical_value, distance, survival
from nemo_specrl.speculation.randomness import uniforms
from nemo_specrl.types import IntArray

if TYPE_CHECKING:
    import torch

BINS = 16
ALTERNATIVE = 1.25
"""The power that is stated is that against the policy at this relative temperature."""
NEEDED_TOKENS = 10 * BINS
"""Fewer tokens than this are no test."""
POWER_EVERY = 8
"""The power is worked out from every 8th row: it takes a sort of the vocabulary, the statistic does not."""


@dataclass(frozen=True, slots=True)
class Transformed:
    """What the gate knows of t consecutive tokens of one row."""

    values: NDArray[np.float64]
    """[t] uniform under the policy; -1 for a token that the policy gives no mass."""
    logprobs: NDArray[np.float64]
    """[t] the policy's log-prob of each token."""
    alternative: NDArray[np.float64]
    """[BINS] expected counts of these tokens under the alternative temperature; zeros on rows that are left out."""


class Transform:
    """A reducer for `Policy.reduce` over rows of sampled tokens; `tokens[i]` [T] are those of row i."""

    def __init__(self, tokens: Sequence[IntArray], *, seed: int, step: int) -> None:
        self.tokens, self.seed, self.step = tokens, seed, step

    def __call__(self, row: int, start: int, logprobs: torch.Tensor) -> Transformed:
        """`logprobs` [t, V] of the sampling law at positions start .. start + t - 1."""
        import torch

        stop = start + len(logprobs)
        y = torch.as_tensor(self.tokens[row][start:stop].astype(np.int64), device=logprobs.device)[:, None]
        log_y = logprobs.gather(1, y)
        probs = logprobs.double().exp()
        likelier = (probs * (logprobs > log_y)).sum(1).cpu().numpy()
        tied = (probs * (logprobs == log_y)).sum(1).cpu().numpy()
        share = uniforms(self.seed, self.step, "gate", row, "thinning", stop)[start:]
        values = np.where(tied > 0, np.minimum(likelier + share * tied, np.nextafter(1.0, 0.0)), -1.0)
        bins = _alternative(probs) if row % POWER_EVERY == 0 else np.zeros(BINS)
        return Transformed(values, log_y[:, 0].double().cpu().numpy(), bins)


def transform_verdict(parts: Sequence[Transformed], *, level: float = LEVEL) -> Verdict:
    """Chi-square of the pooled values against the uniform law over `BINS` equal bins.

    ValueError where there is nothing to test."""
    values = np.concatenate([part.values for part in parts]) if parts else np.zeros(0)
    n = len(values)
    if n < NEEDED_TOKENS:
        raise ValueError(f"the gate has {n} tokens and needs at least {NEEDED_TOKENS}: draw more samples")
    massless = int((values < 0).sum())
    uniform = np.full(BINS, 1.0 / BINS)
    counts = np.bincount((values[values >= 0] * BINS).astype(np.int64), minlength=BINS)
    statistic, limit = chi_square(counts, uniform), critical_value(BINS - 1, level)
    alternative = sum((part.alternative for part in parts), np.zeros(BINS))
    power = survival(limit, BINS - 1, n * distance(alternative / alternative.sum(), uniform))
    figures = {
        "chi_square": statistic,
        "critical": limit,
        "samples": float(n),
        "massless": float(massless),
        "level": level,
        "power": power,
    }
    what = (
        f"{n} sampled tokens: chi-square {statistic:.1f}, critical value {limit:.1f} at {BINS - 1} degrees of freedom "
        f"(error level {level:.1%}; power {power:.1%} against a temperature of x{ALTERNATIVE:g})"
    )
    remedy = (
        "Do not train on these samples. Check that the engine runs with this package's vLLM plugin (VLLM_PLUGINS), "
        "that it holds the policy's current weights, that temperature, top_p and top_k are the same on both sides, "
        "and try again with drafter=off: if that passes, the drafter's verification is at fault"
    )
    if massless:
        text = f"The engine does not sample from the policy: {massless} tokens have probability 0 under it."
        return Verdict("fail", f"{text} {what}. {remedy}.", figures)
    if statistic > limit:
        return Verdict("fail", f"The engine does not sample from the policy. {what}. {remedy}.", figures)
    if power < 0.9:
        return Verdict("warn", f"No deviation was found, but the test is weak: draw more samples. {what}.", figures)
    return Verdict("pass", f"The engine samples from the policy. {what}.", figures)


def _alternative(probs: torch.Tensor) -> NDArray[np.float64]:
    """[BINS] expected counts of tokens of `probs` [t, V] at the alternative temperature."""
    ordered, _ = probs.sort(dim=1, descending=True)
    upper = ordered.cumsum(1)
    tempered = ordered ** (1.0 / ALTERNATIVE)
    return _overlap(upper - ordered, upper, tempered / tempered.sum(1, keepdim=True))


def _overlap(lower: torch.Tensor, upper: torch.Tensor, mass: torch.Tensor) -> NDArray[np.float64]:
    """[BINS] how much of `mass` [t, V], spread evenly over [lower, upper], falls into each bin, summed over all."""
    width = (upper - lower).clamp_min(1e-300)
    out = np.zeros(BINS)
    for b in range(BINS):
        inside = (upper.clamp(max=(b + 1) / BINS) - lower.clamp(min=b / BINS)).clamp_min(0.0)
        out[b] = float((mass * inside / width).sum())
    return out
