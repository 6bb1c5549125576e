"""What a run's checks have to say goes to the terminal and to the tracker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nemo_specrl.contracts.progress import Progress
from nemo_specrl.contracts.verdict import Verdict
from nemo_specrl.tracking import Tracker


@dataclass(frozen=True)
class GateReport:
    """Warnings are said, the gate's whole outcome is recorded; failures are the gate's to raise."""

    tracker: Tracker | None
    progress: Progress

    def __call__(self, verdicts: Sequence[Verdict], step: int) -> None:
        """All verdicts of one occasion."""
        if self.tracker is not None and len(verdicts) > 1:
            self.tracker.tags(
                {"gate": ", ".join(v.status for v in verdicts), "gate.verdict": "; ".join(v.text for v in verdicts)}
            )
        for verdict in verdicts:
            if verdict.status == "warn":
                self.progress.say(f"[yellow]gate, step {step}: {verdict.text}[/]")
