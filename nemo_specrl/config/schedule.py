"""How much drafting at how many active requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScheduleConfig:
    """One policy for the number of draft tokens."""

    name: str = "fixed"
    """`fixed`: always drafter.num_draft_tokens."""
