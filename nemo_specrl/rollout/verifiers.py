"""Where the evidence for drafts comes from: the policy's own scoring pass, or the engine's prompt log-probs."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_specrl.contracts.engine import Engine
from nemo_specrl.contracts.policy import Policy
from nemo_specrl.contracts.rows import Row
from nemo_specrl.speculation.acceptance import Rule
from nemo_specrl.speculation.verifier import Draft, Verification, Verifier, verify_logprobs


class PolicyVerifies:
    """One forward pass of the policy, which serves the loss as well: any rule, any sampling law."""

    collective = True

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def verify(self, rule: Rule, drafts: Sequence[Draft], *, seed: int, step: int, topk: int) -> list[Verification]:
        """See `Verifies`."""
        verifier = Verifier(rule, drafts, seed=seed, step=step, topk=topk)
        return verifier.collect(self.policy.reduce([Row(*row) for row in verifier.rows], verifier))


class EngineVerifies:
    """Log-probs of the drawn tokens alone, at temperature 1, untruncated: `lenient` and `one_hot` need no more."""

    collective = False

    def __init__(self, engine: Engine | None) -> None:
        """`engine`: None on the ranks that hold none, which then verify nothing."""
        self.engine = engine

    def verify(self, rule: Rule, drafts: Sequence[Draft], *, seed: int, step: int, topk: int) -> list[Verification]:
        """See `Verifies`; no candidates of the new law can be kept."""
        assert topk == 0, "an engine's prompt log-probs come without candidates"
        assert self.engine is not None, "only the rank with the engine verifies"
        scores = self.engine.score([(draft.rollout.prompt_ids, draft.scorable_ids) for draft in drafts])
        return [
            verify_logprobs(rule, draft, logprobs, seed=seed, step=step)
            for draft, logprobs in zip(drafts, scores, strict=True)
        ]
