"""`nemo-specrl verify`: the lossless gate alone, on the configured engine, drafter and law."""

from __future__ import annotations

import tempfile
from pathlib import Path

from nemo_specrl.config.arguments import compose_arguments
from nemo_specrl.config.compose import to_run_config


def verify_command(args: list[str]) -> int:
    """The verb. Exit code 1 on a breach."""
    _, tree = compose_arguments(args)
    run = to_run_config(tree)
    from nemo_specrl.rollout.gate import GateBreach
    from nemo_specrl.training.checks import check_run
    from nemo_specrl.training.parts import build

    material = check_run(run)
    with (
        tempfile.TemporaryDirectory() as folder,
        build(run, material, Path(folder), resumed=False, track=False) as parts,
    ):
        parts.refit()
        try:
            verdicts = parts.gate.run(parts.prompts, step=0)
        except GateBreach as breach:
            parts.progress.say(f"[red]FAIL[/] {breach}")
            return 1
        for verdict in verdicts:
            parts.progress.say(f"[green]{verdict.status}[/] {verdict.text}")
    return 0
