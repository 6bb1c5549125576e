"""Drafting inside the engine: a few tokens a decoding step, verified losslessly by vLLM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nemo_specrl.config.bounds import bounded
from nemo_specrl.config.head import HeadConfig


@dataclass(frozen=True)
class DrafterConfig:
    """Which drafter, how many tokens, and the allowlist's key."""

    method: str = "off"
    """`off`, `ngram`, `history` (the per-prompt index of earlier rollouts), `mtp` (a head that learns from the
    policy), or any method of vLLM's speculative_config."""
    num_draft_tokens: int = bounded(4, at_least=1)
    """Most draft tokens per decoding step, k."""
    window: int = bounded(2, at_least=1)
    """history: epochs of rollouts that the index remembers."""
    min_match: int = bounded(2, at_least=1)
    """history: shortest matched suffix, in tokens."""
    min_probability: float = bounded(0.3, at_least=0, at_most=1)
    """history: a draft ends where the calibrated probability that all of it is accepted falls below a bar. This is the
    bar at one active request; it rises in a straight line to 1 at max_active."""
    min_gain: float = 0.1
    """history: a step carries drafts only where they should gain so many tokens per active request. A step with drafts
    costs more than one without: an estimated 10 to 45 % on a CPU (docs/exactness.md)."""
    max_active: int = bounded(32, at_least=1)
    """history: draft only while at most so many requests are active (a rejected draft costs more, the larger
    the batch)."""
    max_slots: int | None = bounded(None, at_least=0)
    """ngram: with more engine slots (engine.max_num_seqs) than this the engine starts without it: it drafts whenever a
    suffix matches, and a rejected draft costs the more, the fuller the batch (docs/exactness.md). 0 = no limit;
    null = 8 on a CPU, no limit on a GPU."""
    rejection_sample_method: str = "standard"
    """vLLM's verifier: `standard` and `block` are lossless; anything else needs allow_lossy."""
    allow_lossy: bool = False
    """Permit a lossy verifier. Stamped on the run."""
    frozen: bool = False
    """Permit a method whose own weights no weight update reaches (eagle3, draft_model, ...): it is never refreshed."""
    speculative_config: dict[str, Any] = field(default_factory=dict)
    """Further keys of vLLM's speculative_config, passed through."""
    head: HeadConfig = field(default_factory=HeadConfig)
    """mtp: the draft head."""
