"""`nemo-specrl bench`: arms side by side, interleaved and repeated: whole trainings, or one step's rollouts."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from rich.console import Console

from nemo_specrl.config.arguments import parse
from nemo_specrl.config.compose import compose, hydra_quote, open_dict_override
from nemo_specrl.config.run import RunConfig
from nemo_specrl.training.bench_rollouts import rotated
from nemo_specrl.training.checks import check_run
from nemo_specrl.training.folder import RUN_FILE


@dataclass(frozen=True)
class Arm:
    """One side of the comparison."""

    name: str
    overrides: list[str]


def split_arms(overrides: Sequence[str]) -> list[Arm]:
    """`experiment=a,b reuse.topk=5` -> arms a and b; several comma lists give their product."""
    parser = OverridesParser.create()
    common: list[str] = []
    swept: list[list[tuple[str, str]]] = []
    for text in overrides:
        override = parser.parse_override(open_dict_override(text))
        if override.is_sweep_override():
            key = override.get_key_element()
            swept.append([(f"{key}={value}", value) for value in override.sweep_string_iterator()])
        else:
            common.append(text)
    if not swept:
        raise ValueError("bench compares arms: give at least one list, e.g. experiment=vanilla,spec_rl")
    return [
        Arm("+".join(value for _, value in choice), [*common, *(text for text, _ in choice)])
        for choice in itertools.product(*swept)
    ]


def bench_command(args: list[str]) -> int:
    """Run every arm `bench.repeats` times and write one report. The first arm is the baseline."""
    parsed = parse(args)
    arms = split_arms(parsed.overrides)
    where = [f"--config-path={parsed.config_dir}", f"--config-name={parsed.config_name}"]
    root = _root(arms, parsed.overrides)
    runs = {arm.name: _compose_arm(arm, parsed.config_dir, parsed.config_name) for arm in arms}
    for run in runs.values():
        check_run(run)
    if parsed.dump:
        for name, run in runs.items():
            print(f"# {name}\n{OmegaConf.to_yaml(OmegaConf.structured(run))}")
        return 0
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{root / 'mlflow.db'}")  # one store for all runs
    console = Console(highlight=False, soft_wrap=True)
    if next(iter(runs.values())).bench.kind == "rollouts":
        return _bench_rollouts(arms, runs, where, root, console)
    return _bench_trainings(arms, runs, where, root, console)


def _bench_trainings(
    arms: Sequence[Arm], runs: dict[str, RunConfig], where: list[str], root: Path, console: Console
) -> int:
    """Every arm is a training run of its own."""
    from nemo_specrl.reporting import compare_folders

    first = next(iter(runs.values()))
    folders: list[Path] = []
    total = len(arms) * first.bench.repeats
    for repeat in range(first.bench.repeats):
        for arm in rotated(arms, repeat):
            folder = root / f"repeat_{repeat}" / arm.name
            folders.append(folder)
            overrides = [
                *arm.overrides,
                f"name={hydra_quote(arm.name)}",
                f"output_dir={hydra_quote(str(folder))}",
                f"seed={runs[arm.name].seed + repeat}",
                f"tracking.sweep={hydra_quote(first.tracking.sweep or os.path.relpath(root))}",
            ]
            console.print(f"[{len(folders)}/{total}] {arm.name}, repetition {repeat + 1}: {folder}/train.log")
            _train(where + overrides, folder, console)
    html, json = root / "report.html", root / "report.json"
    order = {arm.name: i for i, arm in enumerate(arms)}
    folders.sort(key=lambda folder: order[folder.name])
    compare_folders(folders, baseline=arms[0].name, from_epoch=first.bench.from_epoch, html=html, json=json)
    console.print(f"report {html}\nfigures {json}")
    return 0


def _bench_rollouts(
    arms: Sequence[Arm], runs: dict[str, RunConfig], where: list[str], root: Path, console: Console
) -> int:
    """One recorded training, then every arm on its next step."""
    from nemo_specrl.reporting import rollout_bench
    from nemo_specrl.training import bench_rollouts

    bench_rollouts.check_arms(runs)
    folder = root / bench_rollouts.RECORDING
    if not (finished := folder / "finished").exists():
        console.print(f"recording a training: {folder}/train.log")
        _train(where + bench_rollouts.recording_overrides(arms[0].overrides, runs, folder), folder, console)
        finished.touch()
    found = rollout_bench.rows(bench_rollouts.measure_all(runs, root, console), list(runs))
    html, json = root / "report.html", root / "report.json"
    rollout_bench.print_rows(found, console)
    rollout_bench.write(found, list(runs), f"rollouts of {root.name}", html=html, json_path=json)
    console.print(f"report {html}\nfigures {json}")
    return 0


def _compose_arm(arm: Arm, config_dir: Path, config_name: str) -> RunConfig:
    return compose(arm.overrides, config_dir=config_dir, config_name=config_name)


def _root(arms: Sequence[Arm], overrides: Sequence[str]) -> Path:
    """`output_dir=` where given, else runs/bench-<time>."""
    given = [text for text in overrides if text.startswith("output_dir=")]
    root = Path("runs") / f"bench-{time.strftime('%Y%m%d-%H%M%S')}"
    if given:
        root = Path(str(OverridesParser.create().parse_override(given[-1]).value()))
    taken = [p for p in root.glob(f"repeat_*/*/{RUN_FILE}") if p.parent.name not in {arm.name for arm in arms}]
    if taken:
        raise ValueError(f"output_dir={root} holds another bench ({taken[0].parent.name}): choose another output_dir")
    return root.expanduser().resolve()


def _train(args: list[str], folder: Path, console: Console) -> None:
    """One arm in a process of its own. A bench that was interrupted goes on where it stopped: so does each run."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "train.log"
    with open(log, "a") as out:
        command = [sys.executable, "-m", "nemo_specrl.cli", "train", *args]
        code = subprocess.call(command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | {"COLUMNS": "160"})
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise RuntimeError(f"{folder} failed with exit code {code}; the end of {log}:\n{tail}")
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("step ")]
    console.print(f"    {lines[-1] if lines else 'done'}")
