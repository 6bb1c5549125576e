"""The tracker of the ranks that record nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_specrl.tracking.base import RunStatus


class NullTracker:
    """Implements `tracking.base.Tracker` by doing nothing."""

    def metrics(self, values: Mapping[str, Any], step: int) -> None: ...

    def params(self, values: Mapping[str, Any]) -> None: ...

    def tags(self, values: Mapping[str, str]) -> None: ...

    def dataset(
        self, name: str, digest: str, source: str, context: str = "training", *, subset: str | None = None,
        split: str | None = None,
    ) -> None: ...  # fmt: skip

    def artifact(self, path: Path, folder: str = "") -> None: ...

    def table(self, name: str, rows: Sequence[Mapping[str, Any]], step: int) -> None: ...

    def model(self, folder: Path, name: str, step: int) -> None: ...

    def at_end(self, make: Callable[[Path], Path]) -> None: ...

    def close(self, status: RunStatus) -> None: ...
