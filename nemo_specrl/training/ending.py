"""How a tracked run ends."""

from __future__ import annotations

from nemo_specrl.tracking import Tracker


class Ending:
    """Ends the tracked run with what really happened: FINISHED, FAILED (an exception) or KILLED (Ctrl-C, a stop)."""

    def __init__(self) -> None:
        self.tracker: Tracker | None = None
        self.interrupted = False
        """Set when the run stopped early and is to be continued: its status is KILLED until it is."""

    def __enter__(self) -> Ending:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        killed = self.interrupted if kind is None else issubclass(kind, KeyboardInterrupt | SystemExit)
        if self.tracker is not None:
            self.tracker.close("KILLED" if killed else "FINISHED" if kind is None else "FAILED")
