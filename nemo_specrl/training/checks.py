"""Everything that can be known before weights are loaded: one function, which every verb that runs calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nemo_specrl.config.run import RunConfig
from nemo_specrl.contracts.drafter import Drafter
from nemo_specrl.data import PromptData, load_prompt_data, split_validation
from nemo_specrl.drafting import make_drafter
from nemo_specrl.models import ModelFolder, Tokenizer, load_tokenizer, resolve_model
from nemo_specrl.models.architecture import read_architecture
from nemo_specrl.models.folder import read_json
from nemo_specrl.rewards import load_reward
from nemo_specrl.rollout.vllm import limits, versions
from nemo_specrl.speculation.transform import NEEDED_TOKENS
from nemo_specrl.training.folder import output_folder, rendering_date
from nemo_specrl.types import Prompt


@dataclass(frozen=True)
class Material:
    """What a run is made from, found and checked."""

    model: ModelFolder
    tokenizer: Tokenizer
    prompts: list[Prompt]
    """Trained on."""
    validation: list[Prompt]
    """Held out."""
    data: PromptData
    """Both, and what they were read from."""


def check_run(run: RunConfig, phase: Callable[[str], None] = lambda name: None) -> Material:
    """ValueError, with the remedies, for whatever this run cannot do on this machine. Converts or downloads the model
    where it must; `phase` is told what is being done. Safe to call from every rank at once."""
    if run.trainer.name != "local":
        raise ValueError(f"trainer={run.trainer.name} runs NeMo RL's own driver in a Slurm job: use nemo-specrl submit")
    vllm = versions.installed()
    drafter = check_settings(run, vllm)
    reward = load_reward(run.reward.name)
    phase("model")
    model = resolve_model(run.model)
    read_architecture(model.path)
    limits.check_model(drafter, read_json(model.path / "config.json"), max_length=run.model.max_length, cpu=vllm.cpu)
    drafter.check_model(model.path)
    tokenizer = load_tokenizer(model)
    phase("data")
    day = rendering_date(output_folder(run))
    data = load_prompt_data(run.data, tokenizer, run.model.max_length, run.sampling.max_new_tokens, rendered_on=day)
    for prompt in data.prompts:
        reward.check(prompt)
    held_out = run.trainer.val_prompts if run.trainer.val_every else 0
    prompts, validation = split_validation(data.prompts, held_out)
    return Material(model, tokenizer, prompts, validation, data)


def check_settings(run: RunConfig, vllm: versions.Installed) -> Drafter:
    """The part that needs neither model nor data; returns the drafter. ValueError as for the whole."""
    drafter = make_drafter(run.drafter)
    if faults := list(drafter.faults(run)):
        raise ValueError("\n".join(faults))
    vllm.check_method(drafter.name, has_head=drafter.has_head)
    limits.check(run.engine, run.sampling, drafter, cpu=vllm.cpu)
    load_reward(run.reward.name)
    tokens = run.gate.samples * min(run.gate.tokens_per_sample, run.sampling.max_new_tokens)
    if run.gate.enabled and tokens < NEEDED_TOKENS:
        raise ValueError(
            f"gate.samples={run.gate.samples} of {tokens // run.gate.samples} tokens are {tokens} tokens, and the "
            f"gate needs at least {NEEDED_TOKENS}: raise gate.samples or gate.tokens_per_sample"
        )
    return drafter
