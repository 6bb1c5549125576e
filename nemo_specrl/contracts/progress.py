"""Whom long work tells what it is doing."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A terminal, a log, or nobody."""

    def phase(self, name: str, total: int | None = None) -> None:
        """What is being done now; `total` items of it, where they can be counted."""
        ...

    def advance_to(self, completed: int) -> None:
        """So many items of the phase are done."""
        ...

    def say(self, text: str) -> None:
        """One line that stays."""
        ...
