"""What a check says, in words and figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a check."""

    status: Literal["pass", "warn", "fail"]
    text: str
    """One paragraph for a person: what was found and, unless it passed, what to do."""
    figures: dict[str, float]
    """The numbers behind it, for `gate/*`."""

    @property
    def passed(self) -> bool:
        return self.status != "fail"
