"""MLflow up to the run: the client, the experiment, a sweep's parent run."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import random
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nemo_specrl.tracking.follower import BlockedError
from nemo_specrl.tracking.uri import shown, sqlite_file
from nemo_specrl.tracking.values import clean_key

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

SWEEP_TAG = "nemo_specrl.sweep"


def connect(uri: str) -> MlflowClient:
    from mlflow.tracking import MlflowClient

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # migrations are no news to a trainer
    try:
        return MlflowClient(tracking_uri=uri)
    except ModuleNotFoundError as error:
        raise BlockedError(
            f"{shown(uri)} needs the database driver {error.name!r} beside MLflow: install it, or go through an "
            f"mlflow server's http address"
        ) from error


def experiment_id(client: MlflowClient, name: str, artifact_root: str | None) -> str:
    """The experiment's id, made if missing. Raises BlockedError with the remedy if it lies in the bin."""
    from mlflow.exceptions import MlflowException

    if (experiment := client.get_experiment_by_name(name)) is None:
        try:
            return str(client.create_experiment(name, artifact_location=artifact_root))
        except MlflowException as error:  # another run of the sweep was quicker
            if error.error_code != "RESOURCE_ALREADY_EXISTS" or not (experiment := client.get_experiment_by_name(name)):
                raise
    if experiment.lifecycle_stage == "deleted":
        raise BlockedError(
            f"MLflow experiment {name!r} was deleted: restore it with `mlflow experiments restore "
            f"--experiment-id {experiment.experiment_id}`, or set tracking.experiment to another name"
        )
    return str(experiment.experiment_id)


def sweep_run(client: MlflowClient, experiment_id: str, sweep: str) -> str:
    """The parent run of a sweep. Children that start at once may each make one: the oldest wins, the rest go."""

    def runs() -> list[Any]:
        found = client.search_runs([experiment_id], f"tags.`{SWEEP_TAG}` = '{clean_key(sweep)}'")
        return sorted(found, key=lambda run: (run.info.start_time, run.info.run_id))

    if existing := runs():
        return str(existing[0].info.run_id)
    tags = {SWEEP_TAG: clean_key(sweep), "mlflow.runName": sweep}
    mine = str(client.create_run(experiment_id, tags=tags, run_name=sweep).info.run_id)
    client.set_terminated(mine, status="FINISHED")
    oldest = str(runs()[0].info.run_id)
    if oldest != mine:
        client.delete_run(mine)
    return oldest


@contextlib.contextmanager
def initialising(uri: str) -> Iterator[None]:
    """One process at a time makes a sqlite file's tables: six that start together crash five of them otherwise."""
    path = sqlite_file(uri)
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as lock:
        deadline = time.monotonic() + 60
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{lock.name} has been locked for a minute: is a dead process holding it?"
                    ) from error
                time.sleep(0.05 + 0.1 * random.random())
        yield
