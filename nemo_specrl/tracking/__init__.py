"""Telemetry that never hurts: a JSONL spool on disk, and MLflow behind it."""

from nemo_specrl.tracking.base import RunStatus, Tracker
from nemo_specrl.tracking.create import create_tracker
from nemo_specrl.tracking.system import sample_node

__all__ = ["RunStatus", "Tracker", "create_tracker", "sample_node"]
