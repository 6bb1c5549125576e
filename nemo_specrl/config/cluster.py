"""How a run is submitted to Slurm."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClusterConfig:
    """Written by the cluster room."""

    name: str = "generic"
    """Name of the site profile."""
