"""The clipped policy-gradient loss. B rows, T response tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_specrl.config.algorithm import AlgorithmConfig
from nemo_specrl.contracts.rows import LossBatch, LossFn

if TYPE_CHECKING:
    import torch

_MAX_LOG_RATIO = 20.0  # exp(20) is beyond every clip; it keeps a runaway token's loss finite
_NEAR = 0.1


def policy_loss(config: AlgorithmConfig) -> LossFn:
    """The loss of `config`: a sum of weights * per-token loss, equal for every split of a mini-batch.

    Per token, with ratio r = policy/old, advantage A and importance weight w = min(old/behaviour, max_behaviour_ratio):
    `w * (-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) + kl_coef * k3)`, k3 = ref/policy - 1 - log(ref/policy).
    PPO's clip (arXiv 1707.06347) with DAPO's two bounds (arXiv 2503.14476); w after decoupled PPO (arXiv 2110.00641),
    truncated; it is exactly 1 where no correction is on. k3: GRPO (arXiv 2402.03300, equation 4); it is an
    expectation under the policy as well, and so is weighted too (ours).

    Metrics are weighted means over the mini-batch, once the micro-batches' are added up: `ratio`; `ratio_outside`, the
    share of tokens with r outside [0.9, 1.1] (the mean hides them); `clip_low`, `clip_high`, the shares whose
    gradient the clip removed; `kl_k1`, `kl_k3`, two estimates of KL(old || policy); `behaviour_ratio`, mean w, and
    `behaviour_capped`, the share where it was truncated; `ref_kl`, mean k3, where there is a reference.
    """

    def loss_fn(logprobs: torch.Tensor, batch: LossBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        import torch

        counted = batch.weights > 0

        def difference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            # what lies in the padding may be anything, and 0 * inf is NaN, also in the gradient
            return torch.where(counted, a - b, 0.0).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)

        def mean(values: torch.Tensor) -> torch.Tensor:
            return (batch.weights * values).sum().detach()

        low, high = 1 - config.clip_low, 1 + config.clip_high
        advantages = torch.where(counted, batch.advantages, 0.0)
        log_ratio = difference(logprobs, batch.old_logprobs)
        ratio = log_ratio.exp()
        importance = difference(batch.old_logprobs, batch.behaviour_logprobs).exp()
        weight = importance.clamp(max=config.max_behaviour_ratio).detach()

        token_loss = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
        metrics = {
            "ratio": mean(ratio),
            "ratio_outside": mean(((ratio - 1).abs() > _NEAR).float()),
            "clip_low": mean(((ratio < low) & (advantages < 0)).float()),
            "clip_high": mean(((ratio > high) & (advantages > 0)).float()),
            "kl_k1": mean(-log_ratio),
            "kl_k3": mean(ratio - 1 - log_ratio),
            "behaviour_ratio": mean(weight),
            "behaviour_capped": mean((importance > config.max_behaviour_ratio).float()),
        }
        if batch.ref_logprobs is not None:
            log_ref = difference(batch.ref_logprobs, logprobs)
            k3 = log_ref.exp() - 1 - log_ref
            token_loss = token_loss + config.kl_coef * k3
            metrics["ref_kl"] = mean(k3)
        elif config.kl_coef > 0:
            raise ValueError("algorithm.kl_coef > 0 needs the reference policy's log-probs in every row.")
        return (batch.weights * weight * token_loss).sum(), metrics

    return loss_fn
