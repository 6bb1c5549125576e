"""Checkpoints that are complete or not there: written to one side, sealed by a manifest, published by a rename."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_specrl.files import put_in_place, sync, write_atomic
from nemo_specrl.training.ranks import broadcast, is_main, raise_together

MANIFEST = "manifest.json"
PREFIX = "step_"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    folder: Path
    step: int
    """The last step that is in it."""
    state: dict[str, Any]
    """What the loop stored beside the tensors."""


def publish(root: Path, step: int, write: Callable[[Path], None], state: dict[str, Any], *, keep: int) -> Path:
    """Let every rank `write` its files into a new folder, then publish it as `root/step_<number>` and prune.

    Collective. On any failure nothing is published and earlier checkpoints stay as they were; a full disk raises
    OSError with the remedy."""
    final = root / f"{PREFIX}{step:08d}"
    staging = root / f".{final.name}.partial"
    error: BaseException | None = None
    try:
        if is_main():
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
    except OSError as caught:
        error = caught
    raise_together(error and _with_remedy(error, root))
    try:
        write(staging)
    except (OSError, RuntimeError) as caught:
        error = caught
    try:
        raise_together(error and _with_remedy(error, root))
        if is_main():
            try:
                _seal(staging, step, state)
                if final.exists():  # only an incomplete or unreadable one can stand here: resume would have used it
                    shutil.rmtree(final)
                put_in_place(staging, final)
            except OSError as caught:
                error = caught
        raise_together(error and _with_remedy(error, root))
    except BaseException:
        if is_main():
            shutil.rmtree(staging, ignore_errors=True)
        raise
    if is_main():
        for old in complete(root)[keep:]:
            shutil.rmtree(old.folder)
    return final


def complete(root: Path) -> list[Checkpoint]:
    """All complete checkpoints under `root`, newest first. Partial or damaged folders are passed over."""
    found = []
    for folder in sorted(root.glob(f"{PREFIX}*"), reverse=True):
        checkpoint = _read(folder)
        if checkpoint is not None:
            found.append(checkpoint)
    return found


def newest(root: Path) -> Checkpoint | None:
    """The newest complete checkpoint whose files still have the digests they were sealed with; the same on every
    rank. ValueError when there are checkpoints and none is usable."""
    chosen: Checkpoint | None = None
    faults: list[str] = []
    if is_main():
        for folder in sorted(root.glob(f"{PREFIX}*"), reverse=True):
            checkpoint = _read(folder)
            fault = "no readable manifest" if checkpoint is None else _damage(checkpoint.folder)
            if fault is None:
                chosen = checkpoint
                break
            faults.append(f"{folder.name}: {fault}")
    chosen, faults = broadcast((chosen, faults))
    if chosen is None and faults:
        raise ValueError(
            f"no usable checkpoint in {root} ({'; '.join(faults)}): restore one, or start afresh in another output_dir"
        )
    return chosen


def digest(folder: Path) -> str:
    """Hex digest of a published checkpoint: that of its manifest, which holds those of its files."""
    return _digest(folder / MANIFEST)


def _seal(folder: Path, step: int, state: dict[str, Any]) -> None:
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            files[str(path.relative_to(folder))] = {"bytes": path.stat().st_size, "blake2b": _digest(path)}
            sync(path)
    manifest = {"format": 1, "step": step, "state": state, "files": files}
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1))


def _read(folder: Path) -> Checkpoint | None:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        sizes_agree = all((folder / name).stat().st_size == seal["bytes"] for name, seal in manifest["files"].items())
    except (OSError, ValueError, KeyError):
        return None
    return Checkpoint(folder, manifest["step"], manifest["state"]) if sizes_agree else None


def _damage(folder: Path) -> str | None:
    manifest = json.loads((folder / MANIFEST).read_text())
    for name, seal in manifest["files"].items():
        if _digest(folder / name) != seal["blake2b"]:
            return f"{name} is damaged"
    return None


def _digest(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _with_remedy(error: BaseException, root: Path) -> BaseException:
    """Library code wraps a full disk in many ways: say what is wrong and what to do."""
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    if full or "No space left" in str(error) or "PytorchStreamWriter failed writing" in str(error):
        free = shutil.disk_usage(root if root.exists() else root.parent).free / 2**20
        return OSError(
            errno.ENOSPC,
            f"no space left for a checkpoint in {root} ({free:.0f} MiB free); earlier checkpoints are intact: free "
            "some space (trainer.keep_checkpoints keeps fewer) and start the same command again",
        )
    return error
