"""Attention of a head that is applied to its own output, as it is served.

The engine's cache holds, below position t + d - 1 where the d-th draft token is computed, what the head made of the
policy's own hidden states up to t, and above that what it made of its own. So at depth d the query that started at t
sees the first pass's keys up to t, and of each later pass the one key that started at t. Ours; the same pattern as
EAGLE-3's training-time test (arXiv 2503.01840). Shapes: S positions, B rows, D head size.
"""

from __future__ import annotations

from typing import Any

import torch

from nemo_specrl.policy.megatron.attention import FusedCausalAttention


class RecurrentAttention(FusedCausalAttention):
    """Core attention that remembers the keys and values of earlier depths until `start` is called."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start()

    def start(self) -> None:
        """The next forward is depth 1 of another batch."""
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **unused: Any,
    ) -> torch.Tensor:
        """query [S, B, heads, D], key and value [S, B, groups, D] -> [S, B, heads * D], indexed by where they began."""
        self._keys.append(key)
        self._values.append(value)
        depth = len(self._keys)
        if depth == 1:
            return super().forward(query, key, value, attention_mask, **unused)
        s = len(query)
        own = torch.eye(s, dtype=torch.bool, device=query.device)
        visible = torch.cat([own.new_ones(s, s).tril(), own.repeat(1, depth - 1)], dim=1)
        return self._attend(query, torch.cat(self._keys), torch.cat(self._values), visible)
