"""Reuse + engine = rollouts: look up drafts, verify them in one pass, let the engine continue what is not finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from nemo_specrl.contracts.engine import Completion, Engine, GenerationRequest, SpecCounters
from nemo_specrl.contracts.sample import Sample
from nemo_specrl.speculation.prefix_reuse import Plan, ReuseStats
from nemo_specrl.speculation.randomness import engine_seed, generator
from nemo_specrl.speculation.reuse import Address, Reuse, Verifies
from nemo_specrl.types import Prompt, Rollout

T = TypeVar("T")
_MAX_REDRAWS = 64
"""A continuation that begins with the excluded token is drawn again: 64 times would need p(excluded) near 1, and then
the draft token would have been accepted."""


class Share(Protocol):
    """The value of the rank that holds the engine, on every rank."""

    def __call__(self, value: T, /) -> T: ...


def alone(value: T, /) -> T:
    """`Share` where there is one rank."""
    return value


@dataclass
class RolloutBatch:
    """The samples of one step, [prompts x group] with the slot fastest, and what they cost."""

    samples: list[Sample] = field(default_factory=list)
    stats: ReuseStats = field(default_factory=ReuseStats)
    spec: SpecCounters = field(default_factory=SpecCounters)
    verify_s: float = 0.0
    """Seconds of the verification pass."""
    plan_s: float = 0.0
    """Seconds of lookup, splice and assembly."""
    generate_s: float = 0.0
    """Seconds in the engine."""

    @property
    def rollouts(self) -> list[Rollout]:
        """Those of the samples."""
        return [sample.rollout for sample in self.samples]

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

    Every rank holds one; the engine and the cache's contents live on one rank, whose values `share` spreads."""

    def __init__(
        self,
        engine: Engine | None,
        reuse: Reuse,
        verifies: Verifies,
        *,
        group_size: int,
        seed: int,
        share: Share = alone,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        """`engine`: None on the ranks that hold none. `group_size`: rollouts per prompt, G."""
        self.engine, self.reuse, self.verifies = engine, reuse, verifies
        self.group_size, self.seed = group_size, seed
        self.share, self.on_progress = share, on_progress

    def rollouts(self, prompts: Sequence[Prompt], *, step: int, epoch: int, version: int) -> RolloutBatch:
        """`group_size` rollouts of each prompt under policy `version`. Collective; the same result on every rank."""
        batch = RolloutBatch()
        start = time.perf_counter()
        owners = [prompt for prompt in prompts for _ in range(self.group_size)]
        addresses = [Address(p.key, i % self.group_size, p.token_ids) for i, p in enumerate(owners)]
        here = self.engine is not None
        drafts = self.share(self.reuse.look_up(addresses, epoch) if here else [])
        looked_up = time.perf_counter()
        verified = self.reuse.verify(drafts, self.verifies, step) if here or self.verifies.collective else []
        batch.verify_s = time.perf_counter() - looked_up
        if self.engine is not None:
            begun = time.perf_counter()
            plans = self.reuse.plan(addresses, drafts, verified, version)
            before = self.engine.counters()
            generate = time.perf_counter()
            tails = self._continue(self.engine, plans, step)
            batch.generate_s = time.perf_counter() - generate
            batch.spec = self.engine.counters() - before
            rollouts = self.reuse.assemble(plans, tails, version)
            batch.stats = self.reuse.stats(plans, drafts, verified, rollouts)
            batch.samples = [
                Sample(
                    prompt,
                    rollout,
                    drawn=len(tail.token_ids) if tail else 0,
                    spec=tail.spec if tail else None,
                    written=_writers(plan, tail),
                )
                for prompt, rollout, plan, tail in zip(owners, rollouts, plans, tails, strict=True)
            ]
            batch.plan_s = looked_up - start + time.perf_counter() - begun - batch.generate_s
        return self.share(batch)

    def _continue(self, engine: Engine, plans: Sequence[Plan], step: int) -> list[Completion | None]:
        """The engine's part of every unfinished plan."""
        tails: list[Completion | None] = [None] * len(plans)
        todo = [i for i, plan in enumerate(plans) if not plan.finished]
        for attempt in range(_MAX_REDRAWS):
            requests = [
                GenerationRequest(plan.prompt_ids, plan.token_ids, plan.max_tokens, self._seed(plan, step, attempt))
                for plan in (plans[i] for i in todo)
            ]
            done = engine.generate(requests, topk=self.reuse.topk, on_progress=self.on_progress)
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
            return engine_seed(self.seed, step, plan.prompt_key, plan.slot)
        draws = generator(self.seed, step, plan.prompt_key, plan.slot, "thinning").integers(0, 2**31 - 1, attempt)
        return int(draws[-1])


def _writers(plan: Plan, tail: Completion | None) -> str:
    """A letter of `contracts.sample.WRITERS` for each token of the rollout that the two make."""
    decided = "r" * plan.kept + "x" * (len(plan.token_ids) - plan.kept)
    if tail is None:
        return decided
    if tail.accepted is None:
        return decided + "u" * len(tail.token_ids)
    return decided + "".join("d" if drafted else "g" for drafted in tail.accepted)
