"""Causal core attention through torch's fused kernel, where Transformer Engine's is not to be had.

Megatron's own unfused attention builds a [B, heads, S, S] score tensor and a mask, in fp32; the fused kernel neither.
Rows are padded on the right, so the causal mask alone keeps real tokens from seeing padding. Ours.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from nemo_specrl.policy.megatron.batching import unpack


class FusedCausalAttention(torch.nn.Module):
    """Stands where Megatron's DotProductAttention does; takes its constructor's and its forward's arguments."""

    def __init__(self, *, config: Any, softmax_scale: float | None = None, **_unused: Any) -> None:
        super().__init__()
        self.softmax_scale = softmax_scale
        assert config.attention_dropout == 0.0

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **_unused: Any,
    ) -> torch.Tensor:
        """query [S, B, heads, D], key and value [S, B, groups, D] -> [S, B, heads * D].

        `attention_mask`: None, or the [B, S] `MicroBatch.cells` of a packed micro-batch (Megatron's argument carries
        them, since it alone reaches every layer, also where activations are recomputed). Query, key and value are
        [M, 1, ...] then, and so is the result."""
        if attention_mask is None:
            return self._attend(query, key, value)
        padded = self._attend(*(unpack(x, attention_mask) for x in (query, key, value)))
        owned = (attention_mask >= 0).flatten().nonzero()[:, 0]
        return padded.transpose(0, 1).flatten(0, 1).index_select(0, owned).unsqueeze(1)

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same shapes; key and value may be longer where `visible` [S, keys] says what each query sees."""
        s, b, heads, d = query.shape
        repeats = heads // key.shape[2]
        if repeats > 1:
            key, value = (x.repeat_interleave(repeats, dim=2) for x in (key, value))
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, is_causal=visible is None, scale=self.softmax_scale
        )
        return out.permute(2, 0, 1, 3).reshape(s, b, heads * d)
