"""`nemo-specrl prepare`: fetch or convert the model, and check all that a training would; nothing is trained."""

from __future__ import annotations

from nemo_specrl.config.arguments import compose_arguments
from nemo_specrl.config.compose import to_run_config


def prepare_command(args: list[str]) -> int:
    """The verb. What it calls ready, `train` takes: both make the same checks."""
    from rich.console import Console

    from nemo_specrl.models import model_digest
    from nemo_specrl.training.checks import check_run

    _, tree = compose_arguments(args)
    run = to_run_config(tree)
    found = check_run(run)
    console = Console(highlight=False, soft_wrap=True)
    model, prompts = found.model, found.prompts
    console.print(f"model    {model.path} ({model.family}, {model.vocab_size} rows), digest {model_digest(model.path)}")
    lengths = sorted(len(p.token_ids) for p in prompts)
    console.print(
        f"data     {len(prompts)} prompts from {run.data.source}, {lengths[0]} to {lengths[-1]} tokens "
        f"(median {lengths[len(lengths) // 2]})"
    )
    console.print(f"example  {prompts[0].text!r} -> {prompts[0].answer!r}", markup=False)
    console.print("ready: the same arguments after `nemo-specrl train`")
    return 0
