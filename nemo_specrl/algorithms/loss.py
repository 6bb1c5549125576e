"""The clipped policy-gradient loss. B rows, T response tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_specrl.config.algorithm import AlgorithmConfig
from nemo_specrl.config.reuse import CORRECTIONS
from nemo_specrl.contracts.rows import LossBatch, LossFn

if TYPE_CHECKING:
    import torch

_MAX_LOG_RATIO = 20.0  # exp(20) is beyond every clip; it keeps a runaway token's loss finite
_NEAR = 0.1


def policy_loss(config: AlgorithmConfig, correction: str = "token") -> LossFn:
    """The loss of `config`: a sum of weights * per-token loss, equal for every split of a mini-batch.

    Per token, with ratio r = policy/old, advantage A and importance weight w = min(W, max_behaviour_ratio):
    `w * (-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) + kl_coef * k3)`, k3 = ref/policy - 1 - log(ref/policy).
    PPO's clip (arXiv 1707.06347) with DAPO's two bounds (arXiv 2503.14476). k3: GRPO (arXiv 2402.03300, equation 4); it
    is an expectation under the policy as well, and so is weighted too (ours).

    `ratio=sequence`: r is the geometric mean of the row's token ratios (GSPO, arXiv 2507.18071). `surrogate=cispo`:
    `-stop_gradient(clip(r)) A log policy` in place of the minimum (CISPO, arXiv 2506.13585). `dual_clip=c`: where
    A < 0, the minimum is no less than c A (arXiv 1912.09729).

    W by `correction` (reuse.correction), with w_s = old/behaviour of the row's token s: `token`: w_t, as decoupled PPO
    has it (arXiv 2110.00641); `prefix`: the product of w_s for s <= t; `sequence`: that over the whole row. A gradient
    term A d log policy(t) depends on the tokens before t (through its own law) and after it (through A), so that only
    `sequence` leaves it unbiased; `prefix` forgets what comes after, `token` what came before, too. `none`: 1.

    Metrics are weighted means over the mini-batch, once the micro-batches' are added up: `ratio`; `ratio_outside`, the
    share of tokens with r outside [0.9, 1.1] (the mean hides them); `clip_low`, `clip_high`, the shares whose gradient
    the clip removed (cispo: bounded); `kl_k1`, `kl_k3`, two estimates of KL(old || policy); `behaviour_ratio`, mean w,
    and `behaviour_capped`, the share where it was truncated; `behaviour_square`, mean w^2: behaviour_ratio^2 of it is
    the share of the sample that the weights leave (Kish); `ref_kl`, mean k3, where there is a reference.

    ValueError for an unknown correction.
    """
    if correction not in CORRECTIONS:
        raise ValueError(f"unknown reuse.correction {correction!r}; choose one of {', '.join(CORRECTIONS)}")

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
        if config.ratio == "sequence":
            tokens = counted.sum(dim=1, keepdim=True).clamp(min=1)
            log_ratio = torch.where(counted, log_ratio.sum(dim=1, keepdim=True) / tokens, 0.0)
        ratio = log_ratio.exp()
        importance = _importance(difference(batch.old_logprobs, batch.behaviour_logprobs), correction)
        weight = importance.clamp(max=config.max_behaviour_ratio).detach()

        bounded = ratio.clamp(low, high)
        cispo = config.surrogate == "cispo"
        if cispo:
            token_loss = -bounded.detach() * advantages * torch.where(counted, logprobs, 0.0)
        else:
            gain = torch.minimum(ratio * advantages, bounded * advantages)
            if config.dual_clip is not None:
                gain = torch.where(advantages < 0, torch.maximum(gain, config.dual_clip * advantages), gain)
            token_loss = -gain
        metrics = {
            "ratio": mean(ratio),
            "ratio_outside": mean(((ratio - 1).abs() > _NEAR).float()),
            "clip_low": mean(((ratio < low) & (cispo | (advantages < 0))).float()),
            "clip_high": mean(((ratio > high) & (cispo | (advantages > 0))).float()),
            "kl_k1": mean(-log_ratio),
            "kl_k3": mean(ratio - 1 - log_ratio),
            "behaviour_ratio": mean(weight),
            "behaviour_square": mean(weight.square()),
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


def _importance(log_ratios: torch.Tensor, correction: str) -> torch.Tensor:
    """[B, T] log(old/behaviour) of each token, 0 where none counts -> [B, T] the weight W of each token's loss."""
    import torch

    if correction == "none":
        log_ratios = torch.zeros_like(log_ratios)
    elif correction == "prefix":
        log_ratios = log_ratios.cumsum(dim=1)
    elif correction == "sequence":
        log_ratios = log_ratios.sum(dim=1, keepdim=True).expand_as(log_ratios)
    return log_ratios.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
