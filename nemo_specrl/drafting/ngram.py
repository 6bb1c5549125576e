"""vLLM's prompt lookup: the continuation of the longest suffix that occurred before in the same request."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nemo_specrl.contracts.drafter import Drafter
from nemo_specrl.drafting.base import BaseDrafter
from nemo_specrl.drafting.off import Off

log = logging.getLogger(__name__)
CPU_SLOTS = 8
"""drafter.max_slots where it is null and vLLM runs on a CPU."""


class Ngram(BaseDrafter):
    """It drafts whenever a suffix matches, so a full batch had better do without it (docs/exactness.md)."""

    def fits(self, slots: int, *, cpu: bool) -> Drafter:
        """Off where the engine has more slots than drafter.max_slots."""
        limit = (CPU_SLOTS if cpu else 0) if self.config.max_slots is None else self.config.max_slots
        if not 0 < limit < slots:
            return self
        log.warning(
            "drafter=%s is off: engine.max_num_seqs=%d slots are more than drafter.max_slots=%d",
            self.name,
            slots,
            limit,
        )
        return Off(replace(self.config, method="off", speculative_config={}))

    def vllm_keys(self, served: Mapping[str, Any]) -> dict[str, Any]:
        """Suffixes of 2 to 5 tokens."""
        return {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
