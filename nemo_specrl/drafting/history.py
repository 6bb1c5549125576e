"""Earlier rollouts of the same prompt say what comes next: a proposer of ours inside vLLM (DAS, arXiv 2511.13841; SRT,
2601.09083; RhymeRL, 2508.18588)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_specrl.drafting.base import BaseDrafter

PROPOSER = "nemo_specrl.rollout.vllm.history_proposer.HistoryProposer"
_EXCLUSIVE = "drafters exclude one another"


class History(BaseDrafter):
    """One-hot drafts, exact whatever they are. The index lives in the engine's process, which is shown all rollouts."""

    engine_learns = True
    clashes = {"model": _EXCLUSIVE, "num_speculative_tokens_per_batch_size": _EXCLUSIVE}  # noqa: RUF012

    @property
    def window(self) -> int:
        """drafter.window."""
        return self.config.window

    def vllm_keys(self, served: Mapping[str, Any]) -> dict[str, Any]:
        """vLLM builds the proposer from its class path alone."""
        return {"method": "custom_class", "model": PROPOSER}
