"""How much drafting at how many active requests."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_specrl.config.bounds import bounded


@dataclass(frozen=True)
class ScheduleConfig:
    """One policy for the number of draft tokens."""

    name: str = bounded("fixed", choices=("fixed",))
    """`fixed`: always drafter.num_draft_tokens."""
