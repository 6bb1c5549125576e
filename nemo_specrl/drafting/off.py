"""No drafting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_specrl.drafting.base import BaseDrafter


class Off(BaseDrafter):
    """The engine decodes one token a step."""

    drafts = False

    def check(self) -> None:
        """ValueError for keys that would have no effect."""
        if extra := self.config.speculative_config:
            raise ValueError(
                f"drafter=off with drafter.speculative_config={extra}: choose a drafter or drop these keys"
            )

    def speculative_config(self, served: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """None: no speculation."""
        return None
