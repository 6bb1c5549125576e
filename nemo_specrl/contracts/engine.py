"""The Engine protocol: what the rest of the package asks of whatever samples rollouts, and the records that go in and
out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from nemo_specrl.types import BoolArray, FinishReason, FloatArray, IntArray, Rollout, TopK

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Continue `prompt_ids + prefix_ids`."""

    prompt_ids: IntArray
    """[P]"""
    prefix_ids: IntArray
    """[N] response tokens already decided (N may be 0)."""
    max_tokens: int
    """At most so many new tokens: R - N."""
    seed: int
    """This request's own sampler seed."""


@dataclass(frozen=True)
class SpecCounters:
    """Speculation counters, of the engine since it started or of one request; take differences and sums, and ratios of
    sums only."""

    drafts: int = 0
    """Decoding steps of a request that carried a draft."""
    drafted: int = 0
    """Draft tokens proposed."""
    accepted: int = 0
    """Draft tokens accepted."""
    accepted_per_position: tuple[int, ...] = field(default=())
    """Accepted at draft position 0, 1, ..."""

    def __add__(self, other: SpecCounters) -> SpecCounters:
        positions = zip_longest(self.accepted_per_position, other.accepted_per_position, fillvalue=0)
        return SpecCounters(
            self.drafts + other.drafts,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            tuple(a + b for a, b in positions),
        )

    def __sub__(self, earlier: SpecCounters) -> SpecCounters:
        before = earlier.accepted_per_position + (0,) * len(self.accepted_per_position)
        return SpecCounters(
            self.drafts - earlier.drafts,
            self.drafted - earlier.drafted,
            self.accepted - earlier.accepted,
            tuple(a - b for a, b in zip(self.accepted_per_position, before, strict=False)),
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """New tokens of one request, with the engine's log-probabilities under the sampling law."""

    token_ids: IntArray
    """[M] new tokens, the end-of-sequence token included."""
    logprobs: FloatArray
    """[M] log-probability of each under the sampling law (temperature and truncation applied)."""
    finish_reason: FinishReason
    topk: TopK | None = None
    """[M, K] the law's top candidates, where asked for."""
    spec: SpecCounters | None = None
    """Speculation in this request alone; None where the engine does not count it."""
    accepted: BoolArray | None = None
    """[M] whether each token was drafted and accepted; None where the engine does not say."""


class StaleEngineError(RuntimeError):
    """The engine does not hold the weights that it should."""


class LogprobError(RuntimeError):
    """The engine returned log-probabilities that can't be those of the tokens it returned."""


class Engine(Protocol):
    """A sampler of the policy's law. One at a time is talked to, from one thread."""

    @property
    def version(self) -> int:
        """The policy version whose weights are loaded."""
        ...

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        *,
        topk: int = 0,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """Completions in the order of the requests; `topk` > 0 also returns the law's K top candidates.
        `on_progress` is called with the number of finished requests.

        Raises LogprobError for log-probabilities that can't be true."""
        ...

    def score(self, rows: Sequence[tuple[IntArray, IntArray]]) -> list[FloatArray]:
        """For each (prompt_ids [P], response_ids [T]): [T] raw (temperature 1) log-probabilities of the response."""
        ...

    def refit(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        version: int,
        extras: Mapping[str, IntArray] = MappingProxyType({}),
    ) -> None:
        """Load the policy's weights (Hugging Face names) and its draft head's, reset the prefix cache, stamp `version`.
        `extras`: what the drafter sends along (`Drafter.refit_extras`).

        Raises StaleEngineError when what the engine holds afterwards is not what was sent."""
        ...

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Finished rollouts of this step, for drafters that learn from history; other drafters ignore them."""
        ...

    def counters(self) -> SpecCounters:
        """Speculation counters since start."""
        ...

    def close(self) -> None:
        """End the engine's process and free everything; may be called twice."""
        ...
