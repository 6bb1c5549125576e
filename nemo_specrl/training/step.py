"""One step, as the data walks it: refit -> rollouts -> rewards -> log-probs -> advantages -> update -> cache."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from nemo_specrl.algorithms import build_rows, policy_loss, split_groups
from nemo_specrl.policy.base import Row
from nemo_specrl.rewards import RewardResult
from nemo_specrl.rollout.generator import RolloutBatch
from nemo_specrl.speculation.prefix_reuse import behaviour_logprobs
from nemo_specrl.training.acceptance import acceptance_by_reward
from nemo_specrl.training.gate import check_acceptance, run_canary
from nemo_specrl.training.parts import Parts
from nemo_specrl.training.plan import StepPlan
from nemo_specrl.training.ranks import broadcast, is_main
from nemo_specrl.training.refit import refit
from nemo_specrl.types import FloatArray, Prompt, Rollout


@dataclass
class StepResult:
    """What one step produced. `metrics` is complete on rank 0."""

    metrics: dict[str, float]
    prompts: list[Prompt]
    rollouts: list[Rollout]
    """[prompts x group], slot fastest."""
    rewards: list[RewardResult]


@dataclass
class Clock:
    """Seconds per phase of a step."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def run_step(parts: Parts, plan: StepPlan) -> StepResult:
    """One training step. Collective; deterministic given the configuration, the seed and the state before it."""
    run, policy = parts.run, parts.policy
    clock = Clock()
    prompts = [parts.prompts[i] for i in plan.prompts]
    say = parts.progress.phase
    with clock.phase("step"):
        with clock.phase("refit"):
            say("refit")
            refit(parts)
        canary = {}
        if run.gate.canary_every and plan.step % run.gate.canary_every == 0:
            with clock.phase("canary"):
                canary = run_canary(parts, prompts, step=plan.step)
        say("rollouts", len(prompts) * run.algorithm.group_size)
        batch = parts.generator.rollouts(prompts, step=plan.step, epoch=plan.epoch, version=policy.version)
        check_acceptance(parts, batch.spec, step=plan.step)
        with clock.phase("reward"):
            say("rewards")
            rewards = score_rewards(parts, prompts, batch.rollouts)
        with clock.phase("logprob"):
            say("log-probs")
            rollouts, entropy = with_policy_logprobs(parts, batch)
        values = np.array([r.value for r in rewards])
        valid = np.array([r.valid for r in rewards])
        with clock.phase("update"):
            say("update")
            trained = update(parts, rollouts, values, valid, step=plan.step)
        # A resumed history drafter learns from the cache, too; without either it would be ballast in every checkpoint.
        remembers = run.reuse.rule != "off" or run.drafter.method == "history"
        if is_main():
            for rollout in rollouts if remembers else ():
                parts.cache.put(rollout, plan.epoch)
            parts.observe(rollouts)
            if run.drafter.method == "mtp":
                parts.tokens.observe(rollouts)
    clock.seconds |= {"verify": batch.verify_s, "plan": batch.plan_s, "generate": batch.generate_s}
    clock.seconds["rollout"] = batch.verify_s + batch.plan_s + batch.generate_s
    metrics: dict[str, float] = {f"time/{name}_s": seconds for name, seconds in clock.seconds.items()}
    metrics |= {name if name.startswith("draft/") else f"train/{name}": value for name, value in trained.items()}
    metrics |= batch.metrics() | entropy | canary | reward_metrics(values, valid, rollouts)
    metrics |= acceptance_by_reward(batch.row_spec, values, valid)
    if remembers:
        metrics |= parts.cache.metrics()
    metrics |= {"train/epoch": plan.epoch, "train/policy_version": policy.version}
    return StepResult(metrics, prompts, rollouts, rewards)


