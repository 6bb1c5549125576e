"""`nemo-specrl prepare`: fetch or convert the model, check tokenizer and data; nothing is trained."""

from __future__ import annotations

from nemo_specrl.commands.checks import check_run
from nemo_specrl.config.arguments import compose_arguments
from nemo_specrl.config.compose import to_run_config


def prepare_command(args: list[str]) -> int:
    """`nemo-specrl prepare`: fetch or convert the model, check tokenizer and data; nothing is trained."""
    from rich.console import Console

    from nemo_specrl.data import load_prompts
    from nemo_specrl.models import load_tokenizer, model_digest, resolve_model

    _, tree = compose_arguments(args)
    run = to_run_config(tree)
    check_run(run)
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
