"""Where metrics go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrackingConfig:
    """A JSONL spool always; MLflow beside it."""

    mlflow: bool = True
    """Log to MLflow."""
    uri: str | None = None
    """Tracking URI; null = MLFLOW_TRACKING_URI if set, else sqlite:///<output_dir>/../mlflow.db."""
    experiment: str = "nemo-specrl"
    """MLflow experiment."""
    required: bool = False
    """Fail at start-up when the server cannot be reached; otherwise training goes on and the spool is replayed."""
    sample_rollouts: int = 8
    """Rollouts per step written to the sample table."""
