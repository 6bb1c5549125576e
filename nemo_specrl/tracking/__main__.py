"""`python -m nemo_specrl.tracking FOLDER ...`: send spools to MLflow afterwards, e.g. from compute nodes without a
network. Sending twice changes nothing."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from nemo_specrl.tracking.afterwards import send


def main() -> int:
    parser = argparse.ArgumentParser("python -m nemo_specrl.tracking", description="Send runs' spools to MLflow.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a run's output folder")
    parser.add_argument(
        "--uri", help="tracking URI (default: the run's, else MLFLOW_TRACKING_URI, else mlflow.db beside it)"
    )
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
