"""The only code that talks to MLflow's write side."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_specrl.files import write_atomic
from nemo_specrl.tracking.experiment import connect, experiment_id, initialising, sweep_run
from nemo_specrl.tracking.follower import BlockedError, RunLostError
from nemo_specrl.tracking.spool import Event
from nemo_specrl.tracking.uri import is_database, set_patience, shown, sqlite_file
from nemo_specrl.tracking.values import clean_key

if TYPE_CHECKING:
    from mlflow.data.dataset_source import DatasetSource
    from mlflow.tracking import MlflowClient

LOG = logging.getLogger("nemo_specrl.tracking")
RUN_ID = "mlflow_run_id"
"""The file beside the checkpoints that names the MLflow run."""
SPOOL_TAG = "nemo_specrl.spool"
FOLDER_TAG = "nemo_specrl.folder"
"""Where the run's spool lay when the run was made."""
MAX_METRICS, MAX_PARAMS, MAX_VALUE = 800, 100, 6000
_FOR_GOOD = {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE"}


class MlflowSink:
    """One MLflow run. Metrics carry the spool's own times, so that a batch whose answer was lost can be sent again:
    MLflow's key of a metric is (name, time, step, value), and an equal row is stored once."""

    def __init__(
        self, uri: str, *, experiment: str, name: str, spool_id: str, folder: Path, sweep: str | None = None
    ) -> None:
        self.uri = uri
        self._experiment = experiment
        self._name = name
        self._spool_id = spool_id
        self._folder = folder
        self._sweep = sweep
        self._client: MlflowClient | None = None
        self._params: dict[str, str] = {}
        self._changed: dict[int, dict[str, list[str]]] = {}
        self.run_id = ""
        self.refusals: list[str] = []
        """The first reasons why the server would not take something, one line each."""

    def open(self) -> bool:
        """Connect, and find the run of this folder or make it. Raises what MLflow raises; BlockedError for a deleted
        experiment, or a database without its driver."""
        set_patience()
        from mlflow.exceptions import MlflowException

        with initialising(self.uri):
            client = self._client = connect(self.uri)
            experiment = experiment_id(client, self._experiment, self._artifact_root())
        id_file = self._folder / RUN_ID
        known = id_file.read_text().strip() if id_file.exists() else ""
        if known:
            try:
                run = client.get_run(known)
                if run.info.lifecycle_stage != "deleted":
                    self.run_id, self._params = known, dict(run.data.params)
                    return False
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
            LOG.warning("MLflow at %s no longer has run %s: it is made again from the spool", shown(self.uri), known)
        self.run_id, self._params = self._find_or_create(client, experiment), {}
        write_atomic(id_file, self.run_id + "\n")
        return True

    def newest(self) -> dict[str, int]:
        """Newest step of each metric."""
        assert self._client is not None, "open() comes first"
        run = self._client.get_run(self.run_id)
        return {metric.key: metric.step for metric in run.data._metric_objs}

    def names(self) -> set[str]:
        """Of parameters and tags."""
        assert self._client is not None, "open() comes first"
        data = self._client.get_run(self.run_id).data
        return {*data.params, *data.tags}

    def steps(self, key: str) -> set[int]:
        """All steps of a metric."""
        assert self._client is not None, "open() comes first"
        return {metric.step for metric in self._client.get_metric_history(self.run_id, key)}

    def _artifact_root(self) -> str | None:
        """Where an experiment of ours keeps artifacts. A server knows; a bare database would use ./mlruns."""
        if not is_database(self.uri):
            return None
        path = sqlite_file(self.uri)
        return str((path.parent if path else self._folder.absolute().parent) / "mlartifacts")

    def _find_or_create(self, client: MlflowClient, experiment: str) -> str:
        """A run made by a call whose answer was lost is found by the spool's own id, and not made twice."""
        found = client.search_runs([experiment], f"tags.`{SPOOL_TAG}` = '{self._spool_id}'", max_results=1)
        if found:
            return str(found[0].info.run_id)
        tags = {SPOOL_TAG: self._spool_id, FOLDER_TAG: str(self._folder.absolute()), "mlflow.runName": self._name}
        if self._sweep:
            tags["mlflow.parentRunId"] = sweep_run(client, experiment, self._sweep)
        return str(client.create_run(experiment, tags=tags, run_name=self._name).info.run_id)

    def send(self, events: Sequence[Event]) -> int:
        """Take events in order; returns the number of entries refused for good. Raises when to try again."""
        from mlflow.entities import Metric, RunTag

        refused, status = 0, ""
        metrics: list[Metric] = []
        tags: dict[str, str] = {}
        tables: dict[str, Event] = {}
        models: list[Event] = []
        for event in events:
            match event["kind"]:
                case "metrics" | "system":
                    moment = int(event["time"] * 1000)
                    metrics += [Metric(clean_key(k), v, moment, event["step"]) for k, v in event["values"].items()]
                case "tags":
                    tags |= {clean_key(key): str(value)[:MAX_VALUE] for key, value in event["values"].items()}
                case "params":
                    refused += self._send_params(event, tags)
                case "artifact":
                    refused += self._send_artifact(event["path"], event.get("folder", ""))
                case "dataset":
                    refused += self._send_dataset(event["values"])
                case "table":
                    tables[event["name"]] = event  # only the newest picture of a table is worth a request
                case "model":
                    models.append(event)
                case "start":
                    status = "RUNNING"
                case "end":
                    status = tags["nemo_specrl.status"] = event["status"]
        for start in range(0, len(metrics), MAX_METRICS):
            refused += self._batch(metrics=metrics[start : start + MAX_METRICS])
        entries = [RunTag(key, value) for key, value in tags.items()]
        for start in range(0, len(entries), MAX_PARAMS):
            refused += self._batch(tags=entries[start : start + MAX_PARAMS])
        for event in tables.values():
            refused += self._send_artifact(event["path"], "tables")
        for event in models:
            refused += self.register(Path(event["path"]), event["name"], event["step"])
        if status == "RUNNING":  # a requeued run is opened again
            self._take(lambda c: c.update_run(self.run_id, status="RUNNING"))
        elif status:
            self._take(lambda c: c.set_terminated(self.run_id, status=status))
        return refused

    def _batch(self, **entries: Sequence[Any]) -> int:
        """Log a batch; one bad entry fails all of them, so a refused batch is sent again entry by entry."""
        if self._take(lambda c: c.log_batch(self.run_id, **entries)):  # type: ignore[arg-type]
            return 0
        ((kind, items),) = entries.items()
        if len(items) == 1:
            return 1
        middle = len(items) // 2
        return self._batch(**{kind: items[:middle]}) + self._batch(**{kind: items[middle:]})

    def _send_params(self, event: Event, tags: dict[str, str]) -> int:
        """New parameters are logged; changed ones cannot be (MLflow refuses the whole batch), so they become a tag."""
        from mlflow.entities import Param

        values = {clean_key(key): str(value)[:MAX_VALUE] for key, value in event["values"].items()}
        changed = {key: [old, values[key]] for key, old in self._params.items() if values.get(key, old) != old}
        if changed:
            known = self._changed.setdefault(event["attempt"], {})
            known |= changed
            tags[f"resume.{event['attempt']}.changed"] = json.dumps(known, sort_keys=True)[:MAX_VALUE]
        new = [Param(key, value) for key, value in values.items() if key not in self._params]
        refused = sum(self._batch(params=new[start : start + MAX_PARAMS]) for start in range(0, len(new), MAX_PARAMS))
        self._params.update({param.key: param.value for param in new})
        return refused

    def _send_artifact(self, relative: str, folder: str) -> int:
        path = self._folder / relative
        if not path.exists():
            self._refuse(f"artifact {relative} is gone")
            return 1
        try:
            return 0 if self._take(lambda c: c.log_artifact(self.run_id, str(path), folder or None)) else 1
        except PermissionError as error:  # a server that keeps its artifacts in a folder of its own, out of our reach
            self._refuse(
                f"artifact {relative}: {error}; start the server with --artifacts-destination, which serves them"
            )
            return 1

    def _send_dataset(self, values: Mapping[str, Any]) -> int:
        from mlflow.data.meta_dataset import MetaDataset
        from mlflow.entities import DatasetInput, InputTag

        dataset = MetaDataset(_source(values["source"]), values["name"], values["digest"])
        entry = DatasetInput(dataset._to_mlflow_entity(), [InputTag("mlflow.data.context", values["context"])])
        return 0 if self._take(lambda c: c.log_inputs(self.run_id, [entry])) else 1

    def register(self, folder: Path, name: str, step: int) -> int:
        """Upload the folder below the run's artifacts and make it a version of the registered model, once; 1 if that is
        refused."""
        from mlflow.exceptions import MlflowException

        place = f"model/step_{step:08d}"
        if not folder.is_dir():
            self._refuse(f"model {folder} is gone")
            return 1
        client = self._client
        assert client is not None, "open() comes first"
        source = f"{client.get_run(self.run_id).info.artifact_uri}/{place}"
        try:
            client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code not in _FOR_GOOD:
                raise
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                self._refuse(f"model {name!r}: {error}")
                return 1
        if any(version.source == source for version in client.search_model_versions(f"run_id = '{self.run_id}'")):
            return 0
        client.log_artifacts(self.run_id, str(folder), place)
        tags = {"nemo_specrl.step": str(step)}
        done = self._take(lambda c: c.create_model_version(name, source, self.run_id, tags, await_creation_for=0))
        return 0 if done else 1

    def _take(self, call: Callable[[MlflowClient], object]) -> bool:
        """Make a call; False if the server refused it for good. Raises RunLostError, or what else went wrong."""
        from mlflow.exceptions import MlflowException

        assert self._client is not None, "open() comes first"
        try:
            call(self._client)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                raise RunLostError(str(error)) from error
            if error.error_code not in _FOR_GOOD:
                raise
            if self._client.get_run(self.run_id).info.lifecycle_stage == "deleted":
                raise BlockedError(
                    f"run {self.run_id} was deleted: what is recorded from now on waits in the spool until it is "
                    f"restored (mlflow runs restore --run-id {self.run_id}), or made again at the next start"
                ) from error
            self._refuse(str(error))
            return False
        return True

    def _refuse(self, reason: str) -> None:
        if len(self.refusals) < 20:
            self.refusals.append(reason.splitlines()[0][:300])
            LOG.warning("MLflow refuses an entry for good: %s", self.refusals[-1])


def _source(origin: Mapping[str, str]) -> DatasetSource:
    """MLflow's own description of where data comes from."""
    from mlflow.data.code_dataset_source import CodeDatasetSource
    from mlflow.data.huggingface_dataset_source import HuggingFaceDatasetSource
    from mlflow.data.sources import LocalArtifactDatasetSource

    match origin.get("kind", "local"):  # events of older versions have a "uri" alone
        case "hub":
            return HuggingFaceDatasetSource(
                origin["path"], config_name=origin["subset"] or None, split=origin["split"] or None
            )
        case "local":
            return LocalArtifactDatasetSource(origin["uri"])
    return CodeDatasetSource({"name": origin["name"]})