def score_rewards(parts: Parts, prompts: Sequence[Prompt], rollouts: Sequence[Rollout]) -> list[RewardResult]:
    """[n] rewards in the order of the rollouts, the same on every rank."""
    results: list[RewardResult] | None = None
    if parts.reward is not None:
        group = parts.run.algorithm.group_size
        texts = [parts.decode(r.token_ids) for r in rollouts]
        results = parts.reward.score([(prompts[i // group], text) for i, text in enumerate(texts)])
    results = broadcast(results)
    assert results is not None
    return results


def with_policy_logprobs(parts: Parts, batch: RolloutBatch) -> tuple[list[Rollout], dict[str, float]]:
    """The rollouts with the policy's log-probs; the policy's entropy over all positions that were looked at in this
    step; the gap between the engine's log-probs of the tokens that it drew and the trainer's. Rows that were verified
    whole have their log-probs already and are not computed a second time."""
    rollouts, verified = batch.rollouts, batch.stats.sums
    todo = [i for i, rollout in enumerate(rollouts) if rollout.policy_logprobs is None]
    scores = parts.policy.score([Row(rollouts[i].prompt_ids, rollouts[i].token_ids) for i in todo])
    out = list(rollouts)
    gap_sum, gap_max, gap_n = 0.0, 0.0, 0
    entropy_sum, entropy_n = verified.entropy, verified.positions
    for i, score in zip(todo, scores, strict=True):
        rollout = rollouts[i]
        out[i] = rollout.with_(policy_logprobs=score.logprobs)
        drawn = slice(rollout.length - batch.row_drawn[i], None)
        gap = np.abs(score.logprobs[drawn] - rollout.logprobs[drawn])
        gap_sum, gap_n = gap_sum + float(gap.sum()), gap_n + gap.size
        gap_max = max(gap_max, float(gap.max(initial=0.0)))
        entropy_sum, entropy_n = entropy_sum + float(score.entropy.sum()), entropy_n + score.entropy.size
    metrics = {"rollout/entropy": entropy_sum / entropy_n} if entropy_n else {}
    if gap_n:
        metrics |= {"gate/logprob_gap": gap_sum / gap_n, "gate/logprob_gap_max": gap_max}
    return out, metrics


def update(
    parts: Parts, rollouts: Sequence[Rollout], values: np.ndarray, valid: np.ndarray, *, step: int
) -> dict[str, float]:
    """`updates_per_step` optimizer updates on mini-batches of whole groups, of the draft head, too, in every
    `drafter.head.every`-th step; the mean of their metrics."""
    config, reuse = parts.run.algorithm, parts.run.reuse
    every = parts.run.drafter.head.every
    learns = parts.policy.head is not None and every > 0 and step % every == 0
    reference = None
    if config.kl_coef > 0:
        scores = parts.policy.score([Row(r.prompt_ids, r.token_ids) for r in rollouts], reference=True)
        reference = [score.logprobs for score in scores]
    if parts.policy.head is not None and every > 0:  # a fresh head drafts from the next step on, whether it learns now
        parts.policy.start_head([Row(r.prompt_ids, r.token_ids) for r in rollouts])
    loss = policy_loss(config)
    results = []
    for batch in split_groups([r.prompt_key for r in rollouts], config.updates_per_step):
        chosen = [rollouts[i] for i in batch]
        old = [_policy_logprobs(r) for r in chosen]
        rows = build_rows(
            config,
            chosen,
            values[batch],
            valid[batch],
            old_logprobs=old,
            behaviour_logprobs=[
                behaviour_logprobs(r, logprobs, reuse.correction) for r, logprobs in zip(chosen, old, strict=True)
            ],
            ref_logprobs=None if reference is None else [reference[i] for i in batch],
        )
        weights = [1.0] * len(rows) if learns else None
        results.append(parts.policy.update(rows, loss, loss_level=config.loss_level, head_weights=weights))
    names = set().union(*results)
    return {name: float(np.mean([r[name] for r in results if name in r])) for name in sorted(names)}


def _policy_logprobs(rollout: Rollout) -> FloatArray:
    assert rollout.policy_logprobs is not None, "with_policy_logprobs comes before the update"
    return rollout.policy_logprobs


def reward_metrics(values: np.ndarray, valid: np.ndarray, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Mean and spread over the samples that could be verified."""
    good = values[valid]
    metrics = {
        "reward/n": float(good.size),
        "reward/invalid": float((~valid).sum()),
        "rollout/length_mean": float(np.mean([r.length for r in rollouts])),
        "rollout/truncated": float(sum(r.finish_reason == "length" for r in rollouts)),
    }
    if good.size:
        metrics |= {"reward/mean": float(good.mean()), "reward/std": float(good.std())}
    return metrics
