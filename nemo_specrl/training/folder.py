"""The run's output folder: one run each, one process at a time."""

from __future__ import annotations

import fcntl
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, cast

from nemo_specrl.config.compose import load_resolved, resolved
from nemo_specrl.config.run import RunConfig
from nemo_specrl.data import DataIdentity, as_json, changes
from nemo_specrl.files import write_atomic
from nemo_specrl.training.ranks import broadcast, is_main, raise_together

_log = logging.getLogger(__name__)
RUN_FILE = "run.json"
INPUTS_FILE = "inputs.json"
"""What the run's prompts are (`data.DataIdentity`)."""
IDENTITY = (
    "seed", "model.path", "model.revision", "model.tokenizer", "model.max_length", "data", "reward.name", "algorithm",
    "sampling", "reuse.rule", "reuse.log_lenience", "reuse.correction", "policy.dtype", "policy.tensor_parallel",
    "policy.pipeline_parallel",
)  # fmt: skip
"""What makes it the same run: a resumed run may change anything else (length, tracking, engine size, cluster)."""


def output_folder(run: RunConfig) -> Path:
    """The run's folder, absolute."""
    return Path(run.output_dir).expanduser().resolve()


def read_run(folder: Path) -> RunConfig:
    """What the folder's run was configured as."""
    path = folder / RUN_FILE
    try:
        return load_resolved(json.loads(path.read_text()))
    except FileNotFoundError:
        raise ValueError(f"{folder} is no run's output folder: it has no {RUN_FILE}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}): restore the file") from error


def check_folder(run: RunConfig, folder: Path) -> None:
    """ValueError, before anything heavy is loaded, when the folder belongs to another run."""
    known = folder / RUN_FILE
    if known.exists():
        try:
            before = json.loads(known.read_text())
        except ValueError as error:
            raise ValueError(f"{known} is damaged ({error}): choose another output_dir, or restore the file") from error
        check_same_run(before, resolved(run), folder)


@contextmanager
def claim(run: RunConfig, *, folder: Path, resume: bool) -> Iterator[bool]:
    """Take the folder for this run; yields whether an earlier attempt is being continued.

    Raises ValueError when the folder belongs to another run, is in use, or is occupied and `resume` is off."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "a+")  # noqa: SIM115 - held open for as long as the run lasts
    except OSError as error:
        raise ValueError(f"cannot write to output_dir={folder}: {error.strerror}; choose another output_dir") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"output_dir={folder} is in use by another process: wait for it, stop it, or choose another output_dir"
            ) from error
        except OSError as error:  # Lustre and NFS may be mounted without locks
            _log.warning("no file locks in %s (%s): see to it that one process uses it", folder, error.strerror)
        known = folder / RUN_FILE
        continued = known.exists()
        if continued:
            if not resume:
                raise ValueError(
                    f"output_dir={folder} holds a run: choose another output_dir, or trainer.resume=true to go on"
                )
            check_folder(run, folder)
        elif (folder / "checkpoints").exists():
            raise ValueError(f"output_dir={folder} has checkpoints but no {RUN_FILE}: choose another output_dir")
        write_atomic(known, json.dumps(resolved(run), indent=1))
        yield continued


def check_same_run(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """ValueError that lists what differs between the run in the folder and this one."""
    differences = []
    for key in IDENTITY:
        old, new = _get(before, key), _get(now, key)
        if json.loads(json.dumps(new)) != old:
            differences.append(f"{key}: {old} there, {new} now")
    if differences:
        raise ValueError(
            f"output_dir={folder} belongs to another run ({'; '.join(differences)}): choose another output_dir, or "
            "give the same configuration to continue it"
        )


def rendering_date(folder: Path) -> date:
    """The date that a chat template with a date writes: the day on which the folder's run began, else today."""
    known = _recorded_inputs(folder)
    return date.fromisoformat(known["rendered_on"]) if known else date.today()


def check_inputs(run: RunConfig, folder: Path, identity: DataIdentity) -> None:
    """Record what the prompts are at a run's first start. At a later one, ValueError that names what has changed,
    unless `trainer.accept_changed_data`. Every rank checks, before any goes on; rank 0 records.
    Collective."""
    known = _recorded_inputs(folder)
    change = changes(known, identity, run.data.source) if known else None
    error = None
    if broadcast(identity) != identity:
        error = ValueError(f"{run.data.source} holds other data here than where rank 0 runs: give every node the same")
    elif change and not run.trainer.accept_changed_data:
        error = ValueError(
            f"{change}; the run in {folder} began on {known['rendered_on']} with what was there then: restore it, "
            "choose another output_dir, or go on with trainer.accept_changed_data=true"
        )
    raise_together(error)
    if change:
        _log.warning("%s: the run goes on with it, as trainer.accept_changed_data says", change)
    if is_main() and (change or not known):
        write_atomic(folder / INPUTS_FILE, json.dumps(as_json(identity), indent=1))


def _recorded_inputs(folder: Path) -> dict[str, Any]:
    path = folder / INPUTS_FILE
    try:
        return cast(dict[str, Any], json.loads(path.read_text())) if path.exists() else {}
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): restore the file, or choose another output_dir") from error


def _get(values: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        values = values.get(part, {})
    return values
