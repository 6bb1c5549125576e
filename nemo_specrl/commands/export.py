"""`nemo-specrl export RUN OUT`: a run's newest checkpoint as a Hugging Face folder, and its draft head beside it.

What comes out is what `model.path` and `drafter.head.source` take, as does whatever reads Hugging Face folders."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

from nemo_specrl.config.run import RunConfig
from nemo_specrl.drafting import make_drafter
from nemo_specrl.files import put_in_place
from nemo_specrl.models import resolve_model
from nemo_specrl.tracking.afterwards import register
from nemo_specrl.training import checkpoint
from nemo_specrl.training.folder import read_run
from nemo_specrl.training.hf_folder import write_policy
from nemo_specrl.training.ranks import is_main

DRAFT_HEAD = "draft_head"


def export_command(args: list[str]) -> int:
    """The verb; under torchrun for a run that was parallel. ValueError for what holds no run, or a taken `OUT`."""
    parser = argparse.ArgumentParser("nemo-specrl export", description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="the run's output_dir")
    parser.add_argument("out", type=Path, help="folder to write; must not exist")
    parser.add_argument("--step", type=int, help="a kept checkpoint's step (default: the newest)")
    parser.add_argument("--register", metavar="NAME", help="make it a version of this model in MLflow's registry, too")
    try:
        options = parser.parse_args(args)
    except SystemExit as stop:
        return int(stop.code or 0)
    run = read_run(options.run)
    if options.out.exists():
        raise ValueError(f"{options.out} exists already: name another folder, or remove it")
    if options.register:
        replace(run.tracking, register_model=options.register)  # is it a name that MLflow takes?
    step = export(run, choose(options.run / "checkpoints", options.step), options.out)
    if is_main():
        print(f"step {step} of {options.run} is in {options.out}: use it with  model.path={options.out}")
        if (options.out / DRAFT_HEAD).exists():
            print(f"and its draft head with  drafter=mtp drafter.head.source={options.out / DRAFT_HEAD}")
        if options.register:
            print(f"registered as {register(options.run, options.out, options.register, step)}")
    return 0


def choose(root: Path, step: int | None) -> checkpoint.Checkpoint:
    """The checkpoint of `step`, or the newest. ValueError where there is none."""
    if step is None:
        newest = checkpoint.newest(root)
        if newest is None:
            raise ValueError(f"there is no checkpoint in {root}: set trainer.checkpoint_every, or train to the end")
        return newest
    found = {c.step: c for c in checkpoint.complete(root)}
    if step not in found:
        raise ValueError(f"{root} has no checkpoint of step {step}; it has {', '.join(map(str, found)) or 'none'}")
    return found[step]


def export(run: RunConfig, chosen: checkpoint.Checkpoint, out: Path) -> int:
    """Write it to one side and move it to `out` when it is complete. Collective; returns the step."""
    from nemo_specrl.training.factories import make_policy

    staging = out.with_name(f".{out.name}.partial")
    if is_main():
        try:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
        except OSError as caught:
            raise ValueError(f"cannot write beside {out}: {caught.strerror}; name another folder") from caught
    model = resolve_model(run.model)
    policy = make_policy(run, model, total_updates=run.policy.warmup_steps + 1)
    # The weights are the checkpoint's: where the head once came from need not be there any more.
    head = make_drafter(replace(run.drafter, head=replace(run.drafter.head, source="scratch"))).join(policy)
    policy.load(chosen.folder / "policy")
    write_policy(policy, model.path, staging)
    if head is not None:
        head.export(staging / DRAFT_HEAD)
    if is_main():
        put_in_place(staging, out)
    return chosen.step
