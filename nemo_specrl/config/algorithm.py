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
ALGORITHMS |= dict.fromkeys(("dr_grpo", "rloo", "reinforce_pp", "gspo", "cispo"), ALGORITHMS["grpo"])
"""algorithm.name -> its facts. A new algorithm is one line here and one class (contracts/algorithm.py). GRPO's
variants are settings of it (conf/algorithm), and take its lenience (ours)."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """GRPO (arXiv 2402.03300) and its variants are settings of one objective; the group `algorithm` has them by name:
    DAPO (2503.14476), Dr. GRPO (2503.20783), RLOO (2402.14740), REINFORCE++ (2501.03262), GSPO (2507.18071), CISPO
    (2506.13585)."""

    name: str = bounded("grpo", choices=ALGORITHMS)
    """What it is called; also chooses the default lenience of SPEC-RL (e^0.15 for `dapo`, e^0.5 otherwise)."""
    group_size: int = bounded(8, at_least=1)
    """Rollouts per prompt, G; 1 with `baseline=batch` only."""
    prompts_per_step: int = bounded(8, at_least=1)
    """Prompts per step; a step has prompts_per_step * group_size rollouts."""
    updates_per_step: int = bounded(1, at_least=1)
    """Optimizer updates per step: the rollouts are split into so many mini-batches of whole groups."""
    clip_low: float = bounded(0.2, above=0, at_most=1)
    """The probability ratio is clipped below at 1 - clip_low; 1 = not at all."""
    clip_high: float = bounded(0.2, above=0)
    """... and above at 1 + clip_high (DAPO's clip-higher: 0.28)."""
    loss_level: str = bounded("token", choices=("token", "sequence"))
    """`token`: every token of the update weighs the same; `sequence`: every rollout that counts weighs the same,
    whatever its length."""
    ratio: str = bounded("token", choices=("token", "sequence"))
    """What is clipped: each token's ratio, or (GSPO) the `sequence`'s, the geometric mean of its tokens'."""
    surrogate: str = bounded("ppo", choices=("ppo", "cispo"))
    """`ppo`: the smaller of ratio and clipped ratio times advantage; `cispo`: REINFORCE weighted with the clipped
    ratio, so that no token loses its gradient."""
    dual_clip: float | None = bounded(None, above=1)
    """Bound of the ratio where the advantage is negative (dual-clip PPO, arXiv 1912.09729); null = none."""
    baseline: str = bounded("group", choices=("group", "leave_one_out", "batch"))
    """What the reward is compared with: the mean of its `group`, of the group's others (`leave_one_out`, RLOO), or of
    the whole `batch` (REINFORCE++)."""
    normalize_std: bool = True
    """Divide advantages by the standard deviation of the rewards that the baseline is the mean of."""
    kl_coef: float = bounded(0.0, at_least=0)
    """Weight of the k3 KL estimate to the reference (initial) policy; 0 = no reference model is kept."""
    dynamic_sampling: bool = False
    """DAPO: leave groups whose rewards are all equal out of the update."""
    overlong_masking: bool = False
    """DAPO: leave responses that hit the length limit out of the loss."""
    max_behaviour_ratio: float = bounded(2.0, at_least=1)
    """Truncation of the importance weight policy/behaviour of `reuse.correction`, as in decoupled PPO. Of a token, a
    prefix or a sequence, whichever is weighted; a truncated weight is biased again, less the higher the bound."""
