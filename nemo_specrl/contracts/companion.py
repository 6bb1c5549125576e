"""The Companion protocol: what rides the policy's forward passes and learns from them, beside the policy's own graph.

A draft head, a replay learner, a critic. It is given hidden states without gradient, keeps parameters, optimizer and
gradients of its own, and leaves the policy's numbers bit for bit what they are without it.

Shapes: B rows, S padded positions, N response tokens of all rows, H hidden, T response tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nemo_specrl.contracts.rows import Row, Tokens
from nemo_specrl.types import FloatArray

if TYPE_CHECKING:
    import torch


class Forward(Protocol):
    """What a companion may know of a micro-batch that the policy has just forwarded."""

    @property
    def rows(self) -> tuple[int, ...]:
        """[B] which of the call's rows these are."""
        ...

    @property
    def lengths(self) -> tuple[int, ...]:
        """[B] response tokens."""
        ...

    @property
    def input_ids(self) -> torch.Tensor:
        """[B, S] padded on the right."""
        ...

    @property
    def cells(self) -> torch.Tensor:
        """[B, S] where each padded position lies in the packed layout (see policy/megatron/batching.py)."""
        ...

    @property
    def select(self) -> torch.Tensor:
        """[N] where in flattened [S, B] states each response token is predicted, row by row."""
        ...

    @property
    def targets(self) -> torch.Tensor:
        """[N] the response tokens."""
        ...


class Ride(Protocol):
    """A companion's part in one pass over a mini-batch."""

    def after_forward(self, batch: Forward, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
        """Take in one micro-batch, whose final-norm hidden states are `hidden` [S, B, H]; on the last pipeline stage.
        Returns sums, which are added up over micro-batches and replicas."""
        ...

    def end(self, sums: dict[str, float]) -> dict[str, float]:
        """Act on the whole mini-batch; takes what is its own out of `sums` and returns metrics. Collective."""
        ...


class Companion(Protocol):
    """A learner of its own on the policy's forward passes. Every method but `name` is collective."""

    @property
    def name(self) -> str:
        """Its key in the policy's checkpoint."""
        ...

    def start(self, rows: Sequence[Row]) -> None:
        """What it needs of rollouts before it can be of use, once; may make a forward pass."""
        ...

    def begin(
        self,
        rows: Sequence[Tokens],
        masks: Sequence[FloatArray],
        weights: Sequence[float],
        mine: Sequence[int],
        idle: bool,
    ) -> Ride:
        """Learn from a mini-batch: `mine` of its rows are this replica's; `idle` = they count nothing here.
        `masks` [T] and `weights` are those of all rows."""
        ...

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) pairs that travel to the engine with a refit, complete on rank 0; none where it stays here."""
        ...

    def export(self, folder: Path) -> None:
        """Write it as a folder that can be loaded again; rank 0 writes."""
        ...

    def state_dict(self) -> Any:
        """Of this rank."""
        ...

    def load_state_dict(self, state: Any) -> None:
        """What `state_dict` gave on the rank that stood here."""
        ...


@dataclass(frozen=True)
class Lesson:
    """Which companion learns from an update's rows, and how much from each."""

    companion: Companion
    weights: Sequence[float]
    """One per row, at least 0."""
