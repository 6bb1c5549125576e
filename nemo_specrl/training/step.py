"""One step, as the data walks it: refit -> rollouts -> rewards -> log-probs -> advantages -> update -> cache."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from nemo_specrl.algorithms import build_rows, group_advantages, policy_loss, split_groups
from nemo_specrl.policy.base import Row
from nemo_specrl.rewards import RewardResult
from nemo_specrl.training.parts import Parts
from nemo_specrl.training.plan import StepPlan
from nemo_specrl.training.ranks import broadcast, is_main
from nemo_specrl.training.refit import refit
from nemo_specrl.types import Prompt, Rollout


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
        say("rollouts", len(prompts) * run.algorithm.group_size)
        batch = parts.generator.rollouts(prompts, step=plan.step, epoch=plan.epoch, version=policy.version)
        with clock.phase("reward"):
            say("rewards")
            rewards = score_rewards(parts, prompts, batch.rollouts)
        with clock.phase("logprob"):
            say("log-probs")
            rollouts, entropy = with_policy_logprobs(parts, batch.rollouts, batch.stats.entropy)
        values = np.array([r.value for r in rewards])
        valid = np.array([r.valid for r in rewards])
        group = np.repeat(np.arange(len(prompts)), run.algorithm.group_size)
        advantages = group_advantages(values, valid, group, normalize_std=run.algorithm.normalize_std)
        with clock.phase("update"):
            say("update")
            trained = update(parts, rollouts, advantages, values, valid, group)
        if is_main():
            parts.cache.put(rollouts, epoch=plan.epoch)
            parts.observe(rollouts)
    clock.seconds |= {"verify": batch.verify_s, "plan": batch.plan_s, "generate": batch.generate_s}
    clock.seconds["rollout"] = batch.verify_s + batch.plan_s + batch.generate_s
    metrics: dict[str, float] = {f"time/{name}_s": seconds for name, seconds in clock.seconds.items()}
    metrics |= {f"train/{name}": value for name, value in trained.items()}
    metrics |= batch.metrics() | entropy | reward_metrics(values, valid, rollouts)
    metrics |= {"train/epoch": plan.epoch, "train/policy_version": policy.version}
    return StepResult(metrics, prompts, rollouts, rewards)


def score_rewards(parts: Parts, prompts: Sequence[Prompt], rollouts: Sequence[Rollout]) -> list[RewardResult]:
    """[n] rewards in the order of the rollouts, the same on every rank."""
    results: list[RewardResult] | None = None
    if is_main():
        group = parts.run.algorithm.group_size
        texts = [parts.decode(r.token_ids) for r in rollouts]
        results = parts.reward.score([(prompts[i // group], text) for i, text in enumerate(texts)])
    results = broadcast(results)
    assert results is not None
    return results


def with_policy_logprobs(
    parts: Parts, rollouts: Sequence[Rollout], verified_entropy: tuple[float, int]
) -> tuple[list[Rollout], dict[str, float]]:
    """The rollouts with the policy's log-probs, and the policy's entropy. Rows that were verified whole already have
    both and are not computed a second time."""
    todo = [i for i, rollout in enumerate(rollouts) if rollout.policy_logprobs is None]
    scores = parts.policy.score([Row(rollouts[i].prompt_ids, rollouts[i].token_ids) for i in todo])
    out = list(rollouts)
    gap_sum, gap_max, gap_n = 0.0, 0.0, 0
    entropy_sum, entropy_n = verified_entropy
    for i, score in zip(todo, scores, strict=True):
        rollout = rollouts[i]
        out[i] = rollout.with_(policy_logprobs=score.logprobs)
        fresh = slice(rollout.reused, None)
        gap = np.abs(score.logprobs[fresh] - rollout.logprobs[fresh])
        gap_sum, gap_n = gap_sum + float(gap.sum()), gap_n + gap.size
        gap_max = max(gap_max, float(gap.max(initial=0.0)))
        entropy_sum, entropy_n = entropy_sum + float(score.entropy.sum()), entropy_n + score.entropy.size
    metrics = {"rollout/entropy": entropy_sum / entropy_n} if entropy_n else {}
    if gap_n:
        metrics |= {"gate/logprob_gap": gap_sum / gap_n, "gate/logprob_gap_max": gap_max}
    return out, metrics


def update(
    parts: Parts,
    rollouts: Sequence[Rollout],
    advantages: np.ndarray,
    values: np.ndarray,
    valid: np.ndarray,
    group: np.ndarray,
) -> dict[str, float]:
    """`updates_per_step` optimizer updates on mini-batches of whole groups; the mean of their metrics."""
    config = parts.run.algorithm
    reference = None
    if config.kl_coef > 0:
        rows = [Row(r.prompt_ids, r.token_ids) for r in rollouts]
        reference = [score.logprobs for score in parts.policy.score(rows, reference=True)]
    rows = build_rows(
        rollouts,
        advantages,
        valid=valid,
        rewards=values,
        group=group,
        config=config,
        correction=parts.run.reuse.correction,
        reference=reference,
    )
    loss = policy_loss(config)
    parts_of_step = split_groups(rows, group, config.updates_per_step)
    results = [parts.policy.update(part, loss, loss_level=config.loss_level) for part in parts_of_step]
    return {name: float(np.mean([r[name] for r in results])) for name in results[0]}


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
