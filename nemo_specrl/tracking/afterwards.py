"""What is sent to MLflow after a run: its spool, or its model."""

from __future__ import annotations

import os
from pathlib import Path

from nemo_specrl.tracking.follower import Follower
from nemo_specrl.tracking.mlflow_sink import MlflowSink
from nemo_specrl.tracking.redact import REDACTED
from nemo_specrl.tracking.spool import EVENTS, read_events
from nemo_specrl.tracking.uri import reaching, resolve_uri, shown


def send(folder: Path, uri: str | None = None, experiment: str | None = None) -> str:
    """Send what MLflow does not have yet of a finished or interrupted run; returns the run id.

    Raises ValueError if the folder holds no run, or MLflow cannot be reached or refuses.
    """
    sink = sink_of(folder, uri, experiment)
    follower = Follower(folder, sink)
    with reaching(sink.uri):
        follower.open()
        while follower.step():
            pass
    print(f"{folder}: run {sink.run_id} at {shown(sink.uri)}, {follower.refused} entries refused")
    for reason in sink.refusals:
        print(f"  {reason}")
    return sink.run_id


def register(folder: Path, model: Path, name: str, step: int) -> str:
    """Upload a Hugging Face folder to the run and make it a version of the registered model `name`; says which.

    Raises ValueError as `send` does, and where MLflow refuses the name or the files."""
    sink = sink_of(folder)
    with reaching(sink.uri):
        sink.open()
        refused = sink.register(model, name, step)
    if refused:
        raise ValueError(f"MLflow at {shown(sink.uri)} does not register {name!r}: {sink.refusals[-1]}")
    return f"{name} in {shown(sink.uri)}, run {sink.run_id}"


def sink_of(folder: Path, uri: str | None = None, experiment: str | None = None) -> MlflowSink:
    """The sink of a run that was recorded in this folder, at the address that it was tracked at unless one is given.
    Raises ValueError if none was."""
    starts = [event for event in read_events(folder / EVENTS) if event["kind"] in ("start", "params", "tags")]
    if not starts or starts[0]["kind"] != "start" or "spool" not in starts[0]:
        raise ValueError(f"{folder} is no run's output folder: it has no {EVENTS}")
    params: dict[str, str] = next((event["values"] for event in reversed(starts) if event["kind"] == "params"), {})
    sweep, given = params.get("tracking.sweep"), params.get("tracking.uri", "None")
    if uri is None and given != "None":
        uri = os.environ.get("MLFLOW_TRACKING_URI") if REDACTED in given else given
        if uri is None:
            raise ValueError(
                f"{folder} was tracked at {given}: give the address with its password (--uri, or MLFLOW_TRACKING_URI)"
            )
    return MlflowSink(
        resolve_uri(uri, folder),
        experiment=experiment or params.get("tracking.experiment", "nemo-specrl"),
        name=f"{params.get('name', folder.name)}/seed{params.get('seed', '?')}",
        spool_id=starts[0]["spool"],
        folder=folder,
        sweep=None if sweep in (None, "None") else sweep,
    )
