"""What a verification reads of the whole vocabulary: torch, on the device of the policy's logits.

Everything else in `verifier` works on [t] or [t, K] numbers. Shapes: t positions, V vocabulary, K candidates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float, Int


def at(logprobs: Float[torch.Tensor, "t V"], columns: Int[torch.Tensor, "t C"]) -> Float[torch.Tensor, "t C"]:
    """[t, C] entries of logprobs [t, V] at int64 columns [t, C]."""
    return logprobs.gather(1, columns)


def entropy(logprobs: Float[torch.Tensor, "t V"]) -> Float[torch.Tensor, " t"]:
    """[t] entropy of each law [t, V], nats."""
    import torch

    probs = logprobs.exp()
    torch.special.entr(probs, out=probs)  # in place: one [t, V] temporary instead of two
    return probs.sum(-1)


def top(logprobs: Float[torch.Tensor, "t V"], k: int) -> tuple[Float[torch.Tensor, "t k"], Int[torch.Tensor, "t k"]]:
    """([t, k] values, [t, k] ids) of the k most likely tokens."""
    values, ids = logprobs.topk(k, dim=-1)
    return values, ids


def top_of_law(
    logprobs: Float[torch.Tensor, "t V"],
    k: int,
    scale: Float[torch.Tensor, " t"],
    bump: Float[torch.Tensor, "t K"],
    columns: Int[torch.Tensor, "t K"],
) -> tuple[Float[torch.Tensor, "t k"], Int[torch.Tensor, "t k"]]:
    """As `top`, of the law scale [t] * p + bump [t, K] at columns [t, K]."""
    law = logprobs.exp().mul_(scale[:, None]).scatter_add_(1, columns, bump)
    values, ids = law.topk(k, dim=-1)
    return values.log_(), ids
