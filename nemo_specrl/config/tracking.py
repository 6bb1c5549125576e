"""Where metrics go."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class TrackingConfig:
    """A JSONL spool always; MLflow beside it."""

    mlflow: bool = True
    """Log to MLflow."""
    uri: str | None = None
    """Tracking URI; null = MLFLOW_TRACKING_URI if set, else sqlite:///<output_dir>/../mlflow.db (of a bench or an
    array: mlflow.db in its folder)."""
    experiment: str = "nemo-specrl"
    """MLflow experiment."""
    sweep: str | None = None
    """Name of a parent run that this run hangs under (one child per arm and seed); null = no parent, in a bench or an
    array its folder."""
    register_model: str | None = None
    """Register the trained policy under this name in MLflow's model registry when the run has ended: a version whose
    files are a Hugging Face folder (weights, tokenizer, configuration), uploaded to the run; null = not."""
    required: bool = False
    """Fail at start-up when the server cannot be reached; otherwise training goes on and the spool is replayed."""
    flush_timeout_s: float = 60.0
    """The longest that the end of a run waits for MLflow, seconds; what is left is sent at the next start."""
    system_metrics_every_s: float = 15.0
    """Seconds between samples of CPU, memory, network and GPU on each node; 0 = none."""
    sample_rollouts: int = 8
    """Rollouts per step written to the sample table."""

    def __post_init__(self) -> None:
        if self.flush_timeout_s < 0 or self.system_metrics_every_s < 0 or self.sample_rollouts < 0:
            raise ValueError(
                "tracking.flush_timeout_s, tracking.system_metrics_every_s and tracking.sample_rollouts "
                "must not be negative; 0 turns each off"
            )
        if self.register_model is not None and not re.fullmatch(r"[^/:\s][^/:]*", self.register_model):
            raise ValueError(
                f"tracking.register_model={self.register_model!r}: a model's name has neither / nor : in it and is not "
                "empty; null registers none"
            )
