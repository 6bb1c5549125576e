"""The training loop: prepare, then step after step, with checkpoints and a way out."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from nemo_specrl.config.run import RunConfig
from nemo_specrl.rollout.gate import GateBreach
from nemo_specrl.tracking import create_tracker
from nemo_specrl.training import checkpoint
from nemo_specrl.training.checks import Material
from nemo_specrl.training.hf_folder import write_policy
from nemo_specrl.training.parts import Parts, build
from nemo_specrl.training.plan import StepPlan, plan_steps
from nemo_specrl.training.ranks import broadcast, is_main
from nemo_specrl.training.signals import StopSignal, agree
from nemo_specrl.training.task import Task, record
from nemo_specrl.training.task_rl import RlTask
from nemo_specrl.training.task_warmup import HEAD_FOLDER, WarmupTask


@dataclass(frozen=True)
class Outcome:
    """How the run ended."""

    steps: int
    """Steps that are done, over all attempts."""
    total: int
    """Steps of the whole run."""
    stopped: str | None
    """Why it ended early: a signal, the walltime; None = it ran to its end."""
    seconds: float
    """Of this attempt."""


def finished(run: RunConfig, folder: Path) -> Outcome | None:
    """The outcome of a run whose newest checkpoint is its last step: neither model nor engine need be built for it.
    Its tracked run is told that it finished, in case it was killed before it could."""
    if run.trainer.task == "warmup" and not (folder / HEAD_FOLDER / "config.json").exists():
        return None  # all steps may be done, but what they are for is not there yet
    for newest in checkpoint.complete(folder / "checkpoints")[:1]:
        total = len(plan_steps(run, newest.state["prompts"]))
        if newest.step >= total:
            if is_main():
                create_tracker(run, folder, resumed=True).close("FINISHED")
            return Outcome(newest.step, total, None, 0.0)
    return None


def train(run: RunConfig, material: Material, folder: Path, *, resumed: bool, signal: StopSignal) -> Outcome:
    """Train until the end of the plan or until a stop is asked for. Collective over torchrun's ranks."""
    start = time.perf_counter()
    with build(run, material, folder, resumed=resumed) as parts:
        plans = plan_steps(run, len(parts.prompts))
        done = restore(parts, folder / "checkpoints")
        task: Task = WarmupTask(parts) if run.trainer.task == "warmup" else RlTask(parts)
        task.begin(plans, done)
        stopped = None
        for plan in plans[done:]:
            with parts.progress.step(plan, len(plans)):
                try:
                    result = task.step(plan)
                except GateBreach:
                    if done:  # the state before this step is good: keep it
                        save(parts, folder / "checkpoints", plans[done - 1])
                    raise
                done = plan.step
                record(parts, done, result)
                stopped = save_or_stop(parts, folder / "checkpoints", plan, len(plans), signal)
            if stopped:
                break
        task.end(plans, done)
        if run.tracking.register_model and done == len(plans):
            register_policy(parts, run.tracking.register_model, done)
        return Outcome(done, len(plans), stopped, time.perf_counter() - start)


def save_or_stop(parts: Parts, root: Path, plan: StepPlan, total: int, signal: StopSignal) -> str | None:
    """Publish a checkpoint where one is due, and always before a stop; returns why to stop now, if so. Collective."""
    reason = signal.stop_requested()
    stopped = (reason or "another rank was asked to stop") if agree(reason is not None) else None
    every = parts.run.trainer.checkpoint_every
    if stopped or plan.step == total or (every and plan.step % every == 0):
        save(parts, root, plan)
    parts.ending.interrupted = stopped is not None and plan.step < total
    return stopped


def register_policy(parts: Parts, name: str, step: int) -> None:
    """Write the trained policy as a Hugging Face folder and hand it to the tracker, which uploads it. Collective."""
    parts.progress.phase("export")
    folder = parts.folder / "model"
    if is_main():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    write_policy(parts.policy, parts.model.path, folder)
    if parts.tracker is not None:
        parts.tracker.model(folder, name, step)


def save(parts: Parts, root: Path, plan: StepPlan) -> None:
    """Publish a checkpoint of everything that the next step depends on. Collective."""
    parts.progress.phase("checkpoint")

    def write(folder: Path) -> None:
        policy_folder = folder / "policy"
        policy_folder.mkdir(exist_ok=True)
        parts.policy.save(policy_folder)
        if is_main():
            parts.generator.reuse.cache.save(folder)
            parts.drafter.save(folder)

    state = {
        "step": plan.step,
        "epoch": plan.epoch,
        "policy_version": parts.policy.version,
        "prompts": len(parts.prompts),
        "model": parts.model_digest,
    }
    published = checkpoint.publish(root, plan.step, write, state, keep=parts.run.trainer.keep_checkpoints)
    if parts.tracker is not None:
        parts.tracker.tags(
            {
                "checkpoint.step": str(plan.step),
                "checkpoint.path": str(published),
                "checkpoint.digest": checkpoint.digest(published),
            }
        )


def restore(parts: Parts, root: Path) -> int:
    """Load the newest complete checkpoint; returns its step (0 = there is none). Collective."""
    found = checkpoint.newest(root)
    if found is None:
        return 0
    if found.state["model"] != parts.model_digest:
        raise ValueError(
            f"{found.folder} was trained from another model than {parts.run.model.path}: choose another output_dir"
        )
    parts.policy.load(found.folder / "policy")
    if is_main():
        cache = parts.generator.reuse.cache
        cache.load(found.folder)
        parts.drafter.load(found.folder)
        if parts.engine is not None and parts.drafter.engine_learns:
            parts.engine.observe([rollout for _, rollout in cache])
    step: int = broadcast(found.step)
    return step
