"""`nemo-specrl compare`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from nemo_specrl.reporting.as_json import as_json
from nemo_specrl.reporting.compare import Comparison, compare
from nemo_specrl.reporting.gate import SYNTAX, failures, parse_condition
from nemo_specrl.reporting.html import comparison_page, write_page
from nemo_specrl.reporting.load import find_runs
from nemo_specrl.reporting.measures import ALIGNMENTS, KEYS
from nemo_specrl.reporting.spool_reader import read_folders
from nemo_specrl.reporting.terminal import print_comparison


def compare_folders(
    folders: Sequence[Path],
    *,
    baseline: str | None = None,
    from_epoch: int = 2,
    align: str = "step",
    goal: float | None = None,
    html: Path | None = None,
    json: Path | None = None,
    console: Console | None = None,
) -> Comparison:
    """Compare runs by their output folders, print the result, and write the page and the JSON that are asked for.

    The first folder's arm is the baseline unless one is named. Raises ValueError as `compare` does.
    """
    runs = read_folders(folders, KEYS)
    comparison = compare(runs, baseline=baseline, align=align, from_epoch=from_epoch, goal=goal)
    print_comparison(comparison, console)
    write(comparison, html, json)
    return comparison


def write(comparison: Comparison, html: Path | None, json: Path | None) -> None:
    """The page and the JSON, where a path is given; missing folders are made."""
    for path in (html, json):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
    if html is not None:
        write_page(html, comparison_page(comparison))
    if json is not None:
        json.write_text(as_json(comparison), encoding="utf-8")


def compare_command(args: list[str]) -> int:
    """The verb. Returns 0, 1 where a --fail-if holds, or 2 for a mistake in the arguments."""
    parser = _parser()
    try:
        options = parser.parse_args(args)
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        conditions = [parse_condition(text) for text in options.fail_if]
        if not (options.runs or options.experiment or options.filter):
            parser.print_usage(sys.stderr)
            raise ValueError("name runs (folders, MLflow ids or names), or give --experiment or --filter")
        runs = find_runs(
            options.runs,
            experiment=options.experiment,
            filter_string=options.filter,
            uri=options.uri,
            spools=not options.no_spools,
        )
        here = sum(Path(run.source).is_dir() for run in runs)
        print(f"{len(runs)} runs: {here} read from their folders, {len(runs) - here} from MLflow", file=sys.stderr)
        comparison = compare(
            runs, baseline=options.baseline, align=options.align, from_epoch=options.from_epoch, goal=options.reward
        )
        found = [line for condition in conditions for line in failures(comparison, condition)]
    except ValueError as error:
        print(f"nemo-specrl compare: {error}", file=sys.stderr)
        return 2
    print_comparison(comparison)
    write(comparison, options.html, options.json)
    for line in found:
        print(f"FAILED {line}", file=sys.stderr)
    return 1 if found else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "nemo-specrl compare",
        description="Compare training runs: arms (run names) against a baseline, with seeds as repeats.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="output folder, folder of runs, MLflow run id, run name or arm"
    )
    parser.add_argument("--experiment", help="all runs of this MLflow experiment")
    parser.add_argument("--filter", default="", help="MLflow search filter, e.g. \"tags.arm = 'spec_rl'\"")
    parser.add_argument("--uri", help="MLflow tracking URI (default: MLFLOW_TRACKING_URI, else runs/mlflow.db)")
    parser.add_argument(
        "--no-spools", action="store_true", help="read MLflow's metrics even where a run's folder can be read here"
    )
    parser.add_argument("--baseline", help="the arm that others are compared with (default: the first run's)")
    parser.add_argument(
        "--align", choices=ALIGNMENTS, default="step", help="rewards are compared at equal ... (default step)"
    )
    parser.add_argument(
        "--reward", type=float, metavar="R", help="the R of 'time to reward R' (default: the baseline's end)"
    )
    parser.add_argument(
        "--from-epoch", type=int, default=2, metavar="N", help="throughput counts epochs from N on (default 2)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="EXPR",
        help=f"exit 1 where it holds: {SYNTAX}".replace("%", "%%"),
    )
    return parser
