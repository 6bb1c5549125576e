"""Reuse + engine = rollouts: look up drafts, verify them in one pass, let the engine continue what is not finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from nemo_specrl.config.run import RunConfig
from nemo_specrl.config.validate import log_lenience
from nemo_specrl.policy.base import Policy, Row
from nemo_specrl.rollout.engine import Completion, Engine, GenerationRequest, SpecCounters
from nemo_specrl.speculation import prefix_reuse
from nemo_specrl.speculation.acceptance import Rule, make_rule
from nemo_specrl.speculation.cache import RolloutCache
from nemo_specrl.speculation.prefix_reuse import Plan, ReuseStats
from nemo_specrl.speculation.randomness import engine_seed, generator
from nemo_specrl.speculation.verifier import Draft, Verification, Verifier, verify_logprobs
from nemo_specrl.types import Prompt, Rollout

_MAX_REDRAWS = 64
"""A continuation that begins with the excluded token is drawn again: 64 times would need p(excluded) near 1, and then
the draft token would have been accepted."""


@dataclass
class RolloutBatch:
    """The rollouts of one step, [prompts x group] with the slot fastest, and what they cost."""

    rollouts: list[Rollout] = field(default_factory=list)
    stats: ReuseStats = field(default_factory=ReuseStats)
    spec: SpecCounters = field(default_factory=SpecCounters)
    row_spec: list[SpecCounters | None] = field(default_factory=list)
    """Of each rollout; None where nothing was generated, or the engine does not count it."""
    row_drawn: list[int] = field(default_factory=list)
    """How many tokens of each rollout, its last ones, the engine drew."""
    verify_s: float = 0.0
    """Seconds of the verification pass."""
    plan_s: float = 0.0
    """Seconds of lookup, splice and assembly."""
    generate_s: float = 0.0
    """Seconds in the engine."""

    def metrics(self) -> dict[str, float]:
        """`rollout/*`, `reuse/*` and `spec/*`, raw counters."""
        out = self.stats.metrics()
        if self.spec.drafts:
            out |= {"spec/drafts": self.spec.drafts, "spec/drafted": self.spec.drafted}
            out |= {"spec/accepted": self.spec.accepted}
            out |= {f"spec/accepted_pos_{i}": n for i, n in enumerate(self.spec.accepted_per_position)}
        return out


class RolloutGenerator:
    """Draws rollouts of the policy's law, from whatever the reuse rule lets stand and the engine for the rest.

    Every rank holds one; the engine and the cache's contents live on rank 0, and `share` broadcasts rank 0's value."""

    def __init__(
        self,
        run: RunConfig,
        policy: Policy,
        engine: Engine | None,
        cache: RolloutCache,
        *,
        eos_token_ids: Collection[int],
        share: Callable[[list[Draft | None]], list[Draft | None]],
        share_batch: Callable[[RolloutBatch], RolloutBatch],
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        self.run, self.policy, self.engine, self.cache = run, policy, engine, cache
        self.eos = frozenset(eos_token_ids)
        self.share, self.share_batch, self.on_progress = share, share_batch, on_progress
        off = run.reuse.rule == "off"
        self.rule: Rule | None = None if off else make_rule(run.reuse.rule, log_lenience(run))
        wants_law = self.rule is not None and (self.rule.needs_topk or run.reuse.correction == "behaviour")
        self.topk = min(run.reuse.topk, policy.vocab_size) if wants_law else 0
        self.limit = run.sampling.max_new_tokens

    def rollouts(self, prompts: Sequence[Prompt], *, step: int, epoch: int, version: int) -> RolloutBatch:
        """`group_size` rollouts of each prompt under policy `version`. Collective; the same result on every rank."""
        batch = RolloutBatch()
        start = time.perf_counter()
        slots = [(prompt, slot) for prompt in prompts for slot in range(self.run.algorithm.group_size)]
        drafts = self.share([self._draft(prompt, slot, epoch) for prompt, slot in slots])
        looked_up = time.perf_counter()
        verified = self._verify(drafts, step)
        batch.verify_s = time.perf_counter() - looked_up
        if self.engine is not None:
            begun = time.perf_counter()
            plans = [
                self._plan(prompt, slot, draft, check, version)
                for (prompt, slot), draft, check in zip(slots, drafts, verified, strict=True)
            ]
            before = self.engine.counters()
            generate = time.perf_counter()
            tails = self._continue(plans, step)
            batch.generate_s = time.perf_counter() - generate
            batch.spec = self.engine.counters() - before
            for plan, draft, check, tail in zip(plans, drafts, verified, tails, strict=True):
                rollout = prefix_reuse.assemble(plan, tail, version=version)
                batch.rollouts.append(rollout)
                batch.row_spec.append(tail.spec if tail else None)
                batch.row_drawn.append(len(tail.token_ids) if tail else 0)
                batch.stats += ReuseStats.of(draft, check, rollout, plan)
            batch.plan_s = looked_up - start + time.perf_counter() - begun - batch.generate_s
        return self.share_batch(batch)

    def _draft(self, prompt: Prompt, slot: int, epoch: int) -> Draft | None:
        if self.rule is None or self.engine is None:
            return None
        earlier = self.cache.lookup(prompt.key, slot, epoch)
        if earlier is None:
            return None
        return Draft.of(earlier, limit=self.limit, vocab_size=self.policy.vocab_size)

    def _verify(self, drafts: Sequence[Draft | None], step: int) -> list[Verification | None]:
        """One verification per draft; None where there is no draft."""
        there = [draft for draft in drafts if draft is not None]
        if self.rule is None or not there:
            return [None] * len(drafts)
        seed = self.run.seed
        if self.rule.verifies and self.run.reuse.verifier == "policy":  # collective: every rank takes part
            verifier = Verifier(self.rule, there, seed=seed, step=step, topk=self.topk)
            found = verifier.collect(self.policy.reduce([Row(*row) for row in verifier.rows], verifier))
        elif self.engine is None:
            return [None] * len(drafts)
        elif self.rule.verifies:
            scores = self.engine.score([(draft.rollout.prompt_ids, draft.scorable_ids) for draft in there])
            found = [
                verify_logprobs(self.rule, draft, logprobs, seed=seed, step=step)
                for draft, logprobs in zip(there, scores, strict=True)
            ]
        else:
            found = [prefix_reuse.cut(self.rule, draft, seed=seed, step=step) for draft in there]
        answers = iter(found)
        return [None if draft is None else next(answers) for draft in drafts]

    def _plan(
        self, prompt: Prompt, slot: int, draft: Draft | None, verified: Verification | None, version: int
    ) -> Plan:
        if draft is None or verified is None or self.rule is None:
            return prefix_reuse.fresh(prompt.key, slot, prompt.token_ids, limit=self.limit)
        return prefix_reuse.splice(self.rule, draft, verified, limit=self.limit, eos_ids=self.eos, version=version)

    def _continue(self, plans: Sequence[Plan], step: int) -> list[Completion | None]:
        """The engine's part of every unfinished plan."""
        assert self.engine is not None
        tails: list[Completion | None] = [None] * len(plans)
        todo = [i for i, plan in enumerate(plans) if not plan.finished]
        for attempt in range(_MAX_REDRAWS):
            requests = [
                GenerationRequest(plan.prompt_ids, plan.token_ids, plan.max_tokens, self._seed(plan, step, attempt))
                for plan in (plans[i] for i in todo)
            ]
            done = self.engine.generate(requests, topk=self.topk, on_progress=self.on_progress)
            for i, completion in zip(todo, done, strict=True):
                tails[i] = completion
            todo = [i for i, c in zip(todo, done, strict=True) if int(c.token_ids[0]) == plans[i].exclude]
            if not todo:
                return tails
        raise RuntimeError(
            f"{len(todo)} continuations began with a token that the verification had just rejected, {_MAX_REDRAWS} "
            "times over: engine and verifier don't sample from the same law; run nemo-specrl verify"
        )

    def _seed(self, plan: Plan, step: int, attempt: int) -> int:
        if attempt == 0:
            return engine_seed(self.run.seed, step, plan.prompt_key, plan.slot)
        draws = generator(self.run.seed, step, plan.prompt_key, plan.slot, "thinning").integers(0, 2**31 - 1, attempt)
        return int(draws[-1])
