"""Reuse of earlier rollouts, without a trainer: look up, verify, plan, assemble, remember.

It knows no engine, no ranks, no groups and no run: whoever trains (our loop, NeMo RL's) gives it prompts with slots, a
`Verifies` for its evidence, and the engine's completions.

    drafts = reuse.look_up(addresses, epoch)
    verified = reuse.verify(drafts, verifies, step)
    plans = reuse.plan(addresses, drafts, verified, version)
    rollouts = reuse.assemble(plans, completions, version)        # completions of the plans that are not finished
    reuse.remember(rollouts, epoch)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from nemo_specrl.contracts.engine import Completion
from nemo_specrl.speculation import prefix_reuse
from nemo_specrl.speculation.acceptance import Rule
from nemo_specrl.speculation.cache import RolloutCache
from nemo_specrl.speculation.prefix_reuse import Plan, ReuseStats
from nemo_specrl.speculation.verifier import Draft, Verification
from nemo_specrl.types import IntArray, Rollout


class Address(NamedTuple):
    """Whose rollout it is."""

    prompt_key: str
    slot: int
    prompt_ids: IntArray
    """[P]"""


class Verifies(Protocol):
    """Evidence for drafts: a policy's forward pass, an engine's log-probs, another trainer's workers."""

    @property
    def collective(self) -> bool:
        """Whether every rank must call `verify`; False: only the rank that holds the engine may."""
        ...

    def verify(self, rule: Rule, drafts: Sequence[Draft], *, seed: int, step: int, topk: int) -> list[Verification]:
        """One verification per draft, in order, under the present policy. `topk`: candidates of the new law to keep."""
        ...


class Reuse:
    """One acceptance rule over one cache."""

    def __init__(
        self,
        rule: Rule | None,
        cache: RolloutCache,
        *,
        limit: int,
        eos_ids: Collection[int],
        vocab_size: int,
        seed: int,
        topk: int = 0,
    ) -> None:
        """`rule` None: nothing is reused, and every plan is a fresh one. `limit`: response tokens at most, R. `topk`:
        candidates that a rollout's law must come with for `rule` to reuse it; 0 = none."""
        self.rule, self.cache = rule, cache
        self.limit, self.eos_ids, self.vocab_size = limit, frozenset(eos_ids), vocab_size
        self.seed, self.topk = seed, topk

    def look_up(self, addresses: Iterable[Address], epoch: int | None = None) -> list[Draft | None]:
        """What the cache holds of each; `epoch` as in `RolloutCache.lookup`."""
        return [self._draft(address, epoch) for address in addresses]

    def _draft(self, address: Address, epoch: int | None) -> Draft | None:
        if self.rule is None:
            return None
        earlier = self.cache.lookup(address.prompt_key, address.slot, epoch)
        return None if earlier is None else Draft.of(earlier, limit=self.limit, vocab_size=self.vocab_size)

    def verify(self, drafts: Sequence[Draft | None], verifies: Verifies, step: int) -> list[Verification | None]:
        """One verification per draft; None where there is no draft. A rule that looks at nothing needs no evidence."""
        there = [draft for draft in drafts if draft is not None]
        if self.rule is None or not there:
            return [None] * len(drafts)
        if self.rule.verifies:
            found = verifies.verify(self.rule, there, seed=self.seed, step=step, topk=self.topk)
        else:
            found = [prefix_reuse.cut(self.rule, draft, seed=self.seed, step=step) for draft in there]
        answers = iter(found)
        return [None if draft is None else next(answers) for draft in drafts]

    def plan(
        self,
        addresses: Sequence[Address],
        drafts: Sequence[Draft | None],
        verified: Sequence[Verification | None],
        version: int,
    ) -> list[Plan]:
        """What stands of each rollout under policy `version`, and what an engine still has to do."""
        plans = []
        for address, draft, check in zip(addresses, drafts, verified, strict=True):
            if self.rule is None or draft is None or check is None:
                plans.append(prefix_reuse.fresh(*address, limit=self.limit))
            else:
                plans.append(
                    prefix_reuse.splice(
                        self.rule, draft, check, limit=self.limit, eos_ids=self.eos_ids, version=version
                    )
                )
        return plans

    def assemble(self, plans: Sequence[Plan], tails: Sequence[Completion | None], version: int) -> list[Rollout]:
        """The finished rollouts; a tail is None exactly where the plan is finished."""
        return [prefix_reuse.assemble(plan, tail, version=version) for plan, tail in zip(plans, tails, strict=True)]

    def stats(
        self,
        plans: Sequence[Plan],
        drafts: Sequence[Draft | None],
        verified: Sequence[Verification | None],
        rollouts: Sequence[Rollout],
    ) -> ReuseStats:
        """What became of the drafts, summed."""
        rows = zip(drafts, verified, rollouts, plans, strict=True)
        return sum((ReuseStats.of(*row) for row in rows), ReuseStats())

    def remember(self, rollouts: Iterable[Rollout], epoch: int | None = None) -> None:
        """Put finished rollouts into the cache; `epoch` as in `RolloutCache.put`."""
        for rollout in rollouts:
            self.cache.put(rollout, epoch)


def addresses_in_order(prompts: Iterable[tuple[str, IntArray]]) -> list[Address]:
    """Addresses of (prompt key, prompt ids) where nobody numbers the rollouts of a prompt: by order of appearance."""
    seen: Counter[str] = Counter()
    found = []
    for key, prompt_ids in prompts:
        found.append(Address(key, seen[key], prompt_ids))
        seen[key] += 1
    return found
