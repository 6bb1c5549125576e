"""One step, as the data walks it: refit -> rollouts -> rewards -> log-probs -> advantages -> update -> cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from nemo_specrl.algorithms.rows import split_groups
from nemo_specrl.contracts.algorithm import Algorithm
from nemo_specrl.contracts.drafter import Drafter
from nemo_specrl.contracts.policy import Policy
from nemo_specrl.contracts.rows import Row
from nemo_specrl.contracts.sample import RewardResult, Sample
from nemo_specrl.drafting.acceptance import acceptance_by_reward
from nemo_specrl.rewards import Scorer
from nemo_specrl.speculation.verifier import Sums
from nemo_specrl.training.parts import Parts
from nemo_specrl.training.plan import StepPlan
from nemo_specrl.training.ranks import broadcast, is_main
from nemo_specrl.types import IntArray


@dataclass
class StepResult:
    """What one step produced; complete on rank 0."""

    metrics: dict[str, float]
    samples: list[Sample]
    """[prompts x group], slot fastest."""


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
    run, policy, drafter = parts.run, parts.policy, parts.drafter
    clock = Clock()
    prompts = [parts.prompts[i] for i in plan.prompts]
    say = parts.progress.phase
    with clock.phase("step"):
        with clock.phase("refit"):
            say("refit")
            parts.refit()
        canary = {}
        if run.gate.canary_every and plan.step % run.gate.canary_every == 0:
            with clock.phase("canary"):
                canary = parts.gate.canary(prompts, step=plan.step)
        say("rollouts", len(prompts) * run.algorithm.group_size)
        batch = parts.generator.rollouts(prompts, step=plan.step, epoch=plan.epoch, version=policy.version)
        verdict = drafter.verdict(batch.spec) if is_main() else None
        parts.gate.judge([] if verdict is None else [verdict], plan.step)
        with clock.phase("reward"):
            say("rewards")
            samples = with_rewards(parts.reward, parts.decode, batch.samples)
        with clock.phase("logprob"):
            say("log-probs")
            samples, entropy = with_policy_logprobs(policy, samples, batch.stats.sums)
        with clock.phase("update"):
            say("update")
            if run.algorithm.kl_coef > 0:
                samples = with_reference_logprobs(policy, samples)
            drafter.start([sample.rollout for sample in samples])
            trained = update(
                policy, parts.algorithm, samples, drafter, mini_batches=run.algorithm.updates_per_step, step=plan.step
            )
        rollouts = [sample.rollout for sample in samples]
        if is_main():
            if parts.remembers:
                parts.generator.reuse.remember(rollouts, plan.epoch)
            if parts.engine is not None and drafter.engine_learns:
                parts.engine.observe(rollouts)
            drafter.observe(rollouts)
    clock.seconds |= {"verify": batch.verify_s, "plan": batch.plan_s, "generate": batch.generate_s}
    clock.seconds["rollout"] = batch.verify_s + batch.plan_s + batch.generate_s
    metrics: dict[str, float] = {f"time/{name}_s": seconds for name, seconds in clock.seconds.items()}
    metrics |= {name if "/" in name else f"train/{name}": value for name, value in trained.items()}
    metrics |= batch.metrics() | entropy | canary | reward_metrics(samples) | acceptance_by_reward(samples)
    if parts.remembers:
        metrics |= parts.generator.reuse.cache.metrics()
    metrics |= {"train/epoch": plan.epoch, "train/policy_version": policy.version}
    return StepResult(metrics, samples)


def with_rewards(reward: Scorer | None, decode: Callable[[IntArray], str], samples: Sequence[Sample]) -> list[Sample]:
    """The samples, scored; the same on every rank. `reward` is None but on one rank."""
    results: list[RewardResult] | None = None
    if reward is not None:
        results = reward.score([(sample.prompt, decode(sample.rollout.token_ids)) for sample in samples])
    results = broadcast(results)
    assert results is not None
    return [sample.with_(reward=result) for sample, result in zip(samples, results, strict=True)]


def with_policy_logprobs(
    policy: Policy, samples: Sequence[Sample], verified: Sums
) -> tuple[list[Sample], dict[str, float]]:
    """The samples with the policy's log-probs; the policy's entropy over all positions that were looked at in this
    step; the gap between the engine's log-probs of the tokens that it drew and the trainer's. Rows that were verified
    whole have their log-probs already and are not computed a second time."""
    todo = [i for i, sample in enumerate(samples) if sample.rollout.policy_logprobs is None]
    scores = policy.score([Row(samples[i].rollout.prompt_ids, samples[i].rollout.token_ids) for i in todo])
    out = list(samples)
    gap_sum, gap_max, gap_n = 0.0, 0.0, 0
    entropy_sum, entropy_n = verified.entropy, verified.positions
    for i, score in zip(todo, scores, strict=True):
        rollout = samples[i].rollout
        out[i] = samples[i].with_(rollout=rollout.with_(policy_logprobs=score.logprobs))
        drawn = slice(rollout.length - samples[i].drawn, None)
        gap = np.abs(score.logprobs[drawn] - rollout.logprobs[drawn])
        gap_sum, gap_n = gap_sum + float(gap.sum()), gap_n + gap.size
        gap_max = max(gap_max, float(gap.max(initial=0.0)))
        entropy_sum, entropy_n = entropy_sum + float(score.entropy.sum()), entropy_n + score.entropy.size
    metrics = {"rollout/entropy": entropy_sum / entropy_n} if entropy_n else {}
    if gap_n:
        metrics |= {"gate/logprob_gap": gap_sum / gap_n, "gate/logprob_gap_max": gap_max}
    return out, metrics


def with_reference_logprobs(policy: Policy, samples: Sequence[Sample]) -> list[Sample]:
    """The samples with the reference policy's log-probs."""
    rows = [Row(sample.rollout.prompt_ids, sample.rollout.token_ids) for sample in samples]
    scores = policy.score(rows, reference=True)
    return [sample.with_(ref_logprobs=score.logprobs) for sample, score in zip(samples, scores, strict=True)]


def update(
    policy: Policy, algorithm: Algorithm, samples: Sequence[Sample], drafter: Drafter, *, mini_batches: int, step: int
) -> dict[str, float]:
    """An optimizer update on each of so many mini-batches of whole groups, and of what the drafter learns by; the mean
    of their metrics."""
    loss = algorithm.loss()
    results = []
    for batch in split_groups(samples, mini_batches):
        rows = algorithm.rows(batch)
        lessons = drafter.lessons(len(rows), step)
        results.append(policy.update(rows, loss, loss_level=algorithm.loss_level, lessons=lessons))
    names = set().union(*results)
    return {name: float(np.mean([r[name] for r in results if name in r])) for name in sorted(names)}


def reward_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Mean and spread over the samples that could be verified."""
    good = np.array([sample.score.value for sample in samples if sample.score.valid])
    metrics = {
        "reward/n": float(good.size),
        "reward/invalid": float(len(samples) - good.size),
        "rollout/length_mean": float(np.mean([sample.rollout.length for sample in samples])),
        "rollout/truncated": float(sum(sample.rollout.finish_reason == "length" for sample in samples)),
    }
    if good.size:
        metrics |= {"reward/mean": float(good.mean()), "reward/std": float(good.std())}
    return metrics
