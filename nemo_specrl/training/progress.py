"""What the terminal shows while a run works: one live line, and one printed line per step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from nemo_specrl.training.plan import StepPlan


class Progress:
    """Says what is being done. On a terminal it is live; in a log file only the step lines and phases are printed."""

    def __init__(self, *, enabled: bool, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True, quiet=not enabled)
        self._live = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not enabled or not self.console.is_terminal,
        )
        self._task = self._live.add_task("starting", total=None)
        self._prefix = ""
        self._started = time.monotonic()

    def __enter__(self) -> Progress:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def phase(self, name: str, total: int | None = None) -> None:
        """What is being done now; `total` items of it, where they can be counted."""
        self._live.reset(self._task, description=f"{self._prefix}{name}", total=total, completed=0)
        if not self._prefix:  # start-up phases take a while each: say them in a log file, too
            self.console.print(f"[dim]{time.monotonic() - self._started:7.1f} s  {name}[/dim]")

    def advance_to(self, completed: int) -> None:
        """So many items of the phase are done."""
        self._live.update(self._task, completed=completed)

    @contextmanager
    def step(self, plan: StepPlan, total: int) -> Iterator[None]:
        """Everything inside belongs to this step."""
        self._prefix = f"step {plan.step}/{total} epoch {plan.epoch}: "
        yield
        self._prefix = ""

    def say(self, text: str) -> None:
        """One line that stays."""
        self.console.print(text)
