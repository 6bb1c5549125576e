"""The last lines of a run: where things are, and what was gained."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from nemo_specrl.config.run import RunConfig
from nemo_specrl.config.validate import lossy_stamp
from nemo_specrl.reporting import load_run, run_report
from nemo_specrl.reporting.gain import Gain, reuse_gain
from nemo_specrl.training.loop import Outcome


def summarise(run: RunConfig, folder: Path, outcome: Outcome) -> None:
    """Print the summary and write the report."""
    console = Console(highlight=False, soft_wrap=True)
    history = load_run(folder)
    new, reused = history.total("rollout/new_tokens"), history.total("rollout/reused_tokens")
    console.rule(f"{run.name}: {outcome.steps} of {outcome.total} steps" + (" (stopped)" if outcome.stopped else ""))
    if outcome.stopped:
        console.print(f"stopped      {outcome.stopped}; the same command continues from step {outcome.steps}")
    rewards = history.series("reward/mean")
    if len(rewards) >= 2:
        part = max(len(rewards) // 4, 1)
        first, last = rewards[:part].mean(), rewards[-part:].mean()
        console.print(f"mean reward  {first:.3f} -> {last:.3f}  (first and last {part} step(s) of {len(rewards)})")
    if new + reused:
        share = reused / (new + reused)
        console.print(f"tokens       {new:,.0f} generated, {reused:,.0f} reused ({share:.0%} of all response tokens)")
    console.print(
        f"time         {history.total('time/step_s'):.0f} s in steps, of which rollouts "
        f"{history.total('time/rollout_s'):.0f} s (verification {history.total('time/verify_s'):.0f} s included), "
        f"update {history.total('time/update_s'):.0f} s"
    )
    if run.reuse.rule != "off" and reused and (gain := reuse_gain(history)) is not None:
        for line in gain_lines(gain, drafts=run.drafter.method != "off"):
            console.print(line)
    if stamp := lossy_stamp(run):
        console.print(f"law          changed on purpose: {stamp}")
    console.print(f"report       {run_report(folder)}")
    console.print(f"run folder   {folder}")


def gain_lines(gain: Gain, *, drafts: bool) -> list[str]:
    """What a newcomer wants to know, and what it is worth: two lines. `drafts`: the run has a drafter, too, whose part
    in it cannot be told apart."""
    means = "reuse (and drafts since)" if drafts else "reuse"
    return [
        f"gained       a step took {gain.step_s:.1f} s from epoch 2 on, without {means} it would have taken about "
        f"{gain.step_without_s:.1f} s: {_speed(gain.step_speedup)} (rollouts and verification {gain.rollout_s:.1f} s, "
        f"without about {gain.rollout_without_s:.1f} s: {_speed(gain.rollout_speedup)})",
        f"             an estimate, from {1000 * gain.token_s:.1f} ms a response token in {gain.first_steps} steps of "
        "epoch 1, where nothing is reused; nemo-specrl bench measures it side by side",
    ]


def _speed(ratio: float) -> str:
    return f"{ratio:.1f}x as fast" if ratio >= 1 else f"slower, {ratio:.2f}x"
