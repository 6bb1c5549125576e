"""What earlier rollouts of a prompt say about its next tokens."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_specrl.types import Rollout


class HistoryIndex:
    """Being written."""

    def __init__(self, window: int = 2) -> None:
        self.window = window

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Being written."""
