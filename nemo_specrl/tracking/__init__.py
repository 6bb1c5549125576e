"""Telemetry that never hurts: a JSONL spool on disk, and MLflow behind it."""

from nemo_specrl.tracking.base import RunStatus, Tracker
from nemo_specrl.tracking.create import create_tracker

__all__ = ["RunStatus", "Tracker", "create_tracker"]
