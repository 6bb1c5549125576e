"""What a run's fields must satisfy, alone and together. Runs before anything heavy is loaded; no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

from nemo_specrl.config.run import RunConfig

CHOICES: dict[str, tuple[str, ...]] = {
    "algorithm.name": ("grpo", "dapo"),
    "algorithm.loss_level": ("token", "sequence"),
    "reuse.rule": ("off", "lenient", "exact", "block", "one_hot", "full", "random"),
    "reuse.correction": ("none", "behaviour"),
    "reuse.verifier": ("policy", "engine"),
    "drafter.head.loss": ("kl", "acceptance"),
    "schedule.name": ("fixed",),
    "policy.dtype": ("bf16", "fp32"),
    "policy.hf_mapping": ("own", "bridge"),
    "policy.lr_schedule": ("constant", "cosine", "linear"),
    "engine.dtype": ("bf16", "fp32"),
    "trainer.name": ("local", "nemo_rl"),
    "trainer.task": ("rl", "warmup"),
    "bench.kind": ("trainings", "rollouts"),
}
AT_LEAST: dict[str, float] = {
    "model.max_length": 2,
    "data.max_prompt_tokens": 1,
    "data.size": 1,
    "reward.workers": 1,
    "algorithm.group_size": 2,
    "algorithm.prompts_per_step": 1,
    "algorithm.updates_per_step": 1,
    "algorithm.kl_coef": 0,
    "algorithm.max_behaviour_ratio": 1,
    "sampling.top_k": 0,
    "sampling.max_new_tokens": 1,
    "reuse.topk": 1,
    "reuse.max_age": 1,
    "reuse.delay": 1,
    "reuse.cache_mib": 1,
    "drafter.num_draft_tokens": 1,
    "drafter.window": 1,
    "drafter.min_match": 1,
    "drafter.head.lr": 0,
    "drafter.head.clip_grad": 0,
    "drafter.head.every": 0,
    "drafter.head.depth": 1,
    "drafter.head.depth_decay": 0,
    "drafter.head.topk": 0,
    "drafter.head.vocabulary": 0,
    "drafter.head.acceptance_floor": 0,
    "drafter.head.floor_patience": 0,
    "policy.tensor_parallel": 1,
    "policy.pipeline_parallel": 1,
    "policy.micro_batch_tokens": 1,
    "policy.lr": 0,
    "policy.warmup_steps": 0,
    "policy.clip_grad": 0,
    "engine.max_num_seqs": 1,
    "engine.tensor_parallel": 1,
    "gate.samples": 32,
    "gate.tokens_per_sample": 1,
    "gate.canary_every": 0,
    "trainer.epochs": 1,
    "trainer.val_every": 0,
    "trainer.checkpoint_every": 0,
    "trainer.keep_checkpoints": 2,
    "evaluation.samples": 1,
    "bench.repeats": 1,
    "bench.from_epoch": 1,
    "bench.rollouts_per_slot": 1,
    "drafter.max_active": 1,
    "drafter.max_slots": 0,
    "engine.threads": 0,
    "policy.weight_decay": 0,
    "policy.min_lr": 0,
    "gate.logprob_warn": 0,
    "trainer.val_prompts": 0,
}
POSITIVE = (
    "reward.timeout_s",
    "engine.kv_cache_gib",
    "engine.start_timeout_s",
    "gate.logprob_breach",
    "policy.eps",
    "sampling.temperature",
)
SHARES = ("reward.max_error_fraction", "drafter.min_probability")
"""Must lie in [0, 1]."""
DEFAULT_LOG_LENIENCE = {"grpo": 0.5, "dapo": 0.15}
"""SPEC-RL's default ell = e^x per algorithm (arXiv 2509.23232)."""
BIASED_RULES = ("lenient", "full", "random")


def log_lenience(run: RunConfig) -> float:
    """The natural log of ell that the run uses."""
    given = run.reuse.log_lenience
    return DEFAULT_LOG_LENIENCE[run.algorithm.name] if given is None else given


def lossy_stamp(run: RunConfig) -> str:
    """What about this run changes the sampled law on purpose; empty = nothing. Recorded with the run."""
    parts = []
    if run.reuse.rule in BIASED_RULES:
        parts.append(f"reuse={run.reuse.rule}")
    if run.drafter.method != "off" and run.drafter.allow_lossy:
        parts.append(f"drafter verifier={run.drafter.rejection_sample_method}")
    if not run.gate.enabled:
        parts.append("gate off")
    return ", ".join(parts)


def validate(run: RunConfig) -> None:
    """ValueError that names every key at fault and the remedy."""
    faults = list(_faults(run))
    if faults:
        raise ValueError("\n".join(faults))


