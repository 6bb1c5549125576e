"""One record for a rollout on its way through a step: what is known of it grows, its place in the batch stays.

Shapes: T response tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from nemo_specrl.contracts.engine import SpecCounters
from nemo_specrl.types import FloatArray, Prompt, Rollout


@dataclass(frozen=True, slots=True)
class RewardResult:
    """The score of one response."""

    value: float
    """The reward; NaN where `valid` is false, so that nobody mistakes it for a wrong answer."""
    valid: bool = True
    """Whether the response could be scored. Samples that could not are left out of baseline and loss."""
    error: str | None = None
    """Why not: `timeout`, or the verifier's own error."""

    @staticmethod
    def failed(error: str) -> RewardResult:
        return RewardResult(math.nan, valid=False, error=error)


WRITERS = {
    "r": "reused",
    "x": "replacement",
    "d": "drafted and accepted",
    "g": "generated",
    "u": "generated or drafted",
}
"""Who wrote a token, letter -> name: an earlier rollout; the verification, at the first rejected token; the engine's
drafter; the engine itself; the engine, which does not say whether it was drafted."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt's rollout, and what the step has found out about it so far."""

    prompt: Prompt
    rollout: Rollout
    drawn: int = 0
    """How many of its tokens, the last ones, the engine drew."""
    spec: SpecCounters | None = None
    """Speculation in its request; None where nothing was generated, or the engine does not count it."""
    written: str = ""
    """[T] who wrote each token, letters of WRITERS; empty = not told."""
    reward: RewardResult | None = None
    """None until it is scored."""
    ref_logprobs: FloatArray | None = None
    """[T] under the reference policy, where a KL is asked for."""
    values: FloatArray | None = None
    """[T] a critic's value of the state before each token, where there is a critic."""

    def with_(self, **changes: object) -> Sample:
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def score(self) -> RewardResult:
        """The reward, which has been computed by now."""
        assert self.reward is not None, "rewards come before their use"
        return self.reward

    @property
    def policy_logprobs(self) -> FloatArray:
        """[T] under the policy that starts this step's update, which have been computed by now."""
        assert self.rollout.policy_logprobs is not None, "the policy's log-probs come before the update"
        return self.rollout.policy_logprobs
