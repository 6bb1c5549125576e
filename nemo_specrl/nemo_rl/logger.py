"""Our tracker behind NeMo RL's LoggerInterface (nemo_rl/utils/logger.py).

NeMo RL's own MLflow logger refuses to resume a run whose configuration changed in any key (its log_dir does, every
time), dies on metrics that are no numbers, and ends every run as FINISHED. Append this one:

    logger.loggers.append(tracker_logger(create_tracker(run, output_dir, resumed=...)))
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_specrl.tracking import RunStatus, Tracker

if TYPE_CHECKING:
    from nemo_rl.utils.logger import LoggerInterface


class TrackerLogger:
    """The four methods of LoggerInterface, on a Tracker. Nothing here raises into training."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker

    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        step: int,
        prefix: str | None = "",
        step_metric: str | None = None,
        step_finished: bool = False,
    ) -> None:
        """NeMo RL's names become ours: `train` + `loss` -> `train/loss`. Lists are summarised as it does itself;
        `step_metric` names the entry that holds the step."""
        if step_metric and isinstance(metrics.get(step_metric), int | float):
            step = int(metrics[step_metric])
        values = {key: _summary(value) for key, value in metrics.items() if key != step_metric}
        self.tracker.metrics({prefix: values} if prefix else values, step)

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """The configuration under `nemo_rl.`: at every start, resumes included; what changed becomes a tag."""
        self.tracker.params({"nemo_rl": dict(params)})

    def log_histogram(self, histogram: Sequence[Any], step: int, name: str) -> None:
        """Its quantiles."""
        self.tracker.metrics({name: _summary(list(histogram))}, step)

    def log_plot(self, figure: Any, step: int, name: str) -> None:
        """A matplotlib figure as an artifact of its step."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name.replace('/', '_')}-{step}.png"
            try:
                figure.savefig(path)
            except Exception as error:  # whatever a plotting backend raises, training goes on
                self.tracker.tags({f"plot_error.{path.stem}": f"{type(error).__name__}: {error}"})
                return
            self.tracker.artifact(path, "plots")

    def finish(self, status: RunStatus | None = None) -> None:
        """Ends the run with its true status. NeMo RL's controller calls this without one in a `finally`, also when
        training has failed: then the exception on its way tells."""
        error = sys.exc_info()[1]
        killed = isinstance(error, KeyboardInterrupt | SystemExit | asyncio.CancelledError)
        self.tracker.close(status or ("FINISHED" if error is None else "KILLED" if killed else "FAILED"))


def tracker_logger(tracker: Tracker) -> LoggerInterface:
    """A TrackerLogger that is an instance of NeMo RL's LoggerInterface. Needs nemo_rl.

    Raises TypeError, naming the methods, where a newer LoggerInterface asks for more than this one has.
    """
    from nemo_rl.utils.logger import LoggerInterface

    logger: LoggerInterface = type("NemoRlTrackerLogger", (TrackerLogger, LoggerInterface), {})(tracker)
    return logger


def _summary(value: Any) -> Any:
    """A list of numbers as mean, median, 90th percentile and maximum; everything else as it is."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _summary(item) for key, item in value.items()}
    if not isinstance(value, list | tuple) or not value or not all(isinstance(x, int | float) for x in value):
        return value
    ordered = sorted(value)
    last = len(ordered) - 1
    return {
        "mean": sum(ordered) / len(ordered),
        "p50": (ordered[last // 2] + ordered[(last + 1) // 2]) / 2,
        "p90": ordered[round(0.9 * last)],
        "max": ordered[-1],
    }
