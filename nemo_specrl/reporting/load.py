"""Runs by folder, MLflow id, name, experiment or filter."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nemo_specrl.reporting.history import RunHistory
from nemo_specrl.reporting.measures import KEYS
from nemo_specrl.reporting.spool_reader import read_folder, read_folders
from nemo_specrl.tracking.mlflow_sink import FOLDER_TAG, SPOOL_TAG
from nemo_specrl.tracking.spool import EVENTS, read_events
from nemo_specrl.tracking.uri import reaching, resolve_uri, set_patience, shown, sqlite_file

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

_RUN_ID = re.compile(r"[0-9a-f]{32}")


def load_run(source: str | Path, *, uri: str | None = None, only: Container[str] | None = None) -> RunHistory:
    """A run from its output folder (no server needed) or from MLflow by its id. Raises ValueError if there is none.

    `only` limits what is read to these metrics.
    """
    if Path(source).is_dir():
        return read_folder(Path(source), only)
    if not _RUN_ID.fullmatch(str(source)):
        raise ValueError(f"{source} is neither a run's output folder nor an MLflow run id")
    client = connect(uri)
    return _from_mlflow(client, _get(client, str(source)), only)


def find_runs(
    references: Sequence[str],
    *,
    experiment: str | None = None,
    filter_string: str = "",
    uri: str | None = None,
    only: Container[str] | None = KEYS,
    spools: bool = True,
) -> list[RunHistory]:
    """All runs that are referred to: output folders, folders of them, MLflow ids and run names; or an experiment's.

    A run of MLflow's whose own spool can be read here is read from it (`source` says so): MLflow hands out histories
    metric by metric and 25,000 values at a time, which takes minutes for many long runs. `spools=False` reads MLflow.
    Raises ValueError for a reference that finds nothing.
    """
    found: list[Path] = []
    names = []
    for reference in references:
        folders = run_folders(Path(reference))
        if folders:
            found += folders
        elif Path(reference).is_dir():
            raise ValueError(f"{reference} holds no run: there is no {EVENTS} in it or in the folders below it")
        else:
            names.append(reference)
    runs = read_folders(found, only)
    if names or experiment or filter_string:
        client = connect(uri)
        with reaching(client.tracking_uri):
            listed = [run for name in names for run in _by_name(client, name, experiment)]
            if not names:
                listed = _search(client, experiment, filter_string)
        near = {run.info.run_id: folder for run in listed if spools and (folder := _own_folder(run)) is not None}
        spooled = dict(zip(near, read_folders(list(near.values()), only), strict=True))
        runs += [
            spooled[run.info.run_id] if run.info.run_id in spooled else _from_mlflow(client, run, only)
            for run in listed
        ]
    return runs


def _own_folder(run: Run) -> Path | None:
    """The folder that holds the run's spool, where this machine sees it and it is still that run's."""
    folder = Path(run.data.tags.get(FOLDER_TAG, ""))
    first = next(read_events(folder / EVENTS), None)
    same = first is not None and first.get("spool") == run.data.tags.get(SPOOL_TAG)
    return folder if same else None


def run_folders(folder: Path) -> list[Path]:
    """The folder itself if it is a run's, else the runs' folders below it, sorted."""
    if (folder / EVENTS).exists():
        return [folder]
    return sorted(path.parent for path in folder.rglob(EVENTS)) if folder.is_dir() else []


def connect(uri: str | None = None) -> MlflowClient:
    """MLflow's client at the URI, or where runs in ./runs keep it. Raises ValueError without MLflow, or without
    the database."""
    set_patience()
    try:
        from mlflow.tracking import MlflowClient
    except ModuleNotFoundError as error:
        raise ValueError(
            "comparing runs by MLflow id, name or experiment needs the package mlflow; folders do not"
        ) from error
    resolved = resolve_uri(uri, Path("runs/run"))
    if (path := sqlite_file(resolved)) is not None and not path.is_file():  # MLflow would make one, to find it empty
        raise ValueError(f"there is no MLflow database {path}: name runs by their folders, or give --uri")
    with reaching(resolved):
        return MlflowClient(tracking_uri=resolved)


def _get(client: MlflowClient, run_id: str) -> Run:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id)
    except MlflowException as error:
        raise ValueError(f"MLflow at {shown(client.tracking_uri)} gives no run {run_id}: {error}") from error


def _by_name(client: MlflowClient, name: str, experiment: str | None) -> list[Run]:
    if _RUN_ID.fullmatch(name):
        return [_get(client, name)]
    quoted = name.replace("'", "")
    found = _search(client, experiment, f"attributes.run_name = '{quoted}'") or _search(
        client, experiment, f"tags.arm = '{quoted}'"
    )
    if not found:
        raise ValueError(
            f"{name!r} is no folder, and MLflow at {shown(client.tracking_uri)} has no run of that id, name or arm"
        )
    return found


def _search(client: MlflowClient, experiment: str | None, filter_string: str) -> list[Run]:
    """Runs that match, parents of sweeps left out, oldest first. Raises ValueError for an unknown experiment."""
    experiments = client.search_experiments()
    chosen = [e.experiment_id for e in experiments if experiment is None or e.name == experiment]
    if not chosen:
        raise ValueError(f"MLflow has no experiment {experiment!r}; it has {', '.join(e.name for e in experiments)}")
    runs: list[Run] = []
    token = None
    while True:
        page = client.search_runs(chosen, filter_string, order_by=["attributes.start_time ASC"], page_token=token)
        runs += page
        token = page.token
        if not token:
            return [run for run in runs if "nemo_specrl.sweep" not in run.data.tags]


def _from_mlflow(client: MlflowClient, run: Run, only: Container[str] | None) -> RunHistory:
    tags, params = dict(run.data.tags), dict(run.data.params)
    wanted = [key for key in run.data.metrics if not key.startswith("system/") and (only is None or key in only)]
    histories = {key: list(_history(client, run.info.run_id, key)) for key in wanted}
    steps = np.unique([metric.step for history in histories.values() for metric in history]).astype(np.int64)
    columns = {}
    for key, history in histories.items():
        column = columns[key] = np.full(len(steps), np.nan)
        column[np.searchsorted(steps, [metric.step for metric in history])] = [metric.value for metric in history]
    seed = str(tags.get("seed") or params.get("seed") or "")
    return RunHistory(
        source=run.info.run_id,
        arm=tags.get("arm", run.info.run_name or run.info.run_id),
        seed=int(seed) if seed.lstrip("-").isdigit() else None,
        steps=steps,
        columns=columns,
        config=params,
        environment={key: value for key, value in tags.items() if not key.startswith("mlflow.")},
        status=run.info.status,
    )


def _history(client: MlflowClient, run_id: str, key: str) -> Iterator[Any]:
    """Every value of a metric. MLflow hands out at most 25,000 at a time over HTTP, and its client follows pages."""
    yield from client.get_metric_history(run_id, key)
