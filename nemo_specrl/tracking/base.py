"""The Tracker protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

RunStatus: TypeAlias = Literal["FINISHED", "FAILED", "KILLED"]


class Tracker(Protocol):
    """Takes whatever a run wants recorded. After construction no method raises into training."""

    def metrics(self, values: Mapping[str, Any], step: int) -> None:
        """Numbers of one step, nested mappings allowed. A step that was already logged is not logged again."""
        ...

    def params(self, values: Mapping[str, Any]) -> None:
        """The resolved configuration; called at every start, resumes included."""
        ...

    def tags(self, values: Mapping[str, str]) -> None:
        """Facts about the run: versions, job, stamps."""
        ...

    def dataset(
        self, name: str, digest: str, source: str, context: str = "training", *, subset: str | None = None,
        split: str | None = None,
    ) -> None:  # fmt: skip
        """Which data the run reads: a name, a digest of its content (36 characters at most), where it came from: a
        path, or a hub name with its configuration (`subset`) and split."""
        ...

    def artifact(self, path: Path, folder: str = "") -> None:
        """Copy a small file to the run."""
        ...

    def table(self, name: str, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        """Sample rows of one step (capped)."""
        ...

    def model(self, folder: Path, name: str, step: int) -> None:
        """Register a Hugging Face folder, written after this step, as a version of MLflow's model `name`. The folder
        must stay until it was sent."""
        ...

    def at_end(self, make: Callable[[Path], Path]) -> None:
        """When the run is closed, make a file from its folder (a report) and keep it as an artifact."""
        ...

    def close(self, status: RunStatus) -> None:
        """Flush within a bound and end the run with its true status; may be called twice."""
        ...
