"""The lossless gate: does the engine sample from the policy?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GateConfig:
    """Runs before every training on the live engine, and as a canary in between."""

    enabled: bool = True
    """Run the gate before the first step; turning it off is stamped on the run."""
    samples: int = 320
    """Short samples that are drawn."""
    tokens_per_sample: int = 8
    """Tokens of each; with a drafter they should span several drafts."""
    canary_every: int = 10
    """Steps between log-prob canaries (engine against trainer on the same fresh tokens); 0 = never."""
    logprob_warn: float = 0.05
    """Mean absolute difference of engine and trainer log-probs that is worth a warning, nats (bf16 is near 0.01)."""
    logprob_breach: float = 0.2
    """... and that stops the run, with a checkpoint."""
