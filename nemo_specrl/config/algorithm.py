"""The policy-gradient algorithm."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_specrl.config.bounds import bounded


@dataclass(frozen=True)
class AlgorithmFacts:
    """What must be known of an algorithm before it is loaded."""

    target: str
    """package.module:Class"""
    log_lenience: float
    """SPEC-RL's default ln(ell) for it (arXiv 2509.23232)."""


ALGORITHMS: dict[str, AlgorithmFacts] = {
    "grpo": AlgorithmFacts("nemo_specrl.algorithms.grpo:Grpo", log_lenience=0.5),
    "dapo": AlgorithmFacts("nemo_specrl.algorithms.dapo:Dapo", log_lenience=0.15),
}
"""algorithm.name -> its facts. A new algorithm is one line here and one class (contracts/algorithm.py)."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """GRPO (arXiv 2402.03300) and its DAPO variant (arXiv 2503.14476) are settings of one objective."""

    name: str = bounded("grpo", choices=ALGORITHMS)
    """`grpo` or `dapo`; also chooses the default lenience of SPEC-RL (e^0.5 and e^0.15)."""
    group_size: int = bounded(8, at_least=2)
    """Rollouts per prompt, G."""
    prompts_per_step: int = bounded(8, at_least=1)
    """Prompts per step; a step has prompts_per_step * group_size rollouts."""
    updates_per_step: int = bounded(1, at_least=1)
    """Optimizer updates per step: the rollouts are split into so many mini-batches of whole groups."""
    clip_low: float = bounded(0.2, above=0, below=1)
    """The probability ratio is clipped below at 1 - clip_low."""
    clip_high: float = bounded(0.2, above=0)
    """... and above at 1 + clip_high (DAPO's clip-higher: 0.28)."""
    loss_level: str = bounded("token", choices=("token", "sequence"))
    """`token`: every token weighs the same; `sequence`: every rollout weighs the same."""
    normalize_std: bool = True
    """Divide the group's advantages by their standard deviation."""
    kl_coef: float = bounded(0.0, at_least=0)
    """Weight of the k3 KL estimate to the reference (initial) policy; 0 = no reference model is kept."""
    dynamic_sampling: bool = False
    """DAPO: leave groups whose rewards are all equal out of the update."""
    overlong_masking: bool = False
    """DAPO: leave responses that hit the length limit out of the loss."""
    max_behaviour_ratio: float = bounded(2.0, at_least=1)
    """Truncation of the importance weight policy/behaviour of `reuse.correction`, as in decoupled PPO. Of a token, a
    prefix or a sequence, whichever is weighted; a truncated weight is biased again, less the higher the bound."""