def _faults(run: RunConfig) -> Iterator[str]:
    for key, choices in CHOICES.items():
        value = attrgetter(key)(run)
        if value not in choices:
            yield f"{key}={value}: must be one of {', '.join(choices)}"
    for key, least in AT_LEAST.items():
        value = attrgetter(key)(run)
        if value is not None and value < least:
            yield f"{key}={value}: must be at least {least:g}"
    for key in POSITIVE:
        if not attrgetter(key)(run) > 0:
            yield f"{key}={attrgetter(key)(run)}: must be positive"
    for key in SHARES:
        if not 0 <= attrgetter(key)(run) <= 1:
            yield f"{key}={attrgetter(key)(run)}: must lie between 0 and 1"
    for key, value in _floats(run):
        if not math.isfinite(value):
            yield f"{key}={value}: must be a finite number"
    yield from _sampling_faults(run)
    yield from _reuse_faults(run)
    yield from _loop_faults(run)


def _floats(part: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every float field and its key."""
    for item in fields(part):
        value = getattr(part, item.name)
        if is_dataclass(value):
            yield from _floats(value, f"{prefix}{item.name}.")
        elif isinstance(value, float):
            yield f"{prefix}{item.name}", value


def _sampling_faults(run: RunConfig) -> Iterator[str]:
    if not 0 < run.sampling.top_p <= 1:
        yield f"sampling.top_p={run.sampling.top_p}: must be in (0, 1]"
    if run.sampling.max_new_tokens >= run.model.max_length:
        yield (
            f"sampling.max_new_tokens={run.sampling.max_new_tokens} leaves no room for a prompt in "
            f"model.max_length={run.model.max_length}: lower the one or raise the other"
        )
    if not 0 < run.engine.gpu_memory_utilization <= 1:
        yield f"engine.gpu_memory_utilization={run.engine.gpu_memory_utilization}: must be in (0, 1]"


def _reuse_faults(run: RunConfig) -> Iterator[str]:
    reuse = run.reuse
    if reuse.log_lenience is not None and reuse.rule != "lenient":
        yield f"reuse.log_lenience is for reuse.rule=lenient only, not {reuse.rule}: drop it, or choose reuse=lenient"
    if reuse.log_lenience is not None and reuse.log_lenience < 0:
        yield f"reuse.log_lenience={reuse.log_lenience}: must be 0 (ell = 1) or more"
    if reuse.correction == "behaviour" and reuse.rule != "lenient":
        yield f"reuse.correction=behaviour corrects lenient reuse; reuse.rule={reuse.rule} needs none: drop it"
    if reuse.verifier == "engine":
        if reuse.rule not in ("lenient", "one_hot"):
            yield (
                f"reuse.verifier=engine returns the drawn tokens' log-probs only, and reuse.rule={reuse.rule} needs "
                "the whole law: use reuse.verifier=policy"
            )
        if reuse.correction == "behaviour":
            yield "reuse.correction=behaviour needs the law's top candidates: use reuse.verifier=policy"
        if run.sampling.temperature != 1 or run.sampling.top_p != 1 or run.sampling.top_k:
            yield (
                "reuse.verifier=engine: the engine's prompt log-probs are those of temperature 1 without truncation: "
                "use reuse.verifier=policy, or sampling.temperature=1 sampling.top_p=1 sampling.top_k=0"
            )
    if reuse.max_age < reuse.delay:
        yield f"reuse.delay={reuse.delay} epochs needs reuse.max_age of at least that (it is {reuse.max_age})"


def _loop_faults(run: RunConfig) -> Iterator[str]:
    algorithm, trainer = run.algorithm, run.trainer
    if trainer.task == "warmup" and run.reuse.rule != "off":
        yield f"trainer.task=warmup draws every rollout afresh, once: reuse.rule={run.reuse.rule} must be off"
    if algorithm.updates_per_step > algorithm.prompts_per_step:
        yield (
            f"algorithm.updates_per_step={algorithm.updates_per_step}: a mini-batch is made of whole groups, and there "
            f"are only algorithm.prompts_per_step={algorithm.prompts_per_step} of them"
        )
    if not 0 < algorithm.clip_low < 1:
        yield f"algorithm.clip_low={algorithm.clip_low}: must lie between 0 and 1"
    if algorithm.clip_high <= 0:
        yield f"algorithm.clip_high={algorithm.clip_high}: must be positive"
    if trainer.max_steps is not None and trainer.max_steps < 1:
        yield f"trainer.max_steps={trainer.max_steps}: must be at least 1, or null for all epochs"
    if not run.bench.slots or min(run.bench.slots) < 1:
        yield f"bench.slots={list(run.bench.slots)}: give at least one number of engine slots, e.g. [1,8,32]"
    if not all(0 <= beta < 1 for beta in run.policy.betas):
        yield f"policy.betas={list(run.policy.betas)}: each must lie in [0, 1)"
    for key, text in (("name", run.name), ("output_dir", run.output_dir)):
        if not text.strip():
            yield f"{key} is empty: give one"
    if run.data.limit is not None and run.data.limit < 1:
        yield f"data.limit={run.data.limit}: must be at least 1, or null for all rows"
    if not run.data.source:
        yield "data.source is empty: give a file, or a datasets name"
    if "{prompt}" not in run.data.prompt_template:
        yield f"data.prompt_template={run.data.prompt_template!r}: must contain {{prompt}}"
    missing = {"prompt", "answer"} - set(run.data.columns)
    if run.data.source != "arithmetic" and missing:
        yield f"data.columns lacks {', '.join(sorted(missing))}: map our field to the source's column"
