"""`train` and `prepare`: from the command line to the loop."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from nemo_specrl.config.compose import CONF_DIR, CONFIG_NAME, compose_tree, open_dict_override, to_run_config
from nemo_specrl.config.run import RunConfig
from nemo_specrl.training.folder import check_folder


@dataclass(frozen=True)
class Arguments:
    """A Hydra command line, taken apart."""

    overrides: list[str]
    config_dir: Path
    config_name: str
    dump: bool
    """Only print the resolved configuration."""


def parse(args: list[str]) -> Arguments:
    """Overrides and the flags that we know; ValueError for others."""
    overrides: list[str] = []
    flags = {"--config-path": str(CONF_DIR), "--config-name": CONFIG_NAME}
    dump = False
    todo = list(args)
    while todo:
        word = todo.pop(0)
        flag, equals, value = word.partition("=")
        if flag in flags:
            if not equals and not todo:
                raise ValueError(f"{flag} needs a value")
            flags[flag] = value if equals else todo.pop(0)
        elif word == "--dump-config":
            dump = True
        elif word.startswith("-"):
            raise ValueError(f"unknown option {word}: there are --config-path, --config-name and --dump-config")
        else:
            overrides.append(word)
    return Arguments(overrides, Path(flags["--config-path"]).resolve(), flags["--config-name"], dump)


def compose_arguments(args: list[str]) -> tuple[Arguments, DictConfig]:
    """The composed tree of a command line; errors name the nearest valid key."""
    parsed = parse(args)
    return parsed, compose_tree(parsed.overrides, config_dir=parsed.config_dir, config_name=parsed.config_name)


def train_command(args: list[str]) -> int:
    """`nemo-specrl train`: exit code 0, or 85 when it stopped early with a checkpoint."""
    parsed, tree = compose_arguments(args)
    run = to_run_config(tree)  # every mistake in the configuration is said here, before NeMo's ten seconds of import
    if parsed.dump:
        print(OmegaConf.to_yaml(tree, resolve=True))
        return 0
    check_engine(run)
    check_folder(run, output_folder(run))
    return _through_nemo(parsed)


def output_folder(run: RunConfig) -> Path:
    """The run's folder, absolute."""
    return Path(run.output_dir).expanduser().resolve()


def check_engine(run: RunConfig) -> None:
    """What the engine can't do, before anything is loaded; and trainers that don't run in this process."""
    import torch

    from nemo_specrl.rollout.vllm.limits import check

    if run.trainer.name != "local":
        raise ValueError(f"trainer={run.trainer.name} runs NeMo RL's own driver in a Slurm job: use nemo-specrl submit")
    check(run.engine, run.sampling, run.drafter, cpu=not torch.cuda.is_available())


def _through_nemo(parsed: Arguments) -> int:
    """Run under NeMo's hydra_runner, which brings its resolvers; Hydra composes the same tree a second time."""
    from nemo.core.config import hydra_runner

    outcome: list[int | BaseException] = []

    def task(tree: DictConfig) -> None:
        quiet_libraries()
        try:
            outcome.append(run_training(to_run_config(tree)))
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


def quiet_libraries() -> None:
    """Hydra's logging prints every library's chatter: keep what is a warning, and what is ours."""
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("nemo_specrl").setLevel(logging.INFO)
    for name in ("mlflow", "alembic", "megatron"):  # these set levels of their own
        logging.getLogger(name).setLevel(logging.WARNING)


def run_training(run: RunConfig) -> int:
    """Claim the folder, train, report. The exit code of `nemo-specrl train`."""
    from nemo_specrl.cluster.walltime import job_deadline
    from nemo_specrl.training.folder import claim
    from nemo_specrl.training.loop import finished, train
    from nemo_specrl.training.signals import StopSignal, hand_over
    from nemo_specrl.training.summary import summarise
    from nemo_specrl.training.warmup import warm_up

    folder = output_folder(run)
    main = int(os.environ.get("RANK", "0")) == 0
    claimed = claim(run, folder=folder, resume=run.trainer.resume) if main else nullcontext(False)
    stop = StopSignal(deadline=job_deadline(os.environ), reserve_s=run.cluster.stop_before_end_s)
    with claimed as resumed, stop as signal:
        warms = run.trainer.task == "warmup"
        outcome = None if warms else finished(run, folder)
        if outcome is None:
            outcome = (warm_up if warms else train)(run, folder, resumed=resumed, signal=signal)
        if main and not warms:
            summarise(run, folder, outcome)
    early = outcome.stopped is not None and outcome.steps < outcome.total
    return hand_over(outcome.stopped or "") if early else 0


def prepare_command(args: list[str]) -> int:
    """`nemo-specrl prepare`: fetch or convert the model, check tokenizer and data; nothing is trained."""
    from rich.console import Console

    from nemo_specrl.data import load_prompts
    from nemo_specrl.models import load_tokenizer, model_digest, resolve_model

    _, tree = compose_arguments(args)
    run = to_run_config(tree)
    console = Console(highlight=False)
    model = resolve_model(run.model)
    console.print(f"model    {model.path} ({model.family}, {model.vocab_size} rows), digest {model_digest(model.path)}")
    tokenizer = load_tokenizer(model)
    prompts = load_prompts(run.data, tokenizer, run.model.max_length, run.sampling.max_new_tokens)
    lengths = sorted(len(p.token_ids) for p in prompts)
    console.print(
        f"data     {len(prompts)} prompts from {run.data.source}, {lengths[0]} to {lengths[-1]} tokens "
        f"(median {lengths[len(lengths) // 2]})"
    )
    console.print(f"example  {prompts[0].text!r} -> {prompts[0].answer!r}")
    console.print("ready: the same arguments after `nemo-specrl train`")
    return 0
