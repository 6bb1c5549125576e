"""Reuse of earlier rollouts as speculative prefixes, before the engine (SPEC-RL, arXiv 2509.23232, and ours)."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_specrl.config.bounds import bounded
from nemo_specrl.config.rules import RULES

CORRECTIONS = ("none", "token", "prefix", "sequence")
"""How the loss weighs tokens that were not drawn from the policy."""


@dataclass(frozen=True)
class ReuseConfig:
    """Which acceptance rule, how far it may go, and what is remembered."""

    rule: str = bounded("off", choices=RULES)
    """`off`; `lenient` (SPEC-RL as published; biased); `exact`, `block`, `one_hot` (the policy's law, proved);
    `full`, `random` (the paper's ablation baselines; biased)."""
    log_lenience: float | None = bounded(None, at_least=0)
    """Natural log of the lenience ell; null = the paper's default for the algorithm (GRPO 0.5, DAPO 0.15).
    Only for `lenient`."""
    correction: str = bounded("none", choices=CORRECTIONS)
    """What the loss makes of the law mu that leniently reused tokens really have (ours). Each token's loss is weighted
    with `token`: its own p/mu; `prefix`: the product of p/mu up to it; `sequence`: the product over the whole response,
    which alone leaves the gradient without bias, at the highest variance. `none`: by 1, SPEC-RL as published. See
    `algorithm.max_behaviour_ratio`, which truncates the weight."""
    verifier: str = bounded("policy", choices=("policy", "engine"))
    """Who computes p on the cached tokens: `policy` (one forward of the trainer; serves the loss as well) or
    `engine` (prompt log-probs; temperature 1 and no truncation only)."""
    topk: int = bounded(20, at_least=1)
    """Candidates stored per position for `exact` and `block`, and for `lenient` with a correction."""
    max_age: int = bounded(2, at_least=1)
    """Drop cached rollouts older than so many epochs."""
    delay: int = bounded(1, at_least=1)
    """Draft from the rollouts of so many epochs ago (the paper's ablation: 2)."""
    cache_mib: int = bounded(4096, at_least=1)
    """Bound of the cache in MiB; the oldest rollouts are dropped first. It should hold two epochs of rollouts:
    12 bytes a token, with candidates stored 8 * topk more; `cache/dropped` counts what did not fit."""
