"""The policy-gradient algorithm."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AlgorithmConfig:
    """GRPO (arXiv 2402.03300) and its DAPO variant (arXiv 2503.14476) are settings of one objective."""

    name: str = "grpo"
    """`grpo` or `dapo`; also chooses the default lenience of SPEC-RL (e^0.5 and e^0.15)."""
    group_size: int = 8
    """Rollouts per prompt, G."""
    prompts_per_step: int = 8
    """Prompts per step; a step has prompts_per_step * group_size rollouts."""
    updates_per_step: int = 1
    """Optimizer updates per step: the rollouts are split into so many mini-batches of whole groups."""
    clip_low: float = 0.2
    """The probability ratio is clipped below at 1 - clip_low."""
    clip_high: float = 0.2
    """... and above at 1 + clip_high (DAPO's clip-higher: 0.28)."""
    loss_level: str = "token"
    """`token`: every token weighs the same; `sequence`: every rollout weighs the same."""
    normalize_std: bool = True
    """Divide the group's advantages by their standard deviation."""
    kl_coef: float = 0.0
    """Weight of the k3 KL estimate to the reference (initial) policy; 0 = no reference model is kept."""
    dynamic_sampling: bool = False
    """DAPO: leave groups whose rewards are all equal out of the update."""
    overlong_masking: bool = False
    """DAPO: leave responses that hit the length limit out of the loss."""
    max_behaviour_ratio: float = 2.0
    """Truncation of the importance weight policy/behaviour where a behaviour law is corrected for
    (`reuse.correction=behaviour`), as in decoupled PPO."""
