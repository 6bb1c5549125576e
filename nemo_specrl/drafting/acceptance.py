"""Acceptance of drafts: the alarm when a head's falls, and the split by reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nemo_specrl.contracts.engine import SpecCounters
from nemo_specrl.contracts.sample import Sample
from nemo_specrl.contracts.verdict import Verdict

MIN_DRAFTS = 32
"""Fewer drafts than this in a step say nothing."""
CAUSES = (
    "Likely causes: the head is stale (drafter.head.every=0, or it learns slower than the policy moves: raise "
    "drafter.head.lr); it was never trained (run experiment=draft_warmup first); its weights have other names or "
    "belong to another model (drafter.head.source); contexts longer than it was trained on; a high temperature or "
    "policy entropy, which bounds what any head can foresee (rollout/entropy). To go on without: drafter=off, or "
    "drafter.head.acceptance_floor=0"
)


@dataclass
class AcceptanceFloor:
    """Acceptance at the first draft position, step after step, against a floor."""

    floor: float
    """Share of drafts; 0 = no alarm."""
    patience: int
    """Fail at so many steps in a row below the floor; 0 = warn only."""
    below: int = 0
    """Steps in a row, up to now."""

    def verdict(self, spec: SpecCounters) -> Verdict:
        """What one step's counters say. A step with hardly any drafts neither counts nor clears."""
        if not self.floor or spec.drafts < MIN_DRAFTS:
            return Verdict("pass", "too few drafts to judge the draft head", {})
        first = spec.accepted_per_position[0] if spec.accepted_per_position else 0
        share = first / spec.drafts
        self.below = self.below + 1 if share < self.floor else 0
        text = f"the draft head's first token was accepted in {share:.1%} of {spec.drafts} drafts"
        if not self.below:
            return Verdict("pass", f"{text}.", {})
        text += f", below drafter.head.acceptance_floor={self.floor:g} for {self.below} step(s) in a row. {CAUSES}."
        return Verdict("fail" if self.patience and self.below >= self.patience else "warn", text, {})


def acceptance_by_reward(samples: Sequence[Sample]) -> dict[str, float]:
    """Raw counters `spec/{drafts,drafted,accepted}_{rewarded,unrewarded}` over samples with a positive reward and with
    none; those whose reward is not valid, or whose drafts were not counted, are left out."""
    metrics: dict[str, float] = {}
    for name, rewarded in (("rewarded", True), ("unrewarded", False)):
        chosen = [s.spec for s in samples if s.spec and s.score.valid and (s.score.value > 0) == rewarded]
        total = sum(chosen, SpecCounters())
        if total.drafts:
            counts = {"drafts": total.drafts, "drafted": total.drafted, "accepted": total.accepted}
            metrics |= {f"spec/{what}_{name}": float(count) for what, count in counts.items()}
    return metrics
