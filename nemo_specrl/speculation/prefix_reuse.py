"""From an earlier rollout and its verification to a plan for the engine, and from its completion to a rollout.

lookup (cache) -> `Draft.of` -> verify (`Verifier`, `verify_logprobs`, or `cut` for rules that do not look) ->
`splice` -> engine -> `assemble`. Pure functions; R is the response-length limit, end-of-sequence token included.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from nemo_specrl.config.reuse import CORRECTIONS
from nemo_specrl.contracts.engine import Completion
from nemo_specrl.speculation.acceptance import Rule
from nemo_specrl.speculation.randomness import uniforms
from nemo_specrl.speculation.verifier import Draft, Sums, Verification
from nemo_specrl.types import FinishReason, FloatArray, IntArray, Rollout, TopK


@dataclass(frozen=True, slots=True)
class Plan:
    """What is decided of a response, and what the engine still has to do."""

    prompt_key: str
    slot: int
    prompt_ids: IntArray
    """[P]"""
    token_ids: IntArray
    """[N] decided: kept draft tokens, then the replacement if one was drawn."""
    logprobs: FloatArray
    """[N] under the law that each token really has."""
    policy_version: IntArray
    """[N]"""
    kept: int
    """Draft tokens among them."""
    finish_reason: FinishReason | None
    """Not None: the response is complete and the engine is not asked."""
    max_tokens: int
    """Tokens left to generate, R - N; 0 when complete."""
    topk: TopK | None = None
    """[N, K] that law's candidates."""
    policy_logprobs: FloatArray | None = None
    """[N] under the current policy, where it verified."""
    exclude: int | None = None
    """The first new token must not be this one (draw again until it is not)."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


def fresh(prompt_key: str, slot: int, prompt_ids: IntArray, *, limit: int) -> Plan:
    """The plan where nothing can be reused."""
    no_floats = np.zeros(0, np.float32)
    no_ints = np.zeros(0, np.int32)
    return Plan(prompt_key, slot, prompt_ids, no_ints, no_floats, no_ints, 0, None, limit)


def cut(rule: Rule, draft: Draft, *, seed: int, step: int) -> Verification:
    """The baselines `full` and `random`: keep a prefix unseen; its tokens keep their old law."""
    usable = draft.length - draft.unknown_last
    u = float(uniforms(seed, step, draft.rollout.prompt_key, draft.rollout.slot, "random_cut", 1)[0])
    kept = rule.cut(usable, u)
    old = draft.rollout.logprobs[:kept]
    topk = None if draft.rollout.topk is None else draft.rollout.topk[:kept]
    return Verification(kept, None, None, old, old, topk, Sums())


def splice(
    rule: Rule, draft: Draft, verified: Verification, *, limit: int, eos_ids: Collection[int], version: int
) -> Plan:
    """The plan after verification under policy `version`."""
    n = verified.kept
    tokens = draft.token_ids[:n]
    # A rule that verifies nothing leaves its tokens with the law, and so the version, of their own time.
    versions = np.full(n, version, np.int32) if rule.verifies else draft.rollout.policy_version[:n]
    if verified.replacement is not None:
        tokens = np.append(tokens, np.int32(verified.replacement))
        versions = np.append(versions, np.int32(version))
    reason: FinishReason | None = None
    if verified.replacement in eos_ids or (n == draft.length and draft.ended):
        reason = "stop"
    elif len(tokens) >= limit:
        reason = "length"
    return Plan(
        prompt_key=draft.rollout.prompt_key,
        slot=draft.rollout.slot,
        prompt_ids=draft.rollout.prompt_ids,
        token_ids=tokens,
        logprobs=verified.law_logprobs,
        policy_version=versions,
        kept=n,
        finish_reason=reason,
        max_tokens=limit - len(tokens) if reason is None else 0,
        topk=verified.topk,
        policy_logprobs=verified.policy_logprobs if rule.verifies else None,
        exclude=verified.exclude,
    )


def assemble(plan: Plan, tail: Completion | None, *, version: int) -> Rollout:
    """The finished rollout. `tail` is None exactly when the plan is finished; `version` is the policy that sampled it.

    A rollout that needed no engine keeps the policy's log-probs from its verification: no second pass is due."""
    assert (tail is None) == plan.finished, "an engine is asked exactly for unfinished plans"
    if tail is None:
        assert plan.finish_reason is not None
        return Rollout(
            plan.prompt_key,
            plan.slot,
            plan.prompt_ids,
            plan.token_ids,
            plan.logprobs,
            plan.policy_version,
            plan.finish_reason,
            reused=plan.kept,
            topk=plan.topk,
            policy_logprobs=plan.policy_logprobs,
        )
    assert 0 < len(tail.token_ids) <= plan.max_tokens, "an engine answers with 1 to max_tokens tokens"
    assert plan.exclude is None or tail.token_ids[0] != plan.exclude, "the excluded token came back"
    return Rollout(
        plan.prompt_key,
        plan.slot,
        plan.prompt_ids,
        np.concatenate([plan.token_ids, tail.token_ids]).astype(np.int32),
        np.concatenate([plan.logprobs, tail.logprobs]).astype(np.float32),
        np.concatenate([plan.policy_version, np.full(len(tail.token_ids), version)]).astype(np.int32),
        tail.finish_reason,
        reused=plan.kept,
        topk=_join(plan, tail),
    )


