"""The draft head as a companion of a Megatron policy: what rides its passes, and the passes that only the head needs.

Shapes: T response tokens of a row, P prompt tokens, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nemo_specrl.config.head import HeadConfig
from nemo_specrl.contracts.companion import Forward, Ride
from nemo_specrl.contracts.rows import Row, Tokens
from nemo_specrl.policy.megatron import batching
from nemo_specrl.policy.megatron.batching import MicroBatch
from nemo_specrl.policy.megatron.model import DTYPES
from nemo_specrl.policy.megatron.weights import export_weights
from nemo_specrl.policy.mtp.draft import DIVERGED, DraftHead, HeadRide, Start, agreement_report
from nemo_specrl.policy.mtp.weights import head_slots, write_head
from nemo_specrl.types import FloatArray

if TYPE_CHECKING:
    from nemo_specrl.policy.megatron.policy import MegatronPolicy


class HeadCompanion:
    """See `Companion`; collective throughout."""

    name = "head"

    def __init__(self, config: HeadConfig, policy: MegatronPolicy) -> None:
        """Raises ValueError when `config.source` holds no head that fits the policy."""
        self.policy = policy
        self.head = DraftHead(
            config, policy.config, policy.architecture, policy.layout, policy.model, policy.law, policy.folder
        )

    @property
    def hidden_size(self) -> int:
        """H"""
        return self.head.hidden_size

    @property
    def fresh(self) -> bool:
        """Whether the head is from scratch and has not had its start."""
        return self.head.fresh

    def start(self, rows: Sequence[Row]) -> None:
        """Give a head from scratch its closed-form start on these rollouts of the policy (start.py); one forward pass.
        Nothing happens where the head has had its start."""
        if not self.head.fresh:
            return

        def begin(masks: Sequence[FloatArray], mine: Sequence[int], idle: bool) -> Ride:
            self.head.prepare(rows, mine)
            return Start(self.head, masks)

        with self.head.watching():
            self.policy.ride(rows, begin)

    def begin(
        self,
        rows: Sequence[Tokens],
        masks: Sequence[FloatArray],
        weights: Sequence[float],
        mine: Sequence[int],
        idle: bool,
    ) -> HeadRide:
        """One update of the head; see `Companion.begin`."""
        return self.head.ride(rows, masks, weights, mine, idle)

    def train(
        self,
        rows: Sequence[Row],
        weights: Sequence[float] | None = None,
        *,
        states: dict[int, torch.Tensor] | None = None,
        lr: float | None = None,
    ) -> dict[str, float]:
        """One update of the head on one mini-batch, the policy untouched; returns its metrics `draft/*`.

        `weights`: one per row, 1 by default. `states`: what `states` said of these very rows, which saves the forward
        pass while the policy stays as it is. `lr`: drafter.head.lr by default. Raises RuntimeError when the gradients
        are not finite; the head is then untouched."""
        given = [1.0] * len(rows) if weights is None else weights

        def begin(masks: Sequence[FloatArray], mine: Sequence[int], idle: bool) -> Ride:
            ride = replace(self.begin(rows, masks, given, mine, idle), lr=lr)
            return ride if states is None else _Replay(ride, states)

        metrics = self.policy.ride(rows, begin, forward=states is None)
        if metrics.get("draft/skipped"):
            raise RuntimeError(f"the draft head's gradients are not finite; the head was not updated. {DIVERGED}")
        return metrics

    def states(self, rows: Sequence[Row]) -> dict[int, torch.Tensor]:
        """{row: [P + T - 1, H] hidden states before the final norm} of this replica's rows, for `train`; empty but on
        the last stage."""

        def finish(batch: MicroBatch, _hidden: torch.Tensor) -> dict[int, torch.Tensor]:
            states = self.head.states(batch)
            return {row: states[: batching.length_of(rows[row]), k].clone() for k, row in enumerate(batch.rows)}

        with torch.no_grad():
            return self.policy.each_row(rows, finish)

    def agreement(self, rows: Sequence[Row]) -> dict[str, float]:
        """How well the head foresees these rollouts, teacher-forced, by draft position: see `agreement_report`."""

        def begin(masks: Sequence[FloatArray], mine: Sequence[int], idle: bool) -> Ride:
            self.head.prepare(rows, mine)
            return _Comparison(self.head, masks)

        return self.policy.ride(rows, begin)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The head's (name, tensor) pairs in MiMo's layout, as the policy's `weights` gives its own."""
        policy = self.policy
        table = head_slots(policy.architecture, policy.layout.pp)
        stored = policy.model.config.params_dtype
        return export_weights(
            self.head.parameters(), table, policy.architecture, policy.layout, stored, DTYPES[policy.config.dtype]
        )

    def export(self, folder: Path) -> None:
        """Write the head as a folder that `drafter.head.source` takes."""
        tensors = list(self.weights())
        if self.policy.layout.rank == 0:
            write_head(tensors, self.policy.folder, folder)

    def state_dict(self) -> Any:
        """See `DraftHead.state_dict`."""
        return self.head.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """See `DraftHead.load_state_dict`."""
        self.head.load_state_dict(state)


class _Comparison:
    """A ride that learns nothing and counts agreement."""

    def __init__(self, head: DraftHead, masks: Sequence[FloatArray]) -> None:
        self._head, self._masks = head, masks

    def after_forward(self, batch: Forward, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
        """Count in this micro-batch."""
        return self._head.compare(batch, self._head.states(batch), self._masks)

    def end(self, sums: dict[str, float]) -> dict[str, float]:
        """The report."""
        return agreement_report(sums, self._head.config.depth)


class _Replay:
    """A ride on hidden states that were kept, in place of the policy's pass."""

    def __init__(self, ride: HeadRide, states: dict[int, torch.Tensor]) -> None:
        self._ride, self._states = ride, states

    def after_forward(self, batch: Forward, hidden: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Learn from the kept states of this micro-batch."""
        return self._ride.learn(batch, torch.nn.utils.rnn.pad_sequence([self._states[row] for row in batch.rows]))

    def end(self, sums: dict[str, float]) -> dict[str, float]:
        """See `HeadRide.end`."""
        return self._ride.end(sums)
