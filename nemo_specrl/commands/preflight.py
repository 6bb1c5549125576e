"""`nemo-specrl preflight`: what can be known here of the run, then one canary on each node that a job would get."""

from __future__ import annotations

from pathlib import Path

from nemo_specrl.config.arguments import compose_arguments
from nemo_specrl.config.compose import to_run_config


def preflight_command(args: list[str]) -> int:
    """The verb. A login machine may hold neither vLLM nor the model: then the job's own start checks the rest."""
    from nemo_specrl.cluster.preflight import preflight

    _, tree = compose_arguments(args)
    run = to_run_config(tree)
    if run.trainer.name == "local":
        try:
            from nemo_specrl.rollout.vllm.versions import installed
            from nemo_specrl.training.checks import check_run, check_settings

            vllm = installed()
        except (ImportError, RuntimeError) as error:
            print(f"preflight: model, data and engine are checked when the job starts, not here ({error})")
        else:
            check_settings(run, vllm)
            if run.model.path.startswith("builtin:") or Path(run.model.path).expanduser().is_dir():
                check_run(run)
            else:
                print(f"preflight: {run.model.path} is not on this machine: it is checked when the job starts")
    return preflight(run)
