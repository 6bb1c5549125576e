"""`drafter=history` inside vLLM: a `custom_class` proposer (V1 model runner, vLLM 0.32).

The contract, which vLLM calls experimental: constructed with the VllmConfig; `load_model` is called once; after each
step `propose` gets, per batch row, the tokens that the step has sampled (none for a row in the middle of its prefill),
the number of tokens that it now has, and the matrix of all tokens. There are no request ids, and rows move when
requests end. That is no loss here: rows are recognised by their prompts at every step, and nothing is kept per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nemo_specrl.rollout.vllm import drafters
from nemo_specrl.speculation.history import HistoryIndex
from nemo_specrl.speculation.history_draft import HistoryDrafter
from nemo_specrl.types import IntArray

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class HistoryProposer:
    """Proposes what earlier rollouts of the same prompt say comes next."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self._k = int(vllm_config.speculative_config.num_speculative_tokens)
        self._max_num_seqs = int(vllm_config.scheduler_config.max_num_seqs)
        self._index: HistoryIndex | None = None
        self._drafter = self._current()

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """There is no model to load."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: IntArray,
        token_ids_cpu: IntArray,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft tokens for each row, at most `num_speculative_tokens`; mostly fewer, often none.

        A batch that is not full has no requests waiting behind it, so its stragglers decide when the step is done.
        """
        fresh = np.fromiter(map(len, sampled_token_ids), np.int64, len(sampled_token_ids))
        tail = len(fresh) < self._max_num_seqs
        return self._current().propose(token_ids_cpu, num_tokens_no_spec, fresh, tail=tail)

    def _current(self) -> HistoryDrafter:
        """The drafter of this process's configuration, built anew when that has changed."""
        config, index = drafters.active()
        if index is not self._index:
            self._index = index
            self._drafter = HistoryDrafter(replace(config, num_draft_tokens=self._k), index)
        return self._drafter
