"""What a policy is given and what it answers: rows to score and to learn from, reducers and losses.

Shapes: B rows, P prompt tokens, T response tokens, V vocabulary, padded on the right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from nemo_specrl.types import FloatArray, IntArray

if TYPE_CHECKING:
    import torch


class Tokens(Protocol):
    """A `Row` or a `TrainRow`: a prompt and its response."""

    @property
    def prompt_ids(self) -> IntArray: ...
    @property
    def token_ids(self) -> IntArray: ...


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence to score."""

    prompt_ids: IntArray
    """[P]"""
    token_ids: IntArray
    """[T] response."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What `score` says of one row by default."""

    logprobs: FloatArray
    """[T] log-probability of each response token under the sampling law."""
    entropy: FloatArray
    """[T] entropy of the law at each position, nats."""


Reducer: TypeAlias = "Callable[[int, int, torch.Tensor], Any]"
"""(row index, first position, log_probs [t, V] of the sampling law in fp32, full vocabulary) -> any picklable part.

Called for consecutive chunks of a row's positions, in order, so that no [T, V] tensor of a long row need exist.
With tensor parallelism the vocabulary is gathered first and every rank of the group calls it alike; a reducer that
draws random numbers must take them from `speculation.randomness`, so that all ranks draw the same."""


@dataclass(frozen=True)
class TrainRow:
    """One rollout as the loss sees it. All float fields are [T]."""

    prompt_ids: IntArray
    token_ids: IntArray
    old_logprobs: FloatArray
    """Under the policy at the start of the step."""
    behaviour_logprobs: FloatArray
    """Under the law that the tokens really have; equal to old_logprobs unless a correction is on."""
    advantages: FloatArray
    mask: FloatArray
    """1 for tokens that count in the loss, else 0."""
    ref_logprobs: FloatArray | None = None
    """Under the reference policy, where a KL is asked for."""


@dataclass(frozen=True)
class LossBatch:
    """A padded micro-batch of `TrainRow`s, on the policy's device. All fields are fp32 [B, T]."""

    old_logprobs: torch.Tensor
    behaviour_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    """mask / normaliser, where the normaliser is computed over the whole mini-batch of all ranks: the loss is a
    plain sum of weights * per-token loss, and equal for every split into micro-batches and ranks."""
    ref_logprobs: torch.Tensor | None = None


LossFn: TypeAlias = "Callable[[torch.Tensor, LossBatch], tuple[torch.Tensor, dict[str, torch.Tensor]]]"
"""(log-probs [B, T] with gradient, batch) -> (scalar loss: a weighted sum, metrics: weighted sums, detached)."""