def _join(plan: Plan, tail: Completion) -> TopK | None:
    """Candidates for the whole rollout, or none where a part came without (or with another K)."""
    if tail.topk is None or not len(plan.token_ids):
        return tail.topk
    if plan.topk is None or plan.topk.ids.shape[1] != tail.topk.ids.shape[1]:
        return None
    return TopK.concat([plan.topk, tail.topk])


@dataclass(frozen=True)
class ReuseStats:
    """Counts of one step (or rank); add them up, then take `metrics`. Rates are ratios of sums."""

    rollouts: int = 0
    drafts: int = 0
    """Rollouts for which the cache had something."""
    full: int = 0
    """Drafts kept whole."""
    partial: int = 0
    none: int = 0
    """Drafts of which nothing was kept."""
    draft_tokens: int = 0
    verified_tokens: int = 0
    reused_tokens: int = 0
    replaced_tokens: int = 0
    """Drawn in the verification pass."""
    new_tokens: int = 0
    """Generated by the engine."""
    finished: int = 0
    """Rollouts that needed no engine."""
    sums: Sums = field(default_factory=Sums)

    @staticmethod
    def of(draft: Draft | None, verified: Verification | None, rollout: Rollout, plan: Plan) -> ReuseStats:
        """One rollout's counts; `draft` and `verified` are None where nothing was cached."""
        new = rollout.length - len(plan.token_ids)
        if draft is None or verified is None:
            return ReuseStats(rollouts=1, new_tokens=new)
        return ReuseStats(
            rollouts=1,
            drafts=1,
            full=int(verified.kept == draft.length),
            partial=int(0 < verified.kept < draft.length),
            none=int(verified.kept == 0),
            draft_tokens=draft.length,
            verified_tokens=verified.sums.positions,
            reused_tokens=verified.kept,
            replaced_tokens=int(verified.replacement is not None),
            new_tokens=new,
            finished=int(plan.finished),
            sums=verified.sums,
        )

    def __add__(self, other: ReuseStats) -> ReuseStats:
        theirs = vars(other)
        return ReuseStats(**{name: mine + theirs[name] for name, mine in vars(self).items()})

    def metrics(self) -> dict[str, float]:
        """`rollout/*` and `reuse/*`; a rate is left out where nothing was counted."""
        out: dict[str, float] = {
            "rollout/new_tokens": self.new_tokens,
            "rollout/reused_tokens": self.reused_tokens,
            "rollout/replaced_tokens": self.replaced_tokens,
            "rollout/verified_tokens": self.verified_tokens,
            "rollout/count": self.rollouts,
            "reuse/drafts": self.drafts,
            "reuse/full": self.full,
            "reuse/partial": self.partial,
            "reuse/none": self.none,
            "reuse/finished": self.finished,
            "reuse/draft_tokens": self.draft_tokens,
        }
        response = self.new_tokens + self.reused_tokens + self.replaced_tokens
        rates = {
            "reuse/token_fraction": (self.reused_tokens, response),
            "reuse/kept_fraction": (self.reused_tokens, self.draft_tokens),
            "reuse/acceptance": (self.sums.accept, self.sums.positions),
            "reuse/tv": (self.sums.tv, self.sums.positions),
            "reuse/tail_mass": (self.sums.tail, self.sums.positions),
            "reuse/entropy": (self.sums.entropy, self.sums.positions),
            "reuse/bias_tv": (self.sums.bias, self.sums.bias_positions),
        }
        return out | {name: top / bottom for name, (top, bottom) in rates.items() if bottom}


def behaviour_logprobs(rollout: Rollout, policy_logprobs: FloatArray, correction: str) -> FloatArray:
    """[T] what the loss is told that the tokens were drawn from.

    `none`: the policy itself, SPEC-RL's choice. Any other correction (ours): the law mu while the draft was alive and
    at the first rejected position, the policy after it; the product of policy/mu is then the exact weight of the
    sequence, where mu gives mass to all that the policy does. Whether the draft is alive has the same law given the
    tokens under both, and drops out. (Of a rollout without a draft the first token is told by its own law too: the
    engine's log-prob.)"""
    if correction == "none":
        return policy_logprobs
    assert correction in CORRECTIONS, correction
    told = policy_logprobs.copy()
    alive = slice(rollout.reused + 1)
    told[alive] = rollout.logprobs[alive]
    return told
