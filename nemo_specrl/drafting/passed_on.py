"""Methods of vLLM's speculative_config that we pass on as they are: suffix, eagle3, draft_model, ..."""

from __future__ import annotations

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.drafting.base import BaseDrafter

_NO_WEIGHTS = ("ngram_gpu", "suffix", "custom_class")
"""Methods without weights of their own. An allowlist: new methods with weights appear."""


class PassedOn(BaseDrafter):
    """drafter.speculative_config says the rest."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.follows = config.method in _NO_WEIGHTS  # type: ignore[misc]  # the method decides, not the class

    def check(self) -> None:
        """As for all, and what vLLM has no schedule for."""
        super().check()
        if self.name == "suffix" and "num_speculative_tokens_per_batch_size" in self.config.speculative_config:
            raise ValueError("drafter=suffix: vLLM has no num_speculative_tokens_per_batch_size for it; remove the key")
