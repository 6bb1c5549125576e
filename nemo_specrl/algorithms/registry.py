"""The named algorithms: each is a set of settings of one objective. A new one is one line."""

from __future__ import annotations

import difflib

from nemo_specrl.config.algorithm import AlgorithmConfig

ALGORITHMS: dict[str, AlgorithmConfig] = {
    # arXiv 2402.03300, without its KL term, as most use it today
    "grpo": AlgorithmConfig(name="grpo"),
    # arXiv 2503.14476: clip-higher, dynamic sampling, token-level loss, overlong filtering, no KL
    "dapo": AlgorithmConfig(name="dapo", clip_high=0.28, dynamic_sampling=True, overlong_masking=True),
}

LOSS_LEVELS = ("token", "sequence")


def check_algorithm(config: AlgorithmConfig) -> None:
    """ValueError, naming the field, for settings that cannot work."""
    if config.name not in ALGORITHMS:
        near = difflib.get_close_matches(config.name, ALGORITHMS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"algorithm.name={config.name!r}: {hint}There are {', '.join(ALGORITHMS)}.")
    if config.loss_level not in LOSS_LEVELS:
        raise ValueError(f"algorithm.loss_level={config.loss_level!r} must be one of {', '.join(LOSS_LEVELS)}.")
    if config.group_size < 2:
        raise ValueError(f"algorithm.group_size={config.group_size}: a group needs 2 rollouts to be its own baseline.")
    for name in ("prompts_per_step", "updates_per_step"):
        if getattr(config, name) < 1:
            raise ValueError(f"algorithm.{name}={getattr(config, name)} must be positive.")
    if config.updates_per_step > config.prompts_per_step:
        raise ValueError(
            f"algorithm.updates_per_step={config.updates_per_step} exceeds prompts_per_step="
            f"{config.prompts_per_step}: a mini-batch has at least one whole group."
        )
    if not 0 < config.clip_low < 1:
        raise ValueError(f"algorithm.clip_low={config.clip_low} must lie between 0 and 1.")
    if config.clip_high <= 0:
        raise ValueError(f"algorithm.clip_high={config.clip_high} must be positive.")
    if config.kl_coef < 0:
        raise ValueError(f"algorithm.kl_coef={config.kl_coef} must not be negative.")
    if config.max_behaviour_ratio < 1:
        raise ValueError(
            f"algorithm.max_behaviour_ratio={config.max_behaviour_ratio} is below 1 and would scale down every token, "
            f"corrected or not."
        )
