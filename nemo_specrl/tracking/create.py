"""From a run's configuration to its tracker."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from nemo_specrl.config.run import RunConfig
from nemo_specrl.config.validate import lossy_stamp
from nemo_specrl.tracking.base import Tracker
from nemo_specrl.tracking.follower import Follower
from nemo_specrl.tracking.mlflow_sink import MlflowSink
from nemo_specrl.tracking.null import NullTracker
from nemo_specrl.tracking.provenance import dirty_patch, provenance
from nemo_specrl.tracking.tracker import RunTracker
from nemo_specrl.tracking.uri import resolve_uri

LOG = logging.getLogger("nemo_specrl.tracking")


def create_tracker(run: RunConfig, output_dir: Path, *, resumed: bool, enabled: bool = True) -> Tracker:
    """Open the run's spool and, in the background, its MLflow run; record the configuration and where it runs.

    Only one process of a run records it: the others pass `enabled=False`. `resumed` says whether the loop continues
    from a checkpoint: the MLflow run of the folder is reopened either way. Raises OSError if the folder cannot be
    written; and only with `tracking.required`, ConnectionError if MLflow cannot be reached and ValueError if its URI is
    unusable.
    """
    if not enabled:
        return NullTracker()
    tracking = run.tracking
    tracker = RunTracker(output_dir, flush_timeout_s=tracking.flush_timeout_s, max_rows=tracking.sample_rollouts)
    if tracking.mlflow:
        try:
            _follow(run, output_dir, tracker)
        except (ValueError, ConnectionError):
            tracker.close("FAILED")
            raise
    tracker.sample_system(tracking.system_metrics_every_s)
    where = provenance()
    job = ", ".join(f"{key} {where[key]}" for key in ("slurm.job_id", "slurm.nodes", "host") if key in where)
    how = "resumed" if resumed else "from the start"
    tracker.tags(
        {
            "arm": run.name,
            "seed": str(run.seed),
            "lossy": lossy_stamp(run) or "no",
            f"attempt.{tracker.attempt}": f"{how}; {job}",
            **where,
        }
    )
    tracker.params(dataclasses.asdict(run))
    if patch := dirty_patch():
        tracker.text(Path("source") / f"attempt-{tracker.attempt}.patch", patch)
    return tracker


def _follow(run: RunConfig, output_dir: Path, tracker: RunTracker) -> None:
    tracking = run.tracking
    try:
        sink = MlflowSink(
            resolve_uri(tracking.uri, output_dir),
            experiment=tracking.experiment,
            name=f"{run.name}/seed{run.seed}",
            spool_id=tracker.spool_id,
            folder=output_dir,
            sweep=tracking.sweep,
        )
        follower = Follower(output_dir, sink)
        if tracking.required:
            follower.open()
    except ValueError as error:
        if tracking.required:
            raise
        LOG.warning("no MLflow, only %s/events.jsonl: %s", output_dir, error)
        return
    except Exception as error:
        raise ConnectionError(
            f"tracking.required is set and MLflow could not be opened: {error}. Start the server, correct "
            f"tracking.uri, or set tracking.required=false (the spool then waits for it)"
        ) from error
    tracker.follow(follower)
