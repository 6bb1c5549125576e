"""The lossless gate on a live engine: before training, alone as `nemo-specrl verify`, and as a canary in between.

It needs an engine, a policy and its own configuration, so any trainer may use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nemo_specrl.config.gate import GateConfig
from nemo_specrl.contracts.drafter import Drafter
from nemo_specrl.contracts.engine import Completion, Engine, GenerationRequest, LogprobError
from nemo_specrl.contracts.policy import Policy
from nemo_specrl.contracts.progress import Progress
from nemo_specrl.contracts.rows import Row
from nemo_specrl.contracts.verdict import Verdict
from nemo_specrl.rollout.generator import Share, alone
from nemo_specrl.speculation.lossless import canary_verdict
from nemo_specrl.speculation.randomness import generator
from nemo_specrl.speculation.transform import Transform, Transformed, transform_verdict
from nemo_specrl.types import Prompt, Rollout

CONTEXTS = 8
"""Contexts of the gate: the last tokens of so many prompts, so that they are short and unlike."""
CONTEXT_TOKENS = 16
CANARY_REQUESTS = 8
CANARY_TOKENS = 8


class GateBreach(RuntimeError):  # noqa: N818 - the gate is breached: that is the event's name
    """The engine does not sample from the policy, or its log-probs are not the policy's."""


class Gate:
    """Every rank holds one; the engine lives on one rank, whose values `share` spreads. All methods are collective."""

    def __init__(
        self,
        engine: Engine | None,
        policy: Policy,
        config: GateConfig,
        *,
        seed: int,
        max_new_tokens: int,
        drafter: Drafter,
        progress: Progress,
        share: Share = alone,
        report: Callable[[Sequence[Verdict], int], None] = lambda verdicts, step: None,
    ) -> None:
        """`max_new_tokens`: response tokens at most. `report` is told all verdicts
        of a step before a failed one is raised."""
        self.engine, self.policy, self.config = engine, policy, config
        self.seed, self.max_new_tokens, self.drafter = seed, max_new_tokens, drafter
        self.progress, self.share, self.report = progress, share, report

    def run(self, prompts: Sequence[Prompt], *, step: int) -> list[Verdict]:
        """Sample, transform, test. Raises GateBreach on a failure.

        With a drafter the contexts are sampled twice: the first pass is what a history drafter learns from, so that
        the second, which is tested, does contain drafts."""
        if not self.config.enabled:
            return []
        tokens = min(self.config.tokens_per_sample, self.max_new_tokens)
        contexts = _contexts(prompts)
        contexts = contexts * max(1, self.config.samples // len(contexts))
        drawn: list[Completion] = []
        for turn in range(2 if self.drafter.drafts else 1):
            self.progress.phase("lossless gate", len(contexts))
            if turn and self.engine is not None and self.drafter.engine_learns:
                self.engine.observe(_as_rollouts(contexts, drawn, step))
            drawn = self._sample(contexts, tokens, f"gate/{turn}", step)
        self.progress.phase("lossless gate: the policy's law")
        rows = self.share([Row(p.token_ids, c.token_ids) for p, c in zip(contexts, drawn, strict=False)])
        transform = Transform([row.token_ids for row in rows], seed=self.seed, step=step)
        reduced: list[list[Transformed]] = self.policy.reduce(rows, transform)
        verdicts: list[Verdict] = []
        if self.engine is not None:
            chunks = [part for row in reduced for part in row]
            trainer = np.concatenate([part.logprobs for part in chunks])
            verdicts = [transform_verdict(chunks), self._compare(drawn, trainer)]
        return self.judge(verdicts, step)

    def canary(self, prompts: Sequence[Prompt], *, step: int) -> dict[str, float]:
        """A few fresh tokens, log-probs of engine and trainer side by side; `gate/*`."""
        self.progress.phase("canary")
        chosen = list(prompts)[:CANARY_REQUESTS]
        drawn = self._sample(chosen, min(CANARY_TOKENS, self.max_new_tokens), "canary", step)
        rows = self.share([Row(p.token_ids, c.token_ids) for p, c in zip(chosen, drawn, strict=False)])
        scores = self.policy.score(rows)
        mine: list[Verdict] = []
        if self.engine is not None:
            mine = [self._compare(drawn, np.concatenate([s.logprobs for s in scores]))]
        (verdict,) = self.judge(mine, step)
        return {f"gate/{name}": value for name, value in verdict.figures.items()}

    def judge(self, verdicts: Sequence[Verdict], step: int) -> list[Verdict]:
        """The verdicts of the rank with the engine, reported; GateBreach where one of them fails."""
        agreed = self.share(list(verdicts))
        self.report(agreed, step)
        if failed := [verdict.text for verdict in agreed if not verdict.passed]:
            raise GateBreach(f"step {step}: " + " ".join(failed))
        return agreed

    def _sample(self, contexts: Sequence[Prompt], tokens: int, address: str, step: int) -> list[Completion]:
        if self.engine is None:
            return []
        seeds = generator(self.seed, step, address, 0, "engine").integers(0, 2**31 - 1, len(contexts))
        empty = np.zeros(0, np.int32)
        requests = [
            GenerationRequest(p.token_ids, empty, tokens, int(seed)) for p, seed in zip(contexts, seeds, strict=True)
        ]
        try:
            return self.engine.generate(requests, on_progress=self.progress.advance_to)
        except LogprobError as error:
            raise GateBreach(
                f"step {step}: the engine returned log-probs that cannot be true ({error}). Do not train on its "
                "samples: check that it runs with this package's vLLM plugin (VLLM_PLUGINS), and try drafter=off"
            ) from error

    def _compare(self, drawn: Sequence[Completion], trainer: np.ndarray) -> Verdict:
        engine = np.concatenate([c.logprobs for c in drawn])
        return canary_verdict(engine, trainer, warn=self.config.logprob_warn, breach=self.config.logprob_breach)


def _contexts(prompts: Sequence[Prompt]) -> list[Prompt]:
    some = prompts[:: max(1, len(prompts) // CONTEXTS)][:CONTEXTS]
    return [Prompt(p.token_ids[-CONTEXT_TOKENS:], p.answer, p.text) for p in some]


def _as_rollouts(contexts: Sequence[Prompt], drawn: Sequence[Completion], step: int) -> list[Rollout]:
    return [
        Rollout(
            p.key, i, p.token_ids, c.token_ids, c.logprobs, np.full(len(c.token_ids), step, np.int32), c.finish_reason
        )
        for i, (p, c) in enumerate(zip(contexts, drawn, strict=True))
    ]
