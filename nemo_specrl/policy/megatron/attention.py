"""Causal core attention through torch's fused kernel, where Transformer Engine's is not to be had.

Megatron's own unfused attention builds a [B, heads, S, S] score tensor and a mask, in fp32; the fused kernel neither.
Rows are padded on the right, so the causal mask alone keeps real tokens from seeing padding. Ours.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


class FusedCausalAttention(torch.nn.Module):
    """Stands where Megatron's DotProductAttention does; takes its constructor's and its forward's arguments."""

    def __init__(self, *, config: Any, softmax_scale: float | None = None, **_unused: Any) -> None:
        super().__init__()
        self.softmax_scale = softmax_scale
        assert config.attention_dropout == 0.0

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: None, **_unused: Any
    ) -> torch.Tensor:
        """query [S, B, heads, D], key and value [S, B, groups, D] -> [S, B, heads * D]."""
        assert attention_mask is None
        s, b, heads, d = query.shape
        repeats = heads // key.shape[2]
        if repeats > 1:
            key, value = (x.repeat_interleave(repeats, dim=2) for x in (key, value))
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.softmax_scale)
        return out.permute(2, 0, 1, 3).reshape(s, b, heads * d)
