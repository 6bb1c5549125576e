"""A folder of built models. Many processes may ask at once; one builds, and nobody sees a half-built one.

The build goes to a temporary folder beside its target under a file lock, and a rename publishes it. The kernel frees
the lock of a builder that dies, and the next one starts afresh. Ours.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nemo_specrl.files import put_in_place
from nemo_specrl.models.folder import model_digest

RECORD = "nemo_specrl.json"
"""Written into every built folder: which builder made it, from what, and the digest of what it made."""


def cache_root() -> Path:
    """`$NEMO_SPECRL_CACHE`, or ~/.cache/nemo-specrl/models."""
    configured = os.environ.get("NEMO_SPECRL_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "nemo-specrl" / "models"


def build_once(name: str, build: Callable[[Path], str]) -> Path:
    """The folder `name` of the cache; `build(folder)` fills it where it is missing and returns what it was made from.

    Raises ValueError when a built folder was changed afterwards, or when the cache cannot be written.
    """
    root = cache_root()
    target = root / name
    if not (target / RECORD).is_file():
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"cannot create the model cache {root}: {error}. Set NEMO_SPECRL_CACHE to a folder that can be written."
            ) from error
        with _locked(root / f".{name}.lock"):
            if not (target / RECORD).is_file():
                _build(root, target, build)
    recorded = json.loads((target / RECORD).read_text())["digest"]
    if model_digest(target) != recorded:
        raise ValueError(f"{target} is not what was built there: it was changed. Delete that folder; it is made anew.")
    return target


def _build(root: Path, target: Path, build: Callable[[Path], str]) -> None:
    if target.exists():  # without a record: not of our making, or deleted in part
        raise ValueError(f"{target} is in the way of a built-in model. Delete that folder, or set NEMO_SPECRL_CACHE.")
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=root))
    try:
        source = build(temporary)
        record = {"builder": target.name, "source": source, "digest": model_digest(temporary)}
        (temporary / RECORD).write_text(json.dumps(record, indent=2) + "\n")
        for file in [temporary, *temporary.iterdir()]:  # mkdtemp and safetensors write for the owner alone
            file.chmod(0o755 if file.is_dir() else 0o644)
        put_in_place(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # gone already after the rename


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file frees the lock
