"""One run as the reports see it: a table of its steps, its configuration, where it ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]


@dataclass(frozen=True)
class RunHistory:
    """Every metric of a run at every step; NaN where nothing was recorded. Immutable."""

    source: str
    """The folder or the MLflow run id that it was read from."""
    arm: str
    """Runs of one arm differ in their seed only."""
    seed: int | None
    steps: NDArray[np.int64]
    """[S] ascending."""
    columns: Mapping[str, Column]
    """Metric name -> [S]."""
    config: Mapping[str, str] = field(default_factory=dict)
    """The resolved configuration, flat (`reuse.rule`)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Tags: versions, job, stamps."""
    status: str = "RUNNING"
    """FINISHED, FAILED or KILLED; RUNNING = no end was recorded."""

    def __len__(self) -> int:
        return len(self.steps)

    def column(self, key: str) -> Column:
        """[S] a metric at every step, NaN where it is missing."""
        found = self.columns.get(key)
        return np.full(len(self.steps), np.nan) if found is None else found

    def series(self, key: str) -> Column:
        """The recorded values of a metric in the order of steps, without gaps; empty if there are none."""
        column = self.column(key)
        known: Column = column[~np.isnan(column)]
        return known

    def has(self, key: str) -> bool:
        """Whether the metric was ever recorded."""
        return key in self.columns and bool(np.any(~np.isnan(self.columns[key])))

    def total(self, key: str) -> float:
        """Sum of a raw counter over the steps; 0 if it was never recorded (ask `has`)."""
        return float(np.nansum(self.column(key)))

    def last_step(self) -> int:
        return int(self.steps[-1]) if len(self.steps) else 0

    def between(self, first: int, last: int) -> RunHistory:
        """Only the steps first..last, both included."""
        return self._rows((self.steps >= first) & (self.steps <= last))

    def from_epoch(self, epoch: int) -> RunHistory:
        """Only the steps of this epoch and later ones; everything if no epoch was recorded."""
        if not self.has("train/epoch"):
            return self
        return self._rows(self.column("train/epoch") >= epoch)

    def _rows(self, keep: NDArray[np.bool_]) -> RunHistory:
        return replace(
            self, steps=self.steps[keep], columns={key: column[keep] for key, column in self.columns.items()}
        )
