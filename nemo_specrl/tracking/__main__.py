"""`python -m nemo_specrl.tracking FOLDER ...`: send spools to MLflow afterwards, e.g. from compute nodes without a
network. Sending twice changes nothing."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from nemo_specrl.tracking.follower import Follower
from nemo_specrl.tracking.mlflow_sink import MlflowSink
from nemo_specrl.tracking.spool import EVENTS, read_events
from nemo_specrl.tracking.uri import reaching, resolve_uri, shown


def send(folder: Path, uri: str | None = None, experiment: str | None = None) -> str:
    """Send what MLflow does not have yet of a finished or interrupted run; returns the run id.

    Raises ValueError if the folder holds no run, or MLflow cannot be reached or refuses.
    """
    starts = [event for event in read_events(folder / EVENTS) if event["kind"] in ("start", "params", "tags")]
    if not starts or starts[0]["kind"] != "start" or "spool" not in starts[0]:
        raise ValueError(f"{folder} is no run's output folder: it has no {EVENTS}")
    params: dict[str, str] = next((event["values"] for event in reversed(starts) if event["kind"] == "params"), {})
    sweep = params.get("tracking.sweep")
    sink = MlflowSink(
        resolve_uri(uri, folder),
        experiment=experiment or params.get("tracking.experiment", "nemo-specrl"),
        name=f"{params.get('name', folder.name)}/seed{params.get('seed', '?')}",
        spool_id=starts[0]["spool"],
        folder=folder,
        sweep=None if sweep in (None, "None") else sweep,
    )
    follower = Follower(folder, sink)
    with reaching(sink.uri):
        follower.open()
        while follower.step():
            pass
    print(f"{folder}: run {sink.run_id} at {shown(sink.uri)}, {follower.refused} entries refused")
    for reason in sink.refusals:
        print(f"  {reason}")
    return sink.run_id


def main() -> int:
    parser = argparse.ArgumentParser("python -m nemo_specrl.tracking", description="Send runs' spools to MLflow.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a run's output folder")
    parser.add_argument("--uri", help="tracking URI (default: MLFLOW_TRACKING_URI, else mlflow.db beside the folder)")
    parser.add_argument("--experiment", help="default: the one in the run's configuration")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    try:
        for folder in options.folders:
            send(folder, options.uri, options.experiment)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
