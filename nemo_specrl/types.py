"""What every room speaks of. The ground floor: it imports nothing of ours.

Shapes: P prompt tokens, T response tokens, K stored candidates per position.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int32]
FloatArray: TypeAlias = NDArray[np.float32]
BoolArray: TypeAlias = NDArray[np.bool_]
FinishReason: TypeAlias = Literal["stop", "length"]


def prompt_key(token_ids: Sequence[int] | IntArray) -> str:
    """The identity of a prompt: a digest of its token ids, and of nothing else.

    It is all that an engine's generation interface hands over (NeMo RL passes no prompt id), and two
    prompts that differ only in special tokens stay different.
    """
    return hashlib.blake2b(np.asarray(token_ids, dtype="<i4").tobytes(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Prompt:
    """One problem, tokenised with the chat template already applied."""

    token_ids: IntArray
    """[P] token ids, exactly what the engine is given."""
    answer: str
    """The reference answer that the reward compares with."""
    text: str
    """The problem as a person reads it; for logs and sample tables only."""
    source: str = "default"
    """Which data source the row came from; evaluation splits its figures by it."""
    key: str = field(default="")
    """`prompt_key(token_ids)`."""

    def __post_init__(self) -> None:
        if not self.key:
            object.__setattr__(self, "key", prompt_key(self.token_ids))


@dataclass(frozen=True, slots=True)
class TopK:
    """The K most likely tokens of a sampling law at each position: what an exact residual needs of it."""

    ids: IntArray
    """[T, K] token ids, most likely first; -1 where fewer than K tokens have mass."""
    logprobs: FloatArray
    """[T, K] their log-probabilities under the law; -inf where the id is -1."""

    def __getitem__(self, rows: slice) -> TopK:
        return TopK(self.ids[rows], self.logprobs[rows])

    @staticmethod
    def concat(parts: Sequence[TopK]) -> TopK:
        return TopK(np.concatenate([p.ids for p in parts]), np.concatenate([p.logprobs for p in parts]))


@dataclass(frozen=True, slots=True)
class Rollout:
    """A prompt's response, with the law that each of its tokens really has (ALGORITHMS: SPEC-RL, section 1)."""

    prompt_key: str
    slot: int
    """Which of the group's G samples this is, 0 <= slot < G."""
    prompt_ids: IntArray
    """[P]"""
    token_ids: IntArray
    """[T], the end-of-sequence token included when the response ended by itself."""
    logprobs: FloatArray
    """[T] log-probability of each token under its own law: the sampler's for fresh and exactly reused tokens,
    mu for leniently reused ones."""
    policy_version: IntArray
    """[T] the policy version under which each token's law was computed."""
    finish_reason: FinishReason
    reused: int = 0
    """How many leading tokens were taken over from an earlier rollout."""
    topk: TopK | None = None
    """The law's top candidates at each position, where the reuse rule needs them."""
    policy_logprobs: FloatArray | None = None
    """[T] log-probabilities under the policy that starts this step's update, where the verification pass has
    already computed them; None = still to be computed."""

    @property
    def length(self) -> int:
        """Response tokens, T."""
        return len(self.token_ids)

    def with_(self, **changes: object) -> Rollout:
        return replace(self, **changes)  # type: ignore[arg-type]
