"""The lossless gate: does the engine sample from the policy?"""

from __future__ import annotations

from dataclasses import dataclass

from nemo_specrl.config.bounds import bounded


@dataclass(frozen=True)
class GateConfig:
    """Runs before every training on the live engine, and as a canary in between."""

    enabled: bool = True
    """Run the gate before the first step; turning it off is stamped on the run."""
    samples: int = bounded(320, at_least=32)
    """Short samples that are drawn."""
    tokens_per_sample: int = bounded(8, at_least=1)
    """Tokens of each; with a drafter they should span several drafts."""
    canary_every: int = bounded(10, at_least=0)
    """Steps between log-prob canaries (engine against trainer on the same fresh tokens); 0 = never."""
    logprob_warn: float = bounded(0.05, at_least=0)
    """Mean absolute difference of engine and trainer log-probs that is worth a warning, nats (bf16 is near 0.01)."""
    logprob_breach: float = bounded(0.2, above=0)
    """... and that stops the run, with a checkpoint."""
