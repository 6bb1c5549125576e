"""`nemo-specrl train`: from the command line to the loop."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from nemo_specrl.config.arguments import Arguments, compose_arguments
from nemo_specrl.config.compose import open_dict_override, to_run_config
from nemo_specrl.config.run import RunConfig
from nemo_specrl.quiet import quiet_libraries
from nemo_specrl.training.folder import check_folder, output_folder

if TYPE_CHECKING:
    from nemo_specrl.training.checks import Material


def train_command(args: list[str]) -> int:
    """`nemo-specrl train`: exit code 0, or 85 when it stopped early with a checkpoint."""
    parsed, tree = compose_arguments(args)
    run = to_run_config(tree)  # every mistake in the configuration is said here, before NeMo's ten seconds of import
    if parsed.dump:
        print(OmegaConf.to_yaml(tree, resolve=True))
        return 0
    check_folder(run, output_folder(run))
    from nemo_specrl.training.checks import check_run

    return _through_nemo(parsed, check_run(run, _say))


def _say(what: str) -> None:
    """What is being checked, before there is a progress line."""
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"checking the {what}", flush=True)


def _through_nemo(parsed: Arguments, material: Material) -> int:
    """Run under NeMo's hydra_runner, which brings its resolvers; Hydra composes the same tree a second time."""
    from nemo.core.config import hydra_runner

    outcome: list[int | BaseException] = []

    def task(tree: DictConfig) -> None:
        quiet_libraries()  # Hydra has set up logging anew, which prints every library's chatter
        try:
            outcome.append(run_training(to_run_config(tree), material))
        except BaseException as error:  # Hydra would swallow the type: carry it past Hydra and raise it there
            outcome.append(error)

    argv, sys.argv = sys.argv, ["nemo-specrl", *[open_dict_override(o) for o in parsed.overrides]]
    try:
        hydra_runner(config_path=str(parsed.config_dir), config_name=parsed.config_name)(task)()
    finally:
        sys.argv = argv
    result = outcome[0]
    if isinstance(result, BaseException):
        raise result
    return result


def run_training(run: RunConfig, material: Material) -> int:
    """Claim the folder, train, report. The exit code of `nemo-specrl train`."""
    from nemo_specrl.cluster.walltime import job_deadline
    from nemo_specrl.training.folder import claim
    from nemo_specrl.training.loop import finished, train
    from nemo_specrl.training.signals import StopSignal, hand_over
    from nemo_specrl.training.summary import summarise

    folder = output_folder(run)
    main = int(os.environ.get("RANK", "0")) == 0
    claimed = claim(run, folder=folder, resume=run.trainer.resume) if main else nullcontext(False)
    stop = StopSignal(deadline=job_deadline(os.environ), reserve_s=run.cluster.stop_before_end_s)
    with claimed as resumed, stop as signal:
        outcome = finished(run, folder)
        if outcome is None:
            outcome = train(run, material, folder, resumed=resumed, signal=signal)
        if main:
            summarise(run, folder, outcome)
    early = outcome.stopped is not None and outcome.steps < outcome.total
    return hand_over(outcome.stopped or "") if early else 0
