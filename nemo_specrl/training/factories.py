"""A run's parts from its configuration, one function each: the trainer and the benches build with the same ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_specrl.config.run import RunConfig
from nemo_specrl.config.validate import log_lenience
from nemo_specrl.contracts.drafter import Drafter
from nemo_specrl.contracts.engine import Engine
from nemo_specrl.contracts.policy import Policy
from nemo_specrl.models import ModelFolder
from nemo_specrl.rollout.generator import RolloutGenerator, Share, alone
from nemo_specrl.rollout.verifiers import EngineVerifies, PolicyVerifies
from nemo_specrl.rollout.vllm.engine import VllmEngine
from nemo_specrl.speculation.acceptance import make_rule
from nemo_specrl.speculation.cache import RolloutCache
from nemo_specrl.speculation.reuse import Reuse

if TYPE_CHECKING:
    from nemo_specrl.policy.megatron.policy import MegatronPolicy


def make_policy(run: RunConfig, model: ModelFolder, *, total_updates: int | None) -> MegatronPolicy:
    """The policy, at the model's weights. Collective. `total_updates`: the run's length, for schedules that decay."""
    from nemo_specrl.policy.megatron.policy import MegatronPolicy  # Megatron takes seconds to import

    return MegatronPolicy(model.path, run.policy, run.sampling, seed=run.seed, total_updates=total_updates)


def make_engine(
    run: RunConfig,
    model: ModelFolder,
    drafter: Drafter,
    *,
    log: Path,
    head: Path | None = None,
    slots: int | None = None,
) -> Engine:
    """The engine, serving the model's weights. `head`: a draft head's folder, for a drafter that has one. `slots`:
    engine.max_num_seqs by default."""
    engine = run.engine if slots is None else replace(run.engine, max_num_seqs=slots)
    return VllmEngine(
        model.path,
        engine,
        run.sampling,
        drafter,
        max_length=run.model.max_length,
        seed=run.seed,
        eos_token_ids=model.eos_token_ids,
        log=log,
        head=head,
    )


def make_cache(run: RunConfig, *, keep: int = 0) -> RolloutCache:
    """An empty cache; `keep`: epochs that are kept for more than reuse."""
    return RolloutCache(run.reuse.cache_mib * 2**20, delay=run.reuse.delay, max_age=run.reuse.max_age, keep=keep)


def make_reuse(run: RunConfig, model: ModelFolder, cache: RolloutCache) -> Reuse:
    """The configured rule over `cache`."""
    rule = None if run.reuse.rule == "off" else make_rule(run.reuse.rule, log_lenience(run))
    wants_law = rule is not None and (rule.needs_topk or run.reuse.correction != "none")
    return Reuse(
        rule,
        cache,
        limit=run.sampling.max_new_tokens,
        eos_ids=model.eos_token_ids,
        vocab_size=model.vocab_size,
        seed=run.seed,
        topk=min(run.reuse.topk, model.vocab_size) if wants_law else 0,
    )


def make_generator(
    run: RunConfig,
    policy: Policy,
    engine: Engine | None,
    reuse: Reuse,
    *,
    share: Share = alone,
    on_progress: Callable[[int], None] | None = None,
) -> RolloutGenerator:
    """Rollouts of the policy's law."""
    verifies = PolicyVerifies(policy) if run.reuse.verifier == "policy" else EngineVerifies(engine)
    return RolloutGenerator(
        engine,
        reuse,
        verifies,
        group_size=run.algorithm.group_size,
        seed=run.seed,
        share=share,
        on_progress=on_progress,
    )
